//! Solves every cell of a grid.
//!
//! The rooms of a grid are cut into chunks of [`LANES`] neighbours. A chunk is solved for all cells before the next one
//! begins: what it needs of itself then stays in the cache, and one instruction handles many rooms. A smaller room never
//! asks about a larger one, so chunks depend on earlier chunks only; and cells depend on cells that end no later. So
//! threads take chunks in turn and each follows the one before it, column by column.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::grid::Grid;
use super::layout::{Layout, Task, Tile};
use super::problem::Problem;
use super::refine;
use super::rows::{Column, LANES, Row, Rows, Wide};
use super::spans::Spans;
use super::sums::Sums;

/// What the threads that fill a grid share.
pub(super) struct Filling<'a> {
    problem: &'a Problem,
    layout: &'a Layout,
    grid: &'a Grid,
    spans: Spans,
    limits: Limits,
    late: AtomicBool,
    /// Sums that were looked at.
    sums: AtomicU64,
    /// What the rows take.
    bytes: AtomicU64,
}

/// What filling a grid may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) until: Instant,
    pub(super) most_bytes: u64,
    /// How many threads may work on it. What is found does not depend on it.
    pub(super) threads: usize,
}

/// What filling a grid took.
pub(super) struct Filled {
    /// How many sums of rows were looked at.
    pub(super) sums: u64,
    /// How many bytes its rows take.
    pub(super) bytes: u64,
}

/// What a thread keeps of the chunk it is at.
struct Chunk {
    index: usize,
    /// The room of the first lane, in slots.
    start: usize,
    /// The cells, by their number.
    cells: Rows,
    /// The cells with their input paid, by their shifted number.
    shifted: Rows,
    /// The columns of the tile it is at.
    columns: Vec<Column>,
}

impl<'a> Filling<'a> {
    /// Solves every cell of an empty grid; `None` when that is beyond the limits.
    pub(super) fn fill(problem: &'a Problem, grid: &'a Grid, mut limits: Limits) -> Option<Filled> {
        let layout = problem.layout();
        let chunks = grid.chunks.len();
        limits.threads = limits.threads.clamp(1, chunks);
        // Every thread has a chunk of its own beside what is held, and there might have been more of them.
        let rows = problem.cells.count() + layout.shifted.count;
        let own = (refine::threads() * rows * size_of::<Row>()) as u64;
        limits.most_bytes = limits.most_bytes.checked_sub(own)?;
        let filling = Self {
            problem,
            layout,
            grid,
            spans: Spans::new(problem, &grid.scale),
            limits,
            late: AtomicBool::new(false),
            sums: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        };
        std::thread::scope(|scope| {
            for thread in 1..limits.threads {
                let filling = &filling;
                scope.spawn(move || filling.run(thread));
            }
            filling.run(0);
        });
        let filled = Filled { sums: filling.sums.into_inner(), bytes: filling.bytes.into_inner() };
        (!filling.late.into_inner()).then_some(filled)
    }

    /// Solves every chunk whose turn is this thread's.
    fn run(&self, thread: usize) {
        let arch = pulp::Arch::new();
        let widest = self.layout.tiles.iter().map(|tile| tile.ends.len()).max().unwrap_or(0);
        let mut chunk = Chunk {
            index: 0,
            start: 0,
            cells: Rows::none(self.problem.cells.count()),
            shifted: Rows::none(self.layout.shifted.count),
            columns: vec![Column::default(); widest],
        };
        for index in (thread..self.grid.chunks.len()).step_by(self.limits.threads) {
            (chunk.index, chunk.start) = (index, index * LANES);
            for tile in &self.layout.tiles {
                if !self.wait_for_earlier(index, tile.ends.end - 1) {
                    return;
                }
                arch.dispatch(SolveTile { filling: self, chunk: &mut chunk, tile });
            }
        }
    }

    /// Waits until the chunk before has this column; false when time is up.
    fn wait_for_earlier(&self, index: usize, end: usize) -> bool {
        if Instant::now() > self.limits.until || self.bytes.load(Ordering::Relaxed) > self.limits.most_bytes {
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
        chunk.columns.iter_mut().for_each(Column::clear);
        // What is shifted is only read by cells that begin earlier: by then it need not be waited for.
        for tasks in tile.tasks.chunk_by(|left, right| left.first == right.first) {
            for task in tasks.iter().filter(|task| task.solve) {
                done += self.solve(chunk, task, task.end as usize - tile.ends.start);
            }
            for task in tasks.iter().filter(|task| task.shift) {
                self.shift(chunk, task);
            }
        }
        self.sums.fetch_add(done, Ordering::Relaxed);
        for (end, column) in tile.ends.clone().zip(&chunk.columns) {
            let column = column.done();
            self.bytes.fetch_add(column.bytes(), Ordering::Relaxed);
            // Only this thread has this chunk: nothing was there.
            let _ = self.grid.chunks[chunk.index][end - 1].set(column);
        }
    }

    /// What keeps everything from `enough` slots on was already set to nothing when this thread was at its chunk before.
    #[inline(always)]
    fn is_set(&self, chunk: &Chunk, enough: usize) -> bool {
        enough + self.limits.threads * LANES <= chunk.start
    }

    /// Solves a cell and adds it to its column; says how many sums were looked at.
    #[inline(always)]
    fn solve(&self, chunk: &mut Chunk, task: &Task, column: usize) -> u64 {
        let number = task.number as usize;
        let start = self.spans.starts[number] as usize;
        if start >= chunk.start + LANES {
            chunk.columns[column].push_too_small();
            return 0;
        }
        let enough = self.spans.enough[number] as usize;
        if enough <= chunk.start {
            chunk.columns[column].push_enough();
            if !self.is_set(chunk, enough) {
                chunk.cells.set(number, &Row::ZERO);
            }
            return 0;
        }
        let (row, done) = self.cell(chunk, task, start.saturating_sub(chunk.start));
        chunk.cells.set(number, &row);
        chunk.columns[column].push(&row);
        done
    }

    /// Pays for the cell's input.
    #[inline(always)]
    fn shift(&self, chunk: &mut Chunk, task: &Task) {
        let (number, shifted) = (task.number as usize, task.shifted as usize);
        let slots = self.spans.boundaries[task.first as usize] as usize;
        let start = self.spans.starts[number] as usize;
        if start.saturating_add(slots) >= chunk.start + LANES {
            return;
        }
        let enough = (self.spans.enough[number] as usize).saturating_add(slots);
        if enough <= chunk.start {
            if !self.is_set(chunk, enough) {
                chunk.shifted.set(shifted, &Row::ZERO);
            }
            return;
        }
        let row = self.window(chunk, number, slots);
        chunk.shifted.set(shifted, &row);
    }

    /// A cell's row, `shift` slots further: lane `i` is the cell at the room of lane `i` less `shift`.
    #[inline(always)]
    fn window(&self, chunk: &Chunk, number: usize, shift: usize) -> Row {
        let Some(last) = (chunk.start + LANES - 1).checked_sub(shift) else { return Row::NONE };
        // The last lanes come from the chunk of `last`, the first ones from the chunk before it.
        let upper = match last / LANES == chunk.index {
            true => chunk.cells.wide(number),
            false => self.grid.row(self.layout, number, last / LANES),
        };
        let lower = match last / LANES {
            0 => Wide::NONE,
            index => self.grid.row(self.layout, number, index - 1),
        };
        Row::between(lower, upper, last % LANES + 1)
    }

    /// The overheads of a cell that has room from lane `start` on, and how many sums were looked at.
    #[inline(always)]
    fn cell(&self, chunk: &Chunk, task: &Task, start: usize) -> (Row, u64) {
        let Problem { chain, cells, .. } = self.problem;
        let (first, end) = (task.first as usize, task.end as usize);
        let mut row = Row::NONE;
        let needs = self.spans.tape_needs(task.number as usize, first);
        for (need, way) in needs.iter().zip(&self.spans.ways[first]) {
            let need = *need as usize;
            if need < chunk.start + LANES {
                let rest = match first + 1 == end {
                    true => Row::ZERO,
                    false => self.window(chunk, cells.number(first + 1, end), way.slots as usize),
                };
                row.lower(need.saturating_sub(chunk.start).max(start), &rest, way.units);
            }
        }
        if first + 1 == end {
            return (row, 0);
        }
        let sweeps = &self.problem.sweeps;
        let needs = &sweeps.needs(first)[..end - first - 1];
        let all = Sums {
            shifted: &chunk.shifted,
            after: &self.layout.shifted.column(end)[first + 1..],
            cells: &chunk.cells,
            before: cells.row(first),
            units: &self.grid.units[sweeps.from(first).start..],
            repeat: self.layout.repeat,
        };
        if sweeps.need_nothing(first, end, chain.waiting(end)) {
            let done = all.lower(&mut row, start, 0..needs.len());
            row.begin_at(start);
            return (row, done);
        }
        // Bytes that may be needed at each slot; a slot past the last has room for no more than the last.
        let most = self.grid.scale.most_bytes(first);
        // Sweeps that every lane has room for, and those that some have.
        let within = |slot: usize| {
            let most = most[slot.min(most.len() - 1)].checked_sub(chain.waiting(end));
            most.map_or(0, |most| needs.partition_point(|need| *need <= most))
        };
        let (full, some) = (within(chunk.start), within(chunk.start + LANES - 1));
        let mut done = all.lower(&mut row, start, 0..full);
        // Needs rise with the sweep and mostly stay: sweeps of one need are done together.
        let mut sweep = full;
        while sweep < some {
            let next = sweep + needs[sweep..some].partition_point(|need| *need == needs[sweep]);
            let need = needs[sweep].saturating_add(chain.waiting(end));
            let from = most.partition_point(|most| *most < need).saturating_sub(chunk.start).max(start);
            let mut sum = row;
            done += all.lower(&mut sum, from, sweep..next);
            row.lower(from, &sum, 0);
            sweep = next;
        }
        row.begin_at(start);
        (row, done)
    }
}

/// The work on a tile.
struct SolveTile<'a, 'b> {
    filling: &'a Filling<'b>,
    chunk: &'a mut Chunk,
    tile: &'a Tile,
}

impl pulp::NullaryFnOnce for SolveTile<'_, '_> {
    type Output = ();

    // Inlined, with all it calls, into a function that may use the widest instructions of the machine it runs on.
    #[inline(always)]
    fn call(self) {
        self.filling.solve_tile(self.chunk, self.tile);
    }
}
