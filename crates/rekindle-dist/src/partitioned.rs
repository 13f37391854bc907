//! Boundaries that all ranks have, of which each keeps a part.

use std::collections::BTreeMap;
use std::sync::Arc;

use rekindle::{Bytes, Places, Planned};
use rekindle_plan::{Boundary, Name};
use rekindle_run::{PackedTensor, Parcel, Payload, Store, StoreError};

use crate::collective::Pending;
use crate::{Collective, DistError};

/// A store for boundaries that are the same on all ranks of a group, as between blocks that ranks work on together: each keeps the
/// n-th part of every tensor, and they put it together again before it is read. In a plan that a planner has made the next one is on its way
/// while the stage behind it goes back, wherever the budget has room for it that long; elsewhere, as at the smallest budget, it is put
/// together when it is needed.
///
/// All ranks have to run the same plan, see [`share_plan`]. A boundary that is *not* the same on all ranks would come back
/// mixed: [`Partitioned::checked`] compares a checksum of each.
pub struct Partitioned {
    ranks: Arc<dyn Collective>,
    checked: bool,
    held: BTreeMap<Boundary, Held>,
}

/// What a rank keeps of a boundary.
struct Held {
    /// The tensors, with this rank's part of their bytes instead of all.
    tensors: Vec<Part>,
    structure: Vec<u64>,
    coming: Option<Vec<Pending<Vec<Vec<u8>>>>>,
}

struct Part {
    dtype: String,
    shape: Vec<usize>,
    /// Of the whole tensor.
    length: usize,
    bytes: Vec<u8>,
}

impl std::fmt::Debug for Partitioned {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Partitioned").field("held", &self.held_bytes()).finish_non_exhaustive()
    }
}

impl Partitioned {
    /// The name that plans use for it.
    pub const NAME: &str = "partition";

    /// An empty store of a group.
    pub fn new(ranks: Arc<dyn Collective>) -> Self {
        Self { ranks, checked: false, held: BTreeMap::new() }
    }

    /// Has every boundary compared over the ranks when it is put.
    #[must_use]
    pub fn checked(mut self) -> Self {
        self.checked = true;
        self
    }

    /// What it holds: the n-th part of each tensor, rounded up to whole bytes.
    pub fn held_bytes(&self) -> Bytes {
        let parts = self.held.values().flat_map(|held| &held.tensors);
        Bytes::new(parts.map(|part| part.bytes.len() as u64).sum())
    }

    /// Places with one more: boundaries partitioned over the ranks of a group, as the codec `partition`.
    ///
    /// A planner measures a place before it uses it, so all ranks have to plan at the same time, and then to agree on one plan
    /// ([`share_plan`]).
    pub fn place(places: Places, ranks: Arc<dyn Collective>) -> Places {
        let Ok(name) = Self::NAME.parse::<Name>() else { return places };
        let part = u32::try_from(1024_usize.div_ceil(ranks.size())).unwrap_or(1024);
        places.shrinking(name, part, move || Box::new(Self::new(Arc::clone(&ranks))))
    }

    /// Starts to put a boundary together.
    fn start(ranks: &dyn Collective, held: &Held) -> Vec<Pending<Vec<Vec<u8>>>> {
        held.tensors.iter().map(|part| ranks.start_all_gather(part.bytes.clone())).collect()
    }
}

fn failed(error: &DistError) -> StoreError {
    StoreError::Failed { message: error.to_string() }
}

impl Store for Partitioned {
    fn put(&mut self, boundary: Boundary, parcel: Parcel) -> Result<(), StoreError> {
        let (rank, size) = (self.ranks.rank(), self.ranks.size());
        if self.checked {
            let sums = parcel
                .tensors
                .iter()
                .flat_map(|tensor| xxhash_rust::xxh3::xxh3_64(tensor.bytes.as_slice()).to_le_bytes());
            let own: Vec<u8> = sums.collect();
            let all = self.ranks.all_gather(own.clone()).map_err(|error| failed(&error))?;
            if let Some(other) = all.iter().position(|other| *other != own) {
                let message = format!(
                    "{boundary} is not the same on rank {rank} and on rank {other}: it cannot be partitioned"
                );
                return Err(StoreError::Failed { message });
            }
        }
        let tensors = parcel.tensors.iter().map(|tensor| {
            let bytes = tensor.bytes.as_slice();
            let part = bytes.len().div_ceil(size);
            // A copy of its own: a part of the whole would keep the whole.
            let end = ((rank + 1) * part).min(bytes.len());
            let own = bytes.get(rank * part..end).unwrap_or_default().to_vec();
            Part { dtype: tensor.dtype.clone(), shape: tensor.shape.clone(), length: bytes.len(), bytes: own }
        });
        let held = Held { tensors: tensors.collect(), structure: parcel.structure.clone(), coming: None };
        self.held.insert(boundary, held);
        Ok(())
    }

    fn prefetch(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        let held = self.held.get_mut(&boundary).ok_or(StoreError::Absent { boundary })?;
        if held.coming.is_none() {
            held.coming = Some(Self::start(self.ranks.as_ref(), held));
        }
        Ok(())
    }

    fn take(&mut self, boundary: Boundary) -> Result<Parcel, StoreError> {
        let held = self.held.get_mut(&boundary).ok_or(StoreError::Absent { boundary })?;
        let coming = match held.coming.take() {
            Some(coming) => coming,
            None => Self::start(self.ranks.as_ref(), held),
        };
        let mut tensors = Vec::with_capacity(coming.len());
        for (part, coming) in held.tensors.iter().zip(coming) {
            let bytes = coming.wait().map_err(|error| failed(&error))?.concat();
            if bytes.len() != part.length {
                let (found, expected) = (Bytes::new(bytes.len() as u64), Bytes::new(part.length as u64));
                return Err(StoreError::Damaged {
                    boundary,
                    found: found.to_string(),
                    expected: expected.to_string(),
                });
            }
            let (dtype, shape) = (part.dtype.clone(), part.shape.clone());
            tensors.push(PackedTensor { dtype, shape, bytes: Payload::from(bytes) });
        }
        Ok(Parcel { tensors, structure: held.structure.clone() })
    }

    fn forget(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        self.held.remove(&boundary).map(drop).ok_or(StoreError::Absent { boundary })
    }
}

/// The first rank's plan, on all ranks, for the model that each has planned. What `planned` uses of places it still uses.
///
/// Ranks that measured for themselves have measured different times, and planned differently.
///
/// # Errors
/// When ranks are not in step, or a rank's model has other stages.
pub fn share_plan(ranks: &dyn Collective, planned: &Planned, places: Places) -> Result<Planned, DistError> {
    let own = if ranks.rank() == 0 { planned.to_json().into_bytes() } else { Vec::new() };
    let text = ranks.broadcast(0, own)?;
    let first = Planned::from_json(&String::from_utf8_lossy(&text))?;
    // Ranks that have parts of one model have parameters of their own.
    let (profile, plan) = (first.profile().clone(), first.plan().clone());
    Ok(Planned::new(planned.description().clone(), profile, plan, first.noise())?.with_places(places))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Alone;

    #[test]
    fn one_rank_keeps_all_and_gets_it_back() {
        let tensor = PackedTensor { dtype: "u8".into(), shape: vec![5], bytes: vec![1, 2, 3, 4, 5].into() };
        let parcel = Parcel { tensors: vec![tensor], structure: vec![7] };
        let mut store = Partitioned::new(Arc::new(Alone)).checked();
        let x = Boundary::new(1);
        assert_eq!(store.put(x, parcel.clone()), Ok(()));
        assert_eq!(store.held_bytes(), Bytes::new(5));
        assert_eq!(store.prefetch(x), Ok(()));
        assert_eq!(store.take(x), Ok(parcel.clone()));
        // A plan may fetch it again.
        assert_eq!(store.take(x), Ok(parcel));
        assert_eq!(store.forget(x), Ok(()));
        let absent = StoreError::Absent { boundary: x };
        assert_eq!(store.take(x), Err(absent.clone()));
        assert_eq!(store.prefetch(x), Err(absent.clone()));
        assert_eq!(store.forget(x), Err(absent));
    }
}
