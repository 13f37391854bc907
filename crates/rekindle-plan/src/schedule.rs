//! Actions that the simulator has judged: the only thing an executor takes.

use std::sync::Arc;

use crate::{Action, Illegal, Profile, Simulation, simulate};

/// A legal list of actions for a chain of stages.
///
/// There is no other way to make one than to have it judged, so whoever runs a `Schedule` needs no checks of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    actions: Arc<[Action]>,
    stages: usize,
    turn: usize,
}

impl Schedule {
    /// Judges `actions` for the chain of `profile`.
    ///
    /// # Errors
    /// With the first action that cannot run, and why.
    pub fn judge(profile: &Profile, actions: &[Action]) -> Result<(Self, Simulation), Illegal> {
        let simulation = simulate(profile, actions)?;
        let schedule =
            Self { actions: actions.into(), stages: profile.stages().len(), turn: simulation.turn };
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

    /// How many stages the chain has.
    pub fn stages(&self) -> usize {
        self.stages
    }
}
