//! Every k: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".

use std::num::NonZeroUsize;

use crate::{Action, Stage};

/// Keeps the boundary before every `k`-th stage. Going back, a segment is taped as a whole, then gone back through.
///
/// The last segment is taped the first time: its tape is needed right after, so leaving it out would only run it twice.
pub fn every_k(stages: usize, k: NonZeroUsize) -> Vec<Action> {
    let starts = (0..stages).step_by(k.get());
    let segments: Vec<_> = starts.map(|start| start..start.saturating_add(k.get()).min(stages)).collect();
    let mut actions = Vec::with_capacity(stages * 3 + segments.len() * 2);
    let Some((last, earlier)) = segments.split_last() else {
        return actions;
    };
    for segment in earlier {
        actions.push(Action::keep(Stage::at(segment.start).input()));
        actions.extend(segment.clone().map(|index| Action::forward(Stage::at(index))));
    }
    actions.extend(last.clone().map(|index| Action::tape(Stage::at(index))));
    actions.extend(last.clone().rev().map(|index| Action::backward(Stage::at(index))));
    for segment in earlier.iter().rev() {
        actions.extend(segment.clone().map(|index| Action::tape(Stage::at(index))));
        actions.push(Action::drop(Stage::at(segment.start).input()));
        actions.extend(segment.clone().rev().map(|index| Action::backward(Stage::at(index))));
    }
    actions
}

/// [`every_k`] with the square root of the number of stages, rounded up: the best `k` when boundaries and tapes are of
/// one size, and a poor one when a tape is thirty times its boundary.
pub fn square_root(stages: usize) -> Vec<Action> {
    let root = stages.isqrt();
    let k = root + usize::from(root * root < stages);
    every_k(stages, NonZeroUsize::new(k).unwrap_or(NonZeroUsize::MIN))
}
