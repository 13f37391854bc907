//! Boundaries in memory that a plan counts as the device's.

use std::collections::BTreeMap;

use rekindle_plan::{Boundary, Bytes};

use super::{PackedTensor, Parcel, Payload, Store, StoreError};

/// Boundaries in the memory that the device computes in, for a codec to stand in front of: a plan's `compress`.
///
/// A plan counts such a copy until it is forgotten, and not a byte longer. So there is no pool behind it: a buffer that is
/// kept for later takes memory that the plan has promised to something else. What comes in memory of its own stays where it
/// is; what is shared is copied, because its owner may be the boundary that is to be freed.
///
/// ```
/// use rekindle_plan::{Boundary, Bytes};
/// use rekindle_run::{OwnMemory, PackedTensor, Parcel, Store};
///
/// let tensor = PackedTensor { dtype: "u8".into(), shape: vec![3], bytes: vec![1, 2, 3].into() };
/// let parcel = Parcel { tensors: vec![tensor], structure: vec![] };
/// let mut store = OwnMemory::new();
/// store.put(Boundary::new(1), parcel.clone())?;
/// assert_eq!((store.used(), store.take(Boundary::new(1))?), (Bytes::new(3), parcel));
/// store.forget(Boundary::new(1))?;
/// assert_eq!(store.used(), Bytes::ZERO);
/// # Ok::<(), rekindle_run::StoreError>(())
/// ```
#[derive(Debug, Default)]
pub struct OwnMemory {
    parcels: BTreeMap<Boundary, Parcel>,
}

impl OwnMemory {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// What it holds now.
    pub fn used(&self) -> Bytes {
        self.parcels.values().map(Parcel::bytes).sum()
    }
}

impl Store for OwnMemory {
    fn put(&mut self, boundary: Boundary, parcel: Parcel) -> Result<(), StoreError> {
        let Parcel { tensors, structure } = parcel;
        let tensors = tensors.into_iter().map(|tensor| {
            let mut bytes = tensor.bytes.into_vec();
            // A codec may have set more aside than it needed.
            bytes.shrink_to_fit();
            // Whoever takes it reads it here, without a copy.
            PackedTensor { bytes: Payload::shared(bytes), ..tensor }
        });
        self.parcels.insert(boundary, Parcel { tensors: tensors.collect(), structure });
        Ok(())
    }

    fn prefetch(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        match self.parcels.contains_key(&boundary) {
            true => Ok(()),
            false => Err(StoreError::Absent { boundary }),
        }
    }

    fn take(&mut self, boundary: Boundary) -> Result<Parcel, StoreError> {
        self.parcels.get(&boundary).cloned().ok_or(StoreError::Absent { boundary })
    }

    fn forget(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        self.parcels.remove(&boundary).map(drop).ok_or(StoreError::Absent { boundary })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    struct Device(Arc<Vec<u8>>);

    impl AsRef<[u8]> for Device {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    fn parcel(bytes: Payload) -> Parcel {
        let tensor = PackedTensor { dtype: "u8".to_owned(), shape: vec![bytes.len()], bytes };
        Parcel { tensors: vec![tensor], structure: vec![4] }
    }

    #[test]
    fn what_comes_in_memory_of_its_own_stays_where_it_is() {
        let own = vec![7; 5000];
        let at = own.as_ptr();
        let mut store = OwnMemory::new();
        store.put(Boundary::new(1), parcel(own.into())).unwrap();
        let taken = store.take(Boundary::new(1)).unwrap();
        assert_eq!((taken.tensors[0].bytes.as_slice().as_ptr(), taken.structure), (at, vec![4]));
    }

    #[test]
    fn memory_of_the_device_is_let_go_of_at_once_and_its_own_when_it_is_forgotten() {
        let memory = Arc::new(vec![3; 1000]);
        let (mut store, x1) = (OwnMemory::new(), Boundary::new(1));
        store.put(x1, parcel(Payload::shared(Device(memory.clone())))).unwrap();
        assert_eq!((Arc::strong_count(&memory), store.used()), (1, Bytes::new(1000)));
        assert_eq!(store.take(x1).unwrap().tensors[0].bytes.as_slice(), &memory[..]);
        store.forget(x1).unwrap();
        assert_eq!((store.used(), store.forget(x1)), (Bytes::ZERO, Err(StoreError::Absent { boundary: x1 })));
        assert_eq!(store.prefetch(x1), Err(StoreError::Absent { boundary: x1 }));
    }
}
