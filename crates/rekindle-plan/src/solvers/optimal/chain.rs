//! A profile as the recurrence reads it: plain numbers, one rule for each kind of action.
//!
//! A *cell* is a run of stages `first..end` (indices from 0) whose input `x(first)` somebody else pays for and whose
//! output's gradient is there when its backward begins. `room` is what the cell may use beyond its input.

use crate::{Bytes, Name, Nanos, Profile, TapeOption};

/// What a room must at least be when it can never be enough.
pub(super) const NEVER: u64 = u64::MAX;

/// The numbers of a profile.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    /// The size of every boundary, `x0` first.
    pub(super) boundary: Vec<u64>,
    /// The size of every boundary's gradient, with those of the parameters behind it.
    pub(super) gradient: Vec<u64>,
    /// What the stages before a boundary take to run forward once.
    pub(super) forward_before: Vec<u64>,
    /// The same less what the last of them saves when nobody reads it. A sweep up to a boundary brings about one such run:
    /// the stages it ran through go back as a cell of their own, whose last tape nobody reads.
    pub(super) swept_before: Vec<u64>,
    /// What a stage needs only while its forward runs.
    pub(super) forward_extra: Vec<u64>,
    /// How many of the stages before are pinned.
    pinned_before: Vec<usize>,
    /// The ways to tape each stage, the profile's own first.
    pub(super) tapes: Vec<Vec<Tape>>,
    /// What every plan takes: each stage once, at its fastest.
    pub(super) base: u64,
    /// The profile's boundary that each boundary is: every one of them, unless stages were grouped.
    pub(super) starts: Vec<usize>,
}

/// A way to tape a stage.
#[derive(Clone, Debug)]
pub(super) struct Tape {
    /// The option of each of the profile's stages in it; `None` for the stage's own tape.
    pub(super) options: Vec<Option<Name>>,
    pub(super) bytes: u64,
    /// What it takes longer, forth and back, than the stage's fastest tape.
    pub(super) excess: u64,
    /// The tape and what its forward needs beside it.
    pub(super) forward_need: u64,
    /// The tape and what its backward needs beside it, the gradient it starts from included.
    pub(super) backward_need: u64,
    /// How long the backward of its first stage takes: what runs last.
    pub(super) last_backward: u64,
    /// What that backward needs.
    pub(super) last_backward_need: u64,
}

impl Chain {
    pub(super) fn new(profile: &Profile) -> Self {
        let stages = profile.stages();
        let outputs = stages.iter().map(|stage| stage.output_bytes.get());
        let boundary: Vec<u64> = [profile.input_bytes().get()].into_iter().chain(outputs).collect();
        // The gradients of parameters that are already there count as part of the gradient that waits.
        let boundaries = (0..boundary.len() as u32).map(crate::Boundary::new);
        let gradient: Vec<u64> =
            boundaries.map(|at| profile.gradient_bytes(at).unwrap_or_default().get()).collect();
        let tapes = stages.iter().zip(&gradient[1..]).map(|(stage, gradient)| {
            let own = (None, stage.taped_bytes(), stage.forward_ns, stage.backward_ns);
            let others = stage.options.iter().map(|option| {
                (Some(option), stage.taped_bytes_under(Some(option)), option.forward_ns, option.backward_ns)
            });
            // The profile's sums fit into 64 bits, and so does every sum of a part of it.
            let ways: Vec<_> = [own].into_iter().chain(others).collect();
            let fastest = ways.iter().map(|way| way.2.get() + way.3.get()).min().unwrap_or(0);
            let tape = |(option, bytes, forward, backward): (Option<&TapeOption>, Bytes, Nanos, Nanos)| {
                let bytes = bytes.get();
                let extra = stage.backward_workspace_under(option).get().saturating_add(*gradient);
                Tape {
                    options: vec![option.map(|option| option.name.clone())],
                    bytes,
                    excess: forward.get() + backward.get() - fastest,
                    forward_need: bytes.saturating_add(stage.taped_workspace_under(option).get()),
                    backward_need: bytes.saturating_add(extra),
                    last_backward: backward.get(),
                    last_backward_need: bytes.saturating_add(extra),
                }
            };
            ways.into_iter().map(tape).collect()
        });
        let forward_before = running(stages.iter().map(|stage| stage.forward_ns.get()));
        let unread = [0].into_iter().chain(stages.iter().map(|stage| stage.unread_ns.get()));
        Self {
            tapes: tapes.collect(),
            swept_before: forward_before.iter().zip(unread).map(|(before, unread)| before - unread).collect(),
            forward_before,
            forward_extra: stages.iter().map(|stage| stage.forward_extra_bytes.get()).collect(),
            pinned_before: running(stages.iter().map(|stage| usize::from(stage.pinned))),
            base: profile.lower_bound().get(),
            starts: (0..=stages.len()).collect(),
            boundary,
            gradient,
        }
    }

    pub(super) fn stages(&self) -> usize {
        self.tapes.len()
    }

    /// The gradient that is there while the cell's stages run forward: none before the turn.
    pub(super) fn waiting(&self, end: usize) -> u64 {
        if end == self.stages() { 0 } else { self.gradient[end] }
    }

    /// What running `first..end` forward takes.
    pub(super) fn forward(&self, first: usize, end: usize) -> u64 {
        self.forward_before[end] - self.forward_before[first]
    }

    /// What a sweep through `first..end` adds, with what it saves when these stages go back.
    pub(super) fn sweep(&self, first: usize, end: usize) -> u64 {
        self.swept_before[end] - self.forward_before[first]
    }

    /// What a stage saves when nobody reads its output.
    pub(super) fn unread(&self, stage: usize) -> u64 {
        self.forward_before[stage + 1] - self.swept_before[stage + 1]
    }

    /// The sweeps a cell can begin with: the boundary each runs to, before the cell's end, and the room it needs at its
    /// worst moment, which never falls. No pinned stage is in one.
    pub(super) fn sweeps(&self, first: usize, end: usize) -> impl Iterator<Item = (usize, u64)> {
        let waiting = self.waiting(end);
        let unpinned = (first + 1..end).take_while(|middle| !self.pinned(*middle - 1, *middle));
        unpinned.scan(0, move |most, middle| {
            *most = self.sweep_need(first, middle - 1).saturating_add(waiting).max(*most);
            Some((middle, *most))
        })
    }

    /// The room `stage` needs to run without a tape as part of a sweep from `first`.
    fn sweep_need(&self, first: usize, stage: usize) -> u64 {
        let input = if stage == first { 0 } else { self.boundary[stage] };
        input.saturating_add(self.boundary[stage + 1]).saturating_add(self.forward_extra[stage])
    }

    /// The room a tape of `stage` needs in the cell `stage..end`, beside what follows while it is held.
    pub(super) fn tape_need(&self, tape: &Tape, end: usize) -> u64 {
        tape.forward_need.saturating_add(self.waiting(end)).max(tape.backward_need)
    }

    /// Whether stages of `first..end` must not run again.
    pub(super) fn pinned(&self, first: usize, end: usize) -> bool {
        self.pinned_before[end] > self.pinned_before[first]
    }

    /// Whether the cell may run at all: past the turn every stage runs for a second time.
    pub(super) fn may_run(&self, first: usize, end: usize) -> bool {
        end == self.stages() || !self.pinned(first, end)
    }

    /// The smallest of a stage's tapes that cost no time.
    pub(super) fn fastest(&self, stage: usize) -> usize {
        let ways = self.tapes[stage].iter().enumerate();
        let fastest = ways.filter(|(_, tape)| tape.excess == 0).min_by_key(|(_, tape)| tape.bytes);
        fastest.map_or(0, |(way, _)| way)
    }

    /// The room from which on nothing needs to run twice or slower.
    pub(super) fn store_all_room(&self) -> u64 {
        let mut held = 0u64;
        let mut most = 0u64;
        for (stage, tapes) in self.tapes.iter().enumerate() {
            let tape = &tapes[self.fastest(stage)];
            most = most.max(held.saturating_add(tape.forward_need.max(tape.backward_need)));
            held = held.saturating_add(tape.bytes);
        }
        most
    }
}

/// Stages in groups, each taped and swept as one.
///
/// What a group needs is what its stages need one after the other, to the byte: a plan for the groups is a plan for the
/// stages. It is only not the best one.
impl Chain {
    /// The chain in groups of `size` stages.
    pub(super) fn grouped(&self, size: usize) -> Self {
        let cuts: Vec<usize> = (0..self.stages()).step_by(size.max(1)).chain([self.stages()]).collect();
        let groups: Vec<(usize, usize)> = cuts.windows(2).map(|pair| (pair[0], pair[1])).collect();
        let at = |values: &[u64]| cuts.iter().map(|cut| values[*cut]).collect();
        Self {
            boundary: at(&self.boundary),
            gradient: at(&self.gradient),
            forward_before: at(&self.forward_before),
            swept_before: at(&self.swept_before),
            forward_extra: groups.iter().map(|(first, end)| self.group_extra(*first, *end)).collect(),
            pinned_before: cuts.iter().map(|cut| self.pinned_before[*cut]).collect(),
            tapes: groups.iter().map(|(first, end)| self.group_tapes(*first, *end)).collect(),
            base: self.base,
            starts: cuts.iter().map(|cut| self.starts[*cut]).collect(),
        }
    }

    /// What a sweep through `first..end` needs at its worst moment beside the input and the output of the group.
    fn group_extra(&self, first: usize, end: usize) -> u64 {
        let needs = (first..end).map(|stage| self.sweep_need(first, stage));
        needs.max().unwrap_or(0).saturating_sub(self.boundary[end])
    }

    /// All tapes at their fastest, and all at their smallest.
    fn group_tapes(&self, first: usize, end: usize) -> Vec<Tape> {
        if first + 1 == end {
            return self.tapes[first].clone();
        }
        let smallest = |stage: usize| {
            let ways = self.tapes[stage].iter().enumerate();
            ways.min_by_key(|(_, tape)| (tape.bytes, tape.excess)).map_or(0, |(way, _)| way)
        };
        let fastest = self.group_tape(first, end, |stage| self.fastest(stage));
        let smallest = self.group_tape(first, end, smallest);
        match smallest.excess {
            0 => vec![fastest],
            _ => vec![fastest, smallest],
        }
    }

    fn group_tape(&self, first: usize, end: usize, way: impl Fn(usize) -> usize) -> Tape {
        let runs_last = &self.tapes[first][way(first)];
        let mut group = Tape {
            options: Vec::new(),
            bytes: 0,
            excess: 0,
            forward_need: 0,
            backward_need: 0,
            last_backward: runs_last.last_backward,
            last_backward_need: runs_last.last_backward_need,
        };
        for stage in first..end {
            let tape = &self.tapes[stage][way(stage)];
            group.options.extend(tape.options.iter().cloned());
            group.forward_need = group.forward_need.max(group.bytes.saturating_add(tape.forward_need));
            group.backward_need = group.backward_need.max(group.bytes.saturating_add(tape.backward_need));
            group.bytes = group.bytes.saturating_add(tape.bytes);
            group.excess = group.excess.saturating_add(tape.excess);
        }
        group
    }
}

/// The sums of the first none, one, two, … of the items.
fn running<T: Copy + Default + std::ops::Add<Output = T>>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut sum = T::default();
    let sums = items.map(|item| {
        sum = sum + item;
        sum
    });
    [T::default()].into_iter().chain(sums).collect()
}
