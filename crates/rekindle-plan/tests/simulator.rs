//! The judge itself: every reason to refuse, the model's numbers by hand, and a second opinion on random plans.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod chains;
mod second_opinion;

use std::collections::{BTreeMap, BTreeSet};

use chains::{Places, actions, any_profile, any_rule, name, random_plan, uniform};
use proptest::prelude::*;
use rekindle_plan::{
    Action, Boundary, Bytes, Codec, Illegal, LiveKind, Nanos, Profile, Reason, Simulation, Span, Stage,
    StageProfile, TapeOption, Tier, simulate,
};
use second_opinion::{agrees_with_the_second_opinion, any_verb, wander};

fn tier(capacity: u64, write: u64, read: u64) -> Tier {
    Tier {
        name: name("host"),
        capacity_bytes: Bytes::new(capacity),
        write_bytes_per_second: write,
        read_bytes_per_second: read,
    }
}

fn codec(bytes_per_kibibyte: u32, compress: u64, restore: u64) -> Codec {
    Codec {
        name: name("half"),
        bytes_per_kibibyte,
        compress_bytes_per_second: compress,
        restore_bytes_per_second: restore,
    }
}

/// Two stages with boundaries of 10 and tapes of 30, the first with an option; `host` has room for one boundary.
fn two() -> Profile {
    let plain = uniform(2, 10, 30);
    let mut stages = plain.stages().to_vec();
    stages[0].options.push(TapeOption {
        name: name("light"),
        tape_bytes: Bytes::new(20),
        forward_ns: Nanos::new(1),
        backward_ns: Nanos::new(3),
        backward_extra_bytes: None,
    });
    let profile = Profile::new("two", "none", Bytes::new(10), stages).unwrap();
    let places = (vec![tier(15, 1, 1)], vec![codec(512, 1, 1)]);
    profile.with_places(places.0, places.1).unwrap()
}

/// Refused at the action `index`, for this reason, in these words.
#[track_caller]
fn refused(profile: &Profile, plan: &str, index: usize, reason: Reason, words: &str) {
    let actions = actions(plan);
    let action = actions.get(index).cloned();
    let shown = action.as_ref().map_or("end".to_owned(), ToString::to_string);
    let error = simulate(profile, &actions).unwrap_err();
    assert_eq!(error.to_string(), format!("action {index} (`{shown}`) cannot run: {words}"));
    let expected = Illegal { index, action, reason };
    assert_eq!(error, expected);
}

#[test]
fn a_stage_beyond_the_chain_is_refused() {
    let reason = |number| Reason::NoStage { stage: Stage::new(number), stages: 2 };
    let words = "there is no stage 3, expected 1 to 2";
    for plan in ["forward 3", "tape 3", "backward 3"] {
        refused(&two(), plan, 0, reason(3), words);
    }
    // No text says `forward 0`, but code can.
    for action in [Action::forward(Stage::new(0)), Action::backward(Stage::new(0))] {
        let error = simulate(&two(), &[action]).unwrap_err();
        assert_eq!(error.reason, reason(0));
    }
    let last = Action::tape(Stage::new(u32::MAX));
    assert_eq!(simulate(&two(), &[last]).unwrap_err().reason, reason(u32::MAX));
}

#[test]
fn a_boundary_beyond_the_chain_is_refused() {
    let reason = Reason::NoBoundary { boundary: Boundary::new(3), stages: 2 };
    let words = "there is no boundary x3, expected x0 to x2";
    for plan in ["keep x3", "drop x3", "drop x3 host", "offload x3 host", "fetch x3 host", "compress x3 half"]
    {
        refused(&two(), plan, 0, reason.clone(), words);
    }
}

#[test]
fn a_boundary_that_is_not_there_is_refused() {
    let reason = |number| Reason::NotOnDevice { boundary: Boundary::new(number) };
    let words = "x1 is not on the device; run the stage before it, fetch it or keep it earlier";
    for plan in ["forward 2", "tape 2", "keep x1", "drop x1", "offload x1 host", "compress x1 half"] {
        refused(&two(), plan, 0, reason(1), words);
    }
    // Nothing said `keep`: the first stage released it.
    let plan = "forward 1/forward 2/forward 1";
    refused(&two(), plan, 2, reason(0), &words.replace("x1", "x0"));
    // A tape holds on to its input, but only for itself.
    let plan = "tape 1/drop x0";
    refused(&two(), plan, 1, reason(0), &words.replace("x1", "x0"));
    // The output is handed out at the turn.
    let plan = "forward 1/forward 2/keep x2";
    refused(&two(), plan, 2, reason(2), &words.replace("x1", "x2"));
}

#[test]
fn a_boundary_that_is_there_already_is_not_made_again() {
    let reason = |number| Reason::AlreadyOnDevice { boundary: Boundary::new(number) };
    let words = "x1 is on the device already; drop it first or use what is there";
    let plan = "keep x0/forward 1/forward 1";
    refused(&two(), plan, 2, reason(1), words);
    let plan = "keep x0/forward 1/tape 1";
    refused(&two(), plan, 2, reason(1), words);
    let plan = "offload x0 host/fetch x0 host";
    refused(&two(), plan, 1, reason(0), &words.replace("x1", "x0"));
    // What lies in a tape is there as well.
    let plan = "tape 1/offload x1 host/fetch x1 host";
    refused(&two(), plan, 2, reason(1), words);
}

#[test]
fn a_copy_that_is_not_there_is_refused() {
    let reason = |place| Reason::NotThere { boundary: Boundary::new(0), place: name(place) };
    let words = "there is no copy of x0 in `host`";
    refused(&two(), "fetch x0 host", 0, reason("host"), words);
    let plan = "compress x0 half/drop x0 host";
    refused(&two(), plan, 1, reason("host"), words);
    let plan = "offload x0 host/drop x0 half";
    let words = "there is no copy of x0 in `half`";
    refused(&two(), plan, 1, reason("half"), words);
}

#[test]
fn a_second_copy_in_one_place_is_refused() {
    let reason = |place| Reason::AlreadyThere { boundary: Boundary::new(0), place: name(place) };
    let plan = "offload x0 host/offload x0 host";
    let words = "a copy of x0 is in `host` already";
    refused(&two(), plan, 1, reason("host"), words);
    let plan = "compress x0 half/compress x0 half";
    let words = "a copy of x0 is in `half` already";
    refused(&two(), plan, 1, reason("half"), words);
}

#[test]
fn a_name_the_profile_does_not_have_is_refused_with_those_it_has() {
    let profile = two();
    let check = |plan: &str, index, kind, found, known: &str| {
        let reason = Reason::Unknown { kind, name: name(found), known: known.to_owned() };
        let words = format!("the profile has no {kind} `{found}`, expected one of: {known}");
        refused(&profile, plan, index, reason, &words);
    };
    check("offload x0 disk", 0, "tier", "disk", "host");
    check("offload x0 half", 0, "tier", "half", "host");
    check("compress x0 host", 0, "codec", "host", "half");
    check("fetch x0 moon", 0, "tier or codec", "moon", "host, half");
    check("drop x0 moon", 0, "tier or codec", "moon", "host, half");
    check("tape 1 heavy", 0, "option", "heavy", "light");
    check("forward 1/tape 2 light", 1, "option", "light", "(none)");
}

#[test]
fn a_tier_takes_no_more_than_its_capacity_until_something_leaves() {
    let reason = Reason::TierFull { tier: name("host"), needed: Bytes::new(20), capacity: Bytes::new(15) };
    let plan = "keep x0/forward 1/offload x0 host/offload x1 host";
    let words = "`host` would hold 20 B, but its capacity is 15 B";
    refused(&two(), plan, 3, reason, words);
    let plan = "keep x0/forward 1/offload x0 host/drop x0 host/offload x1 host/drop x1 host/tape 2/backward 2/tape 1/drop x0/backward 1";
    simulate(&two(), &actions(plan)).unwrap();
}

/// The simulator once counted one copy where two existed.
#[test]
fn a_boundary_that_a_tape_still_holds_cannot_be_made_a_second_time() {
    let reason = Reason::HeldByTape { boundary: Boundary::new(1), stage: Stage::new(2) };
    let words = "x1 is still held by tape 2, and would exist twice; keep it instead of making it again";
    refused(&two(), "keep x0/forward 1/tape 2/tape 1", 3, reason.clone(), words);
    refused(&two(), "keep x0/forward 1/tape 2/forward 1", 3, reason.clone(), words);
    let plan = "keep x0/forward 1/offload x1 host/tape 2/fetch x1 host";
    refused(&two(), plan, 4, reason, words);
}

#[test]
fn a_second_tape_of_a_stage_is_refused() {
    let reason = Reason::AlreadyTaped { stage: Stage::new(1) };
    let words = "stage 1 has a tape already; run its backward before taping it again";
    for plan in ["keep x0/tape 1/tape 1", "keep x0/tape 1/tape 1 light", "keep x0/tape 1/forward 1"] {
        refused(&two(), plan, 2, reason.clone(), words);
    }
}

#[test]
fn going_back_without_a_tape_is_refused() {
    let reason = Reason::NoTape { stage: Stage::new(2) };
    let plan = "keep x0/forward 1/forward 2/backward 2";
    refused(&two(), plan, 3, reason, "stage 2 has no tape; tape it first");
}

#[test]
fn going_back_without_the_gradient_is_refused_with_where_it_is() {
    let reason = |found| Reason::NoGradient { stage: Stage::new(1), found };
    let words = "stage 1 needs the gradient of x1, but the forward half is not over";
    refused(&two(), "tape 1/backward 1", 1, reason(None), words);
    let plan = "tape 1/tape 2/backward 1";
    let words = "stage 1 needs the gradient of x1, but the gradient is at x2";
    refused(&two(), plan, 2, reason(Some(Boundary::new(2))), words);
    let plan = "tape 1/tape 2/backward 2/backward 1/backward 1";
    let words = "stage 1 needs the gradient of x1, but the gradient is at x0";
    refused(&two(), plan, 4, reason(Some(Boundary::new(0))), words);
}

#[test]
fn a_pinned_stage_runs_once_only() {
    let mut stages = two().stages().to_vec();
    stages[0].pinned = true;
    let profile = Profile::new("pinned", "none", Bytes::new(10), stages).unwrap();
    let reason = Reason::Pinned { stage: Stage::new(1), name: "stage.1".to_owned() };
    let words = "stage 1 (`stage.1`) is pinned and would run twice; tape it the first time it runs";
    let plan = "keep x0/forward 1/tape 2/backward 2/tape 1";
    refused(&profile, plan, 4, reason, words);
    simulate(&profile, &actions("tape 1/tape 2/backward 2/backward 1")).unwrap();
}

#[test]
fn a_stage_that_went_back_does_not_run_again() {
    let reason = |number| Reason::Over { stage: Stage::new(number) };
    let plan = "keep x0/tape 1/tape 2/backward 2/forward 2";
    let words = "stage 2 went back already; nothing can need it again";
    refused(&two(), plan, 4, reason(2), words);
    let plan = "keep x0/tape 1/tape 2/backward 2/backward 1/tape 1";
    let words = "stage 1 went back already; nothing can need it again";
    refused(&two(), plan, 5, reason(1), words);
}

#[test]
fn a_plan_that_stops_early_is_refused_with_the_stage_that_is_next() {
    let reason = |number| Reason::Unfinished { stage: Stage::new(number) };
    let words = "the plan ends with stage 2 not gone back through";
    refused(&two(), "tape 1", 1, reason(2), words);
    refused(&two(), "tape 1/tape 2", 2, reason(2), words);
    let plan = "tape 1/tape 2/backward 2";
    refused(&two(), plan, 3, reason(1), &words.replace('2', "1"));
    let empty = simulate(&two(), &[]).unwrap_err();
    assert_eq!((empty.index, empty.reason), (0, reason(2)));
}

#[test]
fn what_is_left_at_the_end_is_named() {
    let reason = |what: &str| Reason::Left { what: what.to_owned() };
    let plan = "keep x0/tape 1/tape 2/backward 2/backward 1";
    let words = "x0 is left at the end; drop it";
    refused(&two(), plan, 5, reason("x0"), words);
    let plan = "tape 1/keep x1/tape 2/backward 2/backward 1";
    let words = "x1 is left at the end; drop it";
    refused(&two(), plan, 5, reason("x1"), words);
    let plan = "offload x0 host/tape 1/tape 2/backward 2/backward 1";
    let words = "the copy of x0 in `host` is left at the end; drop it";
    refused(&two(), plan, 5, reason("the copy of x0 in `host`"), words);
}

#[test]
fn a_plan_longer_than_64_bits_of_nanoseconds_is_refused() {
    let mut stages = uniform(1, 1, 1).stages().to_vec();
    stages[0].forward_ns = Nanos::new(1 << 62);
    let profile = Profile::new("slow", "none", Bytes::new(1), stages).unwrap();
    let plan = "keep x0/forward 1/forward 1/drop x1/forward 1/drop x1/forward 1";
    let words = "the plan takes longer than 2^64 ns";
    refused(&profile, plan, 6, Reason::TooLong, words);
    // A transfer of 2^60 bytes at one byte per second.
    let stages = uniform(1, 1 << 60, 1 << 60).stages().to_vec();
    let profile = Profile::new("large", "none", Bytes::new(1 << 60), stages).unwrap();
    let places = (vec![tier(u64::MAX, 1, 1)], vec![codec(1, 1, 1)]);
    let profile = profile.with_places(places.0, places.1).unwrap();
    refused(&profile, "offload x0 host", 0, Reason::TooLong, words);
    refused(&profile, "compress x0 half", 0, Reason::TooLong, words);
}

#[test]
fn more_than_64_bits_of_bytes_are_refused() {
    let words = "more than 2^64 bytes are alive";
    let stages = uniform(1, 0, 0).stages().to_vec();
    let profile = Profile::new("large", "none", Bytes::new(1 << 63), stages).unwrap();
    // The kept input and its gradient.
    let plan = "keep x0/tape 1/backward 1";
    refused(&profile, plan, 2, Reason::TooLarge, words);
    // A codec that makes things larger: its copy by itself, and beside the boundary.
    for growth in [u32::MAX, 1024] {
        let codecs = vec![codec(growth, u64::MAX, u64::MAX)];
        let profile = profile.clone().with_places(vec![], codecs).unwrap();
        refused(&profile, "compress x0 half", 0, Reason::TooLarge, words);
    }
}

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

fn judged(profile: &Profile, plan: &str) -> Simulation {
    simulate(profile, &actions(plan)).unwrap()
}

/// The bytes while each action runs, and after it.
fn moments(profile: &Profile, plan: &str) -> Vec<(u64, u64)> {
    let moments = judged(profile, plan).moments.into_iter();
    moments.map(|moment| (moment.peak.get(), moment.after.get())).collect()
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

/// Three stages of 100 ns forth and 200 ns back; a boundary takes 250 ns to `host` and 500 ns back, 300 ns to be
/// halved and 400 ns to be restored.
fn moving() -> Profile {
    let stages = (1..=3).map(|number| StageProfile {
        name: format!("stage.{number}"),
        output_bytes: Bytes::new(1_000),
        tape_bytes: Bytes::new(3_000),
        forward_ns: Nanos::new(100),
        backward_ns: Nanos::new(200),
        ..StageProfile::default()
    });
    let profile = Profile::new("moving", "none", Bytes::new(1_000), stages.collect()).unwrap();
    let tiers = vec![tier(10_000, 4_000_000_000, 2_000_000_000)];
    // 1,000 bytes in 250, 500, 300 (rounded up) and 400 ns.
    let codecs = vec![codec(512, 3_333_333_334, 2_500_000_000)];
    profile.with_places(tiers, codecs).unwrap()
}

/// The step's time, and how much of it is waiting.
fn times(plan: &str) -> (u64, u64) {
    let simulation = judged(&moving(), plan);
    (simulation.step_ns.get(), simulation.wait_ns.get())
}

#[test]
fn a_drop_waits_only_for_what_is_left_of_the_offload() {
    let back = "tape 3/backward 3/tape 2/backward 2/fetch x0 host/drop x0 host/tape 1/backward 1";
    // One stage runs beside the 250 ns: 150 are left to wait, and 500 for the fetch.
    let plan = format!("keep x0/offload x0 host/forward 1/drop x0/keep x1/forward 2/{back}");
    let plan = plan.replace("backward 2/", "backward 2/drop x1/");
    assert_eq!(times(&plan), (300 + 600 + 200 + 650, 650));
    // Two stages run beside it: 50.
    let plan = format!("keep x0/offload x0 host/forward 1/keep x1/forward 2/drop x0/{back}");
    let plan = plan.replace("backward 2/", "backward 2/drop x1/");
    assert_eq!(times(&plan), (300 + 600 + 200 + 550, 550));
}

#[test]
fn a_fetch_is_waited_for_by_its_first_reader_and_by_nobody_before() {
    let start = "keep x0/offload x0 host/forward 1/forward 2/drop x0/tape 3";
    let end = "keep x0/forward 1/tape 2/backward 2/tape 1/drop x0/drop x0 host/backward 1";
    // 50 for the drop; then the fetch, of which a backward hides 200 or nothing.
    let plan = format!("{start}/fetch x0 host/backward 3/{end}");
    assert_eq!(times(&plan), (300 + 600 + 300 + 350, 350));
    let plan = format!("{start}/backward 3/fetch x0 host/{end}");
    assert_eq!(times(&plan), (300 + 600 + 300 + 550, 550));
    // The memory is taken from the start of the fetch on.
    let plan = format!("{start}/fetch x0 host/backward 3/{end}");
    let found = moments(&moving(), &plan);
    // Before it: x2, tape 3. With it: x0 and the gradient as well.
    assert_eq!(found[5].1, 4_000);
    assert_eq!(found[6], (6_000, 6_000));
}

#[test]
fn a_stage_that_reads_for_the_last_time_waits_for_the_offload_as_a_drop_does() {
    let kept = "offload x0 host/keep x0/forward 1/drop x0";
    let read = "offload x0 host/forward 1";
    let rest = "forward 2/tape 3/backward 3/fetch x0 host/drop x0 host/keep x0/forward 1/tape 2/backward 2/tape 1/drop x0/backward 1";
    let of = |start: &str| times(&format!("{start}/{rest}"));
    assert_eq!(of(kept), of(read));
    assert_eq!(of(read), (300 + 600 + 300 + 650, 650));
}

#[test]
fn a_span_tells_when_a_transfer_runs_beside_the_computation_and_who_waits_for_it() {
    let start = "keep x0/offload x0 host/forward 1/forward 2/drop x0/tape 3/fetch x0 host/backward 3";
    let end = "keep x0/forward 1/tape 2/backward 2/tape 1/drop x0/drop x0 host/backward 1";
    let simulation = judged(&moving(), &format!("{start}/{end}"));
    let span = |index: usize| {
        let Span { reached, start, end } = simulation.spans[index];
        (reached.get(), start.get(), end.get())
    };
    // The offload takes 250 ns; two stages of 100 run beside it, and the drop waits for the rest.
    assert_eq!(span(1), (0, 0, 250));
    assert_eq!(span(3), (100, 100, 200));
    assert_eq!(span(4), (200, 250, 250));
    // The fetch takes 500 ns from 350 on; the first who needs x0 waits until 850.
    assert_eq!(span(6), (350, 350, 850));
    assert_eq!(span(7), (350, 350, 550));
    assert_eq!(span(9), (550, 850, 950));
    assert_eq!(simulation.spans.last().map(|span| span.end), Some(simulation.step_ns));
}

#[test]
fn offloads_to_one_tier_queue_up() {
    let start = "keep x0/offload x0 host/forward 1/keep x1/offload x1 host/forward 2";
    let end = "tape 3/backward 3/tape 2/drop x1/backward 2/tape 1/drop x0/backward 1";
    // At 200 ns both are under way; x0 is through at 250, x1 at 500.
    let plan = format!("{start}/drop x0 host/{end}/drop x1 host");
    assert_eq!(times(&plan), (300 + 600 + 200 + 50, 50));
    let plan = format!("{start}/drop x1 host/drop x0 host/{end}");
    assert_eq!(times(&plan), (300 + 600 + 200 + 300, 300));
}

#[test]
fn a_codec_takes_the_devices_time_and_memory() {
    let plan = "keep x0/forward 1/compress x0 half/drop x0/forward 2/tape 3/backward 3/fetch x0 half/drop x0 half/keep x0/forward 1/tape 2/backward 2/tape 1/drop x0/backward 1";
    // Nothing to wait for, but 300 to compress and 400 to restore.
    assert_eq!(times(plan), (300 + 600 + 300 + 700, 0));
    let found = moments(&moving(), plan);
    // x0 and x1; 512 of 1,024 bytes on top; x0 gone.
    assert_eq!(found[1].1, 2_000);
    assert_eq!(found[2], (2_500, 2_500));
    assert_eq!(found[3], (2_500, 1_500));
    // The gradient of x2 and the copy; x0 on top; the copy gone.
    assert_eq!(found[6].1, 1_500);
    assert_eq!(found[7], (2_500, 2_500));
    assert_eq!(found[8], (2_500, 2_000));
}

/// One change to a plan, wherever it lands.
#[derive(Clone, Debug)]
enum Mutation {
    Delete(prop::sample::Index),
    Duplicate(prop::sample::Index),
    Swap(prop::sample::Index, prop::sample::Index),
    Insert(prop::sample::Index, Action),
}

fn any_mutation() -> impl Strategy<Value = Mutation> {
    let index = any::<prop::sample::Index>;
    let action = (0..13u32, 0..10u32).prop_map(|(verb, number)| any_verb(verb, number));
    prop_oneof![
        index().prop_map(Mutation::Delete),
        index().prop_map(Mutation::Duplicate),
        (index(), index()).prop_map(|(a, b)| Mutation::Swap(a, b)),
        (index(), action).prop_map(|(at, action)| Mutation::Insert(at, action)),
    ]
}

fn mutate(actions: &mut Vec<Action>, mutation: &Mutation) {
    if actions.is_empty() {
        return;
    }
    match mutation {
        Mutation::Delete(at) => {
            actions.remove(at.index(actions.len()));
        }
        Mutation::Duplicate(at) => {
            let at = at.index(actions.len());
            actions.insert(at, actions[at].clone());
        }
        Mutation::Swap(a, b) => {
            let (a, b) = (a.index(actions.len()), b.index(actions.len()));
            actions.swap(a, b);
        }
        Mutation::Insert(at, action) => actions.insert(at.index(actions.len()), action.clone()),
    }
}

fn any_rolls() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(0..1000u32, 1..60)
}

prop_compose! {
    /// Sizes and times around 2^60, of which a few already fill 64 bits.
    fn any_huge_stage()(
        (output, own, extra) in (0..3u64, 0..4u64, 0..2u64),
        (forward, backward) in (0..8u64, 0..4u64),
        gradient in proptest::option::of(0..3u64),
    ) -> StageProfile {
        StageProfile {
            name: "huge".to_owned(),
            output_bytes: Bytes::new(output << 60),
            tape_bytes: Bytes::new((output + own) << 60),
            forward_ns: Nanos::new(forward << 60),
            backward_ns: Nanos::new(backward << 60),
            forward_extra_bytes: Bytes::new(extra << 60),
            backward_extra_bytes: Bytes::new(extra << 60),
            gradient_bytes: gradient.map(|bytes| Bytes::new(bytes << 60)),
            parameter_gradient_bytes: Bytes::new(extra << 60),
            ..StageProfile::default()
        }
    }
}

prop_compose! {
    fn any_huge_profile()(
        input in 0..8u64,
        stages in proptest::collection::vec(any_huge_stage(), 1..5),
        (speed, growth) in (prop_oneof![Just(1), Just(u64::MAX)], prop_oneof![Just(1u32), Just(u32::MAX)]),
    ) -> Option<Profile> {
        let profile = Profile::new("huge", "none", Bytes::new(input << 60), stages).ok()?;
        let places = (vec![tier(u64::MAX, speed, speed)], vec![codec(growth, speed, speed)]);
        Some(profile.with_places(places.0, places.1).unwrap())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_moment_agrees_with_a_second_opinion_on_random_plans(
        profile in any_profile(), rolls in any_rolls(),
    ) {
        for places in [Places::None, Places::HostAndHalf] {
            let actions = random_plan(&profile, places, &rolls);
            let simulation = simulate(&profile, &actions).unwrap();
            agrees_with_the_second_opinion(&profile, &actions, &simulation)?;
        }
    }

    #[test]
    fn every_moment_agrees_with_a_second_opinion_on_rules(
        profile in any_profile(), rule in any_rule(),
    ) {
        let actions = rule.actions(profile.stages().len()).unwrap();
        let simulation = simulate(&profile, &actions).unwrap();
        agrees_with_the_second_opinion(&profile, &actions, &simulation)?;
    }

    #[test]
    fn every_moment_agrees_with_a_second_opinion_on_whatever_is_legal(
        profile in any_profile(),
        rolls in proptest::collection::vec((0..13u32, 0..100u32), 0..80),
    ) {
        let actions = wander(&profile, &rolls);
        let simulation = simulate(&profile, &actions).unwrap();
        agrees_with_the_second_opinion(&profile, &actions, &simulation)?;
    }

    #[test]
    fn a_changed_plan_is_legal_or_refused_and_never_a_panic(
        profile in any_profile(),
        rolls in any_rolls(),
        mutations in proptest::collection::vec(any_mutation(), 1..5),
    ) {
        let mut actions = random_plan(&profile, Places::HostAndHalf, &rolls);
        for mutation in &mutations {
            mutate(&mut actions, mutation);
        }
        match simulate(&profile, &actions) {
            Ok(simulation) => {
                let tensors = simulation.peak_tensors.iter().map(|live| live.bytes);
                prop_assert_eq!(Bytes::checked_sum(tensors), Some(simulation.peak_bytes));
                prop_assert!(simulation.step_ns >= profile.lower_bound());
                agrees_with_the_second_opinion(&profile, &actions, &simulation)?;
            }
            Err(illegal) => {
                prop_assert!(illegal.index <= actions.len());
                prop_assert_eq!(illegal.action.as_ref(), actions.get(illegal.index));
                prop_assert!(!illegal.to_string().is_empty());
                // What comes before was not at fault: cut off there, at most the end is wrong.
                if let Err(cut) = simulate(&profile, &actions[..illegal.index]) {
                    prop_assert_eq!((cut.index, cut.action), (illegal.index, None));
                }
            }
        }
    }

    #[test]
    fn time_is_every_run_and_every_wait(profile in any_profile(), rolls in any_rolls()) {
        let actions = random_plan(&profile, Places::HostAndHalf, &rolls);
        let simulation = simulate(&profile, &actions).unwrap();
        let (mut ran, mut option_of) = (BTreeSet::new(), BTreeMap::new());
        let (mut busy, mut recompute) = (0, 0);
        for (index, action) in actions.iter().enumerate() {
            let Some(number) = action.stage() else {
                // Codecs keep the device busy; tiers do not.
                let (Action::Compress { boundary, codec: place } | Action::Fetch { boundary, place }) = action else {
                    continue;
                };
                if let Some(codec) = profile.codecs().iter().find(|codec| codec.name == *place) {
                    let compresses = matches!(action, Action::Compress { .. });
                    let speed = if compresses { codec.compress_bytes_per_second } else { codec.restore_bytes_per_second };
                    let bytes = profile.boundary_bytes(*boundary).unwrap();
                    busy += Nanos::to_move(bytes, speed).unwrap().get();
                }
                continue;
            };
            let stage = &profile.stages()[number.index()];
            if let Action::Tape { option, .. } = action {
                option_of.insert(number, option.clone());
            }
            let option = option_of.get(&number).and_then(|name| name.as_ref());
            let option = option.filter(|_| !matches!(action, Action::Forward { .. }));
            let option = stage.options.iter().find(|found| Some(&found.name) == option);
            let (forward, backward) = option.map_or((stage.forward_ns, stage.backward_ns), |option| (option.forward_ns, option.backward_ns));
            if matches!(action, Action::Backward { .. }) {
                busy += backward.get();
            } else {
                // These plans keep what they read again: a tape is read before the next action that does anything, or
                // never. The first run of the last stage is read by the caller.
                let first = !ran.contains(&number);
                let goes_back = matches!(actions.get(index + 1), Some(Action::Backward { stage }) if *stage == number);
                let last = number.index() + 1 == profile.stages().len();
                let saved = goes_back && matches!(action, Action::Tape { .. }) && !(first && last);
                let forward = forward.get() - if saved { stage.unread_ns.get() } else { 0 };
                busy += forward;
                recompute += if ran.insert(number) { 0 } else { forward };
            }
        }
        prop_assert_eq!(simulation.recompute_ns.get(), recompute);
        prop_assert_eq!(simulation.step_ns.get(), busy + simulation.wait_ns.get());
    }

    #[test]
    fn spans_follow_one_another_and_add_up_to_the_step(profile in any_profile(), rolls in any_rolls()) {
        let actions = random_plan(&profile, Places::HostAndHalf, &rolls);
        let simulation = simulate(&profile, &actions).unwrap();
        prop_assert_eq!(simulation.spans.len(), actions.len());
        let beside = |action: &Action| match action {
            Action::Offload { .. } => true,
            Action::Fetch { place, .. } => profile.tiers().iter().any(|tier| tier.name == *place),
            _ => false,
        };
        let (mut free, mut reached, mut busy) = (Nanos::ZERO, Nanos::ZERO, 0);
        for (action, span) in actions.iter().zip(&simulation.spans) {
            prop_assert!(reached <= span.reached && span.reached <= span.start && span.start <= span.end);
            prop_assert!(span.end <= simulation.step_ns, "{} is over after the step", action);
            reached = span.reached;
            if !beside(action) {
                prop_assert!(free <= span.start, "{} runs while another does", action);
                free = span.end;
                busy += span.end.get() - span.start.get();
            }
        }
        prop_assert_eq!(busy + simulation.wait_ns.get(), simulation.step_ns.get());
    }

    #[test]
    fn sizes_and_times_near_the_limit_give_an_answer_or_a_typed_refusal(
        profile in any_huge_profile(), rule in any_rule(), rolls in any_rolls(),
    ) {
        let Some(profile) = profile else { return Ok(()) };
        let by_rule = rule.actions(profile.stages().len()).unwrap();
        let random = random_plan(&profile, Places::HostAndHalf, &rolls);
        for actions in [by_rule, random] {
            match simulate(&profile, &actions) {
                Ok(simulation) => {
                    let tensors = simulation.peak_tensors.iter().map(|live| live.bytes);
                    prop_assert_eq!(Bytes::checked_sum(tensors), Some(simulation.peak_bytes));
                }
                Err(Illegal { reason, .. }) => prop_assert!(
                    matches!(reason, Reason::TooLarge | Reason::TooLong | Reason::TierFull { .. }),
                    "{}", reason
                ),
            }
        }
    }
}
