//! Training while memory comes and goes.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use rekindle_run::snapshots::Snapshots;
use serde_json::Value;

/// A system that says this much is available. A twentieth of all is reserved: one mebibyte.
fn says(root: &Path, kibibytes: u64) {
    says_of(root, 20 << 10, kibibytes);
}

fn says_of(root: &Path, all: u64, kibibytes: u64) {
    let text = format!("MemTotal: {all} kB\nMemAvailable: {kibibytes} kB\n");
    std::fs::create_dir_all(root.join("proc")).unwrap();
    let part = root.join("proc/part");
    std::fs::write(&part, text).unwrap();
    std::fs::rename(part, root.join("proc/meminfo")).unwrap();
}

fn train(root: &Path, arguments: &[&str]) -> Command {
    let size = ["--layers", "4", "--width", "64", "--heads", "4", "--sequence", "64", "--batch", "4"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_rekindle"));
    command.env_remove("REKINDLE_CONFIG").env("REKINDLE_MEMORY_ROOT", root);
    command.args(["train", "--adaptive", "--json"]).args(size).args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn a_run_goes_tighter_before_a_step_that_would_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    says(folder.path(), 16 << 10);
    let mut child = train(folder.path(), &["--steps", "100"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    // The first plan is the fastest there is; then somebody else takes all that is free.
    let start = lines.find(|line| line.starts_with("step 1: ")).unwrap();
    says(folder.path(), 0);
    let tighter = lines.find(|line| line.contains("because only")).unwrap();
    assert!(tighter.contains("can be used"), "{start}\n{tighter}");
    // What the run gave back is free, and so is what the other one had.
    says(folder.path(), 16 << 10);
    lines.for_each(drop);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["plan_changes"].as_u64().unwrap() >= 2, "{found}");
    assert!(found["peak_bytes"].as_u64() <= found["budget_bytes"].as_u64(), "{found}");
    assert_eq!(found["gradients"]["identical"], found["gradients"]["tensors"]);
    assert_eq!(governed(&found), 100);
}

/// Holds the peak of every step against the budget it ran under; how many steps there were.
fn governed(found: &Value) -> u64 {
    let rows = found["governed"].as_array().unwrap();
    rows.iter().fold(0, |last, row| {
        let of = |what: &str| row[what].as_u64().unwrap();
        assert_eq!(of("from_step"), last + 1, "{found}");
        assert!(of("most_bytes") > 0 && of("most_bytes") <= of("budget_bytes"), "{row}");
        of("to_step")
    })
}

#[test]
fn a_budget_is_the_most_an_adaptive_run_takes() {
    let folder = tempfile::tempdir().unwrap();
    says(folder.path(), 16 << 10);
    let output = train(folder.path(), &["--steps", "3", "--budget", "60%"]).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (budget, plain) =
        (found["budget_bytes"].as_u64().unwrap(), found["plain_peak_bytes"].as_u64().unwrap());
    assert!(budget < plain * 7 / 10, "{found}");
    let output = train(folder.path(), &["--budget", "100KiB"]).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{words}");
    assert!(words.contains("the limit is 100.0 KiB") && words.contains("hint: give --budget"), "{words}");
}

#[test]
fn a_run_that_no_plan_fits_any_more_leaves_a_snapshot_to_go_on_from() {
    let folder = tempfile::tempdir().unwrap();
    let snapshots = folder.path().join("snapshots");
    let saving = ["--snapshots", snapshots.to_str().unwrap()];
    says(folder.path(), 16 << 10);
    let mut child = train(folder.path(), &[&saving[..], &["--steps", "100"]].concat()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    lines.find(|line| line.starts_with("step 1: ")).unwrap();
    // More is to be left free than the whole run has. It waits for a minute, then gives up.
    says_of(folder.path(), 20 << 20, 0);
    let words = lines.collect::<Vec<_>>().join("\n");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("hint: wait for memory"), "{words}");
    says(folder.path(), 16 << 10);
    let last = Snapshots::open(&snapshots, 3).unwrap().latest().unwrap().snapshot.unwrap().step();
    assert!((1..100).contains(&last), "{last}");
    let steps = (last + 2).to_string();
    let output =
        train(folder.path(), &[&saving[..], &["--steps", &steps, "--resume"]].concat()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["steps"], 2);
}
