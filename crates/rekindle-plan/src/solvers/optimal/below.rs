//! Plans of a very long chain where groups of stages do not fit, or hardly: those of solvers that need no table.
//!
//! A plan for little room has millions of actions, and the simulator looks at each: what takes longest comes last, and
//! nothing is begun that is not expected to end in time.

use std::time::{Duration, Instant};

use super::chain::Chain;
use super::frontier::halfway;
use super::looks::{BySlots, Found, Source};
use crate::rules::MOST_ACTIONS;
use crate::solvers::{eager, mixed, revolve};
use crate::{Action, Bytes, Profile, Request, SolveError, simulate};

/// The next number of slots is less by one in so many; by more of a chain whose every plan takes long to look at.
const PART: u32 = 9;
const LARGE_PART: u32 = 3;
const LONG: usize = 20_000;

/// Where plans are looked for, and what was found.
pub(super) struct Below<'a> {
    profile: &'a Profile,
    chain: &'a Chain,
    until: Instant,
    pub(super) found: Vec<Found>,
    /// Whether time was up before everything was looked at.
    pub(super) late: bool,
}

impl<'a> Below<'a> {
    /// Looks for plans that need at most `most` bytes of room.
    pub(super) fn new(profile: &'a Profile, chain: &'a Chain, most: u64, until: Instant) -> Self {
        let mut below = Self { profile, chain, until, found: Vec::new(), late: false };
        // Where there is much room, `eager` is the fastest of them; where there is little, the slowest to look at.
        below.eagerly(most, halfway(until));
        below.by_slots(BySlots::Revolve, most);
        below.by_slots(BySlots::Mixed, most);
        below
    }

    /// From many slots to few: each plan needs less room than the one before, and takes longer to look at.
    fn by_slots(&mut self, solver: BySlots, most: u64) {
        let stages = self.chain.stages();
        let smallest = self.chain.boundary[..stages].iter().min().copied().unwrap_or(0).max(1);
        // Every slot in use holds no less than the smallest boundary.
        let useful = u64::try_from(stages.saturating_sub(1)).unwrap_or(u64::MAX).max(1);
        let first = u32::try_from((most / smallest).clamp(1, useful)).unwrap_or(u32::MAX);
        let part = if stages > LONG { LARGE_PART } else { PART };
        let next = |slots: &u32| (*slots > 1).then(|| slots - (slots / part).max(1));
        let mut each = Duration::ZERO;
        for slots in std::iter::successors(Some(first), next) {
            // Fewer slots only make a plan longer: what is refused once is refused from there on.
            let forwards = solver.forwards(stages, slots).and_then(|forwards| u32::try_from(forwards).ok());
            let Some(forwards) = forwards.filter(|forwards| *forwards as usize <= MOST_ACTIONS) else {
                return;
            };
            let start = Instant::now();
            if start + each.saturating_mul(forwards) > self.until {
                self.late = true;
                return;
            }
            let Ok(actions) = solver.actions(stages, slots) else { return };
            let Ok(simulation) = simulate(self.profile, &actions) else { return };
            each = each.max(start.elapsed() / forwards.max(1));
            self.take(simulation.peak_bytes, simulation.step_ns.get(), Source::Slots { solver, slots });
        }
    }

    /// From much room to little.
    fn eagerly(&mut self, most: u64, until: Instant) {
        let input = self.chain.boundary[0];
        let Err(SolveError::BudgetTooSmall { smallest_bytes, .. }) = eager(self.profile, self.chain, 0, None)
        else {
            return;
        };
        let smallest = smallest_bytes.get().saturating_sub(input);
        let rooms = std::iter::successors(Some(smallest.max(1)), |room| room.checked_mul(2));
        let rooms: Vec<u64> = rooms.take_while(|room| *room <= most).collect();
        for room in rooms.into_iter().rev() {
            // Judging a plan takes about as long as making it.
            let until = halfway(until);
            match eager(self.profile, self.chain, room, Some(until)) {
                Ok(Some(plan)) => {
                    let (peak_bytes, step_ns) = (plan.predicted.peak_bytes, plan.predicted.step_ns);
                    self.take(peak_bytes, step_ns.get(), Source::Eager { room });
                }
                Ok(None) => {
                    self.late = true;
                    return;
                }
                Err(_) => return,
            }
        }
    }

    fn take(&mut self, peak_bytes: Bytes, step_ns: u64, source: Source) {
        let need = peak_bytes.get().saturating_sub(self.chain.boundary[0]);
        let overhead = step_ns.saturating_sub(self.chain.base);
        self.found.push(Found { need, overhead, source });
    }
}

/// What `eager` finds for a room; `None` when time is up before it has a plan.
fn eager(
    profile: &Profile,
    chain: &Chain,
    room: u64,
    until: Option<Instant>,
) -> Result<Option<crate::Plan>, SolveError> {
    let budget = Bytes::new(room.saturating_add(chain.boundary[0]));
    eager::solve_until(profile, &Request::new(budget), until)
}

/// The actions of a plan that `eager` found for a room.
pub(super) fn eager_actions(profile: &Profile, chain: &Chain, room: u64) -> Option<Vec<Action>> {
    eager(profile, chain, room, None).ok().flatten().map(|plan| plan.actions)
}

impl BySlots {
    fn forwards(self, stages: usize, slots: u32) -> Option<u64> {
        match self {
            Self::Revolve => revolve::forwards(stages, slots),
            Self::Mixed => mixed::forwards(stages, slots),
        }
    }

    pub(super) fn actions(self, stages: usize, slots: u32) -> Result<Vec<Action>, SolveError> {
        match self {
            Self::Revolve => revolve::actions(stages, slots),
            Self::Mixed => mixed::actions(stages, slots),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;
    use crate::{Nanos, StageProfile};

    #[test]
    fn what_time_is_up_for_is_not_begun_and_counts_as_late() {
        let stage = StageProfile {
            name: "stage".to_owned(),
            output_bytes: Bytes::new(1),
            tape_bytes: Bytes::new(9),
            forward_ns: Nanos::new(1),
            ..StageProfile::default()
        };
        let profile = Profile::new("long", "none", Bytes::new(1), vec![stage; 300]).unwrap();
        let chain = Chain::new(&profile);
        let now = Instant::now();
        let below = Below::new(&profile, &chain, 100, now + Duration::from_secs(300));
        assert!(!below.late && below.found.len() > 20);
        // Plans of all three.
        let is = |solver: BySlots| {
            let source =
                |found: &Found| matches!(found.source, Source::Slots { solver: by, .. } if by == solver);
            below.found.iter().any(source)
        };
        assert!(is(BySlots::Revolve) && is(BySlots::Mixed));
        assert!(below.found.iter().any(|found| matches!(found.source, Source::Eager { .. })));
        let late = Below::new(&profile, &chain, 100, now);
        assert!(late.late && late.found.is_empty());
    }
}
