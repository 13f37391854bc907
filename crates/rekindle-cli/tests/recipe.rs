//! Steps of other types, in parts, scaled and clipped: as people and programs see them.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::process::{Command, Output};

use insta::assert_snapshot;

const SMALL: [&str; 8] = ["--layers", "3", "--width", "64", "--heads", "4", "--batch", "4"];

fn rekindle(command: &str, arguments: &[&str]) -> Output {
    let mut run = Command::new(env!("CARGO_BIN_EXE_rekindle"));
    run.env_remove("REKINDLE_CONFIG").env("NO_COLOR", "1").env("COLUMNS", "100");
    let sequence: &[&str] = if arguments.contains(&"--sequence") { &[] } else { &["--sequence", "64"] };
    let size = if arguments.contains(&"--layers") { &SMALL[2..] } else { &SMALL };
    run.arg(command).args(size).args(sequence).args(arguments).output().unwrap()
}

fn json(command: &str, arguments: &[&str]) -> serde_json::Value {
    let output = rekindle(command, &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn gradients_are_identical_in_every_precision_and_any_number_of_parts() {
    for precision in ["f32", "bf16", "f16"] {
        for parts in ["1", "2", "4"] {
            for strategy in ["every-1", "balanced", "optimal-smallest"] {
                let flags = ["--precision", precision, "--micro-batches", parts, "--strategy", strategy];
                let verdict = json("verify", &flags);
                assert_eq!(verdict["identical"], verdict["tensors"], "{flags:?}");
                assert_eq!(verdict["loss_identical"], true, "{flags:?}");
            }
        }
    }
}

#[test]
fn budgets_hold_with_the_sum_of_gradients() {
    for flags in [
        ["--micro-batches", "2", "--precision", "f32"],
        ["--micro-batches", "4", "--precision", "bf16"],
        ["--micro-batches", "1", "--precision", "bf16"],
    ] {
        let found = json("train", &[&flags[..], &["--steps", "3", "--budget", "smallest"]].concat());
        let bytes = |key: &str| found[key].as_u64().unwrap();
        assert!(bytes("peak_bytes") <= bytes("budget_bytes"), "{flags:?}: {found}");
        let off = bytes("peak_bytes") as f64 / found["predicted"]["peak_bytes"].as_u64().unwrap() as f64;
        assert!((0.9..=1.1).contains(&off), "{flags:?}: {off}");
        assert_eq!(found["gradients"]["identical"], found["gradients"]["tensors"], "{flags:?}");
    }
}

#[test]
fn bench_counts_what_16_bits_and_parts_save() {
    let plain = |flags: &[&str]| {
        let found = json("bench", &[flags, &["--rounds", "1", "--strategies", "every-1"]].concat());
        let rows = found["rows"].as_array().unwrap();
        assert!(rows.iter().all(|row| row["identical"] == true), "{found}");
        rows[0]["peak_bytes"].as_u64().unwrap()
    };
    let wide = plain(&["--sequence", "256"]);
    let narrow = plain(&["--sequence", "256", "--precision", "bf16"]);
    let parted = plain(&["--sequence", "256", "--micro-batches", "4"]);
    assert!(narrow * 10 < wide * 7, "{narrow} of {wide}");
    assert!(parted * 10 < wide * 5, "{parted} of {wide}");
    // Every row is held against plain gradients that are clipped, too.
    let clipped =
        json("bench", &["--rounds", "1", "--strategies", "every-1,optimal-50%", "--clip-norm", "0.5"]);
    let rows = clipped["rows"].as_array().unwrap();
    assert!(rows.len() == 3 && rows.iter().all(|row| row["identical"] == true), "{clipped}");
    assert!(clipped["model"].as_str().unwrap().contains("clipped to 0.5"), "{clipped}");
}

#[test]
fn bench_says_what_is_kept_and_checkpoints_of_16_bits_are_half_of_it() {
    let kept = |layers: &str, precision: &str| {
        let flags = ["--layers", layers, "--precision", precision, "--rounds", "1"];
        let found = json("bench", &[&flags[..], &["--strategies", "store-all,every-1"]].concat());
        let rows = found["rows"].as_array().unwrap();
        let of = |name: &str| &rows.iter().find(|row| row["strategy"] == name).unwrap()["kept_bytes"];
        assert!(of("plain").is_null(), "{found}");
        assert!(of("store-all").as_u64() > of("every-1").as_u64(), "{found}");
        of("every-1").as_u64().unwrap()
    };
    // Two blocks more are two boundaries more; the tokens and the tape of the head are the same.
    let of_two = |precision: &str| kept("4", precision) - kept("2", precision);
    let wide = of_two("f32");
    assert_eq!(wide, 2 * 4 * 64 * 64 * 4);
    assert_eq!(of_two("bf16") * 2, wide);
}

#[test]
fn boundaries_of_16_bits_take_half() {
    let outputs = |precision: &str| -> Vec<u64> {
        let profile = json("profile", &["--trace", "--cut", "blocks", "--precision", precision]);
        let stages = profile["stages"].as_array().unwrap();
        // But for the loss, which has all its digits.
        stages[..stages.len() - 1].iter().map(|stage| stage["output_bytes"].as_u64().unwrap()).collect()
    };
    let halved: Vec<u64> = outputs("f32").iter().map(|bytes| bytes / 2).collect();
    assert_eq!(outputs("bf16"), halved);
    assert_eq!(outputs("f16"), halved);
}

#[test]
fn training_learns_in_every_precision() {
    for flags in [["--precision", "bf16"], ["--precision", "f16"]] {
        let more = ["--steps", "25", "--micro-batches", "2", "--clip-norm", "0.5", "--strategy", "every-1"];
        let found = json("train", &[&flags[..], &more].concat());
        let loss = |key: &str| found[key].as_f64().unwrap();
        assert!(loss("last_loss") < loss("first_loss") - 0.5, "{found}");
        assert_eq!(found["precision"], flags[1]);
        assert_eq!(found["micro_batches"], 2);
        assert!(found["clipping"]["clipped_steps"].as_u64().unwrap() > 0, "{found}");
        assert!(found["clipping"]["last_norm"].as_f64().unwrap() > 0.0, "{found}");
        assert!(found["scaling"]["scale"].as_f64().unwrap() >= 1.0, "{found}");
    }
}

#[test]
fn a_run_of_16_bits_in_parts_goes_on_as_if_it_had_not_stopped() {
    let losses = |steps: &[&[&str]]| {
        let folder = tempfile::tempdir().unwrap();
        let recipe =
            ["--precision", "f16", "--micro-batches", "2", "--clip-norm", "0.5", "--strategy", "every-1"];
        let snapshots = ["--snapshots", folder.path().to_str().unwrap()];
        let mut last = serde_json::Value::Null;
        for steps in steps {
            last = json("train", &[&recipe[..], &snapshots, steps].concat());
        }
        // Of the gradients after the last step.
        (last["scaling"].clone(), last["clipping"]["last_norm"].clone())
    };
    let whole = losses(&[&["--steps", "6"]]);
    assert_eq!(losses(&[&["--steps", "3"], &["--steps", "6", "--resume"]]), whole);
}

#[test]
fn a_scale_that_is_too_high_for_good_is_a_failure_and_ruins_nothing() {
    // The fewer the tokens, the larger the gradient of each.
    let flags =
        ["--sequence", "4", "--precision", "f16", "--loss-scale", "16777216", "--strategy", "every-1"];
    let output = rekindle("train", &flags);
    assert_eq!(output.status.code(), Some(1));
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(words.contains("a gradient is infinite or not a number at a loss scale of 16777216"), "{words}");
    assert!(words.contains("hint: "), "{words}");
}

#[test]
fn recipes_that_cannot_be_are_refused_with_what_can() {
    let mut all = String::new();
    for arguments in [
        vec!["--micro-batches", "0"],
        vec!["--micro-batches", "3"],
        vec!["--clip-norm", "0"],
        vec!["--clip-norm", "NaN"],
        vec!["--precision", "fp8"],
        vec!["--precision", "bf16", "--burn"],
        vec!["--loss-scale", "3"],
        vec!["--loss-scale", "high"],
    ] {
        let output = rekindle("train", &arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty());
        all += &format!(
            "$ rekindle train {}\n{}\n",
            arguments.join(" "),
            String::from_utf8(output.stderr).unwrap()
        );
    }
    assert_snapshot!("recipes", all);
}
