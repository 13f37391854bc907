//! Full: keep the input only.

use crate::{Action, Boundary, Stage};

/// Keeps `x0` and nothing else, whatever the length: for each backward the chain is run from the start.
///
/// A chain of `n` runs `n (n + 3) / 2` stage forwards. With one stage it is what other frameworks call `checkpoint`.
pub fn full(stages: usize) -> Vec<Action> {
    let input = Boundary::new(0);
    let mut actions = vec![Action::keep(input)];
    actions.extend((0..stages).map(|index| Action::forward(Stage::at(index))));
    for last in (0..stages).rev() {
        actions.extend((0..last).map(|index| Action::forward(Stage::at(index))));
        actions.push(Action::tape(Stage::at(last)));
        if last == 0 {
            actions.push(Action::drop(input));
        }
        actions.push(Action::backward(Stage::at(last)));
    }
    actions
}
