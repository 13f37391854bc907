//! Long chains, on a grid: the overhead of every cell at every number of slots, in sixteen bits.
//!
//! The rooms of a grid are cut into chunks of [`LANES`] neighbours. A chunk is solved for all cells before the next one
//! begins: what it needs of itself then stays in the cache, and one instruction handles many rooms. A smaller room never
//! asks about a larger one, so chunks depend on earlier chunks only; and cells depend on cells that end no later. So
//! threads take chunks in turn and each follows the one before it, column by column.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::chain::{Chain, NEVER};
use super::choice::Choice;
use super::layout::{Layout, Tile};
use super::problem::Problem;
use super::scale::Scale;

/// Rooms that are solved together.
const LANES: usize = 64;

/// The overheads of a cell at neighbouring rooms, in units of the scale. Aligned, so that it is two cache lines.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Row([u16; LANES]);

impl Row {
    const NONE: Self = Self([NONE; LANES]);
    const ZERO: Self = Self([0; LANES]);
}

/// An overhead that is too large, or a room that is too small.
pub(super) const NONE: u16 = u16::MAX;

/// The rows of the different cells that end at one boundary, in one chunk.
#[derive(Clone, Debug, Default)]
struct Column {
    /// Which row each cell has, or one of the two that nobody needs to hold.
    index: Vec<u32>,
    rows: Vec<Row>,
}

/// No room of the chunk is enough for the cell; every room of it is enough to keep everything.
const TOO_SMALL: u32 = u32::MAX;
const ENOUGH: u32 = u32::MAX - 1;

impl Column {
    /// Adds a cell. More room never costs more: the first and the last lane tell whether all are the same.
    #[inline(always)]
    fn push(&mut self, row: &Row) {
        if row.0[LANES - 1] == NONE {
            self.index.push(TOO_SMALL);
        } else if row.0[0] == 0 {
            self.index.push(ENOUGH);
        } else {
            self.index.push(self.rows.len() as u32);
            self.rows.push(*row);
        }
    }

    #[inline(always)]
    fn get(&self, row: usize) -> Option<&Row> {
        match *self.index.get(row)? {
            TOO_SMALL => Some(&Row::NONE),
            ENOUGH => Some(&Row::ZERO),
            row => self.rows.get(row as usize),
        }
    }

    fn bytes(&self) -> u64 {
        (self.rows.len() * size_of::<Row>() + self.index.len() * size_of::<u32>()) as u64
    }
}

/// Sides from which a grid is looked at at most, less one.
const SIDES: u64 = 8;

/// A solved grid.
#[derive(Debug)]
pub(super) struct Grid {
    pub(super) scale: Scale,
    /// How many slots it has.
    slots: usize,
    /// Chunk by chunk, column by column.
    chunks: Vec<Vec<OnceLock<Column>>>,
    /// The units that each sweep takes.
    units: Vec<u16>,
    /// How many sums of rows it took.
    pub(super) sums: u64,
    /// How many bytes its rows take.
    pub(super) bytes: u64,
}

impl Grid {
    /// Solves every cell up to `slots`; `None` when it is not through by `deadline` or takes more than `most_bytes`.
    pub(super) fn new(
        problem: &Problem,
        scale: Scale,
        slots: u64,
        deadline: Instant,
        most_bytes: u64,
    ) -> Option<Self> {
        let slots = usize::try_from(slots).ok()?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(slots / LANES + 1);
        // Every thread has a chunk of its own beside what is held.
        let rows = problem.cells.count() + problem.layout().shifted.count;
        let most_bytes = most_bytes.checked_sub((threads * rows * size_of::<Row>()) as u64)?;
        let stages = problem.chain.stages();
        let empty = || (0..stages).map(|_| OnceLock::new()).collect::<Vec<_>>();
        let chunks: Vec<_> = (0..=slots / LANES).map(|_| empty()).collect();
        let units = units(&problem.chain, &scale);
        let starts = starts(problem, &scale);
        let mut grid = Self { scale, slots, chunks, units, sums: 0, bytes: 0 };
        let solver = Solver {
            problem,
            layout: problem.layout(),
            grid: &grid,
            starts,
            late: AtomicBool::new(false),
            sums: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            deadline,
            most_bytes,
        };
        std::thread::scope(|scope| {
            for thread in 1..threads {
                let solver = &solver;
                scope.spawn(move || solver.run(thread, threads));
            }
            solver.run(0, threads);
        });
        let late = solver.late.into_inner();
        let (sums, bytes) = (solver.sums.into_inner(), solver.bytes.into_inner());
        (grid.sums, grid.bytes) = (sums, bytes);
        (!late).then_some(grid)
    }

    /// A cell's overhead in units, in a room of so many slots.
    fn at(&self, layout: &Layout, number: usize, slots: u64) -> u16 {
        let slot = usize::try_from(slots).unwrap_or(usize::MAX).min(self.slots);
        self.row(layout, number, slot / LANES).map_or(NONE, |row| row.0[slot % LANES])
    }

    #[inline(always)]
    fn row(&self, layout: &Layout, number: usize, chunk: usize) -> Option<&Row> {
        let (column, row) = layout.places[number];
        self.chunks[chunk][column as usize].get()?.get(row as usize)
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
        let guess = |number: usize, room: u64| match self.at(
            layout,
            number,
            self.scale.slots_left(room).saturating_sub(aside),
        ) {
            // Possible to the byte, but not on the grid: only when there is nothing else.
            NONE => u64::from(NONE) * 4,
            units => u64::from(units),
        };
        // What the grid promises: whatever keeps it is taken.
        let promise = guess(cells.number(first, end), room);
        let mut best: Option<(u64, Choice, u64)> = None;
        for (way, tape) in chain.tapes[first].iter().enumerate() {
            if room >= chain.tape_need(tape, end) {
                let left = room - tape.bytes;
                if left >= problem.least_room(first + 1, end) {
                    let rest = if first + 1 < end { guess(cells.number(first + 1, end), left) } else { 0 };
                    let overhead = rest + tape.excess / self.scale.unit;
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
            let (before, forward) = (*before as usize, u64::from(*forward));
            if best.is_some_and(|best| best.0 <= promise.max(forward)) {
                break;
            }
            let Some(left) = room.checked_sub(chain.boundary[middle]) else { continue };
            let after = cells.number(middle, end);
            if left < rooms[after] || room < rooms[before] {
                continue;
            }
            let overhead = guess(after, left) + guess(before, room) + forward;
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
    let mut units = Vec::with_capacity(chain.stages() * chain.stages().saturating_sub(1) / 2);
    for (first, before) in befores.take(chain.stages()).enumerate() {
        let to = |after: &(u64, u64)| {
            let borrowed = u64::from(after.1 < before.1);
            (after.0 - before.0 - borrowed).min(u64::from(u16::MAX)) as u16
        };
        units.extend(afters[first + 1..chain.stages()].iter().map(to));
    }
    units
}

/// From how many slots on each cell may have room. What a cell needs at least is known to the byte: no plan has it in less.
fn starts(problem: &Problem, scale: &Scale) -> Vec<u32> {
    let Problem { cells, rooms, .. } = problem;
    let firsts = cells.firsts().zip(rooms);
    let start =
        |(first, least): (usize, &u64)| scale.most_bytes(first).partition_point(|most| most < least) as u32;
    let never = |least: &u64| *least == NEVER;
    firsts.map(|(first, least)| if never(least) { u32::MAX } else { start((first, least)) }).collect()
}

struct Solver<'a> {
    problem: &'a Problem,
    layout: &'a Layout,
    grid: &'a Grid,
    /// From how many slots on each cell may have room.
    starts: Vec<u32>,
    late: AtomicBool,
    /// Sums that were looked at.
    sums: AtomicU64,
    /// What the rows take.
    bytes: AtomicU64,
    deadline: Instant,
    most_bytes: u64,
}

/// What a thread keeps of the chunk it is at.
struct Chunk {
    index: usize,
    /// The room of the first lane, in slots.
    start: usize,
    /// The rows of the cells, by their number.
    rows: Vec<Row>,
    /// The rows of the cells with their input paid, by their shifted number.
    shifted: Vec<Row>,
    /// The columns of the tile it is at.
    columns: Vec<Column>,
}

impl Solver<'_> {
    /// Solves every chunk whose turn is this thread's.
    fn run(&self, thread: usize, threads: usize) {
        let arch = pulp::Arch::new();
        let mut chunk = Chunk {
            index: 0,
            start: 0,
            rows: vec![Row::NONE; self.problem.cells.count()],
            shifted: vec![Row::NONE; self.layout.shifted.count],
            columns: vec![
                Column::default();
                self.layout.tiles.iter().map(|tile| tile.ends.len()).max().unwrap_or(0)
            ],
        };
        for index in (thread..self.grid.chunks.len()).step_by(threads) {
            (chunk.index, chunk.start) = (index, index * LANES);
            for tile in &self.layout.tiles {
                if !self.wait_for_earlier(index, tile.ends.end - 1) {
                    return;
                }
                arch.dispatch(SolveTile { solver: self, chunk: &mut chunk, tile });
            }
        }
    }

    /// Waits until the chunk before has this column; false when time is up.
    fn wait_for_earlier(&self, index: usize, end: usize) -> bool {
        if Instant::now() > self.deadline || self.bytes.load(Ordering::Relaxed) > self.most_bytes {
            self.late.store(true, Ordering::Relaxed);
        }
        let Some(earlier) = index.checked_sub(1) else { return !self.late.load(Ordering::Relaxed) };
        let column = &self.grid.chunks[earlier][end - 1];
        let mut tries = 0u32;
        while column.get().is_none() {
            if self.late.load(Ordering::Relaxed) {
                return false;
            }
            tries += 1;
            match tries < 200 {
                true => std::hint::spin_loop(),
                false => std::thread::yield_now(),
            }
        }
        !self.late.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn solve_tile(&self, chunk: &mut Chunk, tile: &Tile) {
        let mut done = 0;
        for column in &mut chunk.columns {
            column.index.clear();
            column.rows.clear();
        }
        for task in &tile.tasks {
            let (first, end) = (task.first as usize, task.end as usize);
            let number = self.problem.cells.number(first, end);
            // Its rows are from a smaller chunk, and say that there is no room.
            let start = self.starts[number] as usize;
            if start >= chunk.start + LANES {
                if task.solve {
                    chunk.columns[end - tile.ends.start].index.push(TOO_SMALL);
                }
                continue;
            }
            if task.solve {
                let row = self.solve(chunk, (first, end), start.saturating_sub(chunk.start), &mut done);
                chunk.rows[number] = row;
                chunk.columns[end - tile.ends.start].push(&row);
            }
            if task.shift {
                self.shift(chunk, first, end);
            }
        }
        self.sums.fetch_add(done, Ordering::Relaxed);
        for (end, column) in tile.ends.clone().zip(&chunk.columns) {
            self.bytes.fetch_add(column.bytes(), Ordering::Relaxed);
            // Only this thread has this chunk: nothing was there.
            let _ = self.grid.chunks[chunk.index][end - 1].set(column.clone());
        }
    }

    /// Pays for the cell's input.
    #[inline(always)]
    fn shift(&self, chunk: &mut Chunk, first: usize, end: usize) {
        let slots = self.grid.scale.boundary_slots(self.problem.chain.boundary[first]);
        let row = self.window(chunk, self.problem.cells.number(first, end), slots);
        chunk.shifted[self.layout.shifted.column(end)[first] as usize] = row;
    }

    /// A cell's row, `shift` slots further: lane `i` is the cell at the room of lane `i` less `shift`.
    #[inline(always)]
    fn window(&self, chunk: &Chunk, number: usize, shift: u32) -> Row {
        let mut row = Row::NONE;
        let Some(last) = (chunk.start + LANES - 1).checked_sub(shift as usize) else { return row };
        let source = |index: usize| match index == chunk.index {
            true => Some(&chunk.rows[number]),
            false => self.grid.row(self.layout, number, index),
        };
        // The last lanes come from the chunk of `last`, the first ones from the chunk before it.
        let split = last % LANES + 1;
        if let Some(upper) = source(last / LANES) {
            row.0[LANES - split..].copy_from_slice(&upper.0[..split]);
        }
        if let Some(lower) = (last / LANES).checked_sub(1).and_then(source) {
            row.0[..LANES - split].copy_from_slice(&lower.0[split..]);
        }
        row
    }

    #[inline(always)]
    fn solve(&self, chunk: &Chunk, (first, end): (usize, usize), start: usize, done: &mut u64) -> Row {
        let Problem { chain, cells, .. } = self.problem;
        let scale = &self.grid.scale;
        let mut row = Row::NONE;
        // Once nothing is recomputed, more room changes nothing.
        let before = chunk
            .index
            .checked_sub(1)
            .and_then(|index| self.grid.row(self.layout, cells.number(first, end), index));
        if before.is_some_and(|row| row.0[LANES - 1] == 0) {
            return Row::ZERO;
        }
        // Bytes that may be needed at each slot; a slot past the last has room for no more than the last.
        let most = scale.most_bytes(first);
        for tape in &chain.tapes[first] {
            let need = most.partition_point(|most| *most < chain.tape_need(tape, end));
            if need < chunk.start + LANES {
                let rest = match first + 1 == end {
                    true => Row::ZERO,
                    false => self.window(chunk, cells.number(first + 1, end), scale.tape_slots(tape.bytes)),
                };
                let excess = scale.units(tape.excess);
                for lane in need.saturating_sub(chunk.start).max(start)..LANES {
                    row.0[lane] = row.0[lane].min(rest.0[lane].saturating_add(excess));
                }
            }
        }
        if first + 1 == end {
            return row;
        }
        let sweeps = &self.problem.sweeps;
        let (needs, units) = (sweeps.needs(first), &self.grid.units[sweeps.from(first)]);
        let (needs, units) = (&needs[..end - first - 1], &units[..end - first - 1]);
        // Sweeps that every lane has room for, and those that some have.
        let within = |slot: usize| {
            let most = most[slot.min(most.len() - 1)].checked_sub(chain.waiting(end));
            most.map_or(0, |most| needs.partition_point(|need| *need <= most))
        };
        let (full, some) = (within(chunk.start), within(chunk.start + LANES - 1));
        let before = cells.row(first);
        let after = &self.layout.shifted.column(end)[first + 1..];
        let all = Sums { shifted: &chunk.shifted, after, rows: &chunk.rows, before, units };
        *done += all.lower(&mut row, start, 0..full);
        // Needs rise with the sweep and mostly stay: sweeps of one need are done together.
        let mut sweep = full;
        while sweep < some {
            let next = sweep + needs[sweep..some].partition_point(|need| *need == needs[sweep]);
            let need = needs[sweep].saturating_add(chain.waiting(end));
            let from = most.partition_point(|most| *most < need).saturating_sub(chunk.start).max(start);
            let mut sum = row;
            *done += all.lower(&mut sum, from, sweep..next);
            row.0[from..].copy_from_slice(&sum.0[from..]);
            sweep = next;
        }
        row.0[..start].fill(NONE);
        row
    }
}

/// The work on a tile.
struct SolveTile<'a, 'b> {
    solver: &'a Solver<'b>,
    chunk: &'a mut Chunk,
    tile: &'a Tile,
}

impl pulp::NullaryFnOnce for SolveTile<'_, '_> {
    type Output = ();

    // Inlined, with all it calls, into a function that may use the widest instructions of the machine it runs on.
    #[inline(always)]
    fn call(self) {
        self.solver.solve_tile(self.chunk, self.tile);
    }
}

/// Lanes that are added up together.
const HALF: usize = LANES / 2;

/// Sweeps between two looks at whether the rest can still matter.
const STRIDE: usize = 16;

/// The sums of a cell: what follows a sweep, with its input paid; what is before it; and the sweep itself.
struct Sums<'a> {
    shifted: &'a [Row],
    after: &'a [u32],
    rows: &'a [Row],
    before: &'a [u32],
    units: &'a [u16],
}

impl Sums<'_> {
    /// Lowers each lane of `row` to the least `after + before + units` of some sweeps; lanes before `start` need not be
    /// known. Says how many sums were looked at.
    #[inline(always)]
    fn lower(&self, row: &mut Row, start: usize, sweeps: Range<usize>) -> u64 {
        // More room never costs more: the upper half is through with long sweeps before the lower half is.
        let (low, high) = row.0.split_at_mut(HALF);
        let mut done = self.lower_half::<HALF>(high, start.saturating_sub(HALF), sweeps.clone());
        if start < HALF {
            done += self.lower_half::<0>(low, start, sweeps);
        }
        done.div_ceil(2)
    }

    #[inline(always)]
    fn lower_half<const FIRST: usize>(&self, half: &mut [u16], start: usize, sweeps: Range<usize>) -> u64 {
        let mut least = [0; HALF];
        least.copy_from_slice(half);
        let mut done = 0;
        let after = self.after[sweeps.clone()].chunks(STRIDE);
        let strides =
            after.zip(self.before[sweeps.clone()].chunks(STRIDE)).zip(self.units[sweeps].chunks(STRIDE));
        for ((after, before), units) in strides {
            // Sweeps get longer: once the sweep alone is slower than what every lane has, so are all that follow.
            if units.first().is_some_and(|units| *units >= least[start]) {
                break;
            }
            done += after.len() as u64;
            for ((after, before), units) in after.iter().zip(before).zip(units) {
                let after = &self.shifted[*after as usize].0[FIRST..FIRST + HALF];
                let before = &self.rows[*before as usize].0[FIRST..FIRST + HALF];
                for lane in 0..HALF {
                    let sum = after[lane].saturating_add(before[lane]).saturating_add(*units);
                    least[lane] = least[lane].min(sum);
                }
            }
        }
        half.copy_from_slice(&least);
        done
    }
}
