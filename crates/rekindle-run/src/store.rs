//! Where boundaries go when they leave the device: one small trait, and what implements it.
//!
//! ```text
//!   Executor ── put, wait ──▶ Coded (a codec) ──▶ HostStore ── a thread copies ──▶ HostPool
//!            ◀─ prefetch, take ─                 DiskStore ── a thread writes, one reads ──▶ DiskFile
//! ```

use std::collections::BTreeMap;

use rekindle_plan::{Boundary, Name};

mod buffer;
pub mod codec;
mod coded;
#[cfg(unix)]
mod disk;
mod error;
#[cfg(unix)]
mod extents;
mod host;
mod own;
mod parcel;
#[cfg(unix)]
mod private;
mod slabs;
mod speed;
mod transfers;

pub use buffer::Buffer;
pub use coded::Coded;
#[cfg(unix)]
pub use disk::{DiskFile, DiskStore};
pub use error::StoreError;
pub use host::{HostPool, HostStore};
pub use own::OwnMemory;
pub use parcel::{PackedTensor, Parcel, Payload};
pub use speed::{CodecSpeed, StoreSpeed, measure_codec, measure_store};
pub use transfers::{Transfer, Way};

/// A place for boundaries outside the device's working memory: a tier, or a codec.
///
/// `put` and `prefetch` start a transfer and return at once where the store can; `wait` and `take` wait for it. What
/// goes wrong on the way is told by the next call that concerns the boundary.
///
/// ```
/// use rekindle_plan::{Boundary, Bytes};
/// use rekindle_run::{HostStore, PackedTensor, Parcel, Store};
///
/// let tensor = PackedTensor { dtype: "u8".into(), shape: vec![3], bytes: vec![1, 2, 3].into() };
/// let parcel = Parcel { tensors: vec![tensor], structure: vec![] };
/// let x3 = Boundary::new(3);
///
/// let mut store = HostStore::new(Bytes::mebibytes(1));
/// store.put(x3, parcel.clone())?; // on its way
/// store.wait(x3)?; // away: what the parcel held on the device is free
/// store.prefetch(x3)?; // on its way back
/// assert_eq!(store.take(x3)?, parcel);
/// store.forget(x3)?;
/// # Ok::<(), rekindle_run::StoreError>(())
/// ```
pub trait Store: Send {
    /// Takes a boundary in, in place of what it held for it. The parcel is dropped as soon as its bytes are written,
    /// because that may free memory of the device.
    ///
    /// # Errors
    /// When it does not fit or cannot be written; the store is then as it was.
    fn put(&mut self, boundary: Boundary, parcel: Parcel) -> Result<(), StoreError>;

    /// Waits until what was put is away and the parcel's memory is free.
    ///
    /// # Errors
    /// When it could not be written; the store then no longer has the boundary.
    fn wait(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        let _ = boundary;
        Ok(())
    }

    /// Is told that a boundary will be asked for soon.
    ///
    /// # Errors
    /// When it is not there.
    fn prefetch(&mut self, boundary: Boundary) -> Result<(), StoreError>;

    /// Gives a boundary out. It stays until forgotten, because a plan may fetch it again.
    ///
    /// # Errors
    /// When it is not there, cannot be read, or is not what was put.
    fn take(&mut self, boundary: Boundary) -> Result<Parcel, StoreError>;

    /// Lets a boundary go.
    ///
    /// # Errors
    /// When it is not there.
    fn forget(&mut self, boundary: Boundary) -> Result<(), StoreError>;

    /// The transfers that ended since this was last asked, for a trace.
    fn transfers(&mut self) -> Vec<Transfer> {
        Vec::new()
    }
}

/// The stores of a run, by the names plans use for them.
pub type Stores = BTreeMap<Name, Box<dyn Store>>;
