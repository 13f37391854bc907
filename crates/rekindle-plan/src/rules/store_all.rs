//! Store all: plain training, as a plan.

use crate::{Action, Stage};

/// Tapes every stage, then goes back. Nothing is run twice; every tape is alive at the turn.
pub fn store_all(stages: usize) -> Vec<Action> {
    let forward = (0..stages).map(|index| Action::tape(Stage::at(index)));
    let backward = (0..stages).rev().map(|index| Action::backward(Stage::at(index)));
    forward.chain(backward).collect()
}
