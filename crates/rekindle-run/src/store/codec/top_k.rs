//! Only the largest values.

use super::{Codec, CodecError, floats};

/// Keeps the largest part of the values, bit for bit, and makes the others 0: one bit a value, and what is kept.
///
/// Every value that is lost is no larger than any that is kept. NaN and infinities are the largest there are, so they are
/// kept first.
///
/// ```
/// use rekindle_run::codec::{Codec, TopK};
///
/// let codec = TopK::new(0.5);
/// let bytes: Vec<u8> = [3.0f32, -0.5, 0.25, -8.0].iter().flat_map(|x| x.to_ne_bytes()).collect();
/// let encoded = codec.encode(&bytes, 4);
/// let expected: Vec<u8> = [3.0f32, 0.0, 0.0, -8.0].iter().flat_map(|x| x.to_ne_bytes()).collect();
/// let mut back = [1; 16];
/// codec.decode(&encoded, 4, &mut back)?;
/// assert_eq!(back, *expected);
/// # Ok::<(), rekindle_run::codec::CodecError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopK {
    part: f64,
}

impl TopK {
    /// Keeps `part` of the values, between 0 and 1; what lies outside is taken as the end it lies beyond.
    pub fn new(part: f64) -> Self {
        Self { part: if part.is_nan() { 1.0 } else { part.clamp(0.0, 1.0) } }
    }

    fn count(&self, values: usize) -> usize {
        ((values as f64 * self.part).ceil() as usize).min(values)
    }
}

impl Default for TopK {
    /// One value in eight.
    fn default() -> Self {
        Self::new(0.125)
    }
}

impl Codec for TopK {
    fn name(&self) -> &'static str {
        "top-k"
    }

    fn is_lossless(&self) -> bool {
        false
    }

    fn encoded_length(&self, length: usize) -> Option<usize> {
        let values = length / 4;
        Some(values.div_ceil(8) + 4 * self.count(values))
    }

    fn encode(&self, bytes: &[u8], _: usize) -> Vec<u8> {
        let mut magnitudes: Vec<u32> = floats(bytes).map(|value| value.to_bits() & 0x7fff_ffff).collect();
        let (values, count) = (magnitudes.len(), self.count(magnitudes.len()));
        let threshold = match count {
            0 => u32::MAX,
            _ => *magnitudes.select_nth_unstable(values - count).1,
        };
        // Of those that are just as large as the last one kept, the first few.
        let above = magnitudes[values - count..].iter().filter(|bits| **bits > threshold).count();
        let mut equals = count - above;
        let mut encoded = vec![0; values.div_ceil(8)];
        encoded.reserve(4 * count);
        for (index, value) in floats(bytes).enumerate() {
            let bits = value.to_bits() & 0x7fff_ffff;
            let equal = bits == threshold && equals > 0;
            if bits > threshold || equal {
                equals -= usize::from(equal);
                encoded[index / 8] |= 1 << (index % 8);
                encoded.extend_from_slice(&value.to_ne_bytes());
            }
        }
        encoded
    }

    fn decode(&self, encoded: &[u8], _: usize, into: &mut [u8]) -> Result<(), CodecError> {
        let length = into.len();
        let short = |expected| CodecError::length(self.name(), encoded.len(), expected);
        let map = (length / 4).div_ceil(8);
        let (map, kept) = encoded.split_at_checked(map).ok_or_else(|| short(map))?;
        let marked: usize = map.iter().map(|byte| byte.count_ones() as usize).sum();
        if kept.len() != 4 * marked || !length.is_multiple_of(4) {
            return Err(short(map.len() + 4 * marked));
        }
        let mut kept = kept.as_chunks::<4>().0.iter();
        for (index, to) in into.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *to = match map[index / 8] >> (index % 8) & 1 {
                1 => kept.next().copied().unwrap_or_default(),
                _ => [0; 4],
            };
        }
        match kept.next() {
            None => Ok(()),
            Some(_) => Err(short(encoded.len() - 4)),
        }
    }
}
