//! How long the optimum takes to find. `examples/optimal.rs` prints the gaps that belong to it.

#[path = "../examples/random_chain/mod.rs"]
mod random_chain;

use divan::Bencher;
use random_chain::{equal_blocks, gpt_in_parts, random_chain};
use rekindle_plan::solvers::optimal;
use rekindle_plan::{Bytes, Plan, Profile, Request, Rule};

fn main() {
    divan::main();
}

/// A request for this part of what keeping everything takes.
fn request(profile: &Profile, percent: u64) -> Request {
    let all = Plan::by_rule(profile, Rule::StoreAll, None).map_or(0, |plan| plan.predicted.peak_bytes.get());
    Request::new(Bytes::new(all / 100 * percent))
}

/// Stages and the budget in percent of store-all.
const CHAINS: [(usize, u64); 5] = [(24, 30), (100, 60), (100, 10), (200, 30), (200, 5)];

#[divan::bench(args = CHAINS, sample_count = 10)]
fn different_stages(bencher: Bencher, (stages, percent): (usize, u64)) {
    let profile = random_chain(stages, 7);
    let request = request(&profile, percent);
    bencher.bench(|| optimal::solve(&profile, &request));
}

#[divan::bench(args = [60, 30, 10, 5], sample_count = 20)]
fn a_thousand_equal_blocks(bencher: Bencher, percent: u64) {
    let profile = equal_blocks(1_000);
    let request = request(&profile, percent);
    bencher.bench(|| optimal::solve(&profile, &request));
}

#[divan::bench(args = [24, 100], sample_count = 5)]
fn frontier(bencher: Bencher, stages: usize) {
    let profile = random_chain(stages, 7);
    bencher.bench(|| optimal::frontier(&profile, &Request::default()));
}

#[divan::bench(sample_count = 10)]
fn frontier_of_a_thousand_equal_blocks(bencher: Bencher) {
    let profile = equal_blocks(1_000);
    bencher.bench(|| optimal::frontier(&profile, &Request::default()));
}

#[divan::bench(sample_count = 10)]
fn frontier_of_a_gpt_in_parts(bencher: Bencher) {
    let profile = gpt_in_parts(24);
    bencher.bench(|| optimal::frontier(&profile, &Request::default()));
}
