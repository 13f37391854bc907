//! `--deepspeed`: what a configuration comes to, and how it is refused.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::process::{Command, Output};

use insta::assert_snapshot;

const TINY: [&str; 10] =
    ["--layers", "4", "--width", "16", "--heads", "2", "--sequence", "16", "--batch", "2"];

fn rekindle(configuration: &str, arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ds_config.json"), configuration).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rekindle"));
    command.args(arguments).args(TINY).args(["--deepspeed", "ds_config.json"]);
    command.current_dir(folder.path()).env("NO_COLOR", "1").env("COLUMNS", "100").output().unwrap()
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// As in DeepSpeed's own examples.
const TYPICAL: &str = r#"{
  "train_batch_size": 8,
  "optimizer": {"type": "Adam", "params": {"lr": 0.001}},
  "activation_checkpointing": {
    "partition_activations": false,
    "cpu_checkpointing": false,
    "contiguous_memory_optimization": false,
    "number_checkpoints": 3,
    "synchronize_checkpoint_boundary": true,
    "profile": false
  }
}"#;

#[test]
fn a_configuration_is_trained_verified_and_measured() {
    let output = rekindle(TYPICAL, &["train", "--steps", "2", "--json"]);
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["strategy"], "every-2");
    assert_eq!(summary["gradients"]["identical"], summary["gradients"]["tensors"]);
    assert_snapshot!(words(&output.stderr));

    let output = rekindle(TYPICAL, &["verify", "--json"]);
    let verdict: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&verdict["strategy"], &verdict["loss_identical"]), (&"every-2".into(), &true.into()));

    let output = rekindle(TYPICAL, &["bench", "--rounds", "1", "--strategies", "sqrt", "--json"]);
    let bench: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = bench["rows"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["strategy"].as_str().unwrap()).collect();
    assert_eq!(names, ["plain", "sqrt", "every-2"]);
}

#[test]
fn what_is_not_done_here_is_refused_by_name() {
    let section = |keys: &str| format!(r#"{{"activation_checkpointing": {keys}}}"#);
    let mut all = String::new();
    for configuration in [
        section(r#"{"partition_activations": true}"#),
        section(r#"{"cpu_checkpointing": true}"#),
        section(r#"{"contiguous_memory_optimization": true}"#),
        section(r#"{"profile": true}"#),
        section(r#"{"partition_activations": true, "number_checkpoints": 4, "cpu_checkpointing": true}"#),
        section(r#"{"number_checkpoint": 4}"#),
        section(r#"{"colour": 4}"#),
        section(r#"{"number_checkpoints": 0}"#),
        section(r#"{"number_checkpoints": -3}"#),
        section(r#"{"number_checkpoints": 2.5}"#),
        section(r#"{"number_checkpoints": "auto"}"#),
        section(r#"{"profile": "no"}"#),
        section(r#"{"profile": null}"#),
        section(r#"{"profile": false, "profile": true}"#),
        section("true"),
        section("[]"),
        r#"{"activation_checkpointing": {}, "activation_checkpointing": {}}"#.to_owned(),
        r#"{"fp16": {}, "activation_checkpoint": {}}"#.to_owned(),
        r#"{"fp16": {}, "zero_optimization": {}}"#.to_owned(),
        "{}".to_owned(),
        "[]".to_owned(),
        "{\"activation_checkpointing\":\n  {\"profile\": tru}}".to_owned(),
        String::new(),
    ] {
        let output = rekindle(&configuration, &["train"]);
        assert_eq!(output.status.code(), Some(2), "{configuration}: {}", words(&output.stderr));
        assert!(output.stdout.is_empty());
        all += &format!("{configuration}\n{}\n", words(&output.stderr));
    }
    let output = rekindle(TYPICAL, &["train", "--strategy", "full"]);
    assert_eq!(output.status.code(), Some(2));
    assert_snapshot!(all + &words(&output.stderr));
}
