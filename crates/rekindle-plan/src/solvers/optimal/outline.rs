//! What a plan takes, without writing it down.
//!
//! The same run of stages in the same room is done in the same way each time: it is looked at once. A plan of half a
//! million actions is a few thousand such looks.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::choice::Choice;
use super::problem::Problem;
use crate::rules::MOST_ACTIONS;

/// What a plan takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outline {
    /// Time beyond running each stage once at its fastest.
    pub(super) overhead: u64,
    /// The room it needs at its worst moment, to the byte.
    pub(super) need: u64,
    /// At most so many actions.
    actions: usize,
}

/// What `choose` says a cell begins with in a room, and the room that is left then.
pub(super) trait Choose: Fn(usize, usize, u64) -> Option<(Choice, u64)> {}
impl<F: Fn(usize, usize, u64) -> Option<(Choice, u64)>> Choose for F {}

/// The plan that follows from what `choose` says of each cell; `None` when there is none, or it is too long to be written
/// down.
pub(super) fn outline(problem: &Problem, choose: impl Choose, room: u64) -> Option<Outline> {
    let mut outlines = Outlines { problem, choose, known: HashMap::default() };
    outlines.cell(0, problem.chain.stages(), room).filter(|outline| outline.actions <= MOST_ACTIONS)
}

struct Outlines<'a, C> {
    problem: &'a Problem,
    choose: C,
    /// By the number of the cell and its room.
    known: HashMap<(usize, u64), Outline, BuildHasherDefault<Mixed>>,
}

/// Numbers mixed in a few instructions: nobody from outside chooses them to collide for long, as there are few.
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // An odd number of many bits, near to that of the golden ratio.
        self.0 = (self.0.rotate_left(23) ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}

impl<C: Choose> Outlines<'_, C> {
    /// Cells are at most as deep as there are stages.
    fn cell(&mut self, first: usize, end: usize, room: u64) -> Option<Outline> {
        let Problem { chain, cells, .. } = self.problem;
        let key = (cells.number(first, end), room);
        if let Some(known) = self.known.get(&key) {
            return Some(*known);
        }
        let start = chain.starts[first];
        let found = match (self.choose)(first, end, room)? {
            (Choice::Tape(way), left) => {
                let tape = &chain.tapes[first][way];
                let rest = match first + 1 < end {
                    true => self.cell(first + 1, end, left)?,
                    false => Outline { overhead: 0, need: 0, actions: 0 },
                };
                Outline {
                    overhead: rest.overhead.saturating_add(tape.excess),
                    need: rest.need.saturating_add(tape.bytes).max(chain.tape_need(tape, end)),
                    // A tape and a backward for each stage, and the input is dropped.
                    actions: rest.actions.saturating_add(2 * (chain.starts[first + 1] - start) + 1),
                }
            }
            (Choice::Sweep(middle), left) => {
                let after = self.cell(middle, end, left)?;
                let before = self.cell(first, middle, room)?;
                let sweep = self.problem.sweeps.needs(first)[middle - first - 1];
                let parts = after.overhead.saturating_add(before.overhead);
                let held = after.need.saturating_add(chain.boundary[middle]);
                let actions = after.actions.saturating_add(before.actions);
                Outline {
                    overhead: parts.saturating_add(chain.sweep(first, middle)),
                    need: held.max(before.need).max(sweep.saturating_add(chain.waiting(end))),
                    actions: actions.saturating_add(chain.starts[middle] - start + 1),
                }
            }
        };
        self.known.insert(key, found);
        Some(found)
    }
}
