//! Random numbers that come out the same when a stage is run again.
//!
//! Burn's random state can be seeded but never read. So the library owns the sequence of seeds: every stage is seeded
//! before it runs, with the same seed whenever it runs again, and what follows a region starts from a seed of its own.
//! A region that runs without checkpointing takes its seeds in the same way, so both draw the same numbers.
//!
//! A piece of a model draws the same numbers whether it is one stage or several, as long as they are [`next`]'s.
//!
//! A stage that holds a region of its own hands it a sequence made from the stage's seed: the inner stages replay too.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use burn::tensor::Device;

/// The process's sequence. Burn's random state is one per process as well.
static SEQUENCE: Mutex<Sequence> = Mutex::new(Sequence(0));

thread_local! {
    /// The sequences of the stages that are running on this thread, innermost last.
    static INSIDE: RefCell<Vec<Sequence>> = const { RefCell::new(Vec::new()) };
}

/// SplitMix64: every seed is used up once, and neighbours have nothing in common.
#[derive(Clone, Copy, Debug)]
struct Sequence(u64);

impl Sequence {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

/// Starts the sequence of seeds for regions and checkpoints. Two runs from the same seed draw the same numbers,
/// whatever their plans.
///
/// Burn's random state is one per process, and so is this one: let one thread draw.
pub fn seed(seed: u64) {
    *SEQUENCE.lock().unwrap_or_else(PoisonError::into_inner) = Sequence(seed);
}

/// The next seed: of the stage this thread is in, or of the process.
pub(crate) fn next() -> u64 {
    INSIDE.with_borrow_mut(|inside| match inside.last_mut() {
        Some(sequence) => sequence.next(),
        None => next_of_process(),
    })
}

/// A seed of its own for each number, which for 0 is `seed` itself.
pub(crate) fn apart(seed: u64, number: u64) -> u64 {
    match number {
        0 => seed,
        number => Sequence(seed ^ Sequence(number).next()).next(),
    }
}

fn next_of_process() -> u64 {
    SEQUENCE.lock().unwrap_or_else(PoisonError::into_inner).next()
}

/// Whether this thread is inside a stage.
pub(crate) fn nested() -> bool {
    INSIDE.with_borrow(|inside| !inside.is_empty())
}

/// The random numbers of a region's stages, from the seed the region took.
///
/// A stage that continues the one before it goes on where that one stopped, so that a piece of a model that is cut into
/// several stages draws what it draws in one. Where that is, is known once the stages before have run for the first time,
/// which they do in order; a stage that runs again starts where it started then.
#[derive(Debug)]
pub(crate) struct Draws {
    stages: VecDeque<Start>,
    stopped: Stopped,
}

/// Where the last of some stages stopped drawing when it ran for the first time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stopped(Option<Sequence>);

#[derive(Debug)]
struct Start {
    /// What Burn's random state is seeded with.
    seed: u64,
    /// What [`next`] draws from.
    sequence: Sequence,
    continues: bool,
    /// Whether the stages before it in the same piece have run.
    known: bool,
}

impl Draws {
    /// `continues` says of each stage whether it continues the one before. The first `skipped` of them run elsewhere.
    pub(crate) fn new(region: u64, continues: impl IntoIterator<Item = bool>, skipped: usize) -> Self {
        let (mut piece, mut part) = (None::<u64>, 0u64);
        let stages = continues.into_iter().map(|continues| {
            let continues = continues && piece.is_some();
            part = if continues { part + 1 } else { 0 };
            piece = match (piece, continues) {
                (Some(piece), true) => Some(piece),
                (Some(piece), false) => Some(piece + 1),
                (None, _) => Some(0),
            };
            let of_piece = piece.unwrap_or(0).wrapping_mul(0xD6E8_FEB8_6659_FD93);
            let seed = Sequence(region ^ of_piece).next();
            // Burn's state cannot be read, so its numbers start anew in each part, but never the same ones.
            let own = if part == 0 { seed } else { Sequence(seed ^ part).next() };
            Start { seed: own, sequence: Sequence(!seed), continues, known: !continues }
        });
        Self { stages: stages.skip(skipped).collect(), stopped: Stopped::default() }
    }

    /// The numbers of the next so many stages, for whoever runs them apart from those that follow.
    pub(crate) fn take(&mut self, stages: usize) -> Self {
        let stages = stages.min(self.stages.len());
        Self { stages: self.stages.drain(..stages).collect(), stopped: Stopped::default() }
    }

    /// Where the last of these stages stopped.
    pub(crate) fn stopped(&self) -> Stopped {
        self.stopped
    }

    /// The stages before these have run.
    pub(crate) fn go_on_from(&mut self, stopped: Stopped) {
        if let (Some(next), Some(stopped)) = (self.stages.front_mut(), stopped.0)
            && next.continues
            && !next.known
        {
            (next.sequence, next.known) = (stopped, true);
        }
    }

    /// Runs a stage on its numbers.
    pub(crate) fn run<T>(&mut self, device: &Device, stage: usize, run: impl FnOnce() -> T) -> T {
        /// Leaves the stage also when it panics.
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                INSIDE.with_borrow_mut(|inside| inside.pop());
            }
        }
        let start = &self.stages[stage];
        device.seed(start.seed);
        let sequence = start.sequence;
        INSIDE.with_borrow_mut(|inside| inside.push(sequence));
        let leave = Leave;
        let made = run();
        let stopped = INSIDE.with_borrow(|inside| inside.last().copied());
        drop(leave);
        match (self.stages.get_mut(stage + 1), stopped) {
            (Some(next), Some(stopped)) if next.continues && !next.known => {
                (next.sequence, next.known) = (stopped, true);
            }
            (None, stopped) if self.stopped.0.is_none() => self.stopped = Stopped(stopped),
            _ => {}
        }
        made
    }
}

/// What follows a region's backward must not repeat what a recomputation drew.
pub(crate) fn after_backward(device: &Device) {
    device.seed(next_of_process());
}
