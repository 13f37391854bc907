//! `rekindle estimate`, as it is seen.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::process::{Command, Output};

use insta::assert_snapshot;

fn estimate(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rekindle"));
    command.arg("estimate").args(arguments).env("NO_COLOR", "1").env("COLUMNS", "100");
    command.output().unwrap()
}

fn seen(arguments: &[&str]) -> String {
    let output = estimate(arguments);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    format!("exit code {code}\n{}{}", text(output.stdout), text(output.stderr))
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let output = estimate(&[arguments, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_gpt_is_estimated_and_fitted() {
    assert_snapshot!("estimate", seen(&["gpt2", "--batch", "8", "--fit", "24GiB"]));
}

#[test]
fn the_models_are_listed() {
    assert_snapshot!("estimate-list", seen(&["--list"]));
}

#[test]
fn rules_of_thumb_stand_beside_the_count() {
    let shown = seen(&["bert-large"]);
    assert_snapshot!("estimate-bert", shown);
    assert!(seen(&["llama-70b"]).contains("rule: 70B at 4,096 tokens takes 120 GB"));
}

#[test]
fn what_is_said_to_fit_does_and_one_more_does_not() {
    let room: u64 = 24 << 30;
    let bytes = room.to_string();
    let found = json(&["gpt2", "--fit", &bytes]);
    let rows = found["rows"].as_array().unwrap();
    assert!(rows.len() >= 7, "{found}");
    for row in rows {
        let batch = row["largest_batch"].as_u64().unwrap();
        let total = |batch: u64| {
            let found = json(&["gpt2", "--batch", &batch.to_string()]);
            let rows = found["rows"].as_array().unwrap();
            let same = rows.iter().find(|found| found["strategy"] == row["strategy"]).unwrap();
            same["total_bytes"].as_u64().unwrap()
        };
        // The smallest budget is known without its plan, which need not use all of it.
        let (within, over) = (total(batch), total(batch + 1));
        assert!(within <= room, "{row}: {within}");
        let smallest = row["strategy"] == "optimal-smallest";
        assert!(over > room || smallest, "{row}: {over}");
        // There are no more learned positions.
        assert!(row["longest"].as_u64().unwrap() <= 1_024);
    }
}

#[test]
fn ranks_take_their_share() {
    let whole = json(&["gpt3-175b"]);
    let split = json(&[
        "gpt3-175b",
        "--tensor-parallel",
        "8",
        "--sequence-parallel",
        "--zero",
        "1",
        "--data-parallel",
        "4",
    ]);
    let number = |found: &serde_json::Value, key: &str| found[key].as_u64().unwrap();
    assert_eq!(number(&whole, "weights_bytes"), 8 * number(&split, "weights_bytes"));
    assert_eq!(number(&whole, "optimizer_bytes"), 32 * number(&split, "optimizer_bytes"));
    let none = |found: &serde_json::Value| found["rows"][0]["activations_bytes"].as_u64().unwrap() as f64;
    assert!((none(&whole) / none(&split) - 8.0).abs() < 0.01);
    // A pipeline holds as many parts of batches as it has ranks: layers are fewer, activations are not.
    let piped = json(&["gpt3-175b", "--pipeline", "8"]);
    assert!(none(&piped) > 0.95 * none(&whole), "{}", none(&piped));
    assert_eq!(number(&whole, "weights_bytes"), 8 * number(&piped, "weights_bytes"));
}

#[test]
fn what_cannot_be_is_named_with_what_to_do() {
    let refusals = [
        &["lama-7b"][..],
        &["something"],
        &["resnet-50", "--width", "64"],
        &["resnet-50", "--pipeline", "2"],
        &["gpt2", "--length", "2048"],
        &["gpt2", "--heads", "7"],
        &["gpt2", "--batch", "0"],
        &["gpt2", "--batch", "18446744073709551615"],
        &["gpt2", "--pipeline", "13"],
        &["vit-h", "--length", "100"],
        &["gpt2", "--layers", "0"],
    ];
    let seen = refusals
        .iter()
        .map(|arguments| format!("$ rekindle estimate {}\n{}", arguments.join(" "), seen(arguments)));
    assert_snapshot!("estimate-refusals", seen.collect::<Vec<_>>().join("\n"));
}
