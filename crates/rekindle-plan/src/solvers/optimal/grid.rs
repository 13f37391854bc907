//! Long chains, on a grid: the overhead of every cell at every number of slots, in sixteen bits.
//!
//! The rooms of a grid are cut into chunks of [`LANES`] neighbours. A chunk is solved for all cells before the next one
//! begins: what it needs of itself then stays in the cache, and one instruction handles many rooms. A smaller room never
//! asks about a larger one, so chunks depend on earlier chunks only; and cells depend on cells that end no later. So
//! threads take chunks in turn and each follows the one before it, column by column.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::chain::Chain;
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
type Column = Box<[Row]>;

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
}

impl Grid {
    /// How many bytes a grid of `slots` takes.
    pub(super) fn bytes(problem: &Problem, slots: u64) -> u64 {
        Self::chunk_bytes(problem).saturating_mul(Self::chunks_of(slots))
    }

    /// How many chunks a grid of `slots` has.
    pub(super) fn chunks_of(slots: u64) -> u64 {
        slots / LANES as u64 + 1
    }

    /// How many bytes a chunk takes.
    pub(super) fn chunk_bytes(problem: &Problem) -> u64 {
        (problem.cells.count() as u64).saturating_mul(size_of::<Row>() as u64)
    }

    /// Solves every cell up to `slots`; `None` when it is not through by `deadline`.
    pub(super) fn new(problem: &Problem, scale: Scale, slots: u64, deadline: Instant) -> Option<Self> {
        let slots = usize::try_from(slots).ok()?;
        let stages = problem.chain.stages();
        let empty = || (0..stages).map(|_| OnceLock::new()).collect::<Vec<_>>();
        let chunks: Vec<_> = (0..=slots / LANES).map(|_| empty()).collect();
        let units = units(&problem.chain, &scale);
        let grid = Self { scale, slots, chunks, units };
        let solver =
            Solver { problem, layout: problem.layout(), grid: &grid, late: AtomicBool::new(false), deadline };
        let threads =
            std::thread::available_parallelism().map_or(1, usize::from).min(solver.grid.chunks.len());
        std::thread::scope(|scope| {
            for thread in 1..threads {
                let solver = &solver;
                scope.spawn(move || solver.run(thread, threads));
            }
            solver.run(0, threads);
        });
        let late = solver.late.into_inner();
        (!late).then_some(grid)
    }

    /// How many chunks it has.
    pub(super) fn chunks(&self) -> u64 {
        self.chunks.len() as u64
    }

    /// A cell's overhead in units, in a room of so many slots.
    fn at(&self, layout: &Layout, number: usize, slots: u64) -> u16 {
        let slot = usize::try_from(slots).unwrap_or(usize::MAX).min(self.slots);
        self.row(layout, number, slot / LANES).map_or(NONE, |row| row.0[slot % LANES])
    }

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

    /// What the cell should begin with in a room of so many bytes. The grid says what is fast; whether it fits is asked
    /// to the byte, so a room that can be met is always met.
    pub(super) fn choose(
        &self,
        problem: &Problem,
        first: usize,
        end: usize,
        room: u64,
    ) -> Option<(Choice, u64)> {
        let (Problem { chain, cells, rooms, .. }, layout) = (problem, problem.layout());
        let guess = |number: usize, room: u64| match self.at(layout, number, room / self.scale.slot) {
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

struct Solver<'a> {
    problem: &'a Problem,
    layout: &'a Layout,
    grid: &'a Grid,
    late: AtomicBool,
    deadline: Instant,
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
        };
        for index in (thread..self.grid.chunks.len()).step_by(threads) {
            (chunk.index, chunk.start) = (index, index * LANES);
            for tile in &self.layout.tiles {
                if !self.wait_for_earlier(index, tile.ends.end - 1) {
                    return;
                }
                self.solve_tile(&arch, &mut chunk, tile);
            }
        }
    }

    /// Waits until the chunk before has this column; false when time is up.
    fn wait_for_earlier(&self, index: usize, end: usize) -> bool {
        if Instant::now() > self.deadline {
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

    fn solve_tile(&self, arch: &pulp::Arch, chunk: &mut Chunk, tile: &Tile) {
        let mut columns = vec![Vec::new(); tile.ends.len()];
        for task in &tile.tasks {
            let (first, end) = (task.first as usize, task.end as usize);
            if task.solve {
                let row = self.solve(arch, chunk, first, end);
                chunk.rows[self.problem.cells.number(first, end)] = row;
                columns[end - tile.ends.start].push(row);
            }
            if task.shift {
                self.shift(chunk, first, end);
            }
        }
        for (end, column) in tile.ends.clone().zip(columns) {
            // Only this thread has this chunk: nothing was there.
            let _ = self.grid.chunks[chunk.index][end - 1].set(column.into_boxed_slice());
        }
    }

    /// Pays for the cell's input.
    fn shift(&self, chunk: &mut Chunk, first: usize, end: usize) {
        let slots = self.grid.scale.boundary_slots(self.problem.chain.boundary[first]);
        let row = self.window(chunk, self.problem.cells.number(first, end), slots);
        chunk.shifted[self.layout.shifted.column(end)[first] as usize] = row;
    }

    /// A cell's row, `shift` slots further: lane `i` is the cell at the room of lane `i` less `shift`.
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

    fn solve(&self, arch: &pulp::Arch, chunk: &Chunk, first: usize, end: usize) -> Row {
        let Problem { chain, cells, .. } = self.problem;
        let scale = &self.grid.scale;
        let mut row = Row::NONE;
        if !chain.may_run(first, end) {
            return row;
        }
        // Once nothing is recomputed, more room changes nothing.
        let before = chunk
            .index
            .checked_sub(1)
            .and_then(|index| self.grid.row(self.layout, cells.number(first, end), index));
        if before.is_some_and(|row| row.0[LANES - 1] == 0) {
            return Row::ZERO;
        }
        for tape in &chain.tapes[first] {
            let need = scale.slots(chain.tape_need(tape, end)) as usize;
            if need < chunk.start + LANES {
                let rest = match first + 1 == end {
                    true => Row::ZERO,
                    false => self.window(chunk, cells.number(first + 1, end), scale.slots(tape.bytes)),
                };
                let excess = scale.units(tape.excess);
                for lane in need.saturating_sub(chunk.start)..LANES {
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
            let most = scale.most_bytes(slot as u64).and_then(|most| most.checked_sub(chain.waiting(end)));
            most.map_or(0, |most| needs.partition_point(|need| *need <= most))
        };
        let (full, some) = (within(chunk.start), within(chunk.start + LANES - 1));
        let before = cells.row(first);
        let after = &self.layout.shifted.column(end)[first + 1..];
        let sums = |row: &mut Row, sweeps: Range<usize>| {
            arch.dispatch(LeastSum {
                row,
                shifted: &chunk.shifted,
                after: &after[sweeps.clone()],
                rows: &chunk.rows,
                before: &before[sweeps.clone()],
                units: &units[sweeps],
            });
        };
        sums(&mut row, 0..full);
        // Needs rise with the sweep and mostly stay: sweeps of one need are done together.
        let mut sweep = full;
        while sweep < some {
            let next = sweep + needs[sweep..some].partition_point(|need| *need == needs[sweep]);
            let mut sum = Row::NONE;
            sums(&mut sum, sweep..next);
            let need = scale.slots(needs[sweep].saturating_add(chain.waiting(end))) as usize;
            for lane in need.saturating_sub(chunk.start)..LANES {
                row.0[lane] = row.0[lane].min(sum.0[lane]);
            }
            sweep = next;
        }
        row
    }
}

/// Sweeps between two looks at whether the rest can still matter.
const STRIDE: usize = 16;

/// Lowers each lane of `row` to the least `after + before + units` of all sweeps.
struct LeastSum<'a> {
    row: &'a mut Row,
    shifted: &'a [Row],
    after: &'a [u32],
    rows: &'a [Row],
    before: &'a [u32],
    units: &'a [u16],
}

impl pulp::NullaryFnOnce for LeastSum<'_> {
    type Output = ();

    // Inlined into a function that may use the widest instructions of the machine it runs on.
    #[inline(always)]
    fn call(self) {
        let mut least = self.row.0;
        let after = self.after.chunks(STRIDE);
        let strides = after.zip(self.before.chunks(STRIDE)).zip(self.units.chunks(STRIDE));
        for ((after, before), units) in strides {
            // Sweeps get longer: once the sweep alone is slower than what every lane has, so are all that follow.
            let worst = least.iter().fold(0, |worst, lane| worst.max(*lane));
            if units.first().is_some_and(|units| *units >= worst) {
                break;
            }
            let rows =
                |sweep: usize| (&self.shifted[after[sweep] as usize].0, &self.rows[before[sweep] as usize].0);
            let sum = |after: &[u16; LANES], before: &[u16; LANES], lane: usize, units: u16| {
                after[lane].saturating_add(before[lane]).saturating_add(units)
            };
            // Two at a time: `least` is read and written half as often.
            let count = after.len();
            for pair in 0..count / 2 {
                let (one, two) = (2 * pair, 2 * pair + 1);
                let ((after_one, before_one), (after_two, before_two)) = (rows(one), rows(two));
                let (units_one, units_two) = (units[one], units[two]);
                for (lane, least) in least.iter_mut().enumerate() {
                    let one = sum(after_one, before_one, lane, units_one);
                    let two = sum(after_two, before_two, lane, units_two);
                    *least = (*least).min(one.min(two));
                }
            }
            if count % 2 == 1 {
                let (after, before) = rows(count - 1);
                let units = units[count - 1];
                for (lane, least) in least.iter_mut().enumerate() {
                    *least = (*least).min(sum(after, before, lane, units));
                }
            }
        }
        self.row.0 = least;
    }
}
