//! Snapshots of training: files that survive a crash, a kill and a full disk.
//!
//! ```text
//!   sections of bytes ──▶ Snapshots::write ──▶ step-0000000100.rekindle      one directory, one training,
//!   weights, optimizer,                        step-0000000200.rekindle      the last few snapshots
//!   state                ◀── Snapshots::latest ◀──────┘
//! ```
//!
//! What is in a snapshot is the caller's: sections of bytes by name. Here is the file around them. A snapshot is whole or
//! it is not there: it is written beside the others under another name and renamed when the disk has all of it. Every
//! byte is covered by a checksum, so that what was damaged later is found and the snapshot before it is taken.
//!
//! ```
//! use rekindle_run::snapshots::{Section, Snapshots};
//!
//! # let folder = tempfile::tempdir()?;
//! # let directory = folder.path().join("run");
//! let mut snapshots = Snapshots::open(&directory, 3)?;
//! for step in [100, 200] {
//!     let weights = vec![step as u8; 1_000];
//!     snapshots.write(step, &[Section::new("weights", &weights), Section::new("state", b"{}")])?;
//! }
//!
//! let latest = snapshots.latest()?;
//! let snapshot = latest.snapshot.ok_or("nothing to go on from")?;
//! assert_eq!(snapshot.step(), 200);
//! assert_eq!(snapshot.section("state"), Some(&b"{}"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The format `rekindle.snapshot/1` is in `docs/snapshots.md`.

mod directory;
mod error;
mod format;
mod lock;
mod snapshot;

pub use directory::{Latest, Listed, Snapshots, Unusable, Written};
pub use error::{Damage, Doing, SnapshotError};
pub use format::SNAPSHOT_FORMAT;
pub use snapshot::{Metadata, Section, Snapshot};
