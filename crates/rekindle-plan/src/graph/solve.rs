//! The planner of graphs: seeds, a bound, exact search where it is small, anytime search where it is not.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::graph::bound::{Bound, bound};
use crate::graph::evict::{self, Taste};
use crate::graph::exact::{self, Exact, Limit};
use crate::graph::orders::orders;
use crate::graph::search::Search;
use crate::graph::segments::{Chain, Cuts};
use crate::graph::word::{Scratch, Word};
use crate::graph::{Graph, GraphPlan, GraphPlanError, Problem, gap};
use crate::{Bytes, Gap, Nanos, Request, Status};

/// The solver's name.
const SOLVER: &str = "graph";

/// How far the planner has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// How long it has been looking.
    pub elapsed: Duration,
    /// The time of the best plan so far; `None` before the first.
    pub best_ns: Option<Nanos>,
    /// A time no plan within the budget can beat.
    pub lower_bound_ns: Nanos,
}

impl Progress {
    /// How much the best plan could still get faster, as a fraction of its time.
    pub fn gap(&self) -> Option<f64> {
        self.best_ns.map(|best| gap(best, self.lower_bound_ns))
    }
}

/// Why the planner has no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphSolveError {
    /// No plan fits, or none was found.
    #[error("`graph` has no plan within {} ({} bytes); {} {} ({} bytes)", budget_bytes, budget_bytes.get(),
        if *.proven { "the smallest budget any plan can meet is" } else { "the smallest budget it found a plan for is" },
        smallest_bytes, smallest_bytes.get())]
    BudgetTooSmall {
        /// The budget it was given, less the margin.
        budget_bytes: Bytes,
        /// The smallest it has a plan for, before the margin is added.
        smallest_bytes: Bytes,
        /// Whether no plan at all needs less; otherwise another plan might.
        proven: bool,
        /// What every plan needs at least.
        least_bytes: Bytes,
    },
    /// The simulator refuses the plan.
    #[error(transparent)]
    Refused(#[from] GraphPlanError),
}

/// The fastest plan of `graph` that fits the budget of `request`, as far as it can be found in the time: with a proven
/// lower bound, [`Status::Optimal`] when the plan meets it and [`Status::Feasible`] with the gap otherwise.
///
/// The optimum is over all plans: any order, any node computed as often as it may be. Without a budget the plan
/// recomputes nothing. The same graph and request give the same plan, unless the time limit cuts the search short.
///
/// ```
/// use rekindle_plan::graph::{Graph, solve};
/// use rekindle_plan::{Bytes, Nanos, Request, Status};
///
/// // Two values, each read forward and again at the end. All together take 4 bytes.
/// let graph = Graph::from_json(r#"{"format": "rekindle.graph/1", "model": "m", "device": "none",
///   "nodes": [{"name": "a", "kind": "forward",  "time_ns": 1, "bytes": 1},
///             {"name": "b", "kind": "forward",  "time_ns": 1, "bytes": 1},
///             {"name": "c", "kind": "forward",  "time_ns": 1, "bytes": 1},
///             {"name": "d", "kind": "backward", "time_ns": 1, "bytes": 1},
///             {"name": "e", "kind": "backward", "time_ns": 1, "bytes": 1}],
///   "edges": [["a", "b"], ["b", "c"], ["c", "d"], ["b", "d"], ["d", "e"], ["a", "e"]]}"#)?;
/// let plan = solve(&graph, &Request::new(Bytes::new(3)))?;
/// assert_eq!(plan.predicted.step_ns, Nanos::new(6)); // `a` twice
/// assert_eq!(plan.status, Status::Optimal);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When no plan is found within the budget, with the smallest budget there is one for.
pub fn solve(graph: &Graph, request: &Request) -> Result<GraphPlan, GraphSolveError> {
    solve_watched(graph, request, &mut |_| ControlFlow::Continue(()))
}

/// [`solve`], telling `watch` of every better plan and every better bound, and at times in between. It stops looking
/// when `watch` says so, with the best plan so far.
///
/// ```
/// use std::ops::ControlFlow;
/// use rekindle_plan::graph::{Graph, solve_watched};
/// use rekindle_plan::{Bytes, Request};
///
/// let graph = Graph::from_json(r#"{"format": "rekindle.graph/1", "model": "m", "device": "none",
///   "nodes": [{"name": "a", "kind": "forward", "time_ns": 1, "bytes": 1}]}"#)?;
/// let mut last = None;
/// solve_watched(&graph, &Request::new(Bytes::new(1)), &mut |progress| {
///     last = progress.gap();
///     ControlFlow::Continue(())
/// })?;
/// assert_eq!(last, Some(0.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When no plan is found within the budget, with the smallest budget there is one for.
pub fn solve_watched(
    graph: &Graph,
    request: &Request,
    watch: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<GraphPlan, GraphSolveError> {
    let problem = Problem::new(graph);
    let budget = request.usable_bytes().get();
    let mut planner = Planner::new(&problem, budget, request, watch);
    planner.run();
    if planner.best.is_none() {
        planner.smallest()?;
    }
    let Some((word, time)) = planner.best.take() else { return Err(planner.too_small(u64::MAX, 0)) };
    let lower = planner.lower.min(time);
    let status = if lower == time {
        Status::Optimal
    } else {
        Status::Feasible(Gap::new(gap(Nanos::new(time), Nanos::new(lower))).unwrap_or(Gap::ZERO))
    };
    let actions = word.actions(graph);
    let plan = GraphPlan::judged(
        graph,
        SOLVER.to_owned(),
        status,
        request.budget_bytes,
        Nanos::new(lower),
        actions,
    )?;
    Ok(plan)
}

/// Positions the anytime search may look at: some seconds, and the same plan on every machine.
const MOST_WORK: u64 = 300_000_000;

/// How often the anytime search starts from its best plan anew.
const ROUNDS: f64 = 6.0;

/// Steps the exact search may try: before the anytime search, and after it, when little is missing.
const FIRST_STEPS: usize = 300_000;
const LAST_STEPS: usize = 1_500_000;

struct Planner<'a, 'w> {
    problem: &'a Problem,
    budget: u64,
    aim: f64,
    start: Instant,
    until: Instant,
    watch: &'w mut dyn FnMut(&Progress) -> ControlFlow<()>,
    stopped: bool,
    lower: u64,
    least_bytes: u64,
    best: Option<(Word, u64)>,
    search: Search<'a>,
    orders: Vec<Vec<u32>>,
}

impl<'a, 'w> Planner<'a, 'w> {
    fn new(
        problem: &'a Problem,
        budget: u64,
        request: &Request,
        watch: &'w mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Self {
        let start = Instant::now();
        let limit = request.time_limit.min(Duration::from_secs(366 * 86_400));
        Self {
            problem,
            budget,
            aim: request.gap.get(),
            start,
            until: start + limit,
            watch,
            stopped: false,
            lower: problem.least_time(),
            least_bytes: problem.least_bytes(),
            best: None,
            search: Search::new(problem, budget, start + limit),
            orders: orders(problem),
        }
    }

    fn tell(&mut self) {
        let progress = Progress {
            elapsed: self.start.elapsed(),
            best_ns: self.best.as_ref().map(|(_, time)| Nanos::new(*time)),
            lower_bound_ns: Nanos::new(self.lower),
        };
        self.stopped |= (self.watch)(&progress).is_break();
    }

    /// Takes the word if it fits and is the best so far.
    fn offer(&mut self, mut word: Word) -> Option<u64> {
        self.search.clean(&mut word);
        let time = self.search.fits(&word)?;
        if self.best.as_ref().is_none_or(|(_, best)| time < *best) {
            self.best = Some((word, time));
            self.tell();
        }
        Some(time)
    }

    fn raise(&mut self, lower: u64) {
        if lower > self.lower {
            self.lower = lower;
            self.tell();
        }
    }

    fn proven(&self) -> bool {
        self.best.as_ref().is_some_and(|(_, time)| *time <= self.lower)
    }

    /// Whether there is nothing more to do: out of time, stopped, or as good as was asked for.
    fn over(&self) -> bool {
        let good = self
            .best
            .as_ref()
            .is_some_and(|(_, time)| gap(Nanos::new(*time), Nanos::new(self.lower)) <= self.aim);
        good || self.stopped || Instant::now() >= self.until
    }

    fn run(&mut self) {
        if self.budget < self.least_bytes {
            return;
        }
        for index in 0..self.orders.len() {
            if self.offer(Word(self.orders[index].clone())).is_some() {
                return;
            }
        }
        let Bound { time, bytes } = bound(self.problem, self.budget, self.until);
        self.least_bytes = self.least_bytes.max(bytes);
        if self.budget < self.least_bytes {
            return;
        }
        self.raise(time);
        self.seed();
        if self.proven() || self.stopped {
            return;
        }
        self.exact(FIRST_STEPS);
        if self.over() {
            return;
        }
        self.improve();
        if !self.over() {
            self.exact(LAST_STEPS);
        }
    }

    /// First plans, from the best method to the most robust.
    fn seed(&mut self) {
        for cuts in [Cuts::Articulation, Cuts::Most(96)] {
            let Some(chain) = Chain::new(self.problem, cuts) else { continue };
            if chain.len() < 2 {
                continue;
            }
            // When the chain's plan turns out not to fit the graph, one for less may.
            for percent in [100, 85] {
                let budget = (u128::from(self.budget) * percent / 100) as u64;
                let Some(mut word) = chain.plan(budget, self.until) else { break };
                self.search.clean(&mut word);
                if self.search.fits(&word).is_some() {
                    self.search.polish(&mut word);
                    self.offer(word);
                    break;
                }
                if self.search.repair(&mut word, 0.0, u64::MAX).is_some() {
                    self.search.polish(&mut word);
                    self.offer(word);
                }
                if self.over() {
                    return;
                }
            }
        }
        for index in 0..self.orders.len() {
            if self.problem.order.len() <= 20_000 {
                let mut word = Word(self.orders[index].clone());
                if self.search.repair(&mut word, 0.0, u64::MAX).is_some() {
                    self.search.polish(&mut word);
                    self.offer(word);
                }
            }
            for taste in TASTES {
                // Large graphs need no second opinion; small ones have the time for it.
                if self.over() || (self.best.is_some() && self.problem.order.len() > 200) {
                    return;
                }
                let word = evict::run(self.problem, &self.orders[index], self.budget, taste, self.until);
                if let Some(mut word) = word {
                    self.search.clean(&mut word);
                    self.search.polish(&mut word);
                    self.offer(word);
                }
            }
        }
    }

    fn exact(&mut self, steps: usize) {
        if self.problem.len() > exact::MOST_NODES {
            return;
        }
        let known_time = self.best.as_ref().map_or(u64::MAX, |(_, time)| *time);
        let limit = Limit { steps, known_time, until: self.until };
        match exact::search(self.problem, self.budget, limit) {
            Exact::Best(word) => {
                if let Some(time) = self.offer(word) {
                    self.raise(time);
                }
            }
            Exact::Open(time) => self.raise(time.min(known_time)),
            Exact::Never(bytes) => self.least_bytes = self.least_bytes.max(bytes),
        }
    }

    fn improve(&mut self) {
        let Some((word, time)) = self.best.clone() else { return };
        let (mut here, mut time_here) = (word, time);
        self.search.work = 0;
        let mut told = Instant::now();
        let mut round = 1.0;
        let mut best_time = time;
        while self.search.work < MOST_WORK && !self.over() {
            if told.elapsed() > Duration::from_millis(100) {
                told = Instant::now();
                self.tell();
            }
            // Worse plans are accepted by a margin that shrinks to nothing, and again from the best plan so far.
            let share = self.search.work as f64 / MOST_WORK as f64 * ROUNDS;
            if share >= round {
                round += 1.0;
                if let Some((word, time)) = &self.best {
                    (here, time_here) = (word.clone(), *time);
                }
            }
            let left = (round - share).clamp(0.0, 1.0);
            let margin = (best_time.saturating_sub(self.lower) as f64 * 0.5 * left * left) as u64;
            let most = time_here.max(best_time).saturating_add(margin).saturating_add(1);
            if let Some(next) = self.search.step(&here, most) {
                let time = next.time(self.problem);
                if time < most && self.search.fits(&next).is_some() {
                    if time < best_time {
                        best_time = time;
                        self.offer(next.clone());
                    }
                    if time <= best_time.saturating_add(margin) || time <= time_here {
                        (here, time_here) = (next, time);
                    }
                }
            }
        }
    }

    /// Looks for the smallest budget that has a plan. Should that be within the budget after all, the plan is taken;
    /// otherwise it is the error.
    fn smallest(&mut self) -> Result<(), GraphSolveError> {
        let problem = self.problem;
        let mut scratch = Scratch::default();
        let mut peak = |word: &mut Word| {
            word.clean(problem, &mut scratch);
            word.cost(problem, u64::MAX, &mut scratch, |_, _| {}).map_or(u64::MAX, |cost| cost.peak)
        };
        let mut found = u64::MAX;
        let mut plan = Word::default();
        for order in &self.orders {
            let mut word = Word(order.clone());
            let bytes = peak(&mut word);
            if bytes < found {
                (found, plan) = (bytes, word);
            }
        }
        // Too small a budget is too small, so it may take a moment longer to say what would do.
        let until = self.until.max(Instant::now() + Duration::from_secs(1));
        let mut low = self.least_bytes;
        while low < found && Instant::now() < until {
            let middle = low + (found - low) / 2;
            let ways = self.orders.iter().flat_map(|order| TASTES.map(|taste| (order, taste)));
            let mut ways = ways.filter_map(|(order, taste)| evict::run(problem, order, middle, taste, until));
            match ways.next() {
                Some(mut word) => {
                    found = found.min(peak(&mut word)).min(middle);
                    plan = word;
                }
                None => low = middle + 1,
            }
        }
        let mut least = self.least_bytes;
        while least < found && problem.len() <= exact::MOST_NODES {
            let middle = least + (found - least) / 2;
            let limit = Limit { steps: LAST_STEPS, known_time: u64::MAX, until };
            match exact::search(problem, middle, limit) {
                Exact::Best(mut word) => {
                    found = found.min(peak(&mut word)).min(middle);
                    plan = word;
                }
                Exact::Never(next) => least = least.max(next.min(found)),
                Exact::Open(_) => break,
            }
        }
        if self.offer(plan).is_some() { Ok(()) } else { Err(self.too_small(found, least)) }
    }

    fn too_small(&self, found: u64, least: u64) -> GraphSolveError {
        GraphSolveError::BudgetTooSmall {
            budget_bytes: Bytes::new(self.budget),
            smallest_bytes: Bytes::new(found),
            proven: least >= found,
            least_bytes: Bytes::new(least),
        }
    }
}

/// Ways to evict: by cost alone, by bytes, by bytes and distance, and more of the latter.
const TASTES: [Taste; 4] = [
    Taste { distance: 1.0, bytes: 1.0 },
    Taste { distance: 2.0, bytes: 1.0 },
    Taste { distance: 0.0, bytes: 1.0 },
    Taste { distance: 1.0, bytes: 0.5 },
];
