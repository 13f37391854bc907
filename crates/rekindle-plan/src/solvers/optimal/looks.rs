//! The rooms at which a frontier is looked at, and what was found there.

use super::chain::Chain;
use super::knapsack::Knapsack;
use crate::Gap;

/// A room is looked at about so often before it is twice as large.
const LOOKS: u64 = 20;

/// Where a plan is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    StoreAll,
    /// The staircases or a grid of a view, asked for a room.
    View {
        view: usize,
        grid: usize,
        room: u64,
    },
    /// Boundaries are moved, in a room.
    Places {
        room: u64,
    },
    /// A very long chain where groups hardly fit: so many slots.
    Slots {
        solver: BySlots,
        slots: u32,
    },
    /// The same, within a room.
    Eager {
        room: u64,
    },
}

/// A solver whose plan follows from a number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BySlots {
    Revolve,
    Mixed,
}

/// A plan that was found, not yet written down.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// The room it needs.
    pub(super) need: u64,
    pub(super) overhead: u64,
    pub(super) source: Source,
}

impl Found {
    /// The faster of two plans; the smaller of two that are as fast.
    pub(super) fn better(self, other: Option<Self>) -> Self {
        let key = |found: &Self| (found.overhead, found.need);
        other.filter(|other| key(other) <= key(&self)).unwrap_or(self)
    }
}

/// A room, the fastest plan found for it, and overhead that no plan within the need of that one can do without.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) room: u64,
    pub(super) found: Option<Found>,
    pub(super) bound: u64,
}

/// Looks at rooms from the smallest to just below what keeping everything takes.
#[derive(Debug)]
pub(super) struct Looks {
    pub(super) list: Vec<Look>,
    base: u64,
    gap: Gap,
}

impl Looks {
    pub(super) fn new(chain: &Chain, knapsack: &Knapsack, least: u64, gap: Gap) -> Self {
        let next = |room: &u64| Some(room.saturating_add((room / LOOKS).max(1)));
        let rooms = std::iter::successors(Some(least), next);
        let rooms = rooms.take_while(|room| *room < chain.store_all_room());
        let look = |room| Look { room, found: None, bound: knapsack.bound(room) };
        Self { list: rooms.map(look).collect(), base: chain.base, gap }
    }

    /// Whether the plan at a look is as close to its bound as was asked.
    pub(super) fn close(&self, look: usize) -> bool {
        self.gap(look) <= self.gap.get()
    }

    /// What may be left to gain at a look, as a fraction of its plan's time; everything when there is no plan.
    pub(super) fn gap(&self, look: usize) -> f64 {
        let Look { found, bound, .. } = &self.list[look];
        let Some(found) = found else { return f64::INFINITY };
        let left = found.overhead.saturating_sub(*bound);
        if left == 0 { 0.0 } else { left as f64 / self.base.saturating_add(found.overhead) as f64 }
    }

    /// Keeps a plan that is better than what there is at a look.
    pub(super) fn take(&mut self, index: usize, found: Option<Found>) {
        let look = &mut self.list[index];
        look.found = found.map(|found| found.better(look.found)).or(look.found);
    }

    /// Keeps a bound, told for the room that the plan at a look needs, that is above what there is.
    pub(super) fn raise(&mut self, index: usize, bound: impl Fn(u64) -> u64) {
        let look = &mut self.list[index];
        let need = look.found.map_or(look.room, |found| found.need);
        look.bound = look.bound.max(bound(need));
    }
}
