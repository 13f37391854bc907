//! A stage on Burn's capture backend, where operations are written down and nothing is computed. With `node.rs` and
//! its files, all that makes nodes with Burn's extension API.
//!
//! Burn's own `autodiff()` refuses captured tensors; the backend underneath does not. So a stage is run on captured
//! tensors that were lifted into autodiff by hand, in the place of its input, its parameters and what it reads besides.

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use burn::backend::autodiff::NodeId;
use burn::backend::ir::{OperationIr, TensorIr, TensorStatus};
use burn::backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps};
use burn::backend::{
    Autodiff, AutodiffBackend, BackendTensor, Capture, Dispatch, DispatchAutodiffContext, DispatchDevice,
    DispatchTensorKind, TensorMetadata,
};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{
    Bool, CaptureError, CapturedGraph, CompletedCaptureScope, DType, Device, Int, Shape, Tensor, TensorId,
};

use super::kind::{kind_of, name_of};
use super::layout;
use super::operation::{Operation, Recording, Value, product};
use crate::boundary::Parts;
use crate::node::{AnyTensor, Join, Keeping, Start, TapeStrategy, Tracked, join, node, token};
use crate::stage::AnyStage;
use crate::{Error, again};

// --------------------------------------------------------------------------------------------------------- the scope

thread_local! {
    /// Devices that are not in use. Burn has 65,536 of them for a process and never takes one back.
    static FREE: RefCell<Vec<Device>> = const { RefCell::new(Vec::new()) };
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Whether tensors of this device have shapes and no values.
pub(crate) fn is_captured(device: &Device) -> bool {
    matches!(device.clone().without_autodiff().as_dispatch(), DispatchDevice::Capture(_))
}

/// What `run` made on a device of its own, and what was written down meanwhile.
///
/// # Errors
/// With the words of whatever panicked: an operation that asks for values, mostly.
pub(super) fn captured<T>(run: impl FnOnce(&Device) -> T) -> Result<(T, CapturedGraph), String> {
    let device = match FREE.with_borrow_mut(Vec::pop) {
        Some(device) => device,
        None => quietly(Device::capture)?,
    };
    let mut made = None;
    let outcome = quietly(|| {
        device.capture_scope(|scope| -> CompletedCaptureScope {
            made = Some(run(&device));
            scope.complete([], [])
        })
    });
    FREE.with_borrow_mut(|free| free.push(device));
    match (outcome?, made) {
        (Ok(graph), Some(made)) => Ok((made, graph)),
        (Err(CaptureError::UndeclaredInput { .. }), _) => {
            Err("it reads a tensor that is neither its input nor a parameter of its module".to_owned())
        }
        (Err(error), _) => Err(error.to_string()),
        (Ok(_), None) => Err("nothing was written down".to_owned()),
    }
}

/// Catches a panic, and keeps it from printing: one that is handled must not look like one that is not.
fn quietly<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    // A thread that unwinds already may not change the hook.
    if !std::thread::panicking() {
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                if !QUIET.get() {
                    before(panic);
                }
            }));
        });
    }
    let outer = QUIET.replace(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    QUIET.set(outer);
    result.map_err(|payload| crate::backward::message_of(payload.as_ref()))
}

// ------------------------------------------------------------------------------------------------------ what is known

/// A boundary without its values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Outline {
    tensors: Vec<TensorOutline>,
    structure: Vec<u64>,
}

/// A tensor without its values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct TensorOutline {
    dtype: DType,
    shape: Shape,
    autodiff: bool,
    tracked: bool,
}

impl Outline {
    pub(super) fn of(parts: &Parts) -> Self {
        let tensors = parts.tensors.iter().map(TensorOutline::of).collect();
        Self { tensors, structure: parts.structure.clone() }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.tensors.iter().fold(0, |sum: u64, tensor| sum.saturating_add(tensor.bytes()))
    }

    pub(super) fn is_tracked(&self) -> bool {
        self.tensors.iter().any(|tensor| tensor.tracked)
    }
}

impl TensorOutline {
    fn of(tensor: &AnyTensor) -> Self {
        Self {
            dtype: tensor.0.dtype(),
            shape: tensor.0.shape(),
            autodiff: tensor.is_autodiff(),
            tracked: tensor.is_tracked(),
        }
    }

    fn bytes(&self) -> u64 {
        product(self.shape.as_slice()).saturating_mul(self.dtype.size() as u64)
    }
}

/// How a stage is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    /// Forward only, without a tape.
    Free,
    /// Forward on a tape, and back.
    Taped(Keeping),
}

/// One run of a stage, and what it told about it.
pub(super) struct Recorded {
    pub(super) recording: Recording,
    pub(super) output: Outline,
    /// The type of the module and the function.
    pub(super) of: TypeId,
    /// The parameters, in the order of the module.
    pub(super) parameters: Vec<Parameter>,
    /// Which of them are trained, and what each takes.
    pub(super) trained: Vec<(ParamId, u64)>,
    /// How many nodes of Burn's graph the forward made. Where other threads make some at the same time, these are among them.
    pub(super) nodes: u64,
    /// Whether the stage marked something that can be run again.
    pub(super) marks: bool,
}

/// What a profile has to know of a parameter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Parameter {
    pub(super) bytes: u64,
    pub(super) tracked: bool,
}

/// Runs a stage and writes it down.
///
/// # Errors
/// When it cannot be run without values.
pub(super) fn record(stage: &dyn AnyStage, input: &Outline, run: Run) -> Result<Recorded, Error> {
    let (made, graph) = captured(|device| trace(stage, device, input, run)).map_err(|reason| {
        // The caller knows the number.
        Error::Untraceable { stage: 0, name: stage.name().to_owned(), reason }
    })?;
    Ok(made?.finish(graph.graph.operations))
}

/// What is known when a run is through, but not yet its operations.
struct Traced {
    output: Outline,
    of: TypeId,
    parameters: Vec<Parameter>,
    trained: Vec<(ParamId, u64)>,
    nodes: u64,
    marks: bool,
    given: Vec<TensorId>,
    outputs: Vec<TensorId>,
    gradients_in: Vec<(TensorId, u64)>,
    gradients_out: Vec<TensorId>,
    parameter_gradients: Vec<TensorId>,
    /// Stands between the forward and the backward.
    turn: TensorId,
}

fn trace(stage: &dyn AnyStage, device: &Device, input: &Outline, run: Run) -> Result<Traced, Error> {
    let mut lift = Lift::new(device, run);
    let mut parts = Parts { tensors: Vec::new(), structure: input.structure.clone() };
    let mut leaves = Vec::new();
    for outline in &input.tensors {
        let tensor = lift.made(outline, outline.tracked)?;
        if outline.tracked && matches!(run, Run::Taped(_)) {
            leaves.extend(tensor.clone().into_tracked::<Capture>());
        }
        parts.tensors.push(tensor);
    }
    let before = NodeId::new().value;
    let wanted = matches!(run, Run::Taped(Keeping { again: true, .. }));
    let (made, marks) = again::run(wanted, || stage.trace(&mut lift, parts));
    let made = made?;
    let nodes = NodeId::new().value - before - 1;
    if let Some(error) = lift.failed {
        return Err(error);
    }
    let mut traced = Traced {
        output: Outline::of(&made),
        of: lift.of,
        parameters: lift.parameters,
        trained: lift.trained,
        nodes,
        marks,
        given: lift.given,
        outputs: made.tensors.iter().filter_map(id_of).collect(),
        gradients_in: Vec::new(),
        gradients_out: Vec::new(),
        parameter_gradients: Vec::new(),
        turn: Capture::float_empty([0].into(), &capture_device(device)?, DType::F32.into()).id(),
    };
    let mut start = Vec::new();
    let mut tokens = Vec::new();
    let mut value = None;
    for tensor in made.tensors {
        if matches!(run, Run::Free) || !tensor.is_tracked() {
            continue;
        }
        let Some(tensor) = tensor.into_tracked::<Capture>() else { continue };
        let output = tensor.primitive();
        let gradient = Capture::float_empty(output.shape(), &output.device(), output.dtype().into());
        let bytes = product(output.shape().as_slice()).saturating_mul(output.dtype().size() as u64);
        traced.gradients_in.push((gradient.id(), bytes));
        let token = token::<Capture>(output);
        value.get_or_insert_with(|| token.clone());
        start.push((tensor.id(), gradient));
        tokens.push(node::<Capture, _, _>(Join, tensor.node(), (), token));
    }
    let guards = tokens.iter().map(|token| token.node()).collect();
    let Some((value, tie)) = value.and_then(|value| Some((value.clone(), join::<Capture>(guards, &value)?)))
    else {
        return Ok(traced);
    };
    drop(tokens);
    let root = node(Start, tie.node(), start, value);
    drop(tie);
    let mut gradients = Autodiff::<Capture>::backward(root);
    let ids = |leaves: Vec<Tracked<Capture>>, gradients: &mut _| -> Vec<TensorId> {
        let made = leaves.iter().filter_map(|leaf| leaf.grad_remove(gradients));
        made.map(|gradient| gradient.id()).collect()
    };
    traced.gradients_out = ids(leaves, &mut gradients);
    traced.parameter_gradients = ids(lift.leaves, &mut gradients);
    Ok(traced)
}

impl Traced {
    fn finish(self, operations: Vec<OperationIr>) -> Recorded {
        let mut numbers: HashMap<TensorId, usize> = HashMap::new();
        let mut number = |id: TensorId| {
            let next = numbers.len();
            *numbers.entry(id).or_insert(next)
        };
        let mut known: HashSet<TensorId> = self.given.iter().copied().collect();
        known.extend(self.gradients_in.iter().map(|(id, _)| *id));
        let mut recording = Recording::default();
        for operation in operations {
            let made = operation.outputs().next().map(|made| made.id);
            if made == Some(self.turn) {
                recording.forward = recording.operations.len();
                continue;
            }
            // What was there before is no operation of the stage.
            if made.is_some_and(|made| known.contains(&made)) {
                continue;
            }
            let kind = kind_of(&operation);
            let mut value = |tensor: &TensorIr| Value {
                id: number(tensor.id),
                shape: tensor.shape.as_slice().into(),
                elements: tensor.dtype.name(),
                element_bytes: u8::try_from(tensor.dtype.size()).unwrap_or(u8::MAX),
                last: tensor.status == TensorStatus::ReadWrite,
            };
            let reads = operation.inputs().map(&mut value).collect();
            let makes = operation.outputs().map(&mut value).collect();
            recording.operations.push(Operation { name: name_of(&operation), kind, reads, makes });
        }
        layout::settle(&mut recording.operations);
        recording.given = self.given.into_iter().map(&mut number).collect();
        recording.outputs = self.outputs.into_iter().map(&mut number).collect();
        recording.gradients_in =
            self.gradients_in.into_iter().map(|(id, bytes)| (number(id), bytes)).collect();
        recording.gradients_out = self.gradients_out.into_iter().map(&mut number).collect();
        recording.parameter_gradients = self.parameter_gradients.into_iter().map(&mut number).collect();
        Recorded {
            recording,
            output: self.output,
            of: self.of,
            parameters: self.parameters,
            trained: self.trained,
            nodes: self.nodes,
            marks: self.marks,
        }
    }
}

fn capture_device(device: &Device) -> Result<<Capture as burn::backend::BackendTypes>::Device, Error> {
    match device.as_dispatch() {
        DispatchDevice::Capture(device) => Ok(*device),
        other => Err(Error::Run { reason: format!("{other:?} does not capture; this is a bug in rekindle") }),
    }
}

fn id_of(tensor: &AnyTensor) -> Option<TensorId> {
    let kind = match &tensor.0.kind {
        DispatchTensorKind::Autodiff(kind) => kind,
        kind => kind,
    };
    match kind {
        DispatchTensorKind::Capture(BackendTensor::Float(tensor)) => Some(tensor.id()),
        DispatchTensorKind::Capture(BackendTensor::Int(tensor)) => Some(tensor.id()),
        DispatchTensorKind::Capture(BackendTensor::Bool(tensor)) => Some(tensor.id()),
        DispatchTensorKind::Capture(BackendTensor::Autodiff(tensor)) => Some(tensor.primitive().id()),
        _ => None,
    }
}

// -------------------------------------------------------------------------------------------------------- lifting

/// Puts captured tensors in the place of others: the same shapes and types, no values.
pub(crate) struct Lift<'a> {
    device: &'a Device,
    run: Run,
    of: TypeId,
    given: Vec<TensorId>,
    parameters: Vec<Parameter>,
    trained: Vec<(ParamId, u64)>,
    /// The tracked parameters.
    leaves: Vec<Tracked<Capture>>,
    failed: Option<Error>,
}

impl<'a> Lift<'a> {
    fn new(device: &'a Device, run: Run) -> Self {
        Self {
            device,
            run,
            of: TypeId::of::<()>(),
            given: Vec::new(),
            parameters: Vec::new(),
            trained: Vec::new(),
            leaves: Vec::new(),
            failed: None,
        }
    }

    /// A tensor like the outline. Tracked only in a taped run.
    fn made(&mut self, outline: &TensorOutline, tracked: bool) -> Result<AnyTensor, Error> {
        let (strategy, taped) = match self.run {
            Run::Free => (TapeStrategy::default(), false),
            Run::Taped(keeping) => (keeping.strategy, true),
        };
        let (shape, dtype) = (outline.shape.clone(), outline.dtype);
        let dispatch = self.device.as_dispatch();
        let tensor = if dtype.is_float() && outline.autodiff {
            let tensor = Capture::float_empty(shape, &capture_device(self.device)?, dtype.into());
            let tensor = Autodiff::<Capture>::from_inner(tensor);
            let tensor = if taped && tracked { tensor.require_grad() } else { tensor };
            AnyTensor::from_tracked::<Capture>(tensor, strategy)
        } else {
            let mut tensor = match dtype {
                dtype if dtype.is_float() => Dispatch::float_empty(shape, dispatch, dtype.into()),
                dtype if dtype.is_bool() => Dispatch::bool_empty(shape, dispatch, dtype.into()),
                dtype if dtype.is_int() || dtype.is_uint() => {
                    Dispatch::int_empty(shape, dispatch, dtype.into())
                }
                dtype => {
                    return Err(Error::Run { reason: format!("tensors of {dtype:?} cannot be traced") });
                }
            };
            if outline.autodiff {
                tensor.autodiff = DispatchAutodiffContext::Enabled(strategy);
            }
            AnyTensor(tensor)
        };
        self.given.extend(id_of(&tensor));
        Ok(tensor)
    }

    /// The tensors that a stage reads besides its input.
    pub(crate) fn side(&mut self, side: Parts) -> Result<Parts, Error> {
        let tensors = side.tensors.iter().map(|tensor| {
            let outline = TensorOutline::of(tensor);
            self.made(&outline, false)
        });
        Ok(Parts { tensors: tensors.collect::<Result<_, Error>>()?, structure: side.structure })
    }

    /// A module of captured parameters, with running statistics of its own.
    pub(crate) fn module<M: Module + 'static, F: 'static>(&mut self, module: &M) -> M {
        self.of = TypeId::of::<(M, F)>();
        let mut find = Find::default();
        module.visit(&mut find);
        let private = match find.captured {
            // `valid()` would take captured tensors out of autodiff, which Burn refuses; they are in it already.
            true => module.clone().train(),
            false => module.valid().train(),
        };
        let mut mapper = LiftParameters { lift: self, tracked: find.tracked, made: HashMap::new() };
        private.map(&mut mapper)
    }
}

/// The parameters that are trained, and whether they were captured already.
#[derive(Default)]
struct Find {
    tracked: Vec<ParamId>,
    captured: bool,
}

impl ModuleVisitor for Find {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = AnyTensor::from(param.val());
        self.captured |= id_of(&value).is_some();
        if value.is_tracked() {
            self.tracked.push(param.id);
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.captured |= id_of(&AnyTensor::from(param.val())).is_some();
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.captured |= id_of(&AnyTensor::from(param.val())).is_some();
    }
}

struct LiftParameters<'a, 'b> {
    lift: &'a mut Lift<'b>,
    tracked: Vec<ParamId>,
    /// A parameter that stands twice in a module is one leaf.
    made: HashMap<ParamId, Box<dyn Any>>,
}

impl LiftParameters<'_, '_> {
    fn lifted<T>(&mut self, id: ParamId, tensor: T) -> T
    where
        T: Clone + Into<AnyTensor> + TryFrom<AnyTensor, Error = Error> + 'static,
    {
        if let Some(made) = self.made.get(&id).and_then(|made| made.downcast_ref::<T>()) {
            return made.clone();
        }
        let tracked = self.tracked.contains(&id);
        let mut outline = TensorOutline::of(&tensor.clone().into());
        // Running statistics are moved to the device of the input, which Burn refuses for captured tensors in autodiff.
        outline.autodiff &= tracked || !outline.dtype.is_float();
        let made = self.lift.made(&outline, tracked);
        match made.and_then(|made| Ok((made.clone(), T::try_from(made)?))) {
            Ok((any, made)) => {
                self.lift.parameters.push(Parameter { bytes: outline.bytes(), tracked });
                if tracked {
                    self.lift.trained.push((id, outline.bytes()));
                }
                if tracked && matches!(self.lift.run, Run::Taped(_)) {
                    self.lift.leaves.extend(any.into_tracked::<Capture>());
                }
                self.made.insert(id, Box::new(made.clone()));
                made
            }
            Err(error) => {
                self.lift.failed.get_or_insert(error);
                tensor
            }
        }
    }
}

impl ModuleMapper for LiftParameters<'_, '_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = param.id;
        param.map(|tensor| self.lifted(id, tensor))
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let id = param.id;
        param.map(|tensor| self.lifted(id, tensor))
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        let id = param.id;
        param.map(|tensor| self.lifted(id, tensor))
    }
}
