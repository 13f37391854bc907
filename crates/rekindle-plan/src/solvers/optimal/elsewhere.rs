//! Plans that move boundaries away: those of the recurrence with places, and of solvers that go further in other ways.
//!
//! The recurrence takes long chains in groups, so it knows neither their smallest budgets nor plans for little room. And a
//! copy in a tier that stays for a second sweep is not in its class. So what asks for the least room alone is beside it,
//! and so is H-Revolve: whoever is fastest is taken.

use std::time::{Duration, Instant};

use super::chain::Chain;
use super::frontier::halfway;
use super::looks::{Found, Source};
use super::places::Places;
use crate::solvers::multi_level::Way;
use crate::solvers::slots::Tried;
use crate::{Action, Bytes, Profile, simulate};

/// The least room is raised by one part in so many, again and again.
const PART: u64 = 16;

/// What was found with boundaries moved away.
#[derive(Debug)]
pub(super) struct Elsewhere {
    /// The recurrence, in groups and in smaller ones.
    places: Vec<Places>,
    /// What asks for the least room, of chains that the recurrence does not solve exactly.
    least: Option<Places>,
    /// Plans of the others: what each really needs and costs.
    others: Vec<Found>,
    /// Whether time was up before everything was looked at.
    pub(super) late: bool,
}

impl Elsewhere {
    /// Looks for plans within `room`, until one has an overhead that is `enough`; `None` when the profile has no place to
    /// move anything to.
    pub(super) fn of(
        profile: &Profile,
        chain: &Chain,
        room: u64,
        until: Instant,
        enough: impl Fn(u64) -> bool,
    ) -> Option<Self> {
        if !profile.has_places() {
            return None;
        }
        // These know plans for little room soonest.
        let mut others = Vec::new();
        for way in [Way::HRevolve, Way::DiskRevolve] {
            let found = |tried: Tried| Found {
                need: tried.peak_bytes.get().saturating_sub(chain.boundary[0]),
                overhead: tried.step_ns.get().saturating_sub(chain.base),
                source: Source::Levels { way, slots: tried.slots },
            };
            others.extend(way.every(profile, halfway(until)).into_iter().map(found));
        }
        let start = Instant::now();
        let first = Places::new(profile, chain, Places::first_size(chain), room, halfway(until))?;
        let each = start.elapsed();
        let least = if first.thinned { Places::least(profile, chain, halfway(until)) } else { None };
        let mut elsewhere = Self { places: vec![first], least, others, late: false };
        elsewhere.look_from_the_least(profile, chain, room, until);
        elsewhere.late |= Instant::now() > until;
        let done = |elsewhere: &Self| elsewhere.best(room).is_some_and(|found| enough(found.overhead));
        elsewhere.in_smaller_groups(profile, chain, room, (each, until), done);
        Some(elsewhere)
    }

    /// Takes the chain in smaller groups while that does not take much of the time that is left. Halving them takes eight
    /// times as long as the groups before, which took `each`.
    fn in_smaller_groups(
        &mut self,
        profile: &Profile,
        chain: &Chain,
        room: u64,
        (mut each, until): (Duration, Instant),
        done: impl Fn(&Self) -> bool,
    ) {
        let mut size = Places::first_size(chain);
        while size > 1 && !done(self) {
            let part = until.saturating_duration_since(Instant::now()) / 2;
            each = each.saturating_mul(8);
            if each > part {
                return;
            }
            size = size.div_ceil(2);
            let start = Instant::now();
            let Some(places) = Places::new(profile, chain, size, room, start + part) else { return };
            self.places.push(places);
            each = start.elapsed();
        }
    }

    /// Plans for the least room and for more, where the recurrence has none or they may be faster. Which rooms are looked
    /// at does not depend on `room`, so more of it never gives a slower plan.
    fn look_from_the_least(&mut self, profile: &Profile, chain: &Chain, room: u64, until: Instant) {
        let Some(least) = self.least.as_ref().and_then(Places::least_room) else { return };
        let next = |room: &u64| Some(room.saturating_add((room / PART).max(1)));
        let groups = self.places[0].least_room().map_or(u64::MAX, |room| room.saturating_mul(2));
        let most = room.min(groups).min(chain.store_all_room());
        for (step, room) in std::iter::successors(Some(least), next).take_while(|at| *at <= most).enumerate()
        {
            if step > 0 && Instant::now() > until {
                self.late = true;
                return;
            }
            let source = Source::LeastPlaces { room };
            let Some(simulation) = self.actions(profile, source).and_then(|all| simulate(profile, &all).ok())
            else {
                continue;
            };
            let need = simulation.peak_bytes.get().saturating_sub(chain.boundary[0]).min(room);
            let overhead = simulation.step_ns.get().saturating_sub(chain.base);
            self.others.push(Found { need, overhead, source });
        }
    }

    /// The fastest plan known for a room.
    pub(super) fn best(&self, room: u64) -> Option<Found> {
        self.of_class(room).into_iter().chain(self.other(room)).reduce(|best, other| other.better(Some(best)))
    }

    /// The fastest plan of the recurrence's class.
    pub(super) fn of_class(&self, room: u64) -> Option<Found> {
        let found = |(index, places): (usize, &Places)| {
            let overhead = places.overhead(room)?;
            Some(Found { need: room, overhead, source: Source::Places { index, room } })
        };
        self.places.iter().enumerate().filter_map(found).reduce(|best, other| other.better(Some(best)))
    }

    /// The recurrence, where every cell of it was looked at.
    fn exact(&self) -> Option<&Places> {
        self.places.first().filter(|places| !places.thinned)
    }

    /// The fastest plan of the others.
    fn other(&self, room: u64) -> Option<Found> {
        let fits = self.others.iter().filter(|found| found.need <= room).copied();
        fits.reduce(|best, other| other.better(Some(best)))
    }

    /// All plans of the others.
    pub(super) fn others(&self) -> &[Found] {
        &self.others
    }

    /// The smallest budget there is a plan for, up to the room that was asked for.
    pub(super) fn least_budget(&self, chain: &Chain) -> Option<Bytes> {
        let recurrences = self.places.iter().chain(&self.least).filter_map(Places::least_room);
        let rooms = recurrences.chain(self.others.iter().map(|found| found.need));
        rooms.min()?.checked_add(chain.boundary[0]).map(Bytes::new)
    }

    /// Overhead that no plan of the class can do without, when it is known: when every cell was looked at, and no plan of
    /// another class is faster.
    pub(super) fn proven(&self, room: u64) -> Option<u64> {
        let overhead = self.exact()?.overhead(room)?;
        self.other(room).is_none_or(|other| other.overhead >= overhead).then_some(overhead)
    }

    /// The rooms at which the overhead falls, when that is known of all of them.
    pub(super) fn steps(&self) -> Option<impl Iterator<Item = Found>> {
        let known = self.others.iter().all(|other| self.proven(other.need).is_some());
        let found =
            |(room, overhead)| Found { need: room, overhead, source: Source::Places { index: 0, room } };
        self.exact().filter(|_| known).map(|places| places.steps().map(found))
    }

    /// The actions of a plan that was found here.
    pub(super) fn actions(&self, profile: &Profile, source: Source) -> Option<Vec<Action>> {
        match source {
            Source::Places { index, room } => self.places.get(index)?.actions(room),
            Source::LeastPlaces { room } => self.least.as_ref()?.actions(room),
            Source::Levels { way, slots } => way.actions(profile, slots).ok(),
            _ => None,
        }
    }
}
