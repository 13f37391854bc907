//! The rooms at which a frontier is looked at, and what was found there.

use super::chain::Chain;
use super::knapsack::Knapsack;
use crate::Gap;
use crate::solvers::multi_level::Way;

/// A room is looked at about so often before it is twice as large.
const LOOKS: u64 = 20;

/// Where a plan is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    StoreAll,
    /// The staircases or a grid of a view, asked for a room with some slots left aside.
    View {
        view: usize,
        grid: usize,
        room: u64,
        aside: u64,
    },
    /// The choices of a view that were written down.
    Written {
        view: usize,
        index: usize,
    },
    /// The least rooms of a view.
    Halving {
        view: usize,
        room: u64,
    },
    /// Boundaries are moved, by one of the recurrences, in a room.
    Places {
        index: usize,
        room: u64,
    },
    /// Boundaries are moved so that as little room as possible is needed.
    LeastPlaces {
        room: u64,
    },
    /// Boundaries are moved by H-Revolve or Disk-Revolve, with so many slots on the device.
    Levels {
        way: Way,
        slots: u32,
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

/// A room, the fastest plan found for it, and what was proven there.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) room: u64,
    pub(super) found: Option<Found>,
    /// Rooms, and overhead that no plan within each can do without.
    proven: Vec<(u64, u64)>,
}

impl Look {
    /// Overhead that no plan can do without within what the plan that was found needs.
    pub(super) fn bound(&self) -> u64 {
        // What holds for more room holds for less, but not the other way round.
        let need = self.found.map_or(self.room, |found| found.need);
        let proven = self.proven.iter().filter(|(room, _)| *room >= need).map(|(_, bound)| *bound);
        proven.max().unwrap_or(0)
    }

    /// Keeps what was proven of a room, unless as much is known.
    fn prove(&mut self, room: u64, bound: u64) {
        if !self.proven.iter().any(|known| known.0 >= room && known.1 >= bound) {
            self.proven.retain(|known| known.0 > room || known.1 > bound);
            self.proven.push((room, bound));
        }
    }
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
        let look = |room| Look { room, found: None, proven: vec![(room, knapsack.bound(room))] };
        Self { list: rooms.map(look).collect(), base: chain.base, gap }
    }

    /// Takes the looks at larger rooms away, from one on.
    pub(super) fn split_off(&mut self, from: usize) -> Self {
        Self { list: self.list.split_off(from), base: self.base, gap: self.gap }
    }

    /// Puts looks at larger rooms back.
    pub(super) fn append(&mut self, mut larger: Self) {
        self.list.append(&mut larger.list);
    }

    /// Whether the plan at a look is as close to its bound as was asked.
    pub(super) fn close(&self, look: usize) -> bool {
        self.gap(look) <= self.gap.get()
    }

    /// What may be left to gain at a look, as a fraction of its plan's time; everything when there is no plan.
    pub(super) fn gap(&self, look: usize) -> f64 {
        let look = &self.list[look];
        let Some(found) = look.found else { return f64::INFINITY };
        let left = found.overhead.saturating_sub(look.bound());
        if left == 0 { 0.0 } else { left as f64 / self.base.saturating_add(found.overhead) as f64 }
    }

    /// Keeps a plan that is better than what there is at a look.
    pub(super) fn take(&mut self, index: usize, found: Option<Found>) {
        let look = &mut self.list[index];
        look.found = found.map(|found| found.better(look.found)).or(look.found);
    }

    /// Keeps what is proven of the room that the plan at a look needs.
    pub(super) fn raise(&mut self, index: usize, bound: impl Fn(u64) -> u64) {
        let look = &mut self.list[index];
        let need = look.found.map_or(look.room, |found| found.need);
        look.prove(need, bound(need));
    }
}
