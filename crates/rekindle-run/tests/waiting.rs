//! What of a transfer's time is waited for, and what is hidden behind computing: with engines, stores and codecs that sleep.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::thread::sleep;
use std::time::Duration;

use rekindle_plan::{
    Action, Boundary, Bytes, Codec as CodecProfile, Name, Nanos, Profile, Schedule, Stage, StageProfile,
};
use rekindle_run::codec::{Codec, CodecError};
use rekindle_run::counted::{CountedBoundary, CountedEngine, CountedError, CountedGradient, CountedTape};
use rekindle_run::{Coded, Engine, Executor, OwnMemory, PackedTensor, Parcel, Store, Stores, Trace, Way};

/// Large enough for the codec's threads.
const BYTES: u64 = 128 << 10;

/// The counted engine, as slow as it is told to be.
struct Slow {
    engine: CountedEngine,
    stage: Duration,
    handing: Duration,
}

impl Engine for Slow {
    type Boundary = CountedBoundary;
    type Tape = CountedTape;
    type Gradient = CountedGradient;
    type Error = CountedError;

    fn forward(&mut self, stage: Stage, input: CountedBoundary) -> Result<CountedBoundary, CountedError> {
        sleep(self.stage);
        self.engine.forward(stage, input)
    }

    fn tape(
        &mut self,
        stage: Stage,
        option: Option<&Name>,
        input: CountedBoundary,
    ) -> Result<(CountedTape, CountedBoundary), CountedError> {
        sleep(self.stage);
        self.engine.tape(stage, option, input)
    }

    fn backward(
        &mut self,
        stage: Stage,
        tape: CountedTape,
        gradient: CountedGradient,
    ) -> Result<CountedGradient, CountedError> {
        sleep(self.stage);
        self.engine.backward(stage, tape, gradient)
    }

    fn boundary_bytes(&self, boundary: &CountedBoundary) -> Bytes {
        self.engine.boundary_bytes(boundary)
    }

    fn export(&mut self, boundary: &CountedBoundary) -> Result<Parcel, CountedError> {
        sleep(self.handing);
        self.engine.export(boundary)
    }

    fn import(&mut self, parcel: Parcel) -> Result<CountedBoundary, CountedError> {
        sleep(self.handing);
        self.engine.import(parcel)
    }
}

/// Leaves every byte as it is, and takes its time.
#[derive(Debug)]
struct Lazy(Duration);

impl Codec for Lazy {
    fn name(&self) -> &'static str {
        "lazy"
    }

    fn is_lossless(&self) -> bool {
        true
    }

    fn takes(&self, _: &PackedTensor) -> bool {
        true
    }

    fn encoded_length(&self, length: usize) -> Option<usize> {
        Some(length)
    }

    fn encode(&self, bytes: &[u8], _: usize) -> Vec<u8> {
        sleep(self.0);
        bytes.to_vec()
    }

    fn decode(&self, encoded: &[u8], _: usize, into: &mut [u8]) -> Result<(), CodecError> {
        sleep(self.0);
        into.copy_from_slice(encoded);
        Ok(())
    }
}

/// Four stages whose inputs go away while the next one runs, and come back while the one before goes back.
const PLAN: &str = "keep x0/compress x0 lazy/forward 1/drop x0/keep x1/compress x1 lazy/forward 2/drop x1/\
    keep x2/compress x2 lazy/forward 3/drop x2/tape 4/fetch x2 lazy/backward 4/fetch x1 lazy/tape 3/drop x2 lazy/\
    backward 3/fetch x0 lazy/tape 2/drop x1 lazy/backward 2/tape 1/drop x0 lazy/backward 1";

/// What a step comes to whose stages, transfers and copies take so many milliseconds each.
fn step(stage: u64, transfer: u64, handing: u64) -> Trace {
    let of = |number: u64| StageProfile {
        name: format!("stage.{number}"),
        output_bytes: Bytes::new(BYTES),
        tape_bytes: Bytes::new(2 * BYTES),
        forward_ns: Nanos::new(1),
        backward_ns: Nanos::new(1),
        ..StageProfile::default()
    };
    let name: Name = "lazy".parse().unwrap();
    let codec = CodecProfile {
        name: name.clone(),
        bytes_per_kibibyte: 1024,
        compress_bytes_per_second: 1 << 30,
        restore_bytes_per_second: 1 << 30,
    };
    let profile = Profile::new("four", "none", Bytes::new(BYTES), (1..=4).map(of).collect()).unwrap();
    let profile = profile.with_places(vec![], vec![codec]).unwrap();
    let actions: Vec<Action> = PLAN.split('/').map(|action| action.parse().unwrap()).collect();
    let (schedule, _) = Schedule::judge(&profile, &actions).unwrap();
    let [stage, transfer, handing] = [stage, transfer, handing].map(Duration::from_millis);
    let store: Box<dyn Store> = Box::new(Coded::new(Lazy(transfer), OwnMemory::new()));
    let mut engine = Slow { engine: CountedEngine::new(profile), stage, handing };
    let mut executor = Executor::new(schedule, Stores::from([(name, store)])).traced();
    let input = engine.engine.input();
    drop(executor.forward(&mut engine, input).unwrap());
    let gradient = engine.engine.output_gradient();
    executor.backward(&mut engine, gradient).unwrap();
    assert!(executor.faults().is_empty(), "{:?}", executor.faults());
    executor.trace().unwrap().clone()
}

fn milliseconds(count: u64) -> Nanos {
    Duration::from_millis(count).into()
}

#[test]
fn transfers_that_are_shorter_than_the_stages_beside_them_are_hidden() {
    // A machine that is busy wakes threads late: one quiet step out of a few is enough to show it.
    let hidden = (0..5).any(|_| step(40, 20, 0).hidden().is_some_and(|hidden| hidden >= 0.9));
    assert!(hidden, "in none of five steps 90% of the transfers' time was hidden");
}

#[test]
fn transfers_that_are_longer_than_the_stages_beside_them_are_waited_for() {
    let trace = step(10, 40, 0);
    // Three boundaries out and back, of which ten milliseconds each can be hidden.
    assert!(trace.waited() >= milliseconds(6 * 20), "{}", trace.waited());
    assert!(trace.hidden().unwrap() < 0.9, "{:?}", trace.hidden());
}

#[test]
fn what_a_codec_takes_is_in_the_transfers() {
    let trace = step(0, 20, 0);
    let ways: Vec<(Way, Boundary)> =
        trace.transfers().iter().map(|moved| (moved.way, moved.boundary)).collect();
    let x = Boundary::new;
    let of = |way: Way, numbers: [u32; 3]| numbers.map(|number| (way, x(number)));
    assert_eq!(ways, [of(Way::Out, [0, 1, 2]), of(Way::Back, [2, 1, 0])].concat());
    for moved in trace.transfers() {
        // What it was before it was encoded.
        assert_eq!(moved.bytes, Bytes::new(BYTES));
        let took = moved.end.saturating_sub(moved.start);
        assert!(took >= milliseconds(20), "{took}");
    }
    assert!(trace.transfer_time() >= milliseconds(6 * 20));
}

#[test]
fn what_an_engine_takes_to_hand_boundaries_out_and_in_is_waited_for() {
    let trace = step(20, 0, 30);
    // Three times out and three times in, with computing standing still.
    assert!(trace.waited() >= milliseconds(6 * 30), "{}", trace.waited());
    assert!(trace.transfer_time() >= milliseconds(6 * 30), "{}", trace.transfer_time());
    assert!(trace.hidden().unwrap() < 0.2, "{:?}", trace.hidden());
    let of = |what: &str| {
        trace.events().iter().find(|event| event.action.to_string() == what).map(|event| event.waited)
    };
    assert!(of("compress x1 lazy").unwrap() >= milliseconds(30));
    assert!(of("tape 3").unwrap() >= milliseconds(30));
}
