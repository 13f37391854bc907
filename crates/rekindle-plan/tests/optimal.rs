//! The optimum against exhaustive search, and what must hold of it on any chain.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod chains;
mod exhaustive;
#[allow(dead_code, reason = "the chains that figures are made of; not all are tested")]
#[path = "../examples/random_chain/mod.rs"]
mod random_chain;

use std::time::{Duration, Instant};

use chains::{any_stage, name, passing, uniform};
use exhaustive::{every_plan, with_keeps};
use proptest::prelude::*;
use rekindle_plan::pipeline::{self, PipelineError};
use rekindle_plan::solvers::{mixed, online, optimal, revolve};
use rekindle_plan::{
    Bytes, Gap, Nanos, Plan, Profile, Request, Rule, SolveError, StageProfile, Status, TapeOption, simulate,
};

/// The peaks and times of every legal persistent plan, the least time for each budget: rooms rise, times fall.
fn exhaustive_frontier(profile: &Profile) -> Vec<(Bytes, Nanos)> {
    let plans = every_plan(profile);
    let legal = plans.iter().filter_map(|plan| simulate(profile, &with_keeps(plan)).ok());
    let mut points: Vec<_> = legal.map(|found| (found.peak_bytes, found.step_ns)).collect();
    points.sort_unstable();
    let mut frontier: Vec<(Bytes, Nanos)> = Vec::new();
    for point in points {
        if frontier.last().is_none_or(|last| point.1 < last.1) {
            frontier.push(point);
        }
    }
    frontier
}

fn short_chain(stages: std::ops::Range<usize>) -> impl Strategy<Value = Profile> {
    let pinned = proptest::collection::vec(0..6u8, 8);
    (0..50u64, proptest::collection::vec(any_stage(), stages), pinned).prop_map(
        |(input, mut stages, pinned)| {
            for (stage, roll) in stages.iter_mut().zip(pinned) {
                stage.pinned = roll == 0;
            }
            Profile::new("short", "none", Bytes::new(input), passing(input, stages)).unwrap()
        },
    )
}

fn check_against_exhaustive(profile: &Profile) {
    let expected = exhaustive_frontier(profile);
    let frontier = optimal::frontier(profile, &Request::default()).unwrap();
    let found: Vec<_> = frontier.points().iter().map(|point| (point.budget_bytes, point.step_ns)).collect();
    assert_eq!(found, expected);
    assert!(frontier.is_complete());
    let (smallest, _) = expected[0];
    assert_eq!(optimal::smallest_budget(profile), Ok(smallest));
    for (budget, time) in &expected {
        let plan = optimal::solve(profile, &Request::new(*budget)).unwrap();
        assert_eq!(plan.predicted.step_ns, *time, "at {} bytes", budget.get());
        assert_eq!(plan.predicted.lower_bound_ns, *time);
        assert_eq!(plan.status, Status::Optimal);
        assert!(plan.predicted.peak_bytes <= *budget);
        assert_eq!(frontier.plan(profile, *budget).unwrap().predicted.step_ns, *time);
    }
    if let Some(below) = smallest.get().checked_sub(1) {
        let error = optimal::solve(profile, &Request::new(Bytes::new(below))).unwrap_err();
        assert_eq!(
            error,
            SolveError::BudgetTooSmall {
                solver: "optimal",
                budget_bytes: Bytes::new(below),
                smallest_bytes: smallest
            }
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn the_optimum_is_what_exhaustive_search_finds(profile in short_chain(1..6)) {
        check_against_exhaustive(&profile);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn the_optimum_of_seven_stages_is_what_exhaustive_search_finds(profile in short_chain(7..8)) {
        check_against_exhaustive(&profile);
    }
}

/// Stages of a few kinds or of many, with sizes as models have them.
fn long_chain(stages: std::ops::Range<usize>) -> impl Strategy<Value = Profile> {
    let kind = (1..9_000u64, 0..90_000u64, 1..900_000u64, 1..900_000u64, proptest::option::of(20..90u64));
    (proptest::collection::vec(kind, 1..90), stages, 0..7_000u64).prop_map(|(kinds, count, input)| {
        let stage = |index: usize| {
            let (output, own, forward, backward, light) = kinds[index * 7 % kinds.len()];
            let light = light.map(|percent| TapeOption {
                name: name("light"),
                tape_bytes: Bytes::new(output + own * percent / 100),
                forward_ns: Nanos::new(forward),
                backward_ns: Nanos::new(backward + forward / 5),
                taped_extra_bytes: percent.is_multiple_of(3).then(|| Bytes::new(own / 4)),
                backward_extra_bytes: percent.is_multiple_of(2).then(|| Bytes::new(own / 5)),
            });
            StageProfile {
                name: format!("stage.{index}"),
                output_bytes: Bytes::new(output),
                tape_bytes: Bytes::new(output + own),
                forward_ns: Nanos::new(forward),
                backward_ns: Nanos::new(backward),
                forward_extra_bytes: Bytes::new(own / 9),
                parameter_gradient_bytes: Bytes::new(own / 11),
                options: light.into_iter().collect(),
                ..StageProfile::default()
            }
        };
        Profile::new("long", "none", Bytes::new(input), (0..count).map(stage).collect()).unwrap()
    })
}

fn check_plan(profile: &Profile, plan: &Plan, budget: Bytes) {
    let (_, found) = plan.judge(profile).unwrap();
    assert!(found.peak_bytes <= budget, "{} over {}", found.peak_bytes.get(), budget.get());
    assert!(plan.predicted.lower_bound_ns <= plan.predicted.step_ns);
    match plan.status {
        Status::Optimal => assert_eq!(plan.predicted.lower_bound_ns, plan.predicted.step_ns),
        Status::Feasible(gap) => assert!(gap.get() > 0.0 && gap.get() < 1.0),
        _ => panic!("{:?}", plan.status),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn long_chains_are_planned_within_the_budget_and_close_to_the_bound(
        profile in long_chain(60..160), part in 1..100u64,
    ) {
        let smallest = optimal::smallest_budget(&profile).unwrap().get();
        let all = Plan::by_rule(&profile, Rule::StoreAll, None).unwrap().predicted.peak_bytes.get();
        let budget = Bytes::new(smallest + (all - smallest) * part / 100);
        let mut request = Request::new(budget);
        request.time_limit = Duration::from_secs(60);
        let plan = optimal::solve(&profile, &request).unwrap();
        check_plan(&profile, &plan, budget);
        if let Status::Feasible(gap) = plan.status {
            prop_assert!(gap <= Gap::ONE_PERCENT, "{:?}", gap);
        }
        // The same input gives the same plan.
        prop_assert_eq!(optimal::solve(&profile, &request).unwrap(), plan);
    }

    #[test]
    fn the_frontier_of_a_long_chain_is_monotone_and_its_ends_are_exact(profile in long_chain(60..120)) {
        let frontier = optimal::frontier(&profile, &Request::default()).unwrap();
        let points = frontier.points();
        for pair in points.windows(2) {
            prop_assert!(pair[0].budget_bytes < pair[1].budget_bytes);
            prop_assert!(pair[0].step_ns > pair[1].step_ns);
            prop_assert!(pair[0].lower_bound_ns >= pair[1].lower_bound_ns);
        }
        for point in points {
            prop_assert!(point.lower_bound_ns <= point.step_ns);
            let plan = frontier.plan(&profile, point.budget_bytes).unwrap();
            check_plan(&profile, &plan, point.budget_bytes);
            prop_assert!(plan.predicted.step_ns <= point.step_ns);
            prop_assert!(plan.predicted.lower_bound_ns >= point.lower_bound_ns.min(plan.predicted.step_ns));
        }
        let last = points[points.len() - 1];
        prop_assert_eq!(last.step_ns, profile.lower_bound());
        prop_assert_eq!(points[0].budget_bytes, optimal::smallest_budget(&profile).unwrap());
        let below = Bytes::new(points[0].budget_bytes.get() - 1);
        let refused = matches!(frontier.plan(&profile, below), Err(SolveError::BudgetTooSmall { .. }));
        prop_assert!(refused);
        prop_assert!(frontier.at(below).is_none());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn one_more_option_never_hurts(profile in short_chain(1..9), part in 0..100u64, at in 0..9usize, tape in 0..100u64) {
        let smallest = optimal::smallest_budget(&profile).unwrap().get();
        let all = Plan::by_rule(&profile, Rule::StoreAll, None).unwrap().predicted.peak_bytes.get();
        let request = Request::new(Bytes::new(smallest.max(smallest + (all.max(smallest) - smallest) * part / 100)));
        let plan = optimal::solve(&profile, &request).unwrap();
        let mut stages = profile.stages().to_vec();
        let at = at % stages.len();
        let stage = &mut stages[at];
        let own = stage.tape_bytes.get() - stage.output_bytes.get();
        stage.options.push(TapeOption {
            name: name("another"),
            tape_bytes: Bytes::new(stage.output_bytes.get() + own * tape / 100),
            forward_ns: stage.forward_ns,
            backward_ns: Nanos::new(stage.backward_ns.get() + 5),
            taped_extra_bytes: None,
            backward_extra_bytes: None,
        });
        let with = Profile::new("with", "none", profile.input_bytes(), stages).unwrap();
        let better = optimal::solve(&with, &request).unwrap();
        prop_assert!(better.predicted.step_ns <= plan.predicted.step_ns);
    }

    #[test]
    fn a_margin_leaves_room_for_everything_to_be_larger(profile in short_chain(1..9), percent in 0..60u32) {
        let margin = f64::from(percent) / 100.0;
        let all = Plan::by_rule(&profile, Rule::StoreAll, None).unwrap().predicted.peak_bytes;
        match optimal::solve(&profile, &Request::new(all).margin(margin)) {
            Ok(plan) => {
                prop_assert!(plan.predicted.peak_bytes.get() as f64 * (1.0 + margin) <= all.get() as f64 + 1e-6);
                prop_assert_eq!(plan.budget_bytes, Some(all));
            }
            Err(error) => prop_assert!(matches!(error, SolveError::BudgetTooSmall { .. }), "{}", error),
        }
    }
}

#[test]
fn a_thousand_equal_blocks_are_planned_to_within_a_percent() {
    let profile = uniform(1_000, 1 << 18, 33 << 18);
    for percent in [3, 10, 40, 80] {
        let all = 33 * (1u64 << 18) * 1_000;
        let budget = Bytes::new(all / 100 * percent);
        let plan = optimal::solve(&profile, &Request::new(budget)).unwrap();
        check_plan(&profile, &plan, budget);
        match plan.status {
            Status::Feasible(gap) => assert!(gap <= Gap::ONE_PERCENT, "{percent}%: {gap:?}"),
            status => assert_eq!(status, Status::Optimal),
        }
    }
}

/// Every point of a frontier lies within a percent of what is possible, and its plan takes what it says.
fn check_frontier(profile: &Profile) {
    let request = Request { time_limit: Duration::from_secs(300), ..Request::default() };
    let frontier = optimal::frontier(profile, &request).unwrap();
    assert!(frontier.is_complete());
    for point in frontier.points() {
        let gap = Gap::between(point.lower_bound_ns, point.step_ns);
        assert!(gap <= Gap::ONE_PERCENT, "{gap:?} at {}", point.budget_bytes);
        let plan = frontier.plan(profile, point.budget_bytes).unwrap();
        check_plan(profile, &plan, point.budget_bytes);
        assert!(plan.predicted.step_ns <= point.step_ns);
    }
    assert_eq!(frontier.points()[0].budget_bytes, optimal::smallest_budget(profile).unwrap());
}

#[test]
fn a_thousand_equal_blocks_have_a_frontier_within_a_percent() {
    check_frontier(&random_chain::equal_blocks(1_000));
}

/// In the middle of this one's frontier the gap was up to 4%: groups of two stages do not fit blocks of five.
#[test]
fn a_gpt_in_parts_has_a_frontier_within_a_percent() {
    check_frontier(&random_chain::gpt_in_parts(24));
}

/// At its low end the gap was 48% with 500 such stages: what an action needs was rounded like what is held.
#[test]
fn stages_that_are_all_different_have_a_frontier_within_a_percent() {
    check_frontier(&random_chain::random_chain(120, 7));
}

/// A long chain is solved for each budget on grids of its own, and until plan and bound are within the gap: more budget may
/// come out dearer than less, but by no more than the gap. Nor is anything proven of more budget that a plan in less beats.
#[test]
fn the_cost_of_a_long_chain_rises_with_its_budget_by_no_more_than_the_gap() {
    for profile in
        [random_chain::random_chain(90, 5), random_chain::gpt_in_parts(12), random_chain::equal_blocks(200)]
    {
        let least = optimal::smallest_budget(&profile).unwrap();
        let all = Plan::by_rule(&profile, Rule::StoreAll, None).unwrap().predicted.peak_bytes;
        let mut fastest = Nanos::new(u64::MAX);
        let mut budget = least;
        while budget < all {
            let plan = optimal::solve(&profile, &Request::new(budget)).unwrap();
            check_plan(&profile, &plan, budget);
            assert!(plan.predicted.lower_bound_ns <= fastest, "{} at {budget}", profile.model());
            let gap = Gap::between(fastest.min(plan.predicted.step_ns), plan.predicted.step_ns);
            assert!(gap <= Gap::ONE_PERCENT, "{gap:?} at {budget}");
            fastest = fastest.min(plan.predicted.step_ns);
            budget = Bytes::new(budget.get() + budget.get() / 7);
        }
        // What fits everything is never dearer than anything.
        let plan = optimal::solve(&profile, &Request::new(all)).unwrap();
        assert_eq!(plan.predicted.step_ns, profile.lower_bound());
    }
}

/// The first grid was made whatever the limit: for these it would take minutes.
#[test]
fn a_tiny_time_limit_is_kept_by_a_thousand_stages_that_are_all_different() {
    let profile = random_chain::random_chain(1_000, 3);
    let least = optimal::smallest_budget(&profile).unwrap();
    let all = Plan::by_rule(&profile, Rule::StoreAll, None).unwrap().predicted.peak_bytes;
    let hasty = Request { time_limit: Duration::from_millis(10), ..Request::default() };
    // What does not look at the clock is the smallest budget of each cell; an unoptimised build takes a while for it.
    let most = Duration::from_secs(20);
    for budget in [least, Bytes::new(all.get() / 10), Bytes::new(all.get() / 2)] {
        let start = Instant::now();
        let plan =
            optimal::solve(&profile, &Request { budget_bytes: Some(budget), ..hasty.clone() }).unwrap();
        assert!(start.elapsed() < most, "{:?}", start.elapsed());
        check_plan(&profile, &plan, budget);
    }
    let start = Instant::now();
    let frontier = optimal::frontier(&profile, &hasty).unwrap();
    assert!(start.elapsed() < most, "{:?}", start.elapsed());
    assert!(!frontier.is_complete());
    let points = frontier.points();
    assert_eq!(points[0].budget_bytes, least);
    assert_eq!(points[points.len() - 1].step_ns, profile.lower_bound());
    for point in points {
        let plan = frontier.plan(&profile, point.budget_bytes).unwrap();
        check_plan(&profile, &plan, point.budget_bytes);
        assert!(
            plan.predicted.step_ns <= point.step_ns
                && plan.predicted.lower_bound_ns >= point.lower_bound_ns.min(plan.predicted.step_ns)
        );
    }
}

#[test]
fn odd_chains_have_an_answer_or_an_error_that_says_why() {
    let solve = |profile: &Profile, budget: u64| optimal::solve(profile, &Request::new(Bytes::new(budget)));
    // One stage.
    let one = uniform(1, 3, 10);
    assert_eq!(optimal::smallest_budget(&one), Ok(Bytes::new(16)));
    assert_eq!(solve(&one, 16).unwrap().predicted.forwards, 1);
    assert!(
        matches!(solve(&one, 0), Err(SolveError::BudgetTooSmall { smallest_bytes, .. }) if smallest_bytes.get() == 16)
    );
    // Nothing weighs anything, nothing takes any time.
    let stage = StageProfile { name: "nothing".to_owned(), ..StageProfile::default() };
    let nothing = Profile::new("nothing", "none", Bytes::ZERO, vec![stage; 300]).unwrap();
    assert_eq!(solve(&nothing, 0).unwrap().status, Status::Optimal);
    // Sizes near the end of what can be written down.
    let huge = uniform(7, 1 << 57, 1 << 60);
    assert!(matches!(solve(&huge, 1 << 60), Err(SolveError::BudgetTooSmall { .. })));
    assert_eq!(solve(&huge, 3 << 60).unwrap().predicted.peak_bytes.get() >> 60, 2);
    let huge = uniform(120, 1 << 50, 1 << 56);
    check_plan(&huge, &solve(&huge, 1 << 60).unwrap(), Bytes::new(1 << 60));
    // No budget.
    let error = optimal::solve(&one, &Request::with_slots(3)).unwrap_err();
    assert_eq!(error.to_string(), "`optimal` needs a budget");
}

#[test]
fn a_hundred_thousand_stages_are_planned_in_groups_or_refused() {
    let long = uniform(100_000, 1 << 18, 33 << 18);
    let budget = Bytes::new(33 * (1u64 << 18) * 30_000);
    let plan = optimal::solve(&long, &Request::new(budget)).unwrap();
    check_plan(&long, &plan, budget);
    // Where no groups fit, solvers that need no table may have a plan; and one byte below all of them there is none.
    let tight = Bytes::mebibytes(300);
    let plan = optimal::solve(&long, &Request::new(tight)).unwrap();
    check_plan(&long, &plan, tight);
    // The smallest budget that is named has a plan, which was one that could not be held.
    let patient =
        |budget| Request { time_limit: Duration::from_secs(300), ..Request::new(Bytes::new(budget)) };
    let error = optimal::solve(&long, &patient(0)).unwrap_err();
    let SolveError::BudgetTooSmall { smallest_bytes, .. } = error else { panic!("{error}") };
    let plan = optimal::solve(&long, &patient(smallest_bytes.get())).unwrap();
    check_plan(&long, &plan, smallest_bytes);
}

/// Budgets that nothing fits were looked at for 20 to 30 s, and pipelines for more than a minute, whatever the time limit said.
#[test]
fn a_hundred_thousand_stages_keep_to_the_time_limit_where_nothing_fits() {
    let long = uniform(100_000, 1 << 18, 33 << 18);
    let hasty = |bytes| Request { time_limit: Duration::from_secs(2), ..Request::new(bytes) };
    let start = Instant::now();
    // Which of the two depends on the machine.
    let error = optimal::solve(&long, &hasty(Bytes::mebibytes(8))).unwrap_err();
    assert!(matches!(error, SolveError::BudgetTooSmall { .. } | SolveError::TooLong { .. }), "{error}");
    for solve in [revolve::solve, mixed::solve, online::solve] {
        let error = solve(&long, &hasty(Bytes::mebibytes(8))).unwrap_err();
        assert!(matches!(error, SolveError::BudgetTooSmall { .. } | SolveError::TooLong { .. }), "{error}");
    }
    let error = pipeline::plan(&long, 3, 3, &hasty(Bytes::mebibytes(8))).unwrap_err();
    assert!(matches!(error, PipelineError::Solve { rank: 0, .. }), "{error}");
    // A step of the ladder is not given up halfway.
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

/// Just above the longest chain whose every cell is looked at, plans were refused that simpler solvers have.
#[test]
fn chains_in_groups_are_not_slower_than_revolve_and_not_refused_where_it_has_a_plan() {
    let long = uniform(2_001, 1 << 20, 32 << 20);
    for mebibytes in [54, 134, 200, 700] {
        let request = Request::new(Bytes::mebibytes(mebibytes));
        let plan = optimal::solve(&long, &request).unwrap();
        check_plan(&long, &plan, Bytes::mebibytes(mebibytes));
        let revolve = revolve::solve(&long, &request).unwrap();
        assert!(plan.predicted.step_ns <= revolve.predicted.step_ns, "{mebibytes} MiB");
    }
    let frontier = optimal::frontier(&long, &Request::default()).unwrap();
    for pair in frontier.points().windows(2) {
        assert!(pair[0].budget_bytes < pair[1].budget_bytes && pair[0].step_ns > pair[1].step_ns);
    }
    assert!(frontier.points()[0].budget_bytes < Bytes::mebibytes(40));
    frontier.plan(&long, frontier.points()[0].budget_bytes).unwrap();
}

/// Each room of a very long chain was solved anew, for as long as that took: 58 s where 2 s were asked for.
#[test]
fn the_frontier_of_a_hundred_thousand_stages_keeps_its_time_limit_and_says_that_it_is_not_complete() {
    let long = uniform(100_000, 1 << 18, 33 << 18);
    let request = Request { time_limit: Duration::from_secs(4), ..Request::default() };
    let start = Instant::now();
    let frontier = optimal::frontier(&long, &request).unwrap();
    let took = start.elapsed();
    assert!(took < request.time_limit.mul_f64(1.5), "{took:?}");
    assert!(!frontier.is_complete());
    let points = frontier.points();
    // Not only the plan that keeps everything, which takes no time to find.
    assert!(points.len() > 20, "{}", points.len());
    assert_eq!(points[points.len() - 1].step_ns, long.lower_bound());
    for pair in points.windows(2) {
        assert!(pair[0].budget_bytes < pair[1].budget_bytes && pair[0].step_ns > pair[1].step_ns);
        assert!(pair[0].lower_bound_ns <= pair[0].step_ns);
    }
    for point in [&points[0], &points[points.len() / 2]] {
        let plan = frontier.plan(&long, point.budget_bytes).unwrap();
        check_plan(&long, &plan, point.budget_bytes);
        assert!(plan.predicted.step_ns <= point.step_ns);
    }
}

#[test]
fn a_frontier_in_groups_is_complete_when_there_is_time_and_every_point_has_its_plan() {
    let long = uniform(2_001, 1 << 18, 33 << 18);
    let within = |seconds| Request { time_limit: Duration::from_secs(seconds), ..Request::default() };
    // A first look is had in no time, and it is known to be one.
    let hasty = optimal::frontier(&long, &within(0)).unwrap();
    assert!(!hasty.is_complete() && hasty.points().len() > 1);
    let frontier = optimal::frontier(&long, &within(300)).unwrap();
    assert!(frontier.is_complete());
    assert!(frontier.points().len() > hasty.points().len());
    assert!(frontier.points()[0].budget_bytes < hasty.points()[0].budget_bytes);
    for point in frontier.points() {
        let plan = frontier.plan(&long, point.budget_bytes).unwrap();
        check_plan(&long, &plan, point.budget_bytes);
        assert!(plan.predicted.step_ns <= point.step_ns, "at {}", point.budget_bytes);
    }
}
