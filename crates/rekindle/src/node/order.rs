//! Stages on the user's graph that go back one after the other.
//!
//! Burn runs a graph's steps from the deepest to the shallowest. Two stages that have nothing to do with each other, such as those of
//! two towers, would go back at the same time, and a plan that counts on the memory of the later one when it runs the earlier one
//! again would find it in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};

use super::graph::{join, node, nodes, token};
use super::outer::Outer;
use super::tensor::AnyTensor;
use super::{GraphBackend, TapeStrategy};
use crate::boundary::Parts;

/// A tensor between two stages, and whether its gradient has come through.
struct Between<B: GraphBackend> {
    tensor: Outer<B>,
    reached: AtomicBool,
}

impl<B: GraphBackend> std::fmt::Debug for Between<B> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Between({:?})", self.tensor.shape)
    }
}

/// Passes a gradient on.
#[derive(Debug)]
struct Pass;

impl<B: GraphBackend> Backward<B, 2> for Pass {
    type State = Arc<Between<B>>;

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        ops.state.reached.store(true, Relaxed);
        grads.register::<B>(ops.state.tensor.id, gradient);
    }
}

/// Deeper than all that the stage before made, and not as deep as anything that the next one makes of it.
#[derive(Debug)]
struct Gate;

impl<B: GraphBackend> Backward<B, 1> for Gate {
    type State = Vec<Arc<Between<B>>>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        for between in ops.state.iter().filter(|between| !between.reached.load(Relaxed)) {
            // Whatever made it waits for a gradient, now that the gate hangs on it.
            grads.register::<B>(between.tensor.id, between.tensor.filled(-0.0));
        }
    }
}

/// The boundary after a stage on the user's graph, with all of its tensors as deep as the deepest.
pub(super) fn in_order_on<B: GraphBackend>(boundary: Parts, strategy: TapeStrategy) -> Parts {
    let between = |tensor: &AnyTensor| {
        let tracked =
            tensor.clone().into_tracked::<B>().filter(|_| tensor.is_graph_float() && tensor.is_tracked())?;
        let between = Between { tensor: Outer::of(&tracked), reached: AtomicBool::new(false) };
        Some((tracked, Arc::new(between)))
    };
    let found: Vec<_> = boundary.tensors.iter().map(between).collect();
    let guards: Vec<_> = found.iter().flatten().map(|(tracked, _)| tracked.node()).collect();
    let all: Vec<_> = found.iter().flatten().map(|(_, between)| Arc::clone(between)).collect();
    let value = found.iter().flatten().next().map(|(tracked, _)| token::<B>(tracked.primitive()));
    let gate = value.filter(|_| all.len() > 1).and_then(|value| {
        let below = join::<B>(guards, &value)?;
        Some(node(Gate, below.node(), all, value))
    });
    let tensors = boundary.tensors.into_iter().zip(found).map(|(tensor, found)| match (found, &gate) {
        (Some((tracked, between)), Some(gate)) => {
            let (value, guard) = tracked.into_parts();
            AnyTensor::from_tracked::<B>(nodes(Pass, [guard, gate.node()], between, value), strategy)
        }
        _ => tensor,
    });
    Parts { tensors: tensors.collect(), structure: boundary.structure }
}

/// Passes a gradient on to the one tensor that it is of.
#[derive(Debug)]
struct Anchor;

impl<B: GraphBackend> Backward<B, 1> for Anchor {
    type State = NodeId;

    fn backward(self, ops: Ops<NodeId, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        grads.register::<B>(ops.state, gradient);
    }
}

/// The boundary after a stage whose tape is balanced, as what is kept: a balanced stage behind it would otherwise run this one again for
/// what it reads, as one tape runs its cheap operations again.
pub(super) fn anchored_on<B: GraphBackend>(mut boundary: Parts, strategy: TapeStrategy) -> Parts {
    for tensor in &mut boundary.tensors {
        if !tensor.is_graph_float() || !tensor.is_tracked() {
            continue;
        }
        let Some(tracked) = tensor.clone().into_tracked::<B>() else { continue };
        let id = tracked.id();
        let (value, guard) = tracked.into_parts();
        *tensor = AnyTensor::from_tracked::<B>(node(Anchor, guard, id, value), strategy);
    }
    boundary
}
