//! From a coarse grid to a fine one, until the plan and the bound are close enough.

use std::collections::BTreeMap;
use std::time::Instant;

use super::chain::Chain;
use super::choice::{self, Choice};
use super::exact::{self, Staircases};
use super::fill::Limits;
use super::grid::Grid;
use super::halving;
use super::knapsack::Knapsack;
use super::outline::{Choose, outline};
use super::problem::Problem;
use super::scale::{Scale, Slots};
use crate::divisor::greatest_common_divisor;
use crate::{Action, Gap};

/// The most memory a grid may take.
pub(super) const MOST_BYTES: u64 = 1_800 << 20;

/// Overheads of a grid lie below this, so that a sum of a few can still be told from one that is too large.
const MOST_UNITS: u64 = 60_000;

/// A unit of time is fitted to times that at least one stage in so many has.
const USUAL_TIME: u64 = 8;

/// What was found so far for a room.
pub(super) struct Search<'a> {
    chain: &'a Chain,
    pub(super) room: u64,
    gap: Gap,
    pub(super) deadline: Instant,
    /// The fastest plan, with its overhead.
    pub(super) best: Option<(u64, Vec<Action>)>,
    /// Overhead that no persistent plan can do without.
    pub(super) bound: u64,
}

impl<'a> Search<'a> {
    pub(super) fn new(chain: &'a Chain, room: u64, gap: Gap, deadline: Instant) -> Self {
        Self { chain, room, gap, deadline, best: None, bound: Knapsack::new(chain).bound(room) }
    }

    /// Tapes every stage in its fastest way, when there is room.
    pub(super) fn store_all(&mut self) -> bool {
        if self.room < self.chain.store_all_room() {
            return false;
        }
        self.best = choice::store_all(self.chain).map(|actions| (0, actions));
        self.best.is_some()
    }

    /// Solves a short chain exactly.
    pub(super) fn exactly(&mut self, problem: &Problem) -> bool {
        let Some(stairs) = Staircases::new(problem, self.room) else { return false };
        let whole = stairs.of(problem, 0, problem.chain.stages());
        let Some(overhead) = exact::at(whole, self.room) else { return false };
        let choose = |first, end, room| stairs.choose(problem, first, end, room);
        self.best = choice::actions(&problem.chain, self.room, choose).map(|actions| (overhead, actions));
        self.bound = overhead;
        true
    }

    /// Looks for a plan of groups of stages, each taped or swept as one. Says nothing about what is possible; but where
    /// there is room for a good part of the tapes it comes close to the knapsack's bound in no time.
    pub(super) fn in_groups(&mut self, size: usize) -> bool {
        let problem = Problem::new(self.chain.grouped(size));
        if self.room < problem.least_room(0, problem.chain.stages()) {
            return false;
        }
        let mut most = self.first_guess();
        for slots in [Slots::from(512), Slots::no_fewer(2_048)] {
            if self.late() {
                break;
            }
            let Some(grid) = self.grid(&problem, slots, &mut most) else { break };
            self.take_from(&problem, &grid);
            if self.close() {
                return true;
            }
        }
        false
    }

    /// Refines a grid of all stages until the plan is close enough to the bound, or time or memory is up.
    pub(super) fn on_grids(&mut self, problem: &Problem) {
        if self.best.is_none() {
            // Time may be up before the first grid is.
            self.take(plan(problem, self.room, |first, end, room| {
                halving::choose(problem, first, end, room)
            }));
        }
        let mut slots = Slots::from(first_slots(problem));
        let mut most = self.best.as_ref().map_or(self.first_guess(), |best| best.0);
        loop {
            let start = Instant::now();
            let Some(grid) = self.grid(problem, slots, &mut most) else { return };
            self.bound = self.bound.max(grid.bound(problem, self.room).unwrap_or(0));
            self.take_from(problem, &grid);
            let exact = grid.scale.hidden() == 0.0 && grid.scale.unit == 1;
            // Twice the slots take about twice as long: do not begin what cannot end.
            let late = start + start.elapsed() * 3 > self.deadline;
            if exact || self.close() || late || grid.bytes.saturating_mul(5) / 2 > MOST_BYTES {
                return;
            }
            (slots, most) =
                (Slots::no_fewer(2 * slots.about), self.best.as_ref().map_or(most, |best| best.0));
        }
    }

    /// Most plans run no stage more than twice; those that do are found on a coarser scale of time.
    fn first_guess(&self) -> u64 {
        let forward = self.chain.forward(0, self.chain.stages());
        self.bound.saturating_mul(2).max(forward).min(slowest(self.chain))
    }

    /// A grid of about so many slots; `most` grows until the overhead of the fastest plan can be told on it.
    fn grid(&self, problem: &Problem, slots: Slots, most: &mut u64) -> Option<Grid> {
        loop {
            let grid = grid(
                problem,
                self.room,
                self.room,
                slots,
                unit(self.chain, *most),
                Limits { until: self.deadline, most_bytes: MOST_BYTES, threads: threads() },
            )?;
            if *most >= slowest(self.chain) || !grid.overflows(problem, self.room) {
                return Some(grid);
            }
            *most = most.saturating_mul(8).min(slowest(self.chain));
        }
    }

    /// Keeps the best of the plans that a grid leads to from several sides. Only that one is written down.
    fn take_from(&mut self, problem: &Problem, grid: &Grid) {
        let mut fastest: Option<(u64, u64)> = None;
        // A plan is best read off with all slots left aside that only a bound needs.
        let sides: Vec<u64> = grid.sides().collect();
        for aside in sides.into_iter().rev() {
            let choose = |first, end, room| grid.choose(problem, first, end, room, aside);
            let Some(found) = outline(problem, choose, self.room) else { continue };
            if fastest.is_none_or(|fastest| found.overhead < fastest.0) {
                fastest = Some((found.overhead, aside));
            }
            if self.is_close(found.overhead) || Instant::now() > self.deadline {
                break;
            }
        }
        let best = self.best.as_ref().map_or(u64::MAX, |best| best.0);
        if let Some((_, aside)) = fastest.filter(|(overhead, _)| *overhead < best) {
            let choose = |first, end, room| grid.choose(problem, first, end, room, aside);
            self.take(plan(problem, self.room, choose));
        }
    }

    /// Keeps a plan that is faster than what there is.
    pub(super) fn take(&mut self, found: Option<(u64, Vec<Action>)>) {
        if let Some(found) = found
            && self.best.as_ref().is_none_or(|best| found.0 < best.0)
        {
            self.best = Some(found);
        }
    }

    /// Whether the plan is as close to the bound as was asked.
    pub(super) fn close(&self) -> bool {
        self.best.as_ref().is_some_and(|(overhead, _)| self.is_close(*overhead))
    }

    /// Whether an overhead is as close to the bound as was asked.
    pub(super) fn is_close(&self, overhead: u64) -> bool {
        let left = overhead.saturating_sub(self.bound) as f64;
        left <= self.gap.get() * self.chain.base.saturating_add(overhead) as f64
    }

    pub(super) fn late(&self) -> bool {
        self.best.is_some() && Instant::now() > self.deadline
    }
}

/// The slots of the first grid: enough to tell a stage's tape from nothing. Slots fit sizes that repeat, and fewer will do.
fn first_slots(problem: &Problem) -> u64 {
    match problem.cells.repeat() {
        true => 512,
        false => (2 * problem.chain.stages() as u64).clamp(256, 2_048),
    }
}

/// A unit of time in which overheads up to `most` can be told: one that all times are multiples of, or among those up to
/// twice the smallest the one on which the stages' times lose least.
pub(super) fn unit(chain: &Chain, most: u64) -> u64 {
    let smallest = most / MOST_UNITS + 1;
    let mut times = BTreeMap::new();
    for stage in 0..chain.stages() {
        *times.entry(chain.forward(stage, stage + 1)).or_insert(0u64) += 1;
    }
    let excesses = chain.tapes.iter().flatten().map(|tape| tape.excess);
    let unread = (0..chain.stages()).map(|stage| chain.unread(stage));
    let common = times.keys().copied().chain(excesses).chain(unread).fold(0, greatest_common_divisor);
    if common >= smallest {
        return common;
    }
    let usual = times.iter().filter(|(_, count)| **count >= chain.stages() as u64 / USUAL_TIME);
    let fitted =
        usual.filter_map(|(time, _)| Some(time / time.checked_div(smallest).filter(|parts| *parts > 0)?));
    let lost = |unit: &u64| {
        let lost = times.iter().map(|(time, count)| (time % unit).saturating_mul(*count));
        lost.fold(0, u64::saturating_add)
    };
    [smallest].into_iter().chain(fitted).min_by_key(lost).unwrap_or(smallest)
}

/// A grid of about so many slots that can bound what happens in `room`, and best in rooms that are whole slots from `like`.
pub(super) fn grid(
    problem: &Problem,
    room: u64,
    like: u64,
    slots: impl Into<Slots>,
    unit: u64,
    limits: Limits,
) -> Option<Grid> {
    if Instant::now() > limits.until {
        return None;
    }
    let scale = Scale::new(&problem.chain, room.max(1), like, slots.into(), unit, problem.cells.repeat());
    let needed = scale.slots_for_bound(room);
    Grid::new(problem, scale, needed, limits)
}

/// Threads that may work at a time.
pub(super) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The plan that follows from what `choose` says of each cell, with its true overhead.
pub(super) fn plan(problem: &Problem, room: u64, choose: impl Choose) -> Option<(u64, Vec<Action>)> {
    let mut overhead = 0u64;
    let count = |first, end, room| {
        let (choice, left) = choose(first, end, room)?;
        let more = match choice {
            Choice::Tape(way) => problem.chain.tapes[first][way].excess,
            Choice::Sweep(middle) => problem.chain.sweep(first, middle),
        };
        overhead = overhead.saturating_add(more);
        Some((choice, left))
    };
    let actions = choice::actions(&problem.chain, room, count)?;
    Some((overhead, actions))
}

/// More overhead than any plan needs: every stage from the region's input.
pub(super) fn slowest(chain: &Chain) -> u64 {
    let forward = chain.forward(0, chain.stages());
    let excess = chain.tapes.iter().flatten().map(|tape| tape.excess);
    excess.fold(forward.saturating_mul(chain.stages() as u64), u64::saturating_add)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
pub(super) mod tests {
    use super::*;
    use crate::{Bytes, Nanos, Profile, StageProfile, TapeOption, simulate};
    use proptest::prelude::*;
    use std::time::Duration;

    prop_compose! {
        fn stage()(
            (output, own, forward, backward) in (0..3_000u64, 0..40_000u64, 0..900u64, 0..900u64),
            (forward_extra, backward_extra) in (0..2_000u64, 0..2_000u64),
            (light, pinned) in (proptest::option::of(0..100u64), 0..12u8),
        ) -> StageProfile {
            let light = light.map(|percent| TapeOption {
                name: "light".parse().unwrap(),
                tape_bytes: Bytes::new(output + own * percent / 100),
                forward_ns: Nanos::new(forward + 7),
                backward_ns: Nanos::new(backward),
                taped_extra_bytes: percent.is_multiple_of(3).then(|| Bytes::new(forward_extra * 2)),
                backward_extra_bytes: percent.is_multiple_of(2).then(|| Bytes::new(forward_extra * 3)),
            });
            StageProfile {
                name: "stage".to_owned(),
                output_bytes: Bytes::new(output),
                tape_bytes: Bytes::new(output + own),
                forward_ns: Nanos::new(forward),
                backward_ns: Nanos::new(backward),
                forward_extra_bytes: Bytes::new(forward_extra),
                backward_extra_bytes: Bytes::new(backward_extra),
                pinned: pinned == 0,
                options: light.into_iter().collect(),
                ..StageProfile::default()
            }
        }
    }

    pub(in super::super) fn chain() -> impl Strategy<Value = Profile> {
        prop_oneof![repeating(), different()]
    }

    fn different() -> impl Strategy<Value = Profile> {
        let stages = proptest::collection::vec(stage(), 1..14);
        stages.prop_map(|stages| Profile::new("different", "none", Bytes::new(500), stages).unwrap())
    }

    fn repeating() -> impl Strategy<Value = Profile> {
        // A few kinds of stages in any order: neighbours are often alike.
        let kinds = proptest::collection::vec(stage(), 1..6);
        (kinds, proptest::collection::vec(0..6usize, 1..14)).prop_map(|(kinds, order)| {
            let stages = order.iter().map(|kind| kinds[kind % kinds.len()].clone()).collect();
            Profile::new("kinds", "none", Bytes::new(500), stages).unwrap()
        })
    }

    fn limits(until: Instant) -> Limits {
        Limits { until, most_bytes: MOST_BYTES, threads: threads() }
    }

    /// Columns were once solved eight at a time also where stages repeat: a cell then read parts that came later.
    #[test]
    fn repeating_stages_on_a_grid_bound_the_optimum() {
        let stage = |kind: u64| StageProfile {
            name: "stage".to_owned(),
            output_bytes: Bytes::new(90 + 70 * kind),
            tape_bytes: Bytes::new(900 + 500 * kind),
            forward_ns: Nanos::new(60 + 45 * kind),
            backward_ns: Nanos::new(100),
            ..StageProfile::default()
        };
        for period in 1..5 {
            let stages = (0..14).map(|index| stage(index % period)).collect();
            let profile = Profile::new("repeats", "none", Bytes::new(100), stages).unwrap();
            let chain = Chain::new(&profile);
            let problem = Problem::new(chain.clone());
            let least = problem.least_room(0, chain.stages());
            let later = Instant::now() + Duration::from_secs(60);
            for part in 0..20 {
                let room = least + (chain.store_all_room() - least) * part / 20;
                let stairs = Staircases::new(&problem, room).unwrap();
                let optimum = exact::at(stairs.of(&problem, 0, chain.stages()), room).unwrap();
                let grid = grid(&problem, room, room, 4_000, 1, limits(later)).unwrap();
                assert!(grid.bound(&problem, room).unwrap() <= optimum);
                // Every size is a multiple of ten bytes, and the grid is as fine: nothing is lost.
                assert_eq!(
                    plan(&problem, room, |first, end, room| grid.choose(&problem, first, end, room, 0))
                        .unwrap()
                        .0,
                    optimum,
                    "period {period}, part {part}"
                );
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn a_grid_bounds_the_optimum_from_below_and_its_plan_from_above(
            profile in chain(), part in 0..1000u64, slots in 8..700u64, time in 1..50u64, size in 1..4usize,
        ) {
            let whole = Chain::new(&profile);
            let problem = Problem::new(whole.clone());
            let least = problem.least_room(0, whole.stages());
            prop_assume!(least != super::super::chain::NEVER);
            let room = least + whole.store_all_room().saturating_sub(least) * part / 1000;
            let stairs = Staircases::new(&problem, room).unwrap();
            let optimum = exact::at(stairs.of(&problem, 0, whole.stages()), room).unwrap();
            prop_assert!(Knapsack::new(&whole).bound(room) <= optimum);

            let later = Instant::now() + Duration::from_secs(60);
            let grid = grid(&problem, room, least, slots, time, limits(later)).unwrap();
            // A grid serves smaller rooms, too.
            for below in [room, room - (room - least) / 7, room - (room - least) / 2, least] {
                let optimum = exact::at(stairs.of(&problem, 0, whole.stages()), below).unwrap();
                let bound = grid.bound(&problem, below).unwrap();
                prop_assert!(bound <= optimum || grid.overflows(&problem, below), "{bound} over {optimum}");
            }
            let (overhead, actions) = plan(&problem, room, |first, end, room| grid.choose(&problem, first, end, room, 0)).unwrap();
            prop_assert!(overhead >= optimum);
            let found = simulate(&profile, &actions).unwrap();
            prop_assert!(found.peak_bytes.get() <= room + whole.boundary[0]);
            prop_assert_eq!(found.step_ns.get(), whole.base + overhead);
            let outline = outline(&problem, |first, end, room| grid.choose(&problem, first, end, room, 0), room).unwrap();
            prop_assert_eq!(outline.overhead, overhead);
            prop_assert_eq!(outline.need, found.peak_bytes.get() - whole.boundary[0]);

            let mut search = Search::new(&whole, room, Gap::ZERO, later);
            search.in_groups(size);
            if let Some((overhead, actions)) = search.best {
                prop_assert!(overhead >= optimum);
                let found = simulate(&profile, &actions).unwrap();
                prop_assert!(found.peak_bytes.get() <= room + whole.boundary[0]);
                prop_assert_eq!(found.step_ns.get(), whole.base + overhead);
            }
        }
    }
}
