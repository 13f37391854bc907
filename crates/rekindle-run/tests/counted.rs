//! The executor on the counted engine holds what the simulator says, at every action, for every plan.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use proptest::prelude::*;
use rekindle_plan::{
    Action, Boundary, Bytes, Codec, Name, Nanos, Policy, Profile, Rule, Schedule, Stage, StageProfile,
    TapeOption, Tier,
};
use rekindle_run::codec::Lz4;
use rekindle_run::counted::{Allocation, CountedEngine, Ledger};
use rekindle_run::{
    Coded, Engine, Executor, HostStore, Measuring, PackedTensor, Parcel, RunError, Store, StoreError, Stores,
    measure,
};
use std::collections::BTreeMap;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

prop_compose! {
    fn any_stage()(
        (output, own, forward, backward) in (0..50u64, 0..200u64, 0..90u64, 0..90u64),
        (forward_extra, backward_extra) in (0..40u64, 0..40u64),
        taped_extra in proptest::option::of(0..40u64),
        gradient in proptest::option::of(0..60u64),
        weights in prop_oneof![Just(0), 0..60u64],
        light in 0..100u64,
    ) -> StageProfile {
        StageProfile {
            name: "stage".to_owned(),
            output_bytes: Bytes::new(output),
            tape_bytes: Bytes::new(output + own),
            forward_ns: Nanos::new(forward),
            backward_ns: Nanos::new(backward),
            unread_ns: Nanos::ZERO,
            forward_extra_bytes: Bytes::new(forward_extra),
            taped_extra_bytes: taped_extra.map(Bytes::new),
            backward_extra_bytes: Bytes::new(backward_extra),
            gradient_bytes: gradient.map(Bytes::new),
            parameter_gradient_bytes: Bytes::new(weights),
            passed_bytes: Bytes::ZERO,
            pinned: false,
            options: vec![TapeOption {
                name: name("light"),
                tape_bytes: Bytes::new(output + own * light / 100),
                forward_ns: Nanos::new(forward),
                backward_ns: Nanos::new(backward + 10),
                taped_extra_bytes: None,
                backward_extra_bytes: Some(Bytes::new(backward_extra / 2 + light)),
            }],
        }
    }
}

prop_compose! {
    fn any_profile()(
        input in 0..50u64,
        stages in proptest::collection::vec(any_stage(), 1..9),
    ) -> Profile {
        let tier = Tier {
            name: name("host"),
            capacity_bytes: Bytes::new(1 << 20),
            write_bytes_per_second: 1_000_000_000,
            read_bytes_per_second: 2_000_000_000,
        };
        let codec = Codec {
            name: name("half"),
            bytes_per_kibibyte: 512,
            compress_bytes_per_second: 1_000_000_000,
            restore_bytes_per_second: 1_000_000_000,
        };
        let profile = Profile::new("random", "none", Bytes::new(input), stages).unwrap();
        profile.with_places(vec![tier], vec![codec]).unwrap()
    }
}

/// Random legal plans: a recursive split of the chain, with choices drawn from `dice`.
struct Plans<'a> {
    dice: &'a mut dyn FnMut(u32) -> u32,
    actions: Vec<Action>,
}

impl Plans<'_> {
    fn whole(mut self, stages: u32) -> Vec<Action> {
        // Sometimes the forward half keeps the input only, and everything happens after the turn.
        if (self.dice)(3) == 0 {
            let input = Boundary::new(0);
            self.actions.push(Action::keep(input));
            self.actions.extend((1..=stages).map(|s| Action::forward(Stage::new(s))));
            self.segment(1, stages, true, false);
            self.actions.push(Action::drop(input));
        } else {
            self.segment(1, stages, false, false);
        }
        self.actions
    }

    /// Stages `first..=last` forth and back; `x(first-1)` is on the device, stays if `kept`, is part of a tape if `taped`.
    fn segment(&mut self, first: u32, last: u32, kept: bool, taped: bool) {
        if first == last || (self.dice)(2) == 0 {
            let option = ((self.dice)(3) == 0).then(|| name("light"));
            let stage = Stage::new(first);
            self.actions.push(Action::Tape { stage, option });
            if first < last {
                self.segment(first + 1, last, false, true);
            }
            self.actions.push(Action::backward(stage));
            return;
        }
        let middle = first + 1 + (self.dice)(last - first);
        let boundary = Stage::new(first).input();
        if !kept {
            self.actions.push(Action::keep(boundary));
        }
        self.actions.push(Action::forward(Stage::new(first)));
        let place = match (self.dice)(3) {
            _ if kept || taped => None,
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
        self.actions.extend((first + 1..middle).map(|s| Action::forward(Stage::new(s))));
        // Sometimes a boundary is asked for long before it is read, and sometimes its copy stays long after.
        // (With more than one stage left, the same boundary may be put there again.)
        let (early, late) = ((self.dice)(3) == 0, (self.dice)(3) == 0 && first + 1 == middle);
        let fetch = place.clone().map(|place| Action::Fetch { boundary, place });
        self.actions.extend(fetch.clone().filter(|_| early));
        self.segment(middle, last, false, false);
        self.actions.extend(fetch.filter(|_| !early));
        match place {
            Some(place) => {
                let drop = Action::Drop { boundary, place: Some(place) };
                self.actions.extend((!late).then(|| drop.clone()));
                self.segment(first, middle - 1, false, false);
                self.actions.extend(late.then_some(drop));
            }
            None => {
                self.segment(first, middle - 1, true, taped);
                if !kept {
                    self.actions.push(Action::drop(boundary));
                }
            }
        }
    }
}

fn random_plan(stages: u32, rolls: &[u32]) -> Vec<Action> {
    let mut rolls = rolls.iter().cycle();
    let mut dice = move |sides: u32| rolls.next().map_or(0, |roll| roll % sides);
    let plans = Plans { dice: &mut dice, actions: Vec::new() };
    plans.whole(stages)
}

/// Half the bytes, on the same ledger as the engine.
struct HalfStore {
    ledger: Ledger,
    shelves: BTreeMap<Boundary, (Allocation, Parcel)>,
}

impl Store for HalfStore {
    fn put(&mut self, boundary: Boundary, parcel: Parcel) -> Result<(), StoreError> {
        let bytes = Bytes::new(parcel.bytes().get().div_ceil(2));
        let memory = self.ledger.allocate(bytes);
        // A parcel is a handle to the engine's memory; a store keeps bytes of its own.
        let tensors = parcel.tensors.into_iter();
        let tensors = tensors.map(|t| PackedTensor { bytes: t.bytes.into_vec().into(), ..t }).collect();
        self.shelves.insert(boundary, (memory, Parcel { tensors, ..parcel }));
        Ok(())
    }
    fn prefetch(&mut self, _: Boundary) -> Result<(), StoreError> {
        Ok(())
    }
    fn take(&mut self, boundary: Boundary) -> Result<Parcel, StoreError> {
        let shelf = self.shelves.get(&boundary);
        shelf.map(|(_, parcel)| parcel.clone()).ok_or(StoreError::Absent { boundary })
    }
    fn forget(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        let shelf = self.shelves.remove(&boundary);
        shelf.map(|_| ()).ok_or(StoreError::Absent { boundary })
    }
}

/// The value of the input's gradient when nothing is stored.
fn plain(profile: &Profile) -> u64 {
    let actions = Rule::StoreAll.actions(profile.stages().len()).unwrap();
    let (schedule, _) = Schedule::judge(profile, &actions).unwrap();
    let mut engine = CountedEngine::new(profile.clone());
    let mut executor = Executor::<CountedEngine>::new(schedule, Stores::new());
    let input = engine.input();
    drop(executor.forward(&mut engine, input).unwrap());
    let gradient = engine.output_gradient();
    executor.backward(&mut engine, gradient).unwrap().value()
}

fn run(profile: &Profile, actions: &[Action]) {
    run_with(profile, actions, Box::new(HostStore::new(Bytes::new(1 << 20))));
}

/// The counted engine, noting its live and peak bytes around every call the executor makes.
fn run_with(profile: &Profile, actions: &[Action], tier: Box<dyn Store>) {
    let (schedule, simulation) = Schedule::judge(profile, actions).unwrap();
    let passes = profile.stages().iter().any(|stage| stage.passed_bytes > Bytes::ZERO);
    let mut engine = CountedEngine::new(profile.clone());
    let ledger = engine.ledger().clone();
    let half = HalfStore { ledger: ledger.clone(), shelves: BTreeMap::new() };
    let stores = Stores::from([(name("host"), tier), (name("half"), Box::new(half) as Box<dyn Store>)]);
    let mut executor = Executor::<CountedEngine>::new(schedule, stores).traced();
    let input = engine.input();
    let output = executor.forward(&mut engine, input).unwrap();
    // Handed out: from here on it is the caller's memory.
    drop(output);
    let gradient = engine.output_gradient();
    let gradient = executor.backward(&mut engine, gradient).unwrap();
    let events = executor.trace().unwrap().events();
    assert_eq!(events.len(), actions.len());
    for (index, (event, moment)) in events.iter().zip(&simulation.moments).enumerate() {
        let mut expected = moment.after;
        if index + 1 == simulation.turn {
            // The output is still in the caller's hands when the last forward action is noted; inside a tape it
            // costs nothing more.
            let last = profile.stages().last().unwrap();
            if matches!(event.action, Action::Forward { .. }) {
                expected = expected.checked_add(last.output_bytes).unwrap();
            }
        }
        let found = event.live_bytes.unwrap();
        // Boundaries that are kept with memory in common count as if they had none.
        let matches = if passes { found <= expected } else { found == expected };
        assert!(matches, "after action {index}, {}: {found}, expected {expected}", event.action);
    }
    assert!(ledger.peak() <= simulation.peak_bytes, "{actions:?}");
    assert!(passes || ledger.peak() == simulation.peak_bytes, "{actions:?}");
    assert_eq!(engine.forwards(), simulation.forwards);
    assert_eq!(gradient.value(), plain(profile), "{actions:?}");
    assert_eq!(executor.faults(), [], "{actions:?}");
    drop(gradient);
    drop(executor);
    assert_eq!(ledger.live(), Bytes::ZERO, "nothing is left");
}

/// The profile with stages that pass on so many percent of what they can.
fn passing(profile: &Profile, percent: &[u64]) -> Profile {
    let mut given = profile.input_bytes();
    let stages = profile.stages().iter().zip(percent).map(|(stage, percent)| {
        let passed_bytes = Bytes::new(given.min(stage.output_bytes).get() * percent / 100);
        given = stage.output_bytes;
        StageProfile { passed_bytes, ..stage.clone() }
    });
    let passing = Profile::new("passing", "none", profile.input_bytes(), stages.collect()).unwrap();
    passing.with_places(profile.tiers().to_vec(), profile.codecs().to_vec()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn live_bytes_equal_the_simulators_for_random_plans(
        profile in any_profile(),
        rolls in proptest::collection::vec(0..1000u32, 1..60),
    ) {
        run(&profile, &random_plan(profile.stages().len() as u32, &rolls));
    }

    #[test]
    fn memory_that_stages_pass_on_is_never_more_than_simulated(
        profile in any_profile(),
        percent in proptest::collection::vec(0..=100u64, 8),
        rolls in proptest::collection::vec(0..1000u32, 1..60),
    ) {
        let profile = passing(&profile, &percent);
        run(&profile, &random_plan(profile.stages().len() as u32, &rolls));
    }

    #[test]
    fn memory_that_stages_pass_on_is_in_all_tapes_once(
        profile in any_profile(), percent in proptest::collection::vec(0..=100u64, 8),
    ) {
        let profile = passing(&profile, &percent);
        let actions = Rule::StoreAll.actions(profile.stages().len()).unwrap();
        let (schedule, simulation) = Schedule::judge(&profile, &actions).unwrap();
        let mut engine = CountedEngine::new(profile);
        let mut executor = Executor::<CountedEngine>::new(schedule, Stores::new());
        let input = engine.input();
        drop(executor.forward(&mut engine, input).unwrap());
        let gradient = engine.output_gradient();
        executor.backward(&mut engine, gradient).unwrap();
        prop_assert_eq!(engine.ledger().peak(), simulation.peak_bytes);
    }

    #[test]
    fn measuring_finds_what_stages_pass_on(
        profile in any_profile(), percent in proptest::collection::vec(0..=100u64, 8),
    ) {
        let profile = passing(&profile, &percent);
        let mut engine = CountedEngine::new(profile.clone());
        let input = engine.input();
        let measuring = Measuring { runs: 1, ..Measuring::default() };
        let found = measure(&mut engine, input, measuring, &mut |_, _| {}).unwrap();
        for (found, expected) in found.stages.iter().zip(profile.stages()) {
            prop_assert_eq!(found.passed_bytes, expected.passed_bytes);
            prop_assert_eq!(found.tape_bytes, expected.tape_bytes);
        }
    }

    #[test]
    fn a_pool_that_tells_no_peak_is_looked_at_in_runs_whose_time_does_not_count(profile in any_profile()) {
        let measured = |mut engine: CountedEngine| {
            let input = engine.input();
            let measuring = Measuring { runs: 2, ..Measuring::default() };
            let found = measure(&mut engine, input, measuring, &mut |_, _| {}).unwrap();
            let sizes = found.stages.into_iter().map(|stage| {
                let options = stage.options.iter().map(|option| (option.tape_bytes, option.backward_extra_bytes));
                let extra = (stage.forward_extra_bytes, stage.backward_extra_bytes);
                (stage.output_bytes, stage.tape_bytes, extra, options.collect::<Vec<_>>())
            });
            (sizes.collect::<Vec<_>>(), engine.forwards())
        };
        let (counted, runs) = measured(CountedEngine::new(profile.clone()));
        let (looked_at, more_runs) = measured(CountedEngine::new(profile.clone()).with_a_pool());
        prop_assert_eq!(counted, looked_at);
        prop_assert!(more_runs > runs, "peaks were looked for in runs of their own");
    }

    #[cfg(unix)]
    #[test]
    fn live_bytes_equal_the_simulators_when_threads_write_and_read_a_file(
        profile in any_profile(),
        rolls in proptest::collection::vec(0..1000u32, 1..60),
    ) {
        let file = file();
        let store: Box<dyn Store> = match rolls[0] % 2 {
            0 => Box::new(file.store()),
            _ => Box::new(Coded::new(Lz4, file.store())),
        };
        run_with(&profile, &random_plan(profile.stages().len() as u32, &rolls), store);
        prop_assert_eq!(file.used(), Bytes::ZERO);
    }

    #[test]
    fn live_bytes_equal_the_simulators_for_every_rule(profile in any_profile(), k in 1..10usize) {
        let rules = [Rule::StoreAll, Rule::Full, Rule::SquareRoot, format!("every-{k}").parse().unwrap()];
        for rule in rules {
            run(&profile, &rule.actions(profile.stages().len()).unwrap());
        }
    }

    #[test]
    fn live_bytes_equal_the_simulators_for_policies(
        profile in any_profile(),
        wishes in proptest::collection::vec((0..4u32, 0..4u32), 9),
    ) {
        let named = |(index, stage): (usize, &StageProfile)| StageProfile {
            name: format!("stage.{index}"),
            ..stage.clone()
        };
        let stages = profile.stages().iter().enumerate().map(named).collect();
        let named = Profile::new("named", "none", profile.input_bytes(), stages).unwrap();
        let named = named.with_places(profile.tiers().to_vec(), profile.codecs().to_vec()).unwrap();
        let mut policy = Policy::recompute_all();
        for ((stage, input), profile) in wishes.into_iter().zip(named.stages()) {
            policy = match stage {
                0 => policy.pin(profile.name.as_str()),
                1 => policy.tape(profile.name.as_str(), "light"),
                _ => policy,
            };
            let input_of = format!("{}.input", profile.name);
            policy = match input {
                0 => policy.keep(input_of),
                1 => policy.offload(input_of, "host"),
                2 => policy.compress(input_of, "half"),
                _ => policy,
            };
        }
        run(&named, &policy.actions(&named).unwrap());
    }
}

/// One file for all cases, as for all steps of a training.
#[cfg(unix)]
fn file() -> rekindle_run::DiskFile {
    thread_local! {
        static FILE: (tempfile::TempDir, rekindle_run::DiskFile) = {
            let directory = tempfile::tempdir().unwrap();
            let file = rekindle_run::DiskFile::open(directory.path(), Bytes::new(1 << 20)).unwrap();
            (directory, file)
        };
    }
    FILE.with(|(_, file)| file.clone())
}

fn chain(stages: usize) -> Profile {
    let stages = (0..stages).map(|index| StageProfile {
        name: format!("stage.{index}"),
        output_bytes: Bytes::new(1),
        tape_bytes: Bytes::new(3),
        ..StageProfile::default()
    });
    Profile::new("chain", "none", Bytes::new(1), stages.collect()).unwrap()
}

#[test]
fn full_keeps_a_constant_number_of_boundaries_whatever_the_length() {
    for stages in [1, 2, 10, 200] {
        let profile = chain(stages);
        let actions = Rule::Full.actions(stages).unwrap();
        let (schedule, simulation) = Schedule::judge(&profile, &actions).unwrap();
        let mut engine = CountedEngine::new(profile);
        let mut executor = Executor::<CountedEngine>::new(schedule, Stores::new());
        let input = engine.input();
        drop(executor.forward(&mut engine, input).unwrap());
        assert_eq!(executor.kept().count(), 1, "{stages} stages");
        let gradient = engine.output_gradient();
        executor.backward(&mut engine, gradient).unwrap();
        // x0, one more boundary, one tape, one gradient: 6 bytes at the most.
        assert!(simulation.peak_bytes <= Bytes::new(6), "{stages}: {}", simulation.peak_bytes);
        assert_eq!(engine.ledger().peak(), simulation.peak_bytes);
    }
}

#[test]
fn ten_thousand_stages_under_sqrt_run_without_deep_recursion() {
    let actions = Rule::SquareRoot.actions(10_000).unwrap();
    // A stack far smaller than one frame per stage would take.
    let small_stack = std::thread::Builder::new().stack_size(64 << 10);
    small_stack.spawn(move || run(&chain(10_000), &actions)).unwrap().join().unwrap();
}

#[test]
fn a_place_without_a_store_is_named() {
    let tier = Tier {
        name: name("host"),
        capacity_bytes: Bytes::new(100),
        write_bytes_per_second: 1,
        read_bytes_per_second: 1,
    };
    let profile = chain(2).with_places(vec![tier], vec![]).unwrap();
    let text = "keep x0/forward 1/offload x0 host/drop x0/tape 2/backward 2/fetch x0 host/drop x0 host/tape 1/backward 1";
    let actions: Vec<Action> = text.split('/').map(|line| line.parse().unwrap()).collect();
    let (schedule, _) = Schedule::judge(&profile, &actions).unwrap();
    let mut engine = CountedEngine::new(profile);
    let mut executor = Executor::<CountedEngine>::new(schedule, Stores::new());
    let input = engine.input();
    let error = executor.forward(&mut engine, input).unwrap_err();
    assert!(matches!(&error, RunError::NoStore { place, .. } if place.as_str() == "host"));
    assert_eq!(error.to_string(), "`offload x0 host` needs a store named `host`, but this run has: (none)");
    // A run that failed cannot go on.
    let input = engine.input();
    assert!(matches!(executor.forward(&mut engine, input), Err(RunError::OutOfTurn { .. })));
    let gradient = engine.output_gradient();
    assert!(matches!(executor.backward(&mut engine, gradient), Err(RunError::OutOfTurn { .. })));
}

#[test]
fn the_counted_engine_finds_a_mix_up() {
    let mut engine = CountedEngine::new(chain(3));
    let input = engine.input();
    let error = engine.forward(Stage::new(2), input).unwrap_err();
    assert_eq!(error.to_string(), "forward 2 got x0, expected x1");
}

proptest! {
    #[test]
    fn measuring_finds_the_sizes_the_engine_was_made_with(profile in any_profile()) {
        // A gradient that is larger than all that was there before would hide the workspace; of the
        // workspaces of both forwards the larger one is found.
        let stages = profile.stages().iter().map(|stage| StageProfile {
            gradient_bytes: None,
            taped_extra_bytes: None,
            parameter_gradient_bytes: Bytes::ZERO,
            backward_extra_bytes: Bytes::new(60),
            tape_bytes: Bytes::new(stage.tape_bytes.get() + 50),
            ..stage.clone()
        });
        let profile = Profile::new("sizes", "none", profile.input_bytes(), stages.collect()).unwrap();
        let mut engine = CountedEngine::new(profile.clone());
        let input = engine.input();
        let mut told = 0;
        let found = measure(&mut engine, input, Measuring::default(), &mut |_, _| told += 1).unwrap();
        prop_assert_eq!(told, profile.stages().len());
        let sizes = |stage: &StageProfile| {
            let options = stage.options.iter().map(|option| (option.name.clone(), option.tape_bytes));
            (
                stage.name.clone(),
                (stage.output_bytes, stage.tape_bytes, options.collect::<Vec<_>>()),
                (stage.forward_extra_bytes, stage.backward_extra_bytes, stage.gradient_bytes),
            )
        };
        for (found, expected) in found.stages.iter().zip(profile.stages()) {
            prop_assert_eq!(sizes(found), sizes(expected));
        }
        prop_assert_eq!(found.into_profile("sizes", "none").unwrap().fingerprint(), profile.fingerprint());
        prop_assert_eq!(engine.ledger().live(), Bytes::ZERO, "nothing is left behind");
    }
}
