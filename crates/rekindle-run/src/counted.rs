//! An engine without tensors: every allocation is a number in a ledger.
//!
//! It does with memory exactly what a profile says a framework does, so the executor's real peak can be held against
//! the simulator's, byte for byte, for every plan there is.

use std::cell::Cell;
use std::rc::Rc;

use rekindle_plan::{Boundary, Bytes, Name, Profile, Stage, StageProfile};

use crate::{Engine, Measurable, PackedTensor, Parcel};

/// What is allocated now, and the most that was since the last [`Ledger::reset_peak`].
#[derive(Clone, Debug, Default)]
pub struct Ledger(Rc<LedgerState>);

#[derive(Debug, Default)]
struct LedgerState {
    live: Cell<u64>,
    peak: Cell<u64>,
    /// The peak since the last lap.
    lap: Cell<u64>,
}

impl Ledger {
    /// What is allocated now.
    pub fn live(&self) -> Bytes {
        Bytes::new(self.0.live.get())
    }

    /// The most that was allocated at once.
    pub fn peak(&self) -> Bytes {
        Bytes::new(self.0.peak.get())
    }

    /// Starts to look for the peak anew.
    pub fn reset_peak(&self) {
        self.0.peak.set(self.0.live.get());
    }

    /// The most that was allocated at once since this was last asked.
    pub fn lap(&self) -> Bytes {
        Bytes::new(self.0.lap.replace(self.0.live.get()))
    }

    /// Allocates; the memory is free when the last handle is gone.
    pub fn allocate(&self, bytes: Bytes) -> Allocation {
        let live = self.0.live.get() + bytes.get();
        self.0.live.set(live);
        self.0.peak.set(self.0.peak.get().max(live));
        self.0.lap.set(self.0.lap.get().max(live));
        Allocation(Rc::new(Counted { ledger: self.0.clone(), bytes }))
    }
}

/// A piece of counted memory.
#[derive(Clone, Debug)]
pub struct Allocation(Rc<Counted>);

#[derive(Debug)]
struct Counted {
    ledger: Rc<LedgerState>,
    bytes: Bytes,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.ledger.live.set(self.ledger.live.get() - self.bytes.get());
    }
}

impl Allocation {
    /// Its size.
    pub fn bytes(&self) -> Bytes {
        self.0.bytes
    }
}

/// A boundary that knows which one it is, so that a mix-up is found.
#[derive(Clone, Debug)]
pub struct CountedBoundary {
    boundary: Boundary,
    memory: Allocation,
}

/// A tape: its own bytes, and handles to the stage's input and output.
#[derive(Debug)]
pub struct CountedTape {
    stage: Stage,
    _own: Allocation,
    _input: Allocation,
    _output: Allocation,
}

/// The gradient of a boundary.
#[derive(Debug)]
pub struct CountedGradient {
    boundary: Boundary,
    memory: Allocation,
}

/// The executor handed the engine the wrong thing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{doing} got {found}, expected {expected}")]
pub struct CountedError {
    /// What the engine was doing.
    pub doing: String,
    /// What it was handed.
    pub found: String,
    /// What it should have been handed.
    pub expected: String,
}

/// The engine.
#[derive(Debug)]
pub struct CountedEngine {
    profile: Profile,
    ledger: Ledger,
    forwards: u64,
}

impl CountedEngine {
    /// An engine whose stages take what `profile` says.
    pub fn new(profile: Profile) -> Self {
        Self { profile, ledger: Ledger::default(), forwards: 0 }
    }

    /// Its memory.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// How many stage forwards it ran.
    pub fn forwards(&self) -> u64 {
        self.forwards
    }

    /// The region's input.
    pub fn input(&self) -> CountedBoundary {
        self.make(Boundary::new(0))
    }

    /// The gradient of the region's output.
    pub fn output_gradient(&self) -> CountedGradient {
        let last = u32::try_from(self.profile.stages().len()).unwrap_or(u32::MAX);
        self.make_gradient(Boundary::new(last))
    }

    fn make(&self, boundary: Boundary) -> CountedBoundary {
        let bytes = self.profile.boundary_bytes(boundary).unwrap_or_default();
        CountedBoundary { boundary, memory: self.ledger.allocate(bytes) }
    }

    fn make_gradient(&self, boundary: Boundary) -> CountedGradient {
        let bytes = self.profile.gradient_bytes(boundary).unwrap_or_default();
        CountedGradient { boundary, memory: self.ledger.allocate(bytes) }
    }

    fn stage(&self, stage: Stage) -> Result<&StageProfile, CountedError> {
        let profile = self.profile.stages().get(stage.index());
        profile.ok_or_else(|| CountedError {
            doing: format!("stage {stage}"),
            found: "no such stage".to_owned(),
            expected: format!("1 to {}", self.profile.stages().len()),
        })
    }
}

fn expect(doing: &str, stage: Stage, found: Boundary, expected: Boundary) -> Result<(), CountedError> {
    match found == expected {
        true => Ok(()),
        false => Err(CountedError {
            doing: format!("{doing} {stage}"),
            found: found.to_string(),
            expected: expected.to_string(),
        }),
    }
}

impl Engine for CountedEngine {
    type Boundary = CountedBoundary;
    type Tape = CountedTape;
    type Gradient = CountedGradient;
    type Error = CountedError;

    fn forward(&mut self, stage: Stage, input: CountedBoundary) -> Result<CountedBoundary, CountedError> {
        expect("forward", stage, input.boundary, stage.input())?;
        let extra = self.stage(stage)?.forward_extra_bytes;
        self.forwards += 1;
        let output = self.make(stage.output());
        drop(self.ledger.allocate(extra));
        Ok(output)
    }

    fn tape(
        &mut self,
        stage: Stage,
        option: Option<&Name>,
        input: CountedBoundary,
    ) -> Result<(CountedTape, CountedBoundary), CountedError> {
        expect("tape", stage, input.boundary, stage.input())?;
        let profile = self.stage(stage)?;
        let bytes = match option {
            None => profile.tape_bytes,
            Some(name) => {
                let option = profile.options.iter().find(|option| option.name == *name);
                let option = option.ok_or_else(|| CountedError {
                    doing: format!("tape {stage}"),
                    found: name.to_string(),
                    expected: "an option of the stage".to_owned(),
                })?;
                option.tape_bytes
            }
        };
        let (own, extra) = (bytes.saturating_sub(profile.output_bytes), profile.forward_extra_bytes);
        self.forwards += 1;
        let output = self.make(stage.output());
        let tape = CountedTape {
            stage,
            _own: self.ledger.allocate(own),
            _input: input.memory,
            _output: output.memory.clone(),
        };
        drop(self.ledger.allocate(extra));
        Ok((tape, output))
    }

    fn backward(
        &mut self,
        stage: Stage,
        tape: CountedTape,
        gradient: CountedGradient,
    ) -> Result<CountedGradient, CountedError> {
        expect("backward", stage, tape.stage.output(), stage.output())?;
        expect("backward", stage, gradient.boundary, stage.output())?;
        let extra = self.stage(stage)?.backward_workspace();
        drop(self.ledger.allocate(extra));
        drop((tape, gradient.memory));
        Ok(self.make_gradient(stage.input()))
    }

    fn boundary_bytes(&self, boundary: &CountedBoundary) -> Bytes {
        boundary.memory.bytes()
    }

    fn export(&mut self, boundary: &CountedBoundary) -> Result<Parcel, CountedError> {
        let bytes = usize::try_from(boundary.memory.bytes().get()).unwrap_or(usize::MAX);
        Ok(Parcel {
            tensors: vec![PackedTensor {
                dtype: "u8".to_owned(),
                shape: vec![bytes],
                bytes: vec![0; bytes].into(),
            }],
            structure: vec![u64::from(boundary.boundary.number())],
        })
    }

    fn import(&mut self, parcel: &Parcel) -> Result<CountedBoundary, CountedError> {
        let number = parcel.structure.first().and_then(|number| u32::try_from(*number).ok());
        let number = number.ok_or_else(|| CountedError {
            doing: "import".to_owned(),
            found: format!("{:?}", parcel.structure),
            expected: "the number of a boundary".to_owned(),
        })?;
        Ok(self.make(Boundary::new(number)))
    }

    fn live_bytes(&self) -> Option<Bytes> {
        Some(self.ledger.live())
    }

    fn peak_bytes(&mut self) -> Option<Bytes> {
        Some(self.ledger.lap())
    }
}

impl Measurable for CountedEngine {
    fn stages(&self) -> usize {
        self.profile.stages().len()
    }

    fn stage_name(&self, stage: Stage) -> String {
        self.profile.stages().get(stage.index()).map(|profile| profile.name.clone()).unwrap_or_default()
    }

    fn kind(&self, stage: Stage, _: &CountedBoundary) -> u64 {
        // A boundary knows which one it is, so no stage can stand for another.
        stage.index() as u64
    }

    fn options(&self, stage: Stage) -> Vec<Name> {
        let profile = self.profile.stages().get(stage.index());
        profile.into_iter().flat_map(|profile| &profile.options).map(|option| option.name.clone()).collect()
    }

    fn parameter_gradient_bytes(&self, stage: Stage) -> Bytes {
        let profile = self.profile.stages().get(stage.index());
        profile.map(|profile| profile.parameter_gradient_bytes).unwrap_or_default()
    }

    fn some_gradient(&mut self, output: &CountedBoundary) -> Result<CountedGradient, CountedError> {
        Ok(self.make_gradient(output.boundary))
    }

    fn forget_gradients(&mut self) {}

    fn finish(&mut self) {}
}
