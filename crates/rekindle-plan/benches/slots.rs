//! How long the solvers that count slots take: for the schedule alone, and for the judged plan of a profile.

use divan::{Bencher, black_box};
use rekindle_plan::solvers::multi_level::{self, Costs, Level};
use rekindle_plan::solvers::{mixed, online, revolve};
use rekindle_plan::{Action, Bytes, Nanos, Profile, Request, SolveError, StageProfile, Tier};

fn main() {
    divan::main();
}

/// Length and slots, as in the published totals.
const CASES: [(usize, u32); 2] = [(100, 10), (1000, 30)];

fn schedule(
    bencher: Bencher,
    actions: fn(usize, u32) -> Result<Vec<Action>, SolveError>,
    case: (usize, u32),
) {
    // An error would be there in no time.
    assert!(actions(case.0, case.1).is_ok());
    bencher.bench(|| actions(black_box(case.0), black_box(case.1)));
}

#[divan::bench(args = CASES)]
fn revolve_schedule(bencher: Bencher, case: (usize, u32)) {
    schedule(bencher, revolve::actions, case);
}

#[divan::bench(args = CASES)]
fn mixed_schedule(bencher: Bencher, case: (usize, u32)) {
    schedule(bencher, mixed::actions, case);
}

#[divan::bench(args = CASES)]
fn online_schedule(bencher: Bencher, case: (usize, u32)) {
    schedule(bencher, online::actions, case);
}

fn costs(slots: u32, on_disk: u32) -> Costs {
    let tier = "disk".parse().unwrap_or_else(|error| panic!("{error}"));
    let disk = Level { tier, slots: on_disk, write: 5, read: 5 };
    Costs { forward: 1, backward: 2, slots, levels: vec![disk] }
}

/// Length, slots on the device, slots on disk.
#[divan::bench(args = [(100, 3, 10), (1000, 30, 90), (1000, 3, 50)])]
fn h_revolve(bencher: Bencher, (stages, slots, on_disk): (usize, u32, u32)) {
    let costs = costs(slots, on_disk);
    bencher.bench(|| multi_level::h_revolve(black_box(stages), black_box(&costs)));
}

/// A disk so fast that every boundary is worth writing, and slots for a part of them: a row for each slot.
#[divan::bench(args = [(1000, 1, 100), (1000, 1, 500), (1000, 30, 500)], sample_count = 5)]
fn h_revolve_row_by_row(bencher: Bencher, (stages, slots, on_disk): (usize, u32, u32)) {
    let costs = Costs { forward: 100, ..costs(slots, on_disk) };
    bencher.bench(|| multi_level::h_revolve(black_box(stages), black_box(&costs)));
}

#[divan::bench(args = CASES)]
fn disk_revolve(bencher: Bencher, (stages, slots): (usize, u32)) {
    let costs = costs(slots, 0);
    bencher.bench(|| multi_level::disk_revolve(black_box(stages), black_box(&costs)));
}

/// Stages of a transformer's proportions, no two alike.
fn chain(stages: usize) -> Profile {
    let stages = (0..stages as u64).map(|index| StageProfile {
        name: format!("block.{index}"),
        output_bytes: Bytes::new((1 << 20) + index * 7919 % 65_536),
        tape_bytes: Bytes::mebibytes(32),
        forward_ns: Nanos::new(1_200_000 + index * 104_729 % 300_000),
        backward_ns: Nanos::new(2_500_000),
        ..StageProfile::default()
    });
    let host = Tier {
        name: "host".parse().unwrap_or_else(|error| panic!("{error}")),
        capacity_bytes: Bytes::mebibytes(1 << 12),
        write_bytes_per_second: 12_000_000_000,
        read_bytes_per_second: 12_000_000_000,
    };
    let profile = Profile::new("bench", "none", Bytes::mebibytes(1), stages.collect());
    profile
        .and_then(|profile| profile.with_places(vec![host], vec![]))
        .unwrap_or_else(|error| panic!("{error}"))
}

/// A budget in bytes: many numbers of slots are tried, each judged by the simulator.
#[divan::bench(args = ["revolve", "mixed", "online", "multi-level"], consts = [100, 1000], sample_count = 5)]
fn budget<const STAGES: usize>(bencher: Bencher, solver: &str) {
    let profile = chain(STAGES);
    let request = Request::new(Bytes::mebibytes(120));
    let solve = match solver {
        "revolve" => revolve::solve,
        "mixed" => mixed::solve,
        "online" => online::solve,
        _ => multi_level::solve,
    };
    assert!(solve(&profile, &request).is_ok());
    bencher.bench(|| solve(black_box(&profile), black_box(&request)));
}
