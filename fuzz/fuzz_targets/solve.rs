//! Any solver on any profile and budget has a plan that the judge accepts within the budget, or an error; never a panic.
//!
//! The input is the profile's JSON, a line `---`, and `SOLVER BUDGET [SLOTS]`.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use rekindle_plan::solvers::Solver;
use rekindle_plan::{Bytes, Profile, Request};

fuzz_target!(|text: &str| {
    let Some((profile, asked)) = text.split_once("\n---\n") else {
        return;
    };
    let Ok(profile) = Profile::from_json(profile) else {
        return;
    };
    let mut words = asked.split_whitespace();
    let Some(solver) = words.next().and_then(|name| name.parse::<Solver>().ok()) else {
        return;
    };
    let budget = words.next().and_then(|bytes| bytes.parse::<Bytes>().ok());
    let request = Request {
        budget_bytes: budget,
        slots: words.next().and_then(|slots| slots.parse().ok()),
        time_limit: Duration::from_millis(200),
        ..Request::default()
    };
    match solver.solve(&profile, &request) {
        Ok(plan) => {
            let (_, simulation) = plan.judge(&profile).expect("a solver's plan is legal");
            assert!(budget.is_none_or(|budget| simulation.peak_bytes <= budget));
            assert!(plan.predicted.lower_bound_ns <= plan.predicted.step_ns);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
