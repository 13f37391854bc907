//! One snapshot, read and checked.

use std::collections::BTreeMap;
use std::ops::Range;

use super::format::{self, Layout};
use super::{Damage, SnapshotError};

/// What else is known of a snapshot, in words: the model's fingerprint, the command's settings.
pub type Metadata = BTreeMap<String, String>;

/// A part of a snapshot: bytes under a name.
///
/// ```
/// use rekindle_run::snapshots::Section;
///
/// let section = Section::new("weights", &[1, 2, 3]);
/// assert_eq!(section.bytes.len(), 3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section<'a> {
    /// Its name, different from the others'.
    pub name: &'a str,
    /// What is in it.
    pub bytes: &'a [u8],
}

impl<'a> Section<'a> {
    /// `bytes` under a name.
    ///
    /// ```
    /// use rekindle_run::snapshots::Section;
    ///
    /// assert_eq!(Section::new("state", b"{}").name, "state");
    /// ```
    pub fn new(name: &'a str, bytes: &'a [u8]) -> Self {
        Self { name, bytes }
    }
}

/// A whole snapshot: every checksum was right when it was read.
///
/// ```
/// use rekindle_run::snapshots::{Metadata, Section, Snapshot};
///
/// let metadata = Metadata::from([("model".to_owned(), "gpt".to_owned())]);
/// let bytes = Snapshot::encode(7, &metadata, &[Section::new("weights", &[1, 2, 3])])?;
/// let snapshot = Snapshot::parse(&bytes)?;
/// assert_eq!(snapshot.step(), 7);
/// assert_eq!(snapshot.metadata()["model"], "gpt");
/// assert_eq!(snapshot.section("weights"), Some(&[1, 2, 3][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Snapshot {
    step: u64,
    metadata: Metadata,
    /// Names, and where their bytes are in `data`.
    sections: Vec<(String, Range<usize>)>,
    data: Vec<u8>,
}

impl Snapshot {
    /// The bytes of a snapshot, as they are in a file.
    ///
    /// # Errors
    /// When a name is empty or there twice, or names and metadata are too long.
    ///
    /// ```
    /// use rekindle_run::snapshots::{Metadata, Section, Snapshot};
    ///
    /// let bytes = Snapshot::encode(0, &Metadata::new(), &[])?;
    /// assert!(bytes.starts_with(b"rekindle.snapshot/1\n"));
    /// let twice = [Section::new("a", b""), Section::new("a", b"")];
    /// assert!(Snapshot::encode(0, &Metadata::new(), &twice).is_err());
    /// # Ok::<(), rekindle_run::snapshots::SnapshotError>(())
    /// ```
    pub fn encode(
        step: u64,
        metadata: &Metadata,
        sections: &[Section<'_>],
    ) -> Result<Vec<u8>, SnapshotError> {
        let head = format::head(step, metadata, sections)?;
        let mut bytes = Vec::new();
        // Writing to a vector does not fail.
        let _ = format::write(&mut bytes, &head, sections);
        Ok(bytes)
    }

    /// Reads a snapshot from its bytes. Nothing is allocated before its lengths are known to be right.
    ///
    /// # Errors
    /// When it is not whole, down to the last bit.
    ///
    /// ```
    /// use rekindle_run::snapshots::{Damage, Metadata, Section, Snapshot};
    ///
    /// let mut bytes = Snapshot::encode(1, &Metadata::new(), &[Section::new("weights", &[0; 64])])?;
    /// let last = bytes.len() - 17;
    /// bytes[last] ^= 1;
    /// assert_eq!(Snapshot::parse(&bytes), Err(Damage::Section { name: "weights".to_owned() }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parse(bytes: &[u8]) -> Result<Self, Damage> {
        let layout = format::check(bytes)?;
        Ok(Self::new(layout, bytes.to_vec()))
    }

    /// The same without a copy.
    ///
    /// # Errors
    /// When it is not whole.
    ///
    /// ```
    /// use rekindle_run::snapshots::{Metadata, Snapshot};
    ///
    /// let bytes = Snapshot::encode(1, &Metadata::new(), &[])?;
    /// assert_eq!(Snapshot::from_vec(bytes)?.step(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_vec(bytes: Vec<u8>) -> Result<Self, Damage> {
        let layout = format::check(&bytes)?;
        Ok(Self::new(layout, bytes))
    }

    fn new(layout: Layout, data: Vec<u8>) -> Self {
        Self { step: layout.step, metadata: layout.metadata, sections: layout.sections, data }
    }

    /// The step it was taken at.
    ///
    /// ```
    /// # use rekindle_run::snapshots::{Metadata, Snapshot};
    /// # let bytes = Snapshot::encode(42, &Metadata::new(), &[])?;
    /// assert_eq!(Snapshot::parse(&bytes)?.step(), 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn step(&self) -> u64 {
        self.step
    }

    /// What else is known of it.
    ///
    /// ```
    /// # use rekindle_run::snapshots::{Metadata, Snapshot};
    /// # let bytes = Snapshot::encode(42, &Metadata::new(), &[])?;
    /// assert!(Snapshot::parse(&bytes)?.metadata().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// A section's bytes; `None` when there is no such section.
    ///
    /// ```
    /// # use rekindle_run::snapshots::{Metadata, Section, Snapshot};
    /// # let bytes = Snapshot::encode(42, &Metadata::new(), &[Section::new("a", b"x")])?;
    /// let snapshot = Snapshot::parse(&bytes)?;
    /// assert_eq!((snapshot.section("a"), snapshot.section("b")), (Some(&b"x"[..]), None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn section(&self, name: &str) -> Option<&[u8]> {
        self.sections().find(|section| section.name == name).map(|section| section.bytes)
    }

    /// All sections, in the order they were given.
    ///
    /// ```
    /// # use rekindle_run::snapshots::{Metadata, Section, Snapshot};
    /// # let bytes = Snapshot::encode(42, &Metadata::new(), &[Section::new("b", b"x"), Section::new("a", b"y")])?;
    /// let snapshot = Snapshot::parse(&bytes)?;
    /// let names: Vec<&str> = snapshot.sections().map(|section| section.name).collect();
    /// assert_eq!(names, ["b", "a"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sections(&self) -> impl Iterator<Item = Section<'_>> {
        let bytes = |range: &Range<usize>| self.data.get(range.clone()).unwrap_or_default();
        self.sections.iter().map(move |(name, range)| Section { name, bytes: bytes(range) })
    }
}

/// Sizes rather than bytes: there may be gigabytes of them.
impl std::fmt::Debug for Snapshot {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sizes: BTreeMap<&str, usize> =
            self.sections().map(|section| (section.name, section.bytes.len())).collect();
        formatter
            .debug_struct("Snapshot")
            .field("step", &self.step)
            .field("metadata", &self.metadata)
            .field("sections", &sizes)
            .finish_non_exhaustive()
    }
}
