//! One step of a judged plan, as the figures look at it.

use rekindle_plan::{Action, Boundary, Plan, Profile, Simulation, Stage};

use crate::MeasuredEvent;

/// What an action does with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// A stage runs for the first time.
    Forward,
    /// A stage runs again.
    Again,
    /// A stage's backward.
    Backward,
    /// A boundary is moved or compressed.
    Transfer,
    /// `keep` and `drop` only say what stays.
    Nothing,
}

/// A judged plan, and where its actions lie on the axis of a figure.
pub(crate) struct Step<'a> {
    pub(crate) profile: &'a Profile,
    pub(crate) plan: &'a Plan,
    pub(crate) simulation: Simulation,
    /// What every action does.
    pub(crate) works: Vec<Work>,
    /// The profile knows times. Without them every action is as long as any other.
    pub(crate) timed: bool,
}

impl<'a> Step<'a> {
    pub(crate) fn new(profile: &'a Profile, plan: &'a Plan, simulation: Simulation) -> Self {
        let mut ran = vec![false; profile.stages().len()];
        let works = plan.actions.iter().map(|action| match action {
            Action::Forward { stage } | Action::Tape { stage, .. } => {
                match ran.get_mut(stage.index()).map(|ran| std::mem::replace(ran, true)) {
                    Some(true) => Work::Again,
                    _ => Work::Forward,
                }
            }
            Action::Backward { .. } => Work::Backward,
            Action::Offload { .. } | Action::Fetch { .. } | Action::Compress { .. } => Work::Transfer,
            Action::Keep { .. } | Action::Drop { .. } => Work::Nothing,
        });
        let works = works.collect();
        let timed = simulation.step_ns.get() > 0;
        Self { profile, plan, simulation, works, timed }
    }

    /// Where the axis ends.
    pub(crate) fn length(&self) -> f64 {
        if self.timed { self.simulation.step_ns.get() as f64 } else { self.works.len() as f64 }
    }

    /// When the plan gets to an action, and to the next: while its bytes count.
    pub(crate) fn stay(&self, action: usize) -> (f64, f64) {
        if !self.timed {
            return (action as f64, action as f64 + 1.0);
        }
        let reached = |index: usize| match self.simulation.spans.get(index) {
            Some(span) => span.reached.get() as f64,
            None => self.length(),
        };
        (reached(action), reached(action + 1))
    }

    /// When an action works.
    pub(crate) fn work(&self, action: usize) -> (f64, f64) {
        match self.simulation.spans.get(action) {
            Some(span) if self.timed => (span.start.get() as f64, span.end.get() as f64),
            _ => self.stay(action),
        }
    }

    /// When an action was seen to run.
    pub(crate) fn seen(&self, event: &MeasuredEvent) -> (f64, f64) {
        match self.timed {
            true => (event.start.get() as f64, event.end.get() as f64),
            false => self.stay(event.action),
        }
    }

    /// When the forward half is over.
    pub(crate) fn turn(&self) -> f64 {
        self.stay(self.simulation.turn.saturating_sub(1)).1
    }

    /// What people call a stage.
    pub(crate) fn name(&self, stage: Stage) -> &str {
        self.profile.stages().get(stage.index()).map_or("", |stage| &stage.name)
    }

    /// The stage in whose row a boundary's transfers are drawn: the one that makes it, or reads the input.
    pub(crate) fn home(&self, boundary: Boundary) -> Stage {
        Stage::new(boundary.number().max(1))
    }

    /// A boundary with where it comes from, such as `x3 of block.2`.
    pub(crate) fn boundary(&self, boundary: Boundary) -> String {
        match boundary.number() {
            0 => "x0, the input".to_owned(),
            number => format!("{boundary} of {}", self.name(Stage::new(number))),
        }
    }

    /// An action in words that name the stage, such as `forward of block.2, again`.
    pub(crate) fn tell(&self, action: usize) -> String {
        let again = |words: String| match self.works.get(action) {
            Some(Work::Again) => format!("{words}, again"),
            _ => words,
        };
        let Some(what) = self.plan.actions.get(action) else { return String::new() };
        match what {
            Action::Forward { stage } => again(format!("forward of {}", self.name(*stage))),
            Action::Tape { stage, option } => {
                let with = option.as_ref().map_or_else(String::new, |option| format!(" ({option})"));
                again(format!("forward of {} with tape{with}", self.name(*stage)))
            }
            Action::Backward { stage } => format!("backward of {}", self.name(*stage)),
            Action::Keep { boundary } => format!("keep {}", self.boundary(*boundary)),
            Action::Drop { boundary, place: None } => format!("drop {}", self.boundary(*boundary)),
            Action::Drop { boundary, place: Some(place) } => {
                format!("drop {} from {place}", self.boundary(*boundary))
            }
            Action::Offload { boundary, tier } => format!("offload {} to {tier}", self.boundary(*boundary)),
            Action::Fetch { boundary, place } => format!("fetch {} from {place}", self.boundary(*boundary)),
            Action::Compress { boundary, codec } => {
                format!("compress {} as {codec}", self.boundary(*boundary))
            }
        }
    }

    /// A place on the axis in words.
    pub(crate) fn moment(&self, at: f64) -> String {
        match self.timed {
            true => rekindle_plan::Nanos::new(at as u64).to_string().replace(" us", " µs"),
            false => format!("action {at:.0}"),
        }
    }
}
