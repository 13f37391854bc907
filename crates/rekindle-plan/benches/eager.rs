//! How long eager eviction takes to plan a chain, the simulator's verdict included.

use divan::{Bencher, black_box, counter::ItemsCount};
use rekindle_plan::solvers::eager;
use rekindle_plan::{Bytes, Nanos, Plan, Profile, Request, Rule, SolveError, StageProfile};

fn main() {
    divan::main();
}

/// Boundaries of one size, each tape `tape` times as large.
fn uniform(stages: usize, tape: u64) -> Profile {
    let stages = (0..stages).map(|index| StageProfile {
        name: format!("block.{index}"),
        output_bytes: Bytes::new(1),
        tape_bytes: Bytes::new(tape),
        forward_ns: Nanos::new(1_200_000),
        backward_ns: Nanos::new(2_500_000),
        ..StageProfile::default()
    });
    Profile::new("bench", "none", Bytes::new(1), stages.collect()).unwrap_or_else(|error| panic!("{error}"))
}

fn solve(bencher: Bencher, profile: &Profile, budget: Bytes) {
    let request = Request::new(budget);
    // A refusal would be quick.
    assert!(eager::solve(profile, &request).is_ok());
    bencher
        .counter(ItemsCount::new(profile.stages().len()))
        .bench(|| eager::solve(black_box(profile), black_box(&request)));
}

/// The budget that `sqrt` takes, tapes as large as boundaries: some two forwards a stage.
#[divan::bench(args = [100, 1_000, 10_000, 100_000], max_time = 2)]
fn in_the_memory_of_sqrt(bencher: Bencher, stages: usize) {
    let profile = uniform(stages, 1);
    let plan = Plan::by_rule(&profile, Rule::SquareRoot, None).unwrap_or_else(|error| panic!("{error}"));
    solve(bencher, &profile, plan.predicted.peak_bytes);
}

/// Half of what `store-all` takes, with the proportions of a transformer: many values to choose among.
#[divan::bench(args = [100, 1_000, 10_000, 100_000], max_time = 2)]
fn in_half_of_store_all(bencher: Bencher, stages: usize) {
    solve(bencher, &uniform(stages, 32), Bytes::new(stages as u64 * 16));
}

/// Sixteen boundaries beside a tape, for any length.
#[divan::bench(args = [100, 1_000, 10_000], max_time = 2)]
fn with_sixteen_boundaries(bencher: Bencher, stages: usize) {
    solve(bencher, &uniform(stages, 32), Bytes::new(49));
}

/// The smallest budget, where the plan is quadratic and at last too long to hold: the most it can take to say so.
#[divan::bench(sample_count = 1, sample_size = 1)]
fn until_it_is_too_long(bencher: Bencher) {
    let (profile, request) = (uniform(10_000, 1), Request::new(Bytes::new(4)));
    bencher.bench(|| {
        let refused = eager::solve(black_box(&profile), black_box(&request));
        assert!(matches!(refused, Err(SolveError::TooLong { .. })));
    });
}
