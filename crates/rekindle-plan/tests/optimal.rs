//! The optimum against exhaustive search, and what must hold of it on any chain.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod chains;

use std::time::Duration;

use chains::{any_stage, name, uniform};
use proptest::prelude::*;
use rekindle_plan::solvers::optimal;
use rekindle_plan::{
    Action, Boundary, Bytes, Gap, Nanos, Plan, Profile, Request, Rule, SolveError, Stage, StageProfile,
    Status, TapeOption, simulate,
};

/// Every persistent plan of a chain, as actions.
fn every_plan(profile: &Profile) -> Vec<Vec<Action>> {
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
fn with_keeps(actions: &[Action]) -> Vec<Action> {
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

/// The peaks and times of every legal persistent plan, the least time for each budget: rooms rise, times fall.
fn exhaustive_frontier(profile: &Profile) -> Vec<(Bytes, Nanos)> {
    let plans = every_plan(profile);
    let legal = plans.iter().filter_map(|plan| simulate(profile, &with_keeps(plan)).ok());
    let mut points: Vec<_> = legal.map(|found| (found.peak_bytes, found.step_ns)).collect();
    points.sort_unstable();
    let mut frontier: Vec<(Bytes, Nanos)> = Vec::new();
    for point in points {
        if frontier.last().is_none_or(|last| point.1 < last.1) {
            frontier.push(point);
        }
    }
    frontier
}

fn short_chain(stages: std::ops::Range<usize>) -> impl Strategy<Value = Profile> {
    let pinned = proptest::collection::vec(0..6u8, 8);
    (0..50u64, proptest::collection::vec(any_stage(), stages), pinned).prop_map(
        |(input, mut stages, pinned)| {
            for (stage, roll) in stages.iter_mut().zip(pinned) {
                stage.pinned = roll == 0;
            }
            Profile::new("short", "none", Bytes::new(input), stages).unwrap()
        },
    )
}

fn check_against_exhaustive(profile: &Profile) {
    let expected = exhaustive_frontier(profile);
    let (smallest, _) = expected[0];
    assert_eq!(optimal::smallest_budget(profile), Ok(smallest));
    for (budget, time) in &expected {
        let plan = optimal::solve(profile, &Request::new(*budget)).unwrap();
        assert_eq!(plan.predicted.step_ns, *time, "at {} bytes", budget.get());
        assert_eq!(plan.predicted.lower_bound_ns, *time);
        assert_eq!(plan.status, Status::Optimal);
        assert!(plan.predicted.peak_bytes <= *budget);
    }
    if let Some(below) = smallest.get().checked_sub(1) {
        let error = optimal::solve(profile, &Request::new(Bytes::new(below))).unwrap_err();
        assert_eq!(
            error,
            SolveError::BudgetTooSmall {
                solver: "optimal",
                budget_bytes: Bytes::new(below),
                smallest_bytes: smallest
            }
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn the_optimum_is_what_exhaustive_search_finds(profile in short_chain(1..6)) {
        check_against_exhaustive(&profile);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn the_optimum_of_seven_stages_is_what_exhaustive_search_finds(profile in short_chain(7..8)) {
        check_against_exhaustive(&profile);
    }
}
