//! Grids for smaller and smaller rooms.
//!
//! Where there is less room, sizes matter more: a grid for a smaller room of as many slots is finer. Each grid serves the
//! rooms below its own for as long as what it finds and what it proves are close; the next begins where they are not.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::chain::Chain;
use super::choice;
use super::grid::Grid;
use super::knapsack::Knapsack;
use super::looks::{Found, Look, Looks, Source};
use super::outline::outline;
use super::problem::Problem;
use super::refine;
use super::scale::Slots;
use crate::Action;

/// A grid that need not be close is for rooms down to a fourth of its own.
const RATIO: u64 = 4;

/// Slots of a grid; of one for stages that are many and all different.
const SLOTS: u64 = 512;
const MORE_SLOTS: u64 = 1_024;

/// How much finer grids get for a room where plan and bound are not close, and what of the gap one of two must leave at
/// most.
const FINEST: u64 = 32;
const LEFT: f64 = 0.9;

/// Sums of rows after which grids are only made so that there is a plan: about two seconds on two cores.
const MOST_SUMS: u64 = 400_000_000;

/// Grids, the one for the largest room first.
#[derive(Debug)]
pub(super) struct Series {
    /// Which view of the frontier it is for.
    view: usize,
    /// Each grid with the room it is for.
    grids: Vec<(u64, Grid)>,
    /// Whether time was up before every look was as close as it could be.
    pub(super) late: bool,
}

/// Grids for one look that did not bring it close.
#[derive(Clone, Copy, Default)]
struct Again {
    grids: usize,
    gap: f64,
    /// How many of the last hardly helped.
    in_vain: usize,
}

impl Again {
    fn after(self, gap: f64) -> Self {
        let helped = self.grids == 0 || gap < self.gap * LEFT;
        Self { grids: self.grids + 1, gap, in_vain: if helped { 0 } else { self.in_vain + 1 } }
    }
}

/// What a series is made of.
#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    pub(super) problem: &'a Problem,
    /// The chain in single stages.
    pub(super) chain: &'a Chain,
    pub(super) knapsack: &'a Knapsack,
    /// Which view of the frontier it is for.
    pub(super) view: usize,
    /// Whether what a grid proves holds for every plan.
    pub(super) proves: bool,
    pub(super) until: Instant,
}

impl Series {
    /// Grids until every look is close, where they can prove it; fewer when time or memory is up.
    pub(super) fn new(task: Task<'_>, looks: &mut Looks) -> Self {
        let mut series = Self { view: task.view, grids: Vec::new(), late: false };
        let usual = usual_slots(task.problem);
        let (mut slots, mut sums) = (usual, 0u64);
        let mut top = looks.list.len();
        let mut again = Again::default();
        let affordable = |slots: u64, sums: u64| {
            sums.saturating_add(Grid::chunks_of(slots).saturating_mul(task.problem.sums())) <= MOST_SUMS
        };
        while let Some(last) = (0..top).rev().find(|look| !looks.close(*look)) {
            let strict = task.proves && affordable(slots, sums);
            let most = most_overhead(task, &looks.list[last], again.grids > 0);
            let wanted = match again.grids > 0 {
                true => Slots::no_fewer(slots),
                false => Slots::from(slots),
            };
            let Some(grid) = series.grid(task, &looks.list[last], wanted, most) else {
                let fits = looks.list[last].room >= task.problem.whole_room();
                series.late = fits && Instant::now() > task.until;
                break;
            };
            sums = sums.saturating_add(grid.chunks().saturating_mul(task.problem.sums()));
            let slow = grid.overflows(task.problem, looks.list[last].room);
            top = series.serve(task, looks, last, grid, strict);
            if again.grids > 0 {
                series.forget(looks, top.min(last)..last + 1);
            }
            if top <= last {
                (slots, again) = ((slots / 2).max(usual), Again::default());
                continue;
            }
            // Its own grid did not bring this look close. Slower than it can tell: the next one counts in larger units.
            let units = slow && most < refine::slowest(task.chain);
            again = again.after(looks.gap(last));
            let finer = strict && slots < usual * FINEST && affordable(2 * slots, sums);
            if again.in_vain < 2 && (units || finer) {
                slots = if units { slots } else { 2 * slots };
            } else {
                (top, slots, again) = (last, usual, Again::default());
            }
        }
        series.serve_rest(task, looks);
        series
    }

    /// A grid for a look and those below it; `None` when time or memory is up.
    fn grid(&self, task: Task<'_>, look: &Look, slots: Slots, most: u64) -> Option<Grid> {
        let problem = task.problem;
        let held: u64 = self.grids.iter().map(|(_, grid)| grid.chunks() * Grid::chunk_bytes(problem)).sum();
        let more = Grid::bytes(problem, slots.about + slots.about / 2);
        let first = self.grids.is_empty();
        if look.room < problem.whole_room() || (!first && held.saturating_add(more) > refine::MOST_BYTES) {
            return None;
        }
        // Without a first grid there is no plan.
        let must = first && look.found.is_none();
        let until = if must { Instant::now() + Duration::from_secs(3600) } else { task.until };
        refine::grid(problem, look.room, slots, refine::unit(task.chain, most), until)
    }

    /// Looks at rooms from the last on down for as long as the grid is good enough; says where the next begins.
    fn serve(&mut self, task: Task<'_>, looks: &mut Looks, last: usize, grid: Grid, strict: bool) -> usize {
        let most = looks.list[last].room;
        let index = self.grids.len();
        self.grids.push((most, grid));
        for look in (0..=last).rev() {
            let room = looks.list[look].room;
            if (!strict && room < most / RATIO) || room < task.problem.whole_room() {
                return look + 1;
            }
            self.look(task, looks, look, index);
            let slow = self.grids[index].1.overflows(task.problem, room);
            if slow || (strict && !looks.close(look)) {
                return look + 1;
            }
        }
        0
    }

    /// Leaves the grid before the last one out, unless a plan is read from it.
    fn forget(&mut self, looks: &mut Looks, served: Range<usize>) {
        let Some(older) = self.grids.len().checked_sub(2) else { return };
        let mut sources = served.filter_map(|look| looks.list[look].found.map(|found| found.source));
        if sources.any(|source| matches!(source, Source::View { grid, .. } if grid == older)) {
            return;
        }
        self.grids.remove(older);
        for look in &mut looks.list {
            if let Some(Found { source: Source::View { view, grid, .. }, .. }) = &mut look.found
                && *view == self.view
                && *grid > older
            {
                *grid = older;
            }
        }
    }

    /// Rooms that were not come to are looked at on the last grid.
    fn serve_rest(&self, task: Task<'_>, looks: &mut Looks) {
        let Some(last) = self.grids.len().checked_sub(1) else { return };
        for look in 0..looks.list.len() {
            let Looks { list, .. } = &looks;
            if list[look].found.is_none() && list[look].room >= task.problem.whole_room() {
                self.look(task, looks, look, last);
            }
        }
    }

    fn look(&self, task: Task<'_>, looks: &mut Looks, look: usize, grid: usize) {
        let room = looks.list[look].room;
        looks.take(look, self.found(task.problem, grid, room));
        let (_, grid) = &self.grids[grid];
        looks.raise(look, |need| {
            let proven = grid.bound(task.problem, need).filter(|_| task.proves);
            task.knapsack.bound(need).max(proven.unwrap_or(0))
        });
    }

    /// The plan a grid leads to in a room.
    fn found(&self, problem: &Problem, grid: usize, room: u64) -> Option<Found> {
        let plan = outline(problem, &self.grids[grid].1, room)?;
        let source = Source::View { view: self.view, grid, room };
        Some(Found { need: plan.need, overhead: plan.overhead, source })
    }

    /// The plan for a room that need not have been looked at.
    pub(super) fn plan(&self, problem: &Problem, room: u64) -> Option<Found> {
        let finest = self.near(room).next()?;
        self.found(problem, finest, room)
    }

    /// The actions of a plan that was found on a grid.
    pub(super) fn actions(&self, problem: &Problem, grid: usize, room: u64) -> Option<Vec<Action>> {
        let (_, grid) = self.grids.get(grid)?;
        let choose = |first, end, room| grid.choose(problem, first, end, room);
        choice::actions(&problem.chain, room, choose)
    }

    /// Overhead that no plan within `room` can do without.
    pub(super) fn bound(&self, problem: &Problem, room: u64) -> u64 {
        let bounds = self.near(room).take(2).filter_map(|grid| self.grids[grid].1.bound(problem, room));
        bounds.max().unwrap_or(0)
    }

    /// The grids that know a room, the finest first.
    fn near(&self, room: u64) -> impl Iterator<Item = usize> {
        let known = self.grids.iter().enumerate().rev().filter(move |(_, (most, _))| *most >= room);
        known.map(|(index, _)| index)
    }
}

/// The largest overhead that a grid for a look should tell: the first is for rooms below, too.
fn most_overhead(task: Task<'_>, look: &Look, again: bool) -> u64 {
    let Task { chain, knapsack, .. } = task;
    let below = knapsack.bound(look.room / RATIO).max(chain.forward(0, chain.stages()));
    // A plan that was found where a grid could not tell may be far too slow.
    let known = look.found.map_or(below, |found| found.overhead.min(look.bound.saturating_mul(4)));
    let most = if again { known } else { known.max(below) };
    most.saturating_mul(2).min(refine::slowest(chain))
}

fn usual_slots(problem: &Problem) -> u64 {
    if problem.cells.repeat() || problem.chain.stages() <= 128 { SLOTS } else { MORE_SLOTS }
}
