//! `rekindle plan --pipeline`: plans for ranks, without any rank.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::path::PathBuf;
use std::process::{Command, Output};

use insta::assert_snapshot;
use rekindle_plan::{Bytes, Nanos, Plan, Profile, StageProfile, pipeline};

fn rekindle(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rekindle"));
    command.args(arguments).env("NO_COLOR", "1").env("COLUMNS", "140").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn profile(stages: usize) -> Profile {
    let stage = |number: usize| StageProfile {
        name: format!("block.{number}"),
        output_bytes: Bytes::mebibytes(1),
        tape_bytes: Bytes::mebibytes(12),
        forward_ns: Nanos::new(1_000_000),
        backward_ns: Nanos::new(2_000_000),
        parameter_gradient_bytes: Bytes::mebibytes(2),
        ..StageProfile::default()
    };
    Profile::new("gpt", "flex", Bytes::mebibytes(1), (0..stages).map(stage).collect()).unwrap()
}

/// A folder with a profile of so many stages.
fn written(stages: usize) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profile.json");
    std::fs::write(&path, profile(stages).to_json()).unwrap();
    (folder, path)
}

fn shown(stages: usize, arguments: &[&str]) -> String {
    let (_folder, path) = written(stages);
    let output = rekindle(&[&["plan", path.to_str().unwrap()], arguments].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn ranks_hold_different_numbers_of_micro_batches_and_plan_for_them() {
    assert_snapshot!(shown(16, &["--pipeline", "4", "--micro-batches", "6", "--budget", "64MiB"]));
}

#[test]
fn a_rule_needs_no_budget() {
    assert_snapshot!(shown(6, &["--pipeline", "2", "--solver", "every-1"]));
}

#[test]
fn a_thousand_ranks_are_planned_without_any() {
    let all = shown(2_000, &["--pipeline", "1000", "--micro-batches", "64", "--budget", "200MiB", "--json"]);
    let all: serde_json::Value = serde_json::from_str(&all).unwrap();
    let ranks = all["ranks"].as_array().unwrap();
    assert_eq!(
        (ranks.len(), &ranks[0]["in_flight"], &ranks[999]["in_flight"]),
        (1000, &64.into(), &1.into())
    );
    assert!(ranks.iter().all(|rank| rank["peak_bytes"].as_u64().unwrap() <= 200 << 20));
    assert_eq!(ranks[500]["timeline"].as_array().unwrap().len(), 128);
    let shown = shown(2_000, &["--pipeline", "1000", "--micro-batches", "64", "--budget", "200MiB"]);
    assert!(shown.contains("984 ranks between them are not shown; --json has all"), "{shown}");
}

#[test]
fn each_ranks_plan_is_a_file_that_is_judged_like_any_other() {
    let (folder, path) = written(8);
    let output = folder.path().join("plan.json");
    let arguments = ["--pipeline", "2", "--budget", "60MiB", "-o", output.to_str().unwrap()];
    let done = rekindle(&[&["plan", path.to_str().unwrap()][..], &arguments].concat());
    assert!(done.status.success(), "{}", text(&done.stderr));
    for (rank, stages) in [(0, 0..4), (1, 4..8)] {
        let plan = std::fs::read_to_string(folder.path().join(format!("plan.rank-{rank}.json"))).unwrap();
        let plan = Plan::from_json(&plan).unwrap();
        plan.judge(&pipeline::section(&profile(8), stages).unwrap()).unwrap();
    }
}

#[test]
fn what_cannot_be_planned_is_refused_with_what_would_do() {
    let (folder, path) = written(4);
    let path = path.to_str().unwrap();
    let mut all = String::new();
    for arguments in [
        &["--pipeline", "5", "--budget", "64MiB"][..],
        &["--pipeline", "2"],
        &["--pipeline", "2", "--budget", "5MiB"],
        &["--pipeline", "0", "--budget", "64MiB"],
        &["--pipeline", "2", "--solver", "revolve", "--budget", "64MiB"],
        &["--micro-batches", "2", "--budget", "64MiB"],
    ] {
        let output = rekindle(&[&["plan", path], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        all += &format!("{}\n{}\n", arguments.join(" "), text(&output.stderr));
    }
    assert_snapshot!(all.replace(folder.path().to_str().unwrap(), "[FOLDER]"));
}

#[test]
fn train_without_mpi_refuses_ranks() {
    if cfg!(feature = "mpi") {
        return;
    }
    let output = rekindle(&["train", "--pipeline", "2"]);
    assert_eq!(output.status.code(), Some(2));
    assert_snapshot!(text(&output.stderr));
    // Started by `mpirun`, and by `srun --mpi=pmix`, whose ranks were taken for trainings of their own.
    let srun = [("PMIX_RANK", "0"), ("SLURM_STEP_NUM_TASKS", "4")];
    for started in [&[("OMPI_COMM_WORLD_SIZE", "4")][..], &srun] {
        let mut one_of_four = Command::new(env!("CARGO_BIN_EXE_rekindle"));
        let output =
            one_of_four.args(["train", "--steps", "1"]).envs(started.iter().copied()).output().unwrap();
        assert!(text(&output.stderr).contains("this is one of 4 ranks"), "{}", text(&output.stderr));
    }
    // One task of four without MPI is a training of its own: whoever starts four that way has four.
    let mut task = Command::new(env!("CARGO_BIN_EXE_rekindle"));
    task.args(["train", "--layers", "0"]).env("SLURM_STEP_NUM_TASKS", "4").env_remove("PMIX_RANK");
    assert!(!text(&task.output().unwrap().stderr).contains("ranks"));
}
