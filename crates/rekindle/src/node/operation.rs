//! Operations of our own: one node each, where Burn's autodiff would make several and keep what lies between them.

use std::any::Any;
use std::fmt::Debug;

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::NoCheckpointing};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{DispatchTensorKind, TensorMetadata};
use burn::tensor::{DType, Tensor, TensorData};

use super::GraphBackend;
use super::tensor::AnyTensor;

/// What the backward of an operation reads besides the gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
    Nothing,
    Input,
    Output,
}

/// From one tensor to another of the same shape.
pub(crate) trait Operation: Copy + Debug + Send + Sync + 'static {
    const KEEPS: Keeps;

    fn forward<B: GraphBackend>(self, input: FloatTensor<B>) -> FloatTensor<B>;

    /// The gradient of the input. `kept` is there unless the operation keeps nothing.
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
    let (input, guard) = tracked.into_parts();
    let output = match Recorded(operation).prepare::<NoCheckpointing>([guard]).compute_bound().stateful() {
        OpsKind::UnTracked(prepared) => prepared.finish(operation.forward::<B>(input)),
        OpsKind::Tracked(prepared) => {
            let (kept, output) = record::<B, _>(operation, input);
            prepared.finish(kept, output)
        }
    };
    AnyTensor::from_tracked::<B>(output, strategy)
}

fn record<B: GraphBackend, O: Operation>(
    operation: O,
    input: FloatTensor<B>,
) -> (Option<FloatTensor<B>>, FloatTensor<B>) {
    match O::KEEPS {
        Keeps::Nothing => (None, operation.forward::<B>(input)),
        Keeps::Input => (Some(input.clone()), operation.forward::<B>(input)),
        Keeps::Output => {
            let output = operation.forward::<B>(input);
            (Some(output.clone()), output)
        }
    }
}

#[derive(Debug)]
struct Recorded<O>(O);

impl<B: GraphBackend, O: Operation> Backward<B, 1> for Recorded<O> {
    type State = Option<FloatTensor<B>>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        if let Some(parent) = &ops.parents[0] {
            grads.register::<B>(parent.id, self.0.backward::<B>(ops.state, gradient));
        }
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
