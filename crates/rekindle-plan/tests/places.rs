//! The optimum with tiers and codecs against exhaustive search over its class.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod chains;

use chains::{any_stage, name};
use proptest::prelude::*;
use rekindle_plan::solvers::optimal;
use rekindle_plan::{
    Action, Boundary, Bytes, Codec, Name, Nanos, Profile, Request, SolveError, Stage, Status, Tier, simulate,
};

/// What happens with the input of a sweep while what follows is done.
#[derive(Clone, Debug)]
enum Place {
    Device,
    Codec(Name),
    /// Fetched before the last backward of what follows, or after it.
    Tier(Name, bool),
}

/// A tree of choices: the plan, before it is written out.
#[derive(Clone, Debug)]
enum Tree {
    Tape(Option<Name>, Option<Box<Tree>>),
    Sweep(u32, Place, Box<Tree>, Box<Tree>),
}

fn every_tree(profile: &Profile, first: u32, last: u32, taped: bool) -> Vec<Tree> {
    let mut all = Vec::new();
    let options = &profile.stages()[first as usize - 1].options;
    for option in [None].into_iter().chain(options.iter().map(|option| Some(option.name.clone()))) {
        match first == last {
            true => all.push(Tree::Tape(option, None)),
            false => {
                let rests = every_tree(profile, first + 1, last, true).into_iter();
                all.extend(rests.map(|rest| Tree::Tape(option.clone(), Some(Box::new(rest)))));
            }
        }
    }
    let mut places = vec![Place::Device];
    // What a tape includes stays on the device whatever is done.
    if !taped {
        places.extend(profile.codecs().iter().map(|codec| Place::Codec(codec.name.clone())));
        for tier in profile.tiers() {
            places.extend([true, false].map(|early| Place::Tier(tier.name.clone(), early)));
        }
    }
    for middle in first + 1..=last {
        let afters = every_tree(profile, middle, last, false);
        let befores = every_tree(profile, first, middle - 1, taped);
        for place in &places {
            for after in &afters {
                for before in &befores {
                    let (after, before) = (Box::new(after.clone()), Box::new(before.clone()));
                    all.push(Tree::Sweep(middle, place.clone(), after, before));
                }
            }
        }
    }
    all
}

#[derive(Default)]
struct Writer {
    actions: Vec<Action>,
    kept: Vec<Boundary>,
    copies: Vec<(Boundary, Name)>,
}

impl Writer {
    fn read(&mut self, boundary: Boundary) {
        if let Some(at) = self.copies.iter().position(|copy| copy.0 == boundary) {
            let (boundary, place) = self.copies.remove(at);
            self.actions.push(Action::Drop { boundary, place: Some(place) });
        }
    }

    fn write(&mut self, tree: &Tree, first: u32, arriving: Option<(Boundary, Name)>) {
        let stage = Stage::new(first);
        let input = stage.input();
        match tree {
            Tree::Tape(option, rest) => {
                self.actions.push(Action::Tape { stage, option: option.clone() });
                self.read(input);
                if let Some(at) = self.kept.iter().position(|boundary| *boundary == input) {
                    self.kept.remove(at);
                    self.actions.push(Action::drop(input));
                }
                if let Some(rest) = rest {
                    self.write(rest, first + 1, None);
                }
                if let Some((boundary, place)) = arriving {
                    self.actions.push(Action::Fetch { boundary, place: place.clone() });
                    self.copies.push((boundary, place));
                }
                self.actions.push(Action::backward(stage));
            }
            Tree::Sweep(middle, place, after, before) => {
                if !self.kept.contains(&input) {
                    self.kept.push(input);
                    self.actions.push(Action::keep(input));
                }
                if let Place::Tier(tier, _) = place {
                    self.read(input);
                    self.actions.push(Action::Offload { boundary: input, tier: tier.clone() });
                }
                for number in first..*middle {
                    self.actions.push(Action::forward(Stage::new(number)));
                    self.read(input);
                }
                if let Place::Codec(codec) = place {
                    self.actions.push(Action::Compress { boundary: input, codec: codec.clone() });
                }
                if !matches!(place, Place::Device) {
                    self.actions.push(Action::drop(input));
                    self.kept.retain(|boundary| *boundary != input);
                }
                match place {
                    Place::Tier(tier, true) => self.write(after, *middle, Some((input, tier.clone()))),
                    Place::Tier(place, false) | Place::Codec(place) => {
                        self.write(after, *middle, None);
                        self.actions.push(Action::Fetch { boundary: input, place: place.clone() });
                        self.actions.push(Action::Drop { boundary: input, place: Some(place.clone()) });
                    }
                    Place::Device => self.write(after, *middle, None),
                }
                self.write(before, first, arriving);
            }
        }
    }
}

fn exhaustive_frontier(profile: &Profile) -> Vec<(Bytes, Nanos)> {
    let trees = every_tree(profile, 1, profile.stages().len() as u32, false);
    let found = trees.iter().filter_map(|tree| {
        let mut writer = Writer::default();
        writer.write(tree, 1, None);
        simulate(profile, &writer.actions).ok()
    });
    let mut points: Vec<_> = found.map(|found| (found.peak_bytes, found.step_ns)).collect();
    points.sort_unstable();
    let mut frontier: Vec<(Bytes, Nanos)> = Vec::new();
    for point in points {
        if frontier.last().is_none_or(|last| point.1 < last.1) {
            frontier.push(point);
        }
    }
    frontier
}

prop_compose! {
    /// A short chain with one or two tiers, often too small for everything, and perhaps a codec.
    fn any_places(stages: std::ops::Range<usize>)(
        input in 0..50u64,
        stages in proptest::collection::vec(any_stage(), stages),
        tiers in proptest::collection::vec((0..120u64, 1..8u64, 1..8u64), 0..3),
        codec in proptest::option::of((1..1023u32, 1..8u64, 1..8u64)),
    ) -> Profile {
        let tier = |(index, (capacity, write, read)): (usize, &(u64, u64, u64))| Tier {
            name: name(["host", "disk"][index]),
            capacity_bytes: Bytes::new(*capacity),
            write_bytes_per_second: write * 500_000_000,
            read_bytes_per_second: read * 500_000_000,
        };
        let codec = codec.map(|(bytes_per_kibibyte, compress, restore)| Codec {
            name: name("half"),
            bytes_per_kibibyte,
            compress_bytes_per_second: compress * 1_000_000_000,
            restore_bytes_per_second: restore * 1_000_000_000,
        });
        let tiers = tiers.iter().enumerate().map(tier).collect();
        let profile = Profile::new("places", "none", Bytes::new(input), stages).unwrap();
        profile.with_places(tiers, codec.into_iter().collect()).unwrap()
    }
}

fn check_against_exhaustive(profile: &Profile) {
    let expected = exhaustive_frontier(profile);
    assert_eq!(optimal::smallest_budget(profile), Ok(expected[0].0));
    let frontier = optimal::frontier(profile, &Request::default()).unwrap();
    let found: Vec<_> = frontier.points().iter().map(|point| (point.budget_bytes, point.step_ns)).collect();
    assert_eq!(found, expected);
    for (budget, time) in &expected {
        let plan = optimal::solve(profile, &Request::new(*budget)).unwrap();
        assert_eq!(plan.predicted.step_ns, *time, "at {} bytes", budget.get());
        assert_eq!(plan.status, Status::Optimal);
        assert!(plan.predicted.peak_bytes <= *budget);
    }
    if let Some(below) = expected[0].0.get().checked_sub(1) {
        let error = optimal::solve(profile, &Request::new(Bytes::new(below))).unwrap_err();
        let smallest = expected[0].0;
        assert!(
            matches!(error, SolveError::BudgetTooSmall { smallest_bytes, .. } if smallest_bytes == smallest),
            "{error}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn tiers_and_codecs_are_used_as_exhaustive_search_uses_them(profile in any_places(1..5)) {
        check_against_exhaustive(&profile);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3))]

    #[test]
    fn a_tier_under_seven_stages_is_used_as_exhaustive_search_uses_it(
        profile in any_places(7..8), capacity in 20..300u64,
    ) {
        let plain = profile.stages().iter().map(|stage| rekindle_plan::StageProfile { options: vec![], ..stage.clone() });
        let tier = Tier {
            name: name("host"),
            capacity_bytes: Bytes::new(capacity),
            write_bytes_per_second: 1_000_000_000,
            read_bytes_per_second: 2_000_000_000,
        };
        let profile = Profile::new("seven", "none", profile.input_bytes(), plain.collect()).unwrap();
        check_against_exhaustive(&profile.with_places(vec![tier], vec![]).unwrap());
    }
}

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
