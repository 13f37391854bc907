//! Bytes and nanoseconds in few bits, and what that may hide.
//!
//! On a grid every size is rounded to the nearest number of slots. Some sizes grow by it, so a plan that fits the true
//! room may need a few slots more: at most [`Scale::hidden`], the largest growth of anything that can be alive at once
//! within the room. What the grid says of a room *that much larger* is therefore a lower bound for the true one. Times are
//! rounded down, which only lowers it.

use super::chain::Chain;

/// How sizes and times become numbers of the grid.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    /// Bytes in a slot.
    pub(super) slot: u64,
    /// Nanoseconds in a unit of overhead.
    pub(super) unit: u64,
    /// What can grow: its bytes, and by how many slots. What grows most for its size comes first.
    growing: Vec<(u64, f64)>,
    /// Every size is a whole number of slots: nothing is hidden.
    exact: bool,
}

impl Scale {
    /// A scale of at least `slots` slots in `room`, on which as little as possible is hidden.
    pub(super) fn new(chain: &Chain, room: u64, slots: u64, unit: u64) -> Self {
        let common = common_divisor(chain);
        if room / common <= slots.saturating_mul(2) {
            return Self { slot: common, unit, growing: Vec::new(), exact: true };
        }
        // A chain of few different sizes is nearly exact on the right grid: look around for it.
        let smallest = (room / slots.saturating_add(slots / 4)).max(1);
        let largest = (room / slots).max(1);
        let candidates = 48;
        let slots = (0..=candidates).map(|step| smallest + (largest - smallest) / candidates * step);
        let scales = slots.map(|slot| {
            let scale = Self { slot, unit, growing: growing(chain, slot), exact: false };
            let moved = scale.hidden(room) + shrunk(chain, slot, room);
            (scale, moved * slot as f64)
        });
        let best = scales.min_by(|left, right| left.1.total_cmp(&right.1));
        best.map_or(Self { slot: largest, unit, growing: growing(chain, largest), exact: false }, |best| {
            best.0
        })
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
        if self.exact {
            return 0.0;
        }
        // What is held, greedily: an upper bound of the knapsack. Half a slot for what the running action needs.
        most_within(&self.growing, room) + 0.5
    }

    /// The slots in which everything that fits `room` fits, however it is rounded.
    pub(super) fn slots_for_bound(&self, room: u64) -> u64 {
        let slots = room as f64 / self.slot as f64 + self.hidden(room);
        // Up by what the sum of floating numbers may have lost.
        (slots * (1.0 + 1e-9) + 1e-9).floor() as u64
    }

    /// Whether every size is a whole number of slots.
    pub(super) fn is_exact(&self) -> bool {
        self.exact
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

fn growing(chain: &Chain, slot: u64) -> Vec<(u64, f64)> {
    moved(chain, 1.0, slot)
}

/// How many slots can be lost to rounding within `room`.
fn shrunk(chain: &Chain, slot: u64, room: u64) -> f64 {
    most_within(&moved(chain, -1.0, slot), room)
}

/// What rounding moves up, or down for a negative sign: bytes and slots, the most slots for a byte first.
fn moved(chain: &Chain, sign: f64, slot: u64) -> Vec<(u64, f64)> {
    let boundaries = chain.boundary.iter().map(|bytes| (*bytes, sign * boundary_gain(*bytes, slot)));
    let tapes = chain.tapes.iter().filter_map(|ways| {
        let moving = ways.iter().map(|tape| (tape.bytes, sign * gain(tape.bytes, slot)));
        // Of a stage's options one is held: no more than the largest movement for the smallest size.
        moving.filter(|(_, by)| *by > 0.0).reduce(|left, right| (left.0.min(right.0), left.1.max(right.1)))
    });
    let mut items: Vec<_> = boundaries.chain(tapes).filter(|(_, by)| *by > 0.0).collect();
    items.sort_by(|left, right| (right.1 / right.0 as f64).total_cmp(&(left.1 / left.0 as f64)));
    items
}

/// The most that items of at most `room` bytes together can move: the fractional knapsack.
fn most_within(items: &[(u64, f64)], room: u64) -> f64 {
    let mut left = room;
    let mut sum = 0.0;
    for (bytes, by) in items {
        if *bytes > left {
            return sum + by * (left as f64 / *bytes as f64);
        }
        left -= bytes;
        sum += by;
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

fn greatest_common_divisor(mut left: u64, mut right: u64) -> u64 {
    while right != 0 {
        (left, right) = (right, left % right);
    }
    left
}
