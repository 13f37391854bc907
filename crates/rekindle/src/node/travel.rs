//! How a boundary leaves the device and comes back.

use burn::backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps};
use burn::backend::{Dispatch, TensorMetadata};
use burn::tensor::{DType, Device};
use rekindle_run::{PackedTensor, Parcel};

use super::GraphBackend;
use super::boundary::{OnDevice, Part};
use super::tensor::{AnyTensor, unpacked};
use crate::Error;

/// What has to stay behind for a parcel to be opened again.
pub(super) struct Travel<B: GraphBackend> {
    /// With autodiff.
    device: Device,
    /// Element types that left the device, by the number parcels use for them.
    dtypes: Vec<DType>,
    /// The device the floats left.
    from: Option<B::Device>,
}

impl<B: GraphBackend> Travel<B> {
    pub(super) fn new(device: Device) -> Self {
        Self { device, dtypes: Vec::new(), from: None }
    }

    pub(super) fn pack(&mut self, boundary: &OnDevice<B>) -> Result<Parcel, Error> {
        let mut structure = vec![boundary.parts.len() as u64];
        let mut tensors = Vec::with_capacity(boundary.parts.len());
        for part in &boundary.parts {
            let (dtype, shape) = part.dtype_and_shape();
            let bytes = match part.shared_bytes() {
                // The device's own memory: whoever takes the parcel reads it there, and lets it go.
                Some(bytes) => bytes,
                None => {
                    let data = part.read()?;
                    // A copy: some backends' bytes keep the device's memory.
                    data.as_bytes().to_vec().into()
                }
            };
            structure.push(match part {
                Part::Float { tensor, wanted } => {
                    self.from.get_or_insert_with(|| tensor.device());
                    u64::from(*wanted)
                }
                Part::Other(tensor) => match tensor.is_autodiff() {
                    false => 2,
                    true => 3,
                },
            });
            structure.push(match self.dtypes.iter().position(|known| *known == dtype) {
                Some(index) => index as u64,
                None => {
                    self.dtypes.push(dtype);
                    self.dtypes.len() as u64 - 1
                }
            });
            tensors.push(PackedTensor { dtype: dtype.name().to_owned(), shape: shape.to_vec(), bytes });
        }
        structure.extend(boundary.structure.iter());
        Ok(Parcel { tensors, structure })
    }

    pub(super) fn unpack(&self, parcel: Parcel) -> Result<OnDevice<B>, Error> {
        let Parcel { tensors, structure } = parcel;
        let damaged =
            || Error::Boundary { found: format!("{structure:?}"), expected: "what was exported".to_owned() };
        let (count, rest) = structure.split_first().ok_or_else(damaged)?;
        let count = usize::try_from(*count).map_err(|_| damaged())?;
        if count != tensors.len() || rest.len() < 2 * count {
            return Err(damaged());
        }
        let (kinds, rest) = rest.split_at(2 * count);
        let parts = kinds.chunks_exact(2).zip(tensors).map(|(kind, packed)| {
            let dtype = usize::try_from(kind[1]).ok();
            let dtype = dtype.and_then(|index| self.dtypes.get(index)).ok_or_else(damaged)?;
            let data = unpacked(packed.bytes, packed.shape, *dtype);
            Ok(match kind[0] {
                wanted @ (0 | 1) => {
                    let device = self.from.as_ref().ok_or_else(damaged)?;
                    Part::Float { tensor: B::float_from_data(data, device), wanted: wanted == 1 }
                }
                autodiff => {
                    let device = match autodiff {
                        2 => self.device.clone().without_autodiff(),
                        _ => self.device.clone(),
                    };
                    let device = device.as_dispatch();
                    Part::Other(AnyTensor(match dtype {
                        dtype if dtype.is_float() => Dispatch::float_from_data(data, device),
                        dtype if dtype.is_bool() => Dispatch::bool_from_data(data, device),
                        _ => Dispatch::int_from_data(data, device),
                    }))
                }
            })
        });
        Ok(OnDevice { parts: parts.collect::<Result<_, Error>>()?, structure: rest.into() })
    }
}
