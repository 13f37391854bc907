//! How long the optimum takes to find: `cargo run --release -p rekindle-plan --example optimal`.
//!
//! Prints one line of JSON for each chain and budget: the time taken, the gap, and the plan's cost.
#![allow(clippy::print_stdout, reason = "an example prints")]

use std::time::{Duration, Instant};

use rekindle_plan::solvers::optimal;
use rekindle_plan::{Bytes, Nanos, Plan, Profile, Request, Rule, StageProfile};

/// A random number generator of one line, so that everybody gets the same chains.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Stages that have nothing in common: boundaries of 1 to 16 MiB, tapes of 2 to 20 boundaries, times of 1 to 10 ms.
fn random_chain(stages: usize, seed: u64) -> Profile {
    let mut random = Random(seed);
    let stage = |index: usize| {
        let output = (1 << 20) + random.below(15 << 20);
        let forward = 1_000_000 + random.below(9_000_000);
        StageProfile {
            name: format!("stage.{index}"),
            output_bytes: Bytes::new(output),
            tape_bytes: Bytes::new(output * 2 + random.below(18 * output)),
            forward_ns: Nanos::new(forward),
            backward_ns: Nanos::new(forward + random.below(2 * forward)),
            forward_extra_bytes: Bytes::new(random.below(4 << 20)),
            backward_extra_bytes: Bytes::new(random.below(8 << 20)),
            ..StageProfile::default()
        }
    };
    let stages = (0..stages).map(stage).collect();
    Profile::new("random", "none", Bytes::new(8 << 20), stages).unwrap_or_else(|error| panic!("{error}"))
}

/// Blocks that differ in nothing, of sizes that have nothing in common.
fn equal_blocks(stages: usize) -> Profile {
    let stage = |index: usize| StageProfile {
        name: format!("block.{index}"),
        output_bytes: Bytes::new(262_144),
        tape_bytes: Bytes::new(9_412_345),
        forward_ns: Nanos::new(1_234_567),
        backward_ns: Nanos::new(2_345_678),
        ..StageProfile::default()
    };
    let stages = (0..stages).map(stage).collect();
    Profile::new("blocks", "none", Bytes::new(262_144), stages).unwrap_or_else(|error| panic!("{error}"))
}

fn main() {
    let lengths: Vec<usize> = std::env::args().skip(1).filter_map(|length| length.parse().ok()).collect();
    let lengths = if lengths.is_empty() { vec![100, 200, 500] } else { lengths };
    for length in lengths {
        run(&random_chain(length, 7));
    }
    run(&equal_blocks(1_000));
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
}
