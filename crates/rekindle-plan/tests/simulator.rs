//! What the simulator counts: the bytes of every action by hand.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod by_hand;
mod chains;

use by_hand::{judged, moments, two};
use rekindle_plan::{Boundary, Bytes, LiveKind, Nanos, Profile, StageProfile};

/// A chain whose every number is another power of ten, so that a sum tells what is in it.
fn decimal() -> Profile {
    let first = StageProfile {
        name: "first".to_owned(),
        output_bytes: Bytes::new(10),
        tape_bytes: Bytes::new(110),
        forward_extra_bytes: Bytes::new(1_000),
        backward_extra_bytes: Bytes::new(10_000),
        gradient_bytes: Some(Bytes::new(100_000)),
        ..StageProfile::default()
    };
    let second = StageProfile {
        name: "second".to_owned(),
        output_bytes: Bytes::new(1_000_000),
        tape_bytes: Bytes::new(21_000_000),
        ..StageProfile::default()
    };
    Profile::new("decimal", "none", Bytes::new(1), vec![first, second]).unwrap()
}

#[test]
fn a_tape_includes_its_output_and_holds_on_to_its_input() {
    let found = moments(&decimal(), "tape 1/tape 2/backward 2/backward 1");
    let expected = [
        // x0, the tape, the forward's workspace.
        (1_111, 111),
        // Nothing for x1: it is in tape 1.
        (21_000_111, 21_000_111),
        // The gradient of x2 comes in; x2 itself was handed out but is in tape 2. Then the gradient of x1.
        (22_000_111, 100_111),
        (110_111, 1),
    ];
    assert_eq!(found, expected);
}

#[test]
fn gradients_of_parameters_stay_until_the_end() {
    let weights = [10_000_000_000, 200_000_000_000].map(Bytes::new).into_iter();
    let stages = decimal().stages().to_vec().into_iter().zip(weights);
    let stages = stages.map(|(stage, bytes)| StageProfile { parameter_gradient_bytes: bytes, ..stage });
    let profile = Profile::new("trained", "none", Bytes::new(1), stages.collect()).unwrap();
    let plan = "keep x0/forward 1/tape 2/backward 2/tape 1/drop x0/backward 1";
    // What they add to the same plan without them.
    let added: Vec<(u64, u64)> = moments(&profile, plan)
        .into_iter()
        .zip(moments(&decimal(), plan))
        .map(|(with, without)| (with.0 - without.0, with.1 - without.1))
        .collect();
    let (second, both) = (200_000_000_000, 210_000_000_000);
    assert_eq!(added[..3], [(0, 0); 3]);
    assert_eq!(added[3..], [(second, second), (second, second), (second, second), (both, both)]);
    let alive = judged(&profile, plan).peak_tensors;
    let words = alive.iter().map(|live| live.what.to_string()).collect::<Vec<_>>();
    assert_eq!(words[..2], ["gradients of the parameters behind x1", "workspace of backward 1"]);
}

#[test]
fn the_peak_names_what_sets_it() {
    let simulation = judged(&decimal(), "tape 1/tape 2/backward 2/backward 1");
    assert_eq!(simulation.peak_action, 2);
    assert_eq!(simulation.turn, 2);
    let tensors: Vec<_> = simulation.peak_tensors.iter().collect();
    let named: Vec<String> = tensors.iter().map(|live| live.what.to_string()).collect();
    assert_eq!(named, ["tape 2", "gradient of x2", "tape 1", "x0"]);
    assert_eq!(tensors[3].what, LiveKind::Boundary(Boundary::new(0)));
    assert_eq!(tensors[3].bytes, Bytes::new(1));
}

#[test]
fn a_boundary_nobody_keeps_is_gone_when_it_was_read() {
    let plan = "keep x0/forward 1/tape 2/backward 2/tape 1/drop x0/backward 1";
    let expected = [
        (1, 1),
        (1_011, 11),
        // x1 is read, and stays because tape 2 holds on to it.
        (21_000_011, 21_000_011),
        (22_000_011, 100_001),
        (101_111, 100_111),
        // x0 stays for tape 1.
        (100_111, 100_111),
        (110_111, 1),
    ];
    assert_eq!(moments(&decimal(), plan), expected);
    // Without a tape that reads it, x1 is gone after `forward 2`.
    let plan = "keep x0/forward 1/forward 2/forward 1/tape 2/backward 2/tape 1/drop x0/backward 1";
    let found = moments(&decimal(), plan);
    assert_eq!(found[2], (1_000_011, 1));
    // The gradient of x2 is there from then on.
    assert_eq!(found[3], (1_001_011, 1_000_011));
}

#[test]
fn a_kept_boundary_in_a_tape_is_counted_once_and_outlives_the_tape() {
    let plan = "tape 1/keep x1/tape 2/backward 2/backward 1/drop x1";
    let expected = [
        (1_111, 111),
        (111, 111),
        (21_000_111, 21_000_111),
        (22_000_111, 100_111),
        // Tape 1 is gone, and x1 with the gradient of x0 is left.
        (110_111, 11),
        (11, 1),
    ];
    assert_eq!(moments(&decimal(), plan), expected);
}

#[test]
fn dropping_a_kept_boundary_frees_nothing_while_a_tape_reads_it() {
    let plan = "keep x0/tape 1/drop x0/tape 2/backward 2/backward 1";
    assert_eq!(moments(&decimal(), plan)[1..3], [(1_111, 111), (111, 111)]);
}

#[test]
fn an_option_has_its_own_tape_and_times() {
    let simulation = judged(&two(), "tape 1 light/tape 2/backward 2/backward 1");
    // x0, 20 instead of 30, and tape 2.
    assert_eq!(simulation.moments[1].after, Bytes::new(60));
    assert_eq!(simulation.step_ns, Nanos::new(1 + 1 + 2 + 3));
}

#[test]
fn a_gradient_larger_than_everything_before_sets_the_peak_after_the_backward() {
    let stage = StageProfile { name: "sum".to_owned(), ..StageProfile::default() };
    let profile = Profile::new("sum", "none", Bytes::new(9), vec![stage]).unwrap();
    let simulation = judged(&profile, "keep x0/tape 1/backward 1/drop x0");
    assert_eq!(simulation.peak_bytes, Bytes::new(18));
    assert_eq!(simulation.peak_action, 2);
    let named = simulation.peak_tensors.iter().map(|live| live.what.clone());
    let x0 = Boundary::new(0);
    assert_eq!(named.collect::<Vec<_>>(), [LiveKind::Boundary(x0), LiveKind::Gradient(x0)]);
}
