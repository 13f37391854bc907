//! Revolve, Mixed and Online: published figures, naive recurrences and exhaustive search as second opinions.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod chains;
mod levels;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use chains::{text, uniform};
use insta::assert_snapshot;
use levels::slots_used;
use proptest::prelude::*;
use rekindle_plan::solvers::online::Online;
use rekindle_plan::solvers::{mixed, online, revolve};
use rekindle_plan::{Action, Nanos, Profile, Request, Stage, Status, simulate};

/// C(slots + repeats, slots), the slow way.
fn binomial(slots: u64, repeats: u64) -> u64 {
    (1..=repeats).fold(1, |product, i| product * (slots + i) / i)
}

/// The least number of repetitions that reaches `stages`.
fn repeats(stages: u64, slots: u64) -> u64 {
    (0..).find(|repeats| binomial(slots, *repeats) >= stages).unwrap()
}

fn forwards(profile: &Profile, actions: &[Action]) -> u64 {
    simulate(profile, actions).unwrap().forwards
}

#[test]
fn the_published_totals_of_revolve_and_mixed() {
    for (stages, slots, by_revolve, by_mixed) in [
        (10, 3, 25, 19),
        (50, 5, 172, 138),
        (100, 10, 322, 237),
        (500, 20, 1747, 1284),
        (1000, 30, 3472, 2522),
    ] {
        let profile = uniform(stages, 1, 1);
        assert_eq!(revolve::forwards(stages, slots), Some(by_revolve));
        assert_eq!(mixed::forwards(stages, slots), Some(by_mixed));
        let request = Request::with_slots(slots);
        for (plan, total) in
            [(revolve::solve(&profile, &request), by_revolve), (mixed::solve(&profile, &request), by_mixed)]
        {
            let plan = plan.unwrap();
            assert_eq!(plan.predicted.forwards, total, "{stages} {slots} {}", plan.solver);
            assert_eq!(plan.status, Status::Optimal);
            // Times of 1 and 2.
            assert_eq!(plan.predicted.step_ns, Nanos::new(total + 2 * stages as u64));
        }
    }
}

#[test]
fn schedules_run_as_many_forwards_as_the_closed_forms_say_within_their_slots() {
    for stages in 1..=70 {
        let profile = uniform(stages, 1, 1);
        for slots in 1..=12 {
            let actions = revolve::actions(stages, slots).unwrap();
            assert_eq!(
                Some(forwards(&profile, &actions)),
                revolve::forwards(stages, slots),
                "{stages} {slots}"
            );
            assert!(slots_used(&actions) <= slots as usize, "{stages} {slots}");
            let actions = mixed::actions(stages, slots).unwrap();
            assert_eq!(
                Some(forwards(&profile, &actions)),
                mixed::forwards(stages, slots),
                "{stages} {slots}"
            );
            assert!(slots_used(&actions) <= slots as usize, "{stages} {slots}");
        }
    }
}

/// The fewest forwards found by trying everything: from each state, whatever may be done next. Boundaries are kept or
/// in hand; with `tapes`, slots hold tapes too.
fn by_trying_everything(stages: u32, slots: u32, tapes: bool) -> u64 {
    /// Bit sets of kept boundaries and of taped stages, the boundary in hand, the next stage to go back through.
    type State = (u32, u32, Option<u32>, u32);
    let mut cheapest: HashMap<State, u64> = HashMap::new();
    let start: State = (0, 0, Some(0), stages);
    let mut queue = BinaryHeap::from([Reverse((0u64, start))]);
    while let Some(Reverse((cost, state))) = queue.pop() {
        let (kept, taped, hand, back) = state;
        if back == 0 {
            return cost;
        }
        if cheapest.get(&state).is_some_and(|known| *known <= cost) {
            continue;
        }
        cheapest.insert(state, cost);
        let mut go = |more: u64, next: State| queue.push(Reverse((cost + more, next)));
        let free = kept.count_ones() + taped.count_ones() < slots;
        for boundary in (0..stages).filter(|boundary| kept & (1 << boundary) != 0) {
            go(0, (kept & !(1 << boundary), taped, hand, back));
            go(0, (kept, taped, Some(boundary), back));
            // Taken out of its slot for the last time.
            go(0, (kept & !(1 << boundary), taped, Some(boundary), back));
        }
        if taped & (1 << back) != 0 {
            go(0, (kept, taped & !(1 << back), None, back - 1));
        }
        let Some(at) = hand else { continue };
        if free {
            go(0, (kept | 1 << at, taped, hand, back));
        }
        if at + 1 == back {
            go(1, (kept, taped, None, back - 1));
        }
        if at + 1 < back {
            go(1, (kept, taped, Some(at + 1), back));
            if tapes && free && taped & (1 << (at + 1)) == 0 {
                go(1, (kept, taped | 1 << (at + 1), Some(at + 1), back));
            }
        }
    }
    u64::MAX
}

#[test]
fn no_schedule_of_up_to_8_stages_has_fewer_forwards_than_revolve() {
    for stages in 1..=8 {
        for slots in 1..=4 {
            let found = by_trying_everything(stages, slots, false);
            assert_eq!(revolve::forwards(stages as usize, slots), Some(found), "{stages} {slots}");
        }
    }
}

#[test]
fn no_schedule_of_up_to_8_stages_has_fewer_forwards_than_mixed() {
    for stages in 1..=8 {
        for slots in 1..=3 {
            let found = by_trying_everything(stages, slots, true);
            assert_eq!(mixed::forwards(stages as usize, slots), Some(found), "{stages} {slots}");
        }
    }
}

#[test]
fn revolve_equals_its_recurrence() {
    const MOST: usize = 160;
    let mut fewer = vec![u64::MAX / 4; MOST + 1];
    fewer[1] = 1;
    for slots in 1..=14 {
        let mut here = fewer.clone();
        for stages in 2..=MOST {
            let splits = (1..stages).map(|i| i as u64 + here[i] + fewer[stages - i]);
            here[stages] = splits.min().unwrap();
            assert_eq!(revolve::forwards(stages, slots), Some(here[stages]), "{stages} {slots}");
        }
        fewer = here;
    }
}

/// Maddison's recurrence as it stands, without the closed form.
#[test]
fn mixed_equals_its_recurrence() {
    const MOST: usize = 220;
    let mut fewer = vec![u64::MAX / 4; MOST + 1];
    fewer[1] = 1;
    for slots in 1..=20u32 {
        let mut here = fewer.clone();
        for stages in 2..=MOST {
            let restarts = (2..stages).map(|i| i as u64 + here[i] + fewer[stages - i]);
            here[stages] = restarts.chain([1 + fewer[stages - 1]]).min().unwrap();
            if stages <= slots as usize + 1 {
                assert_eq!(here[stages], stages as u64);
            }
            assert_eq!(mixed::forwards(stages, slots), Some(here[stages]), "{stages} {slots}");
        }
        fewer = here;
    }
}

#[test]
fn revolve_word_for_word() {
    assert_snapshot!(text(&revolve::actions(1, 3).unwrap()), @r"
    tape 1
    backward 1
    ");
    assert_snapshot!(text(&revolve::actions(5, 2).unwrap()), @r"
    keep x0
    forward 1
    forward 2
    forward 3
    keep x3
    forward 4
    tape 5
    backward 5
    tape 4
    drop x3
    backward 4
    forward 1
    keep x1
    forward 2
    tape 3
    backward 3
    tape 2
    drop x1
    backward 2
    tape 1
    drop x0
    backward 1
    ");
    // More slots than boundaries worth keeping: every boundary, as `every-1` does.
    assert_eq!(revolve::actions(5, 9), revolve::actions(5, 4));
    assert_eq!(
        revolve::actions(5, 4).unwrap(),
        "every-1".parse::<rekindle_plan::Rule>().unwrap().actions(5).unwrap()
    );
}

#[test]
fn mixed_word_for_word() {
    assert_snapshot!(text(&mixed::actions(1, 1).unwrap()), @r"
    tape 1
    backward 1
    ");
    assert_snapshot!(text(&mixed::actions(6, 2).unwrap()), @r"
    keep x0
    forward 1
    forward 2
    forward 3
    keep x3
    forward 4
    forward 5
    tape 6
    backward 6
    tape 4
    drop x3
    tape 5
    backward 5
    backward 4
    tape 1
    drop x0
    tape 2
    tape 3
    backward 3
    backward 2
    backward 1
    ");
    assert_eq!(mixed::actions(5, 4).unwrap(), rekindle_plan::rules::store_all(5));
}

#[test]
fn online_word_for_word() {
    assert_snapshot!(text(&online::actions(1, 1).unwrap()), @r"
    tape 1
    backward 1
    ");
    assert_snapshot!(text(&online::actions(7, 2).unwrap()), @r"
    keep x0
    forward 1
    keep x1
    forward 2
    forward 3
    drop x1
    keep x3
    forward 4
    forward 5
    forward 6
    tape 7
    backward 7
    forward 4
    forward 5
    tape 6
    backward 6
    forward 4
    tape 5
    backward 5
    tape 4
    drop x3
    backward 4
    forward 1
    keep x1
    forward 2
    tape 3
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
fn online_is_as_good_as_revolve_up_to_its_range_and_bounded_beyond() {
    for slots in 1..=7u64 {
        let range = (slots + 1) * (slots + 2) / 2;
        let profile = |stages: u64| uniform(stages as usize, 1, 1);
        for stages in 1..=(range + 60) {
            let actions = online::actions(stages as usize, slots as u32).unwrap();
            let found = forwards(&profile(stages), &actions);
            let offline = revolve::forwards(stages as usize, slots as u32).unwrap();
            assert!(slots_used(&actions) <= slots as usize);
            assert!(found >= offline, "{stages} {slots}: {found} {offline}");
            assert!(found <= (repeats(stages, slots) + 1) * stages, "{stages} {slots}: {found}");
            if stages <= range {
                assert_eq!(found, offline, "{stages} {slots}");
            }
        }
    }
}

/// What the bound on the forwards stands on: of the kept boundaries, the j-th has at most C(s - j + t - 1, s - j) stages
/// before the next.
#[test]
fn online_keeps_boundaries_where_every_end_is_cheap() {
    for slots in 1..=6u64 {
        let mut online = Online::new(slots as u32).unwrap();
        for stages in 1..=700u64 {
            let step = online.step().unwrap();
            assert_eq!(step.stage, Stage::new(stages as u32));
            assert_eq!(online.stages(), stages as u32);
            let kept: Vec<u64> = online.kept().iter().map(|boundary| boundary.number().into()).collect();
            assert!(kept.len() <= slots as usize && kept[0] == 0 && kept.is_sorted());
            assert_eq!(kept.len() as u64, slots.min(stages));
            let allowed = repeats(stages + 1, slots);
            let ends = kept.iter().skip(1).chain([&stages]);
            for (taken, (start, end)) in (0..).zip(kept.iter().zip(ends)) {
                let most = binomial(slots - taken, allowed - 1);
                assert!(end - start <= most, "{slots} slots, {stages} stages: {kept:?}");
            }
        }
    }
}

#[test]
fn online_may_learn_late_that_a_stage_was_the_last() {
    for slots in 1..=4 {
        for stages in 1..=30 {
            let mut online = Online::new(slots).unwrap();
            let mut actions = Vec::new();
            for _ in 0..stages {
                actions.extend(online.step().unwrap().actions());
            }
            actions.extend(online.finish_late().unwrap());
            let late = forwards(&uniform(stages, 1, 1), &actions);
            let in_time = forwards(&uniform(stages, 1, 1), &online::actions(stages, slots).unwrap());
            assert!(late > in_time && slots_used(&actions) <= slots as usize);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn more_slots_never_take_longer_when_forwards_take_as_long(
        stages in 1..80usize, slots in 1..20u32, tape in 1..40u64,
    ) {
        let profile = uniform(stages, 1, tape);
        for solve in [revolve::solve, mixed::solve] {
            let step = |slots| solve(&profile, &Request::with_slots(slots)).unwrap().predicted.step_ns;
            prop_assert!(step(slots + 1) <= step(slots));
        }
    }
}

#[test]
fn a_budget_finds_the_most_slots_on_long_uniform_chains_too() {
    for stages in [100, 600, 3000] {
        let profile = uniform(stages, 10, 300);
        for slots in [1, 2, 7, 40, 99, 500, 2000] {
            let Ok(wanted) = revolve::solve(&profile, &Request::with_slots(slots)) else { continue };
            let plan = revolve::solve(&profile, &Request::new(wanted.predicted.peak_bytes)).unwrap();
            assert_eq!(plan.predicted.forwards, wanted.predicted.forwards, "{stages} {slots}");
        }
    }
}
