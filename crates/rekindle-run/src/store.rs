//! Where boundaries go when they leave the device.

use std::collections::BTreeMap;
use std::sync::Arc;

use rekindle_plan::{Boundary, Bytes, Name};

/// A boundary as bytes of its own, away from the framework that made it.
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
    /// The element type, as the engine calls it.
    pub dtype: String,
    /// The shape.
    pub shape: Vec<usize>,
    /// The elements.
    pub bytes: Arc<[u8]>,
}

impl Parcel {
    /// The size of all its tensors.
    pub fn bytes(&self) -> Bytes {
        let sizes = self.tensors.iter().map(|tensor| tensor.bytes.len() as u64);
        sizes.map(Bytes::new).sum()
    }
}

/// Why a store cannot do what a plan asks of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no room.
    #[error(
        "{boundary} needs {needed}, but only {free} of {limit} are free; give the store more, or plan with less"
    )]
    Full {
        /// The boundary to put.
        boundary: Boundary,
        /// Its size.
        needed: Bytes,
        /// What is free.
        free: Bytes,
        /// What the store may hold.
        limit: Bytes,
    },
    /// It is not there.
    #[error("{boundary} is not in the store")]
    Absent {
        /// The boundary asked for.
        boundary: Boundary,
    },
    /// The store itself failed.
    #[error("{message}")]
    Failed {
        /// What it said.
        message: String,
    },
}

/// A place for boundaries outside the device's working memory: a tier, or a codec.
pub trait Store: Send {
    /// Takes a boundary in.
    ///
    /// # Errors
    /// When it does not fit or cannot be written.
    fn put(&mut self, boundary: Boundary, parcel: Parcel) -> Result<(), StoreError>;

    /// Is told that a boundary will be asked for soon.
    ///
    /// # Errors
    /// When it is not there.
    fn prefetch(&mut self, boundary: Boundary) -> Result<(), StoreError>;

    /// Gives a boundary out. It stays until forgotten, because a plan may fetch it again.
    ///
    /// # Errors
    /// When it is not there or cannot be read.
    fn take(&mut self, boundary: Boundary) -> Result<Parcel, StoreError>;

    /// Lets a boundary go.
    ///
    /// # Errors
    /// When it is not there.
    fn forget(&mut self, boundary: Boundary) -> Result<(), StoreError>;
}

/// The stores of a run, by the names plans use for them.
pub type Stores = BTreeMap<Name, Box<dyn Store>>;

/// Boundaries in host memory, up to a limit.
#[derive(Debug)]
pub struct HostStore {
    limit: Bytes,
    used: Bytes,
    parcels: BTreeMap<Boundary, Parcel>,
}

impl HostStore {
    /// A store that holds at most `limit`.
    pub fn new(limit: Bytes) -> Self {
        Self { limit, used: Bytes::ZERO, parcels: BTreeMap::new() }
    }

    /// What it holds now.
    pub fn used(&self) -> Bytes {
        self.used
    }

    fn find(&self, boundary: Boundary) -> Result<&Parcel, StoreError> {
        let parcel = self.parcels.get(&boundary);
        parcel.ok_or(StoreError::Absent { boundary })
    }
}

impl Store for HostStore {
    fn put(&mut self, boundary: Boundary, parcel: Parcel) -> Result<(), StoreError> {
        let needed = parcel.bytes();
        let replaced = self.parcels.get(&boundary).map(Parcel::bytes);
        let others = self.used.saturating_sub(replaced.unwrap_or_default());
        let total = others.checked_add(needed);
        let Some(used) = total.filter(|total| *total <= self.limit) else {
            return Err(StoreError::Full {
                boundary,
                needed,
                free: self.limit.saturating_sub(others),
                limit: self.limit,
            });
        };
        self.used = used;
        self.parcels.insert(boundary, parcel);
        Ok(())
    }

    fn prefetch(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        self.find(boundary).map(|_| ())
    }

    fn take(&mut self, boundary: Boundary) -> Result<Parcel, StoreError> {
        self.find(boundary).cloned()
    }

    fn forget(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        let parcel = self.parcels.remove(&boundary);
        let parcel = parcel.ok_or(StoreError::Absent { boundary })?;
        self.used = self.used.saturating_sub(parcel.bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
