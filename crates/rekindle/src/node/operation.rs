//! Operations of our own: one node each, where Burn's autodiff would make several and keep what lies between them.

use std::any::Any;
use std::fmt::Debug;
use std::marker::PhantomData;

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, NoCheckpointing};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{DispatchTensorKind, TensorMetadata};
use burn::tensor::{DType, Tensor, TensorData};

use super::tensor::AnyTensor;
use super::{GraphBackend, TapeStrategy, Tracked};

/// What the backward of an operation reads besides the gradient, unless it records something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
    Nothing,
    Input,
    Output,
}

/// From one tensor to another of the same shape.
pub(crate) trait Operation: Clone + Debug + Send + Sync + 'static {
    const KEEPS: Keeps;

    fn forward<B: GraphBackend>(self, input: FloatTensor<B>) -> FloatTensor<B>;

    /// What is kept for the backward, and the output.
    fn record<B: GraphBackend>(self, input: FloatTensor<B>) -> (Option<FloatTensor<B>>, FloatTensor<B>) {
        match Self::KEEPS {
            Keeps::Nothing => (None, self.forward::<B>(input)),
            Keeps::Input => (Some(input.clone()), self.forward::<B>(input)),
            Keeps::Output => {
                let output = self.forward::<B>(input);
                (Some(output.clone()), output)
            }
        }
    }

    /// What of it the backward needs: that is kept, too.
    fn for_backward(&self) -> Self {
        self.clone()
    }

    /// The gradient of the input. `kept` is what was recorded; it is not there when the operation keeps nothing, and for
    /// one that records something of its own may be missing.
    fn backward<B: GraphBackend>(
        self,
        kept: Option<FloatTensor<B>>,
        gradient: FloatTensor<B>,
    ) -> FloatTensor<B>;
}

/// Runs an operation on a tensor with autodiff. Any other, and one of a backend that this build cannot record on, is
/// handed back.
#[allow(clippy::result_large_err, reason = "neither is an error: both are the tensor, which is moved anyway")]
pub(crate) fn apply<const D: usize>(
    operation: impl Operation,
    input: Tensor<D>,
) -> Result<Tensor<D>, Tensor<D>> {
    let any = AnyTensor::from(input.clone());
    let DispatchTensorKind::Autodiff(kind) = &any.0.kind else {
        return Err(input);
    };
    let run = match **kind {
        #[cfg(feature = "flex")]
        DispatchTensorKind::Flex(_) => apply_on::<burn::backend::Flex>,
        #[cfg(feature = "ndarray")]
        DispatchTensorKind::NdArray(_) => apply_on::<burn::backend::NdArray>,
        #[cfg(feature = "capture")]
        DispatchTensorKind::Capture(_) => apply_on::<burn::backend::Capture>,
        #[allow(unreachable_patterns)]
        _ => return Err(input),
    };
    // The only owner can be written over.
    drop(input);
    Ok(Tensor::from_dispatch(run(operation, any).0))
}

fn apply_on<B: GraphBackend>(operation: impl Operation, input: AnyTensor) -> AnyTensor {
    let strategy = input.strategy().unwrap_or_default();
    let again = input.clone();
    let Some(tracked) = input.into_tracked::<B>() else {
        return again;
    };
    drop(again);
    let output = match strategy {
        TapeStrategy::Disabled => keeping(operation, tracked),
        TapeStrategy::Balanced => balanced(operation, tracked),
    };
    AnyTensor::from_tracked::<B>(output, strategy)
}

/// The node keeps what its backward reads, and its output where another node asks for it.
fn keeping<B: GraphBackend>(operation: impl Operation, input: Tracked<B>) -> Tracked<B> {
    let (input, guard) = input.into_parts();
    match Recorded(operation.for_backward()).prepare::<NoCheckpointing>([guard]).compute_bound().stateful() {
        OpsKind::UnTracked(prepared) => prepared.finish(operation.forward::<B>(input)),
        OpsKind::Tracked(prepared) => {
            let (kept, output) = operation.record::<B>(input);
            prepared.finish(Kept::Tensor(kept), output)
        }
    }
}

/// Under Burn's balanced checkpointing: as one of its cheap operations, which run again when their output is asked for.
fn balanced<B: GraphBackend, O: Operation>(operation: O, input: Tracked<B>) -> Tracked<B> {
    if O::KEEPS == Keeps::Output {
        return keeping(operation, input);
    }
    let guard = input.node();
    let again = Again { operation: operation.clone(), input: guard.id(), backend: PhantomData::<B> };
    let prepared = Recorded(operation.for_backward()).prepare::<BalancedCheckpointing>([guard]);
    match prepared.memory_bound().retro_forward(again).parents([&input]).stateful() {
        OpsKind::UnTracked(prepared) => prepared.finish(operation.forward::<B>(input.into_parts().0)),
        OpsKind::Tracked(mut prepared) => {
            let kept = match O::KEEPS {
                Keeps::Input => Kept::Node(prepared.checkpoint(&input)),
                Keeps::Nothing | Keeps::Output => Kept::Tensor(None),
            };
            prepared.finish(kept, operation.forward::<B>(input.into_parts().0))
        }
    }
}

/// What the backward of a recorded operation finds.
#[derive(Clone, Debug)]
enum Kept<T> {
    Tensor(Option<T>),
    /// The output of this node, which may have to be computed first.
    Node(NodeId),
}

#[derive(Debug)]
struct Recorded<O>(O);

impl<B: GraphBackend, O: Operation> Backward<B, 1> for Recorded<O> {
    type State = Kept<FloatTensor<B>>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        let kept = match ops.state {
            Kept::Tensor(kept) => kept,
            Kept::Node(node) => Some(checkpointer.retrieve_node_output(node)),
        };
        if let Some(parent) = &ops.parents[0] {
            grads.register::<B>(parent.id, self.0.backward::<B>(kept, gradient));
        }
    }
}

/// Runs an operation again in the backward.
#[derive(Debug)]
struct Again<B, O> {
    operation: O,
    input: NodeId,
    backend: PhantomData<B>,
}

impl<B: GraphBackend, O: Operation> RetroForward for Again<B, O> {
    fn forward(&self, states: &mut BackwardStates, node: NodeId) {
        let input = states.get_state::<FloatTensor<B>>(&self.input);
        states.save(node, self.operation.clone().forward::<B>(input));
    }
}

// ---------------------------------------------------------------------------------------------------------- elements

/// The elements of a tensor where they lie, if that is in this process, in order, and as `f32`: on Flex.
fn elements<B: GraphBackend>(tensor: &FloatTensor<B>) -> Option<&[f32]> {
    #[cfg(feature = "flex")]
    return (tensor as &dyn Any).downcast_ref::<FloatTensor<burn::backend::Flex>>()?.as_slice();
    #[cfg(not(feature = "flex"))]
    None
}

/// The same, to be written over: if nobody else reads them.
fn elements_mut<B: GraphBackend>(tensor: &mut FloatTensor<B>) -> Option<&mut [f32]> {
    #[cfg(feature = "flex")]
    {
        let tensor = (tensor as &mut dyn Any).downcast_mut::<FloatTensor<burn::backend::Flex>>()?;
        if tensor.dtype() != DType::F32 {
            return None;
        }
        let (start, end) = tensor.layout().contiguous_offsets()?;
        tensor.try_storage_mut()?.get_mut(start..end)
    }
    #[cfg(not(feature = "flex"))]
    None
}

/// Writes over a tensor's elements with a kernel that reads those of another. The tensor itself, when the elements of
/// either are out of reach.
pub(crate) fn rewrite_from<B: GraphBackend>(
    tensor: FloatTensor<B>,
    read: &FloatTensor<B>,
    kernel: impl Fn(&[f32], &mut [f32]),
) -> Result<FloatTensor<B>, FloatTensor<B>> {
    let Some(read) = elements::<B>(read) else { return Err(tensor) };
    let update = |elements: &mut [f32]| kernel(read, elements);
    rewrite::<B>(tensor, update, |elements| {
        let mut made = elements.to_vec();
        update(&mut made);
        made
    })
}

/// A tensor whose elements are made from those of another: written over them by `update`, or newly made by `make` where
/// somebody else reads them. The tensor itself, when its elements are out of reach.
pub(crate) fn rewrite<B: GraphBackend>(
    mut tensor: FloatTensor<B>,
    update: impl FnOnce(&mut [f32]),
    make: impl FnOnce(&[f32]) -> Vec<f32>,
) -> Result<FloatTensor<B>, FloatTensor<B>> {
    if let Some(elements) = elements_mut::<B>(&mut tensor) {
        update(elements);
        return Ok(tensor);
    }
    match elements::<B>(&tensor) {
        Some(elements) => {
            let data = TensorData::new(make(elements), tensor.shape());
            Ok(B::float_from_data(data, &tensor.device()))
        }
        None => Err(tensor),
    }
}
