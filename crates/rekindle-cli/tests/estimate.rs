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
    // Layers are an eighth; the rank that has most has the embedding as well.
    let (all, most) = (number(&whole, "weights_bytes"), 8 * number(&piped, "weights_bytes"));
    assert!(all < most && most < all + all / 20, "{most} of {all}");
}

#[test]
fn boundaries_that_ranks_share_are_kept_in_parts() {
    let of = |more: &[&str]| json(&[&["gpt3-175b", "--tensor-parallel", "8"][..], more].concat());
    let kept = |found: &serde_json::Value, strategy: &str, what: &str| {
        let rows = found["rows"].as_array().unwrap();
        rows.iter().find(|row| row["strategy"] == strategy).unwrap()[what].as_u64().unwrap()
    };
    let (whole, parted) = (of(&[]), of(&["--partition-checkpoints"]));
    // A tape holds its boundary itself.
    assert_eq!(kept(&whole, "none", "total_bytes"), kept(&parted, "none", "total_bytes"));
    // The inputs of 96 layers but the last one's, whose tape is there: 2,048 tokens of 12,288 values of 2 bytes each.
    let boundary = 2 * 2_048 * 12_288;
    let saved = kept(&whole, "full", "activations_bytes") - kept(&parted, "full", "activations_bytes");
    assert_eq!(saved % (boundary - boundary / 8), 0, "{saved}");
    assert!((94..=96).contains(&(saved / (boundary - boundary / 8))), "{saved}");
    // Two of them are whole at a time.
    let workspace = kept(&parted, "full", "workspace_bytes") - kept(&whole, "full", "workspace_bytes");
    assert_eq!(workspace, 2 * (boundary - boundary / 8));
    let said = seen(&["gpt2", "--partition-checkpoints"]);
    assert!(said.contains("no two ranks have the same boundaries here"), "{said}");
}

#[test]
fn each_rank_of_a_pipeline_is_told() {
    let found = json(&["gpt2", "--layers", "13", "--pipeline", "4", "--micro-batches", "3"]);
    let ranks = found["ranks"].as_array().unwrap();
    let of = |what: &str| -> Vec<u64> { ranks.iter().map(|rank| rank[what].as_u64().unwrap()).collect() };
    assert_eq!(of("layers"), [4, 3, 3, 3]);
    assert_eq!(of("in_flight"), [3, 3, 2, 1]);
    let kept = |rank: usize, row: usize| ranks[rank]["rows"][row]["activations_bytes"].as_u64().unwrap();
    for row in 0..found["rows"].as_array().unwrap().len() {
        assert_eq!(2 * kept(1, row), 3 * kept(2, row), "as many layers, and parts of a batch as 3 to 2");
    }
    // The rows of the whole are those of the first rank's layers with both ends: no rank takes more.
    let total = |of: &serde_json::Value| of["rows"][0]["total_bytes"].as_u64().unwrap();
    assert!(kept(0, 0) < found["rows"][0]["activations_bytes"].as_u64().unwrap());
    assert!(ranks[1..].iter().all(|rank| total(rank) < total(&found)));
    // The embedding is on the first, and a copy of it is the head on the last.
    let (parameters, embedding) = (of("parameters"), 50_257 * 768);
    assert_eq!(parameters[1], parameters[2]);
    assert_eq!(parameters.iter().sum::<u64>(), found["parameters"].as_u64().unwrap() + embedding);
    let weights = of("weights_bytes");
    assert_eq!(weights[0] * parameters[1], weights[1] * parameters[0], "as many bytes for each");
    let said = seen(&["gpt2", "--pipeline", "4"]);
    assert!(said.contains("in flight"), "{said}");
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
