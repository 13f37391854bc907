//! The optimum with tiers and codecs of chains that are too long for exhaustive search.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod chains;

use chains::{LEVELS, any_places, name};
use proptest::prelude::*;
use rekindle_plan::solvers::optimal;
use rekindle_plan::{Bytes, Codec, Nanos, Profile, Request, SolveError, StageProfile, Status, Tier};

#[test]
fn long_chains_with_a_tier_recompute_less() {
    let profile = chains::uniform(48, 1 << 20, 12 << 20);
    let budget = Request::new(Bytes::mebibytes(60));
    let without = optimal::solve(&profile, &budget).unwrap();
    let tier = Tier {
        name: name("host"),
        capacity_bytes: Bytes::mebibytes(1 << 20),
        write_bytes_per_second: u64::MAX,
        read_bytes_per_second: u64::MAX,
    };
    let profile = profile.with_places(vec![tier], vec![]).unwrap();
    let with = optimal::solve(&profile, &budget).unwrap();
    assert!(with.predicted.step_ns < without.predicted.step_ns);
    assert!(with.predicted.lower_bound_ns <= with.predicted.step_ns);
    assert!(with.predicted.peak_bytes <= Bytes::mebibytes(60));
    let frontier = optimal::frontier(&profile, &Request::default()).unwrap();
    for pair in frontier.points().windows(2) {
        assert!(pair[0].budget_bytes < pair[1].budget_bytes && pair[0].step_ns > pair[1].step_ns);
        frontier.plan(&profile, pair[0].budget_bytes).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// Beside a tier, what is solved exactly was only asked at budgets 5% apart; and below the first point a budget was named
    /// that there is no need for.
    #[test]
    fn a_tier_makes_no_budget_of_a_frontier_slower(profile in any_places(9..14)) {
        let chain = Profile::new("m", "d", profile.input_bytes(), profile.stages().to_vec()).unwrap();
        let without = optimal::frontier(&chain, &Request::default()).unwrap();
        let with = optimal::frontier(&profile, &Request::default()).unwrap();
        for point in without.points() {
            let found = with.at(point.budget_bytes).map(|found| found.step_ns);
            prop_assert!(found.is_some_and(|found| found <= point.step_ns), "{point:?}: {found:?}");
        }
        let first = with.points()[0].budget_bytes;
        let below = Bytes::new(first.get() - 1);
        let error = with.plan(&profile, below).unwrap_err();
        let named = matches!(error, SolveError::BudgetTooSmall { smallest_bytes, .. } if smallest_bytes == first);
        prop_assert!(named, "{error}, but the first point is {first}");
    }
}

#[test]
fn a_budget_that_only_single_stages_meet_is_not_refused_beside_a_tier() {
    // In groups of two, 33 stages need 6,000 bytes.
    let tier = |capacity| Tier {
        name: name("host"),
        capacity_bytes: Bytes::new(capacity),
        write_bytes_per_second: 1_000_000_000,
        read_bytes_per_second: 1_000_000_000,
    };
    for capacity in [1_000, 5_000, 1 << 40] {
        let profile = chains::uniform(33, 1_000, 3_000).with_places(vec![tier(capacity)], vec![]).unwrap();
        let smallest = optimal::smallest_budget(&profile).unwrap();
        assert_eq!(smallest, Bytes::new(5_000));
        assert_eq!(optimal::solve(&profile, &Request::new(smallest)).unwrap().predicted.peak_bytes, smallest);
        let error = optimal::solve(&profile, &Request::new(Bytes::new(4_999))).unwrap_err();
        let named =
            matches!(error, SolveError::BudgetTooSmall { smallest_bytes, .. } if smallest_bytes == smallest);
        assert!(named, "{error}");
        let frontier = optimal::frontier(&profile, &Request::default()).unwrap();
        assert_eq!(frontier.points()[0].budget_bytes, smallest);
        frontier.plan(&profile, smallest).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5))]

    /// Long chains are taken in groups, which can be far slower than what the solver of uniform chains finds.
    #[test]
    fn beside_a_tier_nothing_is_slower_than_multi_level_nor_refused_where_it_has_a_plan(
        profile in any_places(33..70),
    ) {
        let frontier = optimal::frontier(&profile, &Request::default()).unwrap();
        for (slots, solve) in [0, 2, 12].into_iter().flat_map(|slots| LEVELS.map(|solve| (slots, solve))) {
            let Ok(level) = solve(&profile, &Request::with_slots(slots)) else { continue };
            let budget = level.predicted.peak_bytes;
            let plan = optimal::solve(&profile, &Request::new(budget)).unwrap();
            // A plan that is known to be within a percent of every other is good enough.
            let close = matches!(plan.status, Status::Feasible(gap) if gap <= Request::default().gap);
            prop_assert!(close || plan.predicted.step_ns <= level.predicted.step_ns);
            prop_assert!(plan.predicted.peak_bytes <= budget);
            prop_assert!(plan.predicted.lower_bound_ns <= plan.predicted.step_ns);
            let point = frontier.at(budget).map(|point| point.step_ns);
            prop_assert!(point.is_some_and(|point| point <= level.predicted.step_ns), "{:?}", point);
        }
    }
}

#[test]
fn many_places_keep_to_the_time_limit() {
    // 31 stages that are all different, two tiers that may be full and a codec: seconds of labels, half a second allowed.
    let stages = (0..31u64).map(|number| StageProfile {
        name: format!("stage.{number}"),
        output_bytes: Bytes::new(1_000 + 37 * number),
        tape_bytes: Bytes::new(9_000 + 101 * number),
        forward_ns: Nanos::new(1_000 + 13 * number),
        backward_ns: Nanos::new(2_000 + 17 * number),
        ..StageProfile::default()
    });
    let tier = |text, capacity, speed| Tier {
        name: name(text),
        capacity_bytes: Bytes::new(capacity),
        write_bytes_per_second: speed,
        read_bytes_per_second: speed,
    };
    let codec = Codec {
        name: name("half"),
        bytes_per_kibibyte: 512,
        compress_bytes_per_second: 1_000_000_000,
        restore_bytes_per_second: 1_000_000_000,
    };
    let profile = Profile::new("many", "none", Bytes::new(1_000), stages.collect()).unwrap();
    let tiers = vec![tier("host", 9_000, 1_000_000_000), tier("disk", 15_000, 200_000_000)];
    let profile = profile.with_places(tiers, vec![codec]).unwrap();
    let limit = std::time::Duration::from_millis(500);
    let start = std::time::Instant::now();
    let request = Request { time_limit: limit, ..Request::new(Bytes::new(40_000)) };
    optimal::solve(&profile, &request).unwrap();
    assert!(start.elapsed() < 8 * limit, "{:?}", start.elapsed());
}

/// The bound took the chain's input to be on the device while the last stage goes back, wherever it was moved.
#[test]
fn a_large_input_that_is_moved_leaves_its_room_to_tapes_and_to_the_bound() {
    let stages = (0..40).map(|number| StageProfile {
        name: format!("stage.{number}"),
        output_bytes: Bytes::new(10),
        tape_bytes: Bytes::new(100),
        forward_ns: Nanos::new(10),
        backward_ns: Nanos::new(20),
        ..StageProfile::default()
    });
    let tier = Tier {
        name: name("host"),
        capacity_bytes: Bytes::new(1 << 40),
        write_bytes_per_second: 1_000_000_000_000,
        read_bytes_per_second: 1_000_000_000_000,
    };
    let profile = Profile::new("wide", "none", Bytes::new(3_000), stages.collect()).unwrap();
    let profile = profile.with_places(vec![tier], vec![]).unwrap();
    let frontier = optimal::frontier(&profile, &Request::default()).unwrap();
    for budget in [3_500, 4_000, 5_000, 6_000].map(Bytes::new) {
        let plan = optimal::solve(&profile, &Request::new(budget)).unwrap();
        let other = frontier.plan(&profile, budget).unwrap();
        for (one, two) in [(&plan, &other), (&other, &plan)] {
            assert!(one.predicted.lower_bound_ns <= two.predicted.step_ns, "at {budget}");
        }
        // The input comes back for the first stage alone: some ten stages run again where forty would.
        assert!(plan.predicted.step_ns <= Nanos::new(1_300), "at {budget}: {}", plan.predicted.step_ns);
    }
}
