//! The nodes in the user's graph.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::TensorMetadata;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Device, Shape};
use rekindle_run::Executor;

use super::boundary::PartGradients;
use super::engine::BurnEngine;
use super::{GraphBackend, Tracked};
use crate::backward::raise;
use crate::places::{FaultLog, note_faults};
use crate::region::TraceHandle;
use crate::seeds;

/// What waits between the two halves.
pub(super) struct Waiting<B: GraphBackend> {
    pub(super) executor: Executor<BurnEngine<B>>,
    pub(super) engine: BurnEngine<B>,
    pub(super) inputs: Vec<OuterInput<B>>,
    pub(super) parameters: Vec<OuterParameter<B>>,
    pub(super) output_gradients: PartGradients<B>,
    /// The device to seed when the backward is through; a nested region leaves that to the outer one.
    pub(super) reseed: Option<Device>,
    pub(super) trace: Option<TraceHandle>,
    pub(super) faults: FaultLog,
}

/// A part of the region's input that needs a gradient.
pub(super) struct OuterInput<B: GraphBackend> {
    pub(super) part: usize,
    pub(super) id: NodeId,
    pub(super) way: InputWay<B>,
    pub(super) shape: Shape,
    pub(super) dtype: DType,
    pub(super) device: B::Device,
}

impl<B: GraphBackend> OuterInput<B> {
    fn filled(&self, value: f32) -> FloatTensor<B> {
        B::float_full(self.shape.clone(), value.into(), &self.device, self.dtype.into())
    }
}

/// How to get at what the outer graph has added up for an input.
pub(super) enum InputWay<B: GraphBackend> {
    /// A leaf can be held: nothing lies behind it that an abandoned region would keep alive.
    Leaf(Tracked<B>),
    /// The hub's own parent at this position.
    Parent(usize),
    /// One of too many: its sum is not carried, only added to.
    Apart,
}

/// A tracked parameter.
pub(super) struct OuterParameter<B: GraphBackend> {
    pub(super) tensor: Tracked<B>,
    pub(super) is_leaf: bool,
}

pub(super) type Shared<B> = Arc<Mutex<Option<Waiting<B>>>>;

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
        note_faults(&waiting.faults, waiting.executor.faults());
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
