//! A time that no plan within a budget can beat, proven.
//!
//! Take the moment when some node `v` is computed for the first time. All ancestors of `v` have been computed by then,
//! no descendant has. What the descendants read of the ancestors is either there at that moment, beside `v` and what
//! `v` reads, or it is computed again afterwards, and so is what it reads in turn. So every plan pays, on top of
//! every required node once, the cheapest way to choose what is there:
//!
//! ```text
//! minimise   the time of what is recomputed
//! such that  what is needed is there or recomputed; what a recomputed node reads is needed;
//!            what is there fits beside v, its workspace and what it reads
//! ```
//!
//! With a price on every byte that is there instead of the limit, this is a minimum cut, and every price gives a lower
//! bound. The best price is found by Newton's method on the pieces of the bound, which is concave in the price. All in
//! whole numbers: the bound is proven, not rounded.

use std::time::Instant;

use crate::graph::Problem;
use crate::graph::keep::{Fate, cheapest};

/// The best bound of the most promising moments.
pub(crate) struct Bound {
    /// No plan within the budget is faster.
    pub(crate) time: u64,
    /// No plan at all has a smaller peak.
    pub(crate) bytes: u64,
}

/// How many moments are bounded exactly; the others only by their knapsack.
const MOMENTS: usize = 16;

/// The largest graph whose every moment is looked at; beyond it a sample.
const LOOKED_AT: usize = 2_000;

pub(crate) fn bound(problem: &Problem, budget: u64, until: Instant) -> Bound {
    let mut best = Bound { time: problem.least_time(), bytes: problem.least_bytes() };
    if budget < best.bytes {
        return best;
    }
    let step = problem.order.len().div_ceil(LOOKED_AT).max(1);
    let mut promising = Vec::new();
    for &node in problem.order.iter().step_by(step) {
        if Instant::now() >= until {
            return best;
        }
        let moment = Moment::new(problem, node as usize, budget);
        let estimate = moment.knapsack(problem);
        if estimate > 0.0 {
            promising.push((estimate, node));
        }
    }
    // Best first; among equals the earlier node, so that the bound is the same on every machine.
    promising.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
    // Neighbours have nearly the same estimate: half of the moments are the best, the other half spread further down.
    let spread = promising.len().saturating_sub(MOMENTS / 2).div_ceil(MOMENTS / 2).max(1);
    let chosen = promising
        .iter()
        .enumerate()
        .filter(|(rank, _)| *rank < MOMENTS / 2 || (rank - MOMENTS / 2).is_multiple_of(spread));
    for (_, &(_, node)) in chosen {
        if Instant::now() >= until {
            break;
        }
        let moment = Moment::new(problem, node as usize, budget);
        match moment.extra(problem, until) {
            Extra::Time(extra) => best.time = best.time.max(problem.least_time().saturating_add(extra)),
            Extra::Never(bytes) => best.bytes = best.bytes.max(bytes),
        }
    }
    best
}

/// What a moment proves.
enum Extra {
    /// At least this much is recomputed.
    Time(u64),
    /// No plan has a smaller peak than this, and it is over the budget.
    Never(u64),
}

/// The first time a node is computed.
struct Moment {
    /// Who was computed before: the ancestors.
    before: Vec<u32>,
    /// Read afterwards: by a descendant, or an output.
    needed: Vec<bool>,
    /// There in any case: what the node reads.
    held: Vec<bool>,
    /// What fits beside the node and what it reads.
    room: u64,
    /// What the node and what it reads take.
    fixed: u64,
}

impl Moment {
    fn new(problem: &Problem, node: usize, budget: u64) -> Self {
        let reach = |next: &dyn Fn(usize) -> Vec<u32>| {
            let mut seen = vec![false; problem.len()];
            let mut stack = next(node);
            let mut found = Vec::new();
            while let Some(other) = stack.pop() {
                if !std::mem::replace(&mut seen[other as usize], true) {
                    found.push(other);
                    stack.extend(next(other as usize));
                }
            }
            (found, seen)
        };
        let (mut before, _) = reach(&|node| problem.reads(node).to_vec());
        before.sort_unstable();
        let (_, after) = reach(&|node| problem.readers(node).to_vec());
        let mut needed = vec![false; problem.len()];
        for &other in &before {
            let read_after = |reader: &u32| after[*reader as usize] && problem.required[*reader as usize];
            needed[other as usize] =
                problem.output[other as usize] || problem.readers(other as usize).iter().any(read_after);
        }
        let mut held = vec![false; problem.len()];
        let mut fixed = problem.bytes[node] + problem.workspace[node];
        for &read in problem.reads(node) {
            held[read as usize] = true;
            fixed += problem.bytes[read as usize];
        }
        Self { before, needed, held, room: budget.saturating_sub(fixed), fixed }
    }

    fn to_choose(&self) -> impl Iterator<Item = usize> + '_ {
        self.before.iter().map(|&node| node as usize).filter(|&node| self.needed[node] && !self.held[node])
    }

    /// A quick guess at the extra time: what is needed and does not fit, the cheapest by the byte, and nothing of what
    /// it reads in turn. It orders the moments, and is no bound itself.
    fn knapsack(&self, problem: &Problem) -> f64 {
        let total: u64 = self.to_choose().map(|node| problem.bytes[node]).sum();
        let mut over = total.saturating_sub(self.room);
        if over == 0 {
            return 0.0;
        }
        let mut cheapest: Vec<(f64, u64, u64)> = (self.to_choose())
            .filter(|&node| problem.bytes[node] > 0 && problem.recomputable[node])
            .map(|node| {
                (
                    problem.time[node] as f64 / problem.bytes[node] as f64,
                    problem.bytes[node],
                    problem.time[node],
                )
            })
            .collect();
        cheapest.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut time = 1e-9;
        for (rate, bytes, _) in cheapest {
            let gone = bytes.min(over);
            time += rate * gone as f64;
            over -= gone;
            if over == 0 {
                break;
            }
        }
        time
    }

    fn extra(&self, problem: &Problem, until: Instant) -> Extra {
        // Free bytes: everything needed is kept. Free time: as little as possible is kept.
        let mut lavish = self.cut(problem, 0, 1);
        if lavish.bytes <= self.room {
            return Extra::Time(0);
        }
        let mut frugal = self.cut(problem, 1, 0);
        if frugal.bytes > self.room {
            return Extra::Never(frugal.bytes.saturating_add(self.fixed));
        }
        let mut best = 0;
        // Newton's method ends by itself; the limit is for ill-conditioned numbers.
        for _ in 0..40 {
            if Instant::now() >= until {
                break;
            }
            let (mut price, mut scale) =
                (frugal.time.saturating_sub(lavish.time), lavish.bytes.saturating_sub(frugal.bytes));
            // Any price proves a bound, so a price may be rounded where the products would not fit.
            while price >= 1 << 62 || scale >= 1 << 62 {
                price >>= 1;
                scale >>= 1;
            }
            if price == 0 || scale == 0 {
                break;
            }
            let cut = self.cut(problem, price, scale);
            let paid = cut.value.saturating_sub(u128::from(price) * u128::from(self.room));
            let proven = u64::try_from(paid.div_ceil(u128::from(scale))).unwrap_or(u64::MAX);
            let better = proven > best;
            best = best.max(proven);
            if cut.bytes > self.room {
                if cut.bytes == lavish.bytes || cut.time == lavish.time && !better {
                    break;
                }
                lavish = cut;
            } else {
                if cut.bytes == frugal.bytes && cut.time == frugal.time {
                    break;
                }
                frugal = cut;
            }
        }
        Extra::Time(best)
    }

    /// The cheapest choice when a byte that is there costs `price` and a nanosecond of recomputation `scale`.
    fn cut(&self, problem: &Problem, price: u64, scale: u64) -> Choice {
        let keep = |node: usize| {
            if self.held[node] { 0 } else { u128::from(price) * u128::from(problem.bytes[node]) }
        };
        let again = |node: usize| u128::from(scale) * u128::from(problem.time[node]);
        let (value, fates) = cheapest(problem, &self.before, &self.needed, keep, again);
        let (mut bytes, mut time) = (0u64, 0u64);
        for (&node, fate) in self.before.iter().zip(fates) {
            let node = node as usize;
            match fate {
                Fate::Again => time = time.saturating_add(problem.time[node]),
                Fate::Kept if !self.held[node] => bytes += problem.bytes[node],
                _ => {}
            }
        }
        Choice { bytes, time, value }
    }
}

/// What is there, what is recomputed, and what both cost at the prices asked.
struct Choice {
    bytes: u64,
    time: u64,
    value: u128,
}
