//! A chain with its different cells and the least room of each.

use std::sync::OnceLock;

use super::cells::Cells;
use super::chain::{Chain, NEVER};
use super::layout::Layout;
use super::smallest;
use super::sweeps::Sweeps;

/// What every way of solving starts from.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) chain: Chain,
    pub(super) cells: Cells,
    pub(super) sweeps: Sweeps,
    /// The least room of each cell, by its number, exactly.
    pub(super) rooms: Vec<u64>,
    layout: OnceLock<Layout>,
}

impl Problem {
    pub(super) fn new(chain: Chain) -> Self {
        let cells = Cells::new(&chain);
        let mut sweeps = Sweeps::new(&chain);
        let rooms = smallest::rooms(&chain, &cells, &sweeps);
        sweeps.compare(&cells, &rooms);
        Self { chain, cells, sweeps, rooms, layout: OnceLock::new() }
    }

    /// What all grids of the chain have in common.
    pub(super) fn layout(&self) -> &Layout {
        self.layout.get_or_init(|| Layout::new(&self.chain, &self.cells))
    }

    /// The least room of a cell; none for an empty one.
    pub(super) fn least_room(&self, first: usize, end: usize) -> u64 {
        if first == end { 0 } else { self.rooms[self.cells.number(first, end)] }
    }

    /// The least room of the whole chain.
    pub(super) fn whole_room(&self) -> u64 {
        self.least_room(0, self.chain.stages())
    }

    /// How many pairs of cells are added up to solve each cell once.
    pub(super) fn sums(&self) -> u64 {
        self.cells.lengths().map(|length| length as u64).sum()
    }

    /// The smallest budget there is a plan for; `None` when pinned stages leave none.
    pub(super) fn smallest_budget(&self) -> Option<u64> {
        let room = self.least_room(0, self.chain.stages());
        let budget = room.checked_add(self.chain.boundary[0])?;
        (room != NEVER).then_some(budget)
    }
}
