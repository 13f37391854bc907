//! What does not depend on how fine a grid is: in which order cells are solved, and where they lie.
//!
//! A chain is solved on several grids; this is made once.

use std::collections::HashMap;
use std::ops::Range;

use super::cells::Cells;
use super::chain::Chain;

/// The order and the places of a chain's cells.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) tiles: Vec<Tile>,
    pub(super) shifted: Shifted,
    /// Where a cell's rows are: its column, and which row there.
    pub(super) places: Vec<(u32, u32)>,
    /// Whether some cells are the same as others. Where none are, the numbers of cells that begin with one stage follow
    /// each other, and so do the shifted numbers of those that end at one boundary.
    pub(super) repeat: bool,
}

impl Layout {
    pub(super) fn new(chain: &Chain, cells: &Cells) -> Self {
        let shifted = Shifted::new(chain, cells);
        let (tiles, places) = (tiles(cells, &shifted), places(cells));
        Self { tiles, shifted, places, repeat: cells.repeat() }
    }
}

fn places(cells: &Cells) -> Vec<(u32, u32)> {
    let mut places = vec![(0, 0); cells.count()];
    for (end, column) in (1u32..).zip(cells.columns()) {
        for (row, first) in (0u32..).zip(column) {
            places[cells.number(first as usize, end as usize)] = (end - 1, row);
        }
    }
    places
}

/// Cells with their input paid: the same overheads, that many slots further. Numbered column by column, so that the
/// cells that end at one boundary lie side by side.
#[derive(Debug)]
pub(super) struct Shifted {
    numbers: Vec<u32>,
    pub(super) count: usize,
    /// The cells that are the first of their shifted number, column by column, the last stage first.
    firsts: Vec<Vec<u32>>,
}

impl Shifted {
    fn new(chain: &Chain, cells: &Cells) -> Self {
        let stages = chain.stages();
        let mut numbers = Vec::with_capacity(stages * (stages + 1) / 2);
        let mut firsts = vec![Vec::new(); stages];
        // Nearly every cell is shifted by one amount only.
        let mut usual: Vec<Option<(u64, u32)>> = vec![None; cells.count()];
        let mut others: HashMap<(usize, u64), u32> = HashMap::new();
        let mut count = 0;
        for end in 1..=stages {
            for first in 0..end {
                let cell = cells.number(first, end);
                let shift = chain.boundary[first];
                let known = match usual[cell] {
                    Some((amount, number)) if amount == shift => Some(number),
                    Some(_) => others.get(&(cell, shift)).copied(),
                    None => None,
                };
                if known.is_none() {
                    firsts[end - 1].push(first as u32);
                }
                numbers.push(known.unwrap_or_else(|| {
                    match usual[cell] {
                        None => usual[cell] = Some((shift, count)),
                        Some(_) => {
                            others.insert((cell, shift), count);
                        }
                    }
                    count += 1;
                    count - 1
                }));
            }
        }
        firsts.iter_mut().for_each(|column| column.reverse());
        Self { numbers, count: count as usize, firsts }
    }

    /// The numbers of the cells that end at `end`, by their first stage.
    pub(super) fn column(&self, end: usize) -> &[u32] {
        &self.numbers[end * (end - 1) / 2..][..end]
    }
}

/// Neighbouring columns that are solved together: the rows that begin with one stage are read for all of them while they
/// are in the cache.
#[derive(Debug)]
pub(super) struct Tile {
    pub(super) ends: Range<usize>,
    /// What is to be done, the last stage first.
    pub(super) tasks: Vec<Task>,
}

/// A cell that is the first of its number, of its shifted number, or of both.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) first: u32,
    pub(super) end: u32,
    /// Its number, and its number when its input is paid.
    pub(super) number: u32,
    pub(super) shifted: u32,
    pub(super) solve: bool,
    pub(super) shift: bool,
}

/// Columns of a tile: as many as fit into the second cache together.
const COLUMNS: usize = 8;

fn tiles(cells: &Cells, shifted: &Shifted) -> Vec<Tile> {
    // Where cells repeat, a part of a cell may be known by a cell that begins earlier and ends in an earlier column:
    // columns then come one by one. There are fewer cells, too.
    let width = if cells.repeat() { 1 } else { COLUMNS };
    let columns = cells.columns();
    let tile = |(tile, columns): (usize, &[Vec<u32>])| {
        let start = tile * width + 1;
        let mut tasks = Vec::new();
        for (end, firsts) in (start..).zip(columns) {
            let mut shifts = shifted.firsts[end - 1].iter().copied().peekable();
            let mut solves = firsts.iter().copied().peekable();
            // Both fall.
            while let Some(first) = solves.peek().copied().max(shifts.peek().copied()) {
                let solve = solves.next_if_eq(&first).is_some();
                let shift = shifts.next_if_eq(&first).is_some();
                let number = cells.number(first as usize, end) as u32;
                let shifted = shifted.column(end)[first as usize];
                tasks.push(Task { first, end: end as u32, number, shifted, solve, shift });
            }
        }
        // Every part of a cell begins later, or begins with the same stage and ends earlier.
        tasks.sort_by_key(|task| (std::cmp::Reverse(task.first), task.end));
        Tile { ends: start..start + columns.len(), tasks }
    };
    columns.chunks(width).enumerate().map(tile).collect()
}
