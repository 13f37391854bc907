//! Any actions on any profile are legal or refused, never a panic; and what is legal takes on the counted engine what
//! the simulator said.
//!
//! The input is the profile's JSON, a line `---`, and one action a line. A marker rather than the middle of the bytes,
//! so that a mutation of one part leaves the other what it was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rekindle_plan::{Action, Bytes, Name, Profile, Schedule};
use rekindle_run::counted::CountedEngine;
use rekindle_run::{Executor, HostStore, Store, Stores};

/// The counted engine makes real bytes of what it exports.
const SMALL: Bytes = Bytes::mebibytes(1);

fuzz_target!(|text: &str| {
    let Some((profile, lines)) = text.split_once("\n---\n") else {
        return;
    };
    let Ok(profile) = Profile::from_json(profile) else {
        return;
    };
    // A line that is no action is left out: most mutations break one, and the others still make a plan.
    let actions: Vec<Action> = lines.lines().filter_map(|line| line.parse().ok()).collect();
    let (schedule, simulation) = match Schedule::judge(&profile, &actions) {
        Ok(judged) => judged,
        Err(illegal) => {
            assert!(illegal.index <= actions.len());
            assert!(!illegal.to_string().is_empty());
            return;
        }
    };
    let tensors = simulation.peak_tensors.iter().map(|live| live.bytes);
    assert_eq!(Bytes::checked_sum(tensors), Some(simulation.peak_bytes));
    assert!(simulation.step_ns >= profile.lower_bound());

    // A codec's copy lies on the device, which a store in host memory cannot count.
    let compresses = |action: &Action| matches!(action, Action::Compress { .. });
    if simulation.peak_bytes > SMALL || actions.iter().any(compresses) {
        return;
    }
    let host = |name: &Name, limit| {
        (
            name.clone(),
            Box::new(HostStore::new(limit)) as Box<dyn Store>,
        )
    };
    let tiers = profile.tiers().iter();
    let stores: Stores = tiers
        .map(|tier| host(&tier.name, tier.capacity_bytes))
        .collect();
    let mut engine = CountedEngine::new(profile);
    let mut executor = Executor::<CountedEngine>::new(schedule, stores);
    let input = engine.input();
    let output = executor
        .forward(&mut engine, input)
        .expect("a judged plan runs");
    // From here on it is the caller's memory.
    drop(output);
    let gradient = engine.output_gradient();
    let gradient = executor
        .backward(&mut engine, gradient)
        .expect("a judged plan runs");
    assert_eq!(engine.ledger().peak(), simulation.peak_bytes);
    assert_eq!(engine.forwards(), simulation.forwards);
    drop((gradient, executor));
    assert_eq!(engine.ledger().live(), Bytes::ZERO);
});
