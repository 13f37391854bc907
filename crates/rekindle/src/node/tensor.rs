//! Tensors of any kind, rank and backend.

use std::hash::{Hash, Hasher};

use burn::backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps};
use burn::backend::{
    Dispatch, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind, ExecutionError, TensorMetadata,
};
use burn::tensor::{
    Bool, BoolStore, DType, Device, Float, Gradients, Int, Shape, Tensor, TensorData, try_read_sync,
};
use rekindle_plan::Bytes;
use rekindle_run::{PackedTensor, Payload};

use super::{GraphBackend, TapeStrategy, Tracked};
use crate::Error;

/// The types that travel between processes, by their names.
const TRAVELLING: [DType; 13] = [
    DType::F64,
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U16,
    DType::U8,
    DType::Bool(BoolStore::Native),
];

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
        describe(self.0.dtype(), self.0.shape().as_slice())
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

    /// Whether it is a float, with autodiff or without.
    pub(crate) fn is_float(&self) -> bool {
        self.0.dtype().is_float()
    }

    /// The same values, tracked by nobody.
    pub(crate) fn detached(&self) -> Self {
        match self.is_graph_float() {
            // A leaf's copy would be a leaf.
            true => Self(Dispatch::float_set_require_grad(Dispatch::float_detach(self.0.clone()), false)),
            false => self.clone(),
        }
    }

    /// A float as the beginning of a graph; anything else as it is.
    pub(crate) fn into_leaf(self) -> Self {
        match self.is_graph_float() {
            true => Self(Dispatch::float_set_require_grad(Dispatch::float_detach(self.0), true)),
            false => self,
        }
    }

    /// What a graph that began at it found for it, or zeros.
    pub(crate) fn gradient(&self, gradients: &Gradients) -> Result<Self, Error> {
        macro_rules! by_rank {
            ($($rank:literal)*) => {
                match self.0.rank() {
                    $($rank => {
                        let tensor: Tensor<$rank> = self.clone().try_into()?;
                        let found = tensor.grad(gradients);
                        Ok(found.unwrap_or_else(|| tensor.without_autodiff().zeros_like()).into())
                    })*
                    _ => Err(Error::Boundary {
                        found: self.describe(),
                        expected: "a tensor of one to eight dimensions".to_owned(),
                    }),
                }
            };
        }
        by_rank!(1 2 3 4 5 6 7 8)
    }

    /// Its values, to be sent.
    pub(crate) fn to_packed(&self) -> Result<PackedTensor, Error> {
        let data = self.read().map_err(|reason| Error::Export { reason })?;
        let (dtype, shape) = (self.0.dtype().name().to_owned(), self.0.shape().to_vec());
        Ok(PackedTensor { dtype, shape, bytes: data.as_bytes().to_vec().into() })
    }

    /// What was sent, on a device.
    pub(crate) fn from_packed(packed: PackedTensor, device: &Device) -> Result<Self, Error> {
        let PackedTensor { dtype: name, shape, bytes } = packed;
        let dtype = TRAVELLING.into_iter().find(|dtype| dtype.name() == name);
        let elements = shape.iter().try_fold(1_usize, |elements, length| elements.checked_mul(*length));
        let expected = dtype.zip(elements).and_then(|(dtype, elements)| elements.checked_mul(dtype.size()));
        let Some(dtype) = dtype.filter(|_| expected == Some(bytes.len())) else {
            return Err(Error::Boundary {
                found: format!("{} bytes of {name}{shape:?}", bytes.len()),
                expected: "a tensor of a known type, and as many bytes as it has".to_owned(),
            });
        };
        let data = unpacked(bytes, shape, dtype);
        let device = device.as_dispatch();
        Ok(Self(match dtype {
            _ if dtype.is_float() => Dispatch::float_from_data(data, device),
            _ if dtype.is_bool() => Dispatch::bool_from_data(data, device),
            _ => Dispatch::int_from_data(data, device),
        }))
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

/// What came back of a tensor, in the memory it came in where that can be a tensor's. It must be as long as its shape says.
pub(super) fn unpacked(bytes: Payload, shape: Vec<usize>, dtype: DType) -> TensorData {
    let bytes = match bytes.into_words() {
        Ok(words) => burn::tensor::Bytes::from_elems(words),
        // Copied, if only because it was allocated for elements of one byte.
        Err(bytes) => burn::tensor::Bytes::from_bytes_vec(bytes.into_vec()),
    };
    TensorData::from_bytes(bytes, shape, dtype)
}

pub(super) fn describe(dtype: DType, shape: &[usize]) -> String {
    format!("{}{shape:?}", dtype.name())
}

pub(super) fn size_of(dtype: DType, shape: &Shape) -> Bytes {
    Bytes::new((shape.num_elements() * dtype.size()) as u64)
}

#[cfg(test)]
mod tests {
    use rekindle_run::Buffer;

    use super::*;

    #[test]
    fn what_comes_in_words_is_not_copied() {
        let mut buffer = Buffer::zeroed(24);
        buffer.as_mut().fill(63);
        let at = buffer.as_ref().as_ptr();
        let data = unpacked(buffer.into(), vec![2, 3], DType::F32);
        assert_eq!((data.as_bytes().as_ptr(), data.as_bytes()), (at, &[63; 24][..]));
    }

    #[test]
    fn what_is_of_no_whole_words_is_copied() {
        let mut buffer = Buffer::zeroed(12);
        buffer.as_mut().fill(63);
        for payload in [Payload::from(buffer), Payload::from(vec![63; 12]), Payload::shared([63; 12])] {
            assert_eq!(unpacked(payload, vec![3], DType::F32).as_bytes(), [63; 12]);
        }
    }
}
