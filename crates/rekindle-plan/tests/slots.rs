//! The solvers that count slots: published figures, naive recurrences and exhaustive search as second opinions, and
//! what must hold of them on any chain.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod chains;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

use chains::{any_profile, name, uniform};
use insta::assert_snapshot;
use proptest::prelude::*;
use rekindle_plan::rules::MOST_ACTIONS;
use rekindle_plan::solvers::multi_level::{Costs, Level, disk_revolve, h_revolve, solve_disk_revolve};
use rekindle_plan::solvers::online::Online;
use rekindle_plan::solvers::{mixed, multi_level, online, revolve};
use rekindle_plan::{
    Action, Bytes, Gap, Nanos, Plan, PlanError, Profile, Request, RuleError, SolveError, Stage, Status, Tier,
    simulate,
};

fn text(actions: &[Action]) -> String {
    let lines: Vec<String> = actions.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

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

/// The most boundaries and tapes in slots at once, when a stage runs; the tape whose backward comes next is free.
fn slots_used(actions: &[Action]) -> usize {
    let (mut kept, mut taped, mut most) = (BTreeSet::new(), BTreeSet::new(), 0);
    for action in actions {
        match action {
            Action::Keep { boundary } => {
                kept.insert(*boundary);
            }
            Action::Drop { boundary, place: None } => {
                kept.remove(boundary);
            }
            Action::Forward { .. } => most = most.max(kept.len() + taped.len()),
            Action::Tape { stage, .. } => {
                most = most.max(kept.len() + taped.len());
                taped.insert(*stage);
            }
            Action::Backward { stage } => {
                taped.remove(stage);
                most = most.max(kept.len() + taped.len());
            }
            _ => {}
        }
    }
    most
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

fn disk(slots: u32, write: u64, read: u64) -> Level {
    Level { tier: name("disk"), slots, write, read }
}

#[test]
fn multi_level_word_for_word() {
    let costs = Costs { forward: 3, backward: 4, slots: 1, levels: vec![disk(2, 1, 1)] };
    assert_snapshot!(text(&h_revolve(5, &costs).unwrap().actions), @r"
    offload x0 disk
    forward 1
    offload x1 disk
    forward 2
    keep x2
    forward 3
    forward 4
    tape 5
    backward 5
    forward 3
    tape 4
    backward 4
    tape 3
    drop x2
    backward 3
    fetch x1 disk
    drop x1 disk
    tape 2
    backward 2
    fetch x0 disk
    drop x0 disk
    tape 1
    backward 1
    ");
    assert_snapshot!(text(&disk_revolve(5, &costs).unwrap().actions), @r"
    offload x0 disk
    forward 1
    offload x1 disk
    forward 2
    offload x2 disk
    forward 3
    keep x3
    forward 4
    tape 5
    backward 5
    tape 4
    drop x3
    backward 4
    fetch x2 disk
    drop x2 disk
    tape 3
    backward 3
    fetch x1 disk
    drop x1 disk
    tape 2
    backward 2
    fetch x0 disk
    drop x0 disk
    tape 1
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

/// The recurrence of H-Revolve as it stands: no closed form, no bounds, no tables of what is never asked.
struct Naive<'a> {
    costs: &'a Costs,
    known: HashMap<(bool, usize, u32, u32), u64>,
}

const NEVER: u64 = u64::MAX / 8;

impl Naive<'_> {
    /// Forwards without a tape, writes and reads, from a boundary in no slot.
    fn open(&mut self, level: usize, free: u32, stages: u32) -> u64 {
        if stages == 1 {
            return 0;
        }
        if let Some(known) = self.known.get(&(false, level, free, stages)) {
            return *known;
        }
        let found = match (level, free) {
            (0, 0) => NEVER,
            (0, _) => {
                let splits = 1..stages;
                let cost = |i: u32| {
                    u64::from(i) * self.costs.forward
                        + self.open(0, free - 1, stages - i)
                        + self.open(0, free, i)
                };
                splits.map(cost).min().unwrap()
            }
            (_, 0) => self.below(level, stages),
            _ => {
                let write = self.costs.levels[level - 1].write;
                self.below(level, stages).min(write + self.stored(level, free, stages))
            }
        };
        self.known.insert((false, level, free, stages), found);
        found
    }

    fn below(&mut self, level: usize, stages: u32) -> u64 {
        let slots = if level == 1 { self.costs.slots } else { self.costs.levels[level - 2].slots };
        self.open(level - 1, slots, stages)
    }

    fn stored(&mut self, level: usize, free: u32, stages: u32) -> u64 {
        if let Some(known) = self.known.get(&(true, level, free, stages)) {
            return *known;
        }
        let read = self.costs.levels[level - 1].read;
        let mut found = self.below(level, stages);
        for i in 1..stages {
            let forwards = u64::from(i) * self.costs.forward;
            let cost = forwards + self.open(level, free - 1, stages - i) + read + self.stored(level, free, i);
            found = found.min(cost);
        }
        self.known.insert((true, level, free, stages), found);
        found
    }
}

fn naive_h_revolve(stages: u32, costs: &Costs) -> u64 {
    let top = costs.levels.len();
    let slots = costs.levels.last().map_or(costs.slots, |level| level.slots);
    let untaped = Naive { costs, known: HashMap::new() }.open(top, slots, stages);
    untaped + u64::from(stages) * (costs.forward + costs.backward)
}

/// Disk-Revolve as the paper has it: what is on disk is written in one pass, from left to right.
fn naive_disk_revolve(stages: usize, costs: &Costs) -> u64 {
    let level = costs.levels.last().unwrap();
    let device = Costs { levels: Vec::new(), ..costs.clone() };
    let mut naive = Naive { costs: &device, known: HashMap::new() };
    let alone: Vec<u64> =
        (0..=stages).map(|n| if n == 0 { 0 } else { naive.open(0, costs.slots, n as u32) }).collect();
    let mut once = alone.clone();
    for n in 2..=stages {
        for i in 1..n {
            let cost = i as u64 * costs.forward + alone[n - i] + level.read + once[i];
            once[n] = once[n].min(cost);
        }
    }
    let mut all = alone.clone();
    for n in 2..=stages {
        for i in 1..n {
            let cost = level.write + i as u64 * costs.forward + all[n - i] + level.read + once[i];
            all[n] = all[n].min(cost);
        }
    }
    all[stages] + stages as u64 * (costs.forward + costs.backward)
}

/// What the actions cost when every transfer blocks, and the most copies in each tier.
fn blocking(actions: &[Action], costs: &Costs) -> (u64, Vec<u32>) {
    let level =
        |tier: &rekindle_plan::Name| costs.levels.iter().position(|level| level.tier == *tier).unwrap();
    let mut there = vec![0u32; costs.levels.len()];
    let mut most = there.clone();
    let cost = actions.iter().map(|action| match action {
        Action::Forward { .. } | Action::Tape { .. } => costs.forward,
        Action::Backward { .. } => costs.backward,
        Action::Offload { tier, .. } => {
            let at = level(tier);
            there[at] += 1;
            most[at] = most[at].max(there[at]);
            costs.levels[at].write
        }
        Action::Fetch { place, .. } => costs.levels[level(place)].read,
        Action::Drop { place: Some(place), .. } => {
            there[level(place)] -= 1;
            0
        }
        _ => 0,
    });
    (cost.sum(), most)
}

/// A uniform chain of one-byte boundaries, on which the profile's times are these costs.
fn uniform_with(costs: &Costs, stages: usize) -> Profile {
    let times = |profile: rekindle_plan::StageProfile| rekindle_plan::StageProfile {
        forward_ns: Nanos::new(costs.forward),
        backward_ns: Nanos::new(costs.backward),
        ..profile
    };
    let chain = uniform(stages, 1, 1);
    let stages = chain.stages().iter().cloned().map(times).collect();
    let tiers = costs.levels.iter().map(|level| Tier {
        name: level.tier.clone(),
        capacity_bytes: Bytes::new(level.slots.into()),
        write_bytes_per_second: 1_000_000_000u64.div_ceil(level.write),
        read_bytes_per_second: 1_000_000_000u64.div_ceil(level.read),
    });
    let profile = Profile::new("uniform", "none", Bytes::new(1), stages).unwrap();
    profile.with_places(tiers.collect(), Vec::new()).unwrap()
}

#[test]
fn h_revolve_takes_the_published_425_and_a_backward_of_another_length_changes_nothing_else() {
    for backward in [0, 1, 7] {
        let costs = Costs { forward: 1, backward, slots: 3, levels: vec![disk(10, 5, 5)] };
        let found = h_revolve(100, &costs).unwrap();
        assert_eq!(found.cost, 425 + 100 * backward);
        assert!(found.optimal);
        assert_eq!(found.actions, h_revolve(100, &Costs { backward: 0, ..costs.clone() }).unwrap().actions);
        let profile = uniform_with(&costs, 100);
        let plan = multi_level::solve(&profile, &Request::with_slots(3)).unwrap();
        assert_eq!(plan.actions, found.actions);
        assert!(plan.predicted.step_ns <= Nanos::new(found.cost));
    }
}

prop_compose! {
    fn any_costs()(
        (forward, backward, slots) in (0..9u64, 0..9u64, 0..4u32),
        levels in proptest::collection::vec((0..5u32, 1..12u64, 1..12u64), 1..3),
    ) -> Costs {
        let mut levels: Vec<Level> = ["host", "disk"].iter().zip(levels)
            .map(|(tier, (slots, write, read))| Level { tier: name(tier), slots, write, read })
            .collect();
        // As a profile's tiers are taken.
        levels.sort_by_key(|level| level.write + level.read);
        Costs { forward, backward, slots, levels }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn h_revolve_equals_its_recurrence(costs in any_costs(), stages in 1..24u32) {
        let naive = naive_h_revolve(stages, &costs);
        match h_revolve(stages as usize, &costs) {
            Ok(found) => {
                prop_assert_eq!(found.cost, naive);
                prop_assert!(found.optimal);
                let (cost, most) = blocking(&found.actions, &costs);
                prop_assert_eq!(cost, naive);
                for (level, most) in costs.levels.iter().zip(most) {
                    prop_assert!(most <= level.slots);
                }
                prop_assert!(slots_used(&found.actions) <= costs.slots as usize);
                let simulation = simulate(&uniform_with(&costs, stages as usize), &found.actions).unwrap();
                prop_assert!(simulation.step_ns.get() <= cost, "{} {}", simulation.step_ns.get(), cost);
            }
            Err(SolveError::TooFewSlots { .. }) => prop_assert!(naive >= NEVER && costs.slots == 0),
            Err(error) => prop_assert!(false, "{error}"),
        }
    }

    #[test]
    fn disk_revolve_equals_its_recurrence(costs in any_costs(), stages in 1..24usize) {
        let slots = costs.slots.max(1);
        let costs = Costs { slots, levels: costs.levels.last().cloned().into_iter().collect(), ..costs };
        let found = disk_revolve(stages, &costs).unwrap();
        let naive = naive_disk_revolve(stages, &costs);
        prop_assert_eq!(found.cost, naive);
        prop_assert_eq!(blocking(&found.actions, &costs).0, naive);
        // With slots that never run out, it is the optimum of H-Revolve too: nothing is won by writing later.
        let many = Level { slots: 100, ..costs.levels[0].clone() };
        let costs = Costs { levels: vec![many], ..costs };
        prop_assert_eq!(h_revolve(stages, &costs).unwrap().cost, naive);
    }

    #[test]
    fn h_revolve_never_costs_more_with_a_slot_more(costs in any_costs(), stages in 1..60usize) {
        let cost = |costs: &Costs| h_revolve(stages, costs).map_or(u64::MAX, |found| found.cost);
        let before = cost(&costs);
        let on_device = cost(&Costs { slots: costs.slots + 1, ..costs.clone() });
        prop_assert!(on_device <= before);
        for index in 0..costs.levels.len() {
            let mut more = costs.clone();
            more.levels[index].slots += 1;
            prop_assert!(cost(&more) <= before);
        }
    }
}

#[test]
fn long_rows_with_bounds_equal_rows_without() {
    for (slots, levels) in [
        (3, vec![disk(4, 30, 20)]),
        (1, vec![disk(9, 3, 2)]),
        (2, vec![Level { tier: name("host"), slots: 3, write: 2, read: 3 }, disk(3, 40, 50)]),
    ] {
        let costs = Costs { forward: 2, backward: 3, slots, levels };
        for stages in [150, 333] {
            assert_eq!(h_revolve(stages, &costs).unwrap().cost, naive_h_revolve(stages as u32, &costs));
        }
    }
}

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

#[test]
fn a_tier_without_room_is_left_alone() {
    let costs = Costs { forward: 1, backward: 1, slots: 0, levels: vec![disk(0, 1, 1)] };
    let profile = uniform_with(&costs, 20);
    let plan = multi_level::solve(&profile, &Request::with_slots(3)).unwrap();
    assert_eq!(plan.actions, revolve::actions(20, 3).unwrap());
    // One step of Disk-Revolve would not fit: it says so instead of making do.
    let small = Costs { forward: 9, backward: 1, slots: 0, levels: vec![disk(1, 1, 1)] };
    let profile = uniform_with(&small, 20);
    let error = solve_disk_revolve(&profile, &Request::with_slots(1)).unwrap_err();
    assert!(error.to_string().contains("room for 1 boundaries where it needs"), "{error}");
    assert!(multi_level::solve(&profile, &Request::with_slots(1)).is_ok());
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
    for solve in [revolve::solve, mixed::solve] {
        let plan = solve(&profile, &Request::new(Bytes::new(2_000))).unwrap();
        assert_eq!(plan.predicted.peak_bytes, Bytes::new(2_000));
    }
    let profile = uniform_with(&costs, 10_000);
    for (_, solve) in SOLVERS {
        let plan = solve(&profile, &Request::new(Bytes::new(200))).unwrap();
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
