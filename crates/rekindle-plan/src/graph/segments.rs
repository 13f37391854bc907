//! A graph cut into a chain of segments, and the best plan of that chain: the seed of the search.
//!
//! The forward nodes, in their order, are cut where few values cross: at the articulation points, where one value
//! does, or wherever least does. A backward node belongs to the earliest segment whose values it reads, itself or
//! through the gradients it reads. For segments `s..=t`, with `m` bytes left and what crosses into `s` paid for:
//!
//! ```text
//! C(s,s,m) = forward(s) + backward(s)
//! C(s,t,m) = min( forward(s) + C(s+1,t,m - tape(s)) + backward(s),
//!                 min over s<r<=t of  forward(s)+..+forward(r-1) + C(r,t,m - crossing(s,r-1)) + C(s,r-1,m) )
//! ```
//!
//! where `crossing(s,r-1)` are the bytes of what is made in `s..=r-1` and read later by forward nodes: what came in
//! from before `s` is held by the caller already, so that long skips are counted once. The recurrence is that of
//! heterogeneous chains (Beaumont et al. 2019). Sizes are rounded up to slots, so a plan it finds nearly always fits;
//! values that segments share across more than one cut make it a heuristic, not a proof: the word it writes is costed
//! like any other.

use std::time::Instant;

use crate::graph::Problem;
use crate::graph::word::Word;

/// Where to cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cuts {
    /// Only where a single value crosses.
    Articulation,
    /// Anywhere, but at most this often.
    Most(usize),
}

struct Segment {
    forward: Vec<u32>,
    backward: Vec<u32>,
    forward_time: u64,
    backward_time: u64,
    /// What the backward nodes read, and what later segments read.
    tape: u64,
    /// The most of its own values at once, when nothing is kept for the backward, and when everything is.
    untaped_peak: u64,
    taped_peak: u64,
    /// The most gradients at once in its backward, workspace included.
    gradient_peak: u64,
    /// The gradients that are there when its forward is run for the backward of this segment, and of later ones not.
    gradients: u64,
}

pub(crate) struct Chain {
    segments: Vec<Segment>,
    /// `crossing[s][r]`: bytes made in `s..=r` and read by forward nodes after `r`.
    crossing: Vec<Vec<u64>>,
    /// What is there all the time.
    fixed: u64,
}

/// More than any sum of times the recurrence makes, and twice of it still fits.
const NEVER: u64 = u64::MAX / 4;

impl Chain {
    /// `None` when there is no backward, or a forward node reads one.
    pub(crate) fn new(problem: &Problem, cuts: Cuts) -> Option<Self> {
        let half = |backward: bool| {
            let mine = move |node: &u32| problem.backward[*node as usize] == backward;
            problem.order.iter().copied().filter(mine).collect::<Vec<u32>>()
        };
        let (forward, backward) = (half(false), half(true));
        let reads_backward =
            |node: &u32| problem.reads(*node as usize).iter().any(|&read| problem.backward[read as usize]);
        if backward.is_empty() || forward.is_empty() || forward.iter().any(reads_backward) {
            return None;
        }
        let mut place = vec![usize::MAX; problem.len()];
        for (index, &node) in forward.iter().enumerate() {
            place[node as usize] = index;
        }
        // The last forward node that reads each.
        let last: Vec<usize> = (forward.iter().enumerate())
            .map(|(index, &node)| {
                let readers = problem.readers(node as usize).iter().map(|&reader| place[reader as usize]);
                readers.filter(|&reader| reader != usize::MAX).max().unwrap_or(index)
            })
            .collect();
        let ends = cut(problem, &forward, &last, cuts);
        let mut segment_of = vec![usize::MAX; problem.len()];
        let mut segments = Vec::new();
        let mut start = 0;
        for &end in &ends {
            for &node in &forward[start..=end] {
                segment_of[node as usize] = segments.len();
            }
            segments.push(Self::segment(problem, &forward, &last, &place, start, end));
            start = end + 1;
        }
        Self::assign(problem, &backward, &mut segment_of, &mut segments);

        let mut crossing = vec![vec![0u64; segments.len()]; segments.len()];
        for (index, &node) in forward.iter().enumerate() {
            let made = segment_of[node as usize];
            let read = segment_of[forward[last[index]] as usize];
            // It crosses every cut from the one after its own segment to the one before its last reader's.
            for first in crossing.iter_mut().take(made + 1) {
                for bytes in first.iter_mut().take(read).skip(made) {
                    *bytes += problem.bytes[node as usize];
                }
            }
        }
        Some(Self { segments, crossing, fixed: problem.inputs_bytes })
    }

    fn segment(
        problem: &Problem,
        forward: &[u32],
        last: &[usize],
        place: &[usize],
        start: usize,
        end: usize,
    ) -> Segment {
        let mut segment = Segment {
            forward: forward[start..=end].to_vec(),
            backward: Vec::new(),
            forward_time: 0,
            backward_time: 0,
            tape: 0,
            untaped_peak: 0,
            taped_peak: 0,
            gradient_peak: 0,
            gradients: 0,
        };
        let (mut untaped, mut taped) = (0u64, 0u64);
        for index in start..=end {
            let node = forward[index] as usize;
            let bytes = problem.bytes[node];
            segment.forward_time = segment.forward_time.saturating_add(problem.time[node]);
            untaped += bytes;
            taped += bytes;
            segment.untaped_peak = segment.untaped_peak.max(untaped + problem.workspace[node]);
            segment.taped_peak = segment.taped_peak.max(taped + problem.workspace[node]);
            let read_back = |node: usize| {
                problem.output[node]
                    || problem.readers(node).iter().any(|&reader| problem.backward[reader as usize])
            };
            if read_back(node) || last[index] > end {
                segment.tape += bytes;
            }
            // What has been read for the last time goes, unless it is taped or read by a later segment.
            let mut over: Vec<usize> = problem.reads(node).iter().map(|&read| read as usize).collect();
            over.push(node);
            for value in over {
                let at = place[value];
                if at != usize::MAX && at >= start && last[at] == index {
                    untaped = untaped.saturating_sub(problem.bytes[value]);
                    if !read_back(value) {
                        taped = taped.saturating_sub(problem.bytes[value]);
                    }
                }
            }
        }
        segment
    }

    /// Gives every backward node to its segment, and says what gradients there are at each.
    fn assign(problem: &Problem, backward: &[u32], segment_of: &mut [usize], segments: &mut [Segment]) {
        let last = segments.len() - 1;
        for &node in backward {
            let reads = problem.reads(node as usize).iter().map(|&read| segment_of[read as usize]);
            let segment = reads.filter(|&segment| segment != usize::MAX).min().unwrap_or(last);
            segment_of[node as usize] = segment;
            segments[segment].backward.push(node);
            segments[segment].backward_time =
                segments[segment].backward_time.saturating_add(problem.time[node as usize]);
        }
        // The gradients alone, from the last segment to the first.
        let order: Vec<u32> =
            segments.iter().rev().flat_map(|segment| segment.backward.iter().copied()).collect();
        let mut left: Vec<u32> = vec![0; problem.len()];
        for &node in &order {
            for &read in problem.reads(node as usize) {
                left[read as usize] += 1;
            }
        }
        let mut alive = 0u64;
        for segment in segments.iter_mut().rev() {
            segment.gradients = alive;
            segment.gradient_peak = alive;
            for &node in &segment.backward {
                let node = node as usize;
                alive += problem.bytes[node];
                segment.gradient_peak = segment.gradient_peak.max(alive + problem.workspace[node]);
                for &read in problem.reads(node) {
                    let read = read as usize;
                    left[read] -= 1;
                    if left[read] == 0 && problem.backward[read] && !problem.output[read] {
                        alive -= problem.bytes[read];
                    }
                }
                if left[node] == 0 && !problem.output[node] {
                    alive -= problem.bytes[node];
                }
            }
        }
    }

    /// How many segments there are.
    pub(crate) fn len(&self) -> usize {
        self.segments.len()
    }

    /// The plan of the recurrence, or `None` when it sees no way within the budget.
    pub(crate) fn plan(&self, budget: u64, until: Instant) -> Option<Word> {
        let table = Table::new(self, budget.checked_sub(self.fixed)?, until)?;
        let mut word = Vec::new();
        table.write(self, 0, self.len() - 1, table.slots, &mut word)?;
        Some(Word(word))
    }
}

/// The places in `forward` after which a segment ends; the last is the end.
fn cut(problem: &Problem, forward: &[u32], last: &[usize], cuts: Cuts) -> Vec<usize> {
    let count = forward.len();
    let (mut bytes, mut values) = (vec![0i128; count + 1], vec![0i64; count + 1]);
    for (index, &node) in forward.iter().enumerate() {
        let size = i128::from(problem.bytes[node as usize]);
        bytes[index] += size;
        bytes[last[index]] -= size;
        values[index] += 1;
        values[last[index]] -= 1;
    }
    for index in 1..count {
        bytes[index] += bytes[index - 1];
        values[index] += values[index - 1];
    }
    let inner = 0..count - 1;
    let mut ends: Vec<usize> = match cuts {
        Cuts::Articulation => inner.filter(|&index| values[index] <= 1).collect(),
        Cuts::Most(most) if count <= most => inner.collect(),
        Cuts::Most(most) => {
            // In each of as many stretches of equal length, where the least crosses.
            let stretches = most.max(2) - 1;
            (0..stretches)
                .filter_map(|stretch| {
                    let from = (count - 1) * stretch / stretches;
                    let to = (count - 1) * (stretch + 1) / stretches;
                    (from..to).min_by_key(|&index| (bytes[index], index))
                })
                .collect()
        }
    };
    if let Cuts::Articulation = cuts {
        // The recurrence is cubic: of very many articulation points, an even choice.
        let most = 160;
        let step = ends.len().div_ceil(most).max(1);
        ends = ends.into_iter().step_by(step).collect();
    }
    ends.push(count - 1);
    ends
}

/// `C(s,t,m)` for all `s`, `t` and `m` in slots.
struct Table {
    slots: usize,
    unit: u64,
    shift: u32,
    /// Of `(s,t)`: the row of `slots + 1` times.
    rows: Vec<Vec<u64>>,
    count: usize,
}

/// Stages that run without tapes up to `cut`, so that what follows is done first.
struct Sweep {
    cut: usize,
    /// How long they run.
    run: u64,
    /// The slots of what crosses the cut.
    crossing: usize,
    /// The slots it takes at least.
    least: usize,
}

impl Table {
    fn new(chain: &Chain, budget: u64, until: Instant) -> Option<Self> {
        let count = chain.len();
        let work = (count * count * count / 6).max(1);
        let most = (150_000_000 / work).min(20_000_000 / (count * count / 2).max(1)).clamp(16, 2_000);
        let sizes = chain.segments.iter().flat_map(|segment| {
            [segment.tape, segment.untaped_peak, segment.taped_peak, segment.gradient_peak, segment.gradients]
        });
        let common = sizes.chain(chain.crossing.iter().flatten().copied()).fold(0, divisor);
        let unit = if common > 0 && budget / common <= most as u64 {
            common
        } else {
            budget.div_ceil(most as u64).max(1)
        };
        let slots = usize::try_from(budget / unit).ok()?.min(most);
        let total = chain.segments.iter().fold(0u64, |sum, segment| {
            sum.saturating_add(segment.forward_time).saturating_add(segment.backward_time)
        });
        // Sums over some thousand repetitions must stay below `NEVER`.
        let shift = (64 - total.leading_zeros()).saturating_sub(46);
        let mut table = Self { slots, unit, shift, rows: Vec::with_capacity(count * count), count };
        table.rows.resize(count * count, Vec::new());
        for length in 1..=count {
            if Instant::now() >= until {
                return None;
            }
            for first in 0..=count - length {
                let last = first + length - 1;
                table.rows[first * count + last] = table.row(chain, first, last);
            }
        }
        Some(table)
    }

    fn slots_of(&self, bytes: u64) -> usize {
        usize::try_from(bytes.div_ceil(self.unit)).unwrap_or(usize::MAX)
    }

    fn times(&self, chain: &Chain, segment: usize) -> (u64, u64) {
        let segment = &chain.segments[segment];
        // At least 1 for what takes time at all, so that recomputing nothing is never as good as something.
        let small = |time: u64| (time >> self.shift) + u64::from(time > 0 && time >> self.shift == 0);
        (small(segment.forward_time), small(segment.backward_time))
    }

    /// The slots it takes at least to go back through `first` from its tape, with `last` the end of the stretch.
    fn taped(&self, chain: &Chain, first: usize, last: usize) -> usize {
        let segment = &chain.segments[first];
        let forward = chain.segments[last].gradients.saturating_add(segment.taped_peak);
        self.slots_of(forward.max(segment.gradient_peak.saturating_add(segment.tape)))
    }

    /// The sweeps from `first` that there are slots for, the shortest first.
    fn sweeps(&self, chain: &Chain, first: usize, last: usize, slots: usize) -> impl Iterator<Item = Sweep> {
        let (mut run, mut peak) = (0, 0);
        let sweeps = (first + 1..=last).map(move |cut| {
            run += self.times(chain, cut - 1).0;
            let came_in = if cut - 1 > first { chain.crossing[first][cut - 2] } else { 0 };
            peak = peak.max(came_in.saturating_add(chain.segments[cut - 1].untaped_peak));
            let crossing = self.slots_of(chain.crossing[first][cut - 1]);
            let least = self.slots_of(peak.saturating_add(chain.segments[last].gradients)).max(crossing);
            Sweep { cut, run, crossing, least }
        });
        sweeps.filter(move |sweep| sweep.least <= slots)
    }

    fn row(&self, chain: &Chain, first: usize, last: usize) -> Vec<u64> {
        let mut row = vec![NEVER; self.slots + 1];
        let (forward, backward) = self.times(chain, first);
        let taped = self.taped(chain, first, last);
        if first == last {
            for time in row.iter_mut().skip(taped) {
                *time = forward + backward;
            }
            return row;
        }
        let tape = self.slots_of(chain.segments[first].tape);
        let rest = &self.rows[(first + 1) * self.count + last];
        for (slots, time) in row.iter_mut().enumerate().skip(taped.max(tape)) {
            *time = forward + backward + rest[slots - tape];
        }
        for Sweep { cut, run, crossing, least } in self.sweeps(chain, first, last, self.slots) {
            let later = &self.rows[cut * self.count + last][least - crossing..=self.slots - crossing];
            let earlier = &self.rows[first * self.count + cut - 1][least..];
            for ((time, later), earlier) in row[least..].iter_mut().zip(later).zip(earlier) {
                *time = (*time).min(run + later + earlier);
            }
        }
        for time in &mut row {
            *time = (*time).min(NEVER);
        }
        row
    }

    /// Writes the choices that lead to `C(first,last,slots)`.
    fn write(
        &self,
        chain: &Chain,
        first: usize,
        last: usize,
        slots: usize,
        word: &mut Vec<u32>,
    ) -> Option<()> {
        let best = *self.rows[first * self.count + last].get(slots)?;
        if best >= NEVER {
            return None;
        }
        let segment = &chain.segments[first];
        let (forward, backward) = self.times(chain, first);
        if first == last {
            word.extend_from_slice(&segment.forward);
            word.extend_from_slice(&segment.backward);
            return Some(());
        }
        let tape = self.slots_of(segment.tape);
        if slots >= self.taped(chain, first, last).max(tape) {
            let rest = self.rows[(first + 1) * self.count + last][slots - tape];
            if forward + backward + rest == best {
                word.extend_from_slice(&segment.forward);
                self.write(chain, first + 1, last, slots - tape, word)?;
                word.extend_from_slice(&segment.backward);
                return Some(());
            }
        }
        for Sweep { cut, run, crossing, .. } in self.sweeps(chain, first, last, slots) {
            let later = self.rows[cut * self.count + last][slots - crossing];
            let earlier = self.rows[first * self.count + cut - 1][slots];
            if run + later + earlier == best {
                for segment in &chain.segments[first..cut] {
                    word.extend_from_slice(&segment.forward);
                }
                self.write(chain, cut, last, slots - crossing, word)?;
                return self.write(chain, first, cut - 1, slots, word);
            }
        }
        None
    }
}

fn divisor(mut one: u64, mut other: u64) -> u64 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}
