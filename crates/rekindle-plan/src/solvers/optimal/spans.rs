//! What is known of the cells of a grid before it is solved, in slots and units.
//!
//! A cell has no room below some number of slots and keeps everything from another number on. Only between the two is
//! there anything to solve: for most cells that is a small part of a grid.

use super::chain::NEVER;
use super::problem::Problem;
use super::scale::Scale;

/// A tape on the grid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    /// The slots it takes while it is held.
    pub(super) slots: u32,
    /// What it takes longer than the fastest.
    pub(super) units: u16,
}

/// The numbers of a grid.
#[derive(Debug)]
pub(super) struct Spans {
    /// From how many slots on each cell may have room, by its number. What a cell needs at least is known to the byte: no
    /// plan has it in less.
    pub(super) starts: Vec<u32>,
    /// From how many slots on each cell tapes every stage and pays nothing for it.
    pub(super) enough: Vec<u32>,
    /// The slots of each boundary.
    pub(super) boundaries: Vec<u32>,
    /// The tapes of each stage.
    pub(super) ways: Vec<Vec<Way>>,
    /// From how many slots on there is room for the tapes of each cell's first stage, cell by cell.
    tape_needs: Vec<u32>,
    /// Where those of each cell begin.
    tape_needs_from: Vec<u32>,
}

impl Spans {
    pub(super) fn new(problem: &Problem, scale: &Scale) -> Self {
        let Problem { chain, cells, rooms, .. } = problem;
        let way = |bytes, excess| Way { slots: scale.tape_slots(bytes), units: scale.units(excess) };
        let ways = chain.tapes.iter().map(|tapes| {
            let ways = tapes.iter().map(|tape| way(tape.bytes, tape.excess));
            ways.collect::<Vec<_>>()
        });
        let count = cells.count();
        let mut spans = Self {
            starts: vec![u32::MAX; count],
            enough: vec![u32::MAX; count],
            boundaries: chain.boundary.iter().map(|bytes| scale.boundary_slots(*bytes)).collect(),
            ways: ways.collect(),
            tape_needs: Vec::with_capacity(count),
            tape_needs_from: vec![0; count],
        };
        let tasks = problem.layout().tiles.iter().flat_map(|tile| &tile.tasks);
        for task in tasks.filter(|task| task.solve) {
            let (first, end, number) = (task.first as usize, task.end as usize, task.number as usize);
            if rooms[number] == NEVER {
                continue;
            }
            let most = scale.most_bytes(first);
            let slots = |bytes: u64| most.partition_point(|most| *most < bytes) as u32;
            spans.starts[number] = slots(rooms[number]);
            spans.tape_needs_from[number] = spans.tape_needs.len() as u32;
            let rest = if first + 1 < end { spans.enough[cells.number(first + 1, end)] } else { 0 };
            for (tape, way) in chain.tapes[first].iter().zip(&spans.ways[first]) {
                let need = slots(chain.tape_need(tape, end));
                spans.tape_needs.push(need);
                if way.units == 0 {
                    // Rounding must not make room where there is none.
                    let enough = rest.saturating_add(way.slots).max(need).max(spans.starts[number]);
                    spans.enough[number] = spans.enough[number].min(enough);
                }
            }
        }
        spans
    }

    /// From how many slots on there is room for each tape of a cell's first stage.
    #[inline(always)]
    pub(super) fn tape_needs(&self, number: usize, first: usize) -> &[u32] {
        let from = self.tape_needs_from[number] as usize;
        &self.tape_needs[from..from + self.ways[first].len()]
    }
}
