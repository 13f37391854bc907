//! Mixed: a slot holds a boundary to start again from, or the tape of a stage that then is not run again.
//!
//! Maddison 2024, "Step-based checkpointing with high-level algorithmic differentiation". One more tape, that of the
//! stage whose backward comes next, is always there and takes no slot. With `s` slots the fewest forwards for `n`
//! stages, taped ones included, follow from what the first slot is used for:
//!
//! ```text
//! M(n, s) = n                                                              if n <= s + 1
//! M(n, s) = min( 1 + M(n - 1, s - 1),                                      tape the first stage
//!                min over 2 <= i < n of i + M(i, s) + M(n - i, s - 1) )    keep the first boundary, run i stages
//! ```
//!
//! The solver does not fill this table. Its solution has a closed form, proven in `docs/solvers/mixed.md` and held
//! against the table by tests: `M(., s)` rises by 1 up to `s + 1` stages; then, for `p = 2, 3, ...` and `n` up to
//! `C(s + p, p)`, in *runs*: `C(j + p - 3, p - 2)` of them of length `s - j + 1`, for `j = 1` to `s`, each rising by
//! `p + 1` once and by `p` from then on.
//!
//! Counting a tape and a boundary as one slot each is the paper's model, for states as large as their tapes. Where a
//! tape is thirty times its boundary, it is not the plan for a budget in bytes.

use super::revolve::{Repeats, check};
use super::slots;
use crate::{Action, Plan, Profile, Request, SolveError, Stage};

/// The solver's name, on the command line and in plans.
pub const NAME: &str = "mixed";

/// The fewest stage forwards, taped ones included, that go back through `stages` with `slots` for boundaries or tapes.
///
/// `None` when there is no such plan (no stage, or no slot and more than one stage), or stages cannot be numbered, from
/// 2^32 on.
///
/// ```
/// use rekindle_plan::solvers::mixed;
///
/// assert_eq!(mixed::forwards(10, 3), Some(19));
/// assert_eq!(mixed::forwards(1000, 30), Some(2522));
/// // The tape of the last stage needs no slot.
/// assert_eq!(mixed::forwards(4, 3), Some(4));
/// ```
pub fn forwards(stages: usize, slots: u32) -> Option<u64> {
    let count = u64::from(u32::try_from(stages).ok()?);
    if count == 0 || (slots == 0 && count > 1) {
        return None;
    }
    if count <= u64::from(slots) + 1 {
        return Some(count);
    }
    if slots == 1 {
        return u64::try_from(u128::from(count) * (u128::from(count) + 1) / 2 - 1).ok();
    }
    let slots = u64::from(slots);
    let Repeats { repeats, before, .. } = Repeats::of(count, slots);
    // Whole phases: the one of p has C(s + p - 1, p) stages in C(s + p - 2, p - 1) runs. The first is s stages.
    let (mut total, mut steps) = (u128::from(slots) + 1, u128::from(slots));
    for phase in 2..repeats {
        let phase = u128::from(phase);
        let runs = steps;
        steps = steps * (u128::from(slots) + phase - 1) / phase;
        total = total.checked_add(phase.checked_mul(steps)?)?.checked_add(runs)?;
    }
    let rest = u128::from(count) - before;
    total = total.checked_add(u128::from(repeats).checked_mul(rest)?)?;
    let Place { runs_before, full, part, .. } = Place::of(slots, repeats, rest);
    total = total.checked_add(runs_before + full + u128::from(part > 0))?;
    u64::try_from(total).ok()
}

/// The schedule with the fewest forwards for `stages` with `slots` for boundaries or tapes.
///
/// ```
/// use rekindle_plan::solvers::mixed;
///
/// let actions = mixed::actions(4, 1)?;
/// let lines: Vec<String> = actions.iter().map(ToString::to_string).collect();
/// assert_eq!(
///     lines.join(", "),
///     "keep x0, forward 1, forward 2, forward 3, tape 4, backward 4, forward 1, forward 2, tape 3, backward 3, \
///      tape 1, drop x0, tape 2, backward 2, backward 1"
/// );
/// # Ok::<(), rekindle_plan::SolveError>(())
/// ```
///
/// # Errors
/// When there is no stage, no slot for more than one stage, or the schedule would be too long to hold.
pub fn actions(stages: usize, slots: u32) -> Result<Vec<Action>, SolveError> {
    enum Task {
        Segment { start: u32, stages: u32, slots: u32 },
        Backward(Stage),
    }
    let (count, needed) = check(NAME, stages, slots, forwards(stages, slots))?;
    let mut actions = Vec::with_capacity(needed);
    // What is left to do when the stages to the right are gone through. A segment that waits has its input kept.
    let mut waiting = Vec::new();
    let mut next = Some((0, count, slots, false));
    loop {
        let Some((start, stages, slots, kept)) = next.take() else {
            match waiting.pop() {
                Some(Task::Segment { start, stages, slots }) => next = Some((start, stages, slots, true)),
                Some(Task::Backward(stage)) => actions.push(Action::backward(stage)),
                None => return Ok(actions),
            }
            continue;
        };
        let stage = Stage::new(start + 1);
        let left = first_part(stages, slots);
        if left == 1 {
            actions.push(Action::tape(stage));
            if kept {
                actions.push(Action::drop(stage.input()));
            }
            waiting.push(Task::Backward(stage));
        } else {
            if !kept {
                actions.push(Action::keep(stage.input()));
            }
            actions.extend((start + 1..=start + left).map(|number| Action::forward(Stage::new(number))));
            waiting.push(Task::Segment { start, stages: left, slots });
        }
        if stages > left {
            next = Some((start + left, stages - left, slots.saturating_sub(1), false));
        }
    }
}

/// The mixed plan for a profile: with the slots of the request, or the fastest whose peak is within its budget.
///
/// It is `optimal` when slots were asked for and every stage's forward takes as long as every other's: no plan is
/// faster whose kept boundaries and tapes, but for the tape used next, never exceed the slots, and which starts again
/// from kept boundaries only. A budget in bytes makes it `feasible`, with the gap to running everything once; when
/// everything does run once it is `optimal` in any case.
///
/// ```
/// use rekindle_plan::solvers::mixed;
/// use rekindle_plan::{Bytes, Profile, Request, StageProfile, Status};
///
/// let stages = (0..10).map(|i| StageProfile {
///     name: format!("block.{i}"),
///     output_bytes: Bytes::new(1),
///     tape_bytes: Bytes::new(2),
///     ..StageProfile::default()
/// });
/// let profile = Profile::new("ten", "none", Bytes::new(1), stages.collect())?;
/// let plan = mixed::solve(&profile, &Request::with_slots(3))?;
/// assert_eq!(plan.predicted.forwards, 19);
/// assert_eq!(plan.status, Status::Optimal);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When neither slots nor a budget are given, nothing fits, a pinned stage would run twice, or the schedule would be
/// too long to hold.
pub fn solve(profile: &Profile, request: &Request) -> Result<Plan, SolveError> {
    slots::fewest_forwards(NAME, profile, request, actions)
}

/// How many stages go before what the next slot is for: 1 to tape the first, more to keep the first boundary and run
/// so many.
///
/// The runs of `M(n, s)` are those of `i + M(i, s)` on the left, a phase earlier, and those of `M(n - i, s - 1)` on the
/// right, merged: any way to share out the runs of one length among the two is as good as another. The left is given
/// its own first.
fn first_part(stages: u32, slots: u32) -> u32 {
    if u64::from(stages) <= u64::from(slots) + 1 {
        return 1;
    }
    if slots <= 1 {
        return stages.saturating_sub(1).max(1);
    }
    let slots = u64::from(slots);
    let Repeats { repeats, before, .. } = Repeats::of(u64::from(stages), slots);
    let place = Place::of(slots, repeats, u128::from(stages) - before);
    let length = u128::from(slots + 1 - place.class);
    let own_full = place.full.min(place.left_here);
    let part = if own_full < place.left_here { place.part } else { 0 };
    // What one phase fewer reaches: C(s + p - 2, s) = C(s + p - 1, s) (p - 1) / (s + p - 1).
    let (phase, slots) = (u128::from(repeats), u128::from(slots));
    let reached = before * (phase - 1) / (slots + phase - 1);
    let left = reached + place.left_before + own_full * length + part;
    u32::try_from(left).unwrap_or(u32::MAX).clamp(1, stages - 1)
}

/// Where in a phase a length lies.
struct Place {
    /// The class `j` of runs it lies in, those of length `s - j + 1`.
    class: u64,
    /// The runs of the phase before this class.
    runs_before: u128,
    /// The stages in those of them that belong to the left part.
    left_before: u128,
    /// How many runs of this class belong to the left part.
    left_here: u128,
    /// How many runs of this class are full.
    full: u128,
    /// How many stages are in the run after those.
    part: u128,
}

impl Place {
    /// For `rest` stages into the phase, from 1 to the phase's C(s + p - 1, p).
    fn of(slots: u64, phase: u64, mut rest: u128) -> Self {
        let (mut class, mut runs, mut runs_before, mut left_before) = (1, 1u128, 0, 0);
        loop {
            let length = u128::from(slots + 1 - class);
            // C(j + p - 4, p - 3) of the C(j + p - 3, p - 2) runs are the left part's.
            let left_here = match (phase, class) {
                (2, 1) => 1,
                (2, _) => 0,
                _ => runs * u128::from(phase - 2) / u128::from(class + phase - 3),
            };
            if rest <= runs * length || class == slots {
                let (full, part) = (rest / length, rest % length);
                return Self { class, runs_before, left_before, left_here, full, part };
            }
            rest -= runs * length;
            runs_before += runs;
            left_before += left_here * length;
            runs = runs * u128::from(class + phase - 2) / u128::from(class);
            class += 1;
        }
    }
}
