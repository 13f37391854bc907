//! A store that fails costs time or memory, never the right gradient.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use rekindle_plan::{Action, Boundary, Bytes, Name, Profile, Rule, Schedule, Stage, StageProfile, Tier};
use rekindle_run::counted::CountedEngine;
use rekindle_run::{Executor, HostStore, Parcel, Recovery, Remedy, RunError, Store, StoreError, Stores};

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn x(number: u32) -> Boundary {
    Boundary::new(number)
}

fn tier(text: &str) -> Tier {
    Tier {
        name: name(text),
        capacity_bytes: Bytes::new(1 << 20),
        write_bytes_per_second: 1_000_000_000,
        read_bytes_per_second: 1_000_000_000,
    }
}

/// Boundaries of 16 bytes, and these stages pinned.
fn chain(stages: usize, pinned: &[usize]) -> Profile {
    let stages = (1..=stages).map(|number| StageProfile {
        name: format!("stage.{number}"),
        output_bytes: Bytes::new(16),
        tape_bytes: Bytes::new(48),
        pinned: pinned.contains(&number),
        ..StageProfile::default()
    });
    let profile = Profile::new("chain", "none", Bytes::new(16), stages.collect()).unwrap();
    profile.with_places(vec![tier("host"), tier("disk")], vec![]).unwrap()
}

fn actions(text: &str) -> Vec<Action> {
    text.split('/').map(|line| line.parse().unwrap()).collect()
}

/// What a store does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Put,
    Wait,
    Prefetch,
    Take,
}

/// A store that fails for one boundary, or for all.
struct Broken {
    wrong: Wrong,
    only: Option<Boundary>,
    parcels: BTreeMap<Boundary, Parcel>,
    asked: Arc<AtomicU32>,
}

impl Broken {
    fn new(wrong: Wrong, only: Option<Boundary>) -> Self {
        Self { wrong, only, parcels: BTreeMap::new(), asked: Arc::default() }
    }

    fn check(&mut self, now: Wrong, boundary: Boundary) -> Result<(), StoreError> {
        if now == self.wrong && self.only.is_none_or(|only| only == boundary) {
            self.asked.fetch_add(1, Ordering::Relaxed);
            if now == Wrong::Wait {
                self.parcels.remove(&boundary);
            }
            return Err(StoreError::Failed { message: format!("{now:?} went wrong") });
        }
        Ok(())
    }
}

impl Store for Broken {
    fn put(&mut self, boundary: Boundary, parcel: Parcel) -> Result<(), StoreError> {
        self.check(Wrong::Put, boundary)?;
        self.parcels.insert(boundary, parcel);
        Ok(())
    }
    fn wait(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        self.check(Wrong::Wait, boundary)?;
        if let Some(parcel) = self.parcels.get_mut(&boundary) {
            for tensor in &mut parcel.tensors {
                tensor.bytes = tensor.bytes.as_slice().to_vec().into();
            }
        }
        Ok(())
    }
    fn prefetch(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        self.check(Wrong::Prefetch, boundary)
    }
    fn take(&mut self, boundary: Boundary) -> Result<Parcel, StoreError> {
        self.check(Wrong::Take, boundary)?;
        self.parcels.get(&boundary).cloned().ok_or(StoreError::Absent { boundary })
    }
    fn forget(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        self.parcels.remove(&boundary).map(drop).ok_or(StoreError::Absent { boundary })
    }
}

type Failure = RunError<rekindle_run::counted::CountedError>;

struct Ran {
    gradient: u64,
    executor: Executor<CountedEngine>,
    engine: CountedEngine,
}

fn run(profile: &Profile, actions: &[Action], stores: Stores) -> Result<Ran, Failure> {
    let (schedule, _) = Schedule::judge(profile, actions).unwrap();
    let mut engine = CountedEngine::new(profile.clone());
    let mut executor = Executor::<CountedEngine>::new(schedule, stores).traced();
    let input = engine.input();
    drop(executor.forward(&mut engine, input)?);
    let gradient = engine.output_gradient();
    let gradient = executor.backward(&mut engine, gradient)?.value();
    assert_eq!(executor.kept().count(), 0, "nothing stays behind");
    let noted = executor.trace().unwrap().faults().count();
    assert_eq!(noted, executor.faults().len(), "every fault stands in the trace");
    Ok(Ran { gradient, executor, engine })
}

fn plain(profile: &Profile) -> u64 {
    let actions = Rule::StoreAll.actions(profile.stages().len()).unwrap();
    run(profile, &actions, Stores::new()).unwrap().gradient
}

fn stores(host: impl Store + 'static) -> Stores {
    let disk = HostStore::new(Bytes::MAX);
    Stores::from([(name("host"), Box::new(host) as Box<dyn Store>), (name("disk"), Box::new(disk))])
}

/// x0 stays; x2 goes to the host and comes back.
const KEPT_INPUT: &str = "keep x0/forward 1/forward 2/keep x2/forward 3/offload x2 host/drop x2/tape 4/backward 4/\
    fetch x2 host/tape 3/drop x2 host/backward 3/forward 1/tape 2/backward 2/tape 1/drop x0/backward 1";
/// Only x0 goes anywhere, so nothing is left that it could be computed from.
const ONLY_INPUT: &str = "keep x0/forward 1/offload x0 host/drop x0/tape 2/backward 2/fetch x0 host/tape 1/\
    drop x0 host/backward 1";

#[test]
fn whatever_goes_wrong_the_boundary_is_computed_again_from_the_one_before() {
    let profile = chain(4, &[]);
    for wrong in [Wrong::Put, Wrong::Wait, Wrong::Prefetch, Wrong::Take] {
        let ran = run(&profile, &actions(KEPT_INPUT), stores(Broken::new(wrong, None))).unwrap();
        assert_eq!(ran.gradient, plain(&profile), "{wrong:?}");
        let expected = Recovery { boundary: x(2), remedy: Remedy::Recomputed(x(0)) };
        assert_eq!(ran.executor.recoveries(), [expected], "{wrong:?}");
        let [fault] = ran.executor.faults() else { panic!("{:?}", ran.executor.faults()) };
        assert_eq!((fault.boundary, &fault.place), (x(2), &name("host")));
        assert_eq!(fault.remedy, Some(Remedy::Recomputed(x(0))), "{wrong:?}");
        assert!(fault.to_string().ends_with("; it was computed again from x0"), "{fault}");
        // Stages 1 and 2 once more than the plan says.
        assert_eq!(ran.engine.forwards(), 4 + 4 + 2, "{wrong:?}");
        // The action that brought it back says so.
        let trace = ran.executor.trace().unwrap();
        let recovered: Vec<_> = trace.events().iter().filter(|event| !event.recoveries.is_empty()).collect();
        let expected = if wrong == Wrong::Take { "tape 3" } else { "fetch x2 host" };
        assert_eq!(recovered.len(), 1);
        assert_eq!(recovered[0].action.to_string(), expected);
    }
}

#[test]
fn a_put_that_failed_keeps_the_boundary_when_nothing_could_bring_it_back() {
    let profile = chain(2, &[]);
    for wrong in [Wrong::Put, Wrong::Wait] {
        let ran = run(&profile, &actions(ONLY_INPUT), stores(Broken::new(wrong, None))).unwrap();
        assert_eq!(ran.gradient, plain(&profile), "{wrong:?}");
        assert_eq!(ran.executor.recoveries(), [Recovery { boundary: x(0), remedy: Remedy::Kept }]);
        let [fault] = ran.executor.faults() else { panic!("{:?}", ran.executor.faults()) };
        assert_eq!(
            (&fault.remedy, fault.bytes),
            (&Some(Remedy::Kept), profile.boundary_bytes(x(0)).unwrap())
        );
        let words = format!("; it is kept on the device, {} over the plan", fault.bytes);
        assert!(fault.to_string().ends_with(&words), "{fault}");
        assert_eq!(ran.engine.forwards(), 3, "nothing was computed again, beyond the plan");
        drop(ran.executor);
        assert_eq!(ran.engine.ledger().live(), Bytes::ZERO);
    }
}

#[test]
fn damage_that_nothing_can_repair_is_an_error_and_not_a_gradient() {
    let profile = chain(2, &[]);
    for wrong in [Wrong::Prefetch, Wrong::Take] {
        let error = run(&profile, &actions(ONLY_INPUT), stores(Broken::new(wrong, None))).err().unwrap();
        assert!(matches!(&error, RunError::Lost { boundary, .. } if *boundary == x(0)), "{error}");
        let at = if wrong == Wrong::Take { "tape 1" } else { "fetch x0 host" };
        let words =
            format!("`{at}` needs x0, which is lost and cannot be computed again: {wrong:?} went wrong");
        assert_eq!(error.to_string(), words);
    }
}

#[test]
fn a_pinned_stage_is_not_run_again_to_get_a_boundary_back() {
    // x2 lies in the tape of the pinned stage 2, and x3 is computed from there.
    let profile = chain(5, &[2]);
    let text = "keep x0/forward 1/tape 2/forward 3/keep x3/forward 4/offload x3 host/drop x3/tape 5/backward 5/\
        fetch x3 host/tape 4/drop x3 host/backward 4/tape 3/backward 3/backward 2/tape 1/drop x0/backward 1";
    for wrong in [Wrong::Put, Wrong::Wait, Wrong::Prefetch, Wrong::Take] {
        let ran = run(&profile, &actions(text), stores(Broken::new(wrong, None))).unwrap();
        assert_eq!(ran.gradient, plain(&profile));
        assert_eq!(ran.engine.forwards_of(Stage::new(2)), 1);
        let expected = Recovery { boundary: x(3), remedy: Remedy::Recomputed(x(2)) };
        assert_eq!(ran.executor.recoveries(), [expected], "{wrong:?}");
    }
}

#[test]
fn another_copy_is_better_than_computing() {
    let profile = chain(2, &[]);
    let text = "keep x0/forward 1/offload x0 host/offload x0 disk/drop x0/tape 2/backward 2/fetch x0 host/tape 1/\
        drop x0 host/drop x0 disk/backward 1";
    for wrong in [Wrong::Put, Wrong::Wait, Wrong::Prefetch, Wrong::Take] {
        let ran = run(&profile, &actions(text), stores(Broken::new(wrong, None))).unwrap();
        assert_eq!(ran.gradient, plain(&profile));
        let expected = Recovery { boundary: x(0), remedy: Remedy::Copy(name("disk")) };
        assert_eq!(ran.executor.recoveries(), [expected], "{wrong:?}");
    }
}

#[test]
fn the_host_limit_reached_in_the_middle_of_a_step() {
    let profile = chain(4, &[]);
    let text = "keep x0/forward 1/offload x0 host/drop x0/keep x1/forward 2/offload x1 host/drop x1/keep x2/forward 3/\
        offload x2 host/drop x2/tape 4/backward 4/fetch x2 host/drop x2 host/tape 3/backward 3/fetch x1 host/\
        drop x1 host/tape 2/backward 2/fetch x0 host/drop x0 host/tape 1/backward 1";
    // Room for one boundary and a half; the plan was made for a machine with more.
    let ran = run(&profile, &actions(text), stores(HostStore::new(Bytes::new(24)))).unwrap();
    assert_eq!(ran.gradient, plain(&profile));
    assert_eq!(ran.executor.faults().len(), 2);
    assert!(ran.executor.faults().iter().all(|fault| matches!(fault.error, StoreError::Full { .. })));
    let from = |boundary| Recovery { boundary, remedy: Remedy::Recomputed(x(0)) };
    assert_eq!(ran.executor.recoveries(), [from(x(2)), from(x(1))]);
}

/// Random plans over stores that fail at random.
fn random_plan(stages: u32, rolls: &[u32]) -> Vec<Action> {
    fn segment(actions: &mut Vec<Action>, dice: &mut dyn FnMut(u32) -> u32, first: u32, last: u32) {
        let stage = Stage::new(first);
        if first == last || dice(3) == 0 {
            actions.push(Action::tape(stage));
            if first < last {
                segment(actions, dice, first + 1, last);
            }
            actions.push(Action::backward(stage));
            return;
        }
        let boundary = stage.input();
        let middle = first + 1 + dice(last - first);
        // A boundary that a tape includes is not released by the plan below.
        let taped = matches!(actions.last(), Some(Action::Tape { .. }));
        actions.push(Action::keep(boundary));
        actions.push(Action::forward(stage));
        let place = [Some("host"), Some("disk"), None][dice(3) as usize].map(name).filter(|_| !taped);
        if let Some(tier) = place.clone() {
            actions.push(Action::Offload { boundary, tier });
            actions.push(Action::drop(boundary));
        }
        actions.extend((first + 1..middle).map(|number| Action::forward(Stage::new(number))));
        segment(actions, dice, middle, last);
        match place {
            Some(place) => {
                actions.push(Action::Fetch { boundary, place: place.clone() });
                actions.push(Action::Drop { boundary, place: Some(place) });
                segment(actions, dice, first, middle - 1);
            }
            None => {
                segment(actions, dice, first, middle - 1);
                let position = actions.iter().rposition(|action| *action == Action::backward(stage));
                actions.insert(position.unwrap_or(actions.len()), Action::drop(boundary));
            }
        }
    }
    let mut rolls = rolls.iter().cycle();
    let mut dice = move |sides: u32| rolls.next().map_or(0, |roll| roll % sides);
    let mut actions = Vec::new();
    segment(&mut actions, &mut dice, 1, stages);
    actions
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 3000, failure_persistence: None, max_global_rejects: 100_000, ..ProptestConfig::default()
    })]
    #[test]
    fn stores_that_fail_at_random_never_make_a_wrong_gradient(
        stages in 1..9u32,
        rolls in proptest::collection::vec(0..1000u32, 1..60),
        wrong in prop_oneof![Just(Wrong::Put), Just(Wrong::Wait), Just(Wrong::Prefetch), Just(Wrong::Take)],
        only in proptest::option::of(0..8u32),
        pinned in proptest::collection::vec(1..9usize, 0..2),
    ) {
        let actions = random_plan(stages, &rolls);
        let profile = chain(stages as usize, &pinned);
        // Not every such plan is legal; a pinned stage must not run twice.
        prop_assume!(Schedule::judge(&profile, &actions).is_ok());
        match run(&profile, &actions, stores(Broken::new(wrong, only.map(x)))) {
            Ok(ran) => {
                prop_assert_eq!(ran.gradient, plain(&profile));
                for number in pinned.iter().filter(|number| **number <= stages as usize) {
                    prop_assert_eq!(ran.engine.forwards_of(Stage::new(*number as u32)), 1);
                }
            }
            // Only what was found when it was too late may stop a run.
            Err(error) => prop_assert!(
                matches!(error, RunError::Lost { .. }) && matches!(wrong, Wrong::Prefetch | Wrong::Take),
                "{:?}: {}", wrong, error
            ),
        }
    }
}
