//! A boundary on the device.

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape, TensorData, try_read_sync};

use super::GraphBackend;
use super::tensor::AnyTensor;
use rekindle_run::Payload;

use crate::Error;

/// The tensors between two stages, outside any graph.
#[derive(Clone, Debug)]
pub(super) struct OnDevice<B: GraphBackend> {
    pub(super) parts: Vec<Part<B>>,
    pub(super) structure: Arc<[u64]>,
}

#[derive(Clone, Debug)]
pub(super) enum Part<B: GraphBackend> {
    /// A float that may need a gradient, outside any graph.
    Float {
        tensor: FloatTensor<B>,
        /// Something the user tracks can reach it.
        wanted: bool,
    },
    /// Ints, bools, and floats without autodiff.
    Other(AnyTensor),
}

impl<B: GraphBackend> Part<B> {
    pub(super) fn dtype_and_shape(&self) -> (DType, Shape) {
        match self {
            Self::Float { tensor, .. } => (tensor.dtype(), tensor.shape()),
            Self::Other(tensor) => (tensor.0.dtype(), tensor.0.shape()),
        }
    }

    pub(super) fn wanted(&self) -> bool {
        matches!(self, Self::Float { wanted: true, .. })
    }

    /// Its memory on the device, where that is this process's and the tensor is all of it.
    pub(super) fn shared_bytes(&self) -> Option<Payload> {
        #[cfg(feature = "flex")]
        if let Self::Float { tensor, .. } = self {
            let tensor = (tensor as &dyn std::any::Any).downcast_ref::<FloatTensor<burn::backend::Flex>>()?;
            let all = tensor.layout().num_elements() * tensor.dtype().size() == tensor.bytes().len();
            return (all && tensor.is_contiguous()).then(|| Payload::shared(Shared(tensor.data_arc())));
        }
        None
    }

    pub(super) fn read(&self) -> Result<TensorData, Error> {
        let read = match self {
            Self::Float { tensor, .. } => match try_read_sync(B::float_into_data(tensor.clone())) {
                Some(Ok(data)) => Ok(data),
                Some(Err(error)) => Err(format!("{error:?}")),
                None => Err("the device cannot be read from synchronously".to_owned()),
            },
            Self::Other(tensor) => tensor.read(),
        };
        read.map_err(|reason| Error::Export { reason })
    }
}

/// The gradients of a boundary's parts.
pub(super) type PartGradients<B> = Vec<Option<FloatTensor<B>>>;

/// Bytes that belong to a tensor, too.
#[cfg(feature = "flex")]
struct Shared(Arc<burn::tensor::Bytes>);

#[cfg(feature = "flex")]
impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
