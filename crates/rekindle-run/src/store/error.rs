//! What can go wrong in a store.

use std::io;
use std::path::{Path, PathBuf};

use rekindle_plan::{Boundary, Bytes};

/// Why a store cannot do what a plan asks of it.
///
/// ```
/// use rekindle_plan::{Boundary, Bytes};
/// use rekindle_run::{HostStore, Parcel, Store, StoreError};
///
/// let mut store = HostStore::new(Bytes::ZERO);
/// let error = store.take(Boundary::new(2)).unwrap_err();
/// assert_eq!(error, StoreError::Absent { boundary: Boundary::new(2) });
/// assert_eq!(error.to_string(), "x2 is not in the store");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no room under the store's limit.
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
    /// The disk has less than the store may use.
    #[error(
        "the disk of {} is full: {needed} are needed, {found} were found; free some, or give the store another directory", path.display()
    )]
    DiskFull {
        /// The file that could not grow.
        path: PathBuf,
        /// What was needed beyond what the file has.
        needed: Bytes,
        /// What the disk has.
        found: Bytes,
    },
    /// It is not there.
    #[error("{boundary} is not in the store")]
    Absent {
        /// The boundary asked for.
        boundary: Boundary,
    },
    /// What was read is not what was written.
    #[error("{boundary} came back damaged: found {found}, expected {expected}")]
    Damaged {
        /// The boundary asked for.
        boundary: Boundary,
        /// What was found.
        found: String,
        /// What was written.
        expected: String,
    },
    /// The operating system said no.
    #[error("{doing} {} failed: {message}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// The kind of failure.
        kind: io::ErrorKind,
        /// What the system said.
        message: String,
    },
    /// The thread that moves boundaries died.
    #[error("a transfer ended before its time: {message}; make the store anew")]
    Broken {
        /// What is known of the reason.
        message: String,
    },
    /// The store itself failed.
    #[error("{message}")]
    Failed {
        /// What it said.
        message: String,
    },
}

impl StoreError {
    pub(crate) fn io(doing: &'static str, path: &Path, error: &io::Error) -> Self {
        Self::Io { doing, path: path.to_owned(), kind: error.kind(), message: error.to_string() }
    }
}
