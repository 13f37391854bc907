//! The fastest plan for a budget, with a proof: the chain's optimum over persistent plans.
//!
//! A plan is *persistent* when a boundary it keeps stays until the stages before the next kept boundary have gone back.
//! `C(s, t, m)` is the least overhead with which stages `s..t` run forth and back in `m` bytes beside their input, where
//! overhead is time beyond running each stage once at its fastest:
//!
//! ```text
//! C(s, t, m) = min of  over r:  f(s..r) + C(r, t, m - a(r)) + C(s, r, m)   sweep to x(r), do the rest, come back
//!                      over o:  excess(o) + C(s+1, t, m - tape(o))         tape stage s in the way o
//! ```
//!
//! each where the worst moment of the sweep, of the taped forward and of the backward fits into `m`. Stages before the
//! turn run without a gradient waiting; stages that are pinned are taped the first time.
//!
//! Short chains are solved exactly, to the byte (`exact`). Long ones are solved on a grid of slots, which gives a lower bound that is proven
//! and a plan that fits to the byte (`grid`, `scale`); the grid is refined until both are as close as was
//! asked. Equal runs of stages are solved once (`cells`). See `docs/solvers/optimal.md`.

mod below;
mod cells;
mod chain;
mod choice;
mod elsewhere;
mod exact;
mod fill;
mod frontier;
mod grid;
mod halving;
mod knapsack;
mod layout;
mod looks;
mod outline;
mod places;
mod problem;
mod refine;
mod rows;
mod scale;
mod series;
mod smallest;
mod spans;
mod sums;
mod sweeps;

use std::time::Instant;

pub use frontier::{Frontier, FrontierPoint};

use chain::Chain;
use elsewhere::Elsewhere;
use frontier::halfway;
use knapsack::Knapsack;
use problem::Problem;
use refine::Search;

use super::slots::deadline;
use crate::{Action, Bytes, Nanos, Plan, Profile, Request, SolveError, Status};

const NAME: &str = "optimal";

/// The longest chain whose every cell is looked at. Beyond, it is planned in groups of stages.
const MOST_STAGES: usize = 2_000;

/// The fastest plan within the request's budget.
///
/// ```
/// use rekindle_plan::{Bytes, Nanos, Profile, Request, StageProfile, solvers::optimal};
///
/// let block = |i: usize| StageProfile {
///     name: format!("block.{i}"),
///     output_bytes: Bytes::mebibytes(1),
///     tape_bytes: Bytes::mebibytes(32),
///     forward_ns: Nanos::new(1_000_000),
///     backward_ns: Nanos::new(2_000_000),
///     ..StageProfile::default()
/// };
/// let profile = Profile::new("gpt", "flex", Bytes::mebibytes(1), (0..24).map(block).collect())?;
/// let plan = optimal::solve(&profile, &Request::new(Bytes::mebibytes(400)))?;
/// assert!(plan.predicted.peak_bytes <= Bytes::mebibytes(400));
/// // Twelve blocks are taped the first time; twelve run twice.
/// assert_eq!(plan.predicted.forwards, 24 + 12);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When no budget is given, or no plan fits: then with the smallest budget that has one.
pub fn solve(profile: &Profile, request: &Request) -> Result<Plan, SolveError> {
    let Some(budget) = request.budget_bytes else {
        return Err(SolveError::NothingToMeet { solver: NAME, needed: "a budget" });
    };
    let chain = Chain::new(profile);
    let usable = request.usable_bytes();
    let room = usable.get().checked_sub(chain.boundary[0]);
    let until = deadline(request);
    // Where boundaries can be moved, looking at that needs time, too; of very long chains most of it.
    let moves = profile.has_places();
    let until_moved = match (moves, chain.stages() > MOST_STAGES) {
        (false, _) => until,
        (true, false) => halfway(until),
        (true, true) => halfway(halfway(until)),
    };
    let mut search = Search::new(&chain, room.unwrap_or(0), request.gap, until_moved);
    let on_device = match room {
        Some(_) => look(&mut search, &chain, profile, request),
        None if chain.stages() > MOST_STAGES => simpler(&mut search, profile, request),
        None => whole(chain.clone()).and_then(|problem| Err(too_small(&problem, usable))),
    };
    if !moves {
        on_device?;
        return finish(profile, budget, search.best.map(|best| best.1), search.bound);
    }
    // What is proven of plans on the device does not hold for those that move boundaries; this holds for all.
    search.bound = Knapsack::anywhere(&chain).bound(room.unwrap_or(0));
    let all_fits = search.best.as_ref().is_some_and(|best| best.0 == 0);
    let close = search.close() && chain.stages() > places::EXACT_STAGES;
    let elsewhere = match all_fits || close {
        true => None,
        false => {
            let room = room_or_least(&on_device, room);
            Elsewhere::of(profile, &chain, room, until, |overhead| search.is_close(overhead))
        }
    };
    let Some(elsewhere) = elsewhere else {
        on_device?;
        return finish(profile, budget, search.best.map(|best| best.1), search.bound);
    };
    let moved = room.and_then(|room| elsewhere.best(room));
    let moved = moved.and_then(|found| Some((found.overhead, elsewhere.actions(profile, found.source)?)));
    if moved.is_none()
        && let Err(error) = on_device
    {
        return Err(smaller(error, elsewhere.least_budget(&chain)));
    }
    let bound = room.and_then(|room| elsewhere.proven(room)).unwrap_or(search.bound);
    let plans = search.best.into_iter().chain(moved);
    let best = plans.min_by_key(|plan| plan.0).map(|plan| plan.1);
    finish(profile, budget, best, bound)
}

/// The room that is asked for, or the least without places when that is more: the least with places is below it.
fn room_or_least(on_device: &Result<(), SolveError>, room: Option<u64>) -> u64 {
    match on_device {
        Err(SolveError::BudgetTooSmall { smallest_bytes, .. }) => smallest_bytes.get().max(room.unwrap_or(0)),
        _ => room.unwrap_or(0),
    }
}

/// The error with the smallest budget that there is a plan for when boundaries can be moved.
fn smaller(error: SolveError, moved: Option<Bytes>) -> SolveError {
    match error {
        SolveError::BudgetTooSmall { solver, budget_bytes, smallest_bytes } => {
            let moved = moved.unwrap_or(smallest_bytes);
            SolveError::BudgetTooSmall { solver, budget_bytes, smallest_bytes: smallest_bytes.min(moved) }
        }
        other => other,
    }
}

/// Looks where a plan is found soonest first.
fn look(
    search: &mut Search<'_>,
    chain: &Chain,
    profile: &Profile,
    request: &Request,
) -> Result<(), SolveError> {
    let (stages, usable) = (chain.stages(), request.usable_bytes());
    if search.store_all() {
        return Ok(());
    }
    // Stages that are all different gain little from being taken together; but a plan is soon there.
    let many = stages > MOST_STAGES;
    let mut size = if alike(chain) || stages > SOON { stages.div_ceil(GROUPS) } else { 1 };
    while size > 1 && stages.div_ceil(size) <= MOST_STAGES {
        if search.in_groups(size) {
            return Ok(());
        }
        if search.late() {
            break;
        }
        let fine = stages / size > 2 * GROUPS || !alike(chain);
        size = if fine && !many { 1 } else { size.div_ceil(2) };
        // Each halving takes eight times as long: of very long chains the groups only get as small as they must.
        if many && search.best.is_some() {
            break;
        }
    }
    if many {
        return simpler(search, profile, request);
    }
    if search.best.is_some() && search.late() {
        return Ok(());
    }
    let problem = whole(chain.clone())?;
    if search.room < problem.least_room(0, stages) {
        return Err(too_small(&problem, usable));
    }
    if !search.exactly(&problem) {
        search.on_grids(&problem);
    }
    Ok(())
}

/// What the solvers that need no table find for a chain that is too long for one.
fn simpler(search: &mut Search<'_>, profile: &Profile, request: &Request) -> Result<(), SolveError> {
    type Solve = fn(&Profile, &Request, Instant) -> Result<Option<Plan>, SolveError>;
    fn within(request: &Request, until: Instant) -> Request {
        Request { time_limit: until.saturating_duration_since(Instant::now()), ..request.clone() }
    }
    let all: [Solve; 3] = [
        |profile, request, until| super::revolve::solve(profile, &within(request, until)).map(Some),
        |profile, request, until| super::mixed::solve(profile, &within(request, until)).map(Some),
        |profile, request, until| super::eager::solve_until(profile, request, Some(until)),
    ];
    let mut smallest: Option<Bytes> = None;
    let mut refused: Option<SolveError> = None;
    for solve in all {
        match solve(profile, request, search.deadline) {
            Ok(None) => {}
            Ok(Some(plan)) => {
                let overhead = plan.predicted.step_ns.get().saturating_sub(profile.lower_bound().get());
                search.take(Some((overhead, plan.actions)));
            }
            // `eager` says what it needs to run at all, and then its plan may be too long to hold; the others have tried.
            Err(SolveError::BudgetTooSmall { solver, smallest_bytes, .. }) => {
                let known = smallest.filter(|known| solver == super::eager::NAME || *known < smallest_bytes);
                smallest = Some(known.unwrap_or(smallest_bytes));
            }
            Err(error) => refused = Some(error),
        }
    }
    let stages = profile.stages().len();
    match (&search.best, smallest, refused) {
        (Some(_), ..) => Ok(()),
        (None, Some(smallest_bytes), _) => {
            let budget_bytes = request.usable_bytes();
            Err(SolveError::BudgetTooSmall { solver: NAME, budget_bytes, smallest_bytes })
        }
        (None, ..) if Instant::now() > search.deadline => {
            let why = "time was up before there was a plan; give it more".to_owned();
            Err(SolveError::TooLong { solver: NAME, stages, why })
        }
        (None, None, Some(SolveError::TooLong { stages, why, .. })) => {
            Err(SolveError::TooLong { solver: NAME, stages, why })
        }
        (None, None, Some(other)) => Err(other),
        (None, None, None) => Ok(()),
    }
}

/// Whether many stages repeat. Stages that are all different gain little from being taken together.
fn alike(chain: &Chain) -> bool {
    let kinds = cells::kinds(chain).into_iter().max().map_or(0, |most| most + 1);
    kinds <= chain.stages() / 4
}

/// A chain of more stages is looked at in groups first, so that there is a plan when time is up.
const SOON: usize = 150;

/// A chain is first looked at in so many groups.
const GROUPS: usize = 96;

/// The problem of all stages, when they are not too many.
fn whole(chain: Chain) -> Result<Problem, SolveError> {
    match chain.stages() {
        0..=MOST_STAGES => Ok(Problem::new(chain)),
        stages => Err(SolveError::TooLong {
            solver: NAME,
            stages,
            why: format!("every cell of a chain is only looked at up to {MOST_STAGES} stages"),
        }),
    }
}

fn too_small(problem: &Problem, usable: Bytes) -> SolveError {
    match problem.smallest_budget() {
        Some(smallest) => SolveError::BudgetTooSmall {
            solver: NAME,
            budget_bytes: usable,
            smallest_bytes: Bytes::new(smallest),
        },
        None => too_large(problem.chain.stages()),
    }
}

/// The smallest budget there is a plan for, to the byte.
///
/// # Errors
/// When pinned stages leave no plan at all.
pub fn smallest_budget(profile: &Profile) -> Result<Bytes, SolveError> {
    let chain = Chain::new(profile);
    let problem = whole(chain.clone())?;
    let smallest = problem.smallest_budget().map(Bytes::new).ok_or_else(|| too_large(chain.stages()))?;
    let until = deadline(&Request::default());
    let elsewhere = Elsewhere::of(profile, &chain, smallest.get(), until, |_| true);
    let moved = elsewhere.and_then(|elsewhere| elsewhere.least_budget(&chain));
    Ok(moved.map_or(smallest, |moved| moved.min(smallest)))
}

/// The cheapest time for every budget, from the smallest to the one that keeps everything.
///
/// # Errors
/// When no budget has a plan.
pub fn frontier(profile: &Profile, request: &Request) -> Result<Frontier, SolveError> {
    Frontier::new(profile, request)
}

fn too_large(stages: usize) -> SolveError {
    let why = "every plan takes more than 2^64 bytes".to_owned();
    SolveError::TooLong { solver: NAME, stages, why }
}

/// The plan of what was found, judged.
fn finish(
    profile: &Profile,
    budget: Bytes,
    actions: Option<Vec<Action>>,
    bound: u64,
) -> Result<Plan, SolveError> {
    let stages = profile.stages().len();
    let why = || format!("it takes more than {} actions", crate::rules::MOST_ACTIONS);
    let actions = actions.ok_or_else(|| SolveError::TooLong { solver: NAME, stages, why: why() })?;
    let plan = Plan::judged(profile, NAME.to_owned(), Status::Optimal, Some(budget), actions)?;
    let least = profile.lower_bound().get().saturating_add(bound);
    Ok(plan.proven(Nanos::new(least)))
}
