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
    for (n, tape) in [(100usize, 32u64), (1000, 32), (1000, 1), (10_000, 32)] {
        let profile = uniform(n, 1, tape);
        let least = smallest(&profile);
        println!("n {n} tape {tape} least {least}");
        for more in [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 15, 16, 20, 24, 30, 40] {
            let start = std::time::Instant::now();
            if n == 10_000 && more < 14 {
                continue;
            }
            match eager::solve(&profile, &Request::new(Bytes::new(least + more))) {
                Ok(plan) => println!(
                    "  {}: {} forwards/n {:.2} {} actions {:?}",
                    least + more,
                    plan.predicted.peak_bytes.get(),
                    plan.predicted.forwards as f64 / n as f64,
                    plan.actions.len(),
                    start.elapsed()
                ),
                Err(error) => println!("  {more}: {error} {:?}", start.elapsed()),
            }
        }
    }
}
