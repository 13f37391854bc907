//! Floats of 16 bits.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::{Codec, CodecError, floats};

/// The upper half of an `f32`, rounded to the nearest: its whole range, 8 bits of its value.
///
/// What comes back is within 2⁻⁸ of the value (see [`Bf16::error_bound`]). NaN stays NaN, infinities stay, and what would
/// round to infinity becomes the largest finite number.
///
/// ```
/// use rekindle_run::codec::{Bf16, Codec};
///
/// let bytes: Vec<u8> = [1.0f32, 3.14159].iter().flat_map(|x| x.to_ne_bytes()).collect();
/// let encoded = Bf16.encode(&bytes, 4);
/// assert_eq!(encoded.len(), 4); // half of 8
/// let mut back = [0; 8];
/// Bf16.decode(&encoded, 4, &mut back)?;
/// assert_eq!(back[..4], 1.0f32.to_ne_bytes());
/// # Ok::<(), rekindle_run::codec::CodecError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bf16;

/// IEEE's half precision: 11 bits of the value, up to 65504.
///
/// What comes back is within 2⁻¹¹ of the value, or within 2⁻²⁵ where that is more (see [`F16::error_bound`]). NaN stays
/// NaN, infinities stay, and finite values beyond ±65504 become ±65504.
///
/// ```
/// use rekindle_run::codec::{Codec, F16};
///
/// let bytes = 0.5f32.to_ne_bytes();
/// let mut back = [0; 4];
/// F16.decode(&F16.encode(&bytes, 4), 4, &mut back)?;
/// assert_eq!(back, bytes);
/// # Ok::<(), rekindle_run::codec::CodecError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct F16;

impl Bf16 {
    /// The most that `value` and what comes back of it lie apart, for a finite value.
    pub fn error_bound(value: f32) -> f32 {
        // Below the normal numbers the distance is that between two of them.
        (value.abs() / 256.0).max(f32::from_bits(1 << 15))
    }
}

impl F16 {
    /// The most that `value` and what comes back of it lie apart, for a finite value.
    pub fn error_bound(value: f32) -> f32 {
        let most = f32::from(f16::MAX);
        (value.abs() / 2048.0).max(1.0 / (1 << 25) as f32).max(value.abs() - most)
    }
}

/// Rounding must not make a finite value infinite.
fn within(value: f32, most: f32) -> f32 {
    if value.is_infinite() { value } else { value.clamp(-most, most) }
}

/// The upper half of a float, rounded to the nearest, ties to even. Choices instead of branches, so that the loop becomes
/// vector instructions; `bf16::from_f32` does not, and makes large values infinite.
fn upper_half(value: f32) -> u16 {
    const INFINITY: u32 = 0x7f80;
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let finite = if rounded & 0x7fff == INFINITY { rounded - 1 } else { rounded };
    // A NaN whose upper half is all it has left must not become an infinity.
    let quiet = if magnitude > INFINITY << 16 { 0x40 } else { 0 };
    (if magnitude < INFINITY << 16 { finite } else { bits >> 16 | quiet }) as u16
}

fn check(codec: &'static str, encoded: &[u8], length: usize) -> Result<(), CodecError> {
    match encoded.len() == length / 2 && length.is_multiple_of(4) {
        true => Ok(()),
        false => Err(CodecError::length(codec, encoded.len(), length / 2)),
    }
}

impl Codec for Bf16 {
    fn name(&self) -> &'static str {
        "bf16"
    }

    fn is_lossless(&self) -> bool {
        false
    }

    fn encoded_length(&self, length: usize) -> Option<usize> {
        Some(length / 2)
    }

    fn encode(&self, bytes: &[u8], _: usize) -> Vec<u8> {
        let mut encoded = vec![0; bytes.len() / 4 * 2];
        for (value, to) in floats(bytes).zip(encoded.as_chunks_mut::<2>().0) {
            *to = upper_half(value).to_ne_bytes();
        }
        encoded
    }

    fn decode(&self, encoded: &[u8], _: usize, into: &mut [u8]) -> Result<(), CodecError> {
        check(self.name(), encoded, into.len())?;
        for (from, to) in encoded.as_chunks::<2>().0.iter().zip(into.as_chunks_mut::<4>().0) {
            *to = bf16::from_ne_bytes(*from).to_f32().to_ne_bytes();
        }
        Ok(())
    }
}

/// How many values are converted at once: enough for the widest instructions there are.
const BATCH: usize = 256;

impl Codec for F16 {
    fn name(&self) -> &'static str {
        "f16"
    }

    fn is_lossless(&self) -> bool {
        false
    }

    fn encoded_length(&self, length: usize) -> Option<usize> {
        Some(length / 2)
    }

    fn encode(&self, bytes: &[u8], _: usize) -> Vec<u8> {
        let most = f32::from(f16::MAX);
        let mut encoded = Vec::with_capacity(bytes.len() / 2);
        let (mut wide, mut narrow) = ([0.0; BATCH], [f16::ZERO; BATCH]);
        for batch in bytes.chunks(4 * BATCH) {
            let count = batch.len() / 4;
            for (value, to) in floats(batch).zip(&mut wide) {
                *to = within(value, most);
            }
            narrow[..count].convert_from_f32_slice(&wide[..count]);
            encoded.extend(narrow[..count].iter().flat_map(|value| value.to_ne_bytes()));
        }
        encoded
    }

    fn decode(&self, encoded: &[u8], _: usize, into: &mut [u8]) -> Result<(), CodecError> {
        check(self.name(), encoded, into.len())?;
        let (mut wide, mut narrow) = ([0.0; BATCH], [f16::ZERO; BATCH]);
        for (batch, into) in encoded.chunks(2 * BATCH).zip(into.chunks_mut(4 * BATCH)) {
            let count = batch.len() / 2;
            for (from, to) in batch.as_chunks::<2>().0.iter().zip(&mut narrow) {
                *to = f16::from_ne_bytes(*from);
            }
            narrow[..count].convert_to_f32_slice(&mut wide[..count]);
            for (value, to) in wide[..count].iter().zip(into.as_chunks_mut::<4>().0) {
                *to = value.to_ne_bytes();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn upper_halves_are_those_of_the_crate_half(bits in any::<u32>()) {
            let value = f32::from_bits(bits);
            let expected = bf16::from_f32(within(value, f32::from(bf16::MAX)));
            prop_assert_eq!(upper_half(value), expected.to_bits());
        }
    }
}
