//! From the choices a solver made to the actions of a plan.

use super::chain::Chain;
use crate::rules::MOST_ACTIONS;
use crate::{Action, Boundary, Stage};

/// What a cell begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Tape the first stage in this way, do the rest, then go back through it.
    Tape(usize),
    /// Run forward to this boundary, keeping the cell's input; do what follows the boundary, then what is before it.
    Sweep(usize),
}

/// The actions that tape every stage in its fastest way.
pub(super) fn store_all(chain: &Chain) -> Option<Vec<Action>> {
    actions(chain, (), |first, _, ()| Some((Choice::Tape(chain.fastest(first)), ())))
}

/// The actions that follow from what `choose` says of each cell and its room; `None` when they are too many to hold, or
/// when it says nothing.
pub(super) fn actions<Room: Copy>(
    chain: &Chain,
    room: Room,
    mut choose: impl FnMut(usize, usize, Room) -> Option<(Choice, Room)>,
) -> Option<Vec<Action>> {
    enum Task<Room> {
        Cell(usize, usize, Room),
        Backward(usize),
    }
    let mut kept = vec![false; chain.stages()];
    let mut actions = Vec::new();
    let mut tasks = vec![Task::Cell(0, chain.stages(), room)];
    while let Some(task) = tasks.pop() {
        if actions.len() > MOST_ACTIONS {
            return None;
        }
        let (first, end, room) = match task {
            Task::Cell(first, end, room) => (first, end, room),
            Task::Backward(stage) => {
                let stages = chain.starts[stage]..chain.starts[stage + 1];
                actions.extend(stages.rev().map(|stage| Action::backward(Stage::at(stage))));
                continue;
            }
        };
        let start = chain.starts[first];
        let input = Boundary::new(start as u32);
        // The room that the choice leaves is for what comes after the first stage or the sweep.
        match choose(first, end, room)? {
            (Choice::Tape(way), left) => {
                let options = chain.tapes[first][way].options.iter().cloned();
                let tapes = (start..).zip(options);
                actions.extend(tapes.map(|(stage, option)| Action::Tape { stage: Stage::at(stage), option }));
                if std::mem::take(&mut kept[first]) {
                    actions.push(Action::drop(input));
                }
                tasks.push(Task::Backward(first));
                if first + 1 < end {
                    tasks.push(Task::Cell(first + 1, end, left));
                }
            }
            (Choice::Sweep(middle), left) => {
                if !std::mem::replace(&mut kept[first], true) {
                    actions.push(Action::keep(input));
                }
                let stages = start..chain.starts[middle];
                actions.extend(stages.map(|stage| Action::forward(Stage::at(stage))));
                tasks.push(Task::Cell(first, middle, room));
                tasks.push(Task::Cell(middle, end, left));
            }
        }
    }
    Some(actions)
}
