//! Nodes of Burn's autodiff graphs, as all of ours are made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use burn::backend::Backend;
use burn::backend::TensorMetadata;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::NoCheckpointing};
use burn::backend::autodiff::grads::{DistributedRegistration, GradID, Gradients};
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::tensor::container::TensorContainer;

use super::{GraphBackend, Tracked};

/// What every node here is made with.
pub(crate) fn node<B, N, S>(operation: N, parent: NodeGuard, state: S, value: FloatTensor<B>) -> Tracked<B>
where
    B: Backend,
    S: Clone + Send + std::fmt::Debug + 'static,
    N: Backward<B, 1, State = S>,
{
    nodes(operation, [parent], state, value)
}

pub(super) fn nodes<B, N, S, const P: usize>(
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
pub(super) fn with_parents<B, N, S>(
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

/// Gradients of nodes that are older than a nested graph: a stage reached for a leaf of somebody else's, whose gradient would be
/// lost with the graph.
#[derive(Clone, Debug)]
pub(crate) struct Strays {
    /// The first node that can be of the graph.
    pub(crate) since: NodeId,
    pub(crate) found: Arc<AtomicBool>,
}

impl DistributedRegistration for Strays {
    fn on_register(&mut self, node: &NodeId, _: &mut TensorContainer<GradID>) {
        if *node < self.since {
            self.found.store(true, Relaxed);
        }
    }
}

/// [`Start`], for a graph whose gradients are looked at as they are made: Burn has a hook for that, made for devices that exchange
/// gradients.
#[derive(Debug)]
pub(crate) struct Guarded;

impl<B: GraphBackend> Backward<B, 1> for Guarded {
    type State = (Vec<(NodeId, FloatTensor<B>)>, Strays);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (start, strays) = ops.state;
        let own = grads.consume::<B>(&ops.node);
        *grads = Gradients::new_distributed::<B>(ops.node, own, Box::new(strays));
        for (id, gradient) in start {
            grads.register::<B>(id, gradient);
        }
    }
}
