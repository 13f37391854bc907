//! What sweeps need, and where that need not be asked.

use std::ops::Range;

use super::cells::Cells;
use super::chain::{Chain, NEVER};

/// Sweeps from each stage to each later boundary: the room they need when no gradient waits.
#[derive(Debug)]
pub(super) struct Sweeps {
    stages: usize,
    needs: Vec<u64>,
    /// A gradient below this may wait beside every sweep up to each boundary, when the stages it runs through have room
    /// to go back.
    spare: Vec<u64>,
}

impl Sweeps {
    pub(super) fn new(chain: &Chain) -> Self {
        let stages = chain.stages();
        let mut needs = Vec::with_capacity(stages * stages.saturating_sub(1) / 2);
        for first in 0..stages {
            // To the end of the chain no gradient waits: a cell that ends before it adds its own.
            let sweeps = chain.sweeps(first, stages).map(|(_, need)| need);
            needs.extend(sweeps.chain(std::iter::repeat(NEVER)).take(stages - first - 1));
        }
        Self { stages, needs, spare: Vec::new() }
    }

    /// Takes note of where what the swept stages need to go back is more than the sweep needs, as it mostly is: such a
    /// sweep has room wherever they have.
    pub(super) fn compare(&mut self, cells: &Cells, rooms: &[u64]) {
        let mut spares = Vec::with_capacity(self.needs.len());
        for first in 0..self.stages {
            let mut least = NEVER;
            for (need, before) in self.needs(first).iter().zip(cells.row(first)) {
                // One more than there is: less than nothing is too little for any gradient.
                let spare = rooms[*before as usize].checked_sub(*need);
                least = least.min(spare.map_or(0, |spare| spare.saturating_add(1)));
                spares.push(least);
            }
        }
        self.spare = spares;
    }

    /// Whether every sweep from `first` to a boundary before `end` has room wherever the stages it runs through have room
    /// to go back, beside a gradient of so many bytes.
    #[inline(always)]
    pub(super) fn need_nothing(&self, first: usize, end: usize, waiting: u64) -> bool {
        let sweeps = self.from(first).start..;
        self.spare[sweeps].get((end - first).wrapping_sub(2)).is_none_or(|spare| *spare > waiting)
    }

    /// Where the sweeps from `first` are, the shortest first, in a list of all of them.
    pub(super) fn from(&self, first: usize) -> Range<usize> {
        let start = first * (2 * self.stages - first - 1) / 2;
        start..start + self.stages - first - 1
    }

    /// The needs of the sweeps from `first`, the shortest first: they never fall.
    pub(super) fn needs(&self, first: usize) -> &[u64] {
        &self.needs[self.from(first)]
    }
}
