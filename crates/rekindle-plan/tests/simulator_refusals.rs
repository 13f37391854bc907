//! What the simulator refuses: every reason, where it is found, in which words.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod by_hand;
mod chains;

use by_hand::{codec, tier, two};
use chains::{actions, name, uniform};
use rekindle_plan::{Action, Boundary, Bytes, Illegal, Nanos, Profile, Reason, Stage, simulate};

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
