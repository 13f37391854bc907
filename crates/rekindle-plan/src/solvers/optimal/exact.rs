//! Short chains, exactly: the time of each cell as a staircase over its room.

use super::cells::Cells;
use super::choice::Choice;
use super::problem::Problem;

/// From `room` bytes on, a cell costs `overhead` nanoseconds beyond running each stage once at its fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Step {
    pub(super) room: u64,
    pub(super) overhead: u64,
}

/// The staircases of all cells.
#[derive(Debug)]
pub(super) struct Staircases {
    of: Vec<Vec<Step>>,
}

/// How many steps may be looked at, and how many held, before a chain counts as long. Where twice as many are expected, it
/// counts as long at once.
const MOST_CELLS: usize = 1_400;
const MOST_WORK: usize = 2_000_000;
const MOST_STEPS: usize = 1_000_000;

impl Staircases {
    /// Every staircase up to `most` bytes of room; `None` when there are too many steps to be exact in a short time.
    pub(super) fn new(problem: &Problem, most: u64) -> Option<Self> {
        let cells = &problem.cells;
        if cells.count() > MOST_CELLS {
            return None;
        }
        let mut all = Self { of: vec![Vec::new(); cells.count()] };
        let mut candidates = Vec::new();
        let (mut work, mut held) = (0usize, 0usize);
        let mut left = Left::new(cells);
        let mut column = 0;
        for (first, end) in cells.parts_first() {
            if column != end && work.saturating_add(left.work()) > 2 * MOST_WORK {
                return None;
            }
            column = end;
            candidates.clear();
            all.candidates(problem, first, end, most, &mut candidates);
            work += candidates.len();
            left.done(end - first, candidates.len());
            let stairs = stairs(&mut candidates);
            held += stairs.len();
            if work > MOST_WORK || held > MOST_STEPS {
                return None;
            }
            all.of[cells.number(first, end)] = stairs;
        }
        Some(all)
    }

    /// The staircase of a cell; the whole chain's is the frontier.
    pub(super) fn of(&self, problem: &Problem, first: usize, end: usize) -> &[Step] {
        &self.of[problem.cells.number(first, end)]
    }

    /// What the cell begins with to reach its overhead in this room, and the room that is left then.
    pub(super) fn choose(
        &self,
        problem: &Problem,
        first: usize,
        end: usize,
        room: u64,
    ) -> Option<(Choice, u64)> {
        let of = |first, end| self.of(problem, first, end);
        let target = at(of(first, end), room)?;
        let chain = &problem.chain;
        for (way, tape) in chain.tapes[first].iter().enumerate() {
            if room >= chain.tape_need(tape, end) {
                let left = room - tape.bytes;
                let rest = if first + 1 < end { at(of(first + 1, end), left) } else { Some(0) };
                if rest.and_then(|rest| rest.checked_add(tape.excess)) == Some(target) {
                    return Some((Choice::Tape(way), left));
                }
            }
        }
        for (middle, _) in chain.sweeps(first, end).take_while(|(_, need)| *need <= room) {
            let Some(left) = room.checked_sub(chain.boundary[middle]) else { continue };
            let parts = at(of(middle, end), left).zip(at(of(first, middle), room));
            let sum = parts.and_then(|(after, before)| {
                after.checked_add(before)?.checked_add(chain.sweep(first, middle))
            });
            if sum == Some(target) {
                return Some((Choice::Sweep(middle), left));
            }
        }
        None
    }

    fn candidates(&self, problem: &Problem, first: usize, end: usize, most: u64, candidates: &mut Vec<Step>) {
        let of = |first, end| self.of(problem, first, end);
        let chain = &problem.chain;
        if !chain.may_run(first, end) {
            return;
        }
        for tape in &chain.tapes[first] {
            let floor = chain.tape_need(tape, end);
            let nothing = [Step { room: 0, overhead: 0 }];
            let rest = if first + 1 < end { of(first + 1, end) } else { &nothing };
            for step in rest {
                let sum = (step.room.checked_add(tape.bytes)).zip(step.overhead.checked_add(tape.excess));
                if let Some((room, overhead)) = sum.filter(|(room, _)| (*room).max(floor) <= most) {
                    candidates.push(Step { room: room.max(floor), overhead });
                }
            }
        }
        for (middle, floor) in chain.sweeps(first, end).take_while(|(_, need)| *need <= most) {
            let (after, before) = (of(middle, end), of(first, middle));
            let shift = chain.boundary[middle];
            add(after, shift, before, floor, most, chain.sweep(first, middle), candidates);
        }
    }
}

/// The cells that are left to be solved, and what those that were solved took: a chain that will turn out to be too long is
/// given up long before it is.
struct Left {
    /// How many are left of each length.
    cells: Vec<usize>,
    /// How many steps were looked at for the last cell of each length that was solved.
    took: Vec<usize>,
}

impl Left {
    fn new(cells: &Cells) -> Self {
        let mut left = Self { cells: Vec::new(), took: Vec::new() };
        for length in cells.lengths() {
            let length = length as usize;
            left.cells.resize(left.cells.len().max(length + 1), 0);
            left.cells[length] += 1;
        }
        left
    }

    fn done(&mut self, length: usize, took: usize) {
        self.cells[length] -= 1;
        self.took.resize(self.took.len().max(length + 1), 0);
        self.took[length] = took;
    }

    /// How many steps will about be looked at: a cell takes what the last one of its length took, and a longer one than any
    /// so far takes no less than the longest.
    fn work(&self) -> usize {
        let longest = self.took.last().copied().unwrap_or(0);
        let took = self.took.iter().copied().chain(std::iter::repeat(longest));
        self.cells
            .iter()
            .zip(took)
            .map(|(cells, took)| cells.saturating_mul(took))
            .fold(0, usize::saturating_add)
    }
}

/// The overhead a staircase has at a room; `None` below its first step.
pub(super) fn at(stairs: &[Step], room: u64) -> Option<u64> {
    step_at(stairs, room).map(|step| step.overhead)
}

/// The last step of a staircase within a room.
pub(super) fn step_at(stairs: &[Step], room: u64) -> Option<&Step> {
    let steps = stairs.partition_point(|step| step.room <= room);
    stairs.get(steps.checked_sub(1)?)
}

/// The steps of `after` shifted by `shift`, plus `before` at the same room, plus `fixed`, from `floor` to `most`.
fn add(after: &[Step], shift: u64, before: &[Step], floor: u64, most: u64, fixed: u64, sums: &mut Vec<Step>) {
    let (Some(first_after), Some(first_before)) = (after.first(), before.first()) else { return };
    let mut room = first_after.room.saturating_add(shift).max(first_before.room).max(floor);
    let step = |stairs: &[Step], room: u64| stairs.partition_point(|step| step.room <= room);
    let Some(within) = room.checked_sub(shift) else { return };
    let (mut next_after, mut next_before) = (step(after, within), step(before, room));
    while room <= most {
        let (Some(a), Some(b)) = (next_after.checked_sub(1), next_before.checked_sub(1)) else { return };
        let sum = after[a].overhead.checked_add(before[b].overhead).and_then(|sum| sum.checked_add(fixed));
        if let Some(overhead) = sum {
            sums.push(Step { room, overhead });
        }
        let rise_after = after.get(next_after).map_or(u64::MAX, |step| step.room.saturating_add(shift));
        let rise_before = before.get(next_before).map_or(u64::MAX, |step| step.room);
        room = rise_after.min(rise_before);
        if room == u64::MAX {
            return;
        }
        next_after += usize::from(rise_after == room);
        next_before += usize::from(rise_before == room);
    }
}

/// The candidates that no other beats: rooms rise, overheads fall.
fn stairs(candidates: &mut [Step]) -> Vec<Step> {
    candidates.sort_unstable();
    let mut stairs: Vec<Step> = Vec::new();
    for candidate in candidates.iter() {
        if stairs.last().is_none_or(|last| candidate.overhead < last.overhead) {
            stairs.push(*candidate);
        }
    }
    stairs
}
