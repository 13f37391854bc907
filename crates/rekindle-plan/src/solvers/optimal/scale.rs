//! Bytes and nanoseconds in few bits, and what that may hide.
//!
//! On a grid everything that is held is rounded to the nearest number of slots. Some sizes grow by it, so what is held in so
//! many bytes may take a few slots more: at most [`Growth::within`] of them. What an action needs while it runs is not
//! rounded. When `n` bytes are needed, what is held fits into the room less `n`, and so into the slots of *that*, however it
//! is rounded; the grid lets the action run wherever no more slots than those are held. Every plan that fits the room then
//! fits the grid, so what the grid says is a lower bound. Times are rounded down, which only lowers it.
//!
//! Where an action needs nearly all of the room, little is held beside it and next to nothing can grow: that is why a grid
//! can tell small rooms apart, in which a few bytes more may save much time.

use std::collections::BTreeMap;

use super::chain::Chain;
use crate::divisor::greatest_common_divisor;

/// How sizes and times become numbers of the grid.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    /// Nanoseconds in a unit of overhead.
    pub(super) unit: u64,
    /// The room it is for.
    room: u64,
    /// The slots in which everything that is held within `room` fits, however it is rounded.
    top: u64,
    rounding: Rounding,
    /// What everything that can be held may grow by.
    growth: Growth,
    /// For each part of the chain: the most bytes that may be needed beside what is held, when so many slots are left.
    most: Vec<Vec<u64>>,
    stages: usize,
}

/// A size in which a stage can be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Size {
    bytes: u64,
    /// The stage's output, and not a tape.
    boundary: bool,
}

/// How sizes become slots: to the nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rounding {
    /// Bytes in a slot.
    slot: u64,
    /// Boundaries are often far smaller than tapes. Where they take at least a slot, nobody keeps them all for nothing;
    /// where they may take none, a few of them do not count for more than they are.
    at_least_one: bool,
}

impl Rounding {
    fn slots(self, size: Size) -> u64 {
        self.slots_and_gain(size).0
    }

    /// How many slots a size gains; negative when it loses.
    fn gain(self, size: Size) -> f64 {
        self.slots_and_gain(size).1
    }

    fn slots_and_gain(self, size: Size) -> (u64, f64) {
        let least = u64::from(self.at_least_one && size.boundary && size.bytes > 0);
        let (whole, over) = (size.bytes / self.slot, size.bytes % self.slot);
        let slots = (whole + u64::from(over >= self.slot - self.slot / 2)).max(least);
        (slots, slots as f64 - whole as f64 - over as f64 / self.slot as f64)
    }
}

/// The most that rounding can add to what is held: bytes that are held, and the slots they can grow by, each with all
/// before it. The most slots for a byte come first.
#[derive(Clone, Debug, Default)]
struct Growth(Vec<(u64, f64)>);

impl Growth {
    /// Of each stage its boundary is held, or one of its tapes, or nothing: what each gains, and how many such stages there
    /// are.
    fn new<Gains: Iterator<Item = (u64, f64)>>(stages: impl Iterator<Item = (Gains, u64)>) -> Self {
        Self::of_parts(parts(stages))
    }

    fn of_parts(mut parts: Vec<(u64, f64)>) -> Self {
        let density = |part: &(u64, f64)| part.1 / part.0 as f64;
        parts.sort_by(|left, right| density(right).total_cmp(&density(left)));
        let mut sum = (0u64, 0.0);
        for part in &mut parts {
            sum = (sum.0.saturating_add(part.0), sum.1 + part.1);
            *part = sum;
        }
        Self(parts)
    }

    /// The most slots by which what is held within so many bytes can grow: a knapsack, relaxed.
    fn within(&self, bytes: u64) -> f64 {
        let whole = self.0.partition_point(|part| part.0 <= bytes);
        let before = whole.checked_sub(1).map_or((0, 0.0), |last| self.0[last]);
        let Some(next) = self.0.get(whole) else { return before.1 };
        before.1 + (next.1 - before.1) * ((bytes - before.0) as f64 / (next.0 - before.0) as f64)
    }

    /// The fewest bytes, or a little less, that can take each number of slots up to `most`.
    fn fewest_bytes(&self, most: u64, slot: u64) -> Vec<u64> {
        let size = slot as f64;
        let reached = |part: &(u64, f64)| part.0 as f64 / size + part.1;
        let mut parts = self.0.iter().peekable();
        let (mut before, mut reached_before) = ((0, 0.0), 0.0);
        let fewest = |slots: u64| {
            if self.0.is_empty() {
                return slots.saturating_mul(slot);
            }
            let slots = slots as f64;
            while let Some(part) = parts.next_if(|part| reached(part) < slots) {
                (before, reached_before) = (*part, reached(part));
            }
            let missing = (slots - reached_before).max(0.0);
            let bytes = match parts.peek() {
                Some(next) => {
                    let part = missing / (reached(next) - reached_before).max(f64::MIN_POSITIVE);
                    before.0 as f64 + part.min(1.0) * (next.0 - before.0) as f64
                }
                None => before.0 as f64 + missing * size,
            };
            // Down by what the sums of floating numbers may have lost.
            (bytes * (1.0 - 1e-9) - 1.0).max(0.0) as u64
        };
        (0..=most).map(fewest).collect()
    }
}

/// What more bytes of each stage gain, best first; and how many such stages there are.
fn parts<Gains: Iterator<Item = (u64, f64)>>(stages: impl Iterator<Item = (Gains, u64)>) -> Vec<(u64, f64)> {
    let mut parts = Vec::new();
    let (mut all, mut hull) = (Vec::new(), Vec::new());
    for (gains, count) in stages {
        all.clear();
        all.extend(gains.filter(|(_, gain)| *gain > 0.0));
        growing_hull(&mut all, &mut hull);
        for pair in hull.windows(2) {
            let (bytes, by) = (pair[1].0 - pair[0].0, pair[1].1 - pair[0].1);
            parts.push((u64::saturating_mul(bytes, count), by * count as f64));
        }
    }
    parts
}

/// Of what the sizes of a stage gain, that which a mixture of others does not beat: bytes and gains rise, and each byte adds
/// less than the one before. Begins with nothing.
fn growing_hull(gains: &mut [(u64, f64)], hull: &mut Vec<(u64, f64)>) {
    gains.sort_by(|left, right| left.0.cmp(&right.0).then(right.1.total_cmp(&left.1)));
    hull.clear();
    hull.push((0, 0.0));
    for next in gains.iter().copied() {
        if hull.last().is_some_and(|last| next.1 <= last.1) {
            continue;
        }
        while let [.., before, last] = hull[..] {
            if (last.1 - before.1) * (next.0 - last.0) as f64 > (next.1 - last.1) * (last.0 - before.0) as f64
            {
                break;
            }
            hull.pop();
        }
        hull.push(next);
    }
}

/// Scales that are looked at for the one on which least is hidden, and those that fit a size.
const CANDIDATES: u64 = 12;
const MOST_FITTED: usize = 48;

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

/// Parts of a slot that are told apart when a plan is read off a grid.
pub(super) const PARTS_OF_SLOT: u64 = 64;

/// When no more slots than this are lost and gained by rounding, finer ones would not tell more.
const HARDLY: f64 = 0.5;

/// Parts of a chain, each of which knows what can be held before it.
const PARTS: usize = 16;

impl Scale {
    /// A scale of about so many slots in `room`, on which little is hidden. Where cells repeat, what can be held before
    /// one must not depend on where it is.
    ///
    /// What a scale says of rooms that are whole slots below its own is not rounded once more. Where sizes repeat, many
    /// plans need rooms that are whole slots apart: with `like` among them, the scale is for the next such room.
    pub(super) fn new(chain: &Chain, room: u64, like: u64, slots: Slots, unit: u64, repeat: bool) -> Self {
        let Slots { about, fewest } = slots;
        let common = common_divisor(chain);
        let with = |rounding: Rounding| {
            let apart = room.saturating_sub(like).checked_rem(rounding.slot).filter(|_| repeat).unwrap_or(0);
            let next = if apart == 0 { room } else { room.saturating_add(rounding.slot - apart) };
            Self::with(chain, next, unit, rounding, repeat)
        };
        if room / common <= about.saturating_mul(2) {
            return with(Rounding { slot: common, at_least_one: true });
        }
        // A chain of few different sizes is nearly exact on the right grid: look around for it.
        let sizes = Sizes::of(chain);
        let smallest = (room / about.saturating_add(about / 4)).max(1);
        let largest = (room / about.max(1)).max(smallest);
        let around = (0..=CANDIDATES).map(|step| smallest + (largest - smallest) / CANDIDATES * step);
        let fitted = sizes.usual().flat_map(|size| {
            let coarsest = (room / fewest.max(1)).max(largest);
            let counts = size.div_ceil(coarsest)..=size / smallest;
            counts.take(MOST_FITTED).map(move |count| size / count.max(1))
        });
        let slots = around.chain(fitted).filter(|slot| *slot > 0);
        // Where stages repeat, boundaries that cost nothing would be kept all the way.
        let least: &[bool] = if repeat { &[true] } else { &[true, false] };
        let roundings =
            slots.flat_map(|slot| least.iter().map(move |&at_least_one| Rounding { slot, at_least_one }));
        let priced = roundings.map(|rounding| {
            let moved = sizes.moved(rounding, room);
            // Where next to nothing moves, the fewest slots are best; elsewhere half of them are worth a little more.
            let slot = rounding.slot as f64;
            (if moved < HARDLY { -slot } else { moved * slot.sqrt() }, rounding)
        });
        let best = priced.min_by(|left, right| left.0.total_cmp(&right.0));
        with(best.map_or(Rounding { slot: largest, at_least_one: true }, |(_, rounding)| rounding))
    }

    fn with(chain: &Chain, room: u64, unit: u64, rounding: Rounding, repeat: bool) -> Self {
        let (stages, slot) = (chain.stages(), rounding.slot);
        let gains = |stage: usize| sizes_of(chain, stage).map(|size| (size.bytes, rounding.gain(size)));
        let parts = if repeat { 1 } else { PARTS.min(stages) };
        // What is held while a stage runs comes from stages before it.
        let growth = |part: usize| Growth::new((0..part * stages / parts).map(|stage| (gains(stage), 1)));
        let growths: Vec<Growth> = (1..=parts).map(growth).collect();
        let growth = growths.last().cloned().unwrap_or_default();
        let top = slots_of_held(&growth, room, slot);
        let most = growths.iter().map(|growth| {
            let fewest = growth.fewest_bytes(top, slot);
            fewest.into_iter().rev().map(|held| room.saturating_sub(held)).collect()
        });
        Self { unit, room, top, rounding, most: most.collect(), growth, stages }
    }

    /// The slots a tape takes while it is held; saturating far above any grid.
    pub(super) fn tape_slots(&self, bytes: u64) -> u32 {
        self.held_slots(Size { bytes, boundary: false })
    }

    /// The slots a boundary takes.
    pub(super) fn boundary_slots(&self, bytes: u64) -> u32 {
        self.held_slots(Size { bytes, boundary: true })
    }

    fn held_slots(&self, size: Size) -> u32 {
        u32::try_from(self.rounding.slots(size)).unwrap_or(u32::MAX).min(1 << 30)
    }

    /// For each number of slots that are left, the most bytes that `stage` may need: what is held before it in the other
    /// slots takes at least the rest of the room. Never empty; rises.
    pub(super) fn most_bytes(&self, stage: usize) -> &[u64] {
        &self.most[stage * self.most.len() / self.stages]
    }

    /// The units of a time, rounded down.
    pub(super) fn units(&self, nanos: u64) -> u16 {
        u16::try_from(nanos / self.unit).unwrap_or(u16::MAX)
    }

    /// How many slots more than its bytes rounding can make of what is held within the room.
    pub(super) fn hidden(&self) -> f64 {
        self.growth.within(self.room)
    }

    /// The slots in which every plan within `room` fits, however it is rounded. Only for rooms up to that of the scale.
    pub(super) fn slots_for_bound(&self, room: u64) -> u64 {
        // In a smaller room less is held beside each action, by as many bytes; and less does not grow by more.
        self.top - (self.room.saturating_sub(room) / self.rounding.slot).min(self.top)
    }

    /// The next room down that is whole slots from that of the scale.
    pub(super) fn whole_slots(&self, room: u64) -> u64 {
        let below = self.room.saturating_sub(room);
        self.room
            .saturating_sub(below.div_ceil(self.rounding.slot).saturating_mul(self.rounding.slot))
            .min(room)
    }

    /// The slots that are left when so much of the room is, and how much of the next, in [`PARTS_OF_SLOT`].
    pub(super) fn slots_left(&self, bytes: u64) -> (u64, u64) {
        let held = self.room.saturating_sub(bytes);
        let (whole, over) = (held / self.rounding.slot, held % self.rounding.slot);
        match over {
            0 => (self.top.saturating_sub(whole), 0),
            _ => {
                let part = over / self.rounding.slot.div_ceil(PARTS_OF_SLOT);
                (self.top.saturating_sub(whole + 1), PARTS_OF_SLOT - part)
            }
        }
    }
}

/// The slots in which everything that is held within so many bytes fits.
fn slots_of_held(growth: &Growth, bytes: u64, slot: u64) -> u64 {
    let part = (bytes % slot) as f64 / slot as f64 + growth.within(bytes);
    // Up by what the sum of floating numbers may have lost.
    bytes / slot + (part * (1.0 + 1e-9) + 1e-9).floor() as u64
}

/// The sizes a stage can be held in: its output, and its tapes.
fn sizes_of(chain: &Chain, stage: usize) -> impl Iterator<Item = Size> {
    let tapes = chain.tapes[stage].iter().map(|tape| Size { bytes: tape.bytes, boundary: false });
    [Size { bytes: chain.boundary[stage + 1], boundary: true }].into_iter().chain(tapes)
}

/// The sizes of what can be held, equal ones counted: chains repeat.
struct Sizes {
    /// Boundaries, and how many there are of each size.
    boundaries: Vec<(u64, u64)>,
    /// The sizes a stage can be held in, and how many stages have them.
    stages: Vec<(Vec<Size>, u64)>,
}

impl Sizes {
    fn of(chain: &Chain) -> Self {
        let boundaries = counted(chain.boundary.iter().copied());
        let stages = (0..chain.stages()).map(|stage| sizes_of(chain, stage).collect());
        Self { boundaries, stages: counted(stages) }
    }

    /// The sizes that many boundaries have.
    fn usual(&self) -> impl Iterator<Item = u64> {
        let all: u64 = self.boundaries.iter().map(|(_, count)| count).sum();
        let usual = self.boundaries.iter().filter(move |(bytes, count)| *bytes > 0 && *count >= all / USUAL);
        usual.map(|(bytes, _)| *bytes)
    }

    /// The most slots that rounding moves up what is held within the room, and the most that it moves down.
    fn moved(&self, rounding: Rounding, room: u64) -> f64 {
        let sizes = self.stages.iter().flat_map(|(sizes, _)| sizes);
        let gains: Vec<(u64, f64)> = sizes.map(|size| (size.bytes, rounding.gain(*size))).collect();
        let most = |sign: f64| {
            let mut left = &gains[..];
            let parts = parts(self.stages.iter().map(|(sizes, count)| {
                let (own, others) = left.split_at(sizes.len());
                left = others;
                (own.iter().map(move |(bytes, gain)| (*bytes, sign * gain)), *count)
            }));
            // With room for all of them nobody needs to ask which come first.
            match parts.iter().map(|part| part.0).fold(0, u64::saturating_add) <= room {
                true => parts.iter().map(|part| part.1).sum(),
                false => Growth::of_parts(parts).within(room),
            }
        };
        most(1.0) + most(-1.0)
    }
}

/// The different items, and how many there are of each.
fn counted<T: Ord>(items: impl Iterator<Item = T>) -> Vec<(T, u64)> {
    let mut counts = BTreeMap::new();
    for item in items {
        *counts.entry(item).or_insert(0) += 1;
    }
    counts.into_iter().collect()
}

/// The largest size that all sizes are multiples of.
fn common_divisor(chain: &Chain) -> u64 {
    let tapes =
        chain.tapes.iter().flatten().flat_map(|tape| [tape.bytes, tape.forward_need, tape.backward_need]);
    let sizes =
        chain.boundary.iter().chain(&chain.gradient).chain(&chain.forward_extra).copied().chain(tapes);
    sizes.fold(0, greatest_common_divisor).max(1)
}
