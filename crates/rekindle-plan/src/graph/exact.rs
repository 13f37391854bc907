//! The fastest of all plans, for small graphs: shortest path over what is there.
//!
//! Whatever happened before, only what is there decides how a plan can go on (and which nodes that may not be computed
//! again have been). So plans are paths between sets of nodes, and A* finds the shortest: what must still be computed
//! at least, given what is there, is a lower bound for the rest. Values are freed only when something else needs the
//! room, and then no more than it needs: a value that is there never harms.
//!
//! Cut short, the search still proves a bound: no plan is faster than the best path it had not followed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Instant;

use crate::graph::Problem;
use crate::graph::word::Word;

/// The largest graph whose nodes fit the bits of a set.
pub(crate) const MOST_NODES: usize = 64;

/// How many ways to make room for one node are looked at, before the graph counts as too large.
const MOST_DROPS: usize = 1 << 14;

/// What the search found.
pub(crate) enum Exact {
    /// The fastest plan.
    Best(Word),
    /// There is none; the smallest budget that could have changed anything.
    Never(u64),
    /// It was cut short, and no plan is faster than this.
    Open(u64),
}

/// How much work the search may do.
#[derive(Clone, Copy)]
pub(crate) struct Limit {
    /// Steps tried. A count, not a time, so that the same graph gives the same plan everywhere.
    pub(crate) steps: usize,
    /// Stop when a path must be at least this long: a plan of that time is known.
    pub(crate) known_time: u64,
    pub(crate) until: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    present: u64,
    /// Not there, and not to be computed again.
    gone: u64,
}

struct Sets<'a> {
    problem: &'a Problem,
    reads: Vec<u64>,
    readers: Vec<u64>,
    /// The node itself and all it needs.
    ancestors: Vec<u64>,
    outputs: u64,
    fixed: u64,
}

impl<'a> Sets<'a> {
    fn new(problem: &'a Problem) -> Self {
        let set = |nodes: &[u32]| nodes.iter().fold(0u64, |set, &node| set | 1 << node);
        let all = 0..problem.len();
        let reads: Vec<u64> = all.clone().map(|node| set(problem.reads(node))).collect();
        let readers = all.clone().map(|node| set(problem.readers(node))).collect();
        let mut ancestors = vec![0u64; problem.len()];
        for &input in &problem.inputs {
            ancestors[input as usize] = 1 << input;
        }
        for &node in &problem.order {
            let node = node as usize;
            let reached =
                problem.reads(node).iter().fold(1 << node, |set, &read| set | ancestors[read as usize]);
            ancestors[node] = reached;
        }
        Self {
            problem,
            reads,
            readers,
            ancestors,
            outputs: all.clone().filter(|&node| problem.output[node]).fold(0, |set, node| set | 1 << node),
            fixed: all.filter(|&node| !problem.recomputable[node]).fold(0, |set, node| set | 1 << node),
        }
    }

    fn bytes(&self, set: u64) -> u64 {
        each(set).map(|node| self.problem.bytes[node]).sum()
    }

    /// What must be computed at least, and how long that takes; `None` when it cannot be.
    fn rest(&self, state: State) -> Option<u64> {
        let mut need = self.outputs & !state.present;
        let mut found = need;
        while found != 0 {
            let node = found.trailing_zeros() as usize;
            found &= found - 1;
            let more = self.reads[node] & !state.present & !need;
            need |= more;
            found |= more;
        }
        if need & state.gone != 0 {
            return None;
        }
        Some(each(need).map(|node| self.problem.time[node]).sum())
    }

    /// Frees what nothing can read any more. What may still be computed are ancestors of missing outputs.
    fn settle(&self, mut state: State) -> State {
        let future = each(self.outputs & !state.present).fold(0, |set, node| set | self.ancestors[node]);
        for node in each(state.present & !self.outputs) {
            if self.readers[node] & future == 0 {
                state.present &= !(1 << node);
                state.gone |= self.fixed & 1 << node;
            }
        }
        state
    }

    fn future(&self, state: State) -> u64 {
        each(self.outputs & !state.present).fold(0, |set, node| set | self.ancestors[node])
    }
}

fn each(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (set != 0).then(|| {
            let node = set.trailing_zeros() as usize;
            set &= set - 1;
            node
        })
    })
}

/// Looks for the fastest plan within `budget`.
pub(crate) fn search(problem: &Problem, budget: u64, limit: Limit) -> Exact {
    let sets = Sets::new(problem);
    let start = problem.inputs.iter().fold(0u64, |set, &node| set | 1 << node);
    if problem.inputs_bytes > budget {
        return Exact::Never(problem.inputs_bytes);
    }
    let start = sets.settle(State { present: start, gone: 0 });
    let Some(rest) = sets.rest(start) else { return Exact::Open(0) };

    /// How a set was first reached best: the time, the set before, the node computed; and whether it was followed.
    struct Reached {
        time: u64,
        from: State,
        node: u8,
        done: bool,
    }
    let mut reached: HashMap<State, Reached, BuildHasherDefault<Mix>> = HashMap::default();
    reached.insert(start, Reached { time: 0, from: start, node: u8::MAX, done: false });
    // Shortest first; among equals whoever has come furthest, then whoever came first.
    let mut open = BinaryHeap::from([(Reverse(rest), 0u64, Reverse(0usize), StateOrder(start))]);
    let (mut looked_at, mut tried) = (0usize, 1usize);
    let mut next_budget = u64::MAX;
    // Whether a path was left because it cannot be faster than what is known.
    let mut worse = false;
    let mut drops = Vec::new();
    while let Some((Reverse(total), time, _, StateOrder(state))) = open.pop() {
        let Some(here) = reached.get_mut(&state) else { continue };
        if here.done || here.time < time {
            continue;
        }
        here.done = true;
        if state.present & sets.outputs == sets.outputs {
            let mut word = Vec::new();
            let mut at = state;
            while let Some(step) = reached.get(&at).filter(|step| step.node != u8::MAX) {
                word.push(u32::from(step.node));
                at = step.from;
            }
            word.reverse();
            return Exact::Best(Word(word));
        }
        looked_at += 1;
        if total >= limit.known_time
            || tried > limit.steps
            || (looked_at.is_multiple_of(16) && Instant::now() >= limit.until)
        {
            return Exact::Open(total);
        }
        let held = sets.bytes(state.present);
        let future = sets.future(state);
        for node in each(future & !state.present & !state.gone) {
            if sets.reads[node] & !state.present != 0 {
                continue;
            }
            let needed = held + problem.bytes[node] + problem.workspace[node];
            let over = needed.saturating_sub(budget);
            drops.clear();
            if over == 0 {
                drops.push(0);
            } else {
                let free = state.present & !sets.reads[node];
                let Some(next) = lightest(&sets, free, over, needed, &mut drops) else {
                    return Exact::Open(total);
                };
                next_budget = next_budget.min(next);
            }
            for &drop in &drops {
                let next = sets.settle(State {
                    present: (state.present & !drop) | 1 << node,
                    gone: state.gone | (drop & sets.fixed),
                });
                tried += 1;
                let Some(rest) = sets.rest(next) else { continue };
                let time = time.saturating_add(problem.time[node]);
                if time.saturating_add(rest) >= limit.known_time {
                    worse = true;
                    continue;
                }
                let known = reached.get(&next).map(|known| known.time);
                if known.is_none_or(|known| time < known) {
                    reached.insert(next, Reached { time, from: state, node: node as u8, done: false });
                    open.push((Reverse(time.saturating_add(rest)), time, Reverse(tried), StateOrder(next)));
                }
            }
        }
    }
    if worse { Exact::Open(limit.known_time) } else { Exact::Never(next_budget) }
}

/// All smallest subsets of `free` that take at least `over` bytes. Returns the smallest budget above the present one at
/// which one of them could be smaller still; `None` when there are too many.
fn lightest(sets: &Sets<'_>, free: u64, over: u64, needed: u64, drops: &mut Vec<u64>) -> Option<u64> {
    let mut nodes: Vec<usize> = each(free).filter(|&node| sets.problem.bytes[node] > 0).collect();
    // Largest first: whatever is added last is then the smallest of its set, and the set is minimal if it is needed.
    nodes.sort_by_key(|&node| (Reverse(sets.problem.bytes[node]), node));
    let mut after = vec![0u64; nodes.len() + 1];
    for (index, &node) in nodes.iter().enumerate().rev() {
        after[index] = after[index + 1] + sets.problem.bytes[node];
    }
    let mut next = u64::MAX;
    let mut stack = vec![(0usize, 0u64, 0u64)];
    while let Some((index, set, bytes)) = stack.pop() {
        if bytes >= over {
            drops.push(set);
            if drops.len() > MOST_DROPS {
                return None;
            }
            continue;
        }
        // With a budget of this much, what is dropped here would be enough.
        next = next.min(needed - bytes);
        if index == nodes.len() || bytes + after[index] < over {
            // All that is left does not suffice: with this much more it would.
            if index < nodes.len() {
                next = next.min(needed - bytes - after[index]);
            }
            continue;
        }
        stack.push((index + 1, set, bytes));
        stack.push((index + 1, set | 1 << nodes[index], bytes + sets.problem.bytes[nodes[index]]));
    }
    Some(next)
}

/// Sets in a heap are never compared for their own sake: the count before them is unique.
#[derive(PartialEq, Eq)]
struct StateOrder(State);

impl PartialOrd for StateOrder {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for StateOrder {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

/// A multiplicative hash: the sets are our own, and nobody chooses them to collide.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 29;
    }
}
