//! The cheapest time for every budget.

use std::time::Instant;

use super::below::{self, Below};
use super::chain::Chain;
use super::choice;
use super::elsewhere::Elsewhere;
use super::exact::{self, Staircases};
use super::halving;
use super::knapsack::Knapsack;
use super::looks::{Found, Looks, Source};
use super::problem::Problem;
use super::series::{Series, Task};
use super::{GROUPS, MOST_STAGES, alike, deadline, finish, too_large, too_small, whole};
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
    /// Where the plan of each point is read from.
    sources: Vec<Source>,
    chain: Chain,
    knapsack: Knapsack,
    views: Vec<View>,
    elsewhere: Option<Elsewhere>,
    complete: bool,
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
    OnGrids(Series),
}

/// Chains that repeat are taken in groups first when a chunk of single stages takes so many sums.
const MANY_SUMS: u64 = 400_000;

impl Frontier {
    pub(super) fn new(profile: &Profile, request: &Request) -> Result<Self, SolveError> {
        let until = deadline(request);
        let chain = Chain::new(profile);
        let mut frontier = Self {
            points: Vec::new(),
            sources: Vec::new(),
            knapsack: match profile.has_places() {
                true => Knapsack::anywhere(&chain),
                false => Knapsack::new(&chain),
            },
            elsewhere: Elsewhere::of(profile, &chain, chain.store_all_room(), halfway(until), |_| false),
            views: Vec::new(),
            chain,
            complete: true,
        };
        frontier.complete &= frontier.elsewhere.as_ref().is_none_or(|elsewhere| !elsewhere.late);
        let looks = frontier.solve(request, until)?;
        let found = match frontier.exactly() {
            Some(found) => found,
            None => frontier.at_looks(profile, &looks, until),
        };
        frontier.set_points(found);
        Ok(frontier)
    }

    /// Solves the chain in groups, in single stages or in both, and looks at rooms meanwhile.
    fn solve(&mut self, request: &Request, until: Instant) -> Result<Looks, SolveError> {
        let stages = self.chain.stages();
        let single = if stages <= MOST_STAGES { Some(whole(self.chain.clone())?) } else { None };
        let stairs =
            single.as_ref().and_then(|problem| Staircases::new(problem, self.chain.store_all_room()));
        let many = single.as_ref().is_none_or(|problem| problem.sums() > MANY_SUMS && stages > GROUPS);
        let in_groups = stairs.is_none() && many && (single.is_none() || alike(&self.chain));
        // Smaller groups for smaller rooms.
        let sizes =
            if in_groups { vec![stages.div_ceil(GROUPS), stages.div_ceil(2 * GROUPS)] } else { Vec::new() };
        let groups: Vec<_> = sizes.iter().map(|size| Problem::new(self.chain.grouped(*size))).collect();

        let least = single.iter().chain(&groups).map(Problem::whole_room).min();
        let least = least.filter(|room| room.checked_add(self.chain.boundary[0]).is_some());
        let least = least.ok_or_else(|| too_large(stages))?;
        let moved = self.elsewhere.as_ref().and_then(|elsewhere| elsewhere.least_budget(&self.chain));
        let moved = moved.map_or(least, |budget| budget.get().saturating_sub(self.chain.boundary[0]));
        let mut looks = Looks::new(&self.chain, &self.knapsack, least.min(moved), request.gap);

        // Where single stages are too many, smaller rooms are looked at after the groups, and need time, too.
        let until = if single.is_none() { halfway(until) } else { until };
        for problem in groups {
            let series = self.series(&problem, false, &mut looks, until);
            self.views.push(View { problem, solved: Solved::OnGrids(series), whole: false });
        }
        if let Some(problem) = single {
            let solved = match stairs {
                Some(stairs) => Solved::Exactly(stairs),
                None => Solved::OnGrids(self.series(&problem, true, &mut looks, until)),
            };
            self.views.push(View { problem, solved, whole: true });
        }
        Ok(looks)
    }

    fn series(&mut self, problem: &Problem, whole: bool, looks: &mut Looks, until: Instant) -> Series {
        let Self { chain, knapsack, .. } = &*self;
        // Nor does it hold where boundaries are moved.
        let proves = whole && self.elsewhere.is_none();
        let task = Task { problem, chain, knapsack, view: self.views.len(), proves, until };
        let series = Series::new(task, looks);
        self.complete &= !series.late;
        series
    }

    /// Whether everything was looked at that would have been without a time limit. Otherwise there may be faster plans,
    /// and plans in less room than that of the first point. What the points say holds all the same.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The budgets at which the time falls, smallest first: from the smallest there is a plan for to the one from which
    /// nothing runs twice.
    pub fn points(&self) -> &[FrontierPoint] {
        &self.points
    }

    /// The last point within a budget; `None` when the budget is below all of them.
    pub fn at(&self, budget_bytes: Bytes) -> Option<&FrontierPoint> {
        self.points.get(self.within(budget_bytes).checked_sub(1)?)
    }

    /// How many points are within a budget.
    fn within(&self, budget_bytes: Bytes) -> usize {
        self.points.partition_point(|point| point.budget_bytes <= budget_bytes)
    }

    /// The plan at a budget, at least as fast as the last point within it. Nothing is solved again.
    ///
    /// # Errors
    /// When the budget is below the smallest there is a plan for.
    pub fn plan(&self, profile: &Profile, budget_bytes: Bytes) -> Result<Plan, SolveError> {
        let room = budget_bytes.get().checked_sub(self.chain.boundary[0]);
        let found = room.and_then(|room| Some((room, self.best(budget_bytes, room)?)));
        match found {
            Some((room, found)) => {
                let actions = self.actions(profile, found.source);
                finish(profile, budget_bytes, actions, self.bound(budget_bytes, room))
            }
            // A very long chain was solved in groups, which do not know the smallest budgets.
            None if self.views.iter().all(|view| !view.whole) => {
                super::solve(profile, &Request::new(budget_bytes))
            }
            None => match (&self.elsewhere, self.points.first()) {
                // Boundaries that are moved leave room that the chain by itself does not have.
                (Some(_), Some(first)) => {
                    let smallest_bytes = first.budget_bytes;
                    Err(SolveError::BudgetTooSmall { solver: super::NAME, budget_bytes, smallest_bytes })
                }
                _ => Err(too_small(&whole(self.chain.clone())?, budget_bytes)),
            },
        }
    }

    /// The fastest plan known for a room: that of the last point, unless more room than that gives a faster one.
    fn best(&self, budget_bytes: Bytes, room: u64) -> Option<Found> {
        let last = self.within(budget_bytes).checked_sub(1);
        let point = last.map(|last| Found {
            need: self.points[last].budget_bytes.get().saturating_sub(self.chain.boundary[0]),
            overhead: self.points[last].step_ns.get().saturating_sub(self.chain.base),
            source: self.sources[last],
        });
        // Groups come first; where single stages were solved, they find more.
        let mut views = self.views.iter().enumerate().rev();
        let view = views.find_map(|(index, view)| view.found(index, room));
        point.into_iter().chain(view).chain(self.moved(room)).reduce(|best, other| other.better(Some(best)))
    }

    /// The plan with boundaries moved in a room.
    fn moved(&self, room: u64) -> Option<Found> {
        self.elsewhere.as_ref()?.best(room)
    }

    fn actions(&self, profile: &Profile, source: Source) -> Option<Vec<Action>> {
        match source {
            Source::StoreAll => choice::store_all(&self.chain),
            Source::View { view, grid, room, aside } => self.views.get(view)?.actions(grid, room, aside),
            Source::Written { view, index } => self.views.get(view)?.written(index),
            Source::Halving { view, room } => self.views.get(view)?.halving(room),
            Source::Places { .. } | Source::LeastPlaces { .. } | Source::Levels { .. } => {
                self.elsewhere.as_ref()?.actions(profile, source)
            }
            Source::Slots { solver, slots } => solver.actions(self.chain.stages(), slots).ok(),
            Source::Eager { room } => below::eager_actions(profile, &self.chain, room),
        }
    }

    /// Overhead that no persistent plan within `room` can do without.
    fn bound(&self, budget_bytes: Bytes, room: u64) -> u64 {
        let least = self.knapsack.bound(room);
        match &self.elsewhere {
            None => {
                let views = self.views.iter().filter(|view| view.whole).map(|view| view.bound(room));
                // What holds for more room holds for less.
                let above = self.points.partition_point(|point| point.budget_bytes < budget_bytes);
                let above = self.points.get(above).map(|point| point.lower_bound_ns.get());
                let above = above.map_or(0, |bound| bound.saturating_sub(self.chain.base));
                views.fold(least.max(above), u64::max)
            }
            Some(elsewhere) => elsewhere.proven(room).unwrap_or(least),
        }
    }

    /// The points of a chain that was solved exactly, each with its bound.
    fn exactly(&self) -> Option<Vec<(Found, u64)>> {
        if let Some(elsewhere) = &self.elsewhere {
            return Some(elsewhere.steps()?.map(|found| (found, found.overhead)).collect());
        }
        let steps: Vec<_> = self.steps().map(|found| (found, found.overhead)).collect();
        (!steps.is_empty()).then_some(steps)
    }

    /// The steps of what was solved exactly, without places.
    fn steps(&self) -> impl Iterator<Item = Found> {
        self.views.iter().enumerate().flat_map(|(index, view)| {
            let steps = match &view.solved {
                Solved::Exactly(stairs) => stairs.of(&view.problem, 0, view.problem.chain.stages()),
                Solved::OnGrids(_) => &[],
            };
            steps.iter().map(move |step| Found {
                need: step.room,
                overhead: step.overhead,
                source: Source::View { view: index, grid: 0, room: step.room, aside: 0 },
            })
        })
    }

    /// What was found at the rooms that were looked at, each with its bound.
    fn at_looks(&mut self, profile: &Profile, looks: &Looks, until: Instant) -> Vec<(Found, u64)> {
        let mut all: Vec<_> =
            looks.list.iter().filter_map(|look| Some((look.found?, look.bound()))).collect();
        let long = self.views.iter().all(|view| !view.whole);
        let moved_until = halfway(until);
        for look in &looks.list {
            // Of a very long chain each plan takes long to simulate.
            let late = long && self.elsewhere.is_some() && Instant::now() > moved_until;
            self.complete &= !late;
            // Places are asked here for the first time.
            let elsewhere = self.elsewhere.as_ref().filter(|_| !late);
            let moved = elsewhere.and_then(|elsewhere| elsewhere.of_class(look.room));
            let moved = moved.and_then(|found| self.simulated(profile, found));
            all.extend(moved.map(|found| (found, self.knapsack.bound(found.need))));
        }
        let others = self.elsewhere.iter().flat_map(|elsewhere| elsewhere.others());
        all.extend(others.map(|found| (*found, self.knapsack.bound(found.need))));
        // And so are staircases beside places: each step of them, or a place to move to would make some budgets slower.
        let steps = self.steps().map(|found| (found, self.knapsack.bound(found.need)));
        all.extend(steps.collect::<Vec<_>>());
        if long {
            all.extend(self.below_groups(profile, until));
        }
        let everything = self.chain.store_all_room();
        all.push((Found { need: everything, overhead: 0, source: Source::StoreAll }, 0));
        all
    }

    /// A plan with the room and the time that the simulator counts: labels that were left out say more than it takes.
    fn simulated(&self, profile: &Profile, found: Found) -> Option<Found> {
        let simulation = simulate(profile, &self.actions(profile, found.source)?).ok()?;
        let need = simulation.peak_bytes.get().saturating_sub(self.chain.boundary[0]).min(found.need);
        let overhead = simulation.step_ns.get().saturating_sub(self.chain.base);
        Some(Found { need, overhead, ..found })
    }

    /// What a very long chain takes where groups of stages do not fit, or hardly.
    fn below_groups(&mut self, profile: &Profile, until: Instant) -> Vec<(Found, u64)> {
        let least = self.views.iter().map(|view| view.problem.whole_room()).min().unwrap_or(0);
        let below = Below::new(profile, &self.chain, least.saturating_mul(2), until);
        self.complete &= !below.late;
        below.found.into_iter().map(|found| (found, self.knapsack.bound(found.need))).collect()
    }

    /// Keeps the points at which the time falls.
    fn set_points(&mut self, mut all: Vec<(Found, u64)>) {
        all.sort_by_key(|(found, _)| (found.need, found.overhead));
        // A bound for more room holds for less, whether the time falls there or not.
        let mut highest = 0;
        for (_, bound) in all.iter_mut().rev() {
            highest = highest.max(*bound);
            *bound = highest;
        }
        let mut fastest = u64::MAX;
        for (found, bound) in all {
            if found.overhead < fastest {
                fastest = found.overhead;
                let time = |overhead: u64| Nanos::new(self.chain.base.saturating_add(overhead));
                self.points.push(FrontierPoint {
                    budget_bytes: Bytes::new(found.need.saturating_add(self.chain.boundary[0])),
                    step_ns: time(found.overhead),
                    lower_bound_ns: time(bound.min(found.overhead)),
                });
                self.sources.push(found.source);
            }
        }
    }
}

/// Half of the time that is left.
pub(super) fn halfway(until: Instant) -> Instant {
    let now = Instant::now();
    now + until.saturating_duration_since(now) / 2
}

impl View {
    /// The plan for a room.
    fn found(&self, index: usize, room: u64) -> Option<Found> {
        let problem = &self.problem;
        if room < problem.whole_room() {
            return None;
        }
        match &self.solved {
            Solved::Exactly(stairs) => {
                let step = exact::step_at(stairs.of(problem, 0, problem.chain.stages()), room)?;
                let source = Source::View { view: index, grid: 0, room: step.room, aside: 0 };
                Some(Found { need: step.room, overhead: step.overhead, source })
            }
            Solved::OnGrids(series) => series.plan(problem, room),
        }
    }

    /// The actions of a plan that was found.
    fn actions(&self, grid: usize, room: u64, aside: u64) -> Option<Vec<Action>> {
        match &self.solved {
            Solved::Exactly(stairs) => {
                let choose = |first, end, room| stairs.choose(&self.problem, first, end, room);
                choice::actions(&self.problem.chain, room, choose)
            }
            Solved::OnGrids(series) => series.actions(&self.problem, grid, room, aside),
        }
    }

    /// The actions of a plan that was written down.
    fn written(&self, index: usize) -> Option<Vec<Action>> {
        let Solved::OnGrids(series) = &self.solved else { return None };
        series.written(&self.problem, index)
    }

    /// The actions of a plan that follows from the least rooms alone.
    fn halving(&self, room: u64) -> Option<Vec<Action>> {
        let choose = |first, end, room| halving::choose(&self.problem, first, end, room);
        choice::actions(&self.problem.chain, room, choose)
    }

    /// Overhead that no plan of this view can do without.
    fn bound(&self, room: u64) -> u64 {
        match &self.solved {
            Solved::Exactly(stairs) => {
                exact::at(stairs.of(&self.problem, 0, self.problem.chain.stages()), room).unwrap_or(0)
            }
            Solved::OnGrids(series) => series.bound(&self.problem, room),
        }
    }
}
