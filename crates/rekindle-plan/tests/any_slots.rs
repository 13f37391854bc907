//! What must hold of every solver that counts slots, on any chain.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod chains;
mod levels;

use std::time::Duration;

use chains::{any_profile, name, text, uniform};
use levels::{disk, uniform_with};
use proptest::prelude::*;
use rekindle_plan::rules::MOST_ACTIONS;
use rekindle_plan::solvers::multi_level::{Costs, disk_revolve, h_revolve, solve_disk_revolve};
use rekindle_plan::solvers::online::Online;
use rekindle_plan::solvers::{mixed, multi_level, online, revolve};
use rekindle_plan::{
    Action, Bytes, Gap, Nanos, Plan, PlanError, Profile, Request, RuleError, SolveError, Stage, Status, Tier,
};

type Solver = (&'static str, fn(&Profile, &Request) -> Result<Plan, SolveError>);

const SOLVERS: [Solver; 5] = [
    ("revolve", revolve::solve),
    ("mixed", mixed::solve),
    ("online", online::solve),
    ("multi-level", multi_level::solve),
    ("disk-revolve", solve_disk_revolve),
];

fn gap_of(plan: &Plan) -> f64 {
    let (step, lower) = (plan.predicted.step_ns.get() as f64, plan.predicted.lower_bound_ns.get() as f64);
    (step - lower) / step
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn slots_on_any_chain(profile in any_profile(), slots in 1..14u32) {
        for (solver, solve) in SOLVERS {
            let request = Request::with_slots(slots);
            let plan = solve(&profile, &request).unwrap();
            prop_assert_eq!(&plan.solver, solver);
            prop_assert_eq!(solve(&profile, &request).unwrap(), plan.clone());
            prop_assert!(plan.judge(&profile).is_ok());
            let more = solve(&profile, &Request::with_slots(slots + 1)).unwrap();
            if matches!(solver, "revolve" | "mixed") {
                prop_assert!(more.predicted.forwards <= plan.predicted.forwards);
            }
            match plan.status {
                Status::Feasible(gap) => prop_assert_eq!(gap, Gap::new(gap_of(&plan)).unwrap()),
                Status::Optimal => {
                    let same = profile.stages().windows(2).all(|pair| pair[0].forward_ns == pair[1].forward_ns);
                    prop_assert!(same || plan.predicted.step_ns == plan.predicted.lower_bound_ns);
                }
                other => prop_assert!(false, "{}", other),
            }
            // Both given: the slots count, and the budget refuses.
            let peak = plan.predicted.peak_bytes;
            let both = Request { slots: Some(slots), ..Request::new(peak) };
            prop_assert_eq!(solve(&profile, &both).unwrap().actions, plan.actions);
            if let Some(less) = peak.checked_sub(Bytes::new(1)) {
                let both = Request { slots: Some(slots), ..Request::new(less) };
                let refused = solve(&profile, &both);
                let over = matches!(refused, Err(SolveError::Refused(PlanError::OverBudget { .. })));
                prop_assert!(over);
            }
        }
    }

    #[test]
    fn budgets_on_any_chain(profile in any_profile(), budgets in proptest::collection::vec(0..2500u64, 2)) {
        for (solver, solve) in SOLVERS {
            let found = [budgets.iter().min(), budgets.iter().max()].map(|budget| {
                let budget = Bytes::new(*budget.unwrap());
                (budget, solve(&profile, &Request::new(budget)))
            });
            for (budget, found) in &found {
                match found {
                    Ok(plan) => {
                        prop_assert!(plan.predicted.peak_bytes <= *budget);
                        prop_assert_eq!(plan.budget_bytes, Some(*budget));
                        prop_assert!(plan.judge(&profile).is_ok());
                    }
                    Err(SolveError::BudgetTooSmall { smallest_bytes, .. }) => {
                        prop_assert!(smallest_bytes > budget);
                        let plan = solve(&profile, &Request::new(*smallest_bytes)).unwrap();
                        prop_assert_eq!(plan.predicted.peak_bytes, *smallest_bytes);
                    }
                    Err(error) => prop_assert!(false, "{}: {}", solver, error),
                }
            }
            if let [(_, Ok(less)), (_, more)] = &found {
                let more = more.as_ref().unwrap();
                prop_assert!(more.predicted.step_ns <= less.predicted.step_ns, "{}", solver);
            }
        }
    }

    #[test]
    fn a_margin_leaves_room(profile in any_profile(), percent in 0..100u32) {
        for (_, solve) in SOLVERS {
            let budget = solve(&profile, &Request::with_slots(3)).unwrap().predicted.peak_bytes;
            let request = Request::new(budget).margin(f64::from(percent) / 100.0);
            if let Ok(plan) = solve(&profile, &request) {
                prop_assert!(plan.predicted.peak_bytes <= request.usable_bytes());
            }
        }
    }
}

#[test]
fn pinned_stages_are_refused_when_the_plan_would_run_them_again() {
    let chain = uniform(4, 1, 2);
    let pin = |pinned: usize| {
        let mut stages = chain.stages().to_vec();
        stages[pinned].pinned = true;
        let tier = Tier {
            name: name("host"),
            capacity_bytes: Bytes::new(1),
            write_bytes_per_second: 1,
            read_bytes_per_second: 1,
        };
        Profile::new("pinned", "none", Bytes::new(1), stages)
            .unwrap()
            .with_places(vec![tier], vec![])
            .unwrap()
    };
    for (solver, solve) in SOLVERS {
        let by_bytes = (solver != "mixed").then(|| Request::new(Bytes::new(6)));
        for request in by_bytes.into_iter().chain([Request::with_slots(1)]) {
            let error = solve(&pin(1), &request).unwrap_err();
            let stage_name = "stage.2".to_owned();
            assert_eq!(error, SolveError::Pinned { solver, stage: Stage::new(2), name: stage_name });
        }
        // The last stage is taped the first time it runs.
        assert!(solve(&pin(3), &Request::with_slots(3)).is_ok());
    }
    // With a slot for every tape nothing runs twice, and the budget that allows it is found.
    assert!(mixed::solve(&pin(1), &Request::with_slots(3)).is_ok());
    assert!(mixed::solve(&pin(1), &Request::new(Bytes::new(100))).is_ok());
}

#[test]
fn what_cannot_be_asked() {
    let profile = uniform_with(&Costs { forward: 1, backward: 1, slots: 0, levels: vec![disk(0, 1, 1)] }, 3);
    for (solver, solve) in SOLVERS {
        let needed = "slots or a budget in bytes";
        assert_eq!(solve(&profile, &Request::default()), Err(SolveError::NothingToMeet { solver, needed }));
        let error = solve(&profile, &Request::with_slots(0)).unwrap_err();
        if solver == "disk-revolve" {
            // It would put everything into the tier, which has no room.
            assert!(matches!(error, SolveError::NoTier { .. }));
            continue;
        }
        assert_eq!(error, SolveError::TooFewSlots { solver, slots: 0, least: 1, stages: 3 });
        let error = solve(&profile, &Request::new(Bytes::ZERO)).unwrap_err();
        assert!(
            matches!(error, SolveError::BudgetTooSmall { smallest_bytes, .. } if smallest_bytes > Bytes::ZERO)
        );
    }
    let none: Result<Vec<Action>, SolveError> =
        Err(SolveError::Refused(PlanError::Rule(RuleError::NoStages)));
    assert_eq!(revolve::actions(0, 3), none);
    assert_eq!(mixed::actions(0, 3), none);
    assert_eq!(online::actions(0, 3), none);
    assert_eq!((revolve::forwards(0, 3), mixed::forwards(0, 3)), (None, None));
    let costs = Costs { forward: 1, backward: 1, slots: 1, levels: Vec::new() };
    assert_eq!(h_revolve(0, &costs).map(|found| found.actions), none);
    assert!(matches!(disk_revolve(3, &costs), Err(SolveError::NoTier { .. })));
    assert!(matches!(
        multi_level::solve(&uniform(3, 1, 1), &Request::with_slots(1)),
        Err(SolveError::NoTier { .. })
    ));
    assert!(matches!(Online::new(0), Err(SolveError::TooFewSlots { .. })));
    assert!(Online::new(3).unwrap().finish_late().is_err());
}

#[test]
fn one_stage_needs_no_slot() {
    let costs = Costs { forward: 1, backward: 1, slots: 0, levels: vec![disk(0, 1, 1)] };
    let profile = uniform_with(&costs, 1);
    for (_, solve) in SOLVERS {
        for request in [Request::with_slots(0), Request::with_slots(5), Request::new(Bytes::new(3))] {
            let plan = solve(&profile, &request).unwrap();
            assert_eq!(text(&plan.actions), "tape 1\nbackward 1");
            assert_eq!(plan.status, Status::Optimal);
        }
    }
}

#[test]
fn no_sizes_and_no_times_are_planned_like_any_others() {
    let tier = Tier {
        name: name("host"),
        capacity_bytes: Bytes::ZERO,
        write_bytes_per_second: 1,
        read_bytes_per_second: 1,
    };
    let names = (1..=30).map(|number| number.to_string());
    let profile = Profile::unmeasured(names, &[]).unwrap().with_places(vec![tier], vec![]).unwrap();
    for (_, solve) in SOLVERS {
        assert!(solve(&profile, &Request::new(Bytes::ZERO)).is_ok());
        assert!(solve(&profile, &Request::with_slots(u32::MAX)).is_ok());
    }
}

/// Whatever is asked of a chain this long, there is an answer or a typed error, and soon.
#[test]
fn a_hundred_thousand_stages() {
    const STAGES: usize = 100_000;
    let start = std::time::Instant::now();
    for slots in [1, 2, 3, 10, 1_000, 60_000, u32::MAX] {
        let stages = Some(STAGES as u64);
        for found in
            [revolve::actions(STAGES, slots), mixed::actions(STAGES, slots), online::actions(STAGES, slots)]
        {
            match found {
                Ok(actions) => assert!(actions.len() <= MOST_ACTIONS),
                Err(error) => assert!(matches!(error, SolveError::TooLong { stages: STAGES, .. }), "{error}"),
            }
        }
        assert!(revolve::forwards(STAGES, slots) >= stages && mixed::forwards(STAGES, slots) >= stages);
    }
    for stages in [MOST_ACTIONS, u32::MAX as usize, 1 << 32, usize::MAX] {
        for slots in [1, 2, 3, u32::MAX] {
            assert!(matches!(revolve::actions(stages, slots), Err(SolveError::TooLong { .. })));
            assert!(matches!(mixed::actions(stages, slots), Err(SolveError::TooLong { .. })));
            assert!(matches!(online::actions(stages, slots), Err(SolveError::TooLong { .. })));
        }
        let costs = Costs { forward: 1, backward: 1, slots: 1, levels: vec![disk(1, 1, 1)] };
        assert!(matches!(h_revolve(stages, &costs), Err(SolveError::TooLong { .. })));
    }
    let costs = Costs { forward: 10, backward: 20, slots: 10, levels: vec![disk(5_000, 50, 50)] };
    let profile = uniform_with(&costs, STAGES);
    for (_, solve) in SOLVERS {
        let plan = solve(&profile, &Request::with_slots(100)).unwrap();
        assert!(plan.actions.len() <= MOST_ACTIONS);
    }
    let patient =
        |budget| Request { time_limit: Duration::from_secs(300), ..Request::new(Bytes::new(budget)) };
    for solve in [revolve::solve, mixed::solve] {
        let plan = solve(&profile, &patient(2_000)).unwrap();
        assert_eq!(plan.predicted.peak_bytes, Bytes::new(2_000));
    }
    let profile = uniform_with(&costs, 10_000);
    for (_, solve) in SOLVERS {
        let plan = solve(&profile, &patient(200)).unwrap();
        assert!(plan.predicted.peak_bytes <= Bytes::new(200));
    }
    // Far more than it takes, so that a busy machine does not fail it.
    assert!(start.elapsed().as_secs() < 300, "{:?}", start.elapsed());
}

#[test]
fn sizes_and_times_near_the_end_of_64_bits() {
    let chain = uniform(3, 1, 1);
    let mut stages = chain.stages().to_vec();
    for stage in &mut stages {
        stage.forward_ns = Nanos::new(1 << 61);
        stage.backward_ns = Nanos::new(1 << 60);
        stage.output_bytes = Bytes::new(1 << 60);
        stage.tape_bytes = Bytes::new(1 << 61);
    }
    let tier = |speed| Tier {
        name: name("host"),
        capacity_bytes: Bytes::MAX,
        write_bytes_per_second: speed,
        read_bytes_per_second: speed,
    };
    for speed in [1, u64::MAX] {
        let profile = Profile::new("large", "none", Bytes::new(1 << 60), stages.clone()).unwrap();
        let profile = profile.with_places(vec![tier(speed)], vec![]).unwrap();
        for (_, solve) in SOLVERS {
            for request in [Request::with_slots(1), Request::with_slots(2), Request::new(Bytes::MAX)] {
                // A plan, or one of the typed errors: no panic, no wrapped number.
                let _ = solve(&profile, &request);
            }
        }
    }
    let costs =
        Costs { forward: u64::MAX, backward: u64::MAX, slots: 2, levels: vec![disk(3, u64::MAX, u64::MAX)] };
    assert!(!h_revolve(9, &costs).unwrap().optimal);
}
