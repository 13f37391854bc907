//! The examples of the guides, at a small size: they run, and say what the guides say they do.

use std::process::Command;

/// Runs an example that was built beside this test.
fn run(name: &str, arguments: &[&str]) -> String {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(|folder| folder.parent()).unwrap().join("examples");
    let output = Command::new(folder.join(name)).args(arguments).output();
    let output =
        output.unwrap_or_else(|error| panic!("`{name}` cannot be run: {error}; `cargo test` builds it"));
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// No row says that gradients differ.
fn all_identical(name: &str, arguments: &[&str]) -> String {
    let said = run(name, arguments);
    assert!(said.contains("identical") && !said.contains("DIFFER"), "{said}");
    said
}

#[test]
fn a_model_that_does_not_fit_is_trained_within_its_budget() {
    let said = run("fit", &["8", "64", "50"]);
    assert!(said.contains("planned (") && said.contains("step 10: loss "), "{said}");
}

#[test]
fn a_very_deep_net() {
    all_identical("very_deep", &["29", "1", "1"]);
}

#[test]
fn four_times_the_tokens() {
    all_identical("high_resolution", &["32", "8", "32", "8", "4", "1"]);
}

#[test]
fn a_long_recurrence() {
    all_identical("recurrence", &["200"]);
}

#[test]
fn long_sequences_take_memory_in_proportion() {
    let said = run("long_sequences", &["64", "256", "2"]);
    assert_eq!(said.lines().count(), 4, "{said}");
}

#[test]
fn a_contrastive_batch_in_chunks() {
    let said = run("contrastive", &["128", "16", "16"]);
    assert!(said.contains("identical") || said.contains("same"), "{said}");
}

#[test]
fn gradients_are_validated_and_a_stage_that_changes_is_named() {
    let said = run("validate", &[]);
    assert_eq!(said.matches("6 of 6 gradients have the same bytes").count(), 3, "{said}");
    assert!(said.contains("found: ") && said.contains("(`noisy`)"), "{said}");
}
