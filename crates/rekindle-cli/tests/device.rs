//! `--device`: what a command runs on. What runs on a GPU is in docs/cuda.md; here, what is said where there is none.

#![cfg(not(feature = "cuda"))]
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::process::{Command, Output};

use insta::assert_snapshot;

fn rekindle(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rekindle"));
    // Ranks are another refusal.
    for variable in ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "PMIX_RANK"] {
        command.env_remove(variable);
    }
    command.args(arguments).env("NO_COLOR", "1").env("COLUMNS", "140").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_device_that_is_not_built_in_is_refused_before_anything_runs() {
    let said: Vec<String> = ["train", "verify", "bench"]
        .iter()
        .map(|command| {
            let output = rekindle(&[command, "--device", "cuda"]);
            assert_eq!(output.status.code(), Some(2), "{command}");
            assert_eq!(text(&output.stdout), "", "{command}");
            text(&output.stderr)
        })
        .collect();
    assert!(said.iter().all(|one| *one == said[0]), "{said:?}");
    assert_snapshot!(said[0]);
}

#[test]
fn what_looks_at_the_machines_own_memory_is_refused_with_a_gpu() {
    let output = rekindle(&["train", "--device", "cuda", "--adaptive"]);
    assert_eq!(output.status.code(), Some(2));
    assert_snapshot!(text(&output.stderr));
}

#[test]
fn the_processor_is_what_is_meant_when_nothing_is_said() {
    let size = ["--layers", "2", "--width", "16", "--heads", "2", "--sequence", "8", "--batch", "1"];
    let of = |more: &[&str]| {
        let output = rekindle(&[&["verify", "--json", "--strategy", "every-1"], &size[..], more].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert_eq!(of(&[]), of(&["--device", "cpu"]));
}

#[test]
fn other_devices_are_refused_with_those_that_there_are() {
    let output = rekindle(&["bench", "--device", "tpu"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("[possible values: cpu, cuda]"), "{}", text(&output.stderr));
}
