//! A region as one node of the user's autodiff graph. With `traced/capture.rs`, the only file that touches Burn's
//! extension API.
//!
//! ```text
//!  inputs, parameters ──▶ join ──▶ hub ──▶ output node, one for each float output
//!                                   │           its backward parks the output's gradient
//!                                   └─ its backward runs the executor's second half and hands every gradient on
//! ```
//!
//! Inside the hub's backward each stage is recorded on a graph of its own, run back and dropped. Such a nested graph
//! must have no node in common with the user's: Burn holds that graph's lock while the hub runs.
//!
//! Gradients come out bit for bit as Burn's own. Additions of floats depend on their order, so what the outer graph
//! has already added up for an input or a parameter is carried into the nested graph, which goes on adding there.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::NoCheckpointing};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    AutodiffBackend, Backend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchKindConversion,
    DispatchTensor, DispatchTensorKind, ExecutionError, TensorMetadata,
};
use burn::tensor::{Bool, DType, Device, Float, Int, Shape, Tensor, TensorData, try_read_sync};
use rekindle_plan::{Bytes, Name, Schedule, Stage};
use rekindle_run::{
    Engine, Executor, Kept, Measurable, MeasureError, Measurement, Measuring, PackedTensor, Parcel, Stores,
};

use crate::backward::raise;
use crate::boundary::Parts;
use crate::checks::{Checks, Observation, Record};
use crate::kept::{self, KeptRow};
use crate::region::TraceHandle;
use crate::stage::{AnyStage, Mode};
use crate::{Error, memory, seeds};

pub(crate) use burn::backend::GradientCheckpointingStrategy as TapeStrategy;

/// The backends this build can checkpoint.
const ENABLED: &str = if cfg!(all(feature = "flex", feature = "ndarray")) {
    "flex, ndarray"
} else if cfg!(feature = "flex") {
    "flex"
} else if cfg!(feature = "ndarray") {
    "ndarray"
} else {
    "(none)"
};

/// The one way to keep a tape beside the whole of it.
pub(crate) const BALANCED: &str = "balanced";

/// A tensor of the backend with autodiff.
pub(crate) type Tracked<B> = FloatTensor<Autodiff<B>>;

/// A backend whose tensors can be told from those of the others.
pub(crate) trait GraphBackend: Backend {
    fn wrap(tensor: Tracked<Self>) -> DispatchTensor;
    fn unwrap(tensor: DispatchTensor) -> Option<Tracked<Self>>;
}

impl<B: Backend> GraphBackend for B
where
    DispatchTensor: DispatchKindConversion<Autodiff<B>>,
{
    fn wrap(tensor: Tracked<B>) -> DispatchTensor {
        let tensor = BackendTensor::<Autodiff<B>>::Float(tensor);
        <DispatchTensor as DispatchKindConversion<Autodiff<B>>>::from_backend(tensor)
    }

    fn unwrap(tensor: DispatchTensor) -> Option<Tracked<B>> {
        match <DispatchTensor as DispatchKindConversion<Autodiff<B>>>::try_into_backend(tensor) {
            Ok(BackendTensor::Float(tensor)) => Some(tensor),
            _ => None,
        }
    }
}

// ---------------------------------------------------------------------------------------------- tensors of any kind

/// A tensor of any kind, rank and backend.
#[derive(Clone, Debug)]
pub(crate) struct AnyTensor(pub(crate) DispatchTensor);

impl<const D: usize> From<Tensor<D>> for AnyTensor {
    fn from(tensor: Tensor<D>) -> Self {
        Self(tensor.into_dispatch())
    }
}

impl<const D: usize> From<Tensor<D, Int>> for AnyTensor {
    fn from(tensor: Tensor<D, Int>) -> Self {
        Self(tensor.into_dispatch())
    }
}

impl<const D: usize> From<Tensor<D, Bool>> for AnyTensor {
    fn from(tensor: Tensor<D, Bool>) -> Self {
        Self(tensor.into_dispatch())
    }
}

macro_rules! from_any_tensor {
    ($kind:ty, $name:literal, $fits:expr) => {
        impl<const D: usize> TryFrom<AnyTensor> for Tensor<D, $kind> {
            type Error = Error;

            fn try_from(tensor: AnyTensor) -> Result<Self, Error> {
                let fits: fn(DType) -> bool = $fits;
                match tensor.0.rank() == D && fits(tensor.0.dtype()) {
                    true => Ok(Self::from_dispatch(tensor.0)),
                    false => Err(Error::Boundary {
                        found: tensor.describe(),
                        expected: format!("a {} tensor of rank {D}", $name),
                    }),
                }
            }
        }
    };
}
from_any_tensor!(Float, "float", |dtype| dtype.is_float() || matches!(dtype, DType::QFloat(_)));
from_any_tensor!(Int, "int", |dtype| dtype.is_int() || dtype.is_uint());
from_any_tensor!(Bool, "bool", |dtype| dtype.is_bool());

impl AnyTensor {
    pub(crate) fn describe(&self) -> String {
        describe(self.0.dtype(), &self.0.shape())
    }

    /// Puts element type and shape into a hash.
    pub(crate) fn hash_size(&self, hash: &mut impl Hasher) {
        self.0.dtype().hash(hash);
        self.0.shape().as_slice().hash(hash);
    }

    /// Whether it carries autodiff, tracked or not.
    pub(crate) fn is_autodiff(&self) -> bool {
        self.0.autodiff != DispatchAutodiffContext::Disabled
    }

    /// Whether the user's graph goes through it.
    pub(crate) fn is_tracked(&self) -> bool {
        self.is_graph_float() && Dispatch::is_tracked(&self.0)
    }

    /// Whether it is a float that an autodiff graph can go through.
    fn is_graph_float(&self) -> bool {
        matches!(self.0.kind, DispatchTensorKind::Autodiff(_))
    }

    fn is_leaf(&self) -> bool {
        self.is_graph_float() && Dispatch::float_is_require_grad(&self.0)
    }

    pub(crate) fn strategy(&self) -> Option<TapeStrategy> {
        match self.0.autodiff {
            DispatchAutodiffContext::Disabled => None,
            DispatchAutodiffContext::Enabled(strategy) => Some(strategy),
        }
    }

    /// Changes the strategy of a tensor that carries autodiff.
    pub(crate) fn set_strategy(&mut self, strategy: TapeStrategy) {
        if self.is_autodiff() {
            self.0.autodiff = DispatchAutodiffContext::Enabled(strategy);
        }
    }

    pub(crate) fn device(&self) -> Device {
        Device::new(self.0.device())
    }

    pub(crate) fn from_tracked<B: GraphBackend>(tensor: Tracked<B>, strategy: TapeStrategy) -> Self {
        let mut tensor = B::wrap(tensor);
        tensor.autodiff = DispatchAutodiffContext::Enabled(strategy);
        Self(tensor)
    }

    /// The primitive of a graph float. `None` when it is of another backend.
    pub(crate) fn into_tracked<B: GraphBackend>(mut self) -> Option<Tracked<B>> {
        // The primitive is the same for every strategy; the conversion asks for this one.
        self.0.autodiff = DispatchAutodiffContext::Enabled(TapeStrategy::Disabled);
        B::unwrap(self.0)
    }

    fn read(&self) -> Result<TensorData, String> {
        let tensor = self.0.clone();
        let dtype = tensor.dtype();
        let read: Option<Result<TensorData, ExecutionError>> = match dtype {
            _ if dtype.is_float() => try_read_sync(Dispatch::float_into_data(tensor)),
            _ if dtype.is_bool() => try_read_sync(Dispatch::bool_into_data(tensor)),
            _ if dtype.is_int() || dtype.is_uint() => try_read_sync(Dispatch::int_into_data(tensor)),
            _ => return Err(format!("tensors of {dtype:?} cannot be read")),
        };
        match read {
            Some(Ok(data)) => Ok(data),
            Some(Err(error)) => Err(format!("{error:?}")),
            None => Err("the device cannot be read from synchronously".to_owned()),
        }
    }
}

fn describe(dtype: DType, shape: &Shape) -> String {
    format!("{}{:?}", dtype.name(), shape.as_slice())
}

fn size_of(dtype: DType, shape: &Shape) -> Bytes {
    Bytes::new((shape.num_elements() * dtype.size()) as u64)
}

// ------------------------------------------------------------------------------------------------- boundary and tape

/// A boundary on the device.
#[derive(Clone, Debug)]
struct OnDevice<B: GraphBackend> {
    parts: Vec<Part<B>>,
    structure: Arc<[u64]>,
}

#[derive(Clone, Debug)]
enum Part<B: GraphBackend> {
    /// A float that may need a gradient, outside any graph.
    Float {
        tensor: FloatTensor<B>,
        /// Something the user tracks can reach it.
        wanted: bool,
    },
    /// Ints, bools, and floats without autodiff.
    Other(AnyTensor),
}

impl<B: GraphBackend> Part<B> {
    fn dtype_and_shape(&self) -> (DType, Shape) {
        match self {
            Self::Float { tensor, .. } => (tensor.dtype(), tensor.shape()),
            Self::Other(tensor) => (tensor.0.dtype(), tensor.0.shape()),
        }
    }

    fn wanted(&self) -> bool {
        matches!(self, Self::Float { wanted: true, .. })
    }
}

/// Carries a gradient out of a nested graph.
type Port<B> = Arc<Mutex<Option<FloatTensor<B>>>>;

/// A stage recorded on a graph of its own.
///
/// The graph's ends are one-element tokens: holding the stage's input or output would cost an activation that the
/// backward may not even read.
struct Tape<B: GraphBackend> {
    /// For each part of the input that needs a gradient: its node, and where the gradient comes out.
    inputs: Vec<Option<(NodeId, Port<B>)>>,
    /// For each part of the output the graph reaches: its node, and a token that keeps it.
    outputs: Vec<Option<(NodeId, Tracked<B>)>>,
    leaves: Vec<Tracked<B>>,
}

/// The gradients of a boundary's parts.
type PartGradients<B> = Vec<Option<FloatTensor<B>>>;

/// What every node here is made with.
pub(crate) fn node<B, N, S>(operation: N, parent: NodeGuard, state: S, value: FloatTensor<B>) -> Tracked<B>
where
    B: Backend,
    S: Clone + Send + std::fmt::Debug + 'static,
    N: Backward<B, 1, State = S>,
{
    nodes(operation, [parent], state, value)
}

fn nodes<B, N, S, const P: usize>(
    operation: N,
    parents: [NodeGuard; P],
    state: S,
    value: FloatTensor<B>,
) -> Tracked<B>
where
    B: Backend,
    S: Clone + Send + std::fmt::Debug + 'static,
    N: Backward<B, P, State = S>,
{
    match operation.prepare::<NoCheckpointing>(parents).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(state, value),
        OpsKind::UnTracked(prepared) => prepared.finish(value),
    }
}

pub(crate) fn token<B: GraphBackend>(like: &FloatTensor<B>) -> FloatTensor<B> {
    B::float_empty([1].into(), &like.device(), like.dtype().into())
}

/// Ties its parents into the graph; its backward does nothing.
#[derive(Debug)]
pub(crate) struct Join;

impl<B: GraphBackend, const N: usize> Backward<B, N> for Join {
    type State = ();

    fn backward(self, _: Ops<(), N>, _: &mut Gradients, _: &mut Checkpointer) {}
}

/// One node above all of `guards`, as a tree: an operation has a fixed number of parents. `None` without any.
pub(crate) fn join<B: GraphBackend>(
    mut guards: Vec<NodeGuard>,
    value: &FloatTensor<B>,
) -> Option<Tracked<B>> {
    loop {
        let mut joined = Vec::with_capacity(guards.len().div_ceil(8));
        let mut rest = guards.into_iter();
        loop {
            let group: Vec<NodeGuard> = rest.by_ref().take(8).collect();
            if group.is_empty() {
                break;
            }
            joined.push(with_parents(Join, group, (), value.clone())?);
        }
        if joined.len() < 2 {
            return joined.pop();
        }
        guards = joined.iter().map(|tensor| tensor.node()).collect();
    }
}

/// A node with one to eight parents. `None` for any other number.
fn with_parents<B, N, S>(
    operation: N,
    parents: Vec<NodeGuard>,
    state: S,
    value: FloatTensor<B>,
) -> Option<Tracked<B>>
where
    B: Backend,
    S: Clone + Send + std::fmt::Debug + 'static,
    N: Backward<B, 1, State = S>
        + Backward<B, 2, State = S>
        + Backward<B, 3, State = S>
        + Backward<B, 4, State = S>
        + Backward<B, 5, State = S>
        + Backward<B, 6, State = S>
        + Backward<B, 7, State = S>
        + Backward<B, 8, State = S>,
{
    macro_rules! by_number {
        ($($number:literal)*) => {
            match parents.len() {
                $($number => {
                    let parents: [NodeGuard; $number] = parents.try_into().ok()?;
                    Some(nodes(operation, parents, state, value))
                })*
                _ => None,
            }
        };
    }
    by_number!(1 2 3 4 5 6 7 8)
}

/// A part of a stage's input in the nested graph: its gradient goes into the port.
#[derive(Debug)]
struct Source;

impl<B: GraphBackend> Backward<B, 1> for Source {
    type State = Port<B>;

    fn backward(self, ops: Ops<Port<B>, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        *ops.state.lock().unwrap_or_else(PoisonError::into_inner) = Some(gradient);
    }
}

/// The first thing a nested backward runs: gradients that are there before it starts.
#[derive(Debug)]
pub(crate) struct Start;

impl<B: GraphBackend> Backward<B, 1> for Start {
    type State = Vec<(NodeId, FloatTensor<B>)>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        for (id, gradient) in ops.state {
            grads.register::<B>(id, gradient);
        }
    }
}

// ------------------------------------------------------------------------------------------------------- the engine

/// Longer than any thread waits for its turn, shorter than anybody's patience.
const LOOK_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// Burn, as the executor sees it.
struct BurnEngine<B: GraphBackend> {
    stages: Vec<Box<dyn AnyStage>>,
    /// The outer nodes of each stage's tracked parameters.
    parameters: Vec<Vec<NodeId>>,
    /// What the gradient of each tracked parameter takes.
    parameter_bytes: HashMap<NodeId, Bytes>,
    /// The strategy of the user's graph.
    strategy: TapeStrategy,
    device: Device,
    draws: seeds::Draws,
    ran: Vec<bool>,
    /// Tokens of the tapes that were recorded in the forward half.
    taped_live: Vec<(Stage, Tracked<B>)>,
    record: Record,
    /// Element types that left the device, by the number parcels use for them, and the device they left.
    exported: Vec<DType>,
    exported_from: Option<B::Device>,
    /// What has been added up for each outer parameter so far, by this backward pass.
    parameter_gradients: HashMap<NodeId, FloatTensor<B>>,
    /// What the outer graph has added up for each part of the region's input so far.
    carried: PartGradients<B>,
}

impl<B: GraphBackend> BurnEngine<B> {
    fn name(&self, stage: Stage) -> String {
        self.stages[stage.index()].name().to_owned()
    }

    /// Runs a stage under its seed.
    fn run(&mut self, stage: Stage, mode: Mode, input: Parts) -> Result<crate::stage::Ran, Error> {
        let ran = &self.stages[stage.index()];
        self.draws.run(&self.device, stage.index(), || ran.run(mode, self.strategy, input))
    }

    /// The boundary as untracked tensors, and the nodes they got.
    fn detached(&self, input: &OnDevice<B>) -> (Parts, Vec<Option<NodeId>>) {
        let parts = input.parts.iter().map(|part| match part {
            Part::Float { tensor, .. } => {
                let tensor = Autodiff::<B>::from_inner(tensor.clone());
                let id = tensor.id();
                (AnyTensor::from_tracked::<B>(tensor, self.strategy), Some(id))
            }
            Part::Other(tensor) => (tensor.clone(), None),
        });
        let (tensors, ids) = parts.unzip();
        let structure = input.structure.to_vec();
        (Parts { tensors, structure }, ids)
    }

    fn graph_float(&self, stage: Stage, tensor: AnyTensor) -> Result<Tracked<B>, Error> {
        let found = tensor.device();
        tensor.into_tracked::<B>().ok_or_else(|| Error::OtherBackend {
            stage: stage.number() as usize,
            name: self.name(stage),
            found: format!("{found:?}"),
            expected: format!("{:?}", self.device),
        })
    }

    /// Fails when an untracked run came out tracked: it reached something of the user's graph.
    fn check_untracked(&self, stage: Stage, output: &Parts) -> Result<(), Error> {
        match output.tensors.iter().any(AnyTensor::is_tracked) {
            false => Ok(()),
            true => Err(Error::TrackedCapture { stage: stage.number() as usize, name: self.name(stage) }),
        }
    }

    /// Holds what a stage made against what it made the first time.
    fn observe(&mut self, stage: Stage, output: &OnDevice<B>) -> Result<(), Error> {
        let checksums = self.record.checks() == Checks::Checksums;
        let observed = output.parts.iter().map(|part| {
            let (dtype, shape) = part.dtype_and_shape();
            let checksum = match checksums {
                false => None,
                true => Some(crate::checks::checksum(&self.read_part(part)?)),
            };
            Ok(Observation { what: describe(dtype, &shape), checksum })
        });
        let observed = observed.collect::<Result<Vec<_>, Error>>()?;
        let index = stage.index();
        self.record.compare(index, self.stages[index].name(), observed)
    }

    fn read_part(&self, part: &Part<B>) -> Result<TensorData, Error> {
        let read = match part {
            Part::Float { tensor, .. } => match try_read_sync(B::float_into_data(tensor.clone())) {
                Some(Ok(data)) => Ok(data),
                Some(Err(error)) => Err(format!("{error:?}")),
                None => Err("the device cannot be read from synchronously".to_owned()),
            },
            Part::Other(tensor) => tensor.read(),
        };
        read.map_err(|reason| Error::Export { reason })
    }

    /// Fails when a tape from the forward half shares a graph with the user's.
    ///
    /// Burn holds the lock of the user's graph while this runs, so going back through such a tape would wait for
    /// itself. Another thread finds out: it waits only if the lock is ours, and goes on when the error lets go of it.
    fn check_disjoint(&mut self) -> Result<(), Error> {
        let tokens = std::mem::take(&mut self.taped_live);
        if tokens.is_empty() {
            return Ok(());
        }
        let stages: Vec<Stage> = tokens.iter().map(|(stage, _)| *stage).collect();
        let (done, finished) = std::sync::mpsc::channel();
        let look = move || {
            for (_, token) in tokens {
                let (value, guard) = token.into_parts();
                drop(node::<B, _, _>(Join, guard, (), value));
                if done.send(()).is_err() {
                    return;
                }
            }
        };
        let started = std::thread::Builder::new().name("rekindle-look".to_owned()).spawn(look);
        if started.is_err() {
            // A machine without a thread to spare: the check is the smaller loss.
            return Ok(());
        }
        for stage in stages {
            if finished.recv_timeout(LOOK_TIMEOUT).is_err() {
                return Err(Error::TrackedCapture { stage: stage.number() as usize, name: self.name(stage) });
            }
        }
        Ok(())
    }

    /// Adds the nested graph's start and runs it back. Gives the gradient of each part of the stage's input.
    fn run_back(
        &mut self,
        stage: Stage,
        tape: Tape<B>,
        gradients: PartGradients<B>,
        carried: PartGradients<B>,
    ) -> PartGradients<B> {
        let ids = self.parameters[stage.index()].clone();
        let mut start = Vec::new();
        let mut tokens = Vec::new();
        let mut value = None;
        for (output, gradient) in tape.outputs.into_iter().zip(gradients) {
            if let (Some((id, token)), Some(gradient)) = (output, gradient) {
                value.get_or_insert_with(|| token.primitive().clone());
                tokens.push(token.node());
                start.push((id, gradient));
            }
        }
        if let Some(value) = value {
            // What is there already comes first, as it would in one graph: it was added by deeper operations.
            let parameters = ids
                .iter()
                .zip(&tape.leaves)
                .filter_map(|(id, leaf)| Some((leaf.id(), self.parameter_gradients.remove(id)?)));
            let inputs = tape
                .inputs
                .iter()
                .zip(&carried)
                .filter_map(|(input, carried)| Some((input.as_ref()?.0, carried.clone()?)));
            start = parameters.chain(inputs).chain(start).collect();
            if let Some(tie) = join::<B>(tokens, &value) {
                let root = node(Start, tie.node(), start, value);
                drop(tie);
                let mut nested = Autodiff::<B>::backward(root);
                for (id, leaf) in ids.iter().zip(&tape.leaves) {
                    if let Some(gradient) = leaf.grad_remove(&mut nested) {
                        add::<B>(&mut self.parameter_gradients, *id, gradient);
                    }
                }
            }
        }
        let gradients = tape.inputs.into_iter().zip(carried).map(|(input, carried)| {
            let port = input.and_then(|(_, port)| port.lock().unwrap_or_else(PoisonError::into_inner).take());
            port.or(carried)
        });
        gradients.collect()
    }
}

fn add<B: GraphBackend>(sums: &mut HashMap<NodeId, FloatTensor<B>>, id: NodeId, gradient: FloatTensor<B>) {
    // Two parameters of one stage can be one node outside; everything else is here for the first time.
    let sum = match sums.remove(&id) {
        Some(sum) => B::float_add(gradient, sum),
        None => gradient,
    };
    sums.insert(id, sum);
}

impl<B: GraphBackend> Engine for BurnEngine<B> {
    type Boundary = OnDevice<B>;
    type Tape = Tape<B>;
    type Gradient = PartGradients<B>;
    type Error = Error;

    fn forward(&mut self, stage: Stage, input: OnDevice<B>) -> Result<OnDevice<B>, Error> {
        let live = !std::mem::replace(&mut self.ran[stage.index()], true);
        let (parts, ids) = self.detached(&input);
        let wanted: Vec<bool> = input.parts.iter().map(Part::wanted).collect();
        drop(input);
        let output = self.run(stage, Mode::Free { live }, parts)?.output;
        self.check_untracked(stage, &output)?;
        let reached = wanted.contains(&true) || !self.parameters[stage.index()].is_empty();
        let parts = output.tensors.into_iter().map(|tensor| {
            if !tensor.is_graph_float() {
                return Ok(Part::Other(tensor));
            }
            let tensor = self.graph_float(stage, tensor)?;
            // A tensor that only passes through needs a gradient if it did before.
            let passed = ids.iter().position(|id| *id == Some(tensor.id()));
            Ok(Part::Float {
                wanted: passed.map_or(reached, |position| wanted[position]),
                tensor: tensor.into_primitive(),
            })
        });
        let output =
            OnDevice { parts: parts.collect::<Result<_, Error>>()?, structure: output.structure.into() };
        self.observe(stage, &output)?;
        sweep_when(256);
        Ok(output)
    }

    fn tape(
        &mut self,
        stage: Stage,
        option: Option<&Name>,
        input: OnDevice<B>,
    ) -> Result<(Tape<B>, OnDevice<B>), Error> {
        let strategy = match option.map(Name::as_str) {
            None => self.strategy,
            Some(BALANCED) => TapeStrategy::Balanced,
            Some(other) => {
                return Err(Error::UnknownOption {
                    stage: stage.number() as usize,
                    option: other.to_owned(),
                });
            }
        };
        let live = !std::mem::replace(&mut self.ran[stage.index()], true);
        if live && self.stages[stage.index()].is_due() {
            // A tape hides what an untracked run shows: whether the stage reaches for a tracked tensor, whose gradient
            // would be lost. Looking each time would cost a forward each time.
            let (parts, _) = self.detached(&input);
            let probed = self.run(stage, Mode::Probe, parts)?.output;
            self.check_untracked(stage, &probed)?;
        }
        if live {
            self.stages[stage.index()].count_run();
        }
        let mut inputs = Vec::with_capacity(input.parts.len());
        let mut tensors = Vec::with_capacity(input.parts.len());
        for part in input.parts {
            let (end, tensor) = match part {
                Part::Float { tensor, wanted: true } => {
                    let port = Port::<B>::default();
                    let leaf = Autodiff::<B>::from_inner(token::<B>(&tensor)).require_grad();
                    let source = node(Source, leaf.node(), port.clone(), tensor);
                    let end = Some((source.id(), port));
                    (end, AnyTensor::from_tracked::<B>(source, strategy))
                }
                Part::Float { tensor, .. } => {
                    let tensor = Autodiff::<B>::from_inner(tensor);
                    (None, AnyTensor::from_tracked::<B>(tensor, strategy))
                }
                Part::Other(tensor) => (None, tensor),
            };
            inputs.push(end);
            tensors.push(tensor);
        }
        let structure = input.structure.to_vec();
        let ran = self.run(stage, Mode::Taped { live, strategy }, Parts { tensors, structure })?;
        let expected = self.parameters[stage.index()].len();
        if ran.leaves.len() != expected {
            // The stage owns its module, so this cannot come from outside.
            return Err(Error::Run {
                reason: format!(
                    "stage {stage} (`{}`) recorded {} parameters, expected {expected}; this is a bug in rekindle",
                    self.name(stage),
                    ran.leaves.len()
                ),
            });
        }
        let leaves = ran.leaves.into_iter().map(|leaf| self.graph_float(stage, leaf));
        let leaves = leaves.collect::<Result<_, Error>>()?;
        let mut outputs = Vec::with_capacity(ran.output.tensors.len());
        let mut parts = Vec::with_capacity(ran.output.tensors.len());
        for tensor in ran.output.tensors {
            if !tensor.is_graph_float() {
                outputs.push(None);
                parts.push(Part::Other(tensor));
                continue;
            }
            let tensor = self.graph_float(stage, tensor)?;
            let wanted = tensor.is_tracked();
            outputs.push(wanted.then(|| {
                let value = token::<B>(tensor.primitive());
                (tensor.id(), node(Join, tensor.node(), (), value))
            }));
            parts.push(Part::Float { tensor: tensor.into_primitive(), wanted });
        }
        let output = OnDevice { parts, structure: ran.output.structure.into() };
        self.observe(stage, &output)?;
        if live && let Some((_, token)) = outputs.iter().flatten().next() {
            self.taped_live.push((stage, token.clone()));
        }
        let tape = Tape { inputs, outputs, leaves };
        Ok((tape, output))
    }

    fn backward(
        &mut self,
        stage: Stage,
        tape: Tape<B>,
        gradient: PartGradients<B>,
    ) -> Result<PartGradients<B>, Error> {
        let carried = match stage.number() {
            1 => std::mem::take(&mut self.carried),
            _ => tape.inputs.iter().map(|_| None).collect(),
        };
        Ok(self.run_back(stage, tape, gradient, carried))
    }

    fn boundary_bytes(&self, boundary: &OnDevice<B>) -> Bytes {
        let sizes = boundary.parts.iter().map(|part| {
            let (dtype, shape) = part.dtype_and_shape();
            size_of(dtype, &shape)
        });
        sizes.sum()
    }

    fn export(&mut self, boundary: &OnDevice<B>) -> Result<Parcel, Error> {
        let mut structure = vec![boundary.parts.len() as u64];
        let mut tensors = Vec::with_capacity(boundary.parts.len());
        for part in &boundary.parts {
            let data = self.read_part(part)?;
            structure.push(match part {
                Part::Float { tensor, wanted } => {
                    self.exported_from.get_or_insert_with(|| tensor.device());
                    u64::from(*wanted)
                }
                Part::Other(tensor) => match tensor.is_autodiff() {
                    false => 2,
                    true => 3,
                },
            });
            structure.push(match self.exported.iter().position(|dtype| *dtype == data.dtype()) {
                Some(index) => index as u64,
                None => {
                    self.exported.push(data.dtype());
                    self.exported.len() as u64 - 1
                }
            });
            tensors.push(PackedTensor {
                dtype: data.dtype().name().to_owned(),
                shape: data.shape().to_vec(),
                // A copy: some backends' bytes keep the device's memory.
                bytes: data.as_bytes().into(),
            });
        }
        structure.extend(boundary.structure.iter());
        Ok(Parcel { tensors, structure })
    }

    fn import(&mut self, parcel: &Parcel) -> Result<OnDevice<B>, Error> {
        let damaged = || Error::Boundary {
            found: format!("{:?}", parcel.structure),
            expected: "what was exported".to_owned(),
        };
        let (count, rest) = parcel.structure.split_first().ok_or_else(damaged)?;
        let count = usize::try_from(*count).map_err(|_| damaged())?;
        if count != parcel.tensors.len() || rest.len() < 2 * count {
            return Err(damaged());
        }
        let (kinds, structure) = rest.split_at(2 * count);
        let parts = kinds.chunks_exact(2).zip(&parcel.tensors).map(|(kind, packed)| {
            let dtype = usize::try_from(kind[1]).ok();
            let dtype = dtype.and_then(|index| self.exported.get(index)).ok_or_else(damaged)?;
            let (bytes, shape) = (packed.bytes.to_vec(), packed.shape.clone());
            let data = TensorData::from_bytes_vec(bytes, shape, *dtype);
            let inner = self.device.clone().without_autodiff();
            Ok(match kind[0] {
                wanted @ (0 | 1) => {
                    let device = self.exported_from.as_ref().ok_or_else(damaged)?;
                    Part::Float { tensor: B::float_from_data(data, device), wanted: wanted == 1 }
                }
                autodiff => {
                    let device = match autodiff {
                        2 => inner,
                        _ => self.device.clone(),
                    };
                    let device = device.as_dispatch();
                    Part::Other(AnyTensor(match dtype {
                        dtype if dtype.is_float() => Dispatch::float_from_data(data, device),
                        dtype if dtype.is_bool() => Dispatch::bool_from_data(data, device),
                        _ => Dispatch::int_from_data(data, device),
                    }))
                }
            })
        });
        Ok(OnDevice { parts: parts.collect::<Result<_, Error>>()?, structure: structure.into() })
    }

    fn live_bytes(&self) -> Option<Bytes> {
        // A pool of the device's own, or the process's memory.
        let pool = self.device.memory_pool_usage();
        pool.map(|pool| Bytes::new(pool.bytes_in_use)).or_else(memory::live)
    }

    fn peak_bytes(&mut self) -> Option<Bytes> {
        match self.device.memory_pool_usage() {
            // It tells what is in use now only.
            Some(_) => None,
            None => memory::lap(),
        }
    }
}

impl<B: GraphBackend> Measurable for BurnEngine<B> {
    fn stages(&self) -> usize {
        self.stages.len()
    }

    fn stage_name(&self, stage: Stage) -> String {
        self.name(stage)
    }

    fn kind(&self, stage: Stage, input: &OnDevice<B>) -> u64 {
        let stage = &self.stages[stage.index()];
        let mut hash = std::hash::DefaultHasher::new();
        stage.kind().hash(&mut hash);
        for part in &input.parts {
            let (dtype, shape) = part.dtype_and_shape();
            (describe(dtype, &shape), part.wanted()).hash(&mut hash);
        }
        input.structure.hash(&mut hash);
        let side = stage.side();
        side.tensors.iter().for_each(|tensor| tensor.describe().hash(&mut hash));
        side.structure.hash(&mut hash);
        hash.finish()
    }

    fn options(&self, _: Stage) -> Vec<Name> {
        // A model that is balanced already has no other tape.
        match self.strategy {
            TapeStrategy::Disabled => BALANCED.parse().into_iter().collect(),
            TapeStrategy::Balanced => Vec::new(),
        }
    }

    fn parameter_gradient_bytes(&self, stage: Stage) -> Bytes {
        let (mine, later) = self.parameters[stage.index()..].split_at(1);
        let mine = mine.iter().flatten().filter(|id| !later.iter().flatten().any(|other| other == *id));
        mine.filter_map(|id| self.parameter_bytes.get(id).copied()).sum()
    }

    fn some_gradient(&mut self, output: &OnDevice<B>) -> Result<PartGradients<B>, Error> {
        let gradients = output.parts.iter().map(|part| match part {
            Part::Float { tensor, wanted: true } => {
                Some(B::float_ones(tensor.shape(), &tensor.device(), tensor.dtype().into()))
            }
            _ => None,
        });
        Ok(gradients.collect())
    }

    fn forget_gradients(&mut self) {
        self.parameter_gradients.clear();
    }

    fn finish(&mut self) {
        // A device that fails says so to whoever reads from it next.
        let _ = self.device.sync();
    }
}

// ---------------------------------------------------------------------------------------- the node in the user's graph

/// What waits between the two halves.
struct Waiting<B: GraphBackend> {
    executor: Executor<BurnEngine<B>>,
    engine: BurnEngine<B>,
    inputs: Vec<OuterInput<B>>,
    parameters: Vec<OuterParameter<B>>,
    output_gradients: PartGradients<B>,
    /// The device to seed when the backward is through; a nested region leaves that to the outer one.
    reseed: Option<Device>,
    trace: Option<TraceHandle>,
}

/// A part of the region's input that needs a gradient.
struct OuterInput<B: GraphBackend> {
    part: usize,
    id: NodeId,
    way: InputWay<B>,
    shape: Shape,
    dtype: DType,
    device: B::Device,
}

impl<B: GraphBackend> OuterInput<B> {
    fn filled(&self, value: f32) -> FloatTensor<B> {
        B::float_full(self.shape.clone(), value.into(), &self.device, self.dtype.into())
    }
}

/// How to get at what the outer graph has added up for an input.
enum InputWay<B: GraphBackend> {
    /// A leaf can be held: nothing lies behind it that an abandoned region would keep alive.
    Leaf(Tracked<B>),
    /// The hub's own parent at this position.
    Parent(usize),
    /// One of too many: its sum is not carried, only added to.
    Apart,
}

/// A tracked parameter.
struct OuterParameter<B: GraphBackend> {
    tensor: Tracked<B>,
    is_leaf: bool,
}

type Shared<B> = Arc<Mutex<Option<Waiting<B>>>>;

impl<B: GraphBackend> std::fmt::Debug for Waiting<B> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Waiting({} stages)", self.engine.stages.len())
    }
}

/// One for each float output: parks its gradient.
#[derive(Debug)]
struct Output(usize);

impl<B: GraphBackend> Backward<B, 1> for Output {
    type State = Shared<B>;

    fn backward(self, ops: Ops<Shared<B>, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        let mut waiting = ops.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiting) = waiting.as_mut() {
            waiting.output_gradients[self.0] = Some(gradient);
        }
    }
}

/// Runs the second half, once all outputs have parked theirs.
#[derive(Debug)]
struct Hub;

impl<B: GraphBackend, const N: usize> Backward<B, N> for Hub {
    type State = Shared<B>;

    fn backward(self, ops: Ops<Shared<B>, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let waiting = ops.state.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut waiting) = waiting else {
            return;
        };
        for input in &waiting.inputs {
            waiting.engine.carried[input.part] = match &input.way {
                InputWay::Leaf(leaf) => grads.remove::<B>(leaf),
                InputWay::Parent(position) => ops.parents[*position].as_ref().map(|parent| {
                    // Burn can only take out what is there. Minus zero changes no bit of what it is added to.
                    grads.register::<B>(input.id, input.filled(-0.0));
                    grads.consume::<B>(parent)
                }),
                InputWay::Apart => None,
            };
        }
        for parameter in waiting.parameters.iter().filter(|parameter| parameter.is_leaf) {
            if let Some(sum) = grads.remove::<B>(&parameter.tensor) {
                waiting.engine.parameter_gradients.insert(parameter.tensor.id(), sum);
            }
        }
        let gradients = std::mem::take(&mut waiting.output_gradients);
        if let Err(error) = waiting.engine.check_disjoint() {
            raise(error);
        }
        let result = waiting.executor.backward(&mut waiting.engine, gradients);
        if let (Some(handle), Some(trace)) = (&waiting.trace, waiting.executor.trace()) {
            handle.set(trace.clone());
        }
        let mut gradients = match result {
            Ok(gradients) => gradients,
            Err(error) => raise(error.into()),
        };
        for input in waiting.inputs {
            match gradients[input.part].take() {
                Some(gradient) => grads.register::<B>(input.id, gradient),
                // Nothing reached it. A leaf then has no gradient, as in Burn; the operation that made any other
                // tensor waits for one.
                None if matches!(input.way, InputWay::Leaf(_)) => {}
                None => grads.register::<B>(input.id, input.filled(0.0)),
            }
        }
        for parameter in waiting.parameters {
            let id = parameter.tensor.id();
            match waiting.engine.parameter_gradients.remove(&id) {
                Some(gradient) => grads.register::<B>(id, gradient),
                None if parameter.is_leaf => {}
                None => {
                    let like = parameter.tensor.primitive();
                    let zeros = B::float_zeros(like.shape(), &like.device(), like.dtype().into());
                    grads.register::<B>(id, zeros);
                }
            }
        }
        if let Some(device) = waiting.reseed {
            seeds::after_backward(&device);
        }
    }
}

/// A region about to run or to be measured.
pub(crate) struct Setup {
    pub(crate) stages: Vec<Box<dyn AnyStage>>,
    /// The tracked parameters of each stage.
    pub(crate) parameters: Vec<Vec<AnyTensor>>,
    pub(crate) input: Parts,
    pub(crate) device: Device,
    pub(crate) seed: u64,
    pub(crate) checks: Checks,
}

/// How to run it.
pub(crate) struct Job {
    pub(crate) schedule: Schedule,
    pub(crate) stores: Stores,
    pub(crate) trace: Option<TraceHandle>,
}

/// Calls a function for the backend that the tensors of a setup are on, with the strategy of the user's graph. One line
/// for each backend: a node's gradients are of a concrete type.
macro_rules! on_backend_of {
    ($setup:expr, |$strategy:ident| $function:ident::<B>($($argument:expr),*)) => {{
        let tracked = $setup.input.tensors.iter().chain($setup.parameters.iter().flatten());
        let Some(lead) = tracked.clone().find(|tensor| tensor.is_tracked()).cloned() else {
            return Err(Error::Untracked);
        };
        let $strategy = lead.strategy().unwrap_or_default();
        let DispatchTensorKind::Autodiff(kind) = &lead.0.kind else {
            return Err(Error::Untracked);
        };
        let off = || Err(Error::BackendOff { device: format!("{:?}", lead.device()), enabled: ENABLED });
        match **kind {
            // A build with a backend that is off would compile Burn once more; the tests turn all of them off instead.
            #[cfg(all(test, feature = "flex"))]
            _ if tests::ALL_OFF.get() => off(),
            #[cfg(feature = "flex")]
            DispatchTensorKind::Flex(_) => $function::<burn::backend::Flex>($($argument),*),
            #[cfg(feature = "ndarray")]
            DispatchTensorKind::NdArray(_) => $function::<burn::backend::NdArray>($($argument),*),
            #[allow(unreachable_patterns)]
            _ => off(),
        }
    }};
}

/// Runs the forward half and leaves a node in the user's graph for the rest.
///
/// # Errors
/// When a stage or the plan cannot run, or the backend is off.
pub(crate) fn run(setup: Setup, job: Job) -> Result<Parts, Error> {
    on_backend_of!(setup, |strategy| run_on::<B>(setup, job, strategy))
}

/// Runs each stage a few times and writes down what it takes. The user's graph and running statistics stay as they are.
///
/// # Errors
/// When a stage cannot run, or the backend is off.
pub(crate) fn measure(
    setup: Setup,
    measuring: Measuring,
    progress: &mut dyn FnMut(Stage, &str),
) -> Result<Measurement, Error> {
    on_backend_of!(setup, |strategy| measure_on::<B>(setup, measuring, progress, strategy))
}

fn measure_on<B: GraphBackend>(
    setup: Setup,
    measuring: Measuring,
    progress: &mut dyn FnMut(Stage, &str),
    strategy: TapeStrategy,
) -> Result<Measurement, Error> {
    let Prepared { mut engine, input, .. } = prepare::<B>(setup, strategy)?;
    // As if everything had run before: later runs leave running statistics alone.
    engine.ran.fill(true);
    let found = rekindle_run::measure(&mut engine, input, measuring, progress);
    sweep();
    found.map_err(|error| match error {
        MeasureError::Stage { stage, name, source } => {
            Error::Measuring { stage: stage.number() as usize, name, reason: source.to_string() }
        }
        other => Error::Run { reason: other.to_string() },
    })
}

/// A region's engine, and what its nodes hang on.
struct Prepared<B: GraphBackend> {
    engine: BurnEngine<B>,
    input: OnDevice<B>,
    /// What joins the user's graph: the hub's own parents come after the first, which ties all the others together.
    tied: Vec<NodeGuard>,
    direct: Vec<NodeGuard>,
    inputs: Vec<OuterInput<B>>,
    parameters: Vec<OuterParameter<B>>,
}

fn prepare<B: GraphBackend>(setup: Setup, strategy: TapeStrategy) -> Result<Prepared<B>, Error> {
    let elsewhere = |stage: usize, name: &str, tensor: &AnyTensor| Error::OtherBackend {
        stage,
        name: name.to_owned(),
        found: format!("{:?}", tensor.device()),
        expected: format!("{:?}", setup.device),
    };
    let mut tied = Vec::new();
    let mut direct = Vec::new();
    let mut inputs = Vec::new();
    let mut parts = Vec::with_capacity(setup.input.tensors.len());
    for (part, tensor) in setup.input.tensors.into_iter().enumerate() {
        if !tensor.is_graph_float() {
            parts.push(Part::Other(tensor));
            continue;
        }
        let (wanted, is_leaf) = (tensor.is_tracked(), tensor.is_leaf());
        let found = tensor.clone();
        let tensor = tensor.into_tracked::<B>().ok_or_else(|| elsewhere(0, "input", &found))?;
        drop(found);
        if wanted {
            let way = if is_leaf {
                tied.push(tensor.node());
                InputWay::Leaf(tensor.clone())
            } else if direct.len() < 7 {
                direct.push(tensor.node());
                InputWay::Parent(direct.len())
            } else {
                tied.push(tensor.node());
                InputWay::Apart
            };
            inputs.push(OuterInput {
                part,
                id: tensor.id(),
                way,
                shape: tensor.shape(),
                dtype: tensor.dtype(),
                device: tensor.device(),
            });
        }
        parts.push(Part::Float { tensor: tensor.into_primitive(), wanted });
    }
    let mut parameters: Vec<OuterParameter<B>> = Vec::new();
    let mut ids = Vec::with_capacity(setup.parameters.len());
    for (index, tensors) in setup.parameters.into_iter().enumerate() {
        let mut of_stage = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            let is_leaf = tensor.is_leaf();
            let found = tensor.clone();
            let tensor = tensor.into_tracked::<B>();
            let tensor = tensor.ok_or_else(|| elsewhere(index + 1, setup.stages[index].name(), &found))?;
            if Autodiff::<B>::is_distributed(&tensor) {
                return Err(Error::Distributed {
                    stage: index + 1,
                    name: setup.stages[index].name().to_owned(),
                });
            }
            of_stage.push(tensor.id());
            parameters.push(OuterParameter { tensor, is_leaf });
        }
        ids.push(of_stage);
    }
    // A parameter that several stages share is one node, tied in once and given its gradient once.
    parameters.sort_by_key(|parameter| parameter.tensor.id());
    parameters.dedup_by_key(|parameter| parameter.tensor.id());
    tied.extend(parameters.iter().map(|parameter| parameter.tensor.node()));

    let parameter_bytes = parameters.iter().map(|parameter| {
        let tensor = &parameter.tensor;
        (tensor.id(), size_of(tensor.dtype(), &tensor.shape()))
    });
    let continues: Vec<bool> = setup.stages.iter().map(|stage| stage.continues()).collect();
    let engine = BurnEngine::<B> {
        parameter_bytes: parameter_bytes.collect(),
        ran: vec![false; setup.stages.len()],
        taped_live: Vec::new(),
        stages: setup.stages,
        parameters: ids,
        strategy,
        device: setup.device,
        draws: seeds::Draws::new(setup.seed, continues),
        record: Record::new(setup.checks),
        exported: Vec::new(),
        exported_from: None,
        parameter_gradients: HashMap::new(),
        carried: parts.iter().map(|_| None).collect(),
    };
    let input = OnDevice { parts, structure: setup.input.structure.into() };
    Ok(Prepared { engine, input, tied, direct, inputs, parameters })
}

fn run_on<B: GraphBackend>(setup: Setup, job: Job, strategy: TapeStrategy) -> Result<Parts, Error> {
    let Prepared { mut engine, input, tied, direct, inputs, parameters } = prepare::<B>(setup, strategy)?;
    let device = engine.device.clone();
    let mut executor = Executor::<BurnEngine<B>>::new(job.schedule, job.stores);
    if job.trace.is_some() {
        executor = executor.traced();
    }
    let output = executor.forward(&mut engine, input)?;
    kept::note(|| rows_of(&executor, &engine));
    sweep_when(512);

    let values = output.parts.iter().find_map(|part| match part {
        Part::Float { tensor, wanted: true } => Some(token::<B>(tensor)),
        _ => None,
    });
    let Some(value) = values else {
        // Nothing tracked reaches the output: there is nothing to go back through.
        let structure = output.structure.to_vec();
        let tensors = output.parts.into_iter().map(|part| untracked(part, strategy)).collect();
        return Ok(Parts { tensors, structure });
    };
    let shared: Shared<B> = Arc::new(Mutex::new(Some(Waiting {
        executor,
        engine,
        inputs,
        parameters,
        output_gradients: output.parts.iter().map(|_| None).collect(),
        reseed: (!seeds::nested()).then_some(device),
        trace: job.trace,
    })));
    // The hub's first parent is always the tie, so that `InputWay::Parent` counts from one.
    let tie = match join::<B>(tied, &value) {
        Some(tie) => tie.node(),
        None => Autodiff::<B>::from_inner(value.clone()).require_grad().node(),
    };
    let hub = with_parents(Hub, [tie].into_iter().chain(direct).collect(), shared.clone(), value);
    let hub = hub.ok_or(Error::Untracked)?;
    let tensors = output.parts.into_iter().enumerate().map(|(index, part)| match part {
        Part::Float { tensor, wanted: true } => {
            let tensor = node(Output(index), hub.node(), shared.clone(), tensor);
            AnyTensor::from_tracked::<B>(tensor, strategy)
        }
        other => untracked(other, strategy),
    });
    Ok(Parts { tensors: tensors.collect(), structure: output.structure.to_vec() })
}

fn untracked<B: GraphBackend>(part: Part<B>, strategy: TapeStrategy) -> AnyTensor {
    match part {
        Part::Float { tensor, .. } => {
            AnyTensor::from_tracked::<B>(Autodiff::<B>::from_inner(tensor), strategy)
        }
        Part::Other(tensor) => tensor,
    }
}

fn rows_of<B: GraphBackend>(executor: &Executor<BurnEngine<B>>, engine: &BurnEngine<B>) -> Vec<KeptRow> {
    let name = |index: usize| engine.stages[index].name().to_owned();
    let rows = executor.kept().flat_map(|kept| match kept {
        Kept::Boundary(boundary, value) => {
            let reader = boundary.index();
            let rows = value.parts.iter().map(|part| {
                let (dtype, shape) = part.dtype_and_shape();
                KeptRow {
                    stage: name(reader),
                    what: format!("{boundary}, the stage's input"),
                    tensor: Some(describe(dtype, &shape)),
                    bytes: Some(size_of(dtype, &shape)),
                    why: "the backward pass runs the stage again from here".to_owned(),
                }
            });
            rows.collect::<Vec<_>>()
        }
        Kept::Tape(stage) => vec![KeptRow {
            stage: name(stage.index()),
            what: format!("tape {stage}"),
            tensor: None,
            bytes: None,
            why: "the backward pass reads it; the stage is not run again".to_owned(),
        }],
    });
    rows.collect()
}

// ------------------------------------------------------------------------------------------- without checkpointing

/// Passes a gradient on and, once for a region, seeds what follows: as a region does that recomputes.
#[derive(Debug)]
struct Reseed;

impl<B: GraphBackend> Backward<B, 1> for Reseed {
    type State = Arc<(AtomicBool, Device)>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        if let Some(parent) = &ops.parents[0] {
            grads.register::<B>(parent.id, gradient);
        }
        let (done, device) = &*ops.state;
        if !done.swap(true, Relaxed) {
            seeds::after_backward(device);
        }
    }
}

/// Lets the backward of a region that runs without checkpointing leave the random state a checkpointed one leaves.
pub(crate) fn reseed_after_backward(output: Parts, device: &Device) -> Parts {
    let state = Arc::new((AtomicBool::new(false), device.clone()));
    let tensors = output.tensors.into_iter().map(|tensor| {
        let DispatchTensorKind::Autodiff(kind) = &tensor.0.kind else {
            return tensor;
        };
        if !tensor.is_tracked() {
            return tensor;
        }
        match **kind {
            #[cfg(feature = "flex")]
            DispatchTensorKind::Flex(_) => reseed_on::<burn::backend::Flex>(tensor, &state),
            #[cfg(feature = "ndarray")]
            DispatchTensorKind::NdArray(_) => reseed_on::<burn::backend::NdArray>(tensor, &state),
            #[allow(unreachable_patterns)]
            _ => tensor,
        }
    });
    Parts { tensors: tensors.collect(), structure: output.structure }
}

fn reseed_on<B: GraphBackend>(tensor: AnyTensor, state: &Arc<(AtomicBool, Device)>) -> AnyTensor {
    let strategy = tensor.strategy().unwrap_or_default();
    match tensor.clone().into_tracked::<B>() {
        Some(tracked) => {
            let (value, guard) = tracked.into_parts();
            AnyTensor::from_tracked::<B>(node(Reseed, guard, state.clone(), value), strategy)
        }
        None => tensor,
    }
}

// ---------------------------------------------------------------------------------------------------------- sweeping

/// Burn registers a node for every untracked operation and frees it with the next backward, whichever that is: some
/// 70 KiB for a transformer block. Once `new` nodes were made since the last sweep, this is that backward.
pub(crate) fn sweep_when(new: u64) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let made = NodeId::new().value;
    if made.saturating_sub(LAST.load(Relaxed)) >= new {
        sweep();
        LAST.store(made, Relaxed);
    }
}

/// Frees what abandoned and untracked operations left behind in Burn's graphs.
///
/// Regions sweep by themselves; after many forward passes without a backward, such as a validation on a device with
/// autodiff, it can be called by hand. It costs a few microseconds.
pub fn sweep() {
    #[cfg(feature = "flex")]
    {
        let device = Device::flex().autodiff();
        let _ = Tensor::<1>::zeros([1], &device).require_grad().backward();
    }
    #[cfg(all(feature = "ndarray", not(feature = "flex")))]
    {
        let device = Device::ndarray().autodiff();
        let _ = Tensor::<1>::zeros([1], &device).require_grad().backward();
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use std::cell::Cell;

    use burn::backend::Flex;
    use burn::backend::distributed::DistributedParamId;
    use burn::module::{Module, Param, ParamId};

    use super::*;

    #[derive(Module, Debug)]
    struct Scale {
        by: Param<Tensor<1>>,
    }

    thread_local! {
        /// As if no backend's feature were on.
        pub(super) static ALL_OFF: Cell<bool> = const { Cell::new(false) };
        static CALLS: Cell<usize> = const { Cell::new(0) };
    }

    fn scale(scale: &Scale, x: Tensor<1>) -> Tensor<1> {
        CALLS.set(CALLS.get() + 1);
        x * scale.by.val()
    }

    #[test]
    fn a_backend_whose_feature_is_off_is_refused_before_anything_runs() {
        let device = Device::flex().autodiff();
        let module = Scale { by: Param::from_tensor(Tensor::ones([3], &device)) };
        let regions = |x: &Tensor<1>| {
            let one = crate::checkpoint(&module, x.clone(), scale);
            let many = ["store-all", "full", "sqrt"].map(|rule| {
                let region = crate::Region::new().stages("scale", &vec![module.clone(); 3], scale);
                region.rule(rule.parse().unwrap()).forward(x.clone())
            });
            [one].into_iter().chain(many).collect::<Vec<_>>()
        };
        let x = Tensor::<1>::ones([3], &device);
        ALL_OFF.set(true);
        for refused in regions(&x) {
            let error = refused.unwrap_err();
            assert!(matches!(&error, Error::BackendOff { enabled: "flex", .. }), "{error}");
            let words = "rekindle was built for: flex; turn on the crate feature of that backend";
            assert!(error.to_string().starts_with("the tensors are on Device"), "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
        assert_eq!(CALLS.get(), 0, "no stage ran");
        // What needs no node needs no feature: evaluation, and training without checkpoints.
        let evaluated = crate::checkpoint(&module.valid(), x.clone().without_autodiff(), scale);
        assert_eq!(evaluated.unwrap().into_data().iter::<f32>().sum::<f32>(), 3.0);
        let plain = crate::without_checkpointing(|| crate::checkpoint(&module, x.clone(), scale)).unwrap();
        assert!(module.by.val().grad(&plain.sum().backward()).is_some());
        ALL_OFF.set(false);
        assert!(regions(&x).iter().all(Result::is_ok));
    }

    /// Burn offers distributed parameters on CUDA only; below its public API they can be made anywhere.
    #[test]
    fn distributed_parameters_are_refused() {
        let plain = Tensor::<1>::ones([3], &Device::flex().autodiff()).require_grad();
        let plain = AnyTensor::from(plain).into_tracked::<Flex>().unwrap();
        let id = DistributedParamId::from(ParamId::new().val());
        let shared = Autodiff::<Flex>::set_distributed_params(plain, id);
        let by = AnyTensor::from_tracked::<Flex>(shared, TapeStrategy::Disabled);
        let by = Param::initialized(ParamId::new(), Tensor::try_from(by).unwrap());
        let x = Tensor::<1>::ones([3], &Device::flex().autodiff());
        let run = crate::checkpoint(&Scale { by }, x, |scale: &Scale, x: Tensor<1>| x * scale.by.val());
        let error = run.unwrap_err();
        assert!(matches!(error, Error::Distributed { stage: 1, .. }), "{error}");
    }
}
