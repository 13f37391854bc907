//! What must hold of any policy on any chain.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod chains;

use chains::{any_profile, name, uniform};
use proptest::prelude::*;
use rekindle_plan::policy::{ReadyMade, Start};
use rekindle_plan::{
    Action, Boundary, Nanos, Policy, PolicyError, Profile, Rule, Stage, StageProfile, simulate,
};

/// What a policy is to say of a stage, and of the boundary it reads.
#[derive(Clone, Copy, Debug)]
struct Wish {
    /// 0: nothing, 1: pin, 2: the option `light`, 3: recompute.
    stage: u32,
    /// 0: nothing, 1: keep, 2: offload, 3: compress.
    input: u32,
}

prop_compose! {
    /// A chain with names of its own for its stages, a start, and a wish for every stage.
    fn any_wishes()(
        profile in any_profile(),
        keep_all in any::<bool>(),
        wishes in proptest::collection::vec((0..4u32, 0..4u32), 12),
    ) -> (Profile, Policy, Vec<bool>, Vec<Wish>) {
        let named = |(index, stage): (usize, &StageProfile)| StageProfile {
            name: format!("part.{}.stage.{index}", index / 3),
            ..stage.clone()
        };
        let stages: Vec<_> = profile.stages().iter().enumerate().map(named).collect();
        let (tiers, codecs) = (profile.tiers().to_vec(), profile.codecs().to_vec());
        let profile = Profile::new("wishes", "none", profile.input_bytes(), stages).unwrap();
        let profile = profile.with_places(tiers, codecs).unwrap();
        let mut policy = if keep_all { Policy::keep_all() } else { Policy::recompute_all() };
        let mut taped = Vec::new();
        let mut made = Vec::new();
        for ((stage, input), profile) in wishes.into_iter().zip(profile.stages()) {
            // What a stage cannot do is not wished for.
            let stage = if stage == 2 && profile.options.is_empty() { 0 } else { stage };
            let name = profile.name.as_str();
            policy = match stage {
                1 => policy.pin(name),
                2 => policy.tape(name, "light"),
                3 => policy.recompute(name),
                _ => policy,
            };
            let reads = format!("{name}.input");
            policy = match input {
                1 => policy.keep(reads),
                2 => policy.offload(reads, "host"),
                3 => policy.compress(reads, "half"),
                _ => policy,
            };
            taped.push(match stage {
                1 | 2 => true,
                3 => false,
                _ => keep_all,
            });
            made.push(Wish { stage, input });
        }
        (profile, policy, taped, made)
    }
}

fn any_word() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z*.]{0,8}", "[a-z\" ,\\\\\\n\u{e9}]{0,6}", ".{0,6}"]
}

fn any_policy() -> impl Strategy<Value = Policy> {
    let ready = ReadyMade::ALL.map(|(ready, _)| Start::ReadyMade(ready));
    let starts = [Start::RecomputeAll, Start::KeepAll].into_iter().chain(ready).collect::<Vec<_>>();
    let clauses = proptest::collection::vec((0..6u32, any_word(), any_word()), 0..5);
    (proptest::sample::select(starts), clauses).prop_map(|(start, clauses)| {
        let add = |policy: Policy, (verb, pattern, object): (u32, String, String)| match verb {
            0 => policy.keep(pattern),
            1 => policy.offload(pattern, object),
            2 => policy.compress(pattern, object),
            3 => policy.pin(pattern),
            4 => policy.tape(pattern, object),
            _ => policy.recompute(pattern),
        };
        clauses.into_iter().fold(Policy::starting_from(start), add)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_policy_prints_and_parses_back(policy in any_policy()) {
        prop_assert_eq!(policy.to_string().parse(), Ok(policy));
    }

    #[test]
    fn any_text_is_a_policy_or_refused(text in "(full|keep-all|)[a-z ,\"\\\\*]{0,30}|.{0,30}") {
        match text.parse::<Policy>() {
            Ok(policy) => prop_assert_eq!(policy.to_string().parse(), Ok(policy)),
            Err(error) => prop_assert!(error.to_string().contains("expected")),
        }
    }

    #[test]
    fn any_policy_has_a_plan_the_judge_accepts_or_an_error(
        profile in any_profile(), start in 0..2u32, picks in proptest::collection::vec((0..6u32, 0..40usize), 0..6),
    ) {
        let names = Policy::names(&profile);
        let mut policy = [Policy::recompute_all(), Policy::keep_all()][start as usize].clone();
        for (verb, pick) in picks {
            let found = names.get(pick).map_or("*", |named| named.name);
            policy = match verb {
                0 => policy.keep(found),
                1 => policy.offload(format!("{found}.input"), "host"),
                2 => policy.compress(found, "half"),
                3 => policy.pin(found),
                4 => policy.tape(found, "light"),
                _ => policy.recompute(found),
            };
        }
        match policy.plan(&profile) {
            Ok(plan) => {
                prop_assert!(plan.judge(&profile).is_ok());
                prop_assert!(policy.idle(&profile).unwrap().len() <= policy.clauses().len());
            }
            Err(PolicyError::Refused(error)) => prop_assert!(false, "{}", error),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn a_stage_with_a_tape_runs_once_and_one_without_twice_unless_it_ends_the_chain(
        (profile, policy, taped, wishes) in any_wishes(),
    ) {
        let plan = policy.plan(&profile).unwrap();
        let stages = profile.stages().len();
        // The last segment: from the end back to a tape or a boundary that was named.
        let mut last = stages;
        while last > 0 && !taped[last - 1] {
            last -= 1;
            if wishes[last].input != 0 {
                break;
            }
        }
        for index in 0..stages {
            let stage = Stage::new(u32::try_from(index + 1).unwrap());
            let runs: Vec<_> = plan.actions.iter().filter(|action| action.stage() == Some(stage)).collect();
            let tape = Action::Tape { stage, option: (wishes[index].stage == 2).then(|| name("light")) };
            let expected = match taped[index] || index >= last {
                true => vec![tape, Action::backward(stage)],
                false => vec![Action::forward(stage), Action::tape(stage), Action::backward(stage)],
            };
            prop_assert_eq!(runs.into_iter().cloned().collect::<Vec<_>>(), expected, "{}", policy);
        }
    }

    #[test]
    fn every_boundary_a_segment_starts_from_waits_where_the_policy_says(
        (profile, policy, taped, wishes) in any_wishes(),
    ) {
        let actions = policy.actions(&profile).unwrap();
        for (index, wish) in wishes.iter().enumerate() {
            let boundary = Boundary::new(u32::try_from(index).unwrap());
            let away = actions.iter().find_map(|action| match action {
                Action::Offload { boundary: at, .. } if *at == boundary => Some(2),
                Action::Compress { boundary: at, .. } if *at == boundary => Some(3),
                _ => None,
            });
            let kept = actions.contains(&Action::keep(boundary));
            let segment = actions.contains(&Action::forward(Stage::new(boundary.number() + 1)));
            let starts = index == 0 || taped[index - 1] || wish.input != 0;
            prop_assert_eq!(kept, segment && starts);
            let in_tape = index > 0 && taped[index - 1];
            let expected = Some(wish.input).filter(|place| kept && !in_tape && *place > 1);
            prop_assert_eq!(away, expected, "{} at {}", policy, boundary);
        }
    }

    #[test]
    fn keeping_every_boundary_is_every_1_and_keeping_every_tape_is_store_all(profile in any_profile()) {
        let stages = profile.stages().len();
        let actions = |policy: Policy| policy.actions(&profile).unwrap();
        let rule = |rule: Rule| rule.actions(stages).unwrap();
        prop_assert_eq!(actions(Policy::recompute_all().keep("*")), rule(Rule::EVERY_ONE));
        prop_assert_eq!(actions(Policy::keep_all()), rule(Rule::StoreAll));
        prop_assert_eq!(actions(Policy::recompute_all().pin("**")), rule(Rule::StoreAll));
        prop_assert_eq!(actions(Policy::keep_all().recompute("*").keep("**")), rule(Rule::EVERY_ONE));
        // One segment, and it ends the chain.
        prop_assert_eq!(actions(Policy::recompute_all()), rule(Rule::StoreAll));
    }

    #[test]
    fn every_kth_boundary_by_name_is_every_k(stages in 1..20usize, k in 1..20usize) {
        let profile = uniform(stages, 1, 3);
        let firsts = (1..=stages).step_by(k);
        let policy = firsts.fold(Policy::recompute_all(), |policy, first| policy.keep(format!("stage.{first}.input")));
        let rule: Rule = format!("every-{k}").parse().unwrap();
        prop_assert_eq!(policy.actions(&profile).unwrap(), rule.actions(stages).unwrap());
    }

    #[test]
    fn a_plan_takes_the_time_of_its_stages_of_what_is_run_again_and_of_its_transfers(
        (profile, policy, ..) in any_wishes(),
    ) {
        let plan = policy.plan(&profile).unwrap();
        let simulation = simulate(&profile, &plan.actions).unwrap();
        prop_assert_eq!(plan.predicted.peak_bytes, simulation.peak_bytes);
        prop_assert_eq!(plan.predicted.step_ns, simulation.step_ns);
        prop_assert!(plan.predicted.step_ns >= plan.predicted.lower_bound_ns);
        let away = |action: &Action| matches!(action, Action::Offload { .. } | Action::Compress { .. });
        if !plan.actions.iter().any(away) {
            prop_assert_eq!(simulation.wait_ns, Nanos::ZERO);
        }
    }
}
