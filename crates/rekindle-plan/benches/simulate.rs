//! How long the judge takes: the plan of a step must cost nothing beside the step.

use divan::{Bencher, black_box, counter::ItemsCount};
use rekindle_plan::{Bytes, Nanos, Profile, Rule, StageProfile, simulate};

fn main() {
    divan::main();
}

/// Stages of a transformer's proportions: a tape some thirty times its boundary.
fn chain(stages: usize) -> Profile {
    let stages = (0..stages).map(|index| StageProfile {
        name: format!("block.{index}"),
        output_bytes: Bytes::mebibytes(1),
        tape_bytes: Bytes::mebibytes(32),
        forward_ns: Nanos::new(1_200_000),
        backward_ns: Nanos::new(2_500_000),
        ..StageProfile::default()
    });
    Profile::new("bench", "none", Bytes::mebibytes(1), stages.collect())
        .unwrap_or_else(|error| panic!("{error}"))
}

fn judge(bencher: Bencher, rule: Rule, stages: usize) {
    let profile = chain(stages);
    let actions = rule.actions(stages).unwrap_or_else(|error| panic!("{error}"));
    // An illegal plan would be judged in no time.
    assert!(simulate(&profile, &actions).is_ok());
    bencher
        .counter(ItemsCount::new(actions.len()))
        .bench(|| simulate(black_box(&profile), black_box(&actions)));
}

#[divan::bench(args = [24, 1_000, 10_000])]
fn sqrt(bencher: Bencher, stages: usize) {
    judge(bencher, Rule::SquareRoot, stages);
}

/// A quadratic number of actions.
#[divan::bench(args = [200])]
fn full(bencher: Bencher, stages: usize) {
    judge(bencher, Rule::Full, stages);
}
