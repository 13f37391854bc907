//! Codecs: fewer bytes for a tensor, with or without loss.
//!
//! | codec | of 1,024 bytes of `f32` | what comes back |
//! |---|---|---|
//! | [`Bf16`] | 512 | within 2⁻⁸ of each value |
//! | [`F16`] | 512 | within 2⁻¹¹ of each value, or 2⁻²⁵; beyond ±65504: ±65504 |
//! | [`Int8`] | 272 | within 1/254 of the largest value among 64 |
//! | [`Int4`] | 144 | within 1/14 of the largest value among 64 |
//! | [`TopK`] | 32 + 1,024 × the part kept | the largest as they were, 0 for the others |
//! | [`Lz4`], [`Zstd`] | as it comes, at most 1 byte more a tensor | every bit |
//!
//! The codecs with loss are for `f32`; tensors of other types pass as they are. NaN and the infinities survive in
//! all of them.

use std::fmt;

use rekindle_plan::Name;

use super::PackedTensor;

mod halves;
mod integers;
mod lossless;
mod top_k;

pub use halves::{Bf16, F16};
pub use integers::{BLOCK, Int4, Int8};
pub use lossless::Lz4;
#[cfg(feature = "zstd")]
pub use lossless::Zstd;
pub use top_k::TopK;

/// A way to write a tensor with fewer bytes.
///
/// ```
/// use rekindle_run::codec::{Codec, CodecError};
///
/// /// For tensors that are all alike.
/// #[derive(Debug)]
/// struct First;
///
/// impl Codec for First {
///     fn name(&self) -> &'static str {
///         "first"
///     }
///     fn is_lossless(&self) -> bool {
///         false
///     }
///     fn encoded_length(&self, length: usize) -> Option<usize> {
///         Some(length.min(4))
///     }
///     fn encode(&self, bytes: &[u8], _: usize) -> Vec<u8> {
///         bytes[..bytes.len().min(4)].to_vec()
///     }
///     fn decode(&self, encoded: &[u8], _: usize, into: &mut [u8]) -> Result<(), CodecError> {
///         for (to, from) in into.iter_mut().zip(encoded.iter().cycle()) {
///             *to = *from;
///         }
///         Ok(())
///     }
/// }
///
/// let bytes: Vec<u8> = [1.5f32; 8].iter().flat_map(|x| x.to_ne_bytes()).collect();
/// let mut back = [0; 32];
/// First.decode(&First.encode(&bytes, 4), 4, &mut back)?;
/// assert_eq!(back, *bytes);
/// # Ok::<(), CodecError>(())
/// ```
pub trait Codec: fmt::Debug + Send + Sync {
    /// What it is called, in profiles, in plans and on the command line.
    fn name(&self) -> &'static str;

    /// Whether every bit comes back.
    fn is_lossless(&self) -> bool;

    /// Whether it encodes such a tensor; others pass as they are.
    fn takes(&self, tensor: &PackedTensor) -> bool {
        tensor.dtype.eq_ignore_ascii_case("f32") && tensor.bytes.len().is_multiple_of(4)
    }

    /// How many bytes so many become, where that does not depend on their values (blocks with NaN or infinities
    /// aside).
    fn encoded_length(&self, length: usize) -> Option<usize>;

    /// Encodes elements of `width` bytes each.
    fn encode(&self, bytes: &[u8], width: usize) -> Vec<u8>;

    /// Gets bytes back from what [`Codec::encode`] made of them, into memory that holds exactly so many.
    ///
    /// # Errors
    /// When `encoded` cannot be such; what then stands in `into` means nothing. No bytes make it panic.
    fn decode(&self, encoded: &[u8], width: usize, into: &mut [u8]) -> Result<(), CodecError>;
}

/// Encoded bytes that no encoder wrote.
///
/// ```
/// use rekindle_run::codec::{Bf16, Codec};
///
/// let error = Bf16.decode(&[1, 2, 3], 4, &mut [0; 8]).unwrap_err();
/// assert_eq!(error.to_string(), "`bf16` found 3 bytes, expected 4");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{codec}` found {found}, expected {expected}")]
pub struct CodecError {
    /// The codec that was to decode them.
    pub codec: &'static str,
    /// What was found.
    pub found: String,
    /// What an encoder would have written.
    pub expected: String,
}

impl CodecError {
    fn length(codec: &'static str, found: usize, expected: usize) -> Self {
        Self { codec, found: format!("{found} bytes"), expected: format!("{expected}") }
    }
}

/// The codec of this name, with its usual settings: `bf16`, `f16`, `int8`, `int4`, `top-k`, `lz4` or `zstd`.
///
/// ```
/// use rekindle_run::codec;
///
/// let name = "int8".parse()?;
/// assert_eq!(codec::by_name(&name).map(|codec| codec.name()), Some("int8"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn by_name(name: &Name) -> Option<Box<dyn Codec>> {
    Some(match name.as_str() {
        "bf16" => Box::new(Bf16),
        "f16" => Box::new(F16),
        "int8" => Box::new(Int8),
        "int4" => Box::new(Int4),
        "top-k" => Box::new(TopK::default()),
        "lz4" => Box::new(Lz4),
        #[cfg(feature = "zstd")]
        "zstd" => Box::new(Zstd::default()),
        _ => return None,
    })
}

/// The floats of a tensor; a last part of an element is left out, see [`Codec::takes`].
fn floats(bytes: &[u8]) -> impl ExactSizeIterator<Item = f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes))
}
