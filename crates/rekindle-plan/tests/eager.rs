//! Eager eviction.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod chains;

use chains::{any_profile, uniform};
use proptest::prelude::*;
use rekindle_plan::solvers::eager;
use rekindle_plan::{Bytes, Plan, Profile, Request, Rule, SolveError};

fn smallest(profile: &Profile) -> u64 {
    match eager::solve(profile, &Request::new(Bytes::ZERO)) {
        Ok(_) => 0,
        Err(SolveError::BudgetTooSmall { smallest_bytes, .. }) => smallest_bytes.get(),
        Err(error) => panic!("{error}"),
    }
}

proptest! {
    #[test]
    fn never_over(profile in any_profile()) {
        let least = smallest(&profile);
        let all = Plan::by_rule(&profile, Rule::StoreAll, None).unwrap().predicted.peak_bytes.get();
        for budget in least..=all {
            let plan = eager::solve(&profile, &Request::new(Bytes::new(budget))).unwrap();
            prop_assert!(plan.predicted.peak_bytes.get() <= budget);
        }
    }
}

#[test]
fn look() {
    for (n, tape) in [(100usize, 1u64), (1000, 1), (10_000, 1), (100, 32), (1000, 32)] {
        let profile = uniform(n, 1, tape);
        let least = smallest(&profile);
        let sqrt = Plan::by_rule(&profile, Rule::SquareRoot, None).unwrap();
        println!("n {n} tape {tape} least {least} sqrt {} {}", sqrt.predicted.peak_bytes.get(), sqrt.predicted.forwards);
        for factor in [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0] {
            let budget = (sqrt.predicted.peak_bytes.get() as f64 * factor) as u64;
            let budget = budget.max(least);
            let start = std::time::Instant::now();
            let plan = eager::solve(&profile, &Request::new(Bytes::new(budget)));
            match plan {
                Ok(plan) => println!("  {budget}: {} forwards/n {:.2} {} actions {:?}", plan.predicted.peak_bytes.get(), plan.predicted.forwards as f64 / n as f64, plan.actions.len(), start.elapsed()),
                Err(error) => println!("  {budget}: {error} {:?}", start.elapsed()),
            }
        }
    }
}
