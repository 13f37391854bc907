//! A codec in front of a store.

use std::collections::BTreeMap;

use rekindle_plan::{Boundary, Bytes};

use super::codec::{Codec, CodecError};
use super::{PackedTensor, Parcel, Store, StoreError, Transfer};

/// A store that holds boundaries encoded.
///
/// In front of a tier it makes transfers and files smaller; in front of a [`HostStore`](crate::HostStore) without a
/// limit it is a plan's `compress`, and [`Coded::used`] is what the compressed copies take. Encoding and decoding happen
/// in `put` and `take`, on the thread that calls, as the simulator has it.
///
/// ```
/// use rekindle_plan::{Boundary, Bytes};
/// use rekindle_run::{Coded, HostStore, PackedTensor, Parcel, Store, codec::Bf16};
///
/// let tensor = PackedTensor { dtype: "f32".into(), shape: vec![256], bytes: vec![0; 1024].into() };
/// let parcel = Parcel { tensors: vec![tensor], structure: vec![] };
/// let mut store = Coded::new(Bf16, HostStore::new(Bytes::MAX));
/// store.put(Boundary::new(1), parcel.clone())?;
/// assert_eq!(store.used(), Bytes::new(512));
/// assert_eq!(store.take(Boundary::new(1))?, parcel);
/// # Ok::<(), rekindle_run::StoreError>(())
/// ```
pub struct Coded {
    codec: Box<dyn Codec>,
    inner: Box<dyn Store>,
    originals: BTreeMap<Boundary, Original>,
}

/// What a boundary was before it was encoded.
struct Original {
    /// For each tensor, its length if it was encoded.
    lengths: Vec<Option<usize>>,
    /// What all of it takes now.
    encoded: Bytes,
}

/// The bytes of one element, as far as the shape tells.
pub(super) fn width(shape: &[usize], length: usize) -> usize {
    let elements = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
    elements.and_then(|elements| length.checked_div(elements)).unwrap_or(1).clamp(1, 16)
}

/// A tensor encoded, and its length before if the codec takes such tensors.
pub(super) fn encode(codec: &dyn Codec, tensor: PackedTensor) -> (PackedTensor, Option<usize>) {
    if !codec.takes(&tensor) {
        return (tensor, None);
    }
    let length = tensor.bytes.len();
    let bytes = codec.encode(tensor.bytes.as_slice(), width(&tensor.shape, length)).into();
    (PackedTensor { bytes, ..tensor }, Some(length))
}

/// The tensor that was encoded.
pub(super) fn decode(
    codec: &dyn Codec,
    tensor: PackedTensor,
    length: Option<usize>,
) -> Result<PackedTensor, CodecError> {
    let Some(length) = length else { return Ok(tensor) };
    let bytes = codec.decode(tensor.bytes.as_slice(), width(&tensor.shape, length), length)?.into();
    Ok(PackedTensor { bytes, ..tensor })
}

impl Coded {
    /// `codec` in front of `inner`.
    pub fn new(codec: impl Codec + 'static, inner: impl Store + 'static) -> Self {
        Self::boxed(Box::new(codec), Box::new(inner))
    }

    /// The same for a codec and a store that were chosen while the program runs.
    pub fn boxed(codec: Box<dyn Codec>, inner: Box<dyn Store>) -> Self {
        Self { codec, inner, originals: BTreeMap::new() }
    }

    /// What it holds now, encoded.
    pub fn used(&self) -> Bytes {
        self.originals.values().map(|original| original.encoded).sum()
    }

    /// The codec.
    pub fn codec(&self) -> &dyn Codec {
        &*self.codec
    }
}

impl Store for Coded {
    fn put(&mut self, boundary: Boundary, parcel: Parcel) -> Result<(), StoreError> {
        let Parcel { tensors, structure } = parcel;
        // One tensor after the other, so that each is free as soon as it is encoded.
        let encoded = tensors.into_iter().map(|tensor| encode(&*self.codec, tensor));
        let (tensors, lengths) = encoded.unzip();
        let parcel = Parcel { tensors, structure };
        let original = Original { lengths, encoded: parcel.bytes() };
        self.inner.put(boundary, parcel)?;
        self.originals.insert(boundary, original);
        Ok(())
    }

    fn wait(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        self.inner.wait(boundary).inspect_err(|_| {
            self.originals.remove(&boundary);
        })
    }

    fn prefetch(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        self.inner.prefetch(boundary)
    }

    fn take(&mut self, boundary: Boundary) -> Result<Parcel, StoreError> {
        let Parcel { tensors, structure } = self.inner.take(boundary)?;
        let original = self.originals.get(&boundary).ok_or(StoreError::Absent { boundary })?;
        let tensors = tensors.into_iter().zip(&original.lengths);
        let tensors = tensors.map(|(tensor, length)| decode(&*self.codec, tensor, *length));
        let tensors = tensors.collect::<Result<_, _>>().map_err(|error| {
            let found = format!("{} in front of `{}`", error.found, error.codec);
            StoreError::Damaged { boundary, found, expected: error.expected }
        })?;
        Ok(Parcel { tensors, structure })
    }

    fn forget(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        self.originals.remove(&boundary);
        self.inner.forget(boundary)
    }

    fn transfers(&mut self) -> Vec<Transfer> {
        self.inner.transfers()
    }
}
