//! Online: stages come one by one, and how many there will be is not known.
//!
//! Recurrent nets over streams, adaptive time steps. Each stage runs once, without a tape, while boundaries are kept
//! and dropped so that the backward half is cheap whenever the end comes. The backward half then is the best there is
//! for the boundaries that are left: revolve between each two of them, with the slots that are free by then.
//!
//! Wang, Moin and Iaccarino 2009, "Minimal repetition dynamic checkpointing algorithm for unsteady adjoint
//! calculation": every boundary has a level, 0 when it is made. With all slots taken, a boundary of a lower level than
//! a later one may go; if there is none, the newest is passed over and the boundary after it gets a level more. Which
//! of several goes is open; here it is the last of them, whose stages are the fewest.
//!
//! - with `s` slots and up to `(s + 1)(s + 2) / 2` stages, the forwards are as few as revolve's, which knows the length
//!   (the range of Stumm and Walther 2010, "New algorithms for optimal online checkpointing", algorithm I);
//! - for any length `n`, with `t` the least for which `C(s + t, s) >= n`, there are at most `(t + 1) n` forwards, where
//!   revolve has `(t + 1) n - C(s + t, t - 1)`;
//! - the state is at most `s` boundaries, whatever the length, and a step takes constant time on average.
//!
//! Proofs in `docs/solvers/online.md`.

use super::revolve::{self, check, too_long};
use super::slots::{self, Counted};
use crate::rules::MOST_ACTIONS;
use crate::{Action, Boundary, Plan, Profile, Request, SolveError, Stage};

/// The solver's name, on the command line and in plans.
pub const NAME: &str = "online";

/// Which boundaries to keep while stages arrive.
///
/// ```
/// use rekindle_plan::solvers::online::Online;
/// use rekindle_plan::{Action, Profile, simulate};
///
/// let mut online = Online::new(2)?;
/// let mut actions = Vec::new();
/// // A stage arrives, and another is known to follow: run it without a tape.
/// for _ in 1..6 {
///     actions.extend(online.step()?.actions());
///     assert!(online.kept().len() <= 2);
/// }
/// // The sixth is the last: it is taped right away.
/// actions.extend(online.finish()?);
///
/// let stages = (1..=6).map(|i| format!("step.{i}"));
/// let simulation = simulate(&Profile::unmeasured(stages, &[])?, &actions)?;
/// // As few as with the length known: (s + 1)(s + 2) / 2 is 6.
/// assert_eq!(Some(simulation.forwards), rekindle_plan::solvers::revolve::forwards(6, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Online {
    slots: u32,
    /// How many stages have run; the boundary after them is on the device.
    stages: u32,
    /// The level of that boundary.
    level: u32,
    /// Boundaries that stay: no later one has a higher level. Levels do not rise from first to last.
    stay: Vec<(Boundary, u32)>,
    /// Boundaries that may go, first to last.
    spare: Vec<Boundary>,
}

/// What to do with one stage that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// A boundary to drop first.
    pub drop: Option<Boundary>,
    /// The stage's input, when it is to stay.
    pub keep: Option<Boundary>,
    /// The stage to run without a tape.
    pub stage: Stage,
}

impl Step {
    /// The step as actions, in their order.
    pub fn actions(self) -> impl Iterator<Item = Action> {
        let drop = self.drop.map(Action::drop);
        drop.into_iter().chain(self.keep.map(Action::keep)).chain([Action::forward(self.stage)])
    }
}

impl Online {
    /// With so many boundaries kept at once, `x0` included.
    ///
    /// # Errors
    /// When there is no slot: nothing could be run a second time.
    pub fn new(slots: u32) -> Result<Self, SolveError> {
        if slots == 0 {
            return Err(SolveError::TooFewSlots { solver: NAME, slots, least: 1, stages: 2 });
        }
        Ok(Self { slots, stages: 0, level: u32::MAX, stay: Vec::new(), spare: Vec::new() })
    }

    /// A stage has arrived, and it is not the last.
    ///
    /// # Errors
    /// After 2^32 - 2 stages, which no plan can number.
    pub fn step(&mut self) -> Result<Step, SolveError> {
        let input = Boundary::new(self.stages);
        let Some(stages) = self.stages.checked_add(1).filter(|stages| *stages < u32::MAX) else {
            let stages = usize::try_from(self.stages).unwrap_or(usize::MAX);
            return Err(SolveError::TooLong { solver: NAME, stages, why: "stages have 32 bits".to_owned() });
        };
        self.stages = stages;
        let stage = Stage::new(stages);
        let free = self.stay.len() + self.spare.len() < self.slots as usize;
        let drop = if free { None } else { self.spare.pop() };
        if free || drop.is_some() {
            self.stay.push((input, std::mem::take(&mut self.level)));
            return Ok(Step { drop, keep: Some(input), stage });
        }
        // The input is passed over. Whatever has a lower level than the next boundary may go from now on.
        self.level = self.level.saturating_add(1);
        let low = self.stay.partition_point(|(_, level)| *level >= self.level);
        self.spare.extend(self.stay.drain(low..).map(|(boundary, _)| boundary));
        Ok(Step { drop: None, keep: None, stage })
    }

    /// How many stages have run.
    pub fn stages(&self) -> u32 {
        self.stages
    }

    /// The boundaries that are kept, first to last: never more than the slots.
    pub fn kept(&self) -> Vec<Boundary> {
        let mut kept: Vec<Boundary> = self.stay.iter().map(|(boundary, _)| *boundary).collect();
        kept.extend(&self.spare);
        kept.sort_unstable();
        kept
    }

    /// One more stage has arrived, and it is the last: it is taped, which ends the forward half, and everything is gone
    /// back through.
    ///
    /// # Errors
    /// When the schedule would be too long to hold.
    pub fn finish(self) -> Result<Vec<Action>, SolveError> {
        self.back(true)
    }

    /// The stage of the last [`Online::step`] turns out to have been the last: everything is gone back through. This
    /// costs a few forwards more than [`Online::finish`], because the last stage ran without its tape.
    ///
    /// # Errors
    /// When no stage has run, or the schedule would be too long to hold.
    pub fn finish_late(self) -> Result<Vec<Action>, SolveError> {
        self.back(false)
    }

    fn back(self, one_more: bool) -> Result<Vec<Action>, SolveError> {
        let stages = self.stages as usize + usize::from(one_more);
        let kept = self.kept();
        let ends = kept.iter().skip(1).map(|boundary| boundary.number()).chain([self.stages]);
        // Each segment from its kept boundary on, with the slots of those before it taken.
        let segments: Vec<(u32, u32, u32)> = (0..self.slots)
            .zip(kept.iter().zip(ends))
            .map(|(taken, (start, end))| (start.number(), end - start.number(), self.slots - taken))
            .collect();
        let forwards = segments.iter().try_fold(u64::from(one_more), |sum, (_, length, slots)| {
            sum.checked_add(revolve::forwards(*length as usize, *slots)?)
        });
        let (_, needed) = check(NAME, stages, self.slots, forwards)?;
        let mut actions = Vec::with_capacity(needed);
        if one_more {
            let last = Stage::at(self.stages as usize);
            actions.extend([Action::tape(last), Action::backward(last)]);
        }
        for (start, length, slots) in segments.into_iter().rev() {
            revolve::segment(&mut actions, start, length, slots, true);
        }
        Ok(actions)
    }
}

/// The actions for a chain of `stages` that arrive one by one, with `slots` boundaries kept at once.
///
/// ```
/// use rekindle_plan::solvers::online;
///
/// let actions = online::actions(4, 2)?;
/// let lines: Vec<String> = actions.iter().map(ToString::to_string).collect();
/// assert_eq!(
///     lines.join(", "),
///     "keep x0, forward 1, keep x1, forward 2, forward 3, tape 4, backward 4, \
///      forward 2, tape 3, backward 3, tape 2, drop x1, backward 2, tape 1, drop x0, backward 1"
/// );
/// # Ok::<(), rekindle_plan::SolveError>(())
/// ```
///
/// # Errors
/// When there is no stage, no slot for more than one stage, or the schedule would be too long to hold.
pub fn actions(stages: usize, slots: u32) -> Result<Vec<Action>, SolveError> {
    let (count, _) = check(NAME, stages, slots, Some(stages as u64))?;
    // A single stage needs no slot.
    let mut online = Online::new(slots.max(1))?;
    let mut actions = Vec::with_capacity(stages * 5);
    for _ in 1..count {
        actions.extend(online.step()?.actions());
    }
    let back = online.finish()?;
    let needed = actions.len() + back.len();
    if needed > MOST_ACTIONS {
        return Err(too_long(NAME, stages, Some(needed as u128)));
    }
    actions.extend(back);
    Ok(actions)
}

/// The online plan for a profile, as if its stages arrived one by one: with the slots of the request, or the fastest
/// whose peak is within its budget.
///
/// It is `optimal` when slots were asked for, every stage's forward takes as long as every other's, and the forwards
/// are as few as revolve's: then not knowing the length has cost nothing. Otherwise `feasible`, with the gap to running
/// everything once.
///
/// ```
/// use rekindle_plan::solvers::online;
/// use rekindle_plan::{Bytes, Nanos, Profile, Request, StageProfile};
///
/// let stages = (0..100).map(|i| StageProfile {
///     name: format!("step.{i}"),
///     output_bytes: Bytes::new(1),
///     tape_bytes: Bytes::new(4),
///     forward_ns: Nanos::new(1),
///     backward_ns: Nanos::new(2),
///     ..StageProfile::default()
/// });
/// let profile = Profile::new("stream", "none", Bytes::new(1), stages.collect())?;
/// let plan = online::solve(&profile, &Request::with_slots(5))?;
/// assert!(plan.predicted.forwards <= 500);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When neither slots nor a budget are given, nothing fits, a pinned stage would run twice, or the schedule would be
/// too long to hold.
pub fn solve(profile: &Profile, request: &Request) -> Result<Plan, SolveError> {
    let stages = profile.stages().len();
    let same = slots::same_forwards(profile) && slots::own_tapes_are_best(profile);
    Counted {
        name: NAME,
        profile,
        request,
        least: 1,
        most: slots::useful(stages),
        // Beyond revolve's range no proof says that another slot never hurts.
        falling: false,
        costly: false,
        actions: &|slots| actions(stages, slots),
        proven: &|slots, simulation| same && revolve::forwards(stages, slots) == Some(simulation.forwards),
    }
    .solve()
}
