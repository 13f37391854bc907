//! A plan by running the graph under a hard limit: what does not fit is evicted, what is missing is computed again.
//!
//! The nodes are taken in a given order. When room is needed, the value goes that is cheapest to compute again for the
//! bytes it takes and the time until it is read. The rule is that of dynamic tensor rematerialisation (Kirisame et al.
//! 2020), but with the future known, and with a limit that is never exceeded. It promises nothing about time; it finds
//! plans at budgets where better methods see none.

use std::time::Instant;

use crate::graph::Problem;
use crate::graph::word::Word;

/// How a value is chosen to be evicted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taste {
    /// How much the distance to the next reader counts.
    pub(crate) distance: f64,
    /// How much the bytes count.
    pub(crate) bytes: f64,
}

struct Run<'a> {
    problem: &'a Problem,
    budget: u64,
    taste: Taste,
    present: Vec<bool>,
    computed: Vec<bool>,
    locks: Vec<u32>,
    held: u64,
    list: Vec<u32>,
    /// The places in the order at which each node is read, and how many of them are over.
    uses: Vec<Vec<u32>>,
    over: Vec<u32>,
    /// The place after which a value can no longer be needed, to recompute others included.
    until: Vec<u32>,
    now: u32,
    word: Vec<u32>,
}

/// A plan that computes `order` under `budget`; `None` when it got stuck, too long or out of time.
pub(crate) fn run(
    problem: &Problem,
    order: &[u32],
    budget: u64,
    taste: Taste,
    deadline: Instant,
) -> Option<Word> {
    if problem.inputs_bytes > budget {
        return None;
    }
    let count = problem.len();
    let end = order.len() as u32;
    let mut uses = vec![Vec::new(); count];
    for (place, &node) in order.iter().enumerate() {
        for &read in problem.reads(node as usize) {
            uses[read as usize].push(place as u32);
        }
    }
    let mut until = vec![0u32; count];
    for (node, until) in until.iter_mut().enumerate() {
        *until = if problem.output[node] { end } else { uses[node].last().copied().unwrap_or(0) };
    }
    // A value can be needed as long as a reader that can be computed again is.
    for &node in order.iter().rev() {
        let node = node as usize;
        if problem.recomputable[node] {
            for &read in problem.reads(node) {
                until[read as usize] = until[read as usize].max(until[node]);
            }
        }
    }
    let mut run = Run {
        problem,
        budget,
        taste,
        present: vec![false; count],
        computed: vec![false; count],
        locks: vec![0; count],
        held: problem.inputs_bytes,
        list: problem.inputs.clone(),
        uses,
        over: vec![0; count],
        until,
        now: 0,
        word: Vec::new(),
    };
    for &input in &problem.inputs {
        run.present[input as usize] = true;
        run.computed[input as usize] = true;
    }
    let longest = 64 * order.len() + 10_000;
    for (place, &node) in order.iter().enumerate() {
        run.now = place as u32;
        run.make(node, longest, deadline)?;
        for &read in problem.reads(node as usize) {
            run.over[read as usize] += 1;
        }
    }
    // Outputs that were evicted come back, each held from then on.
    run.now = end;
    for node in (0..count as u32).filter(|&node| problem.output[node as usize]) {
        run.make(node, longest, deadline)?;
        run.locks[node as usize] += 1;
    }
    Some(Word(run.word))
}

impl Run<'_> {
    /// Computes a node, and before it what it reads and is missing. No recursion: graphs are deep.
    fn make(&mut self, node: u32, longest: usize, deadline: Instant) -> Option<()> {
        if self.present[node as usize] {
            return Some(());
        }
        let mut stack = vec![node];
        self.enter(node)?;
        while let Some(&top) = stack.last() {
            let reads = self.problem.reads(top as usize);
            if let Some(&missing) = reads.iter().find(|&&read| !self.present[read as usize]) {
                self.enter(missing)?;
                stack.push(missing);
                continue;
            }
            self.room(top as usize)?;
            self.present[top as usize] = true;
            self.computed[top as usize] = true;
            self.held += self.problem.bytes[top as usize];
            self.list.push(top);
            self.word.push(top);
            if self.word.len() > longest || (self.word.len().is_multiple_of(64) && Instant::now() >= deadline)
            {
                return None;
            }
            for &read in reads {
                self.locks[read as usize] -= 1;
            }
            stack.pop();
            // Whoever is waiting for it, perhaps more than one, must find it.
            for &waiting in &stack {
                if self.problem.reads(waiting as usize).contains(&top) {
                    self.locks[top as usize] += 1;
                }
            }
        }
        Some(())
    }

    /// Starts on a node: what it reads and is there stays there.
    fn enter(&mut self, node: u32) -> Option<()> {
        if self.computed[node as usize] && !self.problem.recomputable[node as usize] {
            return None;
        }
        for &read in self.problem.reads(node as usize) {
            if self.present[read as usize] {
                self.locks[read as usize] += 1;
            }
        }
        Some(())
    }

    /// Evicts until the node fits.
    fn room(&mut self, node: usize) -> Option<()> {
        let needed = self.problem.bytes[node].saturating_add(self.problem.workspace[node]);
        while self.held.saturating_add(needed) > self.budget {
            let mut best: Option<(f64, usize)> = None;
            for index in 0..self.list.len() {
                let value = self.list[index] as usize;
                if self.locks[value] > 0 || self.problem.bytes[value] == 0 {
                    continue;
                }
                let Some(score) = self.score(value) else { continue };
                if best.is_none_or(|(least, _)| score < least) {
                    best = Some((score, index));
                }
            }
            let (_, index) = best?;
            let value = self.list.swap_remove(index) as usize;
            self.present[value] = false;
            self.held -= self.problem.bytes[value];
        }
        Some(())
    }

    /// The least goes first; `None` must stay.
    fn score(&self, value: usize) -> Option<f64> {
        // `now` itself still has to read its own.
        if self.until[value] < self.now && !self.problem.output[value] {
            return Some(-1.0);
        }
        if !self.problem.recomputable[value] {
            return None;
        }
        let next = self.uses[value].get(self.over[value] as usize);
        let distance = match next {
            Some(&next) => f64::from(next.saturating_sub(self.now)) + 1.0,
            None if self.problem.output[value] => f64::from(self.uses.len() as u32),
            // Nobody reads it but to recompute others.
            None => return Some(0.0),
        };
        let mut cost = self.problem.time[value] as f64 + 1e-3;
        // What it reads and is not there comes on top, some steps back.
        let mut at = value;
        for _ in 0..32 {
            let missing = self.problem.reads(at).iter().find(|&&read| !self.present[read as usize]);
            let Some(&missing) = missing else { break };
            at = missing as usize;
            cost += self.problem.time[at] as f64;
        }
        let bytes = self.problem.bytes[value] as f64;
        Some(cost / (bytes.powf(self.taste.bytes) * distance.powf(self.taste.distance)))
    }
}
