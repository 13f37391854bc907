//! The cheapest time for every budget.

use std::time::Instant;

use super::chain::Chain;
use super::choice;
use super::exact::{self, Staircases};
use super::grid::Grid;
use super::places::Places;
use super::problem::Problem;
use super::{GROUPS, MOST_STAGES, alike, deadline, finish, knapsack, refine, too_large, too_small, whole};
use crate::{Action, Bytes, Nanos, Plan, Profile, Request, SolveError, simulate};

/// A budget at which the cheapest time falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FrontierPoint {
    /// The budget.
    pub budget_bytes: Bytes,
    /// The time of the fastest plan found for it.
    pub step_ns: Nanos,
    /// A time that no persistent plan within the budget can beat.
    pub lower_bound_ns: Nanos,
}

/// The cheapest time for every budget, and the plan at each.
///
/// ```
/// use rekindle_plan::{Bytes, Nanos, Profile, Request, StageProfile, solvers::optimal};
///
/// let block = |i: usize| StageProfile {
///     name: format!("block.{i}"),
///     output_bytes: Bytes::new(1),
///     tape_bytes: Bytes::new(8),
///     forward_ns: Nanos::new(1),
///     backward_ns: Nanos::new(2),
///     ..StageProfile::default()
/// };
/// let profile = Profile::new("four", "none", Bytes::new(1), (0..4).map(block).collect())?;
/// let frontier = optimal::frontier(&profile, &Request::default())?;
/// let points = frontier.points();
/// assert_eq!((points[0].budget_bytes, points[0].step_ns), (Bytes::new(11), Nanos::new(18)));
/// assert_eq!(points[points.len() - 1].step_ns, Nanos::new(12));
/// let plan = frontier.plan(&profile, Bytes::new(20))?;
/// assert!(plan.predicted.peak_bytes <= Bytes::new(20));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Frontier {
    points: Vec<FrontierPoint>,
    chain: Chain,
    views: Vec<View>,
    places: Option<Places>,
}

/// The chain in single stages or in groups, solved.
#[derive(Debug)]
struct View {
    problem: Problem,
    solved: Solved,
    /// Of single stages: what it proves holds for every plan.
    whole: bool,
}

/// What the plans are read from.
#[derive(Debug)]
enum Solved {
    Exactly(Staircases),
    /// Grids for smaller and smaller rooms, each with the room it is for.
    OnGrids(Vec<(u64, Grid)>),
}

/// Each grid is for rooms a fourth of the one before it: where there is less room, sizes matter more.
const RATIO: u64 = 4;

/// A room is looked at about so often before it is twice as large.
const LOOKS: u64 = 20;

/// How many times their least room groups of stages must have for single stages not to be asked.
const SPARE: u64 = 4;

/// The most different cells that are solved beside groups of stages.
const MOST_CELLS: usize = 20_000;

impl Frontier {
    pub(super) fn new(profile: &Profile, request: &Request) -> Result<Self, SolveError> {
        let chain = Chain::new(profile);
        let until = deadline(request);
        let stages = chain.stages();
        let mut views: Vec<View> = Vec::new();
        if stages > MOST_STAGES || (stages > GROUPS && alike(&chain)) {
            let problem = Problem::new(chain.grouped(stages.div_ceil(GROUPS)));
            let solved = Solved::OnGrids(grids(&problem, &chain, chain.store_all_room(), until));
            views.push(View { problem, solved, whole: false });
        }
        if stages <= MOST_STAGES {
            let problem = whole(chain.clone())?;
            // Beside groups, single stages are only asked where groups have little room.
            let most = views.first().map(|groups| groups.least_room().saturating_mul(SPARE));
            let most = most.unwrap_or(u64::MAX).min(chain.store_all_room());
            let solved = match Staircases::new(&problem, chain.store_all_room()) {
                Some(stairs) => Solved::Exactly(stairs),
                None if views.is_empty() || problem.cells.count() <= MOST_CELLS => {
                    Solved::OnGrids(grids(&problem, &chain, most, until))
                }
                None => Solved::OnGrids(Vec::new()),
            };
            views.push(View { problem, solved, whole: true });
        }
        let places = Places::of(profile, &chain, chain.store_all_room());
        let mut frontier = Self { points: Vec::new(), chain, views, places };
        frontier.least_room().ok_or_else(|| too_large(stages))?;
        frontier.points = frontier.find_points(profile);
        Ok(frontier)
    }

    /// The least room of any view.
    fn least_room(&self) -> Option<u64> {
        let least =
            self.views.iter().map(|view| view.problem.least_room(0, view.problem.chain.stages())).min();
        least.filter(|room| room.checked_add(self.chain.boundary[0]).is_some())
    }

    /// The budgets at which the time falls, smallest first: from the smallest there is a plan for to the one from which
    /// nothing runs twice.
    pub fn points(&self) -> &[FrontierPoint] {
        &self.points
    }

    /// The last point within a budget; `None` when the budget is below all of them.
    pub fn at(&self, budget_bytes: Bytes) -> Option<&FrontierPoint> {
        let within = self.points.partition_point(|point| point.budget_bytes <= budget_bytes);
        self.points.get(within.checked_sub(1)?)
    }

    /// The plan at a budget. Nothing is solved again.
    ///
    /// # Errors
    /// When the budget is below the smallest there is a plan for.
    pub fn plan(&self, profile: &Profile, budget_bytes: Bytes) -> Result<Plan, SolveError> {
        let room = budget_bytes.get().checked_sub(self.chain.boundary[0]);
        let found = room.and_then(|room| Some((room, self.actions(room)?)));
        match found {
            Some((room, actions)) => finish(profile, budget_bytes, Some(actions), self.bound(room)),
            // A very long chain was solved in groups, which do not know the smallest budgets.
            None if self.views.iter().all(|view| !view.whole) => {
                super::solve(profile, &Request::new(budget_bytes))
            }
            None => Err(too_small(&whole(self.chain.clone())?, budget_bytes)),
        }
    }

    /// The fastest plan known for a room.
    fn actions(&self, room: u64) -> Option<Vec<Action>> {
        if room >= self.chain.store_all_room() {
            return choice::store_all(&self.chain);
        }
        let moved = self.places.as_ref().and_then(|places| places.overhead(room).zip(places.actions(room)));
        // Groups come first; where they have room to spare, single stages would find little more.
        let spare = self.views.first().is_some_and(|view| !view.whole && room / SPARE >= view.least_room());
        let views = if spare { &self.views[..1] } else { &self.views[..] };
        let plans = views.iter().flat_map(|view| view.plans(room)).chain(moved);
        plans.min_by_key(|plan| plan.0).map(|plan| plan.1)
    }

    /// Overhead that no persistent plan within `room` can do without.
    fn bound(&self, room: u64) -> u64 {
        let least = knapsack::bound(&self.chain, room);
        match &self.places {
            None => {
                let views = self.views.iter().filter(|view| view.whole).map(|view| view.bound(room));
                views.fold(least, u64::max)
            }
            Some(places) if places.thinned => least,
            Some(places) => places.overhead(room).unwrap_or(least),
        }
    }

    fn find_points(&self, profile: &Profile) -> Vec<FrontierPoint> {
        let most = self.chain.store_all_room();
        if let Some(places) = self.places.as_ref().filter(|places| !places.thinned) {
            let steps = places.steps().map(|(room, overhead)| self.point(room, overhead, overhead));
            return falling(steps);
        }
        for view in self.views.iter().filter(|_| self.places.is_none()) {
            if let Solved::Exactly(stairs) = &view.solved {
                let steps = stairs.of(&view.problem, 0, view.problem.chain.stages());
                return steps
                    .iter()
                    .map(|step| self.point(step.room, step.overhead, step.overhead))
                    .collect();
            }
        }
        let moved = self.places.as_ref().and_then(Places::least_budget);
        let moved = moved.map(|budget| budget.get() - self.chain.boundary[0]);
        let least = self.least_room().into_iter().chain(moved).min().unwrap_or(most);
        let mut found = Vec::new();
        let mut room = least;
        while room < most {
            let actions = self.actions(room);
            if let Some(simulation) = actions.and_then(|actions| simulate(profile, &actions).ok()) {
                let needed = simulation.peak_bytes.get().saturating_sub(self.chain.boundary[0]);
                let overhead = simulation.step_ns.get().saturating_sub(self.chain.base);
                found.push((needed.min(room), overhead));
            }
            room = room.saturating_add((room / LOOKS).max(1));
        }
        if self.views.iter().all(|view| !view.whole) {
            found.extend(self.below_groups(profile, least));
        }
        found.push((most, 0));
        found.sort_unstable();
        let points = found.into_iter().map(|(room, overhead)| self.point(room, overhead, self.bound(room)));
        let mut points = falling(points);
        // A bound for more room holds for less.
        let mut bound = Nanos::ZERO;
        for point in points.iter_mut().rev() {
            bound = bound.max(point.lower_bound_ns).min(point.step_ns);
            point.lower_bound_ns = bound;
        }
        points
    }

    /// Rooms and overheads of a very long chain where groups of stages do not fit, or hardly.
    fn below_groups(&self, profile: &Profile, least: u64) -> Vec<(u64, u64)> {
        let input = self.chain.boundary[0];
        let solve = |room: u64| super::solve(profile, &Request::new(Bytes::new(room.saturating_add(input))));
        let smallest = match solve(0) {
            Err(SolveError::BudgetTooSmall { smallest_bytes, .. }) => {
                smallest_bytes.get().saturating_sub(input)
            }
            _ => return Vec::new(),
        };
        let rooms = std::iter::successors(Some(smallest.max(1)), |room| room.checked_mul(2));
        let plans =
            rooms.take_while(|room| *room <= least.saturating_mul(2)).filter_map(|room| solve(room).ok());
        let known = plans.map(|plan| {
            let needed = plan.predicted.peak_bytes.get().saturating_sub(input);
            (needed, plan.predicted.step_ns.get().saturating_sub(self.chain.base))
        });
        known.collect()
    }

    fn point(&self, room: u64, overhead: u64, bound: u64) -> FrontierPoint {
        let time = |overhead: u64| Nanos::new(self.chain.base.saturating_add(overhead));
        FrontierPoint {
            budget_bytes: Bytes::new(room.saturating_add(self.chain.boundary[0])),
            step_ns: time(overhead),
            lower_bound_ns: time(bound.min(overhead)),
        }
    }
}

/// The points at which the time falls.
fn falling(points: impl Iterator<Item = FrontierPoint>) -> Vec<FrontierPoint> {
    let mut falling: Vec<FrontierPoint> = Vec::new();
    for point in points {
        if falling.last().is_none_or(|last| point.step_ns < last.step_ns) {
            falling.push(point);
        }
    }
    falling
}

impl View {
    fn least_room(&self) -> u64 {
        self.problem.least_room(0, self.problem.chain.stages())
    }

    /// The plans it leads to in a room, with their overheads.
    fn plans(&self, room: u64) -> Vec<(u64, Vec<Action>)> {
        let problem = &self.problem;
        if room < self.least_room() {
            return Vec::new();
        }
        match &self.solved {
            Solved::Exactly(stairs) => {
                let choose = |first, end, room| stairs.choose(problem, first, end, room);
                let actions = choice::actions(&problem.chain, room, choose);
                actions.map(|actions| (self.bound(room), actions)).into_iter().collect()
            }
            Solved::OnGrids(grids) => {
                near(grids, room).filter_map(|grid| refine::plan(problem, grid, room)).collect()
            }
        }
    }

    /// Overhead that no plan of this view can do without.
    fn bound(&self, room: u64) -> u64 {
        match &self.solved {
            Solved::Exactly(stairs) => {
                exact::at(stairs.of(&self.problem, 0, self.problem.chain.stages()), room).unwrap_or(0)
            }
            Solved::OnGrids(grids) => {
                let bounds = near(grids, room).filter_map(|grid| grid.bound(&self.problem, room));
                bounds.max().unwrap_or(0)
            }
        }
    }
}

/// The two finest grids that know a room.
fn near(grids: &[(u64, Grid)], room: u64) -> impl Iterator<Item = &Grid> {
    grids.iter().rev().filter(move |(most, _)| *most >= room).take(2).map(|(_, grid)| grid)
}

/// Grids for all rooms up to `most`, each finer for its own; fewer when time is up.
fn grids(problem: &Problem, chain: &Chain, most: u64, until: Instant) -> Vec<(u64, Grid)> {
    let least = problem.least_room(0, problem.chain.stages());
    let mut room = most;
    let mut grids: Vec<(u64, Grid)> = Vec::new();
    loop {
        let search = refine::Search::new(chain, room, crate::Gap::ZERO, until);
        // The smallest room this grid is for has the largest overhead it must tell.
        let smallest = (room / RATIO).max(least);
        let grid = search.frontier_grid(problem, smallest, grids.is_empty());
        let Some(grid) = grid else { return grids };
        grids.push((room, grid));
        if room / RATIO <= least {
            return grids;
        }
        room /= RATIO;
    }
}
