//! A plan for each rank, with as many micro-batches in flight as it has.

use std::ops::Range;
use std::time::Instant;

use super::{Cost, PipelineError, balance, in_flight};
use crate::solvers::optimal;
use crate::{
    Action, Boundary, Bytes, Nanos, Plan, PlanError, Profile, ProfileError, Request, Rule, SolveError,
    StageProfile,
};

/// How many of the amounts that a waiting micro-batch can hold are tried for each rank: for short chains, and for those that take
/// longer to solve.
const TRIED: (usize, usize) = (128, 16);

/// Up to how many stages a chain is short.
const SHORT: usize = 32;

/// Of a rank's time, one solve may take this part at most.
const SOLVES: u32 = 4;

/// What one rank does.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RankPlan {
    /// Which stages it has, from 0 on.
    pub stages: Range<usize>,
    /// What is known of them.
    pub profile: Profile,
    /// How one micro-batch goes through them.
    pub plan: Plan,
    /// How many micro-batches it holds at most.
    pub in_flight: usize,
    /// What each of these holds between its forward and its backward: what the plan keeps, and what the rank has made.
    pub waiting_bytes: Bytes,
    /// The sum of the gradients of the micro-batches so far; nothing when there is one.
    pub summed_bytes: Bytes,
    /// A boundary that comes, and one that goes; nothing when there is one rank.
    pub message_bytes: Bytes,
    /// The most that the rank takes: all that wait but one, that one's own peak, the sum of gradients, and messages.
    pub peak_bytes: Bytes,
    /// What a micro-batch takes there and back, to [`simulate`](super::simulate) with.
    pub cost: Cost,
}

/// Cuts a chain into parts that take the same time, one for each rank, and plans each for the budget, which is a rank's.
///
/// A rank that holds `k` micro-batches needs `k - 1` times what one holds while it waits, and what one takes at its peak: to keep
/// more makes a micro-batch faster, and leaves less for its peak. Both are weighed against each other: of the amounts
/// that a waiting micro-batch may hold, some are tried, and each plan is the fastest for its amount. How close the best of
/// them is to the fastest of all is in its status. Without a budget every tape is kept.
///
/// ```
/// use rekindle_plan::{Bytes, Nanos, Profile, Request, StageProfile, pipeline};
///
/// let block = |i: usize| StageProfile {
///     name: format!("block.{i}"),
///     output_bytes: Bytes::mebibytes(1),
///     tape_bytes: Bytes::mebibytes(10),
///     forward_ns: Nanos::new(1_000_000),
///     backward_ns: Nanos::new(2_000_000),
///     ..StageProfile::default()
/// };
/// let profile = Profile::new("gpt", "flex", Bytes::mebibytes(1), (0..16).map(block).collect())?;
/// let ranks = pipeline::plan(&profile, 4, 8, &Request::new(Bytes::mebibytes(60)))?;
/// // The first holds four micro-batches and recomputes; the last holds one, and has room for all of its tapes.
/// assert_eq!(ranks[0].in_flight, 4);
/// assert!(ranks[0].plan.predicted.recompute_ns > Nanos::ZERO);
/// assert_eq!(ranks[3].plan.predicted.recompute_ns, Nanos::ZERO);
/// assert!(ranks.iter().all(|rank| rank.peak_bytes <= Bytes::mebibytes(60)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When there are more ranks than stages, or a rank has no plan within the budget: then the one that needs most is named, with
/// what is enough for all of them.
pub fn plan(
    profile: &Profile,
    ranks: usize,
    micro_batches: usize,
    request: &Request,
) -> Result<Vec<RankPlan>, PipelineError> {
    let mut refused = None;
    let mut tried = request.clone();
    loop {
        let (enough, error) = match (within(profile, ranks, micro_batches, &tried), refused) {
            (Ok(plans), None) => return Ok(plans),
            (Ok(_), Some(error)) => return Err(error),
            (Err(PipelineError::BudgetTooSmall { rank, in_flight, enough_bytes, .. }), _) => {
                let budget_bytes = request.budget_bytes.unwrap_or_default();
                let error = PipelineError::BudgetTooSmall { rank, budget_bytes, in_flight, enough_bytes };
                (enough_bytes, error)
            }
            (Err(error), _) => return Err(error),
        };
        // Another rank may need more.
        if tried.budget_bytes.is_some_and(|tried| enough <= tried) {
            return Err(error);
        }
        (refused, tried.budget_bytes) = (Some(error), Some(enough));
    }
}

/// Plans each rank for the budget, or says what the first one needs that has no plan.
fn within(
    profile: &Profile,
    ranks: usize,
    micro_batches: usize,
    request: &Request,
) -> Result<Vec<RankPlan>, PipelineError> {
    let start = Instant::now();
    each(profile, ranks, micro_batches, &|rank| match request.budget_bytes {
        None => rank.by_rule(Rule::StoreAll),
        Some(_) => {
            let beside = rank.beside()?;
            // What one rank leaves of its time, the others have.
            let left = request.time_limit.saturating_sub(start.elapsed());
            let share = left / u32::try_from(rank.ranks - rank.rank).unwrap_or(u32::MAX);
            let own = Request { time_limit: share, ..request.clone() };
            let best = rank.best(request.usable_bytes().get().saturating_sub(beside), &own)?;
            best.ok_or_else(|| rank.too_small(request, beside))
        }
    })
}

/// The same cut, with the plan of a textbook rule on each rank, whatever it takes.
///
/// # Errors
/// When there are more ranks than stages, or the rule gives no plan.
pub fn by_rule(
    profile: &Profile,
    ranks: usize,
    micro_batches: usize,
    rule: Rule,
) -> Result<Vec<RankPlan>, PipelineError> {
    each(profile, ranks, micro_batches, &|rank| rank.by_rule(rule))
}

/// Plans each rank in one way.
fn each(
    profile: &Profile,
    ranks: usize,
    micro_batches: usize,
    find: &dyn Fn(&Rank<'_>) -> Result<Found, PipelineError>,
) -> Result<Vec<RankPlan>, PipelineError> {
    if ranks == 0 || micro_batches == 0 {
        return Err(PipelineError::Empty { ranks, micro_batches });
    }
    let parts = balance(profile, ranks)?;
    let mut plans: Vec<RankPlan> = Vec::with_capacity(ranks);
    for (rank, stages) in parts.into_iter().enumerate() {
        let held = in_flight(rank, ranks, micro_batches);
        let section = section(profile, stages.clone())?;
        // Of a thousand ranks most have the same stages and hold as many.
        let ends = |rank: usize| (rank == 0, rank + 1 == ranks);
        let same = plans.iter().enumerate().rev().find(|(other, known)| {
            ends(*other) == ends(rank)
                && known.in_flight == held
                && known.profile.input_bytes() == section.input_bytes()
                && {
                    let alike = |(a, b): (&StageProfile, &StageProfile)| {
                        *a == StageProfile { name: a.name.clone(), ..b.clone() }
                    };
                    known.profile.stages().len() == section.stages().len()
                        && known.profile.stages().iter().zip(section.stages()).all(alike)
                }
        });
        let planned = match same {
            Some((_, known)) => {
                let mut plan = known.plan.clone();
                plan.fingerprint = section.fingerprint();
                RankPlan { stages, profile: section, plan, ..known.clone() }
            }
            None => {
                let rank = Rank { rank, held, ranks, micro_batches, section: &section };
                rank.plan(stages, find(&rank)?)?
            }
        };
        plans.push(planned);
    }
    Ok(plans)
}

/// The profile of some stages of a chain, from 0 on.
///
/// # Errors
/// When there are none.
pub fn section(profile: &Profile, stages: Range<usize>) -> Result<Profile, ProfileError> {
    let first = u32::try_from(stages.start).unwrap_or(u32::MAX);
    let input = profile.boundary_bytes(Boundary::new(first)).unwrap_or_default();
    let model = format!("{}, stages {} to {}", profile.model(), stages.start + 1, stages.end);
    let own = profile.stages().get(stages).unwrap_or_default().to_vec();
    let section = Profile::new(model, profile.device(), input, own)?;
    section.with_places(profile.tiers().to_vec(), profile.codecs().to_vec())
}

/// A rank that is planned.
struct Rank<'a> {
    rank: usize,
    /// How many micro-batches it holds.
    held: usize,
    /// How many ranks there are.
    ranks: usize,
    /// How many micro-batches go through it in a step.
    micro_batches: usize,
    section: &'a Profile,
}

/// A plan for one micro-batch, and what that holds while it waits.
struct Found {
    plan: Plan,
    waiting: u64,
    peak: u64,
    forward: Nanos,
}

impl Rank<'_> {
    /// What the gradients of the micro-batches so far take, added up.
    fn summed(&self) -> Result<Bytes, PipelineError> {
        let gradients = self.section.stages().iter().map(|stage| stage.parameter_gradient_bytes);
        let gradients = Bytes::checked_sum(gradients).ok_or(PipelineError::TooLarge)?;
        Ok(if self.micro_batches > 1 { gradients } else { Bytes::ZERO })
    }

    /// A boundary or a gradient that comes, and one that goes, each twice: as it travels, and as it is read or written.
    fn messages(&self) -> Bytes {
        let last = self.section.stages().len();
        let size = |at: usize| {
            let boundary = Boundary::new(u32::try_from(at).unwrap_or(u32::MAX));
            let gradient = self.section.gradient_bytes(boundary).unwrap_or_default();
            self.section.boundary_bytes(boundary).unwrap_or_default().max(gradient).get()
        };
        let first = if self.rank > 0 { size(0) } else { 0 };
        let last = if self.rank + 1 < self.ranks { size(last) } else { 0 };
        Bytes::new(first.saturating_add(last).saturating_mul(2))
    }

    /// What the rank holds beside its micro-batches.
    fn beside(&self) -> Result<u64, PipelineError> {
        self.summed()?.get().checked_add(self.messages().get()).ok_or(PipelineError::TooLarge)
    }

    fn by_rule(&self, rule: Rule) -> Result<Found, PipelineError> {
        let plan = Plan::by_rule(self.section, rule, None);
        self.found(plan.map_err(|error| self.failed(error.into()))?)
    }

    /// All that is to be said of a plan that was found.
    fn plan(&self, stages: Range<usize>, found: Found) -> Result<RankPlan, PipelineError> {
        let summed = self.summed()?;
        let forward = found.forward;
        let peak = self.total(found.waiting, found.peak)?.checked_add(self.beside()?);
        let peak_bytes = Bytes::new(peak.ok_or(PipelineError::TooLarge)?);
        let waiting_bytes = Bytes::new(found.waiting);
        Ok(RankPlan {
            stages,
            profile: self.section.clone(),
            in_flight: self.held,
            waiting_bytes,
            summed_bytes: summed,
            message_bytes: self.messages(),
            peak_bytes,
            cost: Cost {
                forward,
                backward: found.plan.predicted.step_ns.saturating_sub(forward),
                kept: waiting_bytes,
                // All that are in flight hold as much, and one of them works.
                working: peak_bytes.saturating_sub(Bytes::new(
                    found.waiting.checked_mul(self.held as u64).ok_or(PipelineError::TooLarge)?,
                )),
                send: Nanos::ZERO,
            },
            plan: found.plan,
        })
    }

    /// The fastest plan of those tried, if one fits. Once there is one, no more are tried when time is up.
    fn best(&self, room: u64, request: &Request) -> Result<Option<Found>, PipelineError> {
        let (start, limit) = (Instant::now(), request.time_limit);
        let late = || start.elapsed() > limit;
        let request = &Request { time_limit: request.time_limit / SOLVES, ..request.clone() };
        let others = self.held.saturating_sub(1) as u64;
        let least = self.least_waiting();
        let Some(most_room) = others.checked_mul(least).and_then(|waiting| room.checked_sub(waiting)) else {
            return Ok(None);
        };
        // No plan is faster than one beside which no more than the least would have to wait.
        let Some(fastest) = self.solve(most_room, most_room, request)? else { return Ok(None) };
        let bound = fastest.plan.predicted.lower_bound_ns;
        if self.total(fastest.waiting, fastest.peak)? <= room {
            return Ok(Some(fastest));
        }
        let mut best: Option<Found> = None;
        for mut most_waiting in far_apart_first(self.amounts()) {
            // What a plan leaves of its share, its peak may have.
            for _ in 0..2 {
                if best.is_some() && late() {
                    break;
                }
                let Some(own) = room.checked_sub(others.saturating_mul(most_waiting)) else { break };
                let Some(found) = self.solve(most_waiting, own, request)? else { break };
                most_waiting = found.waiting.min(most_waiting);
                let fits = self.total(found.waiting, found.peak)? <= room;
                let better = best.as_ref().is_none_or(|best| {
                    let time = |found: &Found| (found.plan.predicted.step_ns, found.peak);
                    time(&found) < time(best)
                });
                if fits && better {
                    best = Some(found);
                }
            }
        }
        // What was proven of it is true of those that hold no more while they wait; this of all.
        Ok(best.map(|mut found| {
            found.plan.predicted.lower_bound_ns = Nanos::ZERO;
            Found { plan: found.plan.proven(bound), ..found }
        }))
    }

    /// What a micro-batch can hold between its halves, from the least on. They do not depend on the budget, so that what fits one
    /// fits a larger one, too.
    fn amounts(&self) -> Vec<u64> {
        let stages = self.section.stages();
        let most = if stages.len() <= SHORT { TRIED.0 } else { TRIED.1 };
        let both = self.section.input_bytes().get().saturating_add(self.output_bytes());
        let mut amounts = vec![self.least_waiting(), both];
        let mut input = 0;
        for stage in stages {
            let tapes = stage
                .options
                .iter()
                .map(Some)
                .chain([None])
                .map(|option| stage.taped_bytes_under(option).get());
            // Nothing of it, what it reads, its tape, or both.
            let kept: Vec<u64> =
                tapes.chain([0]).flat_map(|tape| [tape, tape.saturating_add(input)]).collect();
            let sums = amounts.iter().flat_map(|sum| kept.iter().map(|kept| sum.saturating_add(*kept)));
            amounts = thinned(sums.collect(), 32 * most);
            input = stage.output_bytes.get();
        }
        // What the last stage has made is part of its tape.
        let output = self.output_bytes();
        let less: Vec<u64> = amounts.iter().map(|sum| sum.saturating_sub(output)).collect();
        let least = self.least_waiting();
        thinned(amounts.into_iter().chain(less).filter(|amount| *amount >= least).collect(), most)
    }

    /// What the rank takes when each micro-batch holds and takes so much.
    fn total(&self, waiting: u64, peak: u64) -> Result<u64, PipelineError> {
        let others = self.held.saturating_sub(1) as u64;
        let total = others.checked_mul(waiting).and_then(|others| others.checked_add(peak.max(waiting)));
        total.ok_or(PipelineError::TooLarge)
    }

    /// What a micro-batch holds at least: what came in, and what went out, but for memory that is one piece with what came in.
    fn least_waiting(&self) -> u64 {
        let passed = self.section.stages().last().map_or(0, |stage| stage.passed_bytes.get());
        self.section.input_bytes().get().saturating_add(self.output_bytes()).saturating_sub(passed)
    }

    fn output_bytes(&self) -> u64 {
        self.section.stages().last().map_or(0, |stage| stage.output_bytes.get())
    }

    /// The fastest plan whose peak is within `budget` and that holds no more than `waiting` between its halves.
    ///
    /// What may be held is told to the solver by one more stage behind the last: a tape that is there from the end of the forward to
    /// the beginning of the backward alone, and leaves no more room than that. With it the last stage can be recomputed, too, which
    /// pays only where others come between.
    fn solve(&self, waiting: u64, budget: u64, request: &Request) -> Result<Option<Found>, PipelineError> {
        let request = Request { budget_bytes: Some(Bytes::new(budget)), margin: 0.0, ..request.clone() };
        let between = StageProfile {
            name: "the other ranks".to_owned(),
            tape_bytes: Bytes::new(budget.saturating_sub(waiting)),
            gradient_bytes: Some(Bytes::ZERO),
            pinned: true,
            ..StageProfile::default()
        };
        let section = self.section;
        let stages = section.stages().iter().cloned().chain([between]).collect();
        let longer = Profile::new(section.model(), section.device(), section.input_bytes(), stages)?;
        let longer = longer.with_places(section.tiers().to_vec(), section.codecs().to_vec())?;
        match optimal::solve(&longer, &request) {
            Ok(plan) => {
                let bound = plan.predicted.lower_bound_ns;
                let count = section.stages().len();
                let actions = plan.actions.into_iter().filter(|action| !of_the_turn(action, count)).collect();
                match Plan::judged(section, plan.solver, plan.status, request.budget_bytes, actions) {
                    Ok(plan) => Ok(Some(self.found(plan.proven(bound))?)),
                    // What is dropped while the micro-batch waits is dropped beside a gradient here.
                    Err(PlanError::OverBudget { .. }) => Ok(None),
                    Err(error) => Err(self.failed(error.into())),
                }
            }
            Err(SolveError::BudgetTooSmall { .. }) => Ok(None),
            Err(source) => Err(self.failed(source)),
        }
    }

    /// A plan, and what the simulator says of it between its halves.
    fn found(&self, plan: Plan) -> Result<Found, PipelineError> {
        let judged = plan.judge(self.section).map_err(|error| self.failed(error.into()))?;
        let simulation = judged.1;
        let last = simulation.turn.saturating_sub(1);
        let after = simulation.moments.get(last).map_or(0, |moment| moment.after.get());
        // What was made is held until the gradient comes for it, if it is not part of a tape.
        let taped = matches!(plan.actions.get(last), Some(Action::Tape { .. }));
        let made = if taped { 0 } else { self.output_bytes() };
        let waiting = after.saturating_add(made);
        let forward = simulation.spans.get(last).map_or(Nanos::ZERO, |span| span.end);
        Ok(Found { waiting, peak: simulation.peak_bytes.get(), forward, plan })
    }

    fn failed(&self, source: SolveError) -> PipelineError {
        PipelineError::Solve { rank: self.rank, source }
    }

    /// The error with a budget that is enough.
    fn too_small(&self, request: &Request, beside: u64) -> PipelineError {
        let margin = 1.0 + request.margin.max(0.0);
        let enough = match self.enough(request) {
            Ok(enough) => enough,
            Err(error) => return error,
        };
        match enough.and_then(|enough| enough.checked_add(beside)) {
            Some(enough) => PipelineError::BudgetTooSmall {
                rank: self.rank,
                budget_bytes: request.budget_bytes.unwrap_or_default(),
                in_flight: self.held,
                enough_bytes: Bytes::new((enough as f64 * margin).ceil() as u64 + 2),
            },
            None => PipelineError::TooLarge,
        }
    }

    /// A budget that the rank has a plan for, found by halving between one that holds the least and one that is too small.
    /// `None` when it does not fit 64 bits.
    fn enough(&self, request: &Request) -> Result<Option<u64>, PipelineError> {
        let peaks = optimal::smallest_budget(self.section).map_err(|error| self.failed(error))?.get();
        let others = self.held.saturating_sub(1) as u64;
        let least = others.checked_mul(self.least_waiting()).and_then(|waiting| waiting.checked_add(peaks));
        let Some(mut low) = least else { return Ok(None) };
        let mut high = None;
        let quick = Request { time_limit: request.time_limit / 10, ..request.clone() };
        let mut next = low;
        // Twice as much until there is a plan, then halves of what is between.
        for _ in 0..40 {
            match self.best(next, &quick)? {
                Some(_) => high = Some(next),
                None => low = next,
            }
            next = match high {
                Some(high) if high - low <= high / 64 => break,
                Some(high) => low + (high - low) / 2,
                None => match next.checked_mul(2) {
                    Some(more) => more,
                    None => return Ok(None),
                },
            };
        }
        Ok(high)
    }
}

/// Those in the middle of what is left first, so that the first few are already spread over all of them.
fn far_apart_first(amounts: Vec<u64>) -> Vec<u64> {
    let bits = amounts.len().next_power_of_two().trailing_zeros();
    let reversed = |index: u32| if bits == 0 { 0 } else { index.reverse_bits() >> (u32::BITS - bits) };
    (0..1u32 << bits).filter_map(|index| amounts.get(reversed(index) as usize).copied()).collect()
}

/// The different ones in order, and no more than so many of them, spread evenly; the least and the most always.
fn thinned(mut amounts: Vec<u64>, most: usize) -> Vec<u64> {
    amounts.sort_unstable();
    amounts.dedup();
    if amounts.len() <= most {
        return amounts;
    }
    (0..most).map(|index| amounts[index * (amounts.len() - 1) / (most - 1)]).collect()
}

/// Whether an action concerns the stage behind the last, or what lies between.
fn of_the_turn(action: &Action, stages: usize) -> bool {
    match action {
        Action::Forward { stage } | Action::Tape { stage, .. } | Action::Backward { stage } => {
            stage.index() >= stages
        }
        Action::Keep { boundary }
        | Action::Drop { boundary, .. }
        | Action::Offload { boundary, .. }
        | Action::Fetch { boundary, .. }
        | Action::Compress { boundary, .. } => boundary.index() >= stages,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_that_are_tried_first_are_far_apart_and_none_is_left_out() {
        assert_eq!(far_apart_first((0..8).collect()), [0, 4, 2, 6, 1, 5, 3, 7]);
        for count in 0..40 {
            let mut amounts = far_apart_first((0..count).collect());
            amounts.sort_unstable();
            assert_eq!(amounts, (0..count).collect::<Vec<_>>());
        }
    }
}
