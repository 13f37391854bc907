//! What can go wrong with snapshots.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::SNAPSHOT_FORMAT;

/// Why a snapshot cannot be written or read.
///
/// ```
/// use rekindle_run::snapshots::{SnapshotError, Snapshots};
///
/// # let folder = tempfile::tempdir()?;
/// let _first = Snapshots::open(folder.path(), 3)?;
/// let error = Snapshots::open(folder.path(), 3).unwrap_err();
/// assert!(matches!(error, SnapshotError::InUse { pid: Some(pid), .. } if pid == std::process::id()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Another training writes there.
    #[error("`{}` is in use by another training{}; wait for it, stop it, or choose another directory", directory.display(), named(*pid))]
    InUse {
        /// The directory.
        directory: PathBuf,
        /// The other's process, when it has said so.
        pid: Option<u32>,
    },
    /// A link or a file lies where the directory should be, or something else where a file should be.
    #[error("`{}` is {found}, expected {expected}; remove it, or choose another directory", path.display())]
    WrongKind {
        /// The path.
        path: PathBuf,
        /// What is there.
        found: &'static str,
        /// What should be there.
        expected: &'static str,
    },
    /// No snapshot was to be kept.
    #[error("0 snapshots were to be kept, expected at least 1")]
    KeepNone,
    /// A section cannot be written under its name.
    #[error("the section name `{name}` is {problem}; give every section a name of its own")]
    SectionName {
        /// The name.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Names and metadata take too much.
    #[error(
        "the names and metadata of the snapshot take {found} bytes, at most {most} are allowed; large things belong in sections"
    )]
    HeaderTooLarge {
        /// What they take.
        found: u64,
        /// What they may take.
        most: u64,
    },
    /// There is no snapshot of that step.
    #[error("there is no snapshot of step {step}; {}", the_others(there))]
    NoSuchStep {
        /// The step.
        step: u64,
        /// The steps there are snapshots of.
        there: Vec<u64>,
    },
    /// A file is not a whole snapshot.
    #[error("`{}` cannot be used: {damage}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        damage: Damage,
    },
    /// The snapshot does not fit into memory.
    #[error("`{}` takes {bytes} bytes, and there is not so much memory", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// The system refused.
    #[error("{doing} `{}` failed: {source}", path.display())]
    Io {
        /// What was tried.
        doing: Doing,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

fn named(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

fn the_others(there: &[u64]) -> String {
    match there {
        [] => "there is none at all".to_owned(),
        [only] => format!("there is one of step {only}"),
        [first, .., last] => format!("there are {} from step {first} to step {last}", there.len()),
    }
}

impl SnapshotError {
    pub(super) fn io(doing: Doing, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { doing, path, source }
    }
}

/// What was tried when the system refused.
///
/// ```
/// use rekindle_run::snapshots::Doing;
///
/// assert_eq!(Doing::Write.to_string(), "writing");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Doing {
    /// Making a directory or a file.
    Create,
    /// Locking.
    Lock,
    /// Looking into a directory.
    List,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Giving a finished file its name.
    Rename,
    /// Having the disk take it.
    Sync,
    /// Removing.
    Remove,
}

impl fmt::Display for Doing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Create => "creating",
            Self::Lock => "locking",
            Self::List => "listing",
            Self::Read => "reading",
            Self::Write => "writing",
            Self::Rename => "renaming",
            Self::Sync => "syncing",
            Self::Remove => "removing",
        })
    }
}

/// Why bytes are not a whole snapshot.
///
/// ```
/// use rekindle_run::snapshots::{Damage, Snapshot};
///
/// assert_eq!(Snapshot::parse(b"PNG"), Err(Damage::NotASnapshot));
/// let error = Snapshot::parse(b"rekindle.snapshot/2\n...").unwrap_err();
/// assert_eq!(error, Damage::Version { found: "rekindle.snapshot/2".to_owned() });
/// assert_eq!(error.to_string(), "it has the format rekindle.snapshot/2, expected rekindle.snapshot/1");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// It does not begin like one.
    #[error("it is not a snapshot: it does not begin with `{SNAPSHOT_FORMAT}`")]
    NotASnapshot,
    /// It is of another version.
    #[error("it has the format {found}, expected {SNAPSHOT_FORMAT}")]
    Version {
        /// The format it names.
        found: String,
    },
    /// It is shorter or longer than it says.
    #[error("it has {found} bytes, expected {expected}: it was cut off, or something was added")]
    Length {
        /// How long it should be.
        expected: u64,
        /// How long it is.
        found: u64,
    },
    /// The header is not one.
    #[error("its header cannot be read: {message}")]
    Header {
        /// What was found and what was expected.
        message: String,
    },
    /// A section is not what was written.
    #[error("its section `{name}` was damaged: the checksum does not match")]
    Section {
        /// Which.
        name: String,
    },
    /// Something else is not what was written.
    #[error("it was damaged: the checksum of the whole does not match")]
    Whole,
}
