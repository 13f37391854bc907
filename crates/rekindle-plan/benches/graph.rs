//! How long graphs take to plan, as far as asked for: within 1% of the proven bound, or the default time.
#![allow(clippy::unwrap_used, reason = "a bench may fail by panicking")]

#[path = "../tests/graphs/mod.rs"]
mod graphs;

use divan::{Bencher, black_box};
use graphs::{Reads, linear, random, residual, two_towers, u_net, unit_linear};
use rekindle_plan::graph::{Graph, GraphPlan, min_cut, simulate, solve};
use rekindle_plan::{Bytes, Request};

fn main() {
    divan::main();
}

fn plan(bencher: Bencher, graph: &Graph, percent: u64) {
    let all = GraphPlan::store_all(graph, None).unwrap().predicted.peak_bytes.get();
    let request = Request::new(Bytes::new(all * percent / 100));
    bencher.bench(|| solve(black_box(graph), black_box(&request)).unwrap());
}

/// Checkmate's largest figure: 63 with 11 bytes.
#[divan::bench(sample_count = 20)]
fn unit_linear_49(bencher: Bencher) {
    let graph = unit_linear(24, Reads::Input);
    let request = Request::new(Bytes::new(11));
    bencher.bench(|| solve(black_box(&graph), black_box(&request)).unwrap());
}

#[divan::bench(args = [80, 50], sample_count = 3)]
fn linear_49(bencher: Bencher, percent: u64) {
    plan(bencher, &linear(24, 1), percent);
}

#[divan::bench(args = [80, 50], sample_count = 3)]
fn two_towers_49(bencher: Bencher, percent: u64) {
    plan(bencher, &two_towers(12, 1), percent);
}

#[divan::bench(args = [80, 50], sample_count = 3)]
fn u_net_45(bencher: Bencher, percent: u64) {
    plan(bencher, &u_net(3, 2, 1), percent);
}

#[divan::bench(args = [80, 50, 30], sample_count = 1)]
fn linear_1001(bencher: Bencher, percent: u64) {
    plan(bencher, &linear(500, 2), percent);
}

#[divan::bench(args = [80, 50, 30], sample_count = 1)]
fn two_towers_1001(bencher: Bencher, percent: u64) {
    plan(bencher, &two_towers(250, 2), percent);
}

#[divan::bench(args = [80, 50, 30], sample_count = 1)]
fn u_net_979(bencher: Bencher, percent: u64) {
    plan(bencher, &u_net(8, 29, 2), percent);
}

#[divan::bench(args = [80, 50, 30], sample_count = 1)]
fn residual_1003(bencher: Bencher, percent: u64) {
    plan(bencher, &residual(100, 2), percent);
}

#[divan::bench(args = [80, 50], sample_count = 1)]
fn random_999(bencher: Bencher, percent: u64) {
    plan(bencher, &random(500, 2), percent);
}

#[divan::bench]
fn judge_1003(bencher: Bencher) {
    let graph = residual(100, 2);
    let actions = GraphPlan::store_all(&graph, None).unwrap().actions;
    assert!(simulate(&graph, &actions).is_ok());
    bencher.bench(|| simulate(black_box(&graph), black_box(&actions)));
}

#[divan::bench]
fn min_cut_1003(bencher: Bencher) {
    let graph = residual(100, 2);
    bencher.bench(|| min_cut(black_box(&graph)));
}
