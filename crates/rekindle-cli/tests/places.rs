//! Plans that move boundaries to a disk or shrink them, from the command line.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

#[cfg(target_os = "linux")]
use std::os::unix::fs::FileExt;
#[cfg(target_os = "linux")]
use std::path::Path;
use std::process::{Command, Output};
#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

fn rekindle(arguments: &[&str]) -> Output {
    rekindle_behind(&[], arguments)
}

/// Behind other words, such as a line of shell that ends with `exec "$@"`.
fn rekindle_behind(before: &[&str], arguments: &[&str]) -> Output {
    let size = ["--layers", "4", "--width", "64", "--heads", "4", "--sequence", "64", "--batch", "4"];
    let words = [before, &[env!("CARGO_BIN_EXE_rekindle")], arguments, &size].concat();
    Command::new(words[0]).env_remove("REKINDLE_CONFIG").args(&words[1..]).output().unwrap()
}

fn json(output: &Output) -> Value {
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refused(arguments: &[&str]) -> String {
    let output = rekindle(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The directory is left as it was found.
fn disk() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let place = format!("64MiB:{}", folder.path().display());
    (folder, place)
}

#[test]
fn a_disk_and_lossless_codecs_change_no_bit() {
    let (folder, place) = disk();
    for places in
        [vec!["--disk", &place], vec!["--compress", "lossless"], vec!["--disk", &place, "--compress", "lz4"]]
    {
        let arguments = [vec!["verify", "--strategy", "optimal-smallest", "--json"], places.clone()].concat();
        let found = json(&rekindle(&arguments));
        assert_eq!(found["identical"], found["tensors"], "{places:?}");
        assert_eq!(found["loss_identical"], true);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// It was taken, and nothing said that it did nothing.
#[test]
fn a_place_that_a_strategy_moves_nothing_to_is_told_of() {
    let (_folder, place) = disk();
    for (strategy, told) in [("every-1", true), ("revolve-2", true), ("optimal-smallest", false)] {
        let output = rekindle(&["verify", "--strategy", strategy, "--disk", &place]);
        assert!(output.status.success());
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(words.contains(&format!("`{strategy}` moves no boundary")), told, "{words}");
    }
}

#[test]
fn policies_that_move_and_shrink_boundaries_change_no_bit() {
    let (folder, place) = disk();
    for (policy, places) in [
        ("offload-inputs", ["--disk", &place]),
        ("full, compress block.*.input zstd", ["--compress", "lossless"]),
    ] {
        let found = json(&rekindle(&["verify", "--policy", policy, places[0], places[1], "--json"]));
        assert!(found["tensors"].as_u64() > Some(10), "{found}");
        assert_eq!(found["identical"], found["tensors"], "{policy}");
        assert_eq!(found["loss_identical"], true, "{policy}");
        assert!(found["lossy"].is_null() || found["lossy"] == serde_json::json!([]), "{found}");
        // They did something: without the place there is no plan.
        assert!(refused(&["verify", "--policy", policy]).contains("give the place, too"), "{policy}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_disk_lowers_the_smallest_budget() {
    let (_folder, place) = disk();
    // Both from one measurement: what a stage needs depends on how many threads happen to work at once.
    let arguments =
        ["bench", "--strategies", "optimal-smallest", "--rounds", "1", "--json", "--disk", &place];
    let found = json(&rekindle(&arguments));
    let rows = found["rows"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["strategy"].as_str().unwrap()).collect();
    assert_eq!(names, ["plain", "optimal-smallest", "optimal-smallest+disk"]);
    assert!(rows.iter().all(|row| row["identical"] == true), "{found}");
    let budget = |row: usize| rows[row]["budget_bytes"].as_u64().unwrap();
    assert!(budget(2) < budget(1), "{found}");
    // What was moved is told, and how much of it computing waited for.
    assert!(rows[1]["transfers"].is_null(), "{found}");
    let transfers = &rows[2]["transfers"];
    assert!(transfers["count"].as_u64() > Some(1) && transfers["bytes"].as_u64() > Some(1024), "{found}");
    assert!((0.0..=1.0).contains(&transfers["hidden"].as_f64().unwrap()), "{found}");
}

#[test]
fn training_ends_with_what_a_step_moved() {
    let (_folder, place) = disk();
    let output = rekindle(&["train", "--steps", "1", "--budget", "smallest", "--disk", &place]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(words.contains("hidden behind computing; "), "{words}");
    assert!(words.contains(" waited for, ") && words.contains(" predicted\n"), "{words}");
}

#[test]
fn a_lossy_codec_is_used_when_named_and_its_error_is_told() {
    let arguments = ["verify", "--strategy", "optimal-smallest", "--compress", "int8", "--json"];
    let found = json(&rekindle(&arguments));
    assert_eq!(found["lossy"][0], "int8");
    let error = found["relative_error"].as_f64().unwrap();
    assert!(error > 0.0 && error < 0.05, "{error}");
    let largest = found["largest_relative_error"].as_f64().unwrap();
    assert!(largest >= error && largest < 0.5, "{largest}");
    // Each parameter's own, by its name; those whose gradients are the same are among them, with none.
    let errors = found["relative_errors"].as_object().unwrap();
    assert_eq!(errors.len() as u64, found["tensors"].as_u64().unwrap(), "{found}");
    let different = found["different"].as_array().unwrap();
    assert!(!different.is_empty() && different.len() < errors.len(), "{found}");
    for (name, error) in errors {
        assert_eq!(
            different.contains(&Value::from(name.as_str())),
            error.as_f64() > Some(0.0),
            "{name}: {error}"
        );
    }
    assert!(errors.values().any(|error| error.as_f64() == Some(largest)), "{found}");
    let found = json(&rekindle(&[&arguments[..], &["--steps", "20"]].concat()));
    let difference = found["training"]["difference"].as_f64().unwrap();
    assert!(difference != 0.0 && difference.abs() < 0.01, "{found}");
    let output = rekindle(&arguments[..arguments.len() - 1]);
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(words.contains("relative error of all gradients"), "{words}");
    assert_eq!(words.lines().filter(|line| line.trim_start().starts_with("of `")).count(), 5, "{words}");
}

#[test]
fn what_cannot_be_a_place_is_refused_with_a_hint() {
    let words = refused(&["verify", "--strategy", "optimal-50%", "--host", "1GiB"]);
    assert!(
        words.contains("flex computes in host memory") && words.contains("hint: leave --host out"),
        "{words}"
    );
    let words = refused(&["verify", "--strategy", "optimal-50%", "--compress", "int7"]);
    assert!(words.contains("there is no codec `int7`, expected one of: bf16"), "{words}");
    let words = refused(&["verify", "--disk", "1GiB:/nowhere/at/all"]);
    assert!(words.contains("the place `disk` cannot be used") && words.contains("hint:"), "{words}");
    let words = refused(&["verify", "--disk", "1GiB"]);
    assert!(words.contains("such as 64GiB:/scratch"), "{words}");
}

#[test]
fn places_are_measured_into_a_profile() {
    let (_folder, place) = disk();
    let found = json(&rekindle(&["profile", "--disk", &place, "--compress", "bf16", "--json"]));
    assert_eq!(found["tiers"][0]["name"], "disk");
    assert!(found["tiers"][0]["write_bytes_per_second"].as_u64().unwrap() > 0);
    assert_eq!(found["codecs"][0]["bytes_per_kibibyte"], 512);
}

#[test]
#[cfg(target_os = "linux")]
fn a_disk_without_room_for_a_plan_from_a_file_is_found_before_the_first_step() {
    let (folder, place) = disk();
    let plan = folder.path().join("plan.json");
    let plan = plan.to_str().unwrap();
    let made = ["train", "--steps", "1", "--budget", "smallest", "--disk", &place, "--cache", plan];
    let output = rekindle(&made);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let again = ["train", "--steps", "1", "--plan", plan, "--disk", &place, "--json"];
    json(&rekindle(&again));
    // As a disk that has no room: no file may grow beyond 32 KiB, which is half a boundary.
    let limited = "trap '' XFSZ; ulimit -f 64; exec \"$@\"";
    let output = rekindle_behind(&["sh", "-c", limited, "sh"], &again);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{words}");
    assert!(words.contains("the place `disk` cannot be used"), "{words}");
    assert!(words.contains("hint: give --disk a directory with more room"), "{words}");
}

/// Writes over the file that boundaries lie in, behind the first of them: what a place is measured with lies there, and a region's
/// input, which nothing could be computed from.
#[cfg(target_os = "linux")]
fn damage(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path().join("boundaries");
        let Ok(file) = std::fs::OpenOptions::new().write(true).open(path) else { continue };
        for offset in (256 << 10..file.metadata()?.len().min(4 << 20)).step_by(4096) {
            file.write_all_at(b"damaged", offset + 64)?;
        }
    }
    Ok(())
}

#[test]
#[cfg(target_os = "linux")]
fn what_a_disk_has_damaged_is_told_by_every_command_that_takes_a_step() {
    let (folder, place) = disk();
    let stop = AtomicBool::new(false);
    let page = folder.path().join("page.html");
    let page = page.to_str().unwrap();
    let commands: [&[&str]; 4] = [
        &["verify", "--strategy", "optimal-smallest", "--steps", "5"],
        &["bench", "--strategies", "optimal-smallest", "--rounds", "5"],
        &["report", "--budget", "smallest", "-o", page],
        &["train", "--budget", "smallest", "--steps", "5"],
    ];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // The run may be gone again.
                let _ = damage(folder.path());
            }
        });
        let outputs = commands.map(|command| {
            let of = || rekindle(&[command, &["--disk", &place]].concat());
            // How far apart writing and reading are is the machine's: what nobody damaged meanwhile is no fault.
            let told =
                |output: &Output| String::from_utf8_lossy(&output.stderr).contains(" was lost in `disk`");
            (command, (0..5).map(|_| of()).find(told).unwrap_or_else(of))
        });
        stop.store(true, Ordering::Relaxed);
        for (command, output) in outputs {
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{command:?}: {words}");
            let told = words.lines().find(|line| line.contains(" was lost in `disk`")).unwrap_or(&words);
            assert!(
                told.contains("checksum") && told.contains("; it was computed again from x"),
                "{command:?}: {told}"
            );
        }
    });
}
