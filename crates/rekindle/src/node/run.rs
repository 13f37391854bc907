//! From a region that is set up to its node in the user's graph.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use burn::backend::autodiff::ops::NodeGuard;
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::{AutodiffBackend, DispatchTensorKind};
use burn::module::ParamId;
use burn::tensor::Device;
use rekindle_plan::{Schedule, Stage};
use rekindle_run::{Executor, Kept, MeasureError, Measurement, Measuring, Row, Stores};

use super::abandoned::{self, LetGo};
use super::boundary::{OnDevice, Part};
use super::engine::BurnEngine;
use super::graph::{Join, Start, join, node, token, with_parents};
use super::order::{anchored_on, in_order_on};
use super::outer::{Hub, InputWay, Outer, OuterInput, OuterParameter, Output, Shared, Waiting};
use super::tensor::{AnyTensor, describe, size_of};
use super::travel::Travel;
use super::{GraphBackend, TapeStrategy, Tracked, sweep, sweep_when};
use crate::boundary::Parts;
use crate::checks::{Checks, Record};
use crate::kept::{self, KeptRow};
use crate::places::FaultLog;
use crate::stage::{AnyStage, Parameters};
use crate::trace_handle::TraceHandle;
use crate::{Error, seeds};

/// The backends this build can checkpoint.
const ENABLED: &str = match (cfg!(feature = "flex"), cfg!(feature = "ndarray"), cfg!(feature = "cuda")) {
    (true, true, true) => "flex, ndarray, cuda",
    (true, true, false) => "flex, ndarray",
    (true, false, true) => "flex, cuda",
    (true, false, false) => "flex",
    (false, true, true) => "ndarray, cuda",
    (false, true, false) => "ndarray",
    (false, false, true) => "cuda",
    (false, false, false) => "(none)",
};

/// A region about to run or to be measured.
pub(crate) struct Setup {
    pub(crate) stages: Vec<Box<dyn AnyStage>>,
    /// How many stages of the region come before these.
    pub(crate) first: usize,
    /// The tracked parameters of each stage.
    pub(crate) parameters: Vec<Vec<AnyTensor>>,
    /// Which parameters these are.
    pub(crate) parameter_ids: Vec<Vec<ParamId>>,
    pub(crate) input: Parts,
    pub(crate) device: Device,
    pub(crate) draws: seeds::Draws,
    pub(crate) checks: Checks,
    /// Nothing of the region is left to run again once these have gone back.
    pub(crate) closes: bool,
}

impl Setup {
    /// What the region reads, and its parameters.
    fn tensors(&self) -> impl Iterator<Item = &AnyTensor> {
        self.input.tensors.iter().chain(self.parameters.iter().flatten())
    }
}

/// How to run it.
pub(crate) struct Job {
    pub(crate) schedule: Schedule,
    pub(crate) stores: Stores,
    pub(crate) trace: Option<TraceHandle>,
    /// Where to write down what went wrong in the stores.
    pub(crate) faults: FaultLog,
}

impl Job {
    /// A schedule that keeps everything on the device.
    pub(crate) fn without_places(schedule: Schedule) -> Self {
        Self { schedule, stores: Stores::default(), trace: None, faults: FaultLog::default() }
    }
}

/// What the forward half of a region came to.
pub(crate) struct Made {
    pub(crate) output: Parts,
    /// Where its last stage stopped drawing.
    pub(crate) stopped: seeds::Stopped,
}

/// Calls a function for the backend that tensors are on, with the strategy of the user's graph. One line
/// for each backend: a node's gradients are of a concrete type.
macro_rules! on_backend_of {
    ($tensors:expr, |$strategy:ident| $function:ident::<B>($($argument:expr),*)) => {{
        let Some(lead) = $tensors.into_iter().find(|tensor| tensor.is_tracked()).cloned() else {
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
            #[cfg(feature = "cuda")]
            DispatchTensorKind::Cube(_) => $function::<burn::backend::Cube>($($argument),*),
            #[allow(unreachable_patterns)]
            _ => off(),
        }
    }};
}

/// Runs the forward half and leaves a node in the user's graph for the rest.
///
/// # Errors
/// When a stage or the plan cannot run, or the backend is off.
pub(crate) fn run(setup: Setup, job: Job) -> Result<Made, Error> {
    on_backend_of!(setup.tensors(), |strategy| run_on::<B>(setup, job, strategy))
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
    on_backend_of!(setup.tensors(), |strategy| measure_on::<B>(setup, measuring, progress, strategy))
}

/// The boundary after a stage on the user's graph, so that nothing of that stage goes back before all of the next one has.
///
/// # Errors
/// When the backend is off.
pub(crate) fn in_order(boundary: Parts) -> Result<Parts, Error> {
    if boundary.tensors.iter().filter(|tensor| tensor.is_tracked()).count() < 2 {
        // What the next stage makes of one tensor is deeper than that.
        return Ok(boundary);
    }
    on_backend_of!(boundary.tensors.iter(), |strategy| in_order_here::<B>(boundary, strategy))
}

fn in_order_here<B: GraphBackend>(boundary: Parts, strategy: TapeStrategy) -> Result<Parts, Error> {
    Ok(in_order_on::<B>(boundary, strategy))
}

/// The boundary after a stage on the user's graph whose tape is balanced, so that nothing behind it runs that stage again.
///
/// # Errors
/// When the backend is off.
pub(crate) fn anchored(boundary: Parts) -> Result<Parts, Error> {
    if !boundary.is_tracked() {
        return Ok(boundary);
    }
    on_backend_of!(boundary.tensors.iter(), |strategy| anchored_here::<B>(boundary, strategy))
}

fn anchored_here<B: GraphBackend>(boundary: Parts, strategy: TapeStrategy) -> Result<Parts, Error> {
    Ok(anchored_on::<B>(boundary, strategy))
}

/// The nodes of each stage's tracked parameters in the user's graph. `None` for a stage that has one of another backend.
///
/// # Errors
/// When a parameter cannot be trained here, or the backend is off.
pub(crate) fn parameter_nodes(
    stages: &[Box<dyn AnyStage>],
    parameters: &[Parameters],
    input: &Parts,
) -> Result<Vec<Option<Vec<NodeId>>>, Error> {
    let tracked = parameters.iter().flat_map(|parameters| &parameters.tracked);
    let tensors = input.tensors.iter().chain(tracked);
    on_backend_of!(tensors, |_strategy| parameter_nodes_on::<B>(stages, parameters))
}

fn parameter_nodes_on<B: GraphBackend>(
    stages: &[Box<dyn AnyStage>],
    parameters: &[Parameters],
) -> Result<Vec<Option<Vec<NodeId>>>, Error> {
    let each = stages.iter().zip(parameters).enumerate().map(|(index, (stage, parameters))| {
        let mut ids = Vec::with_capacity(parameters.tracked.len());
        for tensor in &parameters.tracked {
            let Some(tracked) = tensor.clone().into_tracked::<B>() else { return Ok(None) };
            if Autodiff::<B>::is_distributed(&tracked) {
                return Err(Error::Distributed { stage: index + 1, name: stage.name().to_owned() });
            }
            ids.push(tracked.id());
        }
        Ok(Some(ids))
    });
    each.collect()
}

/// One value above all of these tensors, whose backward begins with these gradients of them.
///
/// # Errors
/// When nothing is tracked, tensors are of different backends, or the backend is off.
pub(crate) fn start_from(pairs: Vec<(AnyTensor, AnyTensor)>) -> Result<AnyTensor, Error> {
    on_backend_of!(pairs.iter().map(|pair| &pair.0), |strategy| start_on::<B>(pairs, strategy))
}

fn start_on<B: GraphBackend>(
    pairs: Vec<(AnyTensor, AnyTensor)>,
    strategy: TapeStrategy,
) -> Result<AnyTensor, Error> {
    let mut nodes = Vec::with_capacity(pairs.len());
    let mut gradients = Vec::with_capacity(pairs.len());
    let mut value = None;
    for (tensor, gradient) in pairs {
        let tracked = |tensor: AnyTensor| tensor.into_tracked::<B>().ok_or(Error::Untracked);
        let (tensor, gradient) = (tracked(tensor)?, tracked(gradient)?.into_primitive());
        value.get_or_insert_with(|| token::<B>(&gradient));
        gradients.push((tensor.id(), gradient));
        nodes.push(tensor.node());
    }
    let value = value.ok_or(Error::Untracked)?;
    let joined = join::<B>(nodes, &value).ok_or(Error::Untracked)?;
    Ok(AnyTensor::from_tracked::<B>(node(Start, joined.node(), gradients, value), strategy))
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
                InputWay::Leaf
            } else if setup.first == 0 && direct.len() < 7 {
                direct.push(tensor.node());
                InputWay::Parent(direct.len())
            } else {
                // Whoever else uses what a stage of the region made goes back later.
                tied.push(tensor.node());
                InputWay::Apart
            };
            inputs.push(OuterInput { part, tensor: Outer::of(&tensor), way });
        }
        parts.push(Part::Float { tensor: tensor.into_primitive(), wanted });
    }
    let mut parameters = Vec::new();
    let mut ids = Vec::with_capacity(setup.parameters.len());
    let mut done_with: HashMap<NodeId, (usize, ParamId)> = HashMap::new();
    for (index, (tensors, param_ids)) in setup.parameters.into_iter().zip(setup.parameter_ids).enumerate() {
        let mut of_stage = Vec::with_capacity(tensors.len());
        for (tensor, param_id) in tensors.into_iter().zip(param_ids) {
            let is_leaf = tensor.is_leaf();
            let found = tensor.clone();
            let tensor = tensor.into_tracked::<B>();
            let tensor = tensor
                .ok_or_else(|| elsewhere(setup.first + index + 1, setup.stages[index].name(), &found))?;
            if Autodiff::<B>::is_distributed(&tensor) {
                return Err(Error::Distributed {
                    stage: setup.first + index + 1,
                    name: setup.stages[index].name().to_owned(),
                });
            }
            of_stage.push(tensor.id());
            if is_leaf {
                // The first stage that has it is the last to go back.
                done_with.entry(tensor.id()).or_insert((index, param_id));
            }
            parameters.push((OuterParameter { tensor: Outer::<B>::of(&tensor), is_leaf }, tensor.node()));
        }
        ids.push(of_stage);
    }
    // A parameter that several stages share is one node, tied in once and given its gradient once.
    parameters.sort_by_key(|(parameter, _)| parameter.tensor.id);
    parameters.dedup_by_key(|(parameter, _)| parameter.tensor.id);
    let (parameters, nodes): (Vec<_>, Vec<NodeGuard>) = parameters.into_iter().unzip();
    tied.extend(nodes);

    let parameter_bytes = parameters
        .iter()
        .map(|OuterParameter { tensor, .. }| (tensor.id, size_of(tensor.dtype, &tensor.shape)));
    let engine = BurnEngine::<B> {
        parameter_bytes: parameter_bytes.collect(),
        ran: vec![false; setup.stages.len()],
        left_out: false,
        marks: vec![false; setup.stages.len()],
        pool: None,
        row: Row::default(),
        end: None,
        deferred: None,
        taped_live: Vec::new(),
        listed: HashMap::new(),
        stages: setup.stages,
        parameters: ids,
        strategy,
        travel: Travel::new(setup.device.clone()),
        device: setup.device,
        draws: setup.draws,
        first: setup.first,
        record: Record::new(setup.checks, setup.first),
        parameter_gradients: HashMap::new(),
        done_with,
        carried: parts.iter().map(|_| None).collect(),
    };
    let input = OnDevice { parts, structure: setup.input.structure.into() };
    Ok(Prepared { engine, input, tied, direct, inputs, parameters })
}

fn run_on<B: GraphBackend>(setup: Setup, job: Job, strategy: TapeStrategy) -> Result<Made, Error> {
    let closes = setup.closes;
    let Prepared { mut engine, input, tied, direct, inputs, parameters } = prepare::<B>(setup, strategy)?;
    let device = engine.device.clone();
    let mut executor = Executor::<BurnEngine<B>>::new(job.schedule, job.stores);
    if job.trace.is_some() {
        executor = executor.traced();
    }
    let output = executor.forward(&mut engine, input)?;
    kept::note(|| rows_of(&executor, &engine));
    sweep_when(512);
    let stopped = engine.draws.stopped();

    let values = output.parts.iter().find_map(|part| match part {
        Part::Float { tensor, wanted: true } => Some(token::<B>(tensor)),
        _ => None,
    });
    let Some(value) = values else {
        // Nothing tracked reaches the output: there is nothing to go back through.
        let structure = output.structure.to_vec();
        let tensors = output.parts.into_iter().map(|part| untracked(part, strategy)).collect();
        return Ok(Made { output: Parts { tensors, structure }, stopped });
    };
    let shared: Shared<B> = Arc::new(Mutex::new(Some(Waiting {
        executor,
        engine,
        inputs,
        parameters,
        output_gradients: output.parts.iter().map(|_| None).collect(),
        closes,
        reseed: (closes && !seeds::nested()).then_some(device),
        trace: job.trace,
        faults: job.faults,
    })));
    let waiting: Arc<dyn LetGo> = shared.clone();
    abandoned::begins_to_wait(Arc::downgrade(&waiting));
    // The hub's first parent is always the tie, so that `InputWay::Parent` counts from one.
    let tie = match join::<B>(tied, &value) {
        Some(tie) => tie.node(),
        None => Autodiff::<B>::from_inner(value.clone()).require_grad().node(),
    };
    let hub = with_parents(Hub, [tie].into_iter().chain(direct).collect(), shared.clone(), value);
    let hub = hub.ok_or(Error::Untracked)?;
    // Above the hub and below every output: one that nobody uses stays in the graph, and would hold the hub's node.
    let fan: Tracked<B> = node(Join, hub.node(), (), hub.primitive().clone());
    let tensors = output.parts.into_iter().enumerate().map(|(index, part)| match part {
        Part::Float { tensor, wanted: true } => {
            let tensor = node(Output(index), fan.node(), shared.clone(), tensor);
            AnyTensor::from_tracked::<B>(tensor, strategy)
        }
        other => untracked(other, strategy),
    });
    let output = Parts { tensors: tensors.collect(), structure: output.structure.to_vec() };
    Ok(Made { output, stopped })
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
                    what: format!("x{}, the stage's input", engine.first + reader),
                    tensor: Some(describe(dtype, shape.as_slice())),
                    bytes: Some(size_of(dtype, &shape)),
                    tape: Vec::new(),
                    why: "the backward pass runs the stage again from here".to_owned(),
                }
            });
            rows.collect::<Vec<_>>()
        }
        Kept::Tape(stage) => {
            let tape = engine.listed.get(&stage).cloned();
            vec![KeptRow::tape(&name(stage.index()), engine.number(stage), tape)]
        }
    });
    rows.collect()
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use std::cell::Cell;

    use burn::backend::Flex;
    use burn::backend::distributed::DistributedParamId;
    use burn::module::{Module, Param};
    use burn::tensor::Tensor;

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
