//! Operations of our own: one node each, where Burn's autodiff would make several and keep what lies between them.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::{
    BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{DispatchTensorKind, TensorMetadata};
use burn::tensor::{DType, Shape, Tensor};

use super::graph::node;
use super::tensor::AnyTensor;
use super::widened::apply_widened;
use super::{GraphBackend, TapeStrategy, Tracked};
use crate::backward::raise;
use crate::{Error, again, tail};

/// From some tensors to one.
pub(crate) trait Operation<const N: usize>: Clone + Debug + Send + Sync + 'static {
    /// Which inputs the backward reads: those are kept.
    const READS: [bool; N];
    /// Whether to run it again is less than to keep its output: a balanced tape keeps nothing of it but such inputs.
    const CHEAP: bool;
    /// Whether it can be run again where a stage [marks](crate::again) it and a plan wants that. It keeps nothing but inputs then.
    const AGAIN: bool = false;
    /// Whether it is a node on a device with memory of its own, too, where Burn's operations do it a block at a time. Our kernels work where
    /// the process has its memory; of most operations Burn's own are the better ones there, being one launch and not many.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "there is no such device in this build"))]
    const ANYWHERE: bool = false;
    /// Of which inputs the backward goes on with the sum of gradients that is there already, instead of having its own added to that: it is
    /// given the sum, and gives it back with what it added. For whoever adds several times, in an order of its own.
    const SUMS: [bool; N] = [false; N];

    fn forward<B: GraphBackend>(self, inputs: [FloatTensor<B>; N]) -> FloatTensor<B>;

    /// The output, and what is kept for the backward beside the inputs it reads.
    fn record<B: GraphBackend>(self, inputs: [FloatTensor<B>; N]) -> (FloatTensor<B>, Vec<FloatTensor<B>>) {
        (self.forward::<B>(inputs), Vec::new())
    }

    /// A tensor like the output, without the work that makes it: of an operation whose backward reads none of that.
    fn unmade<B: GraphBackend>(&self, inputs: &[FloatTensor<B>; N]) -> Option<FloatTensor<B>> {
        let _ = inputs;
        None
    }

    /// What of it the backward needs: that is kept, too.
    fn for_backward(&self) -> Self {
        self.clone()
    }

    /// What it is on a balanced tape where it is not cheap to run all of it again: one that keeps less, if there is such.
    fn on_balanced_tape(self) -> Self {
        self
    }

    /// The gradients of the inputs; of one that nobody asks for there may be none.
    fn backward<B: GraphBackend>(self, found: Found<B, N>) -> [Option<FloatTensor<B>>; N];
}

/// What an operation's backward starts from.
pub(crate) struct Found<B: GraphBackend, const N: usize> {
    /// The inputs it said it reads.
    pub(crate) inputs: [Option<FloatTensor<B>>; N],
    /// What was recorded; nothing, where the operation is cheap and the tape balanced.
    pub(crate) kept: Vec<FloatTensor<B>>,
    /// The gradient of the output.
    pub(crate) gradient: FloatTensor<B>,
    /// The sums it is to go on with, where there are any yet.
    pub(crate) sums: [Option<FloatTensor<B>>; N],
    /// Which inputs have somebody who asks for their gradient.
    pub(crate) wanted: [bool; N],
}

/// Runs an operation of one input, whose type its output has: see [`apply`] and [`apply_widened`].
#[allow(clippy::result_large_err, reason = "neither is an error: both are the tensor, which is moved anyway")]
pub(crate) fn apply_one<const D: usize>(
    operation: impl Operation<1>,
    input: Tensor<D>,
) -> Result<Tensor<D>, Tensor<D>> {
    let dtype = input.dtype();
    apply_widened(operation, [AnyTensor::from(input)], dtype)
        .map(|output| Tensor::from_dispatch(output.0))
        .map_err(|[input]| Tensor::from_dispatch(input.0))
}

/// Runs an operation on tensors with autodiff, all of one backend. Any others, and those of a backend that this build
/// cannot record on, are handed back.
#[allow(clippy::result_large_err, reason = "neither is an error: both are tensors, which are moved anyway")]
pub(crate) fn apply<O: Operation<N>, const N: usize>(
    operation: O,
    inputs: [AnyTensor; N],
) -> Result<AnyTensor, [AnyTensor; N]> {
    let Some(DispatchTensorKind::Autodiff(kind)) = inputs.first().map(|input| &input.0.kind) else {
        return Err(inputs);
    };
    let run = match **kind {
        #[cfg(feature = "flex")]
        DispatchTensorKind::Flex(_) => apply_on::<burn::backend::Flex, N>,
        #[cfg(feature = "ndarray")]
        DispatchTensorKind::NdArray(_) => apply_on::<burn::backend::NdArray, N>,
        #[cfg(feature = "capture")]
        DispatchTensorKind::Capture(_) => apply_on::<burn::backend::Capture, N>,
        #[cfg(feature = "cuda")]
        DispatchTensorKind::Cube(_) if O::ANYWHERE => apply_on::<burn::backend::Cube, N>,
        #[allow(unreachable_patterns)]
        _ => return Err(inputs),
    };
    run(operation, inputs)
}

#[allow(clippy::result_large_err, reason = "neither is an error: both are tensors, which are moved anyway")]
fn apply_on<B: GraphBackend, const N: usize>(
    operation: impl Operation<N>,
    inputs: [AnyTensor; N],
) -> Result<AnyTensor, [AnyTensor; N]> {
    let strategy = inputs.iter().find_map(AnyTensor::strategy).unwrap_or_default();
    let again = inputs.clone();
    let tracked: Vec<_> = inputs.into_iter().map_while(AnyTensor::into_tracked::<B>).collect();
    let Ok(tracked) = <[Tracked<B>; N]>::try_from(tracked) else { return Err(again) };
    // The only owner can be written over.
    drop(again);
    Ok(AnyTensor::from_tracked::<B>(recorded(operation, tracked, strategy), strategy))
}

fn recorded<B: GraphBackend, O: Operation<N>, const N: usize>(
    operation: O,
    inputs: [Tracked<B>; N],
    strategy: TapeStrategy,
) -> Tracked<B> {
    let output = match strategy {
        TapeStrategy::Disabled => keeping::<B, _, NoCheckpointing, N>(operation, inputs),
        TapeStrategy::Balanced => balanced(operation, inputs),
    };
    match O::SUMS.contains(&true) {
        true => {
            let (value, guard) = output.into_parts();
            node(Pass, guard, (), value)
        }
        false => output,
    }
}

/// Stands between an operation and whoever uses its output, so that nobody else has the operation's own node.
#[derive(Debug)]
struct Pass;

impl<B: GraphBackend> Backward<B, 1> for Pass {
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        if let [Some(parent)] = &ops.parents {
            grads.register::<B>(parent.id, gradient);
        }
    }
}

/// The node keeps what its backward reads, and its output where another node asks for it.
fn keeping<B: GraphBackend, O: Operation<N>, C: CheckpointStrategy, const N: usize>(
    operation: O,
    inputs: [Tracked<B>; N],
) -> Tracked<B> {
    if O::AGAIN {
        again::offer();
    }
    let recorded = Recorded(operation.for_backward());
    match recorded.prepare::<C>(inputs.each_ref().map(Tracked::<B>::node)).compute_bound().stateful() {
        OpsKind::UnTracked(prepared) => prepared.finish(operation.forward::<B>(primitives::<B, N>(inputs))),
        OpsKind::Tracked(mut prepared) => {
            let read = read::<O, N>(|input| prepared.checkpoint(&inputs[input]));
            let sums = summed::<B, O, N>(&inputs);
            let inputs = primitives::<B, N>(inputs);
            if let Some(unmade) = tail::instead(|| operation.unmade::<B>(&inputs)) {
                return noted::<B>(prepared.finish(Kept { read, sums, tensors: Vec::new() }, unmade));
            }
            let (output, kept) = operation.record::<B>(inputs);
            prepared.finish(Kept { read, sums, tensors: kept }, output)
        }
    }
}

/// Under Burn's balanced checkpointing: as one of its cheap operations, which run again when their output is asked for.
fn balanced<B: GraphBackend, O: Operation<N>, const N: usize>(
    operation: O,
    inputs: [Tracked<B>; N],
) -> Tracked<B> {
    let runs_again = O::CHEAP || (O::AGAIN && again::is_wanted());
    if !runs_again {
        return keeping::<B, O, BalancedCheckpointing, N>(operation.on_balanced_tape(), inputs);
    }
    let guards = inputs.each_ref().map(Tracked::<B>::node);
    let again = Again {
        operation: operation.clone(),
        inputs: guards.each_ref().map(|guard| guard.id()),
        backend: PhantomData::<B>,
    };
    let prepared = Recorded(operation.for_backward()).prepare::<BalancedCheckpointing>(guards);
    match prepared.memory_bound().retro_forward(again).parents(&inputs).stateful() {
        OpsKind::UnTracked(prepared) => prepared.finish(operation.forward::<B>(primitives::<B, N>(inputs))),
        OpsKind::Tracked(mut prepared) => {
            let read = read::<O, N>(|input| prepared.checkpoint(&inputs[input]));
            let sums = summed::<B, O, N>(&inputs);
            let inputs = primitives::<B, N>(inputs);
            let kept = Kept { read, sums, tensors: Vec::new() };
            match tail::instead(|| operation.unmade::<B>(&inputs)) {
                Some(unmade) => noted::<B>(prepared.finish(kept, unmade)),
                None => prepared.finish(kept, operation.forward::<B>(inputs)),
            }
        }
    }
}

/// Notes that the values of a tensor were not made.
fn noted<B: GraphBackend>(tensor: Tracked<B>) -> Tracked<B> {
    tail::note_unmade(tensor.id().value);
    tensor
}

/// `NaN`s, so that whoever reads them notices: one, seen as many, as nobody is to write them either.
pub(crate) fn unmade<B: GraphBackend>(shape: impl Into<Shape>, like: &FloatTensor<B>) -> FloatTensor<B> {
    let shape = shape.into();
    let one = Shape::from(vec![1; shape.num_dims()]);
    B::float_expand(B::float_full(one, f32::NAN.into(), &like.device(), like.dtype().into()), shape)
}

/// The tensors alone: whoever is the only owner may write over them.
fn primitives<B: GraphBackend, const N: usize>(inputs: [Tracked<B>; N]) -> [FloatTensor<B>; N] {
    inputs.map(|input| input.into_parts().0)
}

/// The nodes of the inputs the backward reads.
fn read<O: Operation<N>, const N: usize>(mut keep: impl FnMut(usize) -> NodeId) -> [Option<NodeId>; N] {
    std::array::from_fn(|input| {
        let node = O::READS[input].then(|| keep(input))?;
        tail::note_kept(node.value);
        Some(node)
    })
}

/// Inputs whose sums the backward goes on with.
fn summed<B: GraphBackend, O: Operation<N>, const N: usize>(inputs: &[Tracked<B>; N]) -> [Option<Summed>; N] {
    std::array::from_fn(|input| {
        O::SUMS[input].then(|| Summed { shape: inputs[input].shape(), dtype: inputs[input].dtype() })
    })
}

/// An input whose gradient is a sum to go on with.
#[derive(Clone, Debug)]
struct Summed {
    shape: Shape,
    dtype: DType,
}

/// What the backward of a recorded operation finds.
#[derive(Clone, Debug)]
struct Kept<T, const N: usize> {
    /// Outputs of nodes, which may have to be computed first.
    read: [Option<NodeId>; N],
    sums: [Option<Summed>; N],
    tensors: Vec<T>,
}

#[derive(Debug)]
struct Recorded<O>(O);

impl<B: GraphBackend, O: Operation<N>, const N: usize> Backward<B, N> for Recorded<O> {
    type State = Kept<FloatTensor<B>, N>;

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        let Kept { read, sums, tensors } = ops.state;
        let inputs = read.map(|node| node.map(|node| checkpointer.retrieve_node_output(node)));
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let mut own = ops.node;
        let sums = std::array::from_fn(|input| {
            let (Some(Summed { shape, dtype }), Some(parent)) = (&sums[input], &ops.parents[input]) else {
                return None;
            };
            // Burn gives a sum out for a node. Nobody else has this one, so it can go by the name of each in turn.
            let Some(node) = Arc::get_mut(&mut own) else {
                let reason = "a node is held elsewhere; this is a bug in rekindle".to_owned();
                raise(Error::Run { reason });
            };
            node.id = parent.id;
            // Only what is there can be taken out; minus zero changes no bit of it.
            let one = Shape::from(vec![1; shape.num_dims()]);
            let mark = B::float_full(one, (-0.0).into(), &gradient.device(), (*dtype).into());
            grads.register::<B>(parent.id, mark);
            let sum = grads.consume::<B>(&own);
            (sum.shape() == *shape).then_some(sum)
        });
        let made = self.0.backward::<B>(Found { inputs, kept: tensors, gradient, sums, wanted });
        for (parent, gradient) in ops.parents.iter().zip(made) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                grads.register::<B>(parent.id, gradient);
            }
        }
    }
}

/// Runs an operation again in the backward.
#[derive(Debug)]
struct Again<B, O, const N: usize> {
    operation: O,
    inputs: [NodeId; N],
    backend: PhantomData<B>,
}

impl<B: GraphBackend, O: Operation<N>, const N: usize> RetroForward for Again<B, O, N> {
    fn forward(&self, states: &mut BackwardStates, node: NodeId) {
        let inputs = self.inputs.map(|input| states.get_state::<FloatTensor<B>>(&input));
        states.save(node, self.operation.clone().forward::<B>(inputs));
    }
}
