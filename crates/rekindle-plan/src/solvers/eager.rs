//! Eager eviction: what to do when nothing is known in advance.
//!
//! After Kirisame et al. 2021, "Dynamic Tensor Rematerialization" (DTR): run, keep whatever there is room for, and when
//! there is none let go of what is cheap to bring back, large, and long unused. [`Evictor`] decides what that is, and
//! serves whoever runs stages without a plan. [`solve`] drives it over a chain as if the stages came one by one, and
//! writes down what happened as a plan.
//!
//! DTR finds out that it is over its limit when memory has been taken, and goes on if it cannot free enough. Here room is
//! made before anything runs, for the workspace too, so the limit is never exceeded.

mod evictor;
mod least;
mod tournament;
mod trace;

pub use evictor::{EvictError, Evictor, Held};

use std::time::Instant;

use least::least_bytes;
use trace::{TooLong, Trace};

use crate::rules::{self, MOST_ACTIONS};
use crate::{Action, Boundary, Bytes, Gap, Plan, Profile, Request, SolveError, Stage, StageProfile, Status};

/// The solver's name.
pub const NAME: &str = "eager";

/// A plan as it comes about when stages arrive one by one and what to keep is decided on the way.
///
/// **What it knows.** A stage's sizes and times when it runs, and not before: neither how many stages follow nor how
/// large they are. That a stage was the last it learns when the gradient arrives. Of the whole profile only one figure
/// is used in advance, to refuse a budget under which something could be let go that cannot be brought back.
///
/// **What it does.** A stage runs with its tape if room can be made for it, because it may be the last; without
/// otherwise. Going back, a tape that is gone is made again from the nearest boundary there is, and the stages on the way
/// run by the same rule. What they leave stays until something better needs its room. A tape that was let go before its
/// backward is left out of the plan, where its stage runs without one. Tape options, tiers and codecs are not used, and what a
/// stage passes on counts as if it were memory of its own.
///
/// **What it promises.** Never a byte over the budget. Nothing is run twice when the budget is that of `store-all`.
/// Otherwise nothing is promised about the time, not even that a larger budget takes less of it.
///
/// ```
/// use rekindle_plan::solvers::eager;
/// use rekindle_plan::{Bytes, Nanos, Profile, Request, SolveError, StageProfile};
///
/// let stages = (0..24).map(|index| StageProfile {
///     name: format!("block.{index}"),
///     output_bytes: Bytes::mebibytes(1),
///     tape_bytes: Bytes::mebibytes(32),
///     forward_ns: Nanos::new(1_000_000),
///     backward_ns: Nanos::new(2_000_000),
///     ..StageProfile::default()
/// });
/// let profile = Profile::new("gpt", "none", Bytes::mebibytes(1), stages.collect())?;
///
/// let plan = eager::solve(&profile, &Request::new(Bytes::mebibytes(200)))?;
/// assert!(plan.predicted.peak_bytes <= Bytes::mebibytes(200));
///
/// let error = eager::solve(&profile, &Request::new(Bytes::mebibytes(30))).unwrap_err();
/// assert!(matches!(error, SolveError::BudgetTooSmall { smallest_bytes, .. } if smallest_bytes == Bytes::mebibytes(35)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`SolveError::NothingToMeet`] without a budget; [`SolveError::BudgetTooSmall`] when something could be let go that
/// cannot be brought back; [`SolveError::TooLong`] when so little fits that the plan would have more than
/// [`MOST_ACTIONS`].
pub fn solve(profile: &Profile, request: &Request) -> Result<Plan, SolveError> {
    let plan = solve_until(profile, request, None)?;
    // Does not happen: without a limit time is never up.
    let why = || "its time is up".to_owned();
    plan.ok_or_else(|| SolveError::TooLong { solver: NAME, stages: profile.stages().len(), why: why() })
}

/// The same, given up when time is up before there is a plan: then there is none. Judging it comes on top.
pub(super) fn solve_until(
    profile: &Profile,
    request: &Request,
    until: Option<Instant>,
) -> Result<Option<Plan>, SolveError> {
    if request.budget_bytes.is_none() {
        return Err(SolveError::NothingToMeet { solver: NAME, needed: "a budget in bytes" });
    }
    let limit = request.usable_bytes();
    let stages = profile.stages().len();
    let too_long = |TooLong| SolveError::TooLong {
        solver: NAME,
        stages,
        why: format!(
            "within {limit} it takes more than {MOST_ACTIONS} actions; a larger budget recomputes less"
        ),
    };
    let evicting = least_bytes(profile, |index| profile.stages()[index].pinned);
    let storing = least_bytes(profile, |_| true);
    let actions = if limit >= evicting {
        let mut run = Run::new(profile, limit, until).map_err(|_| too_small(limit, evicting))?;
        match run.step() {
            Ok(()) => run.trace.actions(stages).map_err(too_long)?,
            Err(Stop::TooLong) => return Err(too_long(TooLong)),
            Err(Stop::Late) => return Ok(None),
            // Does not happen: `least_bytes` is what this could need.
            Err(Stop::Evictor(_)) => return Err(too_small(limit, storing)),
        }
    } else if limit >= storing {
        // What is let go could not be brought back beside a gradient, but nothing has to go.
        if stages.saturating_mul(2) > MOST_ACTIONS {
            return Err(too_long(TooLong));
        }
        rules::store_all(stages)
    } else {
        return Err(too_small(limit, evicting.min(storing)));
    };
    judged(profile, request, actions).map(Some)
}

fn too_small(budget_bytes: Bytes, smallest_bytes: Bytes) -> SolveError {
    SolveError::BudgetTooSmall { solver: NAME, budget_bytes, smallest_bytes }
}

/// The plan with its gap, which is known when the simulator has said how long it takes.
fn judged(profile: &Profile, request: &Request, actions: Vec<Action>) -> Result<Plan, SolveError> {
    let status = Status::Feasible(Gap::ZERO);
    let mut plan = Plan::judged(profile, NAME.to_owned(), status, request.budget_bytes, actions)?;
    let (step, bound) = (plan.predicted.step_ns, plan.predicted.lower_bound_ns);
    let left = step.saturating_sub(bound).get() as f64 / (step.get() as f64).max(1.0);
    plan.status = Status::Feasible(Gap::new(left).unwrap_or(Gap::ZERO));
    Ok(plan)
}

/// Why a step does not come to its end.
enum Stop {
    TooLong,
    Late,
    Evictor(EvictError),
}

impl From<TooLong> for Stop {
    fn from(_: TooLong) -> Self {
        Self::TooLong
    }
}

impl From<EvictError> for Stop {
    fn from(error: EvictError) -> Self {
        Self::Evictor(error)
    }
}

/// One training step, run without tensors.
struct Run<'a> {
    profile: &'a Profile,
    evictor: Evictor,
    trace: Trace,
    /// When to give up.
    until: Option<Instant>,
}

impl<'a> Run<'a> {
    fn new(profile: &'a Profile, limit: Bytes, until: Option<Instant>) -> Result<Self, EvictError> {
        let evictor = Evictor::new(limit, profile.input_bytes())?;
        Ok(Self { profile, evictor, trace: Trace::default(), until })
    }

    fn step(&mut self) -> Result<(), Stop> {
        let stages = self.profile.stages().len();
        for index in 0..stages {
            self.forward(Stage::at(index))?;
        }
        let last = Stage::at(stages - 1);
        self.evictor.record_turn();
        self.gradient_arrives(last)?;
        for index in (0..stages).rev() {
            self.back(Stage::at(index))?;
        }
        Ok(())
    }

    fn stage(&self, stage: Stage) -> &'a StageProfile {
        &self.profile.stages()[stage.index()]
    }

    fn gradient(&self, boundary: Boundary) -> Bytes {
        self.profile.gradient_bytes(boundary).unwrap_or_default()
    }

    /// Runs a stage, with its tape if room can be made for that: it may be the last one.
    fn forward(&mut self, stage: Stage) -> Result<(), Stop> {
        let pinned = self.stage(stage).pinned;
        match self.run(stage, true) {
            Err(Stop::Evictor(EvictError::NoRoom { .. })) if !pinned => self.run(stage, false),
            Ok(()) if pinned => {
                self.evictor.pin(Held::Tape(stage));
                Ok(())
            }
            done => done,
        }
    }

    /// Runs a stage, once there is room.
    fn run(&mut self, stage: Stage, taped: bool) -> Result<(), Stop> {
        if self.until.is_some_and(|until| Instant::now() > until) {
            return Err(Stop::Late);
        }
        let (profile, input) = (self.stage(stage), Held::Boundary(stage.input()));
        let (bytes, extra) = match taped {
            true => (profile.tape_bytes, profile.taped_workspace()),
            false => (profile.output_bytes, profile.forward_extra_bytes),
        };
        self.evictor.pin(input);
        let gone = self.evictor.make_room(with(bytes, extra));
        let recorded = gone.and_then(|gone| {
            match taped {
                true => self.evictor.record_tape(stage, profile.output_bytes, bytes, profile.forward_ns)?,
                false => self.evictor.record_forward(stage, bytes, profile.forward_ns)?,
            }
            Ok(gone)
        });
        self.evictor.unpin(input);
        self.trace.let_go(recorded?)?;
        self.trace.run(stage, taped)?;
        Ok(())
    }

    /// The gradient of the last boundary comes from outside.
    fn gradient_arrives(&mut self, last: Stage) -> Result<(), Stop> {
        let tape = Held::Tape(last);
        self.evictor.pin(tape);
        let gradient = self.gradient(last.output());
        let gone = self.evictor.make_room(gradient)?;
        self.trace.let_go_at_the_turn(gone)?;
        self.evictor.reserve(gradient)?;
        self.evictor.unpin(tape);
        Ok(())
    }

    /// Goes back through a stage, once its tape is there.
    fn back(&mut self, stage: Stage) -> Result<(), Stop> {
        let profile = self.stage(stage);
        if !self.evictor.is_taped(stage) {
            let nearest = self.evictor.nearest(stage.input()).unwrap_or(Boundary::new(0));
            for number in nearest.number() + 1..stage.number() {
                self.forward(Stage::new(number))?;
            }
            self.run(stage, true)?;
        }
        let tape = Held::Tape(stage);
        self.evictor.pin(tape);
        let gone = self.evictor.make_room(profile.backward_workspace())?;
        self.trace.let_go(gone)?;
        self.evictor.unpin(tape);
        self.evictor.record_backward(stage, profile.backward_ns)?;
        self.evictor.release(self.gradient(stage.output()));
        // Room for the new gradient is there before the stage goes back: what makes room for it goes first.
        let gradient = self.gradient(stage.input());
        let gone = self.evictor.make_room(gradient)?;
        self.trace.let_go(gone)?;
        self.evictor.reserve(gradient)?;
        self.trace.backward(stage)?;
        Ok(())
    }
}

fn with(bytes: Bytes, extra: Bytes) -> Bytes {
    bytes.checked_add(extra).unwrap_or(Bytes::MAX)
}
