//! The recurrence of one level, filled in.

use super::Level;

/// A cost that no plan has: what cannot be done, or does not fit. Two of them still add up.
pub(super) const NEVER: u64 = u64::MAX >> 2;

/// How many sums are looked at before the bound for a block of them is asked.
const BLOCK: usize = 64;

/// How many sums may be looked at for one level, about a second's worth: beyond, it is not solved exactly.
const MOST_SUMS: u64 = 1 << 30;

/// How many choices may be held for one level, 128 MiB of them: beyond, it is not solved exactly.
const MOST_CHOICES: u64 = 1 << 25;

/// How many prices of a write are tried then.
const MOST_PRICES: u32 = 24;

/// One level's choices.
pub(super) struct Table {
    /// The cheapest for every length with all slots free and the boundary in none of them.
    pub(super) cost: Vec<u64>,
    /// How many slots make a difference.
    pub(super) slots: u32,
    /// Whether it is the recurrence's optimum for all the slots there are.
    pub(super) exact: bool,
    kind: Kind,
    rows: Vec<Row>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One row for every number of free slots.
    Counted,
    /// One row for all: slots never run out.
    Endless,
    /// Slots never run out in the forward half, and none is taken after: a second row for what was stored by then.
    OnePass,
}

struct Row {
    /// For every length: store the boundary, or leave it to the level below.
    stores: Vec<bool>,
    /// For every length, the boundary being stored: stages to run before the next; 0 leaves it to the level below.
    left: Vec<u32>,
}

impl Row {
    /// What the choices of a row for slots that never run out come to.
    fn cost(&self, below: &[u64], forward: u64, level: &Level) -> Vec<u64> {
        let (mut open, mut stored) = (below.to_vec(), below.to_vec());
        for length in 0..below.len() {
            let at = self.left[length] as usize;
            if at > 0 {
                let left = with_forwards(stored[at], forward, at);
                stored[length] = (left + open[length - at]).saturating_add(level.read).min(NEVER);
            }
            if self.stores[length] {
                open[length] = stored[length].saturating_add(level.write).min(NEVER);
            }
        }
        open
    }
}

impl Table {
    /// With as many slots as the level has.
    pub(super) fn bounded(below: &[u64], forward: u64, level: &Level) -> Self {
        if level.slots == 0 {
            return Self::unused(below, true);
        }
        let mut sums = Sums::default();
        // If slots never ran out, how many would be in use at once? If there are as many, that is the answer.
        let Some(found) = endless(&mut sums, below, forward, level) else {
            return Self::unused(below, false);
        };
        if found.in_use <= level.slots {
            return Self::endless(found, level, true);
        }
        let slots = u64::from(level.slots);
        let affordable = sums.looked_at.saturating_mul(slots) <= MOST_SUMS
            && slots.saturating_mul(below.len() as u64) <= MOST_CHOICES;
        let counted = affordable.then(|| Self::counted(&mut sums, below, forward, level)).flatten();
        counted.unwrap_or_else(|| Self::priced(below, forward, level))
    }

    /// One row for each slot. `None` when that takes too long.
    fn counted(sums: &mut Sums, below: &[u64], forward: u64, level: &Level) -> Option<Self> {
        let mut rows: Vec<Row> = Vec::new();
        let mut open = Rising::of(below);
        for _ in 0..level.slots {
            let stored = stored(sums, below, &open, forward, level)?;
            let (stores, next) = stored.or_store(below, level);
            let same = next == open.cost;
            open = Rising::of(&next);
            rows.push(Row { stores, left: stored.left });
            // One more slot that changes nothing: no further one will.
            if same {
                break;
            }
        }
        let slots = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        Some(Self { cost: open.cost, slots, exact: true, kind: Kind::Counted, rows })
    }

    /// For chains too long to count every slot: slots never run out, but a write is dearer than it is, by as little as
    /// makes the plan use no more slots than there are. Close to the optimum, and no proof of it.
    fn priced(below: &[u64], forward: u64, level: &Level) -> Self {
        let mut sums = Sums::default();
        let mut best = None;
        let (mut low, mut high) = (0u64, None::<u64>);
        let mut price = forward.max(1);
        for _ in 0..MOST_PRICES {
            let dearer = Level { write: level.write.saturating_add(price), ..level.clone() };
            let Some(found) = endless(&mut sums, below, forward, &dearer) else { break };
            if found.in_use <= level.slots {
                high = Some(price);
                best = Some(found);
            } else {
                low = price;
            }
            price = match high {
                None => price.saturating_mul(4).min(NEVER),
                Some(high) => low + (high - low) / 2,
            };
            if price == low {
                break;
            }
        }
        let Some(mut found) = best else { return Self::unused(below, false) };
        found.cost = found.row.cost(below, forward, level);
        Self::endless(found, level, false)
    }

    fn endless(found: Endless, level: &Level, exact: bool) -> Self {
        let rows = vec![found.row];
        Self { cost: found.cost, slots: level.slots, exact, kind: Kind::Endless, rows }
    }

    /// Disk-Revolve: as many slots as it likes, all taken in the forward half.
    pub(super) fn one_pass(below: &[u64], forward: u64, level: &Level) -> Self {
        let mut sums = Sums::default();
        let found = one_pass(&mut sums, below, forward, level);
        let Some((cost, rows)) = found else { return Self::unused(below, false) };
        Self { cost, slots: 1, exact: true, kind: Kind::OnePass, rows }
    }

    fn unused(below: &[u64], exact: bool) -> Self {
        Self { cost: below.to_vec(), slots: 0, exact, kind: Kind::Counted, rows: Vec::new() }
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

/// What a left part of so many stages costs, with the forwards that first went through it.
fn with_forwards(cost: u64, forward: u64, length: usize) -> u64 {
    cost.saturating_add(forward.saturating_mul(length as u64)).min(NEVER)
}

/// Fills a row, given what the stages to the right cost. `None` when that takes too long.
fn stored(sums: &mut Sums, below: &[u64], right: &Rising, forward: u64, level: &Level) -> Option<Stored> {
    let mut found = Stored { cost: below.to_vec(), left: vec![0; below.len()] };
    let mut left = Rising::default();
    for (length, alone) in below.iter().enumerate() {
        // Not worth more than the level below costs, once it has been read.
        let limit = alone.saturating_sub(level.read);
        let (cost, at) = sums.cheapest(&left, right, length, limit)?;
        if at > 0 {
            (found.cost[length], found.left[length]) = (cost.saturating_add(level.read).min(NEVER), at);
        }
        left.push(with_forwards(found.cost[length], forward, length));
    }
    Some(found)
}

/// A row for slots that never run out.
struct Endless {
    row: Row,
    /// For a boundary that is not stored.
    cost: Vec<u64>,
    /// The most slots in use at once, whatever the length.
    in_use: u32,
}

fn endless(sums: &mut Sums, below: &[u64], forward: u64, level: &Level) -> Option<Endless> {
    let count = below.len();
    let mut row = Row { stores: vec![false; count], left: vec![0; count] };
    let (mut open_slots, mut stored_slots) = (vec![0u32; count], vec![1u32; count]);
    let (mut left, mut open) = (Rising::default(), Rising::default());
    for length in 0..count {
        let limit = below[length].saturating_sub(level.read);
        let (cost, at) = sums.cheapest(&left, &open, length, limit)?;
        let mut stored = below[length];
        if at > 0 {
            stored = cost.saturating_add(level.read).min(NEVER);
            row.left[length] = at;
            let right = open_slots[length - at as usize].saturating_add(1);
            stored_slots[length] = right.max(stored_slots[at as usize]);
        }
        left.push(with_forwards(stored, forward, length));
        let with_write = stored.saturating_add(level.write).min(NEVER);
        row.stores[length] = with_write < below[length];
        if row.stores[length] {
            open_slots[length] = stored_slots[length];
        }
        open.push(with_write.min(below[length]));
    }
    let in_use = open_slots.into_iter().max().unwrap_or(0);
    Some(Endless { row, cost: open.cost, in_use })
}

/// The cost for a boundary that is not stored, and the rows before and after the turn.
fn one_pass(sums: &mut Sums, below: &[u64], forward: u64, level: &Level) -> Option<(Vec<u64>, Vec<Row>)> {
    // What is to the right of a stored boundary once the forward half is over is left to the level below.
    let again = stored(sums, below, &Rising::of(below), forward, level)?;
    let left = again.cost.iter().enumerate().map(|(length, cost)| with_forwards(*cost, forward, length));
    let left = Rising::of(&left.collect::<Vec<_>>());
    let mut row = Row { stores: vec![false; below.len()], left: vec![0; below.len()] };
    let mut open = Rising::default();
    for (length, alone) in below.iter().enumerate() {
        let transfers = level.read.saturating_add(level.write);
        let (cost, at) = sums.cheapest(&left, &open, length, alone.saturating_sub(transfers))?;
        (row.stores[length], row.left[length]) = (at > 0, at);
        open.push(if at > 0 { cost.saturating_add(transfers).min(NEVER) } else { *alone });
    }
    let never = vec![false; below.len()];
    Some((open.cost, vec![row, Row { stores: never, left: again.left }]))
}

/// The costs of a part for every length, which never fall from length 1 on.
///
/// They do not, by induction over the recurrence: with one stage more, every split costs at least as much on its right
/// or has its whole left part to pay for, and the level below costs at least as much.
#[derive(Default)]
struct Rising {
    cost: Vec<u64>,
    /// The lengths at which the slope changes. Between two of them, costs lie on a line.
    bends: Vec<u32>,
}

impl Rising {
    fn of(costs: &[u64]) -> Self {
        let mut rising = Self { cost: Vec::with_capacity(costs.len()), bends: Vec::new() };
        costs.iter().for_each(|cost| rising.push(*cost));
        rising
    }

    fn push(&mut self, cost: u64) {
        if let [.., before, last] = self.cost.as_slice()
            && last.wrapping_sub(*before) != cost.wrapping_sub(*last)
        {
            self.bends.push((self.cost.len() - 1) as u32);
        }
        self.cost.push(cost);
    }
}

/// Looks for the cheapest split, and counts how much it looks at.
#[derive(Default)]
struct Sums {
    looked_at: u64,
}

impl Sums {
    /// The cheapest way to split `length` into a left part and one to the right, which must cost less than `limit`, and
    /// the length of the left part; 0 when there is none. `None` when too much has been looked at.
    fn cheapest(&mut self, left: &Rising, right: &Rising, length: usize, limit: u64) -> Option<(u64, u32)> {
        let mut best = (limit.min(NEVER), 0);
        if length < 2 || best.0 == 0 {
            return Some(best);
        }
        if (left.bends.len() + right.bends.len()) * 4 < length {
            self.at_bends(left, right, length, &mut best);
        } else {
            self.in_blocks(&left.cost, &right.cost, length, &mut best);
        }
        (self.looked_at <= MOST_SUMS).then_some(best)
    }

    /// The sum of two lines is a line: the cheapest split is at a bend of either part, or at an end.
    fn at_bends(&mut self, left: &Rising, right: &Rising, length: usize, best: &mut (u64, u32)) {
        let mut look = |at: usize| {
            let sum = left.cost[at] + right.cost[length - at];
            if sum < best.0 {
                *best = (sum, at as u32);
            }
            best.0
        };
        look(1);
        look(length - 1);
        let mut looked_at = 2;
        for bend in &left.bends {
            let at = *bend as usize;
            looked_at += 1;
            if at >= length || (at > 0 && left.cost[at] >= look(at)) {
                break;
            }
        }
        for bend in &right.bends {
            let rest = *bend as usize;
            looked_at += 1;
            if rest >= length || (rest > 0 && right.cost[rest] >= look(length - rest)) {
                break;
            }
        }
        self.looked_at += looked_at;
    }

    /// Both parts never fall as they get longer, so a block of splits costs at least its shortest left part and its
    /// shortest right part; most blocks are ruled out by that.
    fn in_blocks(&mut self, left: &[u64], right: &[u64], length: usize, best: &mut (u64, u32)) {
        let mut start = 1;
        while start < length && left[start] < best.0 {
            let end = (start + BLOCK).min(length);
            self.looked_at += 1;
            if left[start] + right[length - end + 1] < best.0 {
                self.looked_at += BLOCK as u64;
                let lefts = left[start..end].iter();
                let rights = right[length - end + 1..=length - start].iter().rev();
                let sums = lefts.zip(rights).map(|(left, right)| left + right);
                let cheapest = sums.clone().min().unwrap_or(NEVER);
                if cheapest < best.0 {
                    let at = start + sums.take_while(|sum| *sum != cheapest).count();
                    *best = (cheapest, at as u32);
                }
            }
            start = end;
        }
    }
}
