//! Actions that the simulator has judged: the only thing an executor takes.

use std::sync::Arc;

use crate::reads::reads_of_outputs;
use crate::{Action, Illegal, Profile, Simulation, Stage, simulate};

/// A legal list of actions for a chain of stages.
///
/// There is no other way to make one than to have it judged, so whoever runs a `Schedule` needs no checks of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    actions: Arc<[Action]>,
    pinned: Arc<[bool]>,
    turn: usize,
    reads: Arc<[usize]>,
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
        let schedule = Self { actions: actions.into(), pinned, turn: simulation.turn, reads };
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

    /// How many stages at the chain's end are plain training: taped one after the other when the forward half ends, whole,
    /// and gone back through one after the other when the backward half begins, while nothing else happens. Nothing of them
    /// is ever run again.
    ///
    /// ```
    /// use rekindle_plan::{Action, Profile, Schedule};
    ///
    /// let profile = Profile::unmeasured(["a", "b", "c"].map(String::from), &[])?;
    /// let actions = ["keep x0", "forward 1", "tape 2", "tape 3", "backward 3", "backward 2", "tape 1", "backward 1", "drop x0"];
    /// let actions = actions.map(|action| action.parse::<Action>()).into_iter().collect::<Result<Vec<_>, _>>()?;
    /// let (schedule, _) = Schedule::judge(&profile, &actions)?;
    /// assert_eq!(schedule.plain_end(), 2);
    /// let head = schedule.without_end(2);
    /// assert_eq!((head.stages(), head.forward_half().len(), head.backward_half().len()), (1, 2, 3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn plain_end(&self) -> usize {
        let taped = self.forward_half().iter().zip(self.reads.iter()).rev();
        let stages = (0..self.stages()).rev();
        let pairs = taped.zip(self.backward_half()).zip(stages);
        let plain = pairs.take_while(|(((tape, reads), backward), index)| {
            matches!(tape, Action::Tape { stage, option: None } if stage.index() == *index)
                && matches!(backward, Action::Backward { stage } if stage.index() == *index)
                && **reads == 1
        });
        let plain = plain.count();
        let rest = self.actions[..self.turn - plain].iter().chain(&self.actions[self.turn + plain..]);
        // Whoever else runs or reads something of them needs it to be the chain's own.
        let touched = rest.map(|action| match action {
            Action::Forward { stage } | Action::Tape { stage, .. } | Action::Backward { stage } => {
                stage.index()
            }
            Action::Keep { boundary }
            | Action::Drop { boundary, .. }
            | Action::Offload { boundary, .. }
            | Action::Fetch { boundary, .. }
            | Action::Compress { boundary, .. } => boundary.index(),
        });
        let others = touched.max().map_or(0, |last| last + 1);
        let plain = plain.min(self.stages().saturating_sub(others));
        // What comes between the run of the stage before them and theirs is to be done by then.
        let before = self.actions[..self.turn - plain].last();
        let ran = |action: &Action| action.stage().map(|stage| stage.index() + 1);
        match before.is_none_or(|action| ran(action) == Some(self.stages() - plain)) {
            true => plain,
            false => plain.saturating_sub(1),
        }
    }

    /// The schedule of the chain without its last stages, of which there are [`plain_end`](Self::plain_end) at the most:
    /// whoever runs those as plain training runs this for the rest.
    #[must_use]
    pub fn without_end(&self, stages: usize) -> Self {
        let stages = stages.min(self.plain_end());
        let turn = self.turn - stages;
        let rest = [&self.actions[..turn], &self.actions[self.turn + stages..]].concat();
        let pinned: Arc<[bool]> = self.pinned[..self.stages() - stages].into();
        let reads = reads_of_outputs(pinned.len(), &rest).into();
        Self { actions: rest.into(), pinned, turn, reads }
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
