//! What the simulator says of any plan on any chain, against a second opinion.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod by_hand;
mod chains;
mod second_opinion;

use std::collections::{BTreeMap, BTreeSet};

use by_hand::{codec, tier};
use chains::{Places, any_profile, any_rule, random_plan};
use proptest::prelude::*;
use rekindle_plan::{
    Action, Bytes, Illegal, Nanos, Piece, Profile, Reason, Request, Rule, Schedule, Simulation, Stage,
    StageProfile, simulate,
    solvers::{Solver, optimal},
};
use second_opinion::{agrees_with_the_second_opinion, any_verb, wander};

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

/// A piece's actions, forth and back, with the numbers of the whole chain.
fn in_the_whole(piece: &Piece) -> [Vec<Action>; 2] {
    let (by, halves) = match piece {
        Piece::Plain { stage, option } => {
            let tape = Action::Tape { stage: Stage::new(1), option: option.clone() };
            (stage.index(), [vec![tape], vec![Action::backward(Stage::new(1))]])
        }
        Piece::Planned { first, schedule } => {
            (first.index(), [schedule.forward_half().to_vec(), schedule.backward_half().to_vec()])
        }
        other => panic!("{other:?}"),
    };
    halves.map(|half| {
        let moved = |word: &str| match word.strip_prefix('x').unwrap_or(word).parse::<usize>() {
            Ok(number) if word.starts_with('x') => format!("x{}", number + by),
            Ok(number) => (number + by).to_string(),
            Err(_) => word.to_owned(),
        };
        let text = |action: &Action| action.to_string().split(' ').map(moved).collect::<Vec<_>>().join(" ");
        half.iter().map(|action| text(action).parse().unwrap()).collect()
    })
}

/// Their actions are those of the schedule, in its order, within its peak, and each of them is one the simulator accepts.
fn pieces_come_to_it(
    profile: &Profile,
    schedule: &Schedule,
    simulation: &Simulation,
    pieces: &[Piece],
) -> Result<(), TestCaseError> {
    let mut begin = 0;
    for piece in pieces {
        let (first, stages) = match piece {
            Piece::Planned { first, schedule } => (first.index(), schedule.stages()),
            Piece::Plain { stage, .. } => (stage.index(), 1),
            other => panic!("{other:?}"),
        };
        prop_assert_eq!(first, begin);
        begin += stages;
        if let Piece::Planned { first, schedule: own } = piece {
            let input = match first.index() {
                0 => profile.input_bytes(),
                index => profile.stages()[index - 1].output_bytes,
            };
            let stages = profile.stages()[first.index()..begin].to_vec();
            let part = Profile::new("a piece", "none", input, stages).unwrap();
            let part = part.with_places(profile.tiers().to_vec(), profile.codecs().to_vec()).unwrap();
            let (judged, _) = Schedule::judge(&part, own.actions()).unwrap();
            prop_assert_eq!(&judged, own);
            let rest = schedule.from_piece(*first).unwrap();
            prop_assert_eq!(rest.stages(), profile.stages().len() - first.index());
        }
    }
    prop_assert_eq!(begin, profile.stages().len());
    let halves: Vec<[Vec<Action>; 2]> = pieces.iter().map(in_the_whole).collect();
    let forth = halves.iter().flat_map(|[forth, _]| forth);
    let all: Vec<Action> = forth.chain(halves.iter().rev().flat_map(|[_, back]| back)).cloned().collect();
    let runs = |actions: &[Action]| -> Vec<Action> {
        actions.iter().filter(|action| action.stage().is_some()).cloned().collect()
    };
    prop_assert_eq!(runs(&all), runs(schedule.actions()));
    let (_, again) = Schedule::judge(profile, &all).unwrap();
    prop_assert!(
        again.peak_bytes <= simulation.peak_bytes,
        "{} over {}",
        again.peak_bytes,
        simulation.peak_bytes
    );
    prop_assert_eq!(again.forwards, simulation.forwards);
    Ok(())
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
    fn the_pieces_of_a_schedule_come_to_the_schedule(
        profile in any_profile(),
        rolls in any_rolls(),
        steps in proptest::collection::vec((0..13u32, 0..100u32), 0..80),
        rule in any_rule(),
        refused in proptest::collection::vec(any::<bool>(), 12),
        percent in 0..100u64,
    ) {
        let all = profile.stages().len();
        let smallest = optimal::smallest_budget(&profile).unwrap();
        let plain = simulate(&profile, &Rule::StoreAll.actions(all).unwrap()).unwrap().peak_bytes;
        let budget = Bytes::new(smallest.get() + plain.saturating_sub(smallest).get() * percent / 100);
        let plans = [
            random_plan(&profile, Places::None, &rolls),
            random_plan(&profile, Places::HostAndHalf, &rolls),
            wander(&profile, &steps),
            rule.actions(all).unwrap(),
            Solver::Optimal.solve(&profile, &Request::new(budget)).unwrap().actions.to_vec(),
        ];
        for actions in plans {
            let (schedule, simulation) = Schedule::judge(&profile, &actions).unwrap();
            let may_be_plain = |stage: Stage| !refused.get(stage.index()).copied().unwrap_or(false);
            // What was cut before must not be taken for what is asked for now.
            for _ in 0..2 {
                pieces_come_to_it(&profile, &schedule, &simulation, &schedule.pieces(|_, _| true))?;
                let some = schedule.pieces(|stage, _| may_be_plain(stage));
                let is_asked_for = |piece: &Piece| match piece {
                    Piece::Plain { stage, .. } => may_be_plain(*stage),
                    _ => true,
                };
                prop_assert!(some.iter().all(is_asked_for));
                pieces_come_to_it(&profile, &schedule, &simulation, &some)?;
            }
        }
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
