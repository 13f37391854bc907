//! Bytes and nanoseconds in few bits, and what that may hide.
//!
//! On a grid every size is rounded to the nearest number of slots. Some sizes grow by it, so a plan that fits the true
//! room may need a few slots more: at most [`Scale::hidden`], the largest growth of anything that can be alive at once
//! within the room. What the grid says of a room *that much larger* is therefore a lower bound for the true one. Times are
//! rounded down, which only lowers it.

use std::collections::{BTreeMap, BTreeSet};

use super::chain::Chain;

/// How sizes and times become numbers of the grid.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    /// Bytes in a slot.
    pub(super) slot: u64,
    /// Nanoseconds in a unit of overhead.
    pub(super) unit: u64,
    /// What can grow. What grows most for its size comes first.
    growing: Vec<Moved>,
    /// The most slots by which what a running action needs can grow.
    running: f64,
}

/// Sizes that rounding moves: their bytes, by how many slots each, and how many there are.
#[derive(Clone, Debug)]
struct Moved {
    bytes: u64,
    by: f64,
    count: u64,
}

/// Scales that are looked at for the one on which least is hidden.
const CANDIDATES: u64 = 48;

/// A slot is fitted to sizes that at least one boundary in so many has.
const USUAL: u64 = 8;

/// How many slots a scale should have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    pub(super) about: u64,
    fewest: u64,
}

impl Slots {
    /// About so many: a grid of fewer was not fine enough.
    pub(super) fn no_fewer(about: u64) -> Self {
        Self { about, fewest: about }
    }
}

impl From<u64> for Slots {
    /// About so many, or down to a sixteenth of it where that is as good.
    fn from(about: u64) -> Self {
        Self { about, fewest: about / 16 }
    }
}

/// When no more slots than this are lost and gained by rounding, finer ones would not tell more.
const HARDLY: f64 = 0.5;

/// How many different needs of actions are looked at one by one.
const FEW_NEEDS: usize = 512;

impl Scale {
    /// A scale of about so many slots in `room`, on which little is hidden.
    pub(super) fn new(chain: &Chain, room: u64, slots: Slots, unit: u64) -> Self {
        let Slots { about, fewest } = slots;
        let common = common_divisor(chain);
        if room / common <= about.saturating_mul(2) {
            return Self { slot: common, unit, growing: Vec::new(), running: 0.0 };
        }
        // A chain of few different sizes is nearly exact on the right grid: look around for it.
        let sizes = Sizes::of(chain);
        let smallest = (room / about.saturating_add(about / 4)).max(1);
        let largest = (room / about.max(1)).max(smallest);
        let around = (0..=CANDIDATES).map(|step| smallest + (largest - smallest) / CANDIDATES * step);
        let fitted = sizes.usual().flat_map(|size| {
            let coarsest = (room / fewest.max(1)).max(largest);
            let counts = size.div_ceil(coarsest)..=size / smallest;
            counts.take(CANDIDATES as usize).map(move |count| size / count.max(1))
        });
        let scales = around.chain(fitted).filter(|slot| *slot > 0).map(|slot| {
            let growing = sizes.moved(1.0, slot);
            let scale = Self { slot, unit, growing, running: sizes.running(slot) };
            let moved = scale.hidden(room) + most_within(&sizes.moved(-1.0, slot), room);
            // Where next to nothing moves, the fewest slots are best; elsewhere half of them are worth a little more.
            let price = if moved < HARDLY { -(slot as f64) } else { moved * (slot as f64).sqrt() };
            (scale, price)
        });
        let best = scales.min_by(|left, right| left.1.total_cmp(&right.1));
        let last = || Self { slot: largest, unit, growing: sizes.moved(1.0, largest), running: 0.5 };
        best.map_or_else(last, |best| best.0)
    }

    /// The slots a size takes, to the nearest; saturating far above any grid.
    pub(super) fn slots(&self, bytes: u64) -> u32 {
        let slots = bytes.saturating_add(self.slot / 2) / self.slot;
        u32::try_from(slots).unwrap_or(u32::MAX).min(1 << 30)
    }

    /// The slots a boundary takes: at least one. Boundaries are often far smaller than tapes, and a grid on which they
    /// cost nothing would keep them all.
    pub(super) fn boundary_slots(&self, bytes: u64) -> u32 {
        self.slots(bytes).max(u32::from(bytes > 0))
    }

    /// The largest size that takes at most `slots` slots, or `None` when there is none.
    pub(super) fn most_bytes(&self, slots: u64) -> Option<u64> {
        ((slots + 1).saturating_mul(self.slot) - 1).checked_sub(self.slot / 2)
    }

    /// The units of a time, rounded down.
    pub(super) fn units(&self, nanos: u64) -> u16 {
        u16::try_from(nanos / self.unit).unwrap_or(u16::MAX)
    }

    /// How many slots more than `room` rounding can make of what fits into it.
    pub(super) fn hidden(&self, room: u64) -> f64 {
        // What is held, greedily: an upper bound of the knapsack.
        most_within(&self.growing, room) + self.running
    }

    /// The slots in which everything that fits `room` fits, however it is rounded.
    pub(super) fn slots_for_bound(&self, room: u64) -> u64 {
        let slots = room as f64 / self.slot as f64 + self.hidden(room);
        // Up by what the sum of floating numbers may have lost.
        (slots * (1.0 + 1e-9) + 1e-9).floor() as u64
    }
}

/// How many slots a size gains by being rounded; negative when it loses.
fn gain(bytes: u64, slot: u64) -> f64 {
    let over = bytes % slot;
    let gained = if over >= slot - slot / 2 { (slot - over) as f64 } else { -(over as f64) };
    gained / slot as f64
}

/// The same for a boundary, which takes at least a slot.
fn boundary_gain(bytes: u64, slot: u64) -> f64 {
    if (1..slot).contains(&bytes) { (slot - bytes) as f64 / slot as f64 } else { gain(bytes, slot) }
}

/// The sizes of what can be held, equal ones counted: chains repeat.
struct Sizes {
    /// Boundaries, and how many there are of each size.
    boundaries: Vec<(u64, u64)>,
    /// The ways to tape a stage, and how many stages have them.
    tapes: Vec<(Vec<u64>, u64)>,
    /// What actions need while they run, beside what is held; nothing when too many are different.
    needs: Option<BTreeSet<u64>>,
}

impl Sizes {
    fn of(chain: &Chain) -> Self {
        let tapes = chain.tapes.iter().map(|ways| ways.iter().map(|tape| tape.bytes).collect());
        let boundaries = counted(chain.boundary.iter().copied());
        Self { boundaries, tapes: counted(tapes), needs: needs(chain) }
    }

    /// The sizes that many boundaries have.
    fn usual(&self) -> impl Iterator<Item = u64> {
        let all: u64 = self.boundaries.iter().map(|(_, count)| count).sum();
        let usual = self.boundaries.iter().filter(move |(bytes, count)| *bytes > 0 && *count >= all / USUAL);
        usual.map(|(bytes, _)| *bytes)
    }

    /// The most slots by which what a running action needs can grow.
    fn running(&self, slot: u64) -> f64 {
        // To the nearest slot nothing grows by more than half of one.
        let needs = self.needs.as_ref().map(|needs| needs.iter().map(|bytes| gain(*bytes, slot)));
        needs.map_or(0.5, |gains| gains.fold(0.0, f64::max))
    }

    /// What rounding moves up, or down for a negative sign: the most slots for a byte first.
    fn moved(&self, sign: f64, slot: u64) -> Vec<Moved> {
        let boundaries = self.boundaries.iter().map(|(bytes, count)| Moved {
            bytes: *bytes,
            by: sign * boundary_gain(*bytes, slot),
            count: *count,
        });
        let tapes = self.tapes.iter().filter_map(|(ways, count)| {
            let moving = ways.iter().map(|bytes| (*bytes, sign * gain(*bytes, slot)));
            // Of a stage's options one is held: no more than the largest movement for the smallest size.
            let most = moving
                .filter(|(_, by)| *by > 0.0)
                .reduce(|left, right| (left.0.min(right.0), left.1.max(right.1)));
            most.map(|(bytes, by)| Moved { bytes, by, count: *count })
        });
        let mut items: Vec<_> = boundaries.chain(tapes).filter(|item| item.by > 0.0).collect();
        items
            .sort_by(|left, right| (right.by / right.bytes as f64).total_cmp(&(left.by / left.bytes as f64)));
        items
    }
}

/// What the actions of a chain need while they run; `None` when too many are different.
fn needs(chain: &Chain) -> Option<BTreeSet<u64>> {
    let waiting: BTreeSet<u64> = (1..=chain.stages()).map(|end| chain.waiting(end)).collect();
    let sweeps: BTreeSet<u64> = chain.step_needs().collect();
    let tapes: BTreeSet<_> =
        chain.tapes.iter().flatten().map(|tape| (tape.forward_need, tape.backward_need)).collect();
    if (sweeps.len() + tapes.len()).saturating_mul(waiting.len()) > FEW_NEEDS {
        return None;
    }
    let needs = waiting.iter().flat_map(|waiting| {
        let sweeps = sweeps.iter().map(|step| step.saturating_add(*waiting));
        let tapes = tapes.iter().map(|(forward, backward)| forward.saturating_add(*waiting).max(*backward));
        sweeps.chain(tapes)
    });
    Some(needs.collect())
}

/// The different items, and how many there are of each.
fn counted<T: Ord>(items: impl Iterator<Item = T>) -> Vec<(T, u64)> {
    let mut counts = BTreeMap::new();
    for item in items {
        *counts.entry(item).or_insert(0) += 1;
    }
    counts.into_iter().collect()
}

/// The most that items of at most `room` bytes together can move: the fractional knapsack.
fn most_within(items: &[Moved], room: u64) -> f64 {
    let mut left = room;
    let mut sum = 0.0;
    for item in items {
        let whole = left.checked_div(item.bytes).unwrap_or(item.count).min(item.count);
        sum += item.by * whole as f64;
        left -= whole * item.bytes;
        if whole < item.count {
            return sum + item.by * (left as f64 / item.bytes as f64);
        }
    }
    sum
}

/// The largest size that all sizes are multiples of.
fn common_divisor(chain: &Chain) -> u64 {
    let tapes =
        chain.tapes.iter().flatten().flat_map(|tape| [tape.bytes, tape.forward_need, tape.backward_need]);
    let sizes =
        chain.boundary.iter().chain(&chain.gradient).chain(&chain.forward_extra).copied().chain(tapes);
    sizes.fold(0, greatest_common_divisor).max(1)
}

pub(super) fn greatest_common_divisor(mut left: u64, mut right: u64) -> u64 {
    while right != 0 {
        (left, right) = (right, left % right);
    }
    left
}
