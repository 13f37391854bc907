//! Chains and plans to test with, random and by hand.

// Every test file takes what it needs of these.
#![allow(dead_code)]

use proptest::prelude::*;
use rekindle_plan::solvers::multi_level;
use rekindle_plan::{
    Action, Boundary, Bytes, Codec, Name, Nanos, Plan, Profile, Request, Rule, SolveError, Stage,
    StageProfile, TapeOption, Tier,
};

pub(crate) fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// Actions from their text form, with `/` between them.
pub(crate) fn actions(text: &str) -> Vec<Action> {
    let lines = text.split('/').map(str::trim);
    lines.map(|line| line.parse().unwrap()).collect()
}

/// Actions as people read them, one on each line.
pub(crate) fn text(actions: &[Action]) -> String {
    let lines: Vec<String> = actions.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// Stages that differ in nothing.
pub(crate) fn uniform(stages: usize, boundary: u64, tape: u64) -> Profile {
    let stages = (1..=stages).map(|number| StageProfile {
        name: format!("stage.{number}"),
        output_bytes: Bytes::new(boundary),
        tape_bytes: Bytes::new(tape),
        forward_ns: Nanos::new(1),
        backward_ns: Nanos::new(2),
        ..StageProfile::default()
    });
    Profile::new("uniform", "none", Bytes::new(boundary), stages.collect()).unwrap()
}

prop_compose! {
    pub(crate) fn any_stage()(
        name_text in "[a-z\u{e9}\" \\\\]{1,6}",
        (output, own, forward, backward) in (0..50u64, 0..200u64, 0..90u64, 0..90u64),
        (forward_extra, backward_extra) in (0..40u64, 0..40u64),
        taped_extra in proptest::option::of(0..40u64),
        gradient in proptest::option::of(0..60u64),
        weights in prop_oneof![Just(0), 0..60u64],
        light in proptest::option::of(0..100u64),
        light_extra in proptest::option::of(0..80u64),
        passed in prop_oneof![Just(0), 0..=100u64],
        unread in prop_oneof![Just(0), 0..=100u64],
    ) -> StageProfile {
        let light = light.map(|percent| TapeOption {
            name: name("light"),
            tape_bytes: Bytes::new(output + own * percent / 100),
            forward_ns: Nanos::new(forward + 1),
            backward_ns: Nanos::new(backward / 2),
            taped_extra_bytes: light_extra.map(|bytes| Bytes::new(bytes / 2)),
            backward_extra_bytes: light_extra.map(Bytes::new),
        });
        StageProfile {
            name: name_text,
            output_bytes: Bytes::new(output),
            tape_bytes: Bytes::new(output + own),
            forward_ns: Nanos::new(forward),
            backward_ns: Nanos::new(backward),
            unread_ns: Nanos::new(forward * unread / 100),
            forward_extra_bytes: Bytes::new(forward_extra),
            taped_extra_bytes: taped_extra.map(Bytes::new),
            backward_extra_bytes: Bytes::new(backward_extra),
            gradient_bytes: gradient.map(Bytes::new),
            parameter_gradient_bytes: Bytes::new(weights),
            passed_bytes: Bytes::new(output * passed / 100),
            pinned: false,
            options: light.into_iter().collect(),
        }
    }
}

/// The stages in a row, none passing on more than it is given.
pub(crate) fn passing(input: u64, mut stages: Vec<StageProfile>) -> Vec<StageProfile> {
    let mut given = Bytes::new(input);
    for stage in &mut stages {
        stage.passed_bytes = stage.passed_bytes.min(given);
        given = stage.output_bytes;
    }
    stages
}

prop_compose! {
    /// A chain of up to twelve stages, with the tier `host` and the codec `half`.
    pub(crate) fn any_profile()(
        input in 0..50u64,
        stages in proptest::collection::vec(any_stage(), 1..13),
        (write, read) in (1..4u64, 1..4u64),
    ) -> Profile {
        let tier = Tier {
            name: name("host"),
            capacity_bytes: Bytes::new(1 << 20),
            write_bytes_per_second: write * 1_000_000_000,
            read_bytes_per_second: read * 1_000_000_000,
        };
        let codec = Codec {
            name: name("half"),
            bytes_per_kibibyte: 512,
            compress_bytes_per_second: write * 1_000_000_000,
            restore_bytes_per_second: read * 1_000_000_000,
        };
        let profile = Profile::new("random", "none", Bytes::new(input), passing(input, stages)).unwrap();
        profile.with_places(vec![tier], vec![codec]).unwrap()
    }
}

prop_compose! {
    /// A chain of which some stages must run once only.
    pub(crate) fn any_pinned_profile()(
        profile in any_profile(),
        pinned in proptest::collection::vec(proptest::bool::weighted(0.3), 12),
    ) -> Profile {
        let stages = profile.stages().iter().zip(pinned);
        let stages = stages.map(|(stage, pinned)| StageProfile { pinned, ..stage.clone() });
        Profile::new("pinned", "none", profile.input_bytes(), stages.collect()).unwrap()
    }
}

pub(crate) fn any_rule() -> impl Strategy<Value = Rule> {
    prop_oneof![
        Just(Rule::StoreAll),
        Just(Rule::Full),
        Just(Rule::SquareRoot),
        (1..15usize).prop_map(|k| format!("every-{k}").parse().unwrap()),
    ]
}

/// Which actions a random plan may use beside forward, tape, backward, keep and drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Places {
    None,
    HostAndHalf,
}

/// A random legal plan for `profile`: a recursive split of the chain, its choices read from `rolls`.
pub(crate) fn random_plan(profile: &Profile, places: Places, rolls: &[u32]) -> Vec<Action> {
    let stages = u32::try_from(profile.stages().len()).unwrap();
    let mut plan = RandomPlan { profile, places, rolls: rolls.iter().cycle(), actions: Vec::new() };
    // Sometimes the forward half keeps the input only, and everything happens after the turn.
    if plan.roll(3) == 0 {
        let input = Boundary::new(0);
        plan.actions.push(Action::keep(input));
        plan.forwards(1..=stages);
        plan.segment(1, stages, true, false);
        plan.actions.push(Action::drop(input));
    } else {
        plan.segment(1, stages, false, false);
    }
    plan.actions
}

struct RandomPlan<'a> {
    profile: &'a Profile,
    places: Places,
    rolls: std::iter::Cycle<std::slice::Iter<'a, u32>>,
    actions: Vec<Action>,
}

impl RandomPlan<'_> {
    fn roll(&mut self, sides: u32) -> u32 {
        self.rolls.next().map_or(0, |roll| roll % sides)
    }

    fn forwards(&mut self, stages: impl Iterator<Item = u32>) {
        let forwards = stages.map(|number| Action::forward(Stage::new(number)));
        self.actions.extend(forwards);
    }

    /// Stages `first..=last` forth and back; `x(first-1)` is on the device, stays if `kept`, is in a tape if `taped`.
    fn segment(&mut self, first: u32, last: u32, kept: bool, taped: bool) {
        let stage = Stage::new(first);
        if first == last || self.roll(2) == 0 {
            let options = &self.profile.stages()[stage.index()].options;
            let option = options.first().map(|option| option.name.clone());
            let option = option.filter(|_| self.roll(3) == 0);
            self.actions.push(Action::Tape { stage, option });
            if first < last {
                self.segment(first + 1, last, false, true);
            }
            self.actions.push(Action::backward(stage));
            return;
        }
        let middle = first + 1 + self.roll(last - first);
        let boundary = stage.input();
        if !kept {
            self.actions.push(Action::keep(boundary));
        }
        self.actions.push(Action::forward(stage));
        let place = match self.roll(3) {
            _ if kept || taped || self.places == Places::None => None,
            0 => Some(name("host")),
            1 => Some(name("half")),
            _ => None,
        };
        if let Some(place) = &place {
            self.actions.push(match place.as_str() {
                "host" => Action::Offload { boundary, tier: place.clone() },
                _ => Action::Compress { boundary, codec: place.clone() },
            });
            self.actions.push(Action::drop(boundary));
        }
        self.forwards(first + 1..middle);
        self.segment(middle, last, false, false);
        if let Some(place) = place {
            self.actions.push(Action::Fetch { boundary, place: place.clone() });
            self.actions.push(Action::Drop { boundary, place: Some(place) });
            self.segment(first, middle - 1, false, false);
        } else {
            self.segment(first, middle - 1, true, taped);
            if !kept {
                self.actions.push(Action::drop(boundary));
            }
        }
    }
}

prop_compose! {
    /// A short chain with one or two tiers, often too small for everything, and perhaps a codec.
    pub(crate) fn any_places(stages: std::ops::Range<usize>)(
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
        let profile = Profile::new("places", "none", Bytes::new(input), passing(input, stages)).unwrap();
        profile.with_places(tiers, codec.into_iter().collect()).unwrap()
    }
}

pub(crate) type Solve = fn(&Profile, &Request) -> Result<Plan, SolveError>;

/// The solvers that move boundaries as if stages did not differ.
pub(crate) const LEVELS: [Solve; 2] = [multi_level::solve, multi_level::solve_disk_revolve];
