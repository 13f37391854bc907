//! A codec in front of a store.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rekindle_plan::{Boundary, Bytes};

use super::codec::{Codec, CodecError};
use super::transfers::{Log, Ticket, Worker};
use super::{Buffer, PackedTensor, Parcel, Store, StoreError, Transfer, Way};

/// Below this a boundary is encoded before a thread would have heard of it.
const SMALL: u64 = 64 << 10;

/// A store that holds boundaries encoded.
///
/// In front of a tier it makes transfers and files smaller; in front of [`OwnMemory`](crate::OwnMemory) it is a plan's
/// `compress`, and [`Coded::used`] is what the compressed copies take. Large boundaries are encoded and decoded by
/// threads, so that `put` and `prefetch` return at once; what the inner store says to a `put` is then told by `wait`.
///
/// ```
/// use rekindle_plan::{Boundary, Bytes};
/// use rekindle_run::{Coded, OwnMemory, PackedTensor, Parcel, Store, codec::Bf16};
///
/// let tensor = PackedTensor { dtype: "f32".into(), shape: vec![256], bytes: vec![0; 1024].into() };
/// let parcel = Parcel { tensors: vec![tensor], structure: vec![] };
/// let mut store = Coded::new(Bf16, OwnMemory::new());
/// store.put(Boundary::new(1), parcel.clone())?;
/// store.wait(Boundary::new(1))?;
/// assert_eq!(store.used(), Bytes::new(512));
/// assert_eq!(store.take(Boundary::new(1))?, parcel);
/// # Ok::<(), rekindle_run::StoreError>(())
/// ```
pub struct Coded {
    encoder: OnceLock<Option<Worker>>,
    decoder: OnceLock<Option<Worker>>,
    shared: Arc<Shared>,
    entries: BTreeMap<Boundary, Entry>,
}

/// What the threads work with.
struct Shared {
    codec: Box<dyn Codec>,
    inner: Mutex<Box<dyn Store>>,
    used: AtomicU64,
    /// When what was encoded and decoded.
    log: Log,
}

struct Entry {
    /// Its size before it was encoded.
    size: u64,
    copy: Copy,
    coming: Option<Ticket<Parcel>>,
}

enum Copy {
    Going(Ticket<Original>),
    There(Original),
}

/// What a boundary was before it was encoded.
#[derive(Clone)]
struct Original {
    /// For each tensor, its length if it was encoded.
    lengths: Arc<[Option<usize>]>,
    /// What all of it takes now.
    encoded: u64,
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
    let mut bytes = Buffer::zeroed(length);
    codec.decode(tensor.bytes.as_slice(), width(&tensor.shape, length), bytes.as_mut())?;
    Ok(PackedTensor { bytes: bytes.into(), ..tensor })
}

impl Shared {
    fn inner(&self) -> MutexGuard<'_, Box<dyn Store>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, boundary: Boundary, parcel: Parcel) -> Result<Original, StoreError> {
        let bytes = parcel.bytes().get();
        let Parcel { tensors, structure } = parcel;
        let (tensors, lengths): (_, Vec<_>) = self.log.timed(boundary, Way::Out, bytes, || {
            // One tensor after the other, so that each is free as soon as it is encoded.
            Ok(tensors.into_iter().map(|tensor| encode(&*self.codec, tensor)).unzip())
        })?;
        let parcel = Parcel { tensors, structure };
        let original = Original { lengths: lengths.into(), encoded: parcel.bytes().get() };
        self.inner().put(boundary, parcel)?;
        self.used.fetch_add(original.encoded, Ordering::Relaxed);
        Ok(original)
    }

    fn take(&self, boundary: Boundary, size: u64, original: &Original) -> Result<Parcel, StoreError> {
        let taken = self.inner().take(boundary);
        let Parcel { tensors, structure } = taken?;
        let tensors = self.log.timed(boundary, Way::Back, size, || {
            let tensors = tensors.into_iter().zip(&*original.lengths);
            let tensors = tensors.map(|(tensor, length)| decode(&*self.codec, tensor, *length));
            tensors.collect::<Result<_, _>>().map_err(|error| {
                let found = format!("{} in front of `{}`", error.found, error.codec);
                StoreError::Damaged { boundary, found, expected: error.expected }
            })
        })?;
        Ok(Parcel { tensors, structure })
    }
}

impl Coded {
    /// `codec` in front of `inner`.
    pub fn new(codec: impl Codec + 'static, inner: impl Store + 'static) -> Self {
        Self::boxed(Box::new(codec), Box::new(inner))
    }

    /// The same for a codec and a store that were chosen while the program runs.
    pub fn boxed(codec: Box<dyn Codec>, inner: Box<dyn Store>) -> Self {
        let shared = Shared { codec, inner: Mutex::new(inner), used: AtomicU64::new(0), log: Log::default() };
        let (encoder, decoder) = (OnceLock::new(), OnceLock::new());
        Self { encoder, decoder, shared: Arc::new(shared), entries: BTreeMap::new() }
    }

    /// What it holds now, encoded, without what is still being encoded.
    pub fn used(&self) -> Bytes {
        Bytes::new(self.shared.used.load(Ordering::Relaxed))
    }

    /// The codec.
    pub fn codec(&self) -> &dyn Codec {
        &*self.shared.codec
    }

    fn forget_used(&self, original: &Original) {
        self.shared.used.fetch_sub(original.encoded, Ordering::Relaxed);
    }

    /// Takes an entry out, once it is encoded. One that the inner store refused is gone.
    fn settle(&mut self, boundary: Boundary) -> Result<(Entry, Original), StoreError> {
        let mut entry = self.entries.remove(&boundary).ok_or(StoreError::Absent { boundary })?;
        let original = match entry.copy {
            Copy::There(original) => original,
            Copy::Going(ticket) => ticket.wait().inspect_err(|_| {
                // What it was to replace is of no use any more.
                let _ = self.shared.inner().forget(boundary);
            })?,
        };
        entry.copy = Copy::There(original.clone());
        Ok((entry, original))
    }
}

/// A thread for large boundaries, if there is one to be had.
fn worker<'a>(slot: &'a OnceLock<Option<Worker>>, size: u64, name: &str) -> Option<&'a Worker> {
    (size >= SMALL).then(|| slot.get_or_init(|| Worker::start(name).ok()).as_ref()).flatten()
}

impl Store for Coded {
    fn put(&mut self, boundary: Boundary, parcel: Parcel) -> Result<(), StoreError> {
        let (size, shared) = (parcel.bytes().get(), self.shared.clone());
        // In the order they were brought: an older one may still be on its way.
        let old = self.settle(boundary).ok();
        let put = move || shared.put(boundary, parcel);
        let copy = match worker(&self.encoder, size, "rekindle-encode") {
            Some(worker) => Copy::Going(worker.run(put)),
            None => match put() {
                Ok(original) => Copy::There(original),
                Err(error) => {
                    self.entries.extend(old.map(|(entry, _)| (boundary, entry)));
                    return Err(error);
                }
            },
        };
        if let Some((_, old)) = old {
            self.forget_used(&old);
        }
        self.entries.insert(boundary, Entry { size, copy, coming: None });
        Ok(())
    }

    fn wait(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        let (entry, original) = self.settle(boundary)?;
        let waited = self.shared.inner().wait(boundary);
        match waited {
            Ok(()) => drop(self.entries.insert(boundary, entry)),
            Err(_) => self.forget_used(&original),
        }
        waited
    }

    fn prefetch(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        let (mut entry, original) = self.settle(boundary)?;
        let asked = self.shared.inner().prefetch(boundary);
        if asked.is_ok()
            && entry.coming.is_none()
            && let Some(worker) = worker(&self.decoder, entry.size, "rekindle-decode")
        {
            let (shared, size) = (self.shared.clone(), entry.size);
            entry.coming = Some(worker.run(move || shared.take(boundary, size, &original)));
        }
        self.entries.insert(boundary, entry);
        asked
    }

    fn take(&mut self, boundary: Boundary) -> Result<Parcel, StoreError> {
        let (mut entry, original) = self.settle(boundary)?;
        let taken = match entry.coming.take() {
            Some(coming) => coming.wait(),
            None => self.shared.take(boundary, entry.size, &original),
        };
        self.entries.insert(boundary, entry);
        taken
    }

    fn forget(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        let (entry, original) = self.settle(boundary)?;
        self.forget_used(&original);
        if let Some(coming) = entry.coming {
            // The thread may be with the inner store; what it brings no longer matters.
            let _ = coming.wait();
        }
        self.shared.inner().forget(boundary)
    }

    fn transfers(&mut self) -> Vec<Transfer> {
        // What the codec did, and what the store behind it did: both took time.
        let mut transfers = self.shared.log.drain();
        transfers.extend(self.shared.inner().transfers());
        transfers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostStore;
    use crate::codec::{Int8, Lz4};

    fn parcel(values: usize, seed: f32) -> Parcel {
        let bytes: Vec<u8> = (0..values).flat_map(|i| (i as f32 * 0.25 + seed).to_ne_bytes()).collect();
        let tensor = PackedTensor { dtype: "f32".into(), shape: vec![values], bytes: bytes.into() };
        Parcel { tensors: vec![tensor], structure: vec![7] }
    }

    #[test]
    fn large_boundaries_are_encoded_and_decoded_on_threads() {
        let mut store = Coded::new(Lz4, HostStore::new(Bytes::MAX));
        for number in 0..6 {
            store.put(Boundary::new(number), parcel(100_000, number as f32)).unwrap();
        }
        // In place of what may still be on its way, small after large and large after small.
        store.put(Boundary::new(1), parcel(100_000, 1.0)).unwrap();
        store.put(Boundary::new(0), parcel(10, 9.0)).unwrap();
        store.put(Boundary::new(0), parcel(100_000, 8.0)).unwrap();
        for number in (0..6).rev() {
            let boundary = Boundary::new(number);
            store.wait(boundary).unwrap();
            store.prefetch(boundary).unwrap();
            let seed = if number == 0 { 8.0 } else { number as f32 };
            assert_eq!(store.take(boundary).unwrap(), parcel(100_000, seed));
            assert_eq!(store.take(boundary).unwrap(), parcel(100_000, seed));
            store.forget(boundary).unwrap();
        }
        assert_eq!(store.used(), Bytes::ZERO);
    }

    #[test]
    fn what_the_inner_store_refuses_is_told_by_wait_and_gone() {
        let mut store = Coded::new(Int8, HostStore::new(Bytes::new(150_000)));
        let (first, second) = (Boundary::new(1), Boundary::new(2));
        store.put(first, parcel(100_000, 0.0)).unwrap();
        store.put(second, parcel(100_000, 0.0)).unwrap();
        store.wait(first).unwrap();
        assert!(matches!(store.wait(second), Err(StoreError::Full { .. })));
        assert_eq!(store.take(second), Err(StoreError::Absent { boundary: second }));
        assert_eq!(store.used(), Bytes::new(100_000 + 4 * 100_000u64.div_ceil(64)));
        store.forget(first).unwrap();
        assert_eq!(store.used(), Bytes::ZERO);
    }
}
