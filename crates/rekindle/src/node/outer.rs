//! The nodes in the user's graph.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::TensorMetadata;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Device, Shape};
use rekindle_run::{Executor, RunError};

use super::abandoned::{self, LetGo};
use super::boundary::PartGradients;
use super::engine::BurnEngine;
use super::{GraphBackend, Tracked};
use crate::Error;
use crate::backward::raise;
use crate::checks::Checks;
use crate::places::{FaultLog, note_faults};
use crate::trace_handle::TraceHandle;
use crate::{hand_over, seeds, stalled};

/// What waits between the two halves.
pub(super) struct Waiting<B: GraphBackend> {
    pub(super) executor: Executor<BurnEngine<B>>,
    pub(super) engine: BurnEngine<B>,
    pub(super) inputs: Vec<OuterInput<B>>,
    pub(super) parameters: Vec<OuterParameter<B>>,
    pub(super) output_gradients: PartGradients<B>,
    /// It is the last of its region to go back.
    pub(super) closes: bool,
    /// The device to seed when the backward is through; a nested region leaves that to the outer one.
    pub(super) reseed: Option<Device>,
    pub(super) trace: Option<TraceHandle>,
    pub(super) faults: FaultLog,
}

/// A tensor of the user's graph, by name. A node that held the tensor itself would hold the graph, its own state
/// included: Burn could never free a region that nobody goes back through.
pub(super) struct Outer<B: GraphBackend> {
    pub(super) id: NodeId,
    pub(super) shape: Shape,
    pub(super) dtype: DType,
    device: B::Device,
}

impl<B: GraphBackend> Outer<B> {
    pub(super) fn of(tensor: &Tracked<B>) -> Self {
        Self { id: tensor.id(), shape: tensor.shape(), dtype: tensor.dtype(), device: tensor.device() }
    }

    pub(super) fn filled(&self, value: f32) -> FloatTensor<B> {
        B::float_full(self.shape.clone(), value.into(), &self.device, self.dtype.into())
    }

    /// One element that changes no bit of what it is added to.
    fn mark(&self) -> FloatTensor<B> {
        let shape = Shape::from(vec![1; self.shape.num_dims()]);
        B::float_full(shape, (-0.0).into(), &self.device, self.dtype.into())
    }
}

/// A part of the region's input that needs a gradient.
pub(super) struct OuterInput<B: GraphBackend> {
    pub(super) part: usize,
    pub(super) tensor: Outer<B>,
    pub(super) way: InputWay,
}

/// How to get at what the outer graph has added up for an input.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum InputWay {
    /// A leaf, whose sum is there or not.
    Leaf,
    /// The hub's own parent at this position.
    Parent(usize),
    /// One of too many, or one that nobody has added to yet: its sum is not carried, only added to.
    Apart,
}

/// A tracked parameter.
pub(super) struct OuterParameter<B: GraphBackend> {
    pub(super) tensor: Outer<B>,
    pub(super) is_leaf: bool,
}

pub(super) type Shared<B> = Arc<Mutex<Option<Waiting<B>>>>;

impl<B: GraphBackend> LetGo for Mutex<Option<Waiting<B>>> {
    fn let_go(&self) {
        // Whoever goes back through it needs nothing of that.
        let Ok(mut waiting) = self.try_lock() else { return };
        if let Some(waiting) = waiting.as_mut() {
            let stages = std::mem::take(&mut waiting.engine.stages);
            waiting.engine.stages = stages.into_iter().map(|stage| stage.untied()).collect();
        }
    }
}

impl<B: GraphBackend> std::fmt::Debug for Waiting<B> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Waiting({} stages)", self.engine.stages.len())
    }
}

/// One for each float output: parks its gradient.
#[derive(Debug)]
pub(super) struct Output(pub(super) usize);

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

/// What comes of the second half, and what it was done with.
type WentBack<B> = (Waiting<B>, Result<PartGradients<B>, RunError<Error>>);

fn go_back<B: GraphBackend>(mut waiting: Waiting<B>, gradients: PartGradients<B>) -> WentBack<B> {
    let result = waiting.executor.backward(&mut waiting.engine, gradients);
    (waiting, result)
}

/// Runs the second half, once all outputs have parked theirs.
#[derive(Debug)]
pub(super) struct Hub;

impl<B: GraphBackend, const N: usize> Backward<B, N> for Hub {
    type State = Shared<B>;

    fn backward(self, ops: Ops<Shared<B>, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let waiting = ops.state.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut waiting) = waiting else {
            return;
        };
        if waiting.closes {
            abandoned::gone_back();
        }
        // Burn gives a sum out for a tensor, or for the node it belongs to. Nobody else has the hub's own node any
        // more, so it can go by the name of each leaf in turn.
        let mut own = ops.node;
        let mut sum_of = |leaf: &Outer<B>| {
            let Some(node) = Arc::get_mut(&mut own) else {
                raise(Error::Run {
                    reason: "a region's node is held elsewhere; this is a bug in rekindle".to_owned(),
                });
            };
            node.id = leaf.id;
            // Only what is there can be taken out.
            let mark = leaf.mark();
            grads.register::<B>(leaf.id, mark.clone());
            let sum = grads.consume::<B>(&own);
            // Where there was none this is the mark, whose memory is held twice.
            let found = sum.shape() == leaf.shape && (leaf.shape.num_elements() != 1 || sum.can_mut());
            found.then_some(sum)
        };
        for parameter in waiting.parameters.iter().filter(|parameter| parameter.is_leaf) {
            if let Some(sum) = sum_of(&parameter.tensor) {
                waiting.engine.parameter_gradients.insert(parameter.tensor.id, sum);
            }
        }
        for input in waiting.inputs.iter().filter(|input| input.way == InputWay::Leaf) {
            waiting.engine.carried[input.part] = sum_of(&input.tensor);
        }
        for input in &waiting.inputs {
            let InputWay::Parent(position) = input.way else { continue };
            waiting.engine.carried[input.part] = ops.parents[position].as_ref().map(|parent| {
                // Minus zero changes no bit of what it is added to.
                grads.register::<B>(input.tensor.id, input.tensor.filled(-0.0));
                grads.consume::<B>(parent)
            });
        }
        let gradients = std::mem::take(&mut waiting.output_gradients);
        if let Err(error) = waiting.engine.check_disjoint() {
            raise(error);
        }
        let (mut waiting, result) = match waiting.engine.record.checks() {
            // Whoever takes gradients over does that on the thread that asked for it.
            Checks::Checksums if !hand_over::is_wanted() => {
                stalled::apart(move || go_back(waiting, gradients)).unwrap_or_else(|error| raise(error))
            }
            _ => go_back(waiting, gradients),
        };
        note_faults(&waiting.faults, waiting.executor.faults());
        if let (Some(handle), Some(trace)) = (&waiting.trace, waiting.executor.trace()) {
            handle.set(trace.clone());
        }
        let mut gradients = match result {
            Ok(gradients) => gradients,
            Err(error) => raise(error.into()),
        };
        for OuterInput { part, tensor, way } in waiting.inputs {
            match gradients[part].take() {
                Some(gradient) => grads.register::<B>(tensor.id, gradient),
                // Nothing reached it. A leaf then has no gradient, as in Burn; the operation that made any other
                // tensor waits for one.
                None if way == InputWay::Leaf => {}
                None => grads.register::<B>(tensor.id, tensor.filled(0.0)),
            }
        }
        for OuterParameter { tensor, is_leaf } in waiting.parameters {
            match waiting.engine.parameter_gradients.remove(&tensor.id) {
                Some(gradient) => grads.register::<B>(tensor.id, gradient),
                None if is_leaf => {}
                None => grads.register::<B>(tensor.id, tensor.filled(0.0)),
            }
        }
        if let Some(device) = waiting.reseed {
            seeds::after_backward(&device);
        }
    }
}
