//! A plan from the least rooms alone, for when time is up before anything better is known.
//!
//! What fits is taped; what does not is swept to a boundary near its middle. Every choice is checked against the least room
//! of what it leaves, to the byte, so a room that can be met is met. Nothing says that the plan is fast, but a chain of `L`
//! stages is cut about `log L` times.

use super::choice::Choice;
use super::problem::Problem;

/// What the cell begins with in a room of so many bytes, and the room that is left then.
pub(super) fn choose(problem: &Problem, first: usize, end: usize, room: u64) -> Option<(Choice, u64)> {
    let tape = tape(problem, first, end, room);
    if let Some((choice, left)) = tape
        && all_tapes(problem, first + 1, end) <= left
    {
        return Some((choice, left));
    }
    let sweep = sweep(problem, first, end, room);
    // A chain whose last stages need the least room may leave nothing but a tape; a pinned stage does.
    sweep.or(tape)
}

/// The fastest tape of the first stage that leaves enough for the rest.
fn tape(problem: &Problem, first: usize, end: usize, room: u64) -> Option<(Choice, u64)> {
    let chain = &problem.chain;
    let tapes = chain.tapes[first].iter().enumerate().filter(|(_, tape)| {
        let left = room.checked_sub(tape.bytes);
        room >= chain.tape_need(tape, end)
            && left.is_some_and(|left| left >= problem.least_room(first + 1, end))
    });
    let (way, tape) = tapes.min_by_key(|(_, tape)| (tape.excess, tape.bytes))?;
    Some((Choice::Tape(way), room - tape.bytes))
}

/// The sweep to the boundary nearest to the middle that leaves enough for both parts.
fn sweep(problem: &Problem, first: usize, end: usize, room: u64) -> Option<(Choice, u64)> {
    let chain = &problem.chain;
    let middles = chain.sweeps(first, end).take_while(|(_, need)| *need <= room).filter_map(|(middle, _)| {
        let left = room.checked_sub(chain.boundary[middle])?;
        let fits = left >= problem.least_room(middle, end) && room >= problem.least_room(first, middle);
        fits.then_some((middle, left))
    });
    let (middle, left) = middles.min_by_key(|(middle, _)| (2 * middle).abs_diff(first + end))?;
    Some((Choice::Sweep(middle), left))
}

/// What the smallest of the fastest tapes of some stages take together.
fn all_tapes(problem: &Problem, first: usize, end: usize) -> u64 {
    let chain = &problem.chain;
    let bytes = (first..end).map(|stage| chain.tapes[stage][chain.fastest(stage)].bytes);
    bytes.fold(0, u64::saturating_add)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use proptest::prelude::*;

    use super::super::chain::{Chain, NEVER};
    use super::super::refine::{plan, tests::chain};
    use super::*;
    use crate::simulate;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn every_room_that_can_be_met_is_met(profile in chain(), part in 0..=1000u64) {
            let whole = Chain::new(&profile);
            let problem = Problem::new(whole.clone());
            let least = problem.whole_room();
            prop_assume!(least != NEVER);
            let room = least + whole.store_all_room().saturating_sub(least) * part / 1000;
            let choose = |first, end, room| choose(&problem, first, end, room);
            let (overhead, actions) = plan(&problem, room, choose).unwrap();
            let found = simulate(&profile, &actions).unwrap();
            prop_assert!(found.peak_bytes.get() <= room + whole.boundary[0]);
            prop_assert_eq!(found.step_ns.get(), whole.base + overhead);
        }
    }
}
