//! Actions that the simulator has judged: the only thing an executor takes.

mod pieces;

use std::sync::Arc;

use crate::reads::reads_of_outputs;
use crate::{Action, Illegal, Profile, Simulation, Stage, simulate};

use pieces::Known;
pub use pieces::Piece;

/// A legal list of actions for a chain of stages.
///
/// There is no other way to make one than to have it judged, or to take a [piece](Schedule::pieces) of one that was, so whoever runs a `Schedule` needs no checks of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    actions: Arc<[Action]>,
    pinned: Arc<[bool]>,
    turn: usize,
    reads: Arc<[usize]>,
    /// The pieces it was taken in before.
    known: Known,
}

impl Schedule {
    /// Judges `actions` for the chain of `profile`.
    ///
    /// # Errors
    /// With the first action that cannot run, and why.
    pub fn judge(profile: &Profile, actions: &[Action]) -> Result<(Self, Simulation), Illegal> {
        let simulation = simulate(profile, actions)?;
        let pinned = profile.stages().iter().map(|stage| stage.pinned).collect();
        let reads = reads_of_outputs(profile.stages().len(), actions).into();
        let (actions, turn, known) = (actions.into(), simulation.turn, Known::default());
        let schedule = Self { actions, pinned, turn, reads, known };
        Ok((schedule, simulation))
    }

    /// The actions of both halves.
    pub fn actions(&self) -> &[Action] {
        &self.actions
    }

    /// The actions up to the one that first makes the region's output.
    pub fn forward_half(&self) -> &[Action] {
        &self.actions[..self.turn]
    }

    /// The actions that follow, once the gradient of the output is there.
    pub fn backward_half(&self) -> &[Action] {
        &self.actions[self.turn..]
    }

    /// For each action that tapes: how many later ones read the output its tape includes. The first run of the last stage
    /// has one reader more: whoever the region's output is handed to.
    pub fn reads_of_outputs(&self) -> &[usize] {
        &self.reads
    }

    /// How many stages the chain has.
    pub fn stages(&self) -> usize {
        self.pinned.len()
    }

    /// Whether a stage must run once only; one that the chain does not have must not run at all.
    pub fn is_pinned(&self, stage: Stage) -> bool {
        self.pinned.get(stage.index()).copied().unwrap_or(true)
    }
}
