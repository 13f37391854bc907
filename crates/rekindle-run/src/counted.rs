//! An engine without tensors: every allocation is a number in a ledger.
//!
//! It does with memory exactly what a profile says a framework does, so the executor's real peak can be held against
//! the simulator's, byte for byte, for every plan there is.
//!
//! Its tensors have no elements, but boundaries and gradients have a value that depends on everything they were made
//! from. Two runs that end with the same value went the same way, whatever was stored or lost in between.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rekindle_plan::{Boundary, Bytes, Name, Profile, Stage, StageProfile};
use xxhash_rust::xxh3::xxh3_64;

use crate::{Engine, Measurable, PackedTensor, Parcel, Payload};

/// What is allocated now, and the most that was since the last [`Ledger::reset_peak`].
///
/// ```
/// use rekindle_plan::Bytes;
/// use rekindle_run::counted::Ledger;
///
/// let ledger = Ledger::default();
/// drop(ledger.allocate(Bytes::new(8)));
/// assert_eq!((ledger.live(), ledger.peak()), (Bytes::ZERO, Bytes::new(8)));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<LedgerState>);

#[derive(Debug, Default)]
struct LedgerState {
    live: AtomicU64,
    peak: AtomicU64,
    /// The peak since the last lap.
    lap: AtomicU64,
}

impl Ledger {
    /// What is allocated now.
    pub fn live(&self) -> Bytes {
        Bytes::new(self.0.live.load(Ordering::SeqCst))
    }

    /// The most that was allocated at once.
    pub fn peak(&self) -> Bytes {
        Bytes::new(self.0.peak.load(Ordering::SeqCst))
    }

    /// Starts to look for the peak anew.
    pub fn reset_peak(&self) {
        self.0.peak.store(self.live().get(), Ordering::SeqCst);
    }

    /// The most that was allocated at once since this was last asked.
    pub fn lap(&self) -> Bytes {
        Bytes::new(self.0.lap.swap(self.live().get(), Ordering::SeqCst))
    }

    /// Allocates; the memory is free when the last handle is gone.
    pub fn allocate(&self, bytes: Bytes) -> Allocation {
        let live = self.0.live.fetch_add(bytes.get(), Ordering::SeqCst) + bytes.get();
        self.0.peak.fetch_max(live, Ordering::SeqCst);
        self.0.lap.fetch_max(live, Ordering::SeqCst);
        Allocation(Arc::new(Counted { ledger: self.0.clone(), bytes }))
    }
}

/// A piece of counted memory.
#[derive(Clone, Debug)]
pub struct Allocation(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    ledger: Arc<LedgerState>,
    bytes: Bytes,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.ledger.live.fetch_sub(self.bytes.get(), Ordering::SeqCst);
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
    value: u64,
    memory: Pieces,
}

/// The memory of a boundary, of which the next stages may pass a front part on.
#[derive(Clone, Debug, Default)]
struct Pieces(Vec<Allocation>);

impl Pieces {
    fn bytes(&self) -> Bytes {
        self.0.iter().map(Allocation::bytes).sum()
    }
}

impl CountedBoundary {
    /// What it was made from, as a number.
    pub fn value(&self) -> u64 {
        self.value
    }
}

/// A tape: its own bytes, and handles to the stage's input and output.
#[derive(Debug)]
pub struct CountedTape {
    workspace: Bytes,
    stage: Stage,
    value: u64,
    _own: Allocation,
    _input: Pieces,
    _output: Pieces,
}

/// The gradient of a boundary.
#[derive(Debug)]
pub struct CountedGradient {
    boundary: Boundary,
    value: u64,
    memory: Allocation,
}

impl CountedGradient {
    /// What it was made from, as a number.
    pub fn value(&self) -> u64 {
        self.value
    }
}

/// The memory of a boundary as a parcel shares it.
struct Exported {
    bytes: Vec<u8>,
    _memory: Pieces,
}

impl AsRef<[u8]> for Exported {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A value that depends on both.
fn mixed(one: u64, other: u64) -> u64 {
    let [one, other] = [one, other].map(u64::to_le_bytes);
    xxh3_64([one, other].as_flattened())
}

/// The elements that a boundary of this value would have.
fn elements(value: u64, count: usize) -> impl Iterator<Item = u8> {
    value.to_le_bytes().into_iter().cycle().take(count)
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
    forwards: Vec<u64>,
    /// Whether somebody looks for peaks, where they are known to nobody else.
    looked_at: Option<bool>,
}

impl CountedEngine {
    /// An engine whose stages take what `profile` says.
    pub fn new(profile: Profile) -> Self {
        let forwards = vec![0; profile.stages().len()];
        Self { profile, ledger: Ledger::default(), forwards, looked_at: None }
    }

    /// As a device whose pool tells no peak but to whoever looks for it: see [`Measurable::look_for_peaks`].
    #[must_use]
    pub fn with_a_pool(mut self) -> Self {
        self.looked_at = Some(false);
        self
    }

    /// Its memory.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// How many stage forwards it ran.
    pub fn forwards(&self) -> u64 {
        self.forwards.iter().sum()
    }

    /// How often it ran the forward of a stage.
    pub fn forwards_of(&self, stage: Stage) -> u64 {
        self.forwards.get(stage.index()).copied().unwrap_or_default()
    }

    /// The region's input.
    pub fn input(&self) -> CountedBoundary {
        self.make(Boundary::new(0), 1, &Pieces::default())
    }

    /// The gradient of the region's output.
    pub fn output_gradient(&self) -> CountedGradient {
        let last = u32::try_from(self.profile.stages().len()).unwrap_or(u32::MAX);
        self.make_gradient(Boundary::new(last), 2)
    }

    /// A boundary whose front is `passed`, and whose rest is new memory.
    fn make(&self, boundary: Boundary, value: u64, passed: &Pieces) -> CountedBoundary {
        let bytes = self.profile.boundary_bytes(boundary).unwrap_or_default().get();
        let mut memory = passed.clone();
        let mut from = passed.bytes().get();
        for to in self.cuts(boundary).into_iter().chain([bytes]) {
            if to > from {
                memory.0.push(self.ledger.allocate(Bytes::new(to - from)));
                from = to;
            }
        }
        CountedBoundary { boundary, value, memory }
    }

    /// Where stages to come will cut a boundary, from the front.
    fn cuts(&self, boundary: Boundary) -> Vec<u64> {
        let later = self.profile.stages().iter().skip(boundary.index());
        let mut cuts: Vec<u64> = later
            .scan(u64::MAX, |front, stage| {
                *front = stage.passed_bytes.get().min(*front);
                Some(*front)
            })
            .take_while(|front| *front > 0)
            .collect();
        cuts.reverse();
        cuts
    }

    /// What a stage passes on of its input.
    fn passed(&self, stage: Stage, input: &CountedBoundary) -> Pieces {
        let wanted = self.profile.stages().get(stage.index()).map(|stage| stage.passed_bytes.get());
        let mut left = wanted.unwrap_or_default();
        let pieces = input.memory.0.iter().take_while(|piece| {
            let fits = piece.bytes().get() <= left;
            left -= if fits { piece.bytes().get() } else { 0 };
            fits
        });
        Pieces(pieces.cloned().collect())
    }

    /// What a stage makes of its input.
    fn output(&self, stage: Stage, input: &CountedBoundary) -> CountedBoundary {
        let value = mixed(input.value, u64::from(stage.number()));
        self.make(stage.output(), value, &self.passed(stage, input))
    }

    fn make_gradient(&self, boundary: Boundary, value: u64) -> CountedGradient {
        let bytes = self.profile.gradient_bytes(boundary).unwrap_or_default();
        CountedGradient { boundary, value, memory: self.ledger.allocate(bytes) }
    }

    fn count_forward(&mut self, stage: Stage) {
        if let Some(count) = self.forwards.get_mut(stage.index()) {
            *count += 1;
        }
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
        self.count_forward(stage);
        let output = self.output(stage, &input);
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
        let (bytes, workspace, extra) = match option {
            None => (profile.tape_bytes, profile.backward_workspace(), profile.taped_workspace()),
            Some(name) => {
                let option = profile.options.iter().find(|option| option.name == *name);
                let option = option.ok_or_else(|| CountedError {
                    doing: format!("tape {stage}"),
                    found: name.to_string(),
                    expected: "an option of the stage".to_owned(),
                })?;
                let workspace = profile.backward_workspace_under(Some(option));
                (option.tape_bytes, workspace, profile.taped_workspace_under(Some(option)))
            }
        };
        let own = bytes.saturating_sub(profile.output_bytes);
        self.count_forward(stage);
        let output = self.output(stage, &input);
        let tape = CountedTape {
            stage,
            workspace,
            value: mixed(input.value, output.value),
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
        drop(self.ledger.allocate(tape.workspace));
        let value = mixed(tape.value, gradient.value);
        drop((tape, gradient.memory));
        Ok(self.make_gradient(stage.input(), value))
    }

    fn boundary_bytes(&self, boundary: &CountedBoundary) -> Bytes {
        boundary.memory.bytes()
    }

    fn export(&mut self, boundary: &CountedBoundary) -> Result<Parcel, CountedError> {
        let count = usize::try_from(boundary.memory.bytes().get()).unwrap_or(usize::MAX);
        let bytes = elements(boundary.value, count).collect();
        Ok(Parcel {
            tensors: vec![PackedTensor {
                dtype: "u8".to_owned(),
                shape: vec![count],
                // A handle: whoever keeps the parcel keeps the device's memory.
                bytes: Payload::shared(Exported { bytes, _memory: boundary.memory.clone() }),
            }],
            structure: vec![u64::from(boundary.boundary.number()), boundary.value],
        })
    }

    fn import(&mut self, parcel: Parcel) -> Result<CountedBoundary, CountedError> {
        let number = parcel.structure.first().and_then(|number| u32::try_from(*number).ok());
        let (Some(number), Some(value), Some(tensor)) =
            (number, parcel.structure.get(1), parcel.tensors.first())
        else {
            return Err(CountedError {
                doing: "import".to_owned(),
                found: format!("{:?}", parcel.structure),
                expected: "the number and the value of a boundary, and one tensor".to_owned(),
            });
        };
        // Other elements are another value, so that damage nobody found is seen in the gradient.
        let bytes = tensor.bytes.as_slice();
        let same = elements(*value, bytes.len()).eq(bytes.iter().copied());
        let value = if same { *value } else { xxh3_64(bytes) };
        Ok(self.make(Boundary::new(number), value, &Pieces::default()))
    }

    fn set_aside(&mut self, bytes: Bytes) -> Option<Box<dyn Any + Send>> {
        Some(Box::new(self.ledger.allocate(bytes)))
    }

    fn live_bytes(&self) -> Option<Bytes> {
        Some(self.ledger.live())
    }

    fn peak_bytes(&mut self) -> Option<Bytes> {
        let lap = self.ledger.lap();
        (self.looked_at != Some(false)).then_some(lap)
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
        Ok(self.make_gradient(output.boundary, 2))
    }

    fn look_for_peaks(&mut self, look: bool) -> bool {
        self.looked_at = self.looked_at.map(|_| look);
        self.looked_at.is_some()
    }

    fn forget_gradients(&mut self) {}

    fn finish(&mut self) {}
}
