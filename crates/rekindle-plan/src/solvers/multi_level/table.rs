//! The recurrence of one level, filled in.

use super::Level;

/// A cost that no plan has: what cannot be done, or does not fit. Two of them still add up.
pub(super) const NEVER: u64 = u64::MAX >> 2;

/// How many sums are looked at before the bound for a block of them is asked.
const BLOCK: usize = 64;

/// How many sums may be looked at for one level: beyond, slots are left unused, or the chain is refused.
pub(super) const MOST_SUMS: u64 = 1 << 32;

/// How many choices may be held for one level, 128 MiB of them: beyond, slots are left unused.
const MOST_CHOICES: u64 = 1 << 25;

/// About how many sums one row takes: of every block the bound, and of some blocks all.
pub(super) fn sums(count: u32) -> u64 {
    let length = u64::from(count) + 1;
    length * (length / BLOCK as u64 + 8 * BLOCK as u64)
}

/// One level's choices.
pub(super) struct Table {
    /// The cheapest for every length with all slots free and the boundary in none of them.
    pub(super) cost: Vec<u64>,
    /// How many slots make a difference.
    pub(super) slots: u32,
    /// Whether it is the recurrence's optimum for all the slots there are.
    pub(super) exact: bool,
    /// Which row stands for how many free slots.
    kind: Kind,
    rows: Vec<Row>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One row for every number of free slots.
    Counted,
    /// One row for all: slots never run out.
    Endless,
    /// Slots never run out in the forward half, and none is taken after: the second row, for what was stored.
    OnePass,
}

struct Row {
    /// For every length: store the boundary, or leave it to the level below.
    stores: Vec<bool>,
    /// For every length, the boundary being stored: stages to run before the next; 0 leaves it to the level below.
    left: Vec<u32>,
}

impl Table {
    /// With as many slots as the level has.
    pub(super) fn bounded(count: u32, below: &[u64], forward: u64, level: &Level) -> Self {
        if level.slots == 0 {
            let cost = below.to_vec();
            return Self { cost, slots: 0, exact: true, kind: Kind::Counted, rows: Vec::new() };
        }
        // If slots never ran out, how many would be in use at once? If there are as many, that is the answer.
        let (endless, cost, in_use) = endless(below, forward, level);
        if in_use <= level.slots {
            let rows = vec![endless];
            return Self { cost, slots: level.slots, exact: true, kind: Kind::Endless, rows };
        }
        let length = u64::from(count) + 1;
        let most = (MOST_SUMS / sums(count)).min(MOST_CHOICES / length).max(1);
        let wanted = level.slots.min(in_use);
        let slots = u64::from(wanted).min(most) as u32;
        let mut rows: Vec<Row> = Vec::new();
        let mut open = below.to_vec();
        for _ in 0..slots {
            let stored = stored(below, &open, forward, level);
            let (stores, next) = stored.or_store(below, level);
            // One more slot that changes nothing: no further one will.
            let same = next == open;
            open = next;
            rows.push(Row { stores, left: stored.left });
            if same {
                break;
            }
        }
        let saturated = rows.len() < slots as usize;
        let slots = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        Self { cost: open, slots, exact: saturated || slots == wanted, kind: Kind::Counted, rows }
    }

    /// Disk-Revolve: as many slots as it likes, all taken in the forward half.
    pub(super) fn one_pass(_count: u32, below: &[u64], forward: u64, level: &Level) -> Self {
        // What is to the right of a stored boundary once the forward half is over is left to the level below.
        let again = stored(below, below, forward, level);
        let mut open = below.to_vec();
        let mut row = Row { stores: vec![false; below.len()], left: vec![0; below.len()] };
        let mut left = Rising::default();
        left.push(again.cost.first().copied().unwrap_or(NEVER));
        for length in 1..below.len() {
            let (cost, at) = left.cheapest(&open, length, NEVER);
            let cost = cost.saturating_add(level.read).saturating_add(level.write);
            if cost < below[length] {
                (open[length], row.stores[length], row.left[length]) = (cost, true, at);
            }
            left.push(again.cost[length].saturating_add(forward.saturating_mul(length as u64)).min(NEVER));
        }
        let never = vec![false; below.len()];
        let rows = vec![row, Row { stores: never, left: again.left }];
        Self { cost: open, slots: 1, exact: true, kind: Kind::OnePass, rows }
    }

    fn row(&self, free: u32) -> Option<&Row> {
        match self.kind {
            Kind::Endless => self.rows.first(),
            // Free slots are 1 in the forward half, and 0 after.
            Kind::OnePass => self.rows.get(usize::from(free == 0)),
            Kind::Counted => self.rows.get((free as usize).min(self.rows.len()).checked_sub(1)?),
        }
    }

    /// Whether a boundary with so many stages to come is worth a slot.
    pub(super) fn stores(&self, free: u32, stages: u32) -> bool {
        self.row(free).and_then(|row| row.stores.get(stages as usize)).copied().unwrap_or(false)
    }

    /// How many stages to run from a stored boundary before the next; 0 leaves the rest to the level below.
    pub(super) fn left(&self, free: u32, stages: u32) -> u32 {
        self.row(free).and_then(|row| row.left.get(stages as usize)).copied().unwrap_or(0)
    }

    /// The slots that are free to the right of a stored boundary.
    pub(super) fn fewer(&self, free: u32) -> u32 {
        match self.kind {
            Kind::Counted => free.saturating_sub(1),
            Kind::Endless | Kind::OnePass => free,
        }
    }

    /// The slots that are free when a stored boundary is back on the device.
    pub(super) fn again(&self, free: u32) -> u32 {
        match self.kind {
            Kind::OnePass => 0,
            Kind::Counted | Kind::Endless => free,
        }
    }
}

/// For every length, the cheapest from a stored boundary.
struct Stored {
    cost: Vec<u64>,
    left: Vec<u32>,
}

impl Stored {
    /// The cheapest from a boundary that is not stored but may be.
    fn or_store(&self, below: &[u64], level: &Level) -> (Vec<bool>, Vec<u64>) {
        let with_write = self.cost.iter().map(|cost| cost.saturating_add(level.write).min(NEVER));
        let both = below.iter().zip(with_write);
        both.map(|(below, stored)| (stored < *below, stored.min(*below))).unzip()
    }
}

/// Fills a row, given what the stages to the right cost.
fn stored(below: &[u64], right: &[u64], forward: u64, level: &Level) -> Stored {
    let mut found = Stored { cost: below.to_vec(), left: vec![0; below.len()] };
    let mut left = Rising::default();
    for length in 0..below.len() {
        // Not worth more than the level below costs, once it has been read.
        let limit = below[length].saturating_sub(level.read);
        let (cost, at) = left.cheapest(right, length, limit);
        if at > 0 {
            (found.cost[length], found.left[length]) = (cost.saturating_add(level.read).min(NEVER), at);
        }
        left.push(found.cost[length].saturating_add(forward.saturating_mul(length as u64)).min(NEVER));
    }
    found
}

/// The row for slots that never run out, its cost for a boundary that is not stored, and the most slots in use.
fn endless(below: &[u64], forward: u64, level: &Level) -> (Row, Vec<u64>, u32) {
    let count = below.len();
    let mut row = Row { stores: vec![false; count], left: vec![0; count] };
    let mut open = below.to_vec();
    let (mut open_slots, mut stored_slots) = (vec![0u32; count], vec![1u32; count]);
    let mut left = Rising::default();
    for length in 0..count {
        let limit = below[length].saturating_sub(level.read);
        let (cost, at) = left.cheapest(&open, length, limit);
        let mut stored = below[length];
        if at > 0 {
            stored = cost.saturating_add(level.read).min(NEVER);
            row.left[length] = at;
            let right = open_slots[length - at as usize].saturating_add(1);
            stored_slots[length] = right.max(stored_slots[at as usize]);
        }
        left.push(stored.saturating_add(forward.saturating_mul(length as u64)).min(NEVER));
        let with_write = stored.saturating_add(level.write).min(NEVER);
        if with_write < below[length] {
            (open[length], row.stores[length]) = (with_write, true);
            open_slots[length] = stored_slots[length];
        }
    }
    let in_use = open_slots.last().copied().unwrap_or(0);
    (row, open, in_use)
}

/// The costs of the left part for every length so far, which never fall.
#[derive(Default)]
struct Rising(Vec<u64>);

impl Rising {
    fn push(&mut self, cost: u64) {
        self.0.push(cost);
    }

    /// The cheapest way to split `length` into a left part and one to the right, which must cost less than `limit`, and
    /// the length of the left part; 0 when there is none.
    ///
    /// Both never fall as their parts get longer, so a block of lengths costs at least its shortest left part and its
    /// shortest right part; most blocks are ruled out by that.
    fn cheapest(&self, right: &[u64], length: usize, limit: u64) -> (u64, u32) {
        let (mut best, mut best_at) = (limit.min(NEVER), 0);
        let mut start = 1;
        while start < length {
            if self.0[start] >= best {
                break;
            }
            let end = (start + BLOCK).min(length);
            if self.0[start].saturating_add(right[length - end + 1]) < best {
                let lefts = &self.0[start..end];
                let rights = &right[length - end + 1..=length - start];
                let sums = lefts.iter().zip(rights.iter().rev()).map(|(left, right)| left + right);
                let cheapest = sums.clone().min().unwrap_or(NEVER);
                if cheapest < best {
                    best = cheapest;
                    best_at = start + sums.take_while(|sum| *sum != cheapest).count();
                }
            }
            start = end;
        }
        (best, best_at as u32)
    }
}
