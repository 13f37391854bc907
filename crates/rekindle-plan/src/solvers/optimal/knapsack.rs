//! What no plan can do without, from one moment alone.
//!
//! When the last stage goes back, every other stage either has its tape or runs again. So the overhead is at least that
//! of the best choice of tapes that fit at this one moment: a knapsack with several ways for each item, and its linear
//! relaxation is solved by taking the best bargains first. Where there is room for a good part of the tapes, this bound
//! is nearly reached, long before a grid is fine enough to say so.

use super::chain::Chain;

/// The knapsack of a chain, made once for every room.
#[derive(Debug)]
pub(super) struct Knapsack {
    /// What is held in any case.
    held: u64,
    /// The chain's input, when it can be moved away and its room used.
    freed: u64,
    /// Overhead when nothing else is.
    overhead: u64,
    /// The best bargains first: the bytes they take and the overhead they save, each with all before it.
    bargains: Vec<(u64, u64)>,
}

impl Knapsack {
    pub(super) fn new(chain: &Chain) -> Self {
        let last = chain.stages() - 1;
        let mut held = chain.tapes[last].iter().map(|tape| tape.backward_need).min().unwrap_or(0);
        let mut overhead = 0u64;
        let mut bargains = Vec::new();
        for stage in 0..last {
            let again = chain.sweep(stage, stage + 1);
            let ways = chain.tapes[stage].iter().map(|tape| (tape.bytes, tape.excess));
            let nothing = [(0, again)].into_iter().filter(|_| !chain.pinned(stage, stage + 1));
            let hull = hull(nothing.chain(ways).collect());
            if let Some((bytes, excess)) = hull.first() {
                // A pinned stage is taped in any case.
                held = held.saturating_add(*bytes);
                overhead = overhead.saturating_add(*excess);
            }
            bargains.extend(hull.windows(2).map(|pair| (pair[1].0 - pair[0].0, pair[0].1 - pair[1].1)));
        }
        // Most nanoseconds saved for a byte first; compared exactly.
        bargains.sort_unstable_by(|left, right| {
            (u128::from(right.1) * u128::from(left.0)).cmp(&(u128::from(left.1) * u128::from(right.0)))
        });
        let mut sum = (0u64, 0u64);
        for bargain in &mut bargains {
            sum = (sum.0.saturating_add(bargain.0), sum.1.saturating_add(bargain.1));
            *bargain = sum;
        }
        Self { held, freed: 0, overhead, bargains }
    }

    /// The knapsack of a chain whose boundaries can be moved away, its input among them.
    pub(super) fn anywhere(chain: &Chain) -> Self {
        Self { freed: chain.boundary[0], ..Self::new(chain) }
    }

    /// Overhead in nanoseconds that no plan within `room` can do without.
    pub(super) fn bound(&self, room: u64) -> u64 {
        let left = room.saturating_add(self.freed).saturating_sub(self.held);
        let whole = self.bargains.partition_point(|(bytes, _)| *bytes <= left);
        let before = whole.checked_sub(1).map_or((0, 0), |last| self.bargains[last]);
        let overhead = self.overhead.saturating_sub(before.1);
        let Some(next) = self.bargains.get(whole) else { return overhead };
        let (bytes, saved) = (next.0 - before.0, next.1 - before.1);
        // A part of a bargain saves at most this much, rounded up.
        let part = u128::from(saved) * u128::from(left - before.0) / u128::from(bytes);
        overhead.saturating_sub(part as u64 + 1)
    }
}

/// The ways that a mixture of others does not beat: bytes rise, overhead falls, and each byte saves less than the one
/// before.
fn hull(mut ways: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ways.sort_unstable();
    let mut hull: Vec<(u64, u64)> = Vec::with_capacity(ways.len());
    for way in ways {
        if hull.last().is_some_and(|last| way.1 >= last.1) {
            continue;
        }
        while let [.., before, last] = hull[..] {
            let saved = u128::from(before.1 - last.1) * u128::from(way.0 - last.0);
            let more = u128::from(last.1 - way.1) * u128::from(last.0 - before.0);
            if saved > more {
                break;
            }
            hull.pop();
        }
        hull.push(way);
    }
    hull
}
