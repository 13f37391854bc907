//! A region without checkpoints leaves the random state a checkpointed one leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use burn::backend::DispatchTensorKind;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::tensor::Device;

use super::GraphBackend;
use super::graph::node;
use super::tensor::AnyTensor;
use crate::boundary::Parts;
use crate::seeds;

/// Passes a gradient on and, once for a region, seeds what follows: as a region does that recomputes.
#[derive(Debug)]
struct Reseed;

impl<B: GraphBackend> Backward<B, 1> for Reseed {
    type State = Arc<(AtomicBool, Device)>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        if let Some(parent) = &ops.parents[0] {
            grads.register::<B>(parent.id, gradient);
        }
        let (done, device) = &*ops.state;
        if !done.swap(true, Relaxed) {
            seeds::after_backward(device);
        }
    }
}

/// Lets the backward of a region that runs without checkpointing leave the random state a checkpointed one leaves.
pub(crate) fn reseed_after_backward(output: Parts, device: &Device) -> Parts {
    let state = Arc::new((AtomicBool::new(false), device.clone()));
    let tensors = output.tensors.into_iter().map(|tensor| {
        let DispatchTensorKind::Autodiff(kind) = &tensor.0.kind else {
            return tensor;
        };
        if !tensor.is_tracked() {
            return tensor;
        }
        match **kind {
            #[cfg(feature = "flex")]
            DispatchTensorKind::Flex(_) => reseed_on::<burn::backend::Flex>(tensor, &state),
            #[cfg(feature = "ndarray")]
            DispatchTensorKind::NdArray(_) => reseed_on::<burn::backend::NdArray>(tensor, &state),
            #[cfg(feature = "cuda")]
            DispatchTensorKind::Cube(_) => reseed_on::<burn::backend::Cube>(tensor, &state),
            #[allow(unreachable_patterns)]
            _ => tensor,
        }
    });
    Parts { tensors: tensors.collect(), structure: output.structure }
}

fn reseed_on<B: GraphBackend>(tensor: AnyTensor, state: &Arc<(AtomicBool, Device)>) -> AnyTensor {
    let strategy = tensor.strategy().unwrap_or_default();
    match tensor.clone().into_tracked::<B>() {
        Some(tracked) => {
            let (value, guard) = tracked.into_parts();
            AnyTensor::from_tracked::<B>(node(Reseed, guard, state.clone(), value), strategy)
        }
        None => tensor,
    }
}
