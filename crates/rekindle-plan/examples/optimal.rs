//! How long the optimum takes to find: `cargo run --release -p rekindle-plan --example optimal`.
//!
//! Prints one line of JSON for each chain and budget: the time taken, the gap, and the plan's cost; and one for the whole
//! frontier with its largest gap. Lengths can be given: `-- 100 200 500`.
#![allow(clippy::print_stdout, reason = "an example prints")]

mod random_chain;

use std::time::{Duration, Instant};

use random_chain::{equal_blocks, gpt_in_parts, random_chain};
use rekindle_plan::solvers::optimal;
use rekindle_plan::{Bytes, Plan, Profile, Request, Rule};

fn main() {
    let lengths: Vec<usize> = std::env::args().skip(1).filter_map(|length| length.parse().ok()).collect();
    let lengths = if lengths.is_empty() { vec![100, 200, 500] } else { lengths };
    for length in lengths {
        run(&random_chain(length, 7));
    }
    run(&equal_blocks(1_000));
    run(&gpt_in_parts(24));
}

fn run(profile: &Profile) {
    let everything = Plan::by_rule(profile, Rule::StoreAll, None).map(|plan| plan.predicted.peak_bytes.get());
    let Ok(everything) = everything else { return };
    for percent in [60, 30, 10, 5] {
        let budget = Bytes::new(everything / 100 * percent);
        let mut request = Request::new(budget);
        request.time_limit = Duration::from_secs(60);
        let start = Instant::now();
        let plan = optimal::solve(profile, &request);
        let took = start.elapsed();
        match plan {
            Ok(plan) => println!(
                r#"{{"model": "{}", "stages": {}, "budget_percent": {percent}, "milliseconds": {:.1}, "status": "{}", "overhead_percent": {:.3}}}"#,
                profile.model(),
                profile.stages().len(),
                took.as_secs_f64() * 1e3,
                plan.status,
                (plan.predicted.step_ns.ratio(profile.lower_bound()) - 1.0) * 100.0,
            ),
            Err(error) => println!(r#"{{"stages": {}, "error": "{error}"}}"#, profile.stages().len()),
        }
    }
    let request = Request { time_limit: Duration::from_secs(60), ..Request::default() };
    let start = Instant::now();
    let Ok(frontier) = optimal::frontier(profile, &request) else { return };
    let took = start.elapsed();
    let gaps = frontier.points().iter().map(|point| 1.0 - point.lower_bound_ns.ratio(point.step_ns));
    let mut gaps: Vec<f64> = gaps.collect();
    gaps.sort_by(f64::total_cmp);
    println!(
        r#"{{"model": "{}", "stages": {}, "frontier_points": {}, "milliseconds": {:.1}, "median_gap_percent": {:.2}, "largest_gap_percent": {:.2}}}"#,
        profile.model(),
        profile.stages().len(),
        frontier.points().len(),
        took.as_secs_f64() * 1e3,
        gaps[gaps.len() / 2] * 100.0,
        gaps[gaps.len() - 1] * 100.0,
    );
}
