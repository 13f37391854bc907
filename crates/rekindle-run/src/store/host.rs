//! Boundaries in host memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rekindle_plan::{Boundary, Bytes};

use super::slabs::{Label, Slab, Slabs};
use super::transfers::{Log, Ticket, Worker};
use super::{Parcel, Store, StoreError, Transfer, Way};

/// Below this a copy is over before a thread would have heard of it.
const SMALL: usize = 256 << 10;

/// Host memory for boundaries, up to a limit. Stores of one pool share the limit, the buffers and the thread that
/// copies; buffers are kept and used again, so that after the first step nothing is allocated.
///
/// ```
/// use rekindle_plan::Bytes;
/// use rekindle_run::HostPool;
///
/// let pool = HostPool::new(Bytes::mebibytes(64));
/// let (first, second) = (pool.store(), pool.store()); // one for each region, say
/// assert_eq!(pool.used(), Bytes::ZERO);
/// ```
#[derive(Clone, Debug)]
pub struct HostPool(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    limit: Bytes,
    used: Mutex<Bytes>,
    slabs: Slabs,
    worker: OnceLock<Option<Worker>>,
}

impl HostPool {
    /// A pool that holds at most `limit`.
    pub fn new(limit: Bytes) -> Self {
        let (used, slabs, worker) = (Mutex::default(), Slabs::default(), OnceLock::new());
        Self(Arc::new(Pool { limit, used, slabs, worker }))
    }

    /// An empty store in this pool.
    pub fn store(&self) -> HostStore {
        HostStore { pool: self.clone(), parcels: BTreeMap::new(), log: Log::default() }
    }

    /// What all its stores hold now.
    pub fn used(&self) -> Bytes {
        *self.0.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many buffers were allocated so far.
    pub fn buffers(&self) -> u64 {
        self.0.slabs.made()
    }

    fn charge(&self, boundary: Boundary, needed: Bytes, replaced: Bytes) -> Result<(), StoreError> {
        let limit = self.0.limit;
        let mut used = self.0.used.lock().unwrap_or_else(PoisonError::into_inner);
        let others = used.saturating_sub(replaced);
        let total = others.checked_add(needed).filter(|total| *total <= limit);
        let free = limit.saturating_sub(others);
        *used = total.ok_or(StoreError::Full { boundary, needed, free, limit })?;
        Ok(())
    }

    fn release(&self, bytes: Bytes) {
        let mut used = self.0.used.lock().unwrap_or_else(PoisonError::into_inner);
        *used = used.saturating_sub(bytes);
    }
}

/// Boundaries in host memory, up to a limit.
///
/// A parcel is copied into a buffer of the store's pool, large ones by a thread of their own, and dropped. What is
/// taken is a view of that buffer.
///
/// ```
/// use rekindle_plan::{Boundary, Bytes};
/// use rekindle_run::{HostStore, PackedTensor, Parcel, Store, StoreError};
///
/// let tensor = PackedTensor { dtype: "u8".into(), shape: vec![3], bytes: vec![1, 2, 3].into() };
/// let parcel = Parcel { tensors: vec![tensor], structure: vec![] };
/// let mut store = HostStore::new(Bytes::new(4));
/// store.put(Boundary::new(1), parcel.clone())?;
/// let refused = store.put(Boundary::new(2), parcel).unwrap_err();
/// assert_eq!(refused.to_string(), "x2 needs 3 B, but only 1 B of 4 B are free; give the store more, or plan with less");
/// assert_eq!(store.used(), Bytes::new(3));
/// # Ok::<(), StoreError>(())
/// ```
#[derive(Debug)]
pub struct HostStore {
    pool: HostPool,
    parcels: BTreeMap<Boundary, Entry>,
    log: Log,
}

#[derive(Debug)]
struct Entry {
    label: Label,
    copy: Copy,
}

#[derive(Debug)]
enum Copy {
    Going(Ticket<Arc<Slab>>),
    There(Arc<Slab>),
}

impl Entry {
    fn bytes(&self) -> Bytes {
        Bytes::new(self.label.length() as u64)
    }
}

impl HostStore {
    /// A store that holds at most `limit`, in a pool of its own.
    pub fn new(limit: Bytes) -> Self {
        HostPool::new(limit).store()
    }

    /// What it holds now.
    pub fn used(&self) -> Bytes {
        self.parcels.values().map(Entry::bytes).sum()
    }

    fn let_go(&self, entry: Entry) {
        let bytes = entry.bytes();
        if let Copy::Going(ticket) = entry.copy {
            // The buffer is written to until then; what became of the copy no longer matters.
            let _ = ticket.wait();
        }
        self.pool.release(bytes);
    }

    /// The entry, once its copy is there. One that failed is gone.
    fn settle(&mut self, boundary: Boundary) -> Result<(&Label, &Arc<Slab>), StoreError> {
        let absent = StoreError::Absent { boundary };
        let mut entry = self.parcels.remove(&boundary).ok_or(absent.clone())?;
        if let Copy::Going(ticket) = entry.copy {
            match ticket.wait() {
                Ok(slab) => entry.copy = Copy::There(slab),
                Err(error) => {
                    self.pool.release(Bytes::new(entry.label.length() as u64));
                    return Err(error);
                }
            }
        }
        match self.parcels.entry(boundary).insert_entry(entry).into_mut() {
            Entry { label, copy: Copy::There(slab) } => Ok((label, slab)),
            Entry { .. } => Err(absent),
        }
    }
}

impl Store for HostStore {
    fn put(&mut self, boundary: Boundary, parcel: Parcel) -> Result<(), StoreError> {
        let label = Label::of(&parcel);
        let needed = parcel.bytes();
        let replaced = self.parcels.get(&boundary).map(Entry::bytes);
        self.pool.charge(boundary, needed, replaced.unwrap_or_default())?;
        self.parcels.remove(&boundary);
        let (length, pool, log) = (label.length(), self.pool.clone(), self.log.clone());
        let limit = usize::try_from(pool.0.limit.get()).unwrap_or(usize::MAX);
        let mut slab = pool.0.slabs.lend(length, limit);
        let copy = move || {
            log.timed(boundary, Way::Out, needed.get(), || {
                let mut rest = slab.as_mut_slice();
                for tensor in parcel.tensors {
                    let bytes = tensor.bytes.as_slice();
                    let (mine, others) = rest.split_at_mut(bytes.len());
                    mine.copy_from_slice(bytes);
                    rest = others;
                }
                Ok(Arc::new(slab))
            })
        };
        let worker = || pool.0.worker.get_or_init(|| Worker::start("rekindle-host").ok()).as_ref();
        let copy = match (length >= SMALL).then(worker).flatten() {
            Some(worker) => Copy::Going(worker.run(copy)),
            None => Copy::There(copy()?),
        };
        self.parcels.insert(boundary, Entry { label, copy });
        Ok(())
    }

    fn wait(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        self.settle(boundary).map(|_| ())
    }

    fn prefetch(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        match self.parcels.contains_key(&boundary) {
            true => Ok(()),
            false => Err(StoreError::Absent { boundary }),
        }
    }

    fn take(&mut self, boundary: Boundary) -> Result<Parcel, StoreError> {
        self.settle(boundary).map(|(label, slab)| label.cut(slab))
    }

    fn forget(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        let entry = self.parcels.remove(&boundary).ok_or(StoreError::Absent { boundary })?;
        self.let_go(entry);
        Ok(())
    }

    fn transfers(&mut self) -> Vec<Transfer> {
        self.log.drain()
    }
}

impl Drop for HostStore {
    fn drop(&mut self) {
        for entry in std::mem::take(&mut self.parcels).into_values() {
            self.let_go(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PackedTensor, Payload};

    fn parcel(bytes: usize) -> Parcel {
        let tensor =
            PackedTensor { dtype: "u8".to_owned(), shape: vec![bytes], bytes: vec![7; bytes].into() };
        Parcel { tensors: vec![tensor], structure: vec![] }
    }

    #[test]
    fn the_limit_holds_and_a_refused_parcel_changes_nothing() {
        let mut store = HostStore::new(Bytes::new(10));
        let (first, second) = (Boundary::new(1), Boundary::new(2));
        store.put(first, parcel(6)).unwrap();
        let error = store.put(second, parcel(5)).unwrap_err();
        assert!(matches!(error, StoreError::Full { free, .. } if free == Bytes::new(4)), "{error}");
        assert_eq!(store.used(), Bytes::new(6));
        store.put(first, parcel(10)).unwrap();
        assert_eq!(store.take(first), Ok(parcel(10)));
        store.forget(first).unwrap();
        assert_eq!(store.used(), Bytes::ZERO);
        assert_eq!(store.take(first), Err(StoreError::Absent { boundary: first }));
    }

    #[test]
    fn after_the_first_step_no_buffer_is_allocated() {
        let pool = HostPool::new(Bytes::mebibytes(16));
        let step = |sizes: [usize; 3]| {
            let mut store = pool.store();
            for (number, size) in (0..).zip(sizes) {
                store.put(Boundary::new(number), parcel(size)).unwrap();
            }
            let taken = store.take(Boundary::new(1)).unwrap();
            assert_eq!(taken, parcel(sizes[1]));
        };
        step([1000, 2 << 20, 300 << 10]);
        let buffers = pool.buffers();
        for _ in 0..5 {
            step([1000, 2 << 20, 300 << 10]);
            assert_eq!((pool.buffers(), pool.used()), (buffers, Bytes::ZERO));
        }
    }

    #[test]
    fn the_parcel_is_dropped_once_it_is_away() {
        let memory = Arc::new(vec![3u8; 1 << 20]);
        struct Device(Arc<Vec<u8>>);
        impl AsRef<[u8]> for Device {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        let bytes = Payload::shared(Device(memory.clone()));
        let tensor = PackedTensor { dtype: "u8".to_owned(), shape: vec![1 << 20], bytes };
        let mut store = HostStore::new(Bytes::mebibytes(2));
        store.put(Boundary::new(0), Parcel { tensors: vec![tensor], structure: vec![4] }).unwrap();
        store.wait(Boundary::new(0)).unwrap();
        assert_eq!(Arc::strong_count(&memory), 1);
        let taken = store.take(Boundary::new(0)).unwrap();
        assert_eq!((taken.tensors[0].bytes.as_slice(), taken.structure), (&memory[..], vec![4]));
    }
}
