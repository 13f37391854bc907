//! What the solvers that count slots share: from a request in slots or in bytes to a judged plan.

use std::time::Instant;

use crate::illegal::{Illegal, Reason};
use crate::{
    Action, Bytes, Gap, Nanos, Plan, PlanError, Profile, Request, Simulation, SolveError, Status, simulate,
};

/// Up to so many slots every number of them is tried; beyond, a fixed ladder of them.
const TRY_ALL: u32 = 256;
const TRY_ALL_COSTLY: u32 = 64;

/// Beyond so many stages the ladder has wider steps.
const LONG: usize = 20_000;
const LONG_COSTLY: usize = 2_000;

/// A solver that gives actions for a number of slots.
pub(super) struct Counted<'a> {
    pub(super) name: &'static str,
    pub(super) profile: &'a Profile,
    pub(super) request: &'a Request,
    /// The fewest slots worth trying.
    pub(super) least: u32,
    /// More slots than these change nothing.
    pub(super) most: u32,
    /// More slots never make a plan for this profile slower: the largest number that fits is the one.
    pub(super) falling: bool,
    /// A schedule takes far longer to make than to judge.
    pub(super) costly: bool,
    pub(super) actions: &'a dyn Fn(u32) -> Result<Vec<Action>, SolveError>,
    /// Whether no plan of the solver's class with as many slots can be faster than this one.
    pub(super) proven: &'a dyn Fn(u32, &Simulation) -> bool,
}

/// What a number of slots comes to.
#[derive(Clone, Copy)]
pub(super) struct Tried {
    pub(super) slots: u32,
    pub(super) peak_bytes: Bytes,
    pub(super) step_ns: Nanos,
}

/// The plan of a solver that finds the fewest forwards for a length and a number of slots: the fastest where all forwards
/// take the same time.
pub(super) fn fewest_forwards(
    name: &'static str,
    profile: &Profile,
    request: &Request,
    actions: fn(usize, u32) -> Result<Vec<Action>, SolveError>,
) -> Result<Plan, SolveError> {
    let stages = profile.stages().len();
    let same = same_forwards(profile);
    Counted {
        name,
        profile,
        request,
        least: 1,
        most: useful(stages),
        falling: same,
        costly: false,
        actions: &|slots| actions(stages, slots),
        proven: &|_, _| same && own_tapes_are_best(profile),
    }
    .solve()
}

impl Counted<'_> {
    pub(super) fn solve(&self) -> Result<Plan, SolveError> {
        match (self.request.slots, self.request.budget_bytes) {
            (Some(slots), _) => self.plan(slots, true),
            (None, Some(_)) => self.plan(self.search()?, false),
            (None, None) => {
                Err(SolveError::NothingToMeet { solver: self.name, needed: "slots or a budget in bytes" })
            }
        }
    }

    /// The plan with so many slots, refused when it is over the budget.
    fn plan(&self, slots: u32, asked: bool) -> Result<Plan, SolveError> {
        let actions = (self.actions)(slots)?;
        let simulation = self.judge(&actions)?;
        let usable = self.request.usable_bytes();
        if simulation.peak_bytes > usable {
            return Err(SolveError::Refused(PlanError::OverBudget {
                solver: self.name.to_owned(),
                peak_bytes: simulation.peak_bytes,
                budget_bytes: usable,
            }));
        }
        let proven = asked && (self.proven)(slots, &simulation);
        let status = status(self.profile, simulation.step_ns, proven);
        let budget_bytes = self.request.budget_bytes;
        Ok(Plan::judged(self.profile, self.name.to_owned(), status, budget_bytes, actions)?)
    }

    /// What every number of slots that is tried comes to, for as long as there is time.
    pub(super) fn every(&self, until: Instant) -> Vec<Tried> {
        let ladder = self.ladder().into_iter().rev().enumerate();
        let in_time = ladder.take_while(|(step, _)| *step == 0 || Instant::now() <= until);
        in_time.filter_map(|(_, slots)| self.try_slots(slots).ok()).collect()
    }

    /// The number of slots whose plan is the fastest within the budget.
    ///
    /// Which numbers are tried does not depend on the budget, so a larger budget never gives a slower plan: what fitted
    /// before still fits. The one exception keeps that too: where more slots are never slower, the largest that fits is
    /// looked for by halves between two steps of the ladder, and a larger budget only ever moves it up. All that holds for as
    /// long as there is time.
    fn search(&self) -> Result<u32, SolveError> {
        let usable = self.request.usable_bytes();
        let until = deadline(self.request);
        let fits = |tried: &Tried| tried.peak_bytes <= usable;
        let mut best: Option<Tried> = None;
        let mut smallest: Option<Bytes> = None;
        let mut failed: Option<SolveError> = None;
        let mut above = None;
        for (step, slots) in self.ladder().into_iter().rev().enumerate() {
            // Fewer slots take longer.
            if step > 0 && Instant::now() > until {
                match best {
                    Some(_) => break,
                    None => return Err(self.late(usable)),
                }
            }
            let tried = match self.try_slots(slots) {
                Ok(tried) => tried,
                Err(error) => {
                    // That a stage is pinned is worth more to know than that a schedule is too long.
                    if failed.is_none() || matches!(error, SolveError::Pinned { .. }) {
                        failed = Some(error);
                    }
                    if best.is_none() {
                        above = Some(slots);
                    }
                    continue;
                }
            };
            smallest = Some(smallest.map_or(tried.peak_bytes, |bytes| bytes.min(tried.peak_bytes)));
            if !fits(&tried) {
                if best.is_none() {
                    above = Some(slots);
                }
                continue;
            }
            let cost = |tried: Tried| (tried.step_ns, tried.peak_bytes);
            if best.is_none_or(|best| cost(tried) < cost(best)) {
                best = Some(tried);
            }
            if self.falling {
                break;
            }
        }
        match (best, smallest, failed) {
            (Some(best), ..) if self.falling => Ok(self.between(best.slots, above, &fits, until)),
            (Some(best), ..) => Ok(best.slots),
            (None, Some(smallest_bytes), _) => {
                Err(SolveError::BudgetTooSmall { solver: self.name, budget_bytes: usable, smallest_bytes })
            }
            (None, None, Some(error)) => Err(error),
            // The ladder has at least one step, which was tried or failed.
            (None, None, None) => {
                Err(SolveError::NothingToMeet { solver: self.name, needed: "a number of slots to try" })
            }
        }
    }

    fn late(&self, usable: Bytes) -> SolveError {
        let seconds = self.request.time_limit.as_secs_f64();
        let why = format!(
            "nothing within {usable} was found in {seconds} s; give it more time, or a larger budget"
        );
        SolveError::TooLong { solver: self.name, stages: self.profile.stages().len(), why }
    }

    /// The largest number of slots found to fit by halves, from one that does to one that does not.
    fn between(
        &self,
        fitting: u32,
        above: Option<u32>,
        fits: &dyn Fn(&Tried) -> bool,
        until: Instant,
    ) -> u32 {
        let Some(mut high) = above else { return fitting };
        let mut low = fitting;
        while high.saturating_sub(low) > 1 && Instant::now() <= until {
            let middle = low + (high - low) / 2;
            match self.try_slots(middle) {
                Ok(tried) if fits(&tried) => low = middle,
                _ => high = middle,
            }
        }
        low
    }

    fn try_slots(&self, slots: u32) -> Result<Tried, SolveError> {
        let simulation = self.judge(&(self.actions)(slots)?)?;
        Ok(Tried { slots, peak_bytes: simulation.peak_bytes, step_ns: simulation.step_ns })
    }

    fn judge(&self, actions: &[Action]) -> Result<Simulation, SolveError> {
        simulate(self.profile, actions).map_err(|illegal| match illegal {
            Illegal { reason: Reason::Pinned { stage, name }, .. } => {
                SolveError::Pinned { solver: self.name, stage, name }
            }
            illegal => SolveError::Refused(PlanError::Illegal(illegal)),
        })
    }

    /// The numbers of slots to try, rising: all of them, or steps that grow with the number.
    fn ladder(&self) -> Vec<u32> {
        let most = self.most.max(self.least);
        let (try_all, long) = if self.costly { (TRY_ALL_COSTLY, LONG_COSTLY) } else { (TRY_ALL, LONG) };
        if most <= try_all {
            return (self.least..=most).collect();
        }
        let part = match (self.falling, self.profile.stages().len() > long) {
            (true, _) => 2,
            (false, false) => 8,
            (false, true) => 1,
        };
        let next =
            |slots: &u32| (*slots < most).then(|| slots.saturating_add((slots / part).max(1)).min(most));
        std::iter::successors(Some(self.least), next).collect()
    }
}

/// When a request's time is up.
pub(super) fn deadline(request: &Request) -> Instant {
    let now = Instant::now();
    now.checked_add(request.time_limit).unwrap_or(now)
}

/// How good a plan is known to be, given the time of its step.
fn status(profile: &Profile, step_ns: Nanos, proven: bool) -> Status {
    let lower = profile.lower_bound();
    if proven || step_ns <= lower {
        return Status::Optimal;
    }
    let left = step_ns.saturating_sub(lower).get() as f64 / step_ns.get() as f64;
    Status::Feasible(Gap::new(left).unwrap_or(Gap::ZERO))
}

/// How many slots a chain has a use for: every boundary but the last two, which are read right after they are made.
pub(super) fn useful(stages: usize) -> u32 {
    u32::try_from(stages.saturating_sub(1)).unwrap_or(u32::MAX).max(1)
}

/// Whether the forward of every stage takes as long as that of every other, so that counting them is timing them.
pub(super) fn same_forwards(profile: &Profile) -> bool {
    profile.stages().windows(2).all(|pair| pair[0].forward_ns == pair[1].forward_ns)
}

/// Whether no stage has an option that is faster than its own tape, which is the only one used here.
pub(super) fn own_tapes_are_best(profile: &Profile) -> bool {
    profile.stages().iter().all(|stage| {
        let own = Nanos::checked_sum([stage.forward_ns, stage.backward_ns]);
        stage.options.iter().all(|option| {
            option.forward_ns >= stage.forward_ns
                && Nanos::checked_sum([option.forward_ns, option.backward_ns]) >= own
        })
    })
}
