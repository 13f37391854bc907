//! How fast stores and codecs are on this machine, as the planner wants to know it.

use std::time::{Duration, Instant};

use rekindle_plan::{Boundary, Bytes, Codec as CodecProfile, Name, Tier};

use super::codec::{Codec, CodecError};
use super::coded::{decode, encode};
use super::{PackedTensor, Parcel, Store, StoreError};

/// How fast boundaries go to a store and come back: see [`measure_store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreSpeed {
    /// On the way there.
    pub write_bytes_per_second: u64,
    /// On the way back.
    pub read_bytes_per_second: u64,
}

impl StoreSpeed {
    /// The tier of a profile that is as fast.
    pub fn tier(self, name: Name, capacity_bytes: Bytes) -> Tier {
        let Self { write_bytes_per_second, read_bytes_per_second } = self;
        Tier { name, capacity_bytes, write_bytes_per_second, read_bytes_per_second }
    }
}

/// How small a codec makes a sample, and how fast it is: see [`measure_codec`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodecSpeed {
    /// What 1,024 bytes become, rounded up.
    pub bytes_per_kibibyte: u32,
    /// How fast the sample was compressed.
    pub compress_bytes_per_second: u64,
    /// How fast it was restored.
    pub restore_bytes_per_second: u64,
}

impl CodecSpeed {
    /// The codec of a profile that is as small and as fast.
    pub fn codec(self, name: Name) -> CodecProfile {
        let Self { bytes_per_kibibyte, compress_bytes_per_second, restore_bytes_per_second } = self;
        CodecProfile { name, bytes_per_kibibyte, compress_bytes_per_second, restore_bytes_per_second }
    }
}

/// Sends boundaries of these sizes through `store`, `runs` times, one after the other, and looks at the clock. The median
/// of all counts. A run goes before, so that files and buffers are there; the store is left as it was found, as long as
/// it has no boundary with a number near 2^32.
///
/// A file that was just written is read from memory: what is measured of a disk is a write into the page cache, as in a
/// step that fits there.
///
/// ```
/// use rekindle_plan::Bytes;
/// use rekindle_run::{HostStore, measure_store};
///
/// let mut store = HostStore::new(Bytes::mebibytes(4));
/// let speed = measure_store(&mut store, &[Bytes::mebibytes(1)], 3)?;
/// let tier = speed.tier("host".parse()?, Bytes::mebibytes(4));
/// assert!(tier.write_bytes_per_second > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When the store refuses a boundary or fails.
pub fn measure_store(store: &mut dyn Store, sizes: &[Bytes], runs: usize) -> Result<StoreSpeed, StoreError> {
    let boundary = Boundary::new(u32::MAX);
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    for size in sizes {
        let length = usize::try_from(size.get()).unwrap_or(usize::MAX);
        for run in 0..=runs.max(1) {
            let mut state = u64::from(run as u32) + 1;
            let bytes: Vec<u8> = std::iter::repeat_with(|| some_float(&mut state).to_ne_bytes())
                .flatten()
                .take(length)
                .collect();
            let tensor = PackedTensor { dtype: "f32".into(), shape: vec![length / 4], bytes: bytes.into() };
            let parcel = Parcel { tensors: vec![tensor], structure: vec![] };
            let start = Instant::now();
            store.put(boundary, parcel)?;
            store.wait(boundary)?;
            let written = start.elapsed();
            let start = Instant::now();
            let taken = store.prefetch(boundary).and_then(|()| store.take(boundary));
            let read = start.elapsed();
            store.forget(boundary)?;
            taken?;
            if run > 0 {
                writes.push(per_second(length, written));
                reads.push(per_second(length, read));
            }
        }
    }
    Ok(StoreSpeed { write_bytes_per_second: median(writes), read_bytes_per_second: median(reads) })
}

/// Encodes and decodes `sample`, `runs` times, and looks at the clock; the median counts. A sample that is like the
/// boundaries of the model tells how much smaller they become.
///
/// ```
/// use rekindle_run::{PackedTensor, Parcel, codec::Int8, measure_codec};
///
/// let tensor = PackedTensor { dtype: "f32".into(), shape: vec![64, 64], bytes: vec![0; 1 << 14].into() };
/// let sample = Parcel { tensors: vec![tensor], structure: vec![] };
/// let speed = measure_codec(&Int8, &sample, 3)?;
/// assert_eq!(speed.bytes_per_kibibyte, 272); // a quarter, and a scale for every 64 values
/// # Ok::<(), rekindle_run::codec::CodecError>(())
/// ```
///
/// # Errors
/// When the codec does not understand what it wrote.
pub fn measure_codec(codec: &dyn Codec, sample: &Parcel, runs: usize) -> Result<CodecSpeed, CodecError> {
    let length = usize::try_from(sample.bytes().get()).unwrap_or(usize::MAX);
    let (mut writes, mut reads, mut encoded_length) = (Vec::new(), Vec::new(), 0);
    for run in 0..=runs.max(1) {
        let tensors = sample.tensors.clone();
        let start = Instant::now();
        let encoded: Vec<_> = tensors.into_iter().map(|tensor| encode(codec, tensor)).collect();
        let written = start.elapsed();
        encoded_length = encoded.iter().map(|(tensor, _)| tensor.bytes.len()).sum();
        let start = Instant::now();
        for (tensor, length) in encoded {
            decode(codec, tensor, length)?;
        }
        if run > 0 {
            writes.push(per_second(length, written));
            reads.push(per_second(length, start.elapsed()));
        }
    }
    let ratio = (encoded_length as u128 * 1024).div_ceil(length.max(1) as u128);
    Ok(CodecSpeed {
        bytes_per_kibibyte: u32::try_from(ratio).unwrap_or(u32::MAX),
        compress_bytes_per_second: median(writes),
        restore_bytes_per_second: median(reads),
    })
}

/// A number between -1 and 1 with a random fraction (SplitMix64), so that nothing compresses it by luck.
fn some_float(state: &mut u64) -> f32 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// Never 0: a profile has no place that takes forever.
fn per_second(bytes: usize, time: Duration) -> u64 {
    let speed = bytes as u128 * 1_000_000_000 / time.as_nanos().max(1);
    u64::try_from(speed).unwrap_or(u64::MAX).max(1)
}

fn median(mut speeds: Vec<u64>) -> u64 {
    speeds.sort_unstable();
    speeds.get(speeds.len() / 2).copied().unwrap_or(1)
}
