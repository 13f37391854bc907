//! Compression that gives every bit back.
//!
//! For Zstandard a tensor is shuffled first: the first bytes of all elements, then the second ones, and so on. The signs and
//! exponents of floats, which are much alike, then lie side by side. LZ4 only finds repeats, and a shuffle takes zeros apart.

use std::borrow::Cow;

use super::{Codec, CodecError};
use crate::PackedTensor;

const AS_IT_IS: u8 = 0;
const COMPRESSED: u8 = 1;

/// LZ4: quick, for bytes that repeat (zeros after a ReLU, say). Every bit comes back; what does not become smaller is
/// kept as it is, with one byte more.
///
/// ```
/// use rekindle_run::codec::{Codec, Lz4};
///
/// let bytes = vec![0; 4096];
/// let encoded = Lz4.encode(&bytes, 4);
/// assert!(encoded.len() < 64);
/// let mut back = vec![1; 4096];
/// Lz4.decode(&encoded, 4, &mut back)?;
/// assert_eq!(back, bytes);
/// # Ok::<(), rekindle_run::codec::CodecError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lz4;

/// Zstandard: slower than LZ4, and also finds that exponents take few values. Every bit comes back; what does not become
/// smaller is kept as it is, with one byte more.
///
/// ```
/// use rekindle_run::codec::{Codec, Zstd};
///
/// let bytes: Vec<u8> = (0..1024).flat_map(|i| (i as f32).to_ne_bytes()).collect();
/// let encoded = Zstd::default().encode(&bytes, 4);
/// assert!(encoded.len() < bytes.len());
/// let mut back = vec![0; 4096];
/// Zstd::default().decode(&encoded, 4, &mut back)?;
/// assert_eq!(back, bytes);
/// # Ok::<(), rekindle_run::codec::CodecError>(())
/// ```
#[cfg(feature = "zstd")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zstd {
    level: i32,
}

#[cfg(feature = "zstd")]
impl Zstd {
    /// With a level from 1, the fastest, to 22.
    pub fn new(level: i32) -> Self {
        Self { level: level.clamp(1, 22) }
    }
}

#[cfg(feature = "zstd")]
impl Default for Zstd {
    /// Level 1: boundaries are in a hurry.
    fn default() -> Self {
        Self::new(1)
    }
}

/// All first bytes, all second bytes, and so on; what is less than an element stays at the end. Elements of other widths
/// than floats have stay as they are.
fn shuffled(bytes: &[u8], width: usize) -> Cow<'_, [u8]> {
    match width {
        2 => planes::<2>(bytes).into(),
        4 => planes::<4>(bytes).into(),
        8 => planes::<8>(bytes).into(),
        _ => bytes.into(),
    }
}

/// Undoes [`shuffled`] on what `write` writes: in memory of its own where there is something to undo.
fn restored<E>(
    into: &mut [u8],
    width: usize,
    write: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let elements = match width {
        2 => elements::<2>,
        4 => elements::<4>,
        8 => elements::<8>,
        _ => return write(into),
    };
    let mut planes = vec![0; into.len()];
    write(&mut planes)?;
    elements(&planes, into);
    Ok(())
}

fn planes<const WIDTH: usize>(bytes: &[u8]) -> Vec<u8> {
    let (elements, rest) = bytes.as_chunks::<WIDTH>();
    let mut planes = Vec::with_capacity(bytes.len());
    for plane in 0..WIDTH {
        planes.extend(elements.iter().map(|element| element[plane]));
    }
    planes.extend_from_slice(rest);
    planes
}

fn elements<const WIDTH: usize>(planes: &[u8], into: &mut [u8]) {
    let count = planes.len() / WIDTH;
    let (planes, rest) = planes.split_at(count * WIDTH);
    let planes: [&[u8]; WIDTH] = std::array::from_fn(|plane| &planes[plane * count..][..count]);
    let (elements, tail) = into.as_chunks_mut::<WIDTH>();
    for (index, element) in elements.iter_mut().enumerate() {
        *element = planes.map(|plane| plane[index]);
    }
    tail.copy_from_slice(rest);
}

fn encode(bytes: &[u8], width: usize, compress: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Vec<u8> {
    let compressed = compress(&shuffled(bytes, width));
    let (mark, rest) = match &compressed {
        Some(compressed) if compressed.len() < bytes.len() => (COMPRESSED, compressed.as_slice()),
        _ => (AS_IT_IS, bytes),
    };
    let mut encoded = Vec::with_capacity(1 + rest.len());
    encoded.push(mark);
    encoded.extend_from_slice(rest);
    encoded
}

fn decode(
    codec: &'static str,
    encoded: &[u8],
    width: usize,
    into: &mut [u8],
    restore: impl Fn(&[u8], &mut [u8]) -> Result<usize, String>,
) -> Result<(), CodecError> {
    let length = into.len();
    let damaged = |found: String, expected: String| CodecError { codec, found, expected };
    match encoded.split_first() {
        Some((&AS_IT_IS, rest)) if rest.len() == length => {
            into.copy_from_slice(rest);
            Ok(())
        }
        Some((&AS_IT_IS, rest)) => Err(CodecError::length(codec, rest.len(), length)),
        Some((&COMPRESSED, rest)) => restored(into, width, |bytes| {
            let expected = || format!("{length} bytes, compressed");
            match restore(rest, bytes) {
                Ok(found) if found == length => Ok(()),
                Ok(found) => Err(damaged(format!("{found} bytes, compressed"), expected())),
                Err(words) => Err(damaged(words, expected())),
            }
        }),
        Some((mark, _)) => Err(damaged(format!("the mark {mark}"), "0 or 1".to_owned())),
        None => Err(CodecError::length(codec, 0, 1)),
    }
}

impl Codec for Lz4 {
    fn name(&self) -> &'static str {
        "lz4"
    }

    fn is_lossless(&self) -> bool {
        true
    }

    fn takes(&self, _: &PackedTensor) -> bool {
        true
    }

    fn encoded_length(&self, _: usize) -> Option<usize> {
        None
    }

    fn encode(&self, bytes: &[u8], _: usize) -> Vec<u8> {
        encode(bytes, 1, |bytes| Some(lz4_flex::block::compress(bytes)))
    }

    fn decode(&self, encoded: &[u8], _: usize, into: &mut [u8]) -> Result<(), CodecError> {
        decode(self.name(), encoded, 1, into, |from, to| {
            lz4_flex::block::decompress_into(from, to).map_err(|error| error.to_string())
        })
    }
}

#[cfg(feature = "zstd")]
impl Codec for Zstd {
    fn name(&self) -> &'static str {
        "zstd"
    }

    fn is_lossless(&self) -> bool {
        true
    }

    fn takes(&self, _: &PackedTensor) -> bool {
        true
    }

    fn encoded_length(&self, _: usize) -> Option<usize> {
        None
    }

    fn encode(&self, bytes: &[u8], width: usize) -> Vec<u8> {
        encode(bytes, width, |bytes| zstd::bulk::compress(bytes, self.level).ok())
    }

    fn decode(&self, encoded: &[u8], width: usize, into: &mut [u8]) -> Result<(), CodecError> {
        decode(self.name(), encoded, width, into, |from, to| {
            zstd::bulk::decompress_to_buffer(from, to).map_err(|error| error.to_string())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shuffling_is_undone(bytes in proptest::collection::vec(any::<u8>(), 0..200), width in 0..9usize) {
            let shuffled = shuffled(&bytes, width);
            let mut back = vec![0; bytes.len()];
            let written = restored::<()>(&mut back, width, |into| {
                into.copy_from_slice(&shuffled);
                Ok(())
            });
            prop_assert_eq!((written, &back), (Ok(()), &bytes));
        }
    }
}
