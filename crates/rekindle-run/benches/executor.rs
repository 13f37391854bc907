//! What the executor itself costs an action, on an engine that computes nothing.

use divan::{Bencher, counter::ItemsCount};
use rekindle_plan::{Bytes, Profile, Rule, Schedule, StageProfile};
use rekindle_run::counted::CountedEngine;
use rekindle_run::{Executor, RunError, Stores};

fn main() {
    divan::main();
}

fn chain(stages: usize) -> Profile {
    let stages = (0..stages).map(|index| StageProfile {
        name: format!("block.{index}"),
        output_bytes: Bytes::mebibytes(1),
        tape_bytes: Bytes::mebibytes(32),
        ..StageProfile::default()
    });
    Profile::new("bench", "none", Bytes::mebibytes(1), stages.collect())
        .unwrap_or_else(|error| panic!("{error}"))
}

type Failure = RunError<<CountedEngine as rekindle_run::Engine>::Error>;

fn step(engine: &mut CountedEngine, executor: &mut Executor<CountedEngine>) -> Result<(), Failure> {
    let input = engine.input();
    drop(executor.forward(engine, input)?);
    let gradient = engine.output_gradient();
    executor.backward(engine, gradient).map(drop)
}

/// A whole step, actions as items: the time over the items is the time an action takes.
fn run(bencher: Bencher, rule: Rule, stages: usize) {
    let profile = chain(stages);
    let actions = rule.actions(stages).unwrap_or_else(|error| panic!("{error}"));
    let (schedule, _) = Schedule::judge(&profile, &actions).unwrap_or_else(|error| panic!("{error}"));
    let ready = || {
        let executor = Executor::<CountedEngine>::new(schedule.clone(), Stores::new());
        (CountedEngine::new(profile.clone()), executor)
    };
    let (mut engine, mut executor) = ready();
    // A step that fails would be over in no time.
    step(&mut engine, &mut executor).unwrap_or_else(|error| panic!("{error}"));
    bencher
        .counter(ItemsCount::new(actions.len()))
        .with_inputs(ready)
        .bench_local_refs(|(engine, executor)| step(engine, executor));
}

#[divan::bench(args = [24, 1_000])]
fn store_all(bencher: Bencher, stages: usize) {
    run(bencher, Rule::StoreAll, stages);
}

#[divan::bench(args = [24, 1_000])]
fn sqrt(bencher: Bencher, stages: usize) {
    run(bencher, Rule::SquareRoot, stages);
}
