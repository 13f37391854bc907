//! The textbook rules: their schedules word for word, and what must hold of them on any chain.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod chains;

use chains::{any_profile, any_rule, text, uniform};
use insta::assert_snapshot;
use proptest::prelude::*;
use rekindle_plan::rules::MOST_ACTIONS;
use rekindle_plan::{
    Boundary, Bytes, Nanos, Plan, PlanError, Profile, Rule, RuleError, Stage, Status, simulate,
};

fn schedule(rule: &str, stages: usize) -> String {
    let rule: Rule = rule.parse().unwrap();
    text(&rule.actions(stages).unwrap())
}

#[test]
fn store_all_tapes_everything_and_goes_back() {
    assert_snapshot!(schedule("store-all", 1), @r"
    tape 1
    backward 1
    ");
    assert_snapshot!(schedule("store-all", 4), @r"
    tape 1
    tape 2
    tape 3
    tape 4
    backward 4
    backward 3
    backward 2
    backward 1
    ");
    assert_snapshot!(schedule("store-all", 5), @r"
    tape 1
    tape 2
    tape 3
    tape 4
    tape 5
    backward 5
    backward 4
    backward 3
    backward 2
    backward 1
    ");
}

#[test]
fn full_runs_from_the_input_for_every_backward() {
    assert_snapshot!(schedule("full", 1), @r"
    keep x0
    forward 1
    tape 1
    drop x0
    backward 1
    ");
    assert_snapshot!(schedule("full", 4), @r"
    keep x0
    forward 1
    forward 2
    forward 3
    forward 4
    forward 1
    forward 2
    forward 3
    tape 4
    backward 4
    forward 1
    forward 2
    tape 3
    backward 3
    forward 1
    tape 2
    backward 2
    tape 1
    drop x0
    backward 1
    ");
    assert_snapshot!(schedule("full", 5), @r"
    keep x0
    forward 1
    forward 2
    forward 3
    forward 4
    forward 5
    forward 1
    forward 2
    forward 3
    forward 4
    tape 5
    backward 5
    forward 1
    forward 2
    forward 3
    tape 4
    backward 4
    forward 1
    forward 2
    tape 3
    backward 3
    forward 1
    tape 2
    backward 2
    tape 1
    drop x0
    backward 1
    ");
}

#[test]
fn every_1_keeps_every_boundary_and_tapes_one_stage_at_a_time() {
    assert_snapshot!(schedule("every-1", 1), @r"
    tape 1
    backward 1
    ");
    assert_snapshot!(schedule("every-1", 4), @r"
    keep x0
    forward 1
    keep x1
    forward 2
    keep x2
    forward 3
    tape 4
    backward 4
    tape 3
    drop x2
    backward 3
    tape 2
    drop x1
    backward 2
    tape 1
    drop x0
    backward 1
    ");
    assert_snapshot!(schedule("every-1", 5), @r"
    keep x0
    forward 1
    keep x1
    forward 2
    keep x2
    forward 3
    keep x3
    forward 4
    tape 5
    backward 5
    tape 4
    drop x3
    backward 4
    tape 3
    drop x2
    backward 3
    tape 2
    drop x1
    backward 2
    tape 1
    drop x0
    backward 1
    ");
}

#[test]
fn every_2_keeps_every_other_boundary_and_the_rest_falls_to_the_last_segment() {
    assert_snapshot!(schedule("every-2", 1), @r"
    tape 1
    backward 1
    ");
    assert_snapshot!(schedule("every-2", 4), @r"
    keep x0
    forward 1
    forward 2
    tape 3
    tape 4
    backward 4
    backward 3
    tape 1
    tape 2
    drop x0
    backward 2
    backward 1
    ");
    assert_snapshot!(schedule("every-2", 5), @r"
    keep x0
    forward 1
    forward 2
    keep x2
    forward 3
    forward 4
    tape 5
    backward 5
    tape 3
    tape 4
    drop x2
    backward 4
    backward 3
    tape 1
    tape 2
    drop x0
    backward 2
    backward 1
    ");
}

#[test]
fn sqrt_of_4_keeps_every_2nd_and_of_5_every_3rd() {
    assert_snapshot!(schedule("sqrt", 1), @r"
    tape 1
    backward 1
    ");
    assert_snapshot!(schedule("sqrt", 4), @r"
    keep x0
    forward 1
    forward 2
    tape 3
    tape 4
    backward 4
    backward 3
    tape 1
    tape 2
    drop x0
    backward 2
    backward 1
    ");
    assert_snapshot!(schedule("sqrt", 5), @r"
    keep x0
    forward 1
    forward 2
    forward 3
    tape 4
    tape 5
    backward 5
    backward 4
    tape 1
    tape 2
    tape 3
    drop x0
    backward 3
    backward 2
    backward 1
    ");
}

/// What no plan without options gets around: to go back through a stage, its tape, its input and the gradient it
/// starts from are there together.
fn least(profile: &Profile) -> Bytes {
    let needed = (1..).zip(profile.stages()).map(|(number, stage)| {
        let (input, output) = (Boundary::new(number - 1), Boundary::new(number));
        let parts = [
            profile.boundary_bytes(input).unwrap(),
            stage.taped_bytes(),
            profile.gradient_bytes(output).unwrap(),
            stage.backward_extra_bytes,
            stage.parameter_gradient_bytes,
        ];
        parts.into_iter().sum()
    });
    needed.max().unwrap()
}

fn every(k: usize) -> Rule {
    format!("every-{k}").parse().unwrap()
}

fn peak(profile: &Profile, rule: Rule) -> u64 {
    let actions = rule.actions(profile.stages().len()).unwrap();
    simulate(profile, &actions).unwrap().peak_bytes.get()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn forwards_follow_the_closed_forms(profile in any_profile(), k in 1..15usize) {
        let stages = profile.stages().len();
        let forwards = |rule: Rule| Plan::by_rule(&profile, rule, None).unwrap().predicted.forwards;
        prop_assert_eq!(forwards(Rule::StoreAll), stages as u64);
        prop_assert_eq!(forwards(Rule::Full), (stages * (stages + 3) / 2) as u64);
        let before_the_last_segment = (stages - 1) / k * k;
        prop_assert_eq!(forwards(every(k)), (stages + before_the_last_segment) as u64);
        let root = (1..).find(|root| root * root >= stages).unwrap();
        prop_assert_eq!(forwards(Rule::SquareRoot), forwards(every(root)));
    }

    #[test]
    fn a_step_takes_one_forward_and_one_backward_of_everything_and_what_is_recomputed(
        profile in any_profile(), rule in any_rule(),
    ) {
        let simulation = simulate(&profile, &rule.actions(profile.stages().len()).unwrap()).unwrap();
        let once = profile.stages().iter().flat_map(|stage| [stage.forward_ns, stage.backward_ns]);
        let total: Nanos = once.chain([simulation.recompute_ns]).sum();
        prop_assert_eq!(simulation.step_ns, total);
        prop_assert_eq!(simulation.wait_ns, Nanos::ZERO);
        prop_assert!(simulation.step_ns >= profile.lower_bound());
        if rule == Rule::StoreAll {
            prop_assert_eq!(simulation.recompute_ns, Nanos::ZERO);
        }
    }

    #[test]
    fn the_peak_is_the_largest_moment_and_its_tensors_add_up_to_it(
        profile in any_profile(), rule in any_rule(),
    ) {
        let actions = rule.actions(profile.stages().len()).unwrap();
        let simulation = simulate(&profile, &actions).unwrap();
        prop_assert_eq!(simulation.moments.len(), actions.len());
        for moment in &simulation.moments {
            prop_assert!(moment.after <= moment.peak && moment.peak <= simulation.peak_bytes);
        }
        prop_assert_eq!(simulation.moments[simulation.peak_action].peak, simulation.peak_bytes);
        let earlier = &simulation.moments[..simulation.peak_action];
        prop_assert!(earlier.iter().all(|moment| moment.peak < simulation.peak_bytes));
        let tensors = simulation.peak_tensors.iter().map(|live| live.bytes);
        prop_assert_eq!(Bytes::checked_sum(tensors), Some(simulation.peak_bytes));
        prop_assert!(simulation.peak_tensors.is_sorted_by(|a, b| a.bytes >= b.bytes));
    }

    #[test]
    fn no_rule_goes_below_what_every_plan_needs(profile in any_profile(), rule in any_rule()) {
        let plan = Plan::by_rule(&profile, rule, None).unwrap();
        prop_assert!(plan.predicted.peak_bytes >= least(&profile));
    }

    #[test]
    fn the_forward_half_ends_with_the_first_run_of_the_last_stage(
        profile in any_profile(), rule in any_rule(),
    ) {
        let plan = Plan::by_rule(&profile, rule, None).unwrap();
        let (schedule, _) = plan.judge(&profile).unwrap();
        let last = Stage::new(u32::try_from(profile.stages().len()).unwrap());
        let (turn, before) = schedule.forward_half().split_last().unwrap();
        prop_assert_eq!(turn.stage(), Some(last));
        prop_assert!(before.iter().all(|action| action.stage() != Some(last)));
        prop_assert_eq!(plan.status, Status::Rule(rule.name()));
    }

    #[test]
    fn a_rule_fits_a_budget_of_its_peak_and_not_one_byte_less(
        profile in any_profile(), rule in any_rule(),
    ) {
        let peak = Plan::by_rule(&profile, rule, None).unwrap().predicted.peak_bytes;
        prop_assert!(Plan::by_rule(&profile, rule, Some(peak)).is_ok());
        if let Some(less) = peak.checked_sub(Bytes::new(1)) {
            let error = Plan::by_rule(&profile, rule, Some(less)).unwrap_err();
            prop_assert_eq!(
                error,
                PlanError::OverBudget { solver: rule.to_string(), peak_bytes: peak, budget_bytes: less }
            );
        }
    }
}

/// Chen et al. 2016: with boundaries and tapes of one size, memory grows with the square root of the length.
#[test]
fn sqrt_takes_memory_of_the_square_root_when_a_tape_is_as_large_as_a_boundary() {
    for stages in (1..=150).chain([1_000, 10_000]) {
        let profile = uniform(stages, 1, 1);
        let root = (1..).find(|root| root * root >= stages as u64).unwrap();
        // The kept boundaries, the tapes of one segment, and the gradient.
        let found = peak(&profile, Rule::SquareRoot);
        assert!(found <= 2 * root + 1, "{stages} stages: {found}");
        // Every tape, x0 and the gradient.
        assert_eq!(peak(&profile, Rule::StoreAll), stages as u64 + 2);
    }
}

#[test]
fn no_other_k_beats_the_square_root_when_a_tape_is_as_large_as_a_boundary() {
    for root in 1..=12 {
        let profile = uniform(root * root, 1, 1);
        let best = (1..=root * root).map(|k| peak(&profile, every(k))).min();
        assert_eq!(Some(peak(&profile, Rule::SquareRoot)), best, "{root}");
    }
}

#[test]
fn full_takes_the_same_memory_whatever_the_length() {
    let peaks = [3, 10, 100].map(|stages| peak(&uniform(stages, 1, 3), Rule::Full));
    // x0, the boundary before the stage, its tape, the gradient.
    assert_eq!(peaks, [6; 3]);
}

#[test]
fn an_every_k_longer_than_the_chain_is_store_all() {
    for k in [5, 6, usize::MAX] {
        assert_eq!(every(k).actions(5), Rule::StoreAll.actions(5));
    }
}

#[test]
fn a_chain_of_no_stages_has_no_plan() {
    for rule in [Rule::StoreAll, Rule::Full, Rule::EVERY_ONE, Rule::SquareRoot] {
        assert_eq!(rule.actions(0), Err(RuleError::NoStages));
    }
}

#[test]
fn a_plan_too_long_to_hold_is_refused_before_it_is_made() {
    let error = Rule::Full.actions(100_000).unwrap_err();
    assert!(matches!(error, RuleError::TooLong { needed, .. } if needed > MOST_ACTIONS as u128));
    assert!(error.to_string().ends_with("more than 16777216; try `sqrt`"));
    for rule in [Rule::StoreAll, Rule::Full, every(3), Rule::SquareRoot] {
        let error = rule.actions(usize::MAX / 2).unwrap_err();
        assert!(matches!(error, RuleError::TooLong { .. }));
    }
}

#[test]
fn names_of_rules_read_back_and_what_is_none_is_named() {
    for text in ["store-all", "full", "sqrt", "every-1", "every-17"] {
        assert_eq!(text.parse::<Rule>().unwrap().to_string(), text);
    }
    for text in ["", "every-0", "every--1", "every-+1", "every-", "Full", "every-99999999999999999999"] {
        let message = text.parse::<Rule>().unwrap_err().to_string();
        assert!(message.starts_with(&format!("`{text}` is not a rule")), "{message}");
    }
}
