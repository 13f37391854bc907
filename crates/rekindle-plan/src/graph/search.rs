//! Anytime search over words: take some recomputations back, repair what no longer fits, keep what got better.
//!
//! A step *ruins* the plan: it deletes recomputations, of a stretch, of a node or at random, so that their values stay
//! from the time before. Then it *repairs* it: while a moment is over the budget, some value alive there and not read
//! is computed again just before its next reader instead, the one that frees the most excess bytes for its time. At
//! last it *polishes*: every recomputation that turns out not to be needed goes. (Schrimpf et al., "Record breaking
//! optimization results using the ruin and recreate principle", 2000.)

use std::time::Instant;

use crate::graph::Problem;
use crate::graph::word::{Scratch, Word};

/// Xorshift: the same numbers on every machine.
struct Random(u64);

impl Random {
    const fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Less than `end`; 0 when that is 0.
    fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.next() % end as u64) as usize }
    }

    /// From 0 to 1.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// What happens to each node and when, for one word.
#[derive(Default)]
struct Events {
    /// `2 * position`, plus 1 where the node is read and not computed; by node, ascending.
    list: Vec<u32>,
    from: Vec<u32>,
}

impl Events {
    fn fill(&mut self, problem: &Problem, word: &[u32]) {
        self.from.clear();
        self.from.resize(problem.len() + 1, 0);
        for &node in word {
            self.from[node as usize + 1] += 1;
            for &read in problem.reads(node as usize) {
                self.from[read as usize + 1] += 1;
            }
        }
        for node in 0..problem.len() {
            self.from[node + 1] += self.from[node];
        }
        self.list.clear();
        self.list.resize(self.from[problem.len()] as usize, 0);
        let mut at = self.from.clone();
        for (position, &node) in word.iter().enumerate() {
            for &read in problem.reads(node as usize) {
                self.list[at[read as usize] as usize] = 2 * position as u32 + 1;
                at[read as usize] += 1;
            }
            self.list[at[node as usize] as usize] = 2 * position as u32;
            at[node as usize] += 1;
        }
    }

    fn of(&self, node: usize) -> &[u32] {
        &self.list[self.from[node] as usize..self.from[node + 1] as usize]
    }

    /// The last event before the position and the first at or after it.
    fn around(&self, node: usize, position: usize) -> (Option<u32>, Option<u32>) {
        let events = self.of(node);
        let split = events.partition_point(|&event| (event as usize) < 2 * position);
        (split.checked_sub(1).map(|before| events[before]), events.get(split).copied())
    }
}

pub(crate) struct Search<'a> {
    problem: &'a Problem,
    budget: u64,
    rank: Vec<u32>,
    scratch: Scratch,
    events: Events,
    memory: Vec<u64>,
    /// Sums of the bytes over the budget, and how many moments are over it.
    excess: Vec<u64>,
    moments: Vec<u32>,
    seen: Vec<u32>,
    round: u32,
    random: Random,
    until: Instant,
    /// Positions looked at: the measure of work, the same on every machine.
    pub(crate) work: u64,
}

/// A value that could be computed again just before `reader`, and what goes with it.
struct Candidate {
    score: f64,
    reader: usize,
    again: Vec<u32>,
}

impl<'a> Search<'a> {
    pub(crate) fn new(problem: &'a Problem, budget: u64, until: Instant) -> Self {
        let mut rank = vec![0; problem.len()];
        for (place, &node) in problem.order.iter().enumerate() {
            rank[node as usize] = place as u32 + 1;
        }
        Self {
            problem,
            budget,
            rank,
            scratch: Scratch::default(),
            events: Events::default(),
            memory: Vec::new(),
            excess: Vec::new(),
            moments: Vec::new(),
            seen: vec![0; problem.len()],
            round: 0,
            random: Random::new(0x5eed_0f7e_1d00),
            until,
            work: 0,
        }
    }

    /// The time of a word that fits.
    pub(crate) fn fits(&mut self, word: &Word) -> Option<u64> {
        self.work += word.0.len() as u64;
        word.cost(self.problem, self.budget, &mut self.scratch, |_, _| {}).map(|cost| cost.time)
    }

    pub(crate) fn clean(&mut self, word: &mut Word) {
        self.work += word.0.len() as u64;
        word.clean(self.problem, &mut self.scratch);
    }

    /// One step from `word`: another word that fits, or `None`. Gives up on words that take `most` or longer.
    pub(crate) fn step(&mut self, word: &Word, most: u64) -> Option<Word> {
        let mut next = word.clone();
        self.ruin(&mut next);
        let noise = [0.0, 0.3, 1.0, 2.0][self.random.below(4)];
        self.repair(&mut next, noise, most)?;
        self.polish(&mut next);
        Some(next)
    }

    /// Deletes some recomputations: their values stay from the time before instead.
    fn ruin(&mut self, word: &mut Word) {
        let mut first = vec![true; self.problem.len()];
        let again: Vec<usize> = (word.0.iter().enumerate())
            .filter(|(_, node)| !std::mem::replace(&mut first[**node as usize], false))
            .map(|(position, _)| position)
            .collect();
        let length = word.0.len();
        let mut gone = vec![false; length];
        match self.random.below(4) {
            0 => {
                let center = self.random.below(length);
                let reach = 1 + self.random.below(length / 4 + 2);
                for &position in again.iter().filter(|position| position.abs_diff(center) <= reach) {
                    gone[position] = true;
                }
            }
            1 => {
                for _ in 0..=self.random.below(3) {
                    if let Some(&position) = again.get(self.random.below(again.len())) {
                        gone[position] = true;
                    }
                }
            }
            2 => {
                let share = self.random.fraction() * 0.5;
                for &position in &again {
                    gone[position] = self.random.fraction() < share;
                }
            }
            _ => {
                if let Some(&position) = again.get(self.random.below(again.len())) {
                    let node = word.0[position];
                    for &other in again.iter().filter(|&&other| word.0[other] == node) {
                        gone[other] = true;
                    }
                }
            }
        }
        let mut position = 0;
        word.0.retain(|_| {
            position += 1;
            !gone[position - 1]
        });
        self.clean(word);
        if self.random.below(3) == 0 {
            self.slide(word);
        }
    }

    /// Moves one computation to another place between what it reads and who reads it.
    fn slide(&mut self, word: &mut Word) {
        if word.0.is_empty() {
            return;
        }
        let from = self.random.below(word.0.len());
        let node = word.0[from];
        let reads = self.problem.reads(node as usize);
        let earliest = (word.0[..from].iter())
            .rposition(|other| reads.contains(other) || *other == node)
            .map_or(0, |before| before + 1);
        let latest = (word.0[from + 1..].iter())
            .position(|&other| other == node || self.problem.reads(other as usize).contains(&node))
            .map_or(word.0.len() - 1, |after| from + after);
        let to = match self.random.below(3) {
            0 => latest,
            1 => earliest,
            _ => earliest + self.random.below(latest - earliest + 1),
        };
        let node = word.0.remove(from);
        word.0.insert(to.min(word.0.len()), node);
    }

    /// Inserts recomputations until everything fits; `None` when it finds none to insert or the time passes `most`.
    pub(crate) fn repair(&mut self, word: &mut Word, noise: f64, most: u64) -> Option<u64> {
        let mut time = word.time(self.problem);
        let longest = 32 * self.problem.len() + 1_000;
        for _ in 0..4 * self.problem.len() + 100 {
            let length = word.0.len();
            self.work += 4 * length as u64;
            self.memory.resize(length, 0);
            let memory = &mut self.memory;
            word.cost(self.problem, u64::MAX, &mut self.scratch, |position, bytes| memory[position] = bytes);
            let worst =
                (0..length).max_by_key(|&position| (self.memory[position], std::cmp::Reverse(position)))?;
            if self.memory[worst] <= self.budget {
                return Some(time);
            }
            if time >= most || length > longest || Instant::now() >= self.until {
                return None;
            }
            self.events.fill(self.problem, &word.0);
            self.excess.clear();
            self.moments.clear();
            let (mut excess, mut moments) = (0u64, 0u32);
            for &bytes in &self.memory {
                self.excess.push(excess);
                self.moments.push(moments);
                excess = excess.saturating_add(bytes.saturating_sub(self.budget));
                moments += u32::from(bytes > self.budget);
            }
            self.excess.push(excess);
            self.moments.push(moments);
            let Candidate { reader, again, .. } = self.candidate(word, worst, noise)?;
            time = again.iter().fold(time, |sum, &node| sum.saturating_add(self.problem.time[node as usize]));
            word.0.splice(reader..reader, again);
        }
        None
    }

    /// The best value to let go at `position`.
    fn candidate(&mut self, word: &Word, position: usize, noise: f64) -> Option<Candidate> {
        let computing = word.0[position] as usize;
        let mut best: Option<Candidate> = None;
        for node in 0..self.problem.len() {
            let bytes = self.problem.bytes[node];
            if bytes == 0 || !self.problem.recomputable[node] || node == computing {
                continue;
            }
            let (Some(before), after) = self.events.around(node, position) else { continue };
            let reader = match after {
                Some(read) if read % 2 == 1 && read as usize / 2 > position => read as usize / 2,
                None if self.problem.output[node] => word.0.len(),
                _ => continue,
            };
            let idle = before as usize / 2 + 1;
            let excess = self.excess[reader] - self.excess[idle];
            let moments = u64::from(self.moments[reader] - self.moments[idle]);
            let gain = excess.min(bytes.saturating_mul(moments)) as f64;
            let Some(again) = self.again(node, reader) else { continue };
            let time: u64 =
                again.iter().map(|&node| self.problem.time[node as usize]).fold(0, u64::saturating_add);
            // Nothing is free: of values that cost no time, fewer are better.
            let mut score = gain / (time as f64 + 1e-3 * again.len() as f64);
            if noise > 0.0 {
                score *= (noise * self.random.fraction()).exp();
            }
            if best.as_ref().is_none_or(|best| score > best.score) {
                best = Some(Candidate { score, reader, again });
            }
        }
        best
    }

    /// What to compute just before `reader` so that the node is there: the node, and what it reads and is not there
    /// then, nor can stay that long.
    fn again(&mut self, node: usize, reader: usize) -> Option<Vec<u32>> {
        self.round += 1;
        let mut again = vec![node as u32];
        self.seen[node] = self.round;
        let mut index = 0;
        while let Some(&node) = again.get(index) {
            index += 1;
            for &read in self.problem.reads(node as usize) {
                let read = read as usize;
                if self.seen[read] == self.round {
                    continue;
                }
                self.seen[read] = self.round;
                let (before, after) = self.events.around(read, reader);
                let there = match after {
                    Some(event) => event % 2 == 1,
                    None => self.problem.output[read],
                };
                if there || !self.problem.recomputable[read] {
                    continue;
                }
                let gone = before.map_or(0, |event| event as usize / 2 + 1);
                let stays = reader - gone <= 64
                    && self.memory[gone..reader]
                        .iter()
                        .all(|bytes| bytes.saturating_add(self.problem.bytes[read]) <= self.budget);
                if !stays {
                    again.push(read as u32);
                }
            }
            if again.len() > 256 {
                return None;
            }
        }
        self.work += 4 * again.len() as u64;
        again.sort_unstable_by_key(|&node| self.rank[node as usize]);
        Some(again)
    }

    /// Deletes every recomputation that the budget does not need, from one end or the other.
    pub(crate) fn polish(&mut self, word: &mut Word) {
        self.clean(word);
        let forwards = self.random.below(2) == 0;
        let mut first = vec![u32::MAX; self.problem.len()];
        for (position, &node) in word.0.iter().enumerate().rev() {
            first[node as usize] = position as u32;
        }
        let mut again: Vec<(u32, usize)> = (word.0.iter().enumerate())
            .filter(|(position, node)| first[**node as usize] != *position as u32)
            .map(|(position, &node)| (node, position))
            .collect();
        if forwards {
            again.reverse();
        }
        // The next to try stands last. Positions shift when one goes: the words are compared, not the numbers.
        let mut trial = Word(Vec::with_capacity(word.0.len()));
        while let Some((node, position)) = again.pop() {
            if Instant::now() >= self.until {
                return;
            }
            if word.0.get(position) != Some(&node) || !word.0[..position].contains(&node) {
                continue;
            }
            trial.0.clear();
            trial.0.extend_from_slice(&word.0[..position]);
            trial.0.extend_from_slice(&word.0[position + 1..]);
            if self.fits(&trial).is_none() {
                continue;
            }
            let before = word.0.len();
            std::mem::swap(word, &mut trial);
            self.clean(word);
            if forwards {
                // Everything after has moved; the list is made anew, from here on.
                let gone = before - word.0.len();
                if gone == 1 {
                    for (_, later) in &mut again {
                        *later -= 1;
                    }
                } else {
                    again.clear();
                    let mut seen = vec![false; self.problem.len()];
                    for (at, &node) in word.0.iter().enumerate() {
                        if std::mem::replace(&mut seen[node as usize], true)
                            && at >= position.saturating_sub(gone)
                        {
                            again.push((node, at));
                        }
                    }
                    again.reverse();
                }
            }
        }
    }
}
