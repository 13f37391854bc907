//! Slots on several levels: H-Revolve and Disk-Revolve against their recurrences as they stand in the papers.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod chains;
mod levels;

use std::collections::HashMap;

use chains::{name, text};
use insta::assert_snapshot;
use levels::{disk, slots_used, uniform_with};
use proptest::prelude::*;
use rekindle_plan::solvers::multi_level::{Costs, Level, disk_revolve, h_revolve, solve_disk_revolve};
use rekindle_plan::solvers::{multi_level, revolve};
use rekindle_plan::{Action, Name, Nanos, Request, SolveError, simulate};

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
    let level = |tier: &Name| costs.levels.iter().position(|level| level.tier == *tier).unwrap();
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
