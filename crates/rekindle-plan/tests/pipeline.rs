//! Plans for the ranks of a pipeline: within the budget with all micro-batches in flight, and close to the fastest there is.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod chains;
mod exhaustive;

use chains::{any_stage, passing, uniform};
use exhaustive::{every_plan, with_keeps};
use proptest::prelude::*;
use rekindle_plan::pipeline::{self, PipelineError, RankPlan};
use rekindle_plan::{Action, Bytes, Nanos, Plan, Profile, Request, Rule, StageProfile, simulate};

/// What a plan for one micro-batch holds between its halves, takes at its peak, and how long it takes. Counted from what is alive,
/// not from the moments that the planner reads.
fn held_peak_time(profile: &Profile, actions: &[Action]) -> Option<(u64, u64, Nanos)> {
    let found = simulate(profile, actions).ok()?;
    let turn = found.turn;
    let mut kept: Vec<usize> = Vec::new();
    let mut tapes: Vec<(usize, Option<usize>)> = Vec::new();
    for action in &actions[..turn] {
        match action {
            Action::Keep { boundary } => kept.push(boundary.index()),
            Action::Drop { boundary, .. } => kept.retain(|index| *index != boundary.index()),
            Action::Tape { stage, option } => {
                let options = &profile.stages()[stage.index()].options;
                let option = option.as_ref().and_then(|name| options.iter().position(|of| of.name == *name));
                tapes.push((stage.index(), option));
            }
            _ => {}
        }
    }
    // A tape has its output, and holds on to its input; what a stage passes on is there once.
    let mut boundaries = kept;
    boundaries.extend(tapes.iter().map(|(stage, _)| *stage));
    boundaries.push(profile.stages().len());
    boundaries.sort_unstable();
    boundaries.dedup();
    let size = |index: usize| match index {
        0 => profile.input_bytes().get(),
        index => profile.stages()[index - 1].output_bytes.get(),
    };
    let mut held = 0;
    for boundary in boundaries {
        if !tapes.iter().any(|(stage, _)| stage + 1 == boundary) {
            held += size(boundary);
        }
    }
    for (stage, option) in tapes {
        let stage = &profile.stages()[stage];
        held += stage.taped_bytes_under(option.map(|option| &stage.options[option])).get();
    }
    Some((held, found.peak_bytes.get(), found.step_ns))
}

/// The fastest of all persistent plans for one rank that holds so many micro-batches.
fn fastest(profile: &Profile, in_flight: u64, budget: u64) -> Option<Nanos> {
    // One stage more, so that the last one can be recomputed like the others.
    let more = StageProfile { name: "turn".into(), ..StageProfile::default() };
    let stages = profile.stages().iter().cloned().chain([more]).collect();
    let longer = Profile::new("longer", "none", profile.input_bytes(), stages).unwrap();
    let count = profile.stages().len();
    let plans = every_plan(&longer);
    let plans = plans.iter().map(|plan| with_keeps(plan)).map(|plan| {
        let of_the_turn = |action: &Action| match action {
            Action::Forward { stage } | Action::Tape { stage, .. } | Action::Backward { stage } => {
                stage.index() >= count
            }
            Action::Keep { boundary } | Action::Drop { boundary, .. } => boundary.index() >= count,
            _ => false,
        };
        plan.into_iter().filter(|action| !of_the_turn(action)).collect::<Vec<_>>()
    });
    let fitting = plans.filter_map(|plan| {
        let (held, peak, time) = held_peak_time(profile, &plan)?;
        ((in_flight - 1) * held + peak.max(held) <= budget).then_some(time)
    });
    fitting.min()
}

fn check_rank(rank: &RankPlan, budget: Bytes) {
    let (_, simulation) = rank.plan.judge(&rank.profile).unwrap();
    let (held, peak, time) = held_peak_time(&rank.profile, &rank.plan.actions).unwrap();
    assert_eq!(rank.plan.predicted.step_ns, time);
    assert_eq!(rank.cost.forward.get() + rank.cost.backward.get(), simulation.step_ns.get());
    assert_eq!(held, rank.waiting_bytes.get(), "{:?}", rank.plan.actions);
    let total = (rank.in_flight as u64 - 1) * held + peak.max(held);
    let total = total + rank.summed_bytes.get() + rank.message_bytes.get();
    assert!(total == rank.peak_bytes.get() && rank.peak_bytes <= budget, "{total} {rank:?}");
}

fn any_chain(stages: std::ops::Range<usize>) -> impl Strategy<Value = Profile> {
    (0..50u64, proptest::collection::vec(any_stage(), stages)).prop_map(|(input, stages)| {
        Profile::new("any", "none", Bytes::new(input), passing(input, stages)).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_rank_is_within_the_budget_with_all_that_it_holds(
        profile in any_chain(2..10), ranks in 1..5usize, micro_batches in 1..9usize, percent in 10..120u64,
    ) {
        prop_assume!(ranks <= profile.stages().len());
        let all = Plan::by_rule(&profile, Rule::StoreAll, None).unwrap().predicted.peak_bytes;
        let budget = Bytes::new(all.get() * percent / 100);
        match pipeline::plan(&profile, ranks, micro_batches, &Request::new(budget)) {
            Ok(plans) => {
                prop_assert_eq!(plans.len(), ranks);
                prop_assert_eq!(plans.iter().map(|rank| rank.stages.len()).sum::<usize>(), profile.stages().len());
                plans.iter().for_each(|rank| check_rank(rank, budget));
            }
            Err(PipelineError::BudgetTooSmall { enough_bytes, budget_bytes, .. }) => {
                prop_assert_eq!(budget_bytes, budget);
                prop_assert!(enough_bytes > budget, "{:?}", enough_bytes);
                // What is said to be enough is enough for every rank.
                match pipeline::plan(&profile, ranks, micro_batches, &Request::new(enough_bytes)) {
                    Ok(plans) => plans.iter().for_each(|rank| check_rank(rank, enough_bytes)),
                    Err(error) => prop_assert!(false, "{}", error),
                }
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    #[test]
    fn no_plan_is_faster_than_what_is_said_to_be_the_bound_and_none_beats_exhaustive_search(
        profile in any_chain(1..5), in_flight in 1..5usize, percent in 20..300u64,
    ) {
        let all = Plan::by_rule(&profile, Rule::StoreAll, None).unwrap().predicted.peak_bytes;
        let summed: u64 = profile.stages().iter().map(|stage| stage.parameter_gradient_bytes.get()).sum();
        let budget = all.get() * percent / 100 + summed;
        // The first of as many ranks, which all have these stages.
        let stages = (0..in_flight).flat_map(|_| profile.stages().iter().cloned()).collect();
        let row = Profile::new("row", "none", profile.input_bytes(), stages);
        prop_assume!(row.is_ok());
        let found = pipeline::plan(&row.unwrap(), in_flight, 8, &Request::new(Bytes::new(budget)));
        let Ok(plans) = found else { return Ok(()) };
        let first = &plans[0];
        prop_assume!(first.profile.stages().len() == profile.stages().len());
        let best = fastest(&first.profile, in_flight as u64, budget - summed - first.message_bytes.get());
        let best = best.expect("a plan was found, so there is one");
        prop_assert!(first.plan.predicted.step_ns >= best);
        prop_assert!(first.plan.predicted.lower_bound_ns <= best, "{:?} {:?} {:?}", first.plan, best, budget);
    }
}

/// Where stages are alike, all that a waiting micro-batch can hold is tried, and the plan is the fastest there is.
#[test]
fn plans_for_equal_stages_are_what_exhaustive_search_finds() {
    let mut tried = 0;
    for stages in 2..=5 {
        for tape in [3, 10, 30] {
            let profile = uniform(stages, 2, tape);
            for in_flight in [2, 3, 4] {
                for budget in (10..400).step_by(7) {
                    let row = uniform(stages * in_flight, 2, tape);
                    let request = Request::new(Bytes::new(budget));
                    let found = match pipeline::plan(&row, in_flight, 8, &request) {
                        Ok(ranks) => Some(ranks[0].plan.predicted.step_ns),
                        Err(PipelineError::BudgetTooSmall { rank: 0, .. }) => None,
                        // Those between have more messages.
                        Err(PipelineError::BudgetTooSmall { .. }) => continue,
                        Err(error) => panic!("{error}"),
                    };
                    // The first of them sends or receives a boundary of 2 at a time.
                    let expected = fastest(&profile, in_flight as u64, budget - 4);
                    assert_eq!(found, expected, "{stages} stages, {tape}, {in_flight}, {budget}");
                    tried += u32::from(found.is_some());
                }
            }
        }
    }
    assert!(tried > 500, "{tried}");
}

#[test]
fn a_thousand_ranks_are_planned_and_simulated() {
    let profile = uniform(3_000, 2, 30);
    let ranks = pipeline::plan(&profile, 1_000, 32, &Request::new(Bytes::new(2_000))).unwrap();
    let costs: Vec<_> = ranks.iter().map(|rank| rank.cost).collect();
    let step = pipeline::simulate(&costs, 32).unwrap();
    assert_eq!(step.in_flight[0], 32);
    assert!(step.peaks.iter().zip(&ranks).all(|(peak, rank)| *peak == rank.peak_bytes));
    // The last ranks hold fewer, and recompute less.
    assert!(ranks[0].plan.predicted.step_ns > ranks[999].plan.predicted.step_ns);
    for rank in [0, 500, 980, 999] {
        check_rank(&ranks[rank], Bytes::new(2_000));
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let profile = uniform(3, 2, 30);
    let refused = |ranks, micro_batches, budget: u64| {
        pipeline::plan(&profile, ranks, micro_batches, &Request::new(Bytes::new(budget))).unwrap_err()
    };
    assert_eq!(refused(4, 1, 999), PipelineError::TooFewStages { stages: 3, ranks: 4 });
    assert_eq!(refused(0, 1, 999), PipelineError::Empty { ranks: 0, micro_batches: 1 });
    assert_eq!(refused(2, 0, 999), PipelineError::Empty { ranks: 2, micro_batches: 0 });
    let error = refused(3, 8, 20);
    assert!(matches!(error, PipelineError::BudgetTooSmall { rank: 0, in_flight: 3, .. }), "{error}");
    let everything = pipeline::plan(&profile, 3, 8, &Request::default()).unwrap();
    assert!(everything.iter().all(|rank| rank.plan.predicted.recompute_ns == Nanos::ZERO));
}
