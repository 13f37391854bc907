//! Grids for smaller and smaller rooms.
//!
//! Where there is less room, sizes matter more: a grid for a smaller room of as many slots is finer. Each grid serves the
//! rooms below its own for as long as what it finds and what it proves are close; the next begins where they are not.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::chain::Chain;
use super::choice::{self, Choice};
use super::fill::Limits;
use super::grid::Grid;
use super::halving;
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

/// How much finer grids get for a room where plan and bound are not close, and what of the gap one of them must leave at
/// most.
const FINEST: u64 = 32;
const LEFT: f64 = 0.9;

/// So many grids in a row that hardly help are the last: one finer may just be the first whose slots fit.
const IN_VAIN: usize = 3;

/// The next grid is finer when one served fewer looks than this, and coarser when it served more than that.
const FEW_LOOKS: usize = 14;
const MANY_LOOKS: usize = 32;

/// Sums of rows after which grids are only made so that there is a plan.
const MOST_SUMS: u64 = 3_000_000_000;

/// Of so many looks at least, these hundredths at the smallest rooms get grids of their own.
const MANY: usize = 40;
const SMALLER: usize = 36;

/// Grids of more stages keep every thread busy by themselves, and need more slots.
const FEW_STAGES: usize = 128;

/// Grids, the one for the largest room first.
#[derive(Debug)]
pub(super) struct Series {
    /// Which view of the frontier it is for.
    view: usize,
    grids: Vec<Held>,
    /// Choices of plans whose grids were too large to be held on to.
    written: Vec<Vec<Choice>>,
    /// From which side a grid was best looked at last.
    side: usize,
    /// Whether time was up before every look was as close as it could be.
    pub(super) late: bool,
}

/// A grid and the room it is for; nothing when its plans were written down.
#[derive(Debug)]
struct Held {
    room: u64,
    solved: Option<Grid>,
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

/// What a series may use of what there is.
#[derive(Clone, Copy)]
struct Share<'a> {
    bytes: u64,
    /// How many series are being made.
    running: &'a AtomicUsize,
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
    ///
    /// Smaller rooms need not wait for larger ones: of many looks at few stages, those at small rooms get grids of their
    /// own meanwhile. Where the looks are cut does not depend on how many threads there are, and so neither does what is
    /// found.
    pub(super) fn new(task: Task<'_>, looks: &mut Looks) -> Self {
        let threads = refine::threads();
        let few = looks.list.len() < MANY || task.problem.chain.stages() > FEW_STAGES;
        if few || !task.proves || task.problem.cells.repeat() {
            return Self::of(task, looks, Share { bytes: refine::MOST_BYTES, running: &AtomicUsize::new(1) });
        }
        let mut larger = looks.split_off(looks.list.len() * SMALLER / 100);
        let running = AtomicUsize::new(if threads > 1 { 2 } else { 1 });
        let share = Share { bytes: refine::MOST_BYTES / 2, running: &running };
        let (mut series, below) = match threads {
            1 => (Self::of(task, &mut larger, share), Self::of(task, looks, share)),
            _ => std::thread::scope(|scope| {
                let below = scope.spawn(|| {
                    let below = Self::of(task, looks, share);
                    running.store(1, Ordering::Relaxed);
                    below
                });
                let series = Self::of(task, &mut larger, share);
                running.store(1, Ordering::Relaxed);
                (series, below.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            }),
        };
        series.append(below, looks);
        looks.append(larger);
        series
    }

    /// Adds the grids for smaller rooms, and what was found there.
    fn append(&mut self, mut below: Self, looks: &mut Looks) {
        for look in &mut looks.list {
            match look.found.as_mut().map(|found| &mut found.source) {
                Some(Source::View { view, grid, .. }) if *view == self.view => *grid += self.grids.len(),
                Some(Source::Written { view, index }) if *view == self.view => *index += self.written.len(),
                _ => {}
            }
        }
        self.grids.append(&mut below.grids);
        self.written.append(&mut below.written);
        self.late |= below.late;
    }

    fn of(task: Task<'_>, looks: &mut Looks, share: Share<'_>) -> Self {
        // A plan is best read off with all slots left aside that only a bound needs.
        let side = usize::MAX;
        let mut series = Self { view: task.view, grids: Vec::new(), written: Vec::new(), side, late: false };
        let usual = usual_slots(task.problem);
        let (mut slots, mut sums) = (usual, 0u64);
        let mut top = looks.list.len();
        let mut again = Again::default();
        while let Some(last) = (0..top).rev().find(|look| !looks.close(*look)) {
            let strict = task.proves && sums <= MOST_SUMS;
            let most = most_overhead(task, &looks.list[last], again.grids > 0);
            let wanted = match again.grids > 0 {
                true => Slots::no_fewer(slots),
                false => Slots::from(slots),
            };
            let Some(grid) = series.grid(task, looks, last, wanted, most, share) else {
                let fits = looks.list[last].room >= task.problem.whole_room();
                series.late = fits && Instant::now() > task.until;
                break;
            };
            sums = sums.saturating_add(grid.sums);
            let slow = grid.overflows(task.problem, looks.list[last].room);
            top = series.serve(task, looks, last, grid, strict);
            if again.grids > 0 {
                series.forget(looks, top.min(last)..last + 1);
            }
            if top <= last {
                // Twice the slots serve more than twice the looks, where no slots fit all sizes.
                slots = match last + 1 - top {
                    _ if task.problem.cells.repeat() => usual.max(slots / 2),
                    ..FEW_LOOKS => 2 * slots,
                    FEW_LOOKS..=MANY_LOOKS => slots,
                    _ => slots / 2,
                };
                (slots, again) = (slots.clamp(usual / 2, usual * FINEST), Again::default());
                continue;
            }
            // Its own grid did not bring this look close. Slower than it can tell: the next one counts in larger units.
            let units = slow && most < refine::slowest(task.chain);
            again = again.after(looks.gap(last));
            let finer = strict && slots < usual * FINEST;
            if again.in_vain < IN_VAIN && (units || finer) {
                slots = if units { slots } else { 2 * slots };
            } else {
                (top, slots, again) = (last, usual, Again::default());
            }
        }
        series.serve_rest(task, looks);
        series
    }

    /// A grid for a look and those below it; `None` when time or memory is up.
    fn grid(
        &mut self,
        task: Task<'_>,
        looks: &mut Looks,
        last: usize,
        slots: Slots,
        most: u64,
        share: Share<'_>,
    ) -> Option<Grid> {
        let (problem, room) = (task.problem, looks.list[last].room);
        if room < problem.whole_room() {
            return None;
        }
        let unit = refine::unit(task.chain, most);
        // Plans that are found on it will need rooms like that of the plan before.
        let own = |found: &Found| matches!(found.source, Source::View { view, .. } if view == self.view);
        let like = looks.list[last].found.filter(own).map_or(problem.whole_room(), |found| found.need);
        // Grids for larger rooms make place: what was found on them can be written down.
        for oldest in 0..=self.grids.len() {
            let held: u64 =
                self.grids.iter().filter_map(|held| held.solved.as_ref()).map(|grid| grid.bytes).sum();
            let most_bytes = share.bytes.saturating_sub(held);
            let threads = refine::threads().div_ceil(share.running.load(Ordering::Relaxed).max(1));
            let limits = Limits { until: task.until, most_bytes, threads };
            // About as large as the one before.
            let before = self.grids.last().and_then(|held| held.solved.as_ref()).map_or(0, |grid| grid.bytes);
            if before <= most_bytes / 2
                && let Some(grid) = refine::grid(problem, room, like, slots, unit, limits)
            {
                return Some(grid);
            }
            if Instant::now() > task.until || oldest == self.grids.len() {
                return None;
            }
            self.write_down(problem, looks, oldest);
        }
        None
    }

    /// Writes the plans of a grid down and lets go of it.
    fn write_down(&mut self, problem: &Problem, looks: &mut Looks, index: usize) {
        let Some(solved) = self.grids[index].solved.take() else { return };
        for look in &mut looks.list {
            let Some(Found { source, .. }) = &mut look.found else { continue };
            let Source::View { view, grid, room, aside } = *source else { continue };
            if view == self.view && grid == index {
                let mut choices = Vec::new();
                let choose = |first, end, room| {
                    let chosen = solved.choose(problem, first, end, room, aside)?;
                    choices.push(chosen.0);
                    Some(chosen)
                };
                // It was outlined, and so it can be written.
                let _ = choice::actions(&problem.chain, room, choose);
                *source = Source::Written { view, index: self.written.len() };
                self.written.push(choices);
            }
        }
    }

    /// The actions of a plan whose choices were written down.
    pub(super) fn written(&self, problem: &Problem, index: usize) -> Option<Vec<Action>> {
        let mut choices = self.written.get(index)?.iter();
        choice::actions(&problem.chain, (), |_, _, ()| Some((*choices.next()?, ())))
    }

    /// Looks at rooms from the last on down for as long as the grid is good enough; says where the next begins.
    fn serve(&mut self, task: Task<'_>, looks: &mut Looks, last: usize, grid: Grid, strict: bool) -> usize {
        let most = looks.list[last].room;
        let index = self.grids.len();
        self.grids.push(Held { room: most, solved: Some(grid) });
        for look in (0..=last).rev() {
            let room = looks.list[look].room;
            if (!strict && room < most / RATIO) || room < task.problem.whole_room() {
                return look + 1;
            }
            self.look(task, looks, look, index);
            let solved = self.grids[index].solved.as_ref();
            let slow = solved.is_some_and(|grid| grid.overflows(task.problem, room));
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

    /// Rooms that were not come to are looked at on the last grid; without one, their least rooms say what to do.
    fn serve_rest(&mut self, task: Task<'_>, looks: &mut Looks) {
        let last = self.grids.iter().rposition(|held| held.solved.is_some());
        for look in 0..looks.list.len() {
            let room = looks.list[look].room;
            if looks.list[look].found.is_some() || room < task.problem.whole_room() {
                continue;
            }
            if let Some(last) = last {
                self.look(task, looks, look, last);
            }
            if looks.list[look].found.is_none() {
                let choose = |first, end, room| halving::choose(task.problem, first, end, room);
                let source = Source::Halving { view: self.view, room };
                let plan = outline(task.problem, choose, room);
                let found = plan.map(|plan| Found { need: plan.need, overhead: plan.overhead, source });
                looks.take(look, found);
                looks.raise(look, |need| task.knapsack.bound(need));
            }
        }
    }

    /// Looks at a room on a grid, from several sides, until plan and bound are close.
    fn look(&mut self, task: Task<'_>, looks: &mut Looks, look: usize, grid: usize) {
        let Some(solved) = &self.grids[grid].solved else { return };
        let room = looks.list[look].room;
        let sides: Vec<u64> = solved.sides().collect();
        // Where sizes repeat, a part of a slot is often of no use, and only misleads.
        let whole = Some(solved.scale.whole_slots(room)).filter(|whole| {
            let repeat = task.proves && task.problem.cells.repeat();
            repeat && *whole >= task.problem.whole_room() && *whole < room
        });
        // The side that was best at the look before comes first.
        let usual = self.side.min(sides.len() - 1);
        let others = (0..sides.len()).rev().filter(|side| *side != usual);
        let tries = [usual].into_iter().chain(others);
        let tries = tries.flat_map(|side| whole.into_iter().chain([room]).map(move |room| (side, room)));
        for (tried, (side, room)) in tries.enumerate() {
            let before = looks.list[look].found.map(|found| found.overhead);
            looks.take(look, self.found(task.problem, grid, room, sides[side]));
            let better = looks.list[look].found.map(|found| found.overhead) != before;
            if !better && tried > 0 {
                continue;
            }
            self.side = side;
            looks.raise(look, |need| {
                let proven = solved.bound(task.problem, need).filter(|_| task.proves);
                task.knapsack.bound(need).max(proven.unwrap_or(0))
            });
            // Where nothing can be proven, another side is worth less than single stages are.
            if looks.close(look) || !task.proves {
                return;
            }
        }
    }

    /// The plan a grid leads to in a room, looked at from one of its sides.
    fn found(&self, problem: &Problem, grid: usize, room: u64, aside: u64) -> Option<Found> {
        let solved = self.grids.get(grid)?.solved.as_ref()?;
        let choose = |first, end, room| solved.choose(problem, first, end, room, aside);
        let plan = outline(problem, choose, room)?;
        let source = Source::View { view: self.view, grid, room, aside };
        Some(Found { need: plan.need, overhead: plan.overhead, source })
    }

    /// The plan for a room that need not have been looked at.
    pub(super) fn plan(&self, problem: &Problem, room: u64) -> Option<Found> {
        let finest = self.near(room).next()?;
        let sides = self.grids[finest].solved.as_ref()?.sides();
        let sides = sides.filter_map(|aside| self.found(problem, finest, room, aside));
        sides.reduce(|best, other| other.better(Some(best)))
    }

    /// The actions of a plan that was found on a grid.
    pub(super) fn actions(
        &self,
        problem: &Problem,
        grid: usize,
        room: u64,
        aside: u64,
    ) -> Option<Vec<Action>> {
        let solved = self.grids.get(grid)?.solved.as_ref()?;
        let choose = |first, end, room| solved.choose(problem, first, end, room, aside);
        choice::actions(&problem.chain, room, choose)
    }

    /// Overhead that no plan within `room` can do without.
    pub(super) fn bound(&self, problem: &Problem, room: u64) -> u64 {
        let near = self.near(room).take(2).filter_map(|grid| self.grids[grid].solved.as_ref());
        let bounds = near.filter_map(|solved| solved.bound(problem, room));
        bounds.max().unwrap_or(0)
    }

    /// The grids that know a room, the finest first.
    fn near(&self, room: u64) -> impl Iterator<Item = usize> {
        let known = self.grids.iter().enumerate().rev();
        let known = known.filter(move |(_, held)| held.room >= room && held.solved.is_some());
        known.map(|(index, _)| index)
    }
}

/// The largest overhead that a grid for a look should tell: the first is for rooms below, too.
fn most_overhead(task: Task<'_>, look: &Look, again: bool) -> u64 {
    let Task { chain, knapsack, .. } = task;
    let below = knapsack.bound(look.room / RATIO).max(chain.forward(0, chain.stages()));
    // A plan that was found where a grid could not tell may be far too slow.
    let known = look.found.map_or(below, |found| found.overhead.min(look.bound().saturating_mul(4)));
    let most = if again { known } else { known.max(below) };
    most.saturating_mul(2).min(refine::slowest(chain))
}

fn usual_slots(problem: &Problem) -> u64 {
    if problem.cells.repeat() || problem.chain.stages() <= FEW_STAGES { SLOTS } else { MORE_SLOTS }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use proptest::prelude::*;
    use std::time::Duration;

    use super::super::chain::NEVER;
    use super::super::exact::{self, Staircases};
    use super::super::refine::tests::chain;
    use super::*;
    use crate::{Bytes, Gap, Nanos, Profile, StageProfile, simulate};

    /// Solves a chain on grids and checks every look against the optimum; `written` lets go of every grid first.
    fn check(profile: &Profile, until: Instant, written: bool) -> Result<(), TestCaseError> {
        let chain = Chain::new(profile);
        let problem = Problem::new(chain.clone());
        prop_assume!(problem.whole_room() != NEVER);
        let stairs = Staircases::new(&problem, chain.store_all_room()).unwrap();
        let steps = stairs.of(&problem, 0, chain.stages());
        let knapsack = Knapsack::new(&chain);
        let mut looks = Looks::new(&chain, &knapsack, problem.whole_room(), Gap::ONE_PERCENT);
        let task =
            Task { problem: &problem, chain: &chain, knapsack: &knapsack, view: 0, proves: true, until };
        let mut series = Series::new(task, &mut looks);
        if written {
            (0..series.grids.len()).for_each(|grid| series.write_down(&problem, &mut looks, grid));
        }
        for look in &looks.list {
            let found = look.found.unwrap();
            let actions = match found.source {
                Source::View { grid, room, aside, .. } => series.actions(&problem, grid, room, aside),
                Source::Written { index, .. } => series.written(&problem, index),
                Source::Halving { room, .. } => choice::actions(&chain, room, |first, end, room| {
                    halving::choose(&problem, first, end, room)
                }),
                source => panic!("{source:?}"),
            };
            let simulated = simulate(profile, &actions.unwrap()).unwrap();
            prop_assert_eq!(simulated.step_ns.get(), chain.base + found.overhead);
            prop_assert_eq!(simulated.peak_bytes.get(), chain.boundary[0] + found.need);
            prop_assert!(found.need <= look.room);
            let optimum = exact::at(steps, found.need).unwrap();
            prop_assert!(look.bound() <= optimum && optimum <= found.overhead);
        }
        Ok(())
    }

    #[test]
    fn looks_at_small_rooms_have_grids_of_their_own() {
        let stage = |index: u64| StageProfile {
            name: "stage".to_owned(),
            output_bytes: Bytes::new(100 + index * 7_919 % 977),
            tape_bytes: Bytes::new(9_000 + index * 104_729 % 9_973),
            forward_ns: Nanos::new(100 + index * 31 % 97),
            backward_ns: Nanos::new(200),
            ..StageProfile::default()
        };
        let profile = Profile::new("many", "none", Bytes::new(500), (0..28).map(stage).collect()).unwrap();
        let chain = Chain::new(&profile);
        let knapsack = Knapsack::new(&chain);
        let problem = Problem::new(chain.clone());
        let looks = Looks::new(&chain, &knapsack, problem.whole_room(), Gap::ONE_PERCENT);
        assert!(looks.list.len() >= MANY && !problem.cells.repeat());
        let later = Instant::now() + Duration::from_secs(60);
        check(&profile, later, false).unwrap();
        check(&profile, later, true).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn looks_are_between_what_is_proven_and_what_is_found(profile in chain()) {
            check(&profile, Instant::now() + Duration::from_secs(60), false)?;
        }

        #[test]
        fn plans_of_grids_that_were_let_go_are_the_same(profile in chain()) {
            check(&profile, Instant::now() + Duration::from_secs(60), true)?;
        }

        #[test]
        fn when_time_is_up_there_is_a_plan_all_the_same(profile in chain()) {
            check(&profile, Instant::now(), false)?;
        }
    }
}
