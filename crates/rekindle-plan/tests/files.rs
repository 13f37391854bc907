//! The files that travel: what is written reads back, and what is broken is refused with what was found.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod chains;

use chains::{Places, any_profile, any_rule, random_plan, uniform};
use proptest::prelude::*;
use rekindle_plan::{
    Bytes, FormatError, Gap, Nanos, PLAN_FORMAT, PROFILE_FORMAT, Plan, PlanError, Predicted, Profile,
    ProfileError, Rule, Status,
};

fn any_status() -> impl Strategy<Value = Status> {
    prop_oneof![
        Just(Status::Optimal),
        (0.0..2.0f64).prop_map(|gap| Status::Feasible(Gap::new(gap).unwrap())),
        any_rule().prop_map(|rule| Status::Rule(rule.name())),
    ]
}

prop_compose! {
    /// A legal plan, with everything the judge does not look at made up.
    fn any_plan()(
        profile in any_profile(),
        rolls in proptest::collection::vec(0..1000u32, 1..40),
        status in any_status(),
        solver in ".{0,12}",
        fingerprint in ".{0,12}",
        budget in proptest::option::of(any::<u64>()),
        numbers in any::<[u64; 5]>(),
    ) -> Plan {
        let actions = random_plan(&profile, Places::HostAndHalf, &rolls);
        let mut plan = Plan::judged(&profile, solver, status, None, actions).unwrap();
        plan.fingerprint = fingerprint;
        plan.budget_bytes = budget.map(Bytes::new);
        plan.predicted = Predicted {
            peak_bytes: Bytes::new(numbers[0]),
            step_ns: Nanos::new(numbers[1]),
            recompute_ns: Nanos::new(numbers[2]),
            lower_bound_ns: Nanos::new(numbers[3]),
            forwards: numbers[4],
        };
        plan
    }
}

/// The text with the byte at `at` replaced, where that is still text.
fn with_byte(text: &str, at: prop::sample::Index, byte: u8) -> Option<String> {
    let mut bytes = text.as_bytes().to_vec();
    let at = at.index(bytes.len());
    bytes[at] = byte;
    String::from_utf8(bytes).ok()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_profile_reads_back_as_it_was(profile in any_profile()) {
        let text = profile.to_json();
        let again = Profile::from_json(&text).unwrap();
        prop_assert_eq!(again.fingerprint(), profile.fingerprint());
        prop_assert_eq!(again.to_json(), text);
        prop_assert_eq!(again, profile);
    }

    #[test]
    fn a_plan_reads_back_as_it_was(plan in any_plan()) {
        let text = plan.to_json();
        let again = Plan::from_json(&text).unwrap();
        prop_assert_eq!(again.to_json(), text);
        prop_assert_eq!(again, plan);
    }

    #[test]
    fn a_plan_with_one_byte_changed_is_read_or_refused(
        plan in any_plan(), at in any::<prop::sample::Index>(), byte: u8,
    ) {
        if let Some(text) = with_byte(&plan.to_json(), at, byte) {
            match Plan::from_json(&text) {
                Ok(plan) => prop_assert_eq!(Plan::from_json(&plan.to_json()), Ok(plan)),
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }

    #[test]
    fn a_profile_with_one_byte_changed_is_read_or_refused(
        profile in any_profile(), at in any::<prop::sample::Index>(), byte: u8,
    ) {
        if let Some(text) = with_byte(&profile.to_json(), at, byte) {
            match Profile::from_json(&text) {
                Ok(profile) => prop_assert_eq!(Profile::from_json(&profile.to_json()), Ok(profile)),
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }

    #[test]
    fn any_text_is_a_document_or_an_error(text in ".{0,60}") {
        prop_assert!(Profile::from_json(&text).is_err());
        prop_assert!(Plan::from_json(&text).is_err());
    }
}

fn nine() -> (Profile, Plan) {
    let profile = uniform(9, 1, 8);
    let plan = Plan::by_rule(&profile, Rule::SquareRoot, Some(Bytes::new(64))).unwrap();
    (profile, plan)
}

/// The message with which the plan is refused once `from` is replaced by `to`.
#[track_caller]
fn refused(from: &str, to: &str) -> String {
    let text = nine().1.to_json();
    assert!(text.contains(from), "{from} is not in {text}");
    let error = Plan::from_json(&text.replacen(from, to, 1)).unwrap_err();
    assert!(matches!(error, PlanError::Format(_)), "{error}");
    error.to_string()
}

#[test]
fn a_plan_cut_off_anywhere_is_told_to_be_cut_off() {
    let text = nine().1.to_json();
    for end in 0..text.len() {
        let error = Plan::from_json(&text[..end]).unwrap_err();
        let PlanError::Format(FormatError::Truncated { line, .. }) = error else {
            panic!("cut at {end}: {error}");
        };
        let expected = text[..end].lines().count();
        // After a newline the text ends on the line that has not begun.
        assert!((expected..=expected + 1).contains(&line), "cut at {end}: {line}");
    }
}

#[test]
fn an_unknown_key_is_named() {
    let message = refused("\"solver\"", "\"solvr\": 1, \"solver\"");
    assert!(message.contains("unknown field `solvr`"), "{message}");
    let message = refused("\"step_ns\"", "\"steps\": 1, \"step_ns\"");
    assert!(message.contains("unknown field `steps`"), "{message}");
}

#[test]
fn a_missing_or_repeated_key_is_named() {
    let message = refused("\"solver\": \"sqrt\",", "");
    assert!(message.contains("missing field `solver`"), "{message}");
    let message = refused("\"solver\"", "\"solver\": \"a\", \"solver\"");
    assert!(message.contains("duplicate field `solver`"), "{message}");
}

/// What is printed beside a profile was once cut out of the text first, and other keys that stood twice with it.
#[test]
fn what_was_measured_beside_a_profile_is_passed_over_and_nothing_else() {
    let (profile, _) = nine();
    let beside = |more: &str| {
        profile.to_json().replacen('{', &format!("{{\"measured\": {{\"noise\": 0.5}}, {more}"), 1)
    };
    assert_eq!(Profile::from_json(&beside("")).unwrap(), profile);
    for (more, words) in [
        ("\"input_bytes\": 7,", "duplicate field `input_bytes`"),
        ("\"measured\": 1,", "duplicate field `measured`"),
        ("\"noise\": 1,", "unknown field `noise`"),
    ] {
        let message = Profile::from_json(&beside(more)).unwrap_err().to_string();
        assert!(message.contains(words), "{message}");
    }
    assert!(!profile.to_json().contains("measured"));
}

#[test]
fn another_version_is_told_before_anything_else_is_looked_at() {
    let text = r#"{"format": "rekindle.plan/2", "all": "new"}"#;
    assert_eq!(
        Plan::from_json(text).unwrap_err().to_string(),
        r#"the plan has the format "rekindle.plan/2", expected "rekindle.plan/1""#
    );
    // A profile where a plan was expected, and the other way round.
    let (profile, plan) = nine();
    let error = Plan::from_json(&profile.to_json()).unwrap_err();
    assert_eq!(
        error,
        PlanError::Format(FormatError::Version {
            document: "plan",
            found: format!("\"{PROFILE_FORMAT}\""),
            expected: PLAN_FORMAT,
        })
    );
    let error = Profile::from_json(&plan.to_json()).unwrap_err();
    assert!(matches!(error, ProfileError::Format(FormatError::Version { .. })));
    for (text, found) in [("{}", "(none)"), (r#"{"format": 1}"#, "1"), (r#"{"format": null}"#, "(none)")] {
        let message = Plan::from_json(text).unwrap_err().to_string();
        assert!(message.contains(&format!("the format {found},")), "{message}");
    }
}

#[test]
fn numbers_that_are_no_sizes_are_refused_with_what_was_found() {
    for (number, found) in [
        ("-1", "integer `-1`"),
        ("1.5", "floating point `1.5`"),
        ("1e300", "floating point `1e+300`"),
        ("18446744073709551616", "floating point `1.8446744073709552e+19`"),
        ("\"28\"", "string \"28\""),
        ("null", "null"),
        ("[1]", "sequence"),
    ] {
        let message = refused("\"peak_bytes\": 28", &format!("\"peak_bytes\": {number}"));
        assert!(message.contains(found), "{number}: {message}");
        assert!(message.contains("expected u64"), "{number}: {message}");
    }
    for number in ["NaN", "Infinity", "-Infinity", "0x1C", "028", "1e99999"] {
        let message = refused("\"peak_bytes\": 28", &format!("\"peak_bytes\": {number}"));
        assert!(message.contains("at line"), "{number}: {message}");
    }
    let message = refused("\"budget_bytes\": 64", "\"budget_bytes\": -64");
    assert!(message.contains("integer `-64`"), "{message}");
}

#[test]
fn an_action_that_is_none_is_refused_with_its_text_and_what_was_expected() {
    for (bad, expected) in [
        ("jump 3", "one of forward, tape"),
        ("keep 0", "a boundary"),
        ("keep x-1", "a boundary"),
        ("forward 0", "a stage's number from 1"),
        ("drop x0 a/b", "a name of letters"),
        ("", "one of forward, tape"),
    ] {
        let message = refused("\"keep x0\"", &format!("\"{bad}\""));
        assert!(message.contains(&format!("`{bad}` is not an action: expected {expected}")), "{message}");
    }
    let message = refused("\"keep x0\"", "7");
    assert!(message.contains("integer `7`"), "{message}");
}

#[test]
fn text_after_the_end_is_refused() {
    let text = nine().1.to_json() + "}";
    let message = Plan::from_json(&text).unwrap_err().to_string();
    assert!(message.contains("trailing characters"), "{message}");
}

#[test]
fn nesting_without_end_is_refused_and_does_not_overflow_the_stack() {
    let deep = "[".repeat(100_000);
    let text = format!(r#"{{"format": "rekindle.plan/1", "solver": {deep}"#);
    assert!(Plan::from_json(&text).is_err());
    assert!(Profile::from_json(&text).is_err());
}

#[test]
fn a_plan_for_another_profile_is_refused_with_both_fingerprints() {
    let (profile, plan) = nine();
    let other = uniform(9, 1, 9);
    let (found, expected) = (profile.fingerprint(), other.fingerprint());
    let error = plan.judge(&other).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("the plan was made for a profile with the fingerprint {found}, but this one has {expected}")
    );
    assert_eq!(error, PlanError::OtherModel { found, expected });
    assert!(plan.judge(&profile).is_ok());
}

#[test]
fn a_plan_over_its_budget_is_refused_when_made_and_when_read() {
    let (profile, mut plan) = nine();
    let error = Plan::by_rule(&profile, Rule::SquareRoot, Some(Bytes::new(27))).unwrap_err();
    let words = "`sqrt` takes 28 B at its peak (28 bytes), but the budget is 27 B (27 bytes)";
    assert_eq!(error.to_string(), words);
    // What the file claims is not believed.
    plan.budget_bytes = Some(Bytes::new(27));
    plan.predicted.peak_bytes = Bytes::new(1);
    let plan = Plan::from_json(&plan.to_json()).unwrap();
    assert_eq!(plan.judge(&profile).unwrap_err(), error);
}

#[test]
fn a_plan_that_was_changed_into_an_illegal_one_is_refused_with_the_action() {
    let (profile, mut plan) = nine();
    plan.actions.remove(0);
    let error = plan.judge(&profile).unwrap_err();
    assert!(matches!(error, PlanError::Illegal(_)));
    let message = error.to_string();
    assert!(message.starts_with("the plan is not legal: action "), "{message}");
}

#[test]
fn a_status_is_one_word_or_a_gap() {
    for (status, text) in [
        (Status::Optimal, r#""optimal""#),
        (Status::Feasible(Gap::new(0.01).unwrap()), r#"{"feasible":{"gap":0.01}}"#),
        (Status::Rule("sqrt".parse().unwrap()), r#""sqrt""#),
        (Status::Rule("every-4".parse().unwrap()), r#""every-4""#),
    ] {
        assert_eq!(serde_json::to_string(&status).unwrap(), text);
        assert_eq!(serde_json::from_str::<Status>(text).unwrap(), status);
    }
    for text in [
        "3",
        "null",
        r#"{"feasible":{}}"#,
        r#"{"feasible":{"gap":-0.1}}"#,
        r#"{"feasible":{"gap":0.1,"pag":1}}"#,
        r#"{"feasible":{"gap":0.1},"other":1}"#,
        r#""two words""#,
        r#"{"feasible":{"gap":"wide"}}"#,
        r#"{"proven":1}"#,
    ] {
        assert!(serde_json::from_str::<Status>(text).is_err(), "{text}");
        refused("\"sqrt\",\n  \"budget", &format!("{text},\n  \"budget"));
    }
}

/// What docs/formats.md shows must be true: the profile, the plan, and what the simulator says of it.
#[test]
fn the_documented_examples_are_what_the_code_makes_of_them() {
    let page = include_str!("../../../docs/formats.md");
    let example = |format: &str| {
        let blocks = page.split("```json\n").skip(1).filter_map(|rest| rest.split("```").next());
        blocks.into_iter().find(|block| block.contains(format)).unwrap()
    };
    let profile = Profile::from_json(example("rekindle.profile/1")).unwrap();
    let plan = Plan::from_json(example("rekindle.plan/1")).unwrap();
    let rule = plan.solver.parse().unwrap();
    assert_eq!(Plan::by_rule(&profile, rule, plan.budget_bytes).unwrap(), plan);
}
