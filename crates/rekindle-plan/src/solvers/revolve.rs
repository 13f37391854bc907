//! Revolve: binomial checkpointing, the fewest forwards for a number of slots.
//!
//! Griewank and Walther 2000, "Algorithm 799: Revolve". A slot holds one boundary, `x0` included; one stage is taped
//! at a time, right before its backward. With `s` slots, and no stage run more than `t` times before it is taped, a
//! chain of `C(s + t, s)` stages can be gone back through. That gives the least `t` for a length `n`, and the fewest
//! forwards in all, taped ones included:
//!
//! ```text
//! t = min { t : C(s + t, s) >= n }          forwards = (t + 1) n - C(s + t, t - 1)
//! ```
//!
//! No other plan with `s` slots and one tape runs fewer forwards. It is no claim about bytes: where a tape is far
//! larger than a boundary, or stages differ, other solvers do better. See `docs/solvers/revolve.md`.

use super::slots;
use crate::rules::MOST_ACTIONS;
use crate::{Action, Plan, PlanError, Profile, Request, RuleError, SolveError, Stage};

/// The solver's name, on the command line and in plans.
pub const NAME: &str = "revolve";

/// The fewest stage forwards, taped ones included, that go back through `stages` with `slots` boundaries kept at once.
///
/// `None` when there is no such plan (no stage, or no slot and more than one stage), or stages cannot be numbered, from
/// 2^32 on.
///
/// ```
/// use rekindle_plan::solvers::revolve;
///
/// assert_eq!(revolve::forwards(10, 3), Some(25));
/// assert_eq!(revolve::forwards(1000, 30), Some(3472));
/// assert_eq!(revolve::forwards(2, 0), None);
/// ```
pub fn forwards(stages: usize, slots: u32) -> Option<u64> {
    match (stages, slots) {
        (0, _) => None,
        (1, _) => Some(1),
        (_, 0) => None,
        _ => {
            let count = u64::from(u32::try_from(stages).ok()?);
            let slots = u64::from(slots).min(count - 1);
            let Repeats { repeats, reach, .. } = Repeats::of(count, slots);
            let all = (u128::from(repeats) + 1).checked_mul(u128::from(count))?;
            // C(s + t, t - 1) = C(s + t, s) t / (s + 1).
            let spared = reach.checked_mul(u128::from(repeats))? / (u128::from(slots) + 1);
            u64::try_from(all.checked_sub(spared)?).ok()
        }
    }
}

/// The schedule with the fewest forwards for `stages` with `slots` boundaries kept at once.
///
/// ```
/// use rekindle_plan::solvers::revolve;
///
/// let actions = revolve::actions(3, 1)?;
/// let lines: Vec<String> = actions.iter().map(ToString::to_string).collect();
/// assert_eq!(
///     lines.join(", "),
///     "keep x0, forward 1, forward 2, tape 3, backward 3, forward 1, tape 2, backward 2, tape 1, drop x0, backward 1"
/// );
/// # Ok::<(), rekindle_plan::SolveError>(())
/// ```
///
/// # Errors
/// When there is no stage, no slot for more than one stage, or the schedule would be too long to hold.
pub fn actions(stages: usize, slots: u32) -> Result<Vec<Action>, SolveError> {
    let (count, needed) = check(NAME, stages, slots, forwards(stages, slots))?;
    let mut actions = Vec::with_capacity(needed);
    segment(&mut actions, 0, count, slots, false);
    Ok(actions)
}

/// The revolve plan for a profile: with the slots of the request, or the fastest whose peak is within its budget.
///
/// It is `optimal` when slots were asked for and every stage's forward takes as long as every other's: no plan that
/// keeps so many boundaries at once, one tape at a time, is faster. A budget in bytes makes it `feasible`, with the
/// gap to the time of running everything once.
///
/// ```
/// use rekindle_plan::solvers::revolve;
/// use rekindle_plan::{Bytes, Nanos, Profile, Request, StageProfile, Status};
///
/// let stages = (0..10).map(|i| StageProfile {
///     name: format!("block.{i}"),
///     output_bytes: Bytes::new(1),
///     tape_bytes: Bytes::new(8),
///     forward_ns: Nanos::new(1),
///     backward_ns: Nanos::new(2),
///     ..StageProfile::default()
/// });
/// let profile = Profile::new("ten", "none", Bytes::new(1), stages.collect())?;
///
/// let plan = revolve::solve(&profile, &Request::with_slots(3))?;
/// assert_eq!(plan.status, Status::Optimal);
/// assert_eq!(plan.predicted.forwards, 25);
///
/// let plan = revolve::solve(&profile, &Request::new(Bytes::new(13)))?;
/// assert!(plan.predicted.peak_bytes <= Bytes::new(13));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When neither slots nor a budget are given, nothing fits, a pinned stage would run twice, or the schedule would be
/// too long to hold.
pub fn solve(profile: &Profile, request: &Request) -> Result<Plan, SolveError> {
    slots::fewest_forwards(NAME, profile, request, actions)
}

/// What every solver here asks of a length and a number of slots: the length as stages count, and an upper bound for
/// the number of actions, given the number of forwards.
pub(super) fn check(
    solver: &'static str,
    stages: usize,
    slots: u32,
    forwards: Option<u64>,
) -> Result<(u32, usize), SolveError> {
    if stages == 0 {
        return Err(PlanError::Rule(RuleError::NoStages).into());
    }
    if slots == 0 && stages > 1 {
        return Err(SolveError::TooFewSlots { solver, slots, least: 1, stages });
    }
    // Beside its forwards a stage has a backward, and each taped run at most one keep and one drop of its input.
    let needed = forwards.map(|forwards| u128::from(forwards) + 3 * stages as u128);
    match (needed, u32::try_from(stages)) {
        (Some(needed), Ok(count)) if needed <= MOST_ACTIONS as u128 => Ok((count, needed as usize)),
        _ => Err(too_long(solver, stages, needed)),
    }
}

pub(super) fn too_long(solver: &'static str, stages: usize, needed: Option<u128>) -> SolveError {
    let needed = needed.map_or("2^32 or more".to_owned(), |needed| format!("up to {needed}"));
    let why = format!("it needs {needed} actions, more than {MOST_ACTIONS}; give it more slots");
    SolveError::TooLong { solver, stages, why }
}

/// Goes back through `stages` stages from boundary `start`, which is on the device: kept, or only just made.
///
/// The caller has checked that there is a slot, `start`'s own included, unless there is one stage.
pub(super) fn segment(actions: &mut Vec<Action>, start: u32, stages: u32, slots: u32, kept: bool) {
    struct Segment {
        start: u32,
        stages: u32,
        slots: u32,
        kept: bool,
    }
    // A segment waits here while the one to its right runs, in a slot fewer: the stack is no deeper than the slots.
    let mut waiting = vec![Segment { start, stages, slots, kept }];
    while let Some(mut now) = waiting.pop() {
        while now.stages > 1 {
            let left = split(now.stages, now.slots);
            let middle = now.start + left;
            if !now.kept {
                actions.push(Action::keep(Stage::new(now.start + 1).input()));
            }
            actions.extend((now.start + 1..=middle).map(|number| Action::forward(Stage::new(number))));
            waiting.push(Segment { stages: left, kept: true, ..now });
            now = Segment {
                start: middle,
                stages: now.stages - left,
                slots: now.slots.saturating_sub(1),
                kept: false,
            };
        }
        if now.stages == 1 {
            let stage = Stage::new(now.start + 1);
            actions.push(Action::tape(stage));
            if now.kept {
                actions.push(Action::drop(stage.input()));
            }
            actions.push(Action::backward(stage));
        }
    }
}

/// How many of `stages` (at least two) to run before the next boundary is kept: from 1 to `stages - 1`.
///
/// The left part may be as long as one repetition fewer reaches, C(s + t - 1, s); the right part, with a slot fewer
/// and as many repetitions, must be at least C(s + t - 2, s - 1) long, or the left part would be too long. The
/// longest left part that allows both is taken.
fn split(stages: u32, slots: u32) -> u32 {
    if slots <= 1 {
        return stages - 1;
    }
    let slots = u64::from(slots.min(stages - 1));
    let Repeats { repeats, before, .. } = Repeats::of(u64::from(stages), slots);
    // C(s + t - 2, s - 1) = C(s + t - 1, s) s / (s + t - 1).
    let right = before * u128::from(slots) / (u128::from(slots) + u128::from(repeats) - 1);
    let left = before.min(u128::from(stages).saturating_sub(right));
    u32::try_from(left).unwrap_or(u32::MAX).clamp(1, stages - 1)
}

/// How often stages must run for a chain of a length with a number of slots.
pub(super) struct Repeats {
    /// The least `t` for which C(s + t, s) reaches the length.
    pub(super) repeats: u64,
    /// C(s + t, s).
    pub(super) reach: u128,
    /// C(s + t - 1, s): what one repetition fewer reaches, less than the length.
    pub(super) before: u128,
}

impl Repeats {
    /// For two stages or more, at least one slot and fewer slots than stages.
    pub(super) fn of(stages: u64, slots: u64) -> Self {
        if slots <= 1 {
            let (repeats, reach) = (stages.saturating_sub(1), u128::from(stages));
            return Self { repeats, reach, before: reach.saturating_sub(1) };
        }
        // Each is less than 2^64 times the one before, which is less than the length: nothing overflows.
        let (mut repeats, mut reach, mut before) = (0, 1, 0);
        while reach < u128::from(stages) {
            repeats += 1;
            before = reach;
            reach = reach * (u128::from(slots) + u128::from(repeats)) / u128::from(repeats);
        }
        Self { repeats, reach, before }
    }
}
