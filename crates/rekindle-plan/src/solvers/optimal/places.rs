//! The optimum when boundaries can also be compressed or moved away.
//!
//! The class of plans: persistent plans in which the input of a sweep, while what follows the sweep is done, lies in one
//! place: on the device, compressed on the device, or in a tier.
//!
//! - To a tier it goes while the sweep runs; what the sweep does not hide is waited for at its end, when the boundary is
//!   dropped from the device.
//! - From a tier it comes back while the stage after it goes back, if there is room for both then; or after that.
//! - Compressing, at the end of the sweep, and restoring take their own time.
//!
//! So no two transfers meet, the time of each is known where it is chosen, and the recurrence of [`super`] needs three
//! things more: whether a cell's input can be let go (not when a tape includes it), which boundary comes back during the
//! cell's last backward, and how much of each tier is free.

mod writer;

use std::collections::HashMap;
use std::time::Instant;

use super::chain::{Chain, NEVER, Tape};
use super::sweeps::Sweeps;
use crate::{Action, Bytes, Name, Nanos, Profile};
use writer::Writer;

/// How many tiers can be watched for being full. A tier that holds everything at once is not watched.
const WATCHED: usize = 2;

/// Chains up to this length are solved exactly.
pub(super) const EXACT_STAGES: usize = 8;

/// The labels a cell of a longer chain may have, and those of any chain once the work gets too much.
const FEW_LABELS: usize = 48;
const MOST_WORK: usize = 100_000_000;

/// Longer chains are first taken in at most so many groups.
const MOST_GROUPS: usize = 32;

/// The labels a cell may have once time is up.
const LATE_LABELS: usize = 4;

/// The labels a cell of a chain may have that is solved exactly.
const EXACT_LABELS: usize = 6_000;

/// Where only the least room is asked for: chains up to this length are looked at in single stages, and up to that with
/// many labels, which only tiers that may be full have a use for.
const LEAST_STAGES: usize = 400;
const LEAST_EXACT: usize = 40;
const LEAST_LABELS: usize = 16;

/// Bytes in each watched tier.
type Used = [u64; WATCHED];

/// From `room` bytes on the device and `used` bytes in the tiers on, a cell costs `overhead`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Label {
    room: u64,
    overhead: u64,
    used: Used,
}

/// Where the input of a sweep lies while what follows is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Device,
    /// Compressed, by the codec of this index.
    Codec(usize),
    /// In the tier of this index; fetched while the stage after it goes back, or after that.
    Tier {
        index: usize,
        early: bool,
    },
}

#[derive(Clone, Copy, Debug)]
enum Choice {
    Tape(usize),
    Sweep { middle: usize, place: Place },
}

/// A boundary that is fetched during a cell's last backward: all that matters of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Arrival {
    bytes: u64,
    read: u64,
}

/// What a cell is asked under.
#[derive(Clone, Copy, Debug)]
struct Ask {
    first: usize,
    end: usize,
    /// A tape includes the cell's input: letting it go frees nothing.
    taped: bool,
    /// Which of the arrivals comes during the last backward.
    arrival: Option<usize>,
}

/// A chain with places, solved.
#[derive(Debug)]
pub(super) struct Places {
    chain: Chain,
    profile: Profile,
    /// What each tier's boundary takes to write and to read; `None` when it can never be moved there.
    moves: Vec<Vec<Option<(u64, u64)>>>,
    /// What each codec's boundary becomes, and takes to compress and restore.
    codes: Vec<Vec<Option<(u64, u64)>>>,
    /// Which watched tier each tier is.
    watched: Vec<Option<usize>>,
    /// The inputs of the stages up to each, together.
    inputs: Vec<u64>,
    sweeps: Sweeps,
    arrivals: Vec<Arrival>,
    /// The number of each cell, row by row over all ends.
    numbers: Vec<usize>,
    labels: Vec<Vec<Label>>,
    most_labels: usize,
    /// Whether it is asked what cells cost, beside the room they need.
    timed: bool,
    /// Labels looked at.
    work: usize,
    /// Labels were left out: the plan is good, not best.
    pub(super) thinned: bool,
}

impl Places {
    /// The profile's chain with its tiers and codecs, in groups of `size` stages, for all rooms up to `room`.
    ///
    /// Short chains are solved exactly. Long ones with a limit to the labels of a cell; `None` when time is up before groups
    /// smaller than the [first](Self::first_size) are solved.
    pub(super) fn new(
        profile: &Profile,
        chain: &Chain,
        size: usize,
        room: u64,
        until: Instant,
    ) -> Option<Self> {
        let exact = chain.stages() <= EXACT_STAGES;
        let mut places = Self::unsolved(profile, chain.grouped(size));
        places.most_labels = if exact { EXACT_LABELS } else { FEW_LABELS };
        places.find_arrivals(if exact { 24 } else { 4 });
        let solved = places.solve(room, until);
        places.thinned |= size > 1;
        solved.then_some(places)
    }

    /// The first size of groups to look at.
    pub(super) fn first_size(chain: &Chain) -> usize {
        chain.stages().div_ceil(MOST_GROUPS)
    }

    /// The same chain asked for the least room alone, whatever it costs, which can be known of far longer chains.
    ///
    /// It is the least to the byte, unless the chain is long and tiers are so small that it matters what else lies in
    /// them. Its plans are made of what costs least at once, step by step. `None` when time is up before it is known.
    pub(super) fn least(profile: &Profile, chain: &Chain, until: Instant) -> Option<Self> {
        let mut places = Self::unsolved(profile, chain.grouped(chain.stages().div_ceil(LEAST_STAGES)));
        let watches = places.watched.iter().any(Option::is_some);
        places.most_labels = match places.chain.stages() {
            stages if !watches || stages > LEAST_EXACT => 1,
            stages if stages > EXACT_STAGES => LEAST_LABELS,
            _ => EXACT_LABELS,
        };
        places.timed = false;
        places.solve(u64::MAX, until).then_some(places)
    }

    fn unsolved(profile: &Profile, chain: Chain) -> Self {
        let to_move = |bytes: u64, speed: u64| Nanos::to_move(Bytes::new(bytes), speed).map(Nanos::get);
        let boundaries = &chain.boundary[..chain.stages()];
        let moves = profile.tiers().iter().map(|tier| {
            let fits = |bytes: u64| (bytes > 0 && bytes <= tier.capacity_bytes.get()).then_some(bytes);
            let times = |bytes: u64| {
                to_move(bytes, tier.write_bytes_per_second).zip(to_move(bytes, tier.read_bytes_per_second))
            };
            boundaries.iter().map(|bytes| fits(*bytes).and_then(times)).collect()
        });
        let codes = profile.codecs().iter().map(|codec| {
            let code = |bytes: &u64| {
                let small = codec.compressed(Bytes::new(*bytes))?.get();
                let compress = to_move(*bytes, codec.compress_bytes_per_second)?;
                let restore = to_move(*bytes, codec.restore_bytes_per_second)?;
                (small < *bytes).then_some((small, compress.checked_add(restore)?))
            };
            boundaries.iter().map(code).collect()
        });
        let inputs: Vec<u64> = boundaries
            .iter()
            .scan(0u64, |sum, bytes| {
                *sum = sum.saturating_add(*bytes);
                Some(*sum)
            })
            .collect();
        let everything = inputs.last().copied().unwrap_or(0);
        let mut count = 0;
        let watched = profile.tiers().iter().map(|tier| {
            let binds = tier.capacity_bytes.get() < everything && count < WATCHED;
            binds.then(|| {
                count += 1;
                count - 1
            })
        });
        let watched: Vec<_> = watched.collect();
        let (moves, codes) = (moves.collect(), codes.collect());
        let sweeps = Sweeps::new(&chain);
        Self {
            chain,
            profile: profile.clone(),
            moves,
            codes,
            watched,
            inputs,
            sweeps,
            arrivals: Vec::new(),
            numbers: Vec::new(),
            labels: Vec::new(),
            most_labels: FEW_LABELS,
            timed: true,
            work: 0,
            thinned: false,
        }
    }

    /// All boundaries that can be moved.
    fn everything(&self) -> u64 {
        self.inputs.last().copied().unwrap_or(0)
    }

    /// Tiers that may be full, beyond the number that can be watched, are not used.
    fn usable(&self, tier: usize) -> bool {
        self.watched[tier].is_some() || self.profile.tiers()[tier].capacity_bytes.get() >= self.everything()
    }

    /// Finds at most `most` boundaries that may come back during a backward.
    fn find_arrivals(&mut self, most: usize) {
        let mut arrivals = Vec::new();
        for (_, moves) in self.moves.iter().enumerate().filter(|(tier, _)| self.usable(*tier)) {
            for (boundary, times) in moves.iter().enumerate() {
                let arrival = times.map(|(_, read)| Arrival { bytes: self.chain.boundary[boundary], read });
                if let Some(arrival) = arrival.filter(|arrival| !arrivals.contains(arrival)) {
                    arrivals.push(arrival);
                }
            }
        }
        // Beyond some sizes the cells would be too many: those boundaries come back after the backward.
        self.thinned |= arrivals.len() > most;
        arrivals.truncate(most);
        self.arrivals = arrivals;
    }

    fn arrival_of(&self, boundary: usize, tier: usize) -> Option<usize> {
        let (_, read) = self.moves[tier][boundary]?;
        let wanted = Arrival { bytes: self.chain.boundary[boundary], read };
        self.arrivals.iter().position(|arrival| *arrival == wanted)
    }

    fn free(&self) -> Used {
        let mut free = [u64::MAX; WATCHED];
        for (tier, watched) in self.profile.tiers().iter().zip(&self.watched) {
            if let Some(watched) = watched {
                free[*watched] = tier.capacity_bytes.get();
            }
        }
        free
    }

    /// Solves every cell; false when time was up before. Few groups are soon done with few labels, and always have an answer.
    fn solve(&mut self, room: u64, until: Instant) -> bool {
        let stages = self.chain.stages();
        // Cells of the same stages behind an input of the same size are the same.
        let cells = super::cells::Cells::new(&self.chain);
        let mut known: HashMap<(usize, u64), usize> = HashMap::new();
        self.numbers = vec![usize::MAX; stages * (stages + 1)];
        let variants = 2 * (1 + self.arrivals.len());
        for end in 1..=stages {
            let mut lowest = 0;
            for first in (0..end).rev() {
                let after = lowest;
                lowest = lowest.max(self.lowest(first).saturating_add(self.chain.boundary[first]));
                let key = (cells.number(first, end), self.chain.boundary[first]);
                let next = known.len();
                let number = *known.entry(key).or_insert(next);
                self.numbers[first * (stages + 1) + end] = number;
                if number < next {
                    continue;
                }
                for variant in 0..variants {
                    if Instant::now() > until {
                        match stages > MOST_GROUPS {
                            true => return false,
                            false => self.hurry(),
                        }
                    }
                    let ask =
                        Ask { first, end, taped: variant % 2 == 1, arrival: (variant / 2).checked_sub(1) };
                    let labels = self.candidates(ask, room, after);
                    self.work = self.work.saturating_add(labels.len());
                    if self.work > MOST_WORK {
                        self.most_labels = self.most_labels.min(FEW_LABELS);
                    }
                    let labels = self.best_of(labels);
                    self.labels.push(labels);
                }
            }
        }
        true
    }

    fn labels(&self, ask: Ask) -> &[Label] {
        let number = self.numbers[ask.first * (self.chain.stages() + 1) + ask.end];
        let variants = 2 * (1 + self.arrivals.len());
        let variant = usize::from(ask.taped) + 2 * ask.arrival.map_or(0, |arrival| arrival + 1);
        &self.labels[number * variants + variant]
    }

    /// The least overhead of a cell within a room and what is free in the tiers.
    fn at(&self, ask: Ask, room: u64, free: Used) -> Option<u64> {
        let fitting = |label: &&Label| label.room <= room && fits(label.used, free);
        self.labels(ask).iter().filter(fitting).map(|label| label.overhead).min()
    }

    /// The overhead of the whole chain; `None` when it does not fit.
    pub(super) fn overhead(&self, room: u64) -> Option<u64> {
        self.at(self.whole(), room, self.free())
    }

    /// The least room there is a plan for, up to the room that was solved.
    pub(super) fn least_room(&self) -> Option<u64> {
        self.labels(self.whole()).iter().map(|label| label.room).min()
    }

    /// The rooms at which the overhead of the whole chain falls.
    pub(super) fn steps(&self) -> impl Iterator<Item = (u64, u64)> {
        self.labels(self.whole()).iter().map(|label| (label.room, label.overhead))
    }

    fn whole(&self) -> Ask {
        Ask { first: 0, end: self.chain.stages(), taped: false, arrival: None }
    }

    /// What taping the first stage needs and costs, with what arrives during its backward.
    fn tape(&self, ask: Ask, tape: &Tape) -> (u64, u64) {
        let mut need = self.chain.tape_need(tape, ask.end);
        let mut cost = tape.excess;
        if let Some(arrival) = ask.arrival.map(|arrival| self.arrivals[arrival]) {
            need = need.max(tape.last_backward_need.saturating_add(arrival.bytes));
            cost = cost.saturating_add(arrival.read.saturating_sub(tape.last_backward));
        }
        (need, cost)
    }

    /// The places for the input of a sweep.
    fn places(&self, ask: Ask) -> Vec<Place> {
        let mut places = vec![Place::Device];
        if !ask.taped {
            let codes = self.codes.iter().enumerate().filter(|(_, codes)| codes[ask.first].is_some());
            places.extend(codes.map(|(index, _)| Place::Codec(index)));
            for (index, moves) in self.moves.iter().enumerate() {
                if moves[ask.first].is_some() && self.usable(index) {
                    places.push(Place::Tier { index, early: false });
                    if self.arrival_of(ask.first, index).is_some() {
                        places.push(Place::Tier { index, early: true });
                    }
                }
            }
        }
        places
    }

    /// A sweep to `middle`: what is asked of the stages after it, what room it needs, how much room it frees for them,
    /// what it puts into the tiers, what it costs.
    fn sweep(&self, ask: Ask, middle: usize, place: Place) -> Option<(Ask, u64, u64, Used, u64)> {
        let chain = &self.chain;
        let forward = chain.sweep(ask.first, middle);
        let input = chain.boundary[ask.first];
        let mut after = Ask { first: middle, end: ask.end, taped: false, arrival: None };
        let mut used = [0; WATCHED];
        match place {
            Place::Device => Some((after, 0, 0, used, forward)),
            Place::Codec(index) => {
                let (small, time) = self.codes[index][ask.first]?;
                let packing =
                    chain.boundary[middle].saturating_add(small).saturating_add(chain.waiting(ask.end));
                let unpacking = chain.gradient[middle].saturating_add(small);
                let need = packing.max(unpacking);
                Some((after, need, input - small, used, forward.checked_add(time)?))
            }
            Place::Tier { index, early } => {
                let (write, read) = self.moves[index][ask.first]?;
                if let Some(watched) = self.watched[index] {
                    used[watched] = input;
                }
                // The sweep's own time hides the transfer; what is saved, is saved later.
                let mut cost = chain.forward(ask.first, middle).max(write) - chain.unread(middle - 1);
                match early {
                    true => after.arrival = Some(self.arrival_of(ask.first, index)?),
                    false => cost = cost.checked_add(read)?,
                }
                Some((after, 0, input, used, cost))
            }
        }
    }

    /// What the sweeps that a cell can begin with need beside a gradient that waits, the shortest first, when that is at
    /// most `most` with it.
    fn sweep_needs(&self, first: usize, end: usize, most: u64) -> &[u64] {
        let needs = &self.sweeps.needs(first)[..end - first - 1];
        let Some(most) = most.checked_sub(self.chain.waiting(end)) else { return &[] };
        &needs[..needs.partition_point(|need| *need <= most && *need < NEVER)]
    }

    /// What a stage's backward needs beside its input, whatever its tape.
    fn lowest(&self, stage: usize) -> u64 {
        self.chain.tapes[stage].iter().map(|tape| tape.backward_need).min().unwrap_or(0)
    }

    /// The labels a cell may have within `most` bytes of room. The stages after its first cannot do with less than
    /// `lowest` bytes, their inputs included.
    fn candidates(&self, ask: Ask, most: u64, lowest: u64) -> Vec<Label> {
        let Ask { first, end, .. } = ask;
        let chain = &self.chain;
        let mut labels = Vec::new();
        if !chain.may_run(first, end) {
            return labels;
        }
        // A cell may be given more than the whole chain has: what its callers let go.
        let most = most.saturating_add(self.inputs[first]);
        for tape in &chain.tapes[first] {
            let (need, cost) = self.tape(ask, tape);
            let none = [Label { room: 0, overhead: 0, used: [0; WATCHED] }];
            let rest = match first + 1 < end {
                true => self.labels(Ask { first: first + 1, end, taped: true, arrival: None }),
                false => &none,
            };
            for label in rest {
                let sum = label.room.checked_add(tape.bytes).zip(label.overhead.checked_add(cost));
                let sum =
                    sum.map(|(room, overhead)| Label { room: room.max(need), overhead, used: label.used });
                labels.extend(sum.filter(|label| label.room <= most));
            }
        }
        let freed = if ask.taped { 0 } else { chain.boundary[first] };
        let lowest = lowest.saturating_sub(freed).max(self.lowest(first));
        let (places, free) = (self.places(ask), self.free());
        let (mut looked_at, mut least_room) = (0, u64::MAX);
        let needs = self.sweep_needs(first, end, most);
        for at in 0..needs.len() {
            // One label is all that is asked for, and there is none with less room.
            let least = |label: &Label| label.room <= lowest && fits(label.used, free);
            if !self.timed && self.most_labels == 1 && labels[looked_at..].iter().any(least) {
                break;
            }
            // Where several labels are kept, more room with less in the tiers is worth something: only who has nothing there
            // beats all who need no less room.
            let beats = |label: &&Label| match self.most_labels {
                1 => fits(label.used, free),
                _ => label.used == [0; WATCHED],
            };
            let new = labels[looked_at..].iter().filter(beats);
            least_room = new.map(|label| label.room).fold(least_room, u64::min);
            looked_at = labels.len();
            // The longest sweep leaves the least to be held at once.
            let index = if self.timed { at } else { needs.len() - 1 - at };
            let middle = first + 1 + index;
            let floor = needs[index].saturating_add(chain.waiting(end));
            if !self.timed && self.cannot_be_less(ask, (middle, floor), least_room) {
                continue;
            }
            for &place in &places {
                let Some((after, need, freed, used, cost)) = self.sweep(ask, middle, place) else { continue };
                let after = self.labels(after);
                let before = self.labels(Ask { end: middle, ..ask });
                let kept = chain.boundary[middle];
                let join = |after: &Label, before: &Label| {
                    let room = after.room.checked_add(kept)?.saturating_sub(freed);
                    let room = room.max(before.room).max(floor).max(need);
                    let overhead = after.overhead.checked_add(before.overhead)?.checked_add(cost)?;
                    let mut tiers = before.used;
                    for (tier, (more, there)) in tiers.iter_mut().zip(used.iter().zip(after.used)) {
                        *tier = more.checked_add(there)?.max(*tier);
                    }
                    Some(Label { room, overhead, used: tiers }).filter(|label| label.room <= most)
                };
                join_all(after, before, join, &mut labels);
            }
        }
        if !self.timed {
            labels.iter_mut().for_each(|label| label.overhead = 0);
        }
        labels
    }

    /// Whether a sweep leads to no less room than is known, as far as its parts tell.
    fn cannot_be_less(&self, ask: Ask, (middle, floor): (usize, u64), known: u64) -> bool {
        // Where one label is kept and a tier may be full, as much room with less in the tier is worth something.
        let one = self.most_labels == 1 && self.watched.iter().any(Option::is_some);
        let known = if one { known.saturating_add(1) } else { known };
        let least = |ask: Ask| self.labels(ask).first().map_or(u64::MAX, |label| label.room);
        let freed = if ask.taped { 0 } else { self.chain.boundary[ask.first] };
        let after = Ask { first: middle, end: ask.end, taped: false, arrival: None };
        floor >= known
            || least(Ask { end: middle, ..ask }) >= known
            || least(after).saturating_add(self.chain.boundary[middle]).saturating_sub(freed) >= known
    }

    /// The labels that no other beats, thinned when they are too many.
    fn best_of(&mut self, mut labels: Vec<Label>) -> Vec<Label> {
        labels.sort_unstable();
        let free = self.free();
        let stairs = labels.iter().all(|label| label.used == [0; WATCHED]);
        let mut best: Vec<Label> = Vec::new();
        for label in labels {
            if !fits(label.used, free) {
                continue;
            }
            let beats = |other: &Label| {
                other.overhead <= label.overhead && other.used.iter().zip(label.used).all(|(a, b)| *a <= b)
            };
            // Rooms rise: who came before needs no more of it. On a staircase only the last step can beat it.
            let beaten = match stairs {
                true => best.last().is_some_and(beats),
                false => best.iter().rev().any(beats),
            };
            if !beaten {
                best.push(label);
            }
        }
        if best.len() <= self.most_labels {
            return best;
        }
        self.thinned = true;
        thinned(&best, self.most_labels)
    }

    /// Leaves few labels to every cell, also to those that are solved: whoever is joined with them takes as long as they
    /// are many.
    fn hurry(&mut self) {
        if self.most_labels <= LATE_LABELS {
            return;
        }
        self.most_labels = LATE_LABELS;
        for labels in self.labels.iter_mut().filter(|labels| labels.len() > LATE_LABELS) {
            *labels = thinned(labels, LATE_LABELS);
            self.thinned = true;
        }
    }

    /// What a cell begins with, and what is left of the room and the tiers for what follows.
    fn choose(&self, ask: Ask, room: u64, free: Used) -> Option<(Choice, Ask, u64, Used)> {
        let Ask { first, end, .. } = ask;
        let chain = &self.chain;
        let mut best: Option<(u64, (Choice, Ask, u64, Used))> = None;
        let mut take = |overhead: Option<u64>, choice: Choice, after: Ask, left: u64, free: Used| {
            if let Some(overhead) = overhead
                && best.as_ref().is_none_or(|best| overhead < best.0)
            {
                best = Some((overhead, (choice, after, left, free)));
            }
        };
        for (way, tape) in chain.tapes[first].iter().enumerate() {
            let (need, cost) = self.tape(ask, tape);
            if room >= need {
                let after = Ask { first: first + 1, end, taped: true, arrival: None };
                let left = room - tape.bytes;
                let rest = if first + 1 < end { self.at(after, left, free) } else { Some(0) };
                take(rest.and_then(|rest| rest.checked_add(cost)), Choice::Tape(way), after, left, free);
            }
        }
        let places = self.places(ask);
        for middle in (first + 1..end).take(self.sweep_needs(first, end, room).len()) {
            for &place in &places {
                let Some((after, need, freed, used, cost)) = self.sweep(ask, middle, place) else { continue };
                let left = room.saturating_add(freed).checked_sub(chain.boundary[middle]);
                let mut rest = free;
                let fits = rest.iter_mut().zip(used).all(|(free, used)| match free.checked_sub(used) {
                    Some(left) => {
                        *free = left;
                        true
                    }
                    None => false,
                });
                let Some(left) = left.filter(|_| fits && room >= need) else { continue };
                let parts = self.at(after, left, rest).zip(self.at(Ask { end: middle, ..ask }, room, free));
                let sum = parts.and_then(|(after, before)| after.checked_add(before)?.checked_add(cost));
                take(sum, Choice::Sweep { middle, place }, after, left, rest);
            }
        }
        best.map(|best| best.1)
    }

    /// The actions of the fastest plan for a room; `None` when nothing fits, or they are too many to hold.
    pub(super) fn actions(&self, room: u64) -> Option<Vec<Action>> {
        Writer::new(self).write(room)
    }

    fn name_of(&self, place: Place) -> Option<Name> {
        match place {
            Place::Device => None,
            Place::Codec(index) => Some(self.profile.codecs()[index].name.clone()),
            Place::Tier { index, .. } => Some(self.profile.tiers()[index].name.clone()),
        }
    }
}

/// So many of the labels, both ends among them; of one the end with the least room.
fn thinned(labels: &[Label], most: usize) -> Vec<Label> {
    let last = labels.len() - 1;
    (0..most).map(|index| labels[index * last / (most - 1).max(1)]).collect()
}

/// Whether what lies in the watched tiers is no more than what is free there.
fn fits(used: Used, free: Used) -> bool {
    used.iter().zip(free).all(|(used, free)| *used <= free)
}

/// Joins labels of two cells. Where no tier is watched both are staircases, and each step meets only the step of the
/// other that it can use.
fn join_all(
    after: &[Label],
    before: &[Label],
    join: impl Fn(&Label, &Label) -> Option<Label>,
    labels: &mut Vec<Label>,
) {
    let stairs = |labels: &[Label]| labels.iter().all(|label| label.used == [0; WATCHED]);
    if !stairs(after) || !stairs(before) {
        labels.extend(after.iter().flat_map(|after| before.iter().filter_map(|before| join(after, before))));
        return;
    }
    // For each step of one the largest step of the other that asks for no more room than it does.
    let free = Label { room: 0, overhead: 0, used: [0; WATCHED] };
    let (mut one, mut two) = (0, 0);
    while one < after.len() && two < before.len() {
        labels.extend(join(&after[one], &before[two]));
        // What each step asks for on its own, in the caller's terms.
        let asks = |after: Option<&Label>| after.and_then(|after| join(after, &free)).map(|label| label.room);
        let next_one = asks(after.get(one + 1));
        let next_two = before.get(two + 1).map(|label| label.room);
        match (next_one, next_two) {
            (Some(next_one), Some(next_two)) if next_one <= next_two => one += 1,
            (Some(_), None) => one += 1,
            (_, Some(_)) => two += 1,
            (None, None) => return,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests;
