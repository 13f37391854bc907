//! Small integers with one scale a block, as for the weights and activations of quantised models.

use super::{Codec, CodecError, floats};

/// How many values share a scale.
pub const BLOCK: usize = 64;

/// Integers of 8 bits, -127 to 127, with an `f32` scale for every 64 of them: 68 bytes for 256.
///
/// What comes back is within 1/254 of the largest value of its block (see [`Int8::error_bound`]); 0 stays 0. A block that
/// holds NaN or an infinity, or is too close to the ends of the range for a scale, is kept bit for bit.
///
/// ```
/// use rekindle_run::codec::{Codec, Int8};
///
/// let bytes: Vec<u8> = (0..64).flat_map(|i| (i as f32).to_ne_bytes()).collect();
/// let encoded = Int8.encode(&bytes, 4);
/// assert_eq!(encoded.len(), 64 + 4); // of 256
/// Int8.decode(&encoded, 4, &mut [0; 256])?;
/// # Ok::<(), rekindle_run::codec::CodecError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Int8;

/// Integers of 4 bits, -7 to 7, two in a byte, with an `f32` scale for every 64 of them: 36 bytes for 256.
///
/// What comes back is within 1/14 of the largest value of its block (see [`Int4::error_bound`]); the rest as [`Int8`].
///
/// ```
/// use rekindle_run::codec::{Codec, Int4};
///
/// let bytes = vec![0; 256];
/// let encoded = Int4.encode(&bytes, 4);
/// assert_eq!(encoded.len(), 32 + 4); // of 256
/// let mut back = [0; 256];
/// Int4.decode(&encoded, 4, &mut back)?;
/// assert_eq!(back, *bytes);
/// # Ok::<(), rekindle_run::codec::CodecError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Int4;

impl Int8 {
    /// The most that a value and what comes back of it lie apart, in a finite block whose largest magnitude this is.
    pub fn error_bound(largest: f32) -> f32 {
        half_step(largest, 127.0)
    }
}

impl Int4 {
    /// The most that a value and what comes back of it lie apart, in a finite block whose largest magnitude this is.
    pub fn error_bound(largest: f32) -> f32 {
        half_step(largest, 7.0)
    }
}

/// Half a step, and a little for the rounding of the scale and of the products.
fn half_step(largest: f32, levels: f32) -> f32 {
    largest / levels * 0.5 * (1.0 + levels * 4.0 * f32::EPSILON)
}

/// Adding this to a small number leaves the number, rounded to the nearest integer, in the lowest bits of the sum. It is
/// an addition, so that the loop becomes vector instructions; `round` would be a call.
const ROUND: f32 = 12_582_912.0;

fn rounded(value: f32) -> u8 {
    (value + ROUND).to_bits() as u8
}

/// The scale of a block, and one over it; `None` when the block is to be kept as it is.
fn scale(block: &[u8], levels: f32) -> Option<(f32, f32)> {
    // As integers, magnitudes compare as the floats do, and NaN is above the infinities.
    let bits = floats(block).map(|value| value.to_bits() & 0x7fff_ffff);
    let largest = f32::from_bits(bits.fold(0, u32::max));
    if largest == 0.0 {
        return Some((0.0, 0.0));
    }
    let (scale, inverse) = (largest / levels, levels / largest);
    let usable = scale.is_normal() && inverse.is_normal() && largest < f32::MAX / 2.0;
    usable.then_some((scale, inverse))
}

/// Scales first, then the codes, then the blocks that are kept as they are; their scale is NaN.
fn encode(bytes: &[u8], levels: f32, per_byte: usize, pack: impl Fn(&[u8], f32, &mut [u8])) -> Vec<u8> {
    let blocks = bytes.len().div_ceil(4 * BLOCK);
    let mut encoded = vec![0; length_of(bytes.len(), per_byte)];
    let (scales, codes) = encoded.split_at_mut(4 * blocks);
    let mut exact = Vec::new();
    let codes = codes.chunks_mut(BLOCK / per_byte);
    for ((block, codes), to) in bytes.chunks(4 * BLOCK).zip(codes).zip(scales.as_chunks_mut::<4>().0) {
        match scale(block, levels) {
            Some((scale, inverse)) => {
                *to = scale.to_ne_bytes();
                pack(block, inverse, codes);
            }
            None => {
                *to = f32::NAN.to_ne_bytes();
                exact.extend_from_slice(block);
            }
        }
    }
    encoded.extend(exact);
    encoded
}

fn length_of(length: usize, per_byte: usize) -> usize {
    4 * length.div_ceil(4 * BLOCK) + (length / 4).div_ceil(per_byte)
}

fn decode(
    codec: &'static str,
    encoded: &[u8],
    into: &mut [u8],
    per_byte: usize,
    unpack: impl Fn(&[u8], f32, &mut [u8]),
) -> Result<(), CodecError> {
    let (wanted, blocks) = (length_of(into.len(), per_byte), into.len().div_ceil(4 * BLOCK));
    let short = || CodecError::length(codec, encoded.len(), wanted);
    let (fixed, mut exact) = encoded.split_at_checked(wanted).ok_or_else(short)?;
    let (scales, codes) = fixed.split_at(4 * blocks);
    let codes = codes.chunks(BLOCK / per_byte);
    for ((block, codes), scale) in into.chunks_mut(4 * BLOCK).zip(codes).zip(floats(scales)) {
        if scale.is_nan() {
            let (mine, others) = exact.split_at_checked(block.len()).ok_or_else(short)?;
            block.copy_from_slice(mine);
            exact = others;
        } else {
            unpack(codes, scale, block);
        }
    }
    match exact.is_empty() {
        true => Ok(()),
        false => Err(CodecError::length(codec, encoded.len(), encoded.len() - exact.len())),
    }
}

impl Codec for Int8 {
    fn name(&self) -> &'static str {
        "int8"
    }

    fn is_lossless(&self) -> bool {
        false
    }

    fn encoded_length(&self, length: usize) -> Option<usize> {
        Some(length_of(length, 1))
    }

    fn encode(&self, bytes: &[u8], _: usize) -> Vec<u8> {
        encode(bytes, 127.0, 1, |block, inverse, codes| {
            for (value, code) in floats(block).zip(codes) {
                *code = rounded(value * inverse);
            }
        })
    }

    fn decode(&self, encoded: &[u8], _: usize, into: &mut [u8]) -> Result<(), CodecError> {
        decode(self.name(), encoded, into, 1, |codes, scale, block| {
            for (code, to) in codes.iter().zip(block.as_chunks_mut::<4>().0) {
                *to = (f32::from(*code as i8) * scale).to_ne_bytes();
            }
        })
    }
}

impl Codec for Int4 {
    fn name(&self) -> &'static str {
        "int4"
    }

    fn is_lossless(&self) -> bool {
        false
    }

    fn encoded_length(&self, length: usize) -> Option<usize> {
        Some(length_of(length, 2))
    }

    fn encode(&self, bytes: &[u8], _: usize) -> Vec<u8> {
        encode(bytes, 7.0, 2, |block, inverse, codes| {
            for (pair, code) in block.chunks(8).zip(codes) {
                let mut values = floats(pair);
                let mut next = || rounded(values.next().unwrap_or(0.0) * inverse) & 15;
                *code = next() | next() << 4;
            }
        })
    }

    fn decode(&self, encoded: &[u8], _: usize, into: &mut [u8]) -> Result<(), CodecError> {
        decode(self.name(), encoded, into, 2, |codes, scale, block| {
            for (code, pair) in codes.iter().zip(block.chunks_mut(8)) {
                // Shifted up and down again, so that the sign comes along.
                let values = [((*code << 4) as i8) >> 4, (*code as i8) >> 4];
                for (value, to) in values.iter().zip(pair.as_chunks_mut::<4>().0) {
                    *to = (f32::from(*value) * scale).to_ne_bytes();
                }
            }
        })
    }
}
