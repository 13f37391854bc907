//! Burn, as the executor sees it.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{AutodiffBackend, TensorMetadata};
use burn::module::ParamId;
use burn::tensor::{Device, Shape, Tensor};
use rekindle_plan::{Bytes, Name, Stage};
use rekindle_run::{Engine, Parcel, Row};

use super::boundary::{OnDevice, Part, PartGradients};
use super::graph::{Guarded, Join, Strays, join, node, token};
use super::sweep::{leaving_nodes, sweep_when, swept};
use super::tensor::{AnyTensor, describe, size_of};
use super::travel::Travel;
use super::{GraphBackend, Keeping, TapeStrategy, Tracked};
use crate::boundary::Parts;
use crate::checks::{Checks, Observation, Record};
use crate::kept::{self, TapeTensor};
use crate::stage::{AnyStage, Mode};
use crate::{Error, again, hand_over, memory, seeds, stalled, tail};

/// Carries a gradient out of a nested graph.
type Port<B> = Arc<Mutex<Option<FloatTensor<B>>>>;

/// A stage recorded on a graph of its own.
///
/// The graph's ends are one-element tokens: holding the stage's input or output would cost an activation that the
/// backward may not even read.
pub(super) struct Tape<B: GraphBackend> {
    /// For each part of the input that needs a gradient: its node, and where the gradient comes out.
    inputs: Vec<Option<(NodeId, Port<B>)>>,
    /// For each part of the output the graph reaches: its node, and a token that keeps it.
    outputs: Vec<Option<(NodeId, Tracked<B>)>>,
    leaves: Vec<Tracked<B>>,
    /// The first node that can be of its graph.
    since: NodeId,
    /// Nodes that are there to be found, see [`SEEN_WITHIN`].
    lookouts: Vec<Tracked<B>>,
    /// Its graph goes on from that of the stage before, and is gone back through together with it.
    joined: bool,
}

/// Where a row of tapes has got to.
pub(super) struct RowEnd<B: GraphBackend> {
    stages: Vec<Stage>,
    /// How many nodes their graph has.
    nodes: u64,
    /// What the last of them made, where a gradient comes back for it. The next stage gets the very nodes: with any other
    /// between them, a sum of gradients might be added up in another order.
    output: Vec<Option<Tracked<B>>>,
}

/// Tapes that go back with the one before them, the last of a row first, and the gradients to begin with.
pub(super) struct Deferred<B: GraphBackend> {
    tapes: Vec<(Stage, Tape<B>)>,
    gradients: PartGradients<B>,
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

/// Longer than any thread waits for its turn, shorter than anybody's patience.
const LOOK_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// Whether somebody reads what a stage makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readers {
    Some,
    None,
}

/// How large each tensor between two tapes must be for one graph of both, and how many nodes a graph has before nothing more
/// is joined to it. Burn keeps some hundred bytes for each node of a graph until its backward is through: where tensors are
/// small that would tell, and a plan would not be within its budget.
const WORTH_JOINING: Bytes = Bytes::new(128 << 10);
const MOST_JOINED: u64 = 128;

/// After each backward Burn looks at every graph once for every node it has, and through its nodes until it finds one that
/// somebody holds. Of a long recurrence hardly any is held, and a look at all of its tapes took longer than a stage. So that the search ends
/// soon, one node in so many is there to be found.
const SEEN_WITHIN: u64 = 16;

/// Burn, as the executor sees it.
pub(super) struct BurnEngine<B: GraphBackend> {
    pub(super) stages: Vec<Box<dyn AnyStage>>,
    /// How many stages of the region come before these.
    pub(super) first: usize,
    /// The outer nodes of each stage's tracked parameters.
    pub(super) parameters: Vec<Vec<NodeId>>,
    /// What the gradient of each tracked parameter takes.
    pub(super) parameter_bytes: HashMap<NodeId, Bytes>,
    /// The strategy of the user's graph.
    pub(super) strategy: TapeStrategy,
    pub(super) device: Device,
    pub(super) draws: seeds::Draws,
    pub(super) ran: Vec<bool>,
    /// Whether the last run left operations out.
    pub(super) left_out: bool,
    /// Of each stage, whether its last run marked something that can be run again.
    pub(super) marks: Vec<bool>,
    /// Who looks for the peak of the device's pool, while stages are measured.
    pub(super) pool: Option<memory::PoolWatch>,
    /// Where the next tape stands in a row.
    pub(super) row: Row,
    /// What the next tape goes on from, if it is joined to the last.
    pub(super) end: Option<RowEnd<B>>,
    /// The last stages of a graph that is gone back through with its first.
    pub(super) deferred: Option<Deferred<B>>,
    /// Tokens of the tapes that were recorded in the forward half.
    pub(super) taped_live: Vec<(Stage, Tracked<B>)>,
    /// What the tapes of the forward half are made of, where somebody lists it.
    pub(super) listed: HashMap<Stage, Vec<TapeTensor>>,
    pub(super) record: Record,
    pub(super) travel: Travel<B>,
    /// What has been added up for each outer parameter so far, by this backward pass.
    pub(super) parameter_gradients: HashMap<NodeId, FloatTensor<B>>,
    /// The stage whose backward is the last to add to a parameter that is a leaf, and which parameter that is.
    pub(super) done_with: HashMap<NodeId, (usize, ParamId)>,
    /// What the outer graph has added up for each part of the region's input so far.
    pub(super) carried: PartGradients<B>,
}

impl<B: GraphBackend> BurnEngine<B> {
    pub(super) fn name(&self, stage: Stage) -> String {
        self.stages[stage.index()].name().to_owned()
    }

    /// What the region calls a stage.
    pub(super) fn number(&self, stage: Stage) -> usize {
        self.first + stage.number() as usize
    }

    /// Runs a stage under its seed.
    fn run(&mut self, stage: Stage, mode: Mode, input: Parts) -> Result<crate::stage::Ran, Error> {
        self.run_for(stage, mode, input, Readers::Some, false)
    }

    fn run_for(
        &mut self,
        stage: Stage,
        mode: Mode,
        input: Parts,
        readers: Readers,
        again: bool,
    ) -> Result<crate::stage::Ran, Error> {
        let number = self.number(stage);
        let ran = &self.stages[stage.index()];
        let run = || ran.run(mode, self.strategy, input);
        let run = || match mode {
            Mode::Free { live: false } | Mode::Taped { live: false, .. } => {
                stalled::watched(number, ran.name(), run)
            }
            _ => run(),
        };
        let run = || match mode {
            Mode::Free { .. } | Mode::Probe => leaving_nodes(run),
            _ => run(),
        };
        let run = || again::run(again, run);
        let ((made, marks), left_out) =
            self.draws.run(&self.device, stage.index(), || tail::run(readers == Readers::None, run));
        self.marks[stage.index()] = marks;
        self.left_out = left_out.operations > 0;
        match left_out.read {
            false => made,
            true => Err(Error::TailRead { stage: number, name: self.name(stage) }),
        }
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
            stage: self.number(stage),
            name: self.name(stage),
            found: format!("{found:?}"),
            expected: format!("{:?}", self.device),
        })
    }

    /// Fails when an untracked run came out tracked: it reached something of the user's graph.
    fn check_untracked(&self, stage: Stage, output: &Parts) -> Result<(), Error> {
        match output.is_tracked() {
            false => Ok(()),
            true => Err(Error::TrackedCapture { stage: self.number(stage), name: self.name(stage) }),
        }
    }

    /// Holds what a stage made against what it made the first time.
    fn observe(&mut self, stage: Stage, output: &OnDevice<B>) -> Result<(), Error> {
        let checksums = self.record.checks() == Checks::Checksums;
        let observed = output.parts.iter().map(|part| {
            let (dtype, shape) = part.dtype_and_shape();
            let checksum = match checksums {
                false => None,
                true => Some(crate::checks::checksum(&part.read()?)),
            };
            Ok(Observation { what: describe(dtype, shape.as_slice()), checksum })
        });
        let mut observed = observed.collect::<Result<Vec<_>, Error>>()?;
        // Numbers, lengths, which of several variants: what follows may depend on it as on a tensor.
        if !output.structure.is_empty() {
            observed.push(Observation { what: format!("structure {:?}", output.structure), checksum: None });
        }
        let index = stage.index();
        self.record.compare(index, self.stages[index].name(), observed)
    }

    /// Fails when a tape from the forward half shares a graph with the user's.
    ///
    /// Burn holds the lock of the user's graph while this runs, so going back through such a tape would wait for
    /// itself. Another thread finds out: it waits only if the lock is ours, and goes on when the error lets go of it.
    pub(super) fn check_disjoint(&mut self) -> Result<(), Error> {
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
                return Err(Error::TrackedCapture { stage: self.number(stage), name: self.name(stage) });
            }
        }
        Ok(())
    }

    /// Runs a stage on a graph of its own.
    fn taped(
        &mut self,
        stage: Stage,
        option: Option<&Name>,
        input: OnDevice<B>,
        readers: Readers,
    ) -> Result<(Tape<B>, OnDevice<B>), Error> {
        let Some(keeping) = Keeping::of(option, self.strategy) else {
            let option = option.map(ToString::to_string).unwrap_or_default();
            return Err(Error::UnknownOption { stage: self.number(stage), option });
        };
        let strategy = keeping.strategy;
        if !self.stages[stage.index()].can_be_taped(strategy, self.strategy) {
            let option = option.map(ToString::to_string).unwrap_or_default();
            return Err(Error::ConstantOption { stage: self.number(stage), name: self.name(stage), option });
        }
        let live = !std::mem::replace(&mut self.ran[stage.index()], true);
        if live && self.stages[stage.index()].is_due() {
            // A tape hides what an untracked run shows: whether the stage reaches for a tracked tensor, whose gradient
            // would be lost. Looking each time would cost a forward each time.
            let (parts, _) = self.detached(&input);
            let probed = self.run(stage, Mode::Probe, parts)?.output;
            self.check_untracked(stage, &probed)?;
            drop(probed);
            // The first step looks at every stage, and what that leaves would add up over all of them.
            sweep_when(64);
        }
        if live {
            self.stages[stage.index()].count_run();
        }
        let row = match (std::mem::take(&mut self.row), strategy) {
            (row, TapeStrategy::Disabled) => row,
            // What lies between two balanced tapes of one graph would not be kept either, but run again.
            (_, TapeStrategy::Balanced) => Row::default(),
        };
        let before = self.joined_to(stage, row, &input);
        let joined = before.is_some();
        let (mut stages, nodes, given) =
            before.map(|end| (end.stages, end.nodes, end.output)).unwrap_or_default();
        stages.push(stage);
        let since = NodeId::new();
        let mut given = given.into_iter();
        let mut inputs = Vec::with_capacity(input.parts.len());
        let mut tensors = Vec::with_capacity(input.parts.len());
        for part in input.parts {
            let given = given.next().flatten();
            let (end, tensor) = match part {
                Part::Float { wanted: true, .. } if let Some(given) = given => {
                    (None, AnyTensor::from_tracked::<B>(given, strategy))
                }
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
        let mode = Mode::Taped { live, strategy };
        let parts = Parts { tensors, structure };
        if live && let Some(tape) = kept::tape_of(self.stages[stage.index()].as_ref(), &parts, keeping) {
            self.listed.insert(stage, tape);
        }
        let ran = self.run_for(stage, mode, parts, readers, keeping.again)?;
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
        let leaves = leaves.collect::<Result<Vec<_>, Error>>()?;
        let mut outputs = Vec::with_capacity(ran.output.tensors.len());
        let mut made = Vec::with_capacity(ran.output.tensors.len());
        let mut parts = Vec::with_capacity(ran.output.tensors.len());
        for tensor in ran.output.tensors {
            if !tensor.is_graph_float() {
                outputs.push(None);
                made.push(None);
                parts.push(Part::Other(tensor));
                continue;
            }
            let tensor = self.graph_float(stage, tensor)?;
            let wanted = tensor.is_tracked();
            made.push((wanted && row.ahead).then(|| tensor.clone()));
            outputs.push(wanted.then(|| {
                let value = token::<B>(tensor.primitive());
                (tensor.id(), node(Join, tensor.node(), (), value))
            }));
            parts.push(Part::Float { tensor: tensor.into_primitive(), wanted });
        }
        let output = OnDevice { parts, structure: ran.output.structure.into() };
        self.observe(stage, &output)?;
        let own = NodeId::new().value.saturating_sub(since.value);
        let nodes = nodes + own;
        self.end = row.ahead.then_some(RowEnd { stages, nodes, output: made });
        if live {
            // Of each output: one may have nothing in common with the others.
            self.taped_live.extend(outputs.iter().flatten().map(|(_, token)| (stage, token.clone())));
        }
        let held = leaves.len() + outputs.iter().flatten().count();
        let lookouts = match outputs.iter().flatten().next() {
            // A tape that is made again is gone with the next backward.
            Some((_, token)) if live => {
                let wanted = usize::try_from(own / SEEN_WITHIN).unwrap_or(usize::MAX);
                let lookout = |_| node(Join, token.node(), (), token.primitive().clone());
                (held..wanted).map(lookout).collect()
            }
            _ => Vec::new(),
        };
        let tape = Tape { inputs, outputs, leaves, since, lookouts, joined };
        Ok((tape, output))
    }

    /// What the tape that is about to be recorded for `stage` is joined to, if it is to be and can be.
    fn joined_to(&mut self, stage: Stage, row: Row, between: &OnDevice<B>) -> Option<RowEnd<B>> {
        let end = self.end.take().filter(|_| row.behind)?;
        let large = |part: &Part<B>| {
            let (dtype, shape) = part.dtype_and_shape();
            !part.wanted() || size_of(dtype, &shape) >= WORTH_JOINING
        };
        if end.nodes >= MOST_JOINED || !between.parts.iter().all(large) {
            return None;
        }
        let mine = &self.parameters[stage.index()];
        // The uses of a parameter are added up from the last to the first, which one graph would leave to chance.
        let shared = |stage: &Stage| self.parameters[stage.index()].iter().any(|id| mine.contains(id));
        (!end.stages.iter().any(shared)).then_some(end)
    }

    /// Adds the nested graph's start and runs it back. Gives the gradient of each part of the first stage's input.
    /// Of the tapes, which are of one graph, the last is the first, as they were gone back through.
    fn run_back(
        &mut self,
        mut tapes: Vec<(Stage, Tape<B>)>,
        gradients: PartGradients<B>,
        carried: PartGradients<B>,
    ) -> Result<PartGradients<B>, Error> {
        let since = tapes.last().map_or_else(NodeId::new, |(_, tape)| tape.since);
        tapes.iter_mut().for_each(|(_, tape)| tape.lookouts.clear());
        let leaves = tapes.iter_mut().flat_map(|(stage, tape)| {
            self.parameters[stage.index()].iter().copied().zip(std::mem::take(&mut tape.leaves))
        });
        let leaves: Vec<(NodeId, Tracked<B>)> = leaves.collect();
        let stages: Vec<Stage> = tapes.iter().map(|(stage, _)| *stage).collect();
        let outputs =
            tapes.first_mut().map(|(_, tape)| std::mem::take(&mut tape.outputs)).unwrap_or_default();
        let inputs = tapes.pop().map(|(_, tape)| tape.inputs).unwrap_or_default();
        let mut start = Vec::new();
        let mut tokens = Vec::new();
        let mut value = None;
        for (output, gradient) in outputs.into_iter().zip(gradients) {
            if let (Some((id, token)), Some(gradient)) = (output, gradient) {
                value.get_or_insert_with(|| token.primitive().clone());
                tokens.push(token.node());
                start.push((id, gradient));
            }
        }
        if let Some(value) = value {
            // What is there already comes first, as it would in one graph: it was added by deeper operations.
            let parameters = leaves
                .iter()
                .filter_map(|(id, leaf)| Some((leaf.id(), self.parameter_gradients.remove(id)?)));
            let of_inputs = inputs
                .iter()
                .zip(&carried)
                .filter_map(|(input, carried)| Some((input.as_ref()?.0, carried.clone()?)));
            start = parameters.chain(of_inputs).chain(start).collect();
            if let Some(tie) = join::<B>(tokens, &value) {
                let strays = Strays { since, found: Arc::default() };
                let root = node(Guarded, tie.node(), (start, strays.clone()), value);
                drop(tie);
                let mut nested = hand_over::nested(|| Autodiff::<B>::backward(root));
                swept();
                if strays.found.load(Relaxed) {
                    let stage = stages.last().copied().unwrap_or(Stage::new(1));
                    return Err(Error::TrackedCapture { stage: self.number(stage), name: self.name(stage) });
                }
                for (id, leaf) in &leaves {
                    if let Some(gradient) = leaf.grad_remove(&mut nested) {
                        add::<B>(&mut self.parameter_gradients, *id, gradient);
                    }
                }
            }
        }
        for stage in stages {
            self.hand_over(stage);
        }
        let gradients = inputs.into_iter().zip(carried).map(|(input, carried)| {
            let port = input.and_then(|(_, port)| port.lock().unwrap_or_else(PoisonError::into_inner).take());
            port.or(carried)
        });
        Ok(gradients.collect())
    }

    /// Hands over the gradients that no stage is left to add to, if somebody wants them.
    fn hand_over(&mut self, stage: Stage) {
        if !hand_over::is_wanted() {
            return;
        }
        for id in &self.parameters[stage.index()] {
            let Some((last, parameter)) = self.done_with.get(id) else { continue };
            if *last != stage.index() {
                continue;
            }
            if let Some(gradient) = self.parameter_gradients.remove(id) {
                let length = gradient.shape().num_elements();
                let flat = B::float_reshape(gradient, Shape::new([length]));
                let flat = AnyTensor::from_tracked::<B>(Autodiff::<B>::from_inner(flat), self.strategy);
                hand_over::give(*parameter, Tensor::from_dispatch(flat.0).without_autodiff());
            }
        }
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
        // What is not swept is in no profile. A stage's own nodes are, as its workspace.
        sweep_when(64);
        Ok(output)
    }

    fn tape(
        &mut self,
        stage: Stage,
        option: Option<&Name>,
        input: OnDevice<B>,
    ) -> Result<(Tape<B>, OnDevice<B>), Error> {
        self.taped(stage, option, input, Readers::Some)
    }

    fn in_row(&mut self, row: Row) {
        // Burn looks at every node there is once for each backward it runs: fewer are better.
        self.row = row;
    }

    fn tape_unread(
        &mut self,
        stage: Stage,
        option: Option<&Name>,
        input: OnDevice<B>,
    ) -> Result<Tape<B>, Error> {
        // What is compared is made.
        let readers = match self.record.checks() {
            Checks::Checksums => Readers::Some,
            _ => Readers::None,
        };
        Ok(self.taped(stage, option, input, readers)?.0)
    }

    fn backward(
        &mut self,
        stage: Stage,
        tape: Tape<B>,
        gradient: PartGradients<B>,
    ) -> Result<PartGradients<B>, Error> {
        if tape.joined {
            // The stage before comes next.
            let none = tape.inputs.iter().map(|_| None).collect();
            let row =
                self.deferred.get_or_insert_with(|| Deferred { tapes: Vec::new(), gradients: gradient });
            row.tapes.push((stage, tape));
            return Ok(none);
        }
        let carried = match stage.number() {
            1 => std::mem::take(&mut self.carried),
            _ => tape.inputs.iter().map(|_| None).collect(),
        };
        let row = self.deferred.take();
        let Deferred { mut tapes, gradients } =
            row.unwrap_or_else(|| Deferred { tapes: Vec::new(), gradients: gradient });
        tapes.push((stage, tape));
        self.run_back(tapes, gradients, carried)
    }

    fn boundary_bytes(&self, boundary: &OnDevice<B>) -> Bytes {
        let sizes = boundary.parts.iter().map(|part| {
            let (dtype, shape) = part.dtype_and_shape();
            size_of(dtype, &shape)
        });
        sizes.sum()
    }

    fn export(&mut self, boundary: &OnDevice<B>) -> Result<Parcel, Error> {
        self.travel.pack(boundary)
    }

    fn import(&mut self, parcel: Parcel) -> Result<OnDevice<B>, Error> {
        self.travel.unpack(parcel)
    }

    fn live_bytes(&self) -> Option<Bytes> {
        // A pool of the device's own, or the process's memory.
        let pool = self.device.memory_pool_usage();
        pool.map(|pool| Bytes::new(pool.bytes_in_use)).or_else(memory::live)
    }

    fn peak_bytes(&mut self) -> Option<Bytes> {
        match (&self.pool, self.device.memory_pool_usage()) {
            (Some(watch), _) => {
                let peak = watch.peak();
                watch.reset();
                Some(peak)
            }
            // It tells what is in use now only.
            (None, Some(_)) => None,
            (None, None) => memory::lap(),
        }
    }
}
