//! Every persistent plan of a small chain, to hold solvers against.

use rekindle_plan::{Action, Boundary, Profile, Stage};

/// Every persistent plan of a chain, as actions.
pub(crate) fn every_plan(profile: &Profile) -> Vec<Vec<Action>> {
    let last = profile.stages().len() as u32;
    every_cell(profile, 1, last)
}

/// Every way to run stages `first..=last` forth and back. The input is dropped by whoever tapes the first stage.
fn every_cell(profile: &Profile, first: u32, last: u32) -> Vec<Vec<Action>> {
    let stage = Stage::new(first);
    let mut all = Vec::new();
    let options = &profile.stages()[first as usize - 1].options;
    for option in [None].into_iter().chain(options.iter().map(|option| Some(option.name.clone()))) {
        let rests = if first < last { every_cell(profile, first + 1, last) } else { vec![vec![]] };
        for rest in rests {
            let mut plan = vec![Action::Tape { stage, option: option.clone() }];
            plan.extend(rest);
            plan.push(Action::backward(stage));
            all.push(plan);
        }
    }
    for middle in first + 1..=last {
        for after in every_cell(profile, middle, last) {
            for before in every_cell(profile, first, middle - 1) {
                let mut plan: Vec<_> =
                    (first..middle).map(|stage| Action::forward(Stage::new(stage))).collect();
                plan.extend(after.iter().cloned());
                plan.extend(before);
                all.push(plan);
            }
        }
    }
    all
}

/// Adds what keeps and drops inputs: an input is kept from its first untaped reading to the taped one.
pub(crate) fn with_keeps(actions: &[Action]) -> Vec<Action> {
    let mut kept: Vec<Boundary> = Vec::new();
    let mut all = Vec::new();
    for (index, action) in actions.iter().enumerate() {
        let read_again = |boundary: Boundary| {
            let made_again = |later: &Action| match later {
                Action::Forward { stage } | Action::Tape { stage, .. } => Some(*stage),
                _ => None,
            };
            // Read again before it is made again.
            let mut later = actions[index + 1..].iter().filter_map(made_again);
            later
                .find(|stage| stage.input() == boundary || stage.output() == boundary)
                .is_some_and(|stage| stage.input() == boundary)
        };
        match action {
            Action::Forward { stage } => {
                let input = stage.input();
                if !kept.contains(&input) && read_again(input) {
                    all.push(Action::keep(input));
                    kept.push(input);
                }
                all.push(action.clone());
            }
            Action::Tape { stage, .. } => {
                all.push(action.clone());
                if let Some(at) = kept.iter().position(|boundary| *boundary == stage.input()) {
                    kept.remove(at);
                    all.push(Action::drop(stage.input()));
                }
            }
            _ => all.push(action.clone()),
        }
    }
    all
}
