//! Buffers that are used again, so that a step allocates nothing that the one before it had.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{Buffer, PackedTensor, Parcel, Payload};

/// Buffers are of whole pages, so that boundaries of nearly one size share them.
const PAGE: usize = 4096;

/// Idle buffers, and what all of them together take.
#[derive(Debug, Default)]
pub(crate) struct Slabs(Arc<Mutex<Shelf>>);

#[derive(Debug, Default)]
struct Shelf {
    idle: Vec<Vec<u8>>,
    idle_bytes: usize,
    lent_bytes: usize,
    made: u64,
}

impl Slabs {
    /// A buffer of `length` bytes: an idle one that is large enough and not wastefully so, or a new one. All buffers
    /// together take at most `limit`, as far as letting go of idle ones can see to that.
    pub(crate) fn lend(&self, length: usize, limit: usize) -> Slab {
        let mut shelf = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |size: usize| size >= length && size / 2 <= length.max(PAGE);
        let sizes = shelf.idle.iter().map(Vec::len).enumerate();
        let best = sizes.filter(|(_, size)| fits(*size)).min_by_key(|(_, size)| *size);
        let bytes = match best {
            Some((index, size)) => {
                shelf.idle_bytes -= size;
                shelf.idle.swap_remove(index)
            }
            None => {
                let size = length.checked_next_multiple_of(PAGE).unwrap_or(length);
                while shelf.lent_bytes.saturating_add(shelf.idle_bytes).saturating_add(size) > limit {
                    let Some(bytes) = shelf.idle.pop() else { break };
                    shelf.idle_bytes -= bytes.len();
                }
                shelf.made += 1;
                vec![0; size]
            }
        };
        shelf.lent_bytes += bytes.len();
        Slab { bytes, length, home: Arc::downgrade(&self.0) }
    }

    /// How many buffers were allocated so far.
    pub(crate) fn made(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).made
    }
}

/// A buffer that goes back to the shelf when it is dropped.
#[derive(Debug)]
pub(crate) struct Slab {
    bytes: Vec<u8>,
    length: usize,
    home: Weak<Mutex<Shelf>>,
}

impl Slab {
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            let mut shelf = home.lock().unwrap_or_else(PoisonError::into_inner);
            let bytes = std::mem::take(&mut self.bytes);
            shelf.lent_bytes -= bytes.len();
            shelf.idle_bytes += bytes.len();
            shelf.idle.push(bytes);
        }
    }
}

/// A part of a buffer, as a tensor's payload.
struct View {
    slab: Arc<Slab>,
    range: Range<usize>,
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        &self.slab.as_slice()[self.range.clone()]
    }
}

/// A parcel without its bytes: what it takes to cut a buffer into tensors again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Label {
    tensors: Vec<(String, Vec<usize>, usize)>,
    structure: Vec<u64>,
    length: usize,
}

impl Label {
    pub(crate) fn of(parcel: &Parcel) -> Self {
        let tensors: Vec<_> = parcel
            .tensors
            .iter()
            .map(|tensor| (tensor.dtype.clone(), tensor.shape.clone(), tensor.bytes.len()))
            .collect();
        let length = tensors.iter().map(|(_, _, length)| length).sum();
        Self { tensors, structure: parcel.structure.clone(), length }
    }

    /// The bytes of all tensors.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The bytes of each tensor.
    #[cfg(unix)]
    pub(crate) fn lengths(&self) -> impl Iterator<Item = usize> + '_ {
        self.tensors.iter().map(|(_, _, length)| *length)
    }

    /// The parcel whose tensors are these, in their order.
    #[cfg(unix)]
    pub(crate) fn filled(&self, tensors: Vec<Buffer>) -> Parcel {
        let tensors = self.tensors.iter().zip(tensors).map(|((dtype, shape, _), bytes)| PackedTensor {
            dtype: dtype.clone(),
            shape: shape.clone(),
            bytes: bytes.into(),
        });
        Parcel { tensors: tensors.collect(), structure: self.structure.clone() }
    }

    /// The parcel whose bytes lie in `slab`, one tensor behind the other.
    pub(crate) fn cut(&self, slab: &Arc<Slab>) -> Parcel {
        let mut start = 0;
        let tensors = self.tensors.iter().map(|(dtype, shape, length)| {
            let range = start..start + length;
            start = range.end;
            let bytes = Payload::shared(View { slab: slab.clone(), range });
            PackedTensor { dtype: dtype.clone(), shape: shape.clone(), bytes }
        });
        Parcel { tensors: tensors.collect(), structure: self.structure.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_and_idle_ones_make_room_under_the_limit() {
        let slabs = Slabs::default();
        drop((slabs.lend(5000, 1 << 20), slabs.lend(100, 1 << 20)));
        assert_eq!(slabs.made(), 2);
        let again = slabs.lend(6000, 1 << 20);
        assert_eq!((slabs.made(), again.as_slice().len()), (2, 6000));
        drop(again);
        drop(slabs.lend(40_000, 45_000));
        let shelf = slabs.0.lock().unwrap();
        assert!(shelf.idle_bytes <= 45_000 && shelf.lent_bytes == 0, "{shelf:?}");
    }
}
