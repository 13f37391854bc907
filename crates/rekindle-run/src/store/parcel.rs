//! A boundary as bytes, away from the framework that made it.

use std::fmt;
use std::sync::Arc;

use rekindle_plan::Bytes;

use super::Buffer;

/// A boundary as bytes, away from the framework that made it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parcel {
    /// Its tensors, in the order the engine flattened them.
    pub tensors: Vec<PackedTensor>,
    /// Whatever else the engine needs to put it together again.
    pub structure: Vec<u64>,
}

/// One tensor of a parcel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedTensor {
    /// The element type, as the engine calls it. Codecs know `f32`; what they do not know they leave as it is.
    pub dtype: String,
    /// The shape.
    pub shape: Vec<usize>,
    /// The elements, in the machine's byte order.
    pub bytes: Payload,
}

impl Parcel {
    /// The size of all its tensors.
    ///
    /// ```
    /// use rekindle_plan::Bytes;
    /// use rekindle_run::{PackedTensor, Parcel};
    ///
    /// let tensor = PackedTensor { dtype: "u8".into(), shape: vec![3], bytes: vec![1, 2, 3].into() };
    /// assert_eq!(Parcel { tensors: vec![tensor], structure: vec![] }.bytes(), Bytes::new(3));
    /// ```
    pub fn bytes(&self) -> Bytes {
        let sizes = self.tensors.iter().map(|tensor| tensor.bytes.len() as u64);
        sizes.map(Bytes::new).sum()
    }
}

/// The bytes of a tensor: its own, or a handle to memory that somebody else owns, such as the device's.
///
/// A shared payload lets an engine hand the device's memory to the thread that writes it, without a copy; that memory
/// is free when the payload is dropped.
///
/// ```
/// use rekindle_run::Payload;
///
/// let own = Payload::from(vec![1, 2, 3]);
/// let shared = Payload::shared([1u8, 2, 3]);
/// assert_eq!(own, shared); // by contents
/// assert_eq!(own.into_vec(), shared.as_slice()); // the vector itself, not a copy
/// ```
#[derive(Clone)]
pub struct Payload(Holding);

#[derive(Clone)]
enum Holding {
    Owned(Vec<u8>),
    Buffer(Buffer),
    Shared(Arc<dyn AsRef<[u8]> + Send + Sync>),
}

impl Payload {
    /// A handle to memory that `owner` keeps alive.
    pub fn shared(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self(Holding::Shared(Arc::new(owner)))
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Holding::Owned(bytes) => bytes,
            Holding::Buffer(buffer) => buffer.as_ref(),
            Holding::Shared(owner) => (**owner).as_ref(),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    /// The bytes as a vector: the payload's own if it is one, or a copy.
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Holding::Owned(bytes) => bytes,
            Holding::Buffer(buffer) => buffer.as_ref().to_vec(),
            Holding::Shared(owner) => (*owner).as_ref().to_vec(),
        }
    }

    /// The memory itself, if it is a [`Buffer`] of whole words; otherwise the payload as it was.
    ///
    /// # Errors
    /// When it is not.
    pub fn into_words(self) -> Result<Vec<u64>, Self> {
        match self.0 {
            Holding::Buffer(buffer) => buffer.into_words().map_err(Self::from),
            other => Err(Self(other)),
        }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Holding::Owned(bytes))
    }
}

impl From<Buffer> for Payload {
    fn from(buffer: Buffer) -> Self {
        Self(Holding::Buffer(buffer))
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Payload {}

impl fmt::Debug for Payload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A boundary may be of any size; nobody reads more than its beginning.
        let bytes = self.as_slice();
        let shown = &bytes[..bytes.len().min(16)];
        write!(formatter, "{} bytes {shown:?}{}", bytes.len(), if bytes.len() > 16 { ".." } else { "" })
    }
}
