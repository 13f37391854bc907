//! Which cells are the same problem.
//!
//! Two cells of the same stages in the same order, both past the turn, have the same answer at every room. A chain of
//! 1,000 identical blocks has half a million cells but only 2,000 different ones: each is solved once.

use std::collections::HashMap;

use super::chain::Chain;

/// Every cell of a chain, equal ones under one number.
///
/// Numbers rise with the first stage, then with the end, so that the cells of one row lie side by side.
#[derive(Debug)]
pub(super) struct Cells {
    stages: usize,
    /// The number of each cell, row by row.
    numbers: Vec<u32>,
    /// The first cell of each number, as first stage and end.
    firsts: Vec<(u32, u32)>,
}

impl Cells {
    /// How many numbers a chain of this length takes.
    fn table_size(stages: usize) -> usize {
        stages.saturating_mul(stages + 1) / 2
    }

    pub(super) fn new(chain: &Chain) -> Self {
        let stages = chain.stages();
        let kinds = kinds(chain);
        let earlier = longest_earlier_match(&kinds);
        let mut numbers = Vec::with_capacity(Self::table_size(stages));
        let mut firsts = Vec::new();
        for first in 0..stages {
            let (like, length) = earlier[first];
            for end in first + 1..=stages {
                // A cell that ends the chain begins before the turn; no other does.
                let number = match end < stages && end - first <= length {
                    true => numbers[row_start(stages, like) + end - first - 1],
                    false => {
                        firsts.push((first as u32, end as u32));
                        (firsts.len() - 1) as u32
                    }
                };
                numbers.push(number);
            }
        }
        Self { stages, numbers, firsts }
    }

    /// How many different cells there are.
    pub(super) fn count(&self) -> usize {
        self.firsts.len()
    }

    /// How many stages each different cell has.
    pub(super) fn lengths(&self) -> impl Iterator<Item = u32> {
        self.firsts.iter().map(|(first, end)| end - first)
    }

    /// The number of a cell.
    pub(super) fn number(&self, first: usize, end: usize) -> usize {
        self.row(first)[end - first - 1] as usize
    }

    /// The numbers of the cells that begin with `first`, the shortest first.
    pub(super) fn row(&self, first: usize) -> &[u32] {
        let start = row_start(self.stages, first);
        &self.numbers[start..start + self.stages - first]
    }

    /// The first stages of the different cells that end at each boundary but the first, the last stage first.
    pub(super) fn columns(&self) -> Vec<Vec<u32>> {
        let mut columns = vec![Vec::new(); self.stages];
        for (first, end) in self.firsts.iter().rev() {
            columns[*end as usize - 1].push(*first);
        }
        columns
    }

    /// Whether some cells are the same as others.
    pub(super) fn repeat(&self) -> bool {
        self.count() < Self::table_size(self.stages)
    }

    /// The different cells in an order in which every part of a cell comes before it.
    pub(super) fn parts_first(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let columns = (1..).zip(self.columns());
        columns.flat_map(|(end, firsts)| firsts.into_iter().map(move |first| (first as usize, end)))
    }
}

/// Where the row of a first stage begins in a triangle of rows that get shorter.
fn row_start(stages: usize, first: usize) -> usize {
    first * (2 * stages - first + 1) / 2
}

/// A number for each stage, the same for stages that differ in name only.
pub(super) fn kinds(chain: &Chain) -> Vec<usize> {
    let mut known = HashMap::new();
    let kinds = (0..chain.stages()).map(|stage| {
        let tapes: Vec<_> = chain.tapes[stage]
            .iter()
            .map(|tape| (tape.bytes, tape.excess, tape.forward_need, tape.backward_need, tape.last_backward))
            .collect();
        let kind = (
            chain.boundary[stage + 1],
            chain.gradient[stage + 1],
            chain.forward(stage, stage + 1),
            chain.unread(stage),
            chain.forward_extra[stage],
            chain.pinned(stage, stage + 1),
            tapes,
        );
        let next = known.len();
        *known.entry(kind).or_insert(next)
    });
    kinds.collect()
}

/// For each stage the earlier one from which on the chain repeats for longest, and for how long.
fn longest_earlier_match(kinds: &[usize]) -> Vec<(usize, usize)> {
    let mut best = vec![(0, 0); kinds.len()];
    // `run[earlier]`: for how long the chain from the stage after `earlier` equals the chain from the stage after `first`.
    let mut run = vec![0usize; kinds.len() + 1];
    for first in (0..kinds.len()).rev() {
        for earlier in 0..first {
            // `run[earlier + 1]` still belongs to `first + 1`: the loop rises.
            run[earlier] = if kinds[earlier] == kinds[first] { run[earlier + 1] + 1 } else { 0 };
            if run[earlier] > best[first].1 {
                best[first] = (earlier, run[earlier]);
            }
        }
        // At the next, smaller `first` this place is read as the match of a stage with itself.
        run[first] = kinds.len() - first;
    }
    best
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;

    fn naive(kinds: &[usize]) -> Vec<(usize, usize)> {
        (0..kinds.len())
            .map(|first| {
                let length = |earlier: usize| {
                    kinds[earlier..].iter().zip(&kinds[first..]).take_while(|(a, b)| a == b).count()
                };
                let most = (0..first).map(length).max().unwrap_or(0);
                ((0..first).find(|earlier| length(*earlier) == most && most > 0).unwrap_or(0), most)
            })
            .collect()
    }

    #[test]
    fn the_longest_earlier_match_is_the_naive_one() {
        for kinds in [
            &[0, 0, 0, 0, 0][..],
            &[0, 1, 1, 1, 2],
            &[0, 1, 2, 0, 1, 2, 0],
            &[0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 1],
            &[0],
            &[3, 2, 1, 0],
        ] {
            assert_eq!(longest_earlier_match(kinds), naive(kinds), "{kinds:?}");
        }
    }
}
