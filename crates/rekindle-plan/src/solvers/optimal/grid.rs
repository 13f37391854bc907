//! Long chains, on a grid: the overhead of every cell at every number of slots, in sixteen bits.

use std::sync::OnceLock;

use super::chain::Chain;
use super::choice::Choice;
use super::fill::{Filled, Filling, Limits};
use super::layout::Layout;
use super::problem::Problem;
use super::rows::{Column, LANES, NONE, Wide};
use super::scale::{PARTS_OF_SLOT, Scale};
use super::sums::STRIDE;

/// Sides from which a grid is looked at at most, less one.
const SIDES: u64 = 8;

/// A solved grid.
#[derive(Debug)]
pub(super) struct Grid {
    pub(super) scale: Scale,
    /// How many slots it has.
    slots: usize,
    /// Chunk by chunk, column by column.
    pub(super) chunks: Vec<Vec<OnceLock<Column>>>,
    /// The units that each sweep takes.
    pub(super) units: Vec<u16>,
    /// How many sums of rows it took.
    pub(super) sums: u64,
    /// How many bytes its rows take.
    pub(super) bytes: u64,
}

impl Grid {
    /// Solves every cell up to `slots`; `None` when that is beyond the limits.
    pub(super) fn new(problem: &Problem, scale: Scale, slots: u64, limits: Limits) -> Option<Self> {
        let slots = usize::try_from(slots).ok()?;
        let stages = problem.chain.stages();
        let empty = || (0..stages).map(|_| OnceLock::new()).collect::<Vec<_>>();
        let chunks: Vec<_> = (0..=slots / LANES).map(|_| empty()).collect();
        let units = units(&problem.chain, &scale);
        let mut grid = Self { scale, slots, chunks, units, sums: 0, bytes: 0 };
        let Filled { sums, bytes } = Filling::fill(problem, &grid, limits)?;
        (grid.sums, grid.bytes) = (sums, bytes);
        Some(grid)
    }

    /// A cell's overhead in units, in a room of so many slots.
    fn at(&self, layout: &Layout, number: usize, slots: u64) -> u16 {
        let slot = usize::try_from(slots).unwrap_or(usize::MAX).min(self.slots);
        self.row(layout, number, slot / LANES).lanes()[slot % LANES]
    }

    /// A cell's overheads in units, in a room of so many slots and in one of a slot more.
    fn beside(&self, layout: &Layout, number: usize, slots: u64) -> (u16, u16) {
        let slot = usize::try_from(slots).unwrap_or(usize::MAX).min(self.slots);
        let row = self.row(layout, number, slot / LANES).lanes();
        match row.get(slot % LANES + 1) {
            Some(upper) if slot < self.slots => (row[slot % LANES], *upper),
            _ => (row[slot % LANES], self.at(layout, number, slots.saturating_add(1))),
        }
    }

    /// A cell's overheads in a chunk that was solved for it.
    #[inline(always)]
    pub(super) fn row(&self, layout: &Layout, number: usize, chunk: usize) -> Wide<'_> {
        let (column, row) = layout.places[number];
        match self.chunks[chunk][column as usize].get() {
            Some(column) => column.get(row as usize),
            None => Wide::NONE,
        }
    }

    /// Overhead in nanoseconds that no plan within `room` can do without; `None` when the grid is too small to say.
    pub(super) fn bound(&self, problem: &Problem, room: u64) -> Option<u64> {
        let slots = self.scale.slots_for_bound(room);
        let whole = problem.cells.number(0, problem.chain.stages());
        let units = self.at(problem.layout(), whole, slots);
        (slots <= self.slots as u64).then_some(u64::from(units).saturating_mul(self.scale.unit))
    }

    /// Whether the overhead of every plan within `room` is too large for the grid's units.
    pub(super) fn overflows(&self, problem: &Problem, room: u64) -> bool {
        let whole = problem.cells.number(0, problem.chain.stages());
        self.at(problem.layout(), whole, self.scale.slots_for_bound(room)) == NONE
    }

    /// How many slots may be left aside when a plan is read off the grid: each number is a side to look at it from.
    ///
    /// For the bound a grid has slots for all that rounding may add to what is held. A plan holds what grew by less, or
    /// shrank; how much of those slots it really has is tried.
    pub(super) fn sides(&self) -> impl Iterator<Item = u64> + use<> {
        let hidden = self.scale.hidden();
        let mut last = None;
        let sides = (0..=SIDES).map(move |side| (hidden * side as f64 / SIDES as f64) as u64);
        sides.filter(move |aside| last.replace(*aside) != Some(*aside))
    }

    /// What the cell should begin with in a room of so many bytes, with some slots left aside. The grid says what is fast; whether it fits is asked
    /// to the byte, so a room that can be met is always met.
    pub(super) fn choose(
        &self,
        problem: &Problem,
        first: usize,
        end: usize,
        room: u64,
        aside: u64,
    ) -> Option<(Choice, u64)> {
        let (Problem { chain, cells, rooms, .. }, layout) = (problem, problem.layout());
        // Between two numbers of slots, what lies between: which of two choices is better must not hang on how the room
        // that each leaves is rounded.
        let guess_at = |number: usize, (slots, part): (u64, u64)| {
            let (lower, upper) = self.beside(layout, number, slots.saturating_sub(aside));
            let upper = if part == 0 { lower } else { upper };
            match (lower, upper) {
                // Possible to the byte, but not on the grid: only when there is nothing else.
                (_, NONE) => u64::from(NONE) * PARTS_OF_SLOT * 4,
                (NONE, upper) => u64::from(upper) * PARTS_OF_SLOT + u64::from(NONE) * (PARTS_OF_SLOT - part),
                (lower, upper) => u64::from(upper) * part + u64::from(lower) * (PARTS_OF_SLOT - part),
            }
        };
        let guess = |number: usize, room: u64| guess_at(number, self.scale.slots_left(room));
        let here = self.scale.slots_left(room);
        // What the grid promises: whatever keeps it is taken.
        let promise = guess_at(cells.number(first, end), here);
        let mut best: Option<(u64, Choice, u64)> = None;
        for (way, tape) in chain.tapes[first].iter().enumerate() {
            if room >= chain.tape_need(tape, end) {
                let left = room - tape.bytes;
                if left >= problem.least_room(first + 1, end) {
                    let rest = if first + 1 < end { guess(cells.number(first + 1, end), left) } else { 0 };
                    let overhead = rest + tape.excess / self.scale.unit * PARTS_OF_SLOT;
                    if best.is_none_or(|best| overhead < best.0) {
                        best = Some((overhead, Choice::Tape(way), left));
                    }
                }
            }
        }
        let Some(within) = room.checked_sub(chain.waiting(end)) else { return choice_of(best) };
        let needs = &problem.sweeps.needs(first)[..end - first - 1];
        let befores = &cells.row(first)[..needs.partition_point(|need| *need <= within)];
        let units = &self.units[problem.sweeps.from(first)];
        for (middle, (before, forward)) in (first + 1..).zip(befores.iter().zip(units)) {
            let (before, forward) = (*before as usize, u64::from(*forward) * PARTS_OF_SLOT);
            if best.is_some_and(|best| best.0 <= promise.max(forward)) {
                break;
            }
            let Some(left) = room.checked_sub(chain.boundary[middle]) else { continue };
            let after = cells.number(middle, end);
            if left < rooms[after] || room < rooms[before] {
                continue;
            }
            let part = guess_at(before, here) + forward;
            if best.is_some_and(|best| best.0 <= part) {
                continue;
            }
            let overhead = guess(after, left) + part;
            if best.is_none_or(|best| overhead < best.0) {
                best = Some((overhead, Choice::Sweep(middle), left));
            }
        }
        choice_of(best)
    }
}

fn choice_of(best: Option<(u64, Choice, u64)>) -> Option<(Choice, u64)> {
    best.map(|(_, choice, left)| (choice, left))
}

/// The units that sweeps from each stage to each later boundary take, rounded down.
fn units(chain: &Chain, scale: &Scale) -> Vec<u16> {
    // A long chain has many sweeps: boundaries are divided once, and sweeps are differences.
    let parts = |nanos: &u64| (nanos / scale.unit, nanos % scale.unit);
    let befores = chain.forward_before.iter().map(parts);
    let afters: Vec<(u64, u64)> = chain.swept_before.iter().map(parts).collect();
    let count = chain.stages() * chain.stages().saturating_sub(1) / 2;
    let mut units = Vec::with_capacity(count + STRIDE);
    for (first, before) in befores.take(chain.stages()).enumerate() {
        let to = |after: &(u64, u64)| {
            let borrowed = u64::from(after.1 < before.1);
            (after.0 - before.0 - borrowed).min(u64::from(u16::MAX)) as u16
        };
        units.extend(afters[first + 1..chain.stages()].iter().map(to));
    }
    // They are read a stride at a time.
    units.extend([NONE; STRIDE]);
    units
}
