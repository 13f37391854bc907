//! Tensors of any kind, rank and backend.

use std::hash::{Hash, Hasher};

use burn::backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps};
use burn::backend::{
    Dispatch, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind, ExecutionError, TensorMetadata,
};
use burn::tensor::{Bool, DType, Device, Float, Int, Shape, Tensor, TensorData, try_read_sync};
use rekindle_plan::Bytes;

use super::{GraphBackend, TapeStrategy, Tracked};
use crate::Error;

/// A tensor of any kind, rank and backend.
#[derive(Clone, Debug)]
pub(crate) struct AnyTensor(pub(crate) DispatchTensor);

impl<const D: usize> From<Tensor<D>> for AnyTensor {
    fn from(tensor: Tensor<D>) -> Self {
        Self(tensor.into_dispatch())
    }
}

impl<const D: usize> From<Tensor<D, Int>> for AnyTensor {
    fn from(tensor: Tensor<D, Int>) -> Self {
        Self(tensor.into_dispatch())
    }
}

impl<const D: usize> From<Tensor<D, Bool>> for AnyTensor {
    fn from(tensor: Tensor<D, Bool>) -> Self {
        Self(tensor.into_dispatch())
    }
}

macro_rules! from_any_tensor {
    ($kind:ty, $name:literal, $fits:expr) => {
        impl<const D: usize> TryFrom<AnyTensor> for Tensor<D, $kind> {
            type Error = Error;

            fn try_from(tensor: AnyTensor) -> Result<Self, Error> {
                let fits: fn(DType) -> bool = $fits;
                match tensor.0.rank() == D && fits(tensor.0.dtype()) {
                    true => Ok(Self::from_dispatch(tensor.0)),
                    false => Err(Error::Boundary {
                        found: tensor.describe(),
                        expected: format!("a {} tensor of rank {D}", $name),
                    }),
                }
            }
        }
    };
}
from_any_tensor!(Float, "float", |dtype| dtype.is_float() || matches!(dtype, DType::QFloat(_)));
from_any_tensor!(Int, "int", |dtype| dtype.is_int() || dtype.is_uint());
from_any_tensor!(Bool, "bool", |dtype| dtype.is_bool());

impl AnyTensor {
    pub(crate) fn describe(&self) -> String {
        describe(self.0.dtype(), &self.0.shape())
    }

    /// Puts element type and shape into a hash.
    pub(crate) fn hash_size(&self, hash: &mut impl Hasher) {
        self.0.dtype().hash(hash);
        self.0.shape().as_slice().hash(hash);
    }

    /// Whether it carries autodiff, tracked or not.
    pub(crate) fn is_autodiff(&self) -> bool {
        self.0.autodiff != DispatchAutodiffContext::Disabled
    }

    /// Whether the user's graph goes through it.
    pub(crate) fn is_tracked(&self) -> bool {
        self.is_graph_float() && Dispatch::is_tracked(&self.0)
    }

    /// Whether it is a float that an autodiff graph can go through.
    pub(super) fn is_graph_float(&self) -> bool {
        matches!(self.0.kind, DispatchTensorKind::Autodiff(_))
    }

    pub(super) fn is_leaf(&self) -> bool {
        self.is_graph_float() && Dispatch::float_is_require_grad(&self.0)
    }

    pub(crate) fn strategy(&self) -> Option<TapeStrategy> {
        match self.0.autodiff {
            DispatchAutodiffContext::Disabled => None,
            DispatchAutodiffContext::Enabled(strategy) => Some(strategy),
        }
    }

    /// Changes the strategy of a tensor that carries autodiff.
    pub(crate) fn set_strategy(&mut self, strategy: TapeStrategy) {
        if self.is_autodiff() {
            self.0.autodiff = DispatchAutodiffContext::Enabled(strategy);
        }
    }

    pub(crate) fn device(&self) -> Device {
        Device::new(self.0.device())
    }

    pub(crate) fn from_tracked<B: GraphBackend>(tensor: Tracked<B>, strategy: TapeStrategy) -> Self {
        let mut tensor = B::wrap(tensor);
        tensor.autodiff = DispatchAutodiffContext::Enabled(strategy);
        Self(tensor)
    }

    /// The primitive of a graph float. `None` when it is of another backend.
    pub(crate) fn into_tracked<B: GraphBackend>(mut self) -> Option<Tracked<B>> {
        // The primitive is the same for every strategy; the conversion asks for this one.
        self.0.autodiff = DispatchAutodiffContext::Enabled(TapeStrategy::Disabled);
        B::unwrap(self.0)
    }

    pub(super) fn read(&self) -> Result<TensorData, String> {
        let tensor = self.0.clone();
        let dtype = tensor.dtype();
        let read: Option<Result<TensorData, ExecutionError>> = match dtype {
            _ if dtype.is_float() => try_read_sync(Dispatch::float_into_data(tensor)),
            _ if dtype.is_bool() => try_read_sync(Dispatch::bool_into_data(tensor)),
            _ if dtype.is_int() || dtype.is_uint() => try_read_sync(Dispatch::int_into_data(tensor)),
            _ => return Err(format!("tensors of {dtype:?} cannot be read")),
        };
        match read {
            Some(Ok(data)) => Ok(data),
            Some(Err(error)) => Err(format!("{error:?}")),
            None => Err("the device cannot be read from synchronously".to_owned()),
        }
    }
}

pub(super) fn describe(dtype: DType, shape: &Shape) -> String {
    format!("{}{:?}", dtype.name(), shape.as_slice())
}

pub(super) fn size_of(dtype: DType, shape: &Shape) -> Bytes {
    Bytes::new((shape.num_elements() * dtype.size()) as u64)
}
