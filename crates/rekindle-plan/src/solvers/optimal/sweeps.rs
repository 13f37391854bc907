//! What sweeps need.

use std::ops::Range;

use super::chain::{Chain, NEVER};

/// Sweeps from each stage to each later boundary: the room they need when no gradient waits.
#[derive(Debug)]
pub(super) struct Sweeps {
    stages: usize,
    needs: Vec<u64>,
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
        Self { stages, needs }
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
