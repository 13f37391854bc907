//! The directory of one training's snapshots.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata as FileMetadata, OpenOptions};
use std::io::{ErrorKind, Read, Seek};
use std::path::{Path, PathBuf};

use super::format;
use super::lock::Lock;
use super::{Damage, Doing, Metadata, Section, Snapshot, SnapshotError};

/// The snapshots of one training, in a directory that nobody else writes to as long as this value lives.
///
/// ```
/// use rekindle_run::snapshots::{Section, Snapshots};
///
/// # let folder = tempfile::tempdir()?;
/// # let directory = folder.path().join("run");
/// let mut snapshots = Snapshots::open(&directory, 2)?;
/// for step in 1..=5 {
///     snapshots.write(step, &[Section::new("weights", &[0; 16])])?;
/// }
/// let steps: Vec<u64> = snapshots.list()?.iter().map(|listed| listed.step).collect();
/// assert_eq!(steps, [4, 5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Snapshots {
    directory: PathBuf,
    keep: usize,
    /// Steps whose files were found not to be whole: the first to go.
    damaged: BTreeSet<u64>,
    stale: usize,
    _lock: Lock,
}

/// What there is to go on from.
///
/// ```
/// use rekindle_run::snapshots::Snapshots;
///
/// # let folder = tempfile::tempdir()?;
/// let latest = Snapshots::open(folder.path(), 2)?.latest()?;
/// for unusable in &latest.skipped {
///     eprintln!("{unusable}");
/// }
/// assert_eq!(latest.snapshot, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Latest {
    /// The newest whole snapshot; `None` when there is none.
    pub snapshot: Option<Snapshot>,
    /// Newer ones that could not be used, newest first: to be told to the user.
    pub skipped: Vec<Unusable>,
}

/// A snapshot that something was wrong with.
///
/// ```
/// use rekindle_run::snapshots::{Section, Snapshots};
///
/// # let folder = tempfile::tempdir()?;
/// let mut snapshots = Snapshots::open(folder.path(), 2)?;
/// let written = snapshots.write(8, &[Section::new("weights", &[0; 16])])?;
/// std::fs::write(&written.path, "something else")?;
/// let latest = snapshots.latest()?;
/// assert!(latest.skipped[0].to_string().contains("it is not a snapshot"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[error("the snapshot of step {step} was left alone: {error}")]
#[non_exhaustive]
pub struct Unusable {
    /// Its step.
    pub step: u64,
    /// What is wrong.
    #[source]
    pub error: SnapshotError,
}

/// A snapshot's file. Whether it is whole is not known before it is read.
///
/// ```
/// use rekindle_run::snapshots::{Section, Snapshots};
///
/// # let folder = tempfile::tempdir()?;
/// let mut snapshots = Snapshots::open(folder.path(), 2)?;
/// snapshots.write(3, &[Section::new("weights", &[0; 1_000])])?;
/// let listed = &snapshots.list()?[0];
/// assert!(listed.path.ends_with("step-0000000003.rekindle") && listed.bytes > 1_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// Its step.
    pub step: u64,
    /// Where it is.
    pub path: PathBuf,
    /// How long it is.
    pub bytes: u64,
}

/// A snapshot that was written and is safe.
///
/// ```
/// use rekindle_run::snapshots::{Section, Snapshots};
///
/// # let folder = tempfile::tempdir()?;
/// let mut snapshots = Snapshots::open(folder.path(), 1)?;
/// snapshots.write(1, &[Section::new("weights", &[0; 16])])?;
/// let written = snapshots.write(2, &[Section::new("weights", &[0; 16])])?;
/// assert_eq!(written.removed, [1]);
/// assert!(written.not_removed.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Written {
    /// Where it is.
    pub path: PathBuf,
    /// How long it is.
    pub bytes: u64,
    /// The steps of older ones that were removed.
    pub removed: Vec<u64>,
    /// Older ones that should have been removed and could not be.
    pub not_removed: Vec<Unusable>,
}

impl Snapshots {
    /// Opens a directory, making it when it is not there, and holds it against other trainings. Parts of snapshots that
    /// were left by one that was killed are removed. At most `keep_last` snapshots stay when one is written.
    ///
    /// # Errors
    /// When another training holds it, a link or a file is in its place, the system refuses, or none is to be kept.
    ///
    /// ```
    /// use rekindle_run::snapshots::{SnapshotError, Snapshots};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// let file = folder.path().join("notes.txt");
    /// std::fs::write(&file, "not a directory")?;
    /// assert!(matches!(Snapshots::open(&file, 3), Err(SnapshotError::WrongKind { found: "a file", .. })));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn open(directory: impl AsRef<Path>, keep_last: usize) -> Result<Self, SnapshotError> {
        if keep_last == 0 {
            return Err(SnapshotError::KeepNone);
        }
        // Without a slash at its end: through one the system would look behind a link.
        let directory: PathBuf = directory.as_ref().components().collect();
        make(&directory)?;
        let lock = Lock::take(&directory)?;
        let mut opened = Self { directory, keep: keep_last, damaged: BTreeSet::new(), stale: 0, _lock: lock };
        opened.stale = opened.remove_parts()?;
        Ok(opened)
    }

    /// The directory.
    ///
    /// ```
    /// # use rekindle_run::snapshots::Snapshots;
    /// # let folder = tempfile::tempdir()?;
    /// let snapshots = Snapshots::open(folder.path(), 3)?;
    /// assert_eq!(snapshots.directory(), folder.path());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// How many unfinished snapshots were there when the directory was opened, and removed.
    ///
    /// ```
    /// # use rekindle_run::snapshots::Snapshots;
    /// # let folder = tempfile::tempdir()?;
    /// std::fs::write(folder.path().join("step-0000000009.rekindle.part"), "half of it")?;
    /// assert_eq!(Snapshots::open(folder.path(), 3)?.unfinished(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unfinished(&self) -> usize {
        self.stale
    }

    /// Writes a snapshot without metadata. See [`Snapshots::write_with`].
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # use rekindle_run::snapshots::{Section, Snapshots};
    /// # let folder = tempfile::tempdir()?;
    /// # let mut snapshots = Snapshots::open(folder.path(), 3)?;
    /// let written = snapshots.write(100, &[Section::new("weights", &[1, 2, 3])])?;
    /// assert!(written.path.is_file());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write(&mut self, step: u64, sections: &[Section<'_>]) -> Result<Written, SnapshotError> {
        self.write_with(step, &Metadata::new(), sections)
    }

    /// Writes a snapshot, in place of one of the same step. When it returns, the disk has it, and the oldest beyond those
    /// to be kept are gone: those known to be damaged first, never the one just written.
    ///
    /// # Errors
    /// When a name is empty or there twice, or the system refuses: then the older snapshots are what they were, and
    /// nothing of the new one is left. Only when the directory cannot be synced or listed in the end, the new one is in
    /// its place already.
    ///
    /// ```
    /// # use rekindle_run::snapshots::{Metadata, Section, Snapshots};
    /// # let folder = tempfile::tempdir()?;
    /// # let mut snapshots = Snapshots::open(folder.path(), 3)?;
    /// let metadata = Metadata::from([("fingerprint".to_owned(), "xxh3-128:00".to_owned())]);
    /// snapshots.write_with(100, &metadata, &[Section::new("weights", &[1, 2, 3])])?;
    /// assert_eq!(snapshots.read(100)?.metadata(), &metadata);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_with(
        &mut self,
        step: u64,
        metadata: &Metadata,
        sections: &[Section<'_>],
    ) -> Result<Written, SnapshotError> {
        let head = format::head(step, metadata, sections)?;
        let path = self.path(step);
        let part = self.directory.join(format!("{}.part", name(step)));
        let written = write_part(&part, &head, sections)
            .and_then(|bytes| match fs::rename(&part, &path) {
                Ok(()) => Ok(bytes),
                Err(error) => Err(SnapshotError::io(Doing::Rename, &part)(error)),
            })
            .inspect_err(|_| drop(fs::remove_file(&part)));
        let bytes = written?;
        sync_directory(&self.directory)?;
        self.damaged.remove(&step);
        let (removed, not_removed) = self.remove_oldest(step)?;
        Ok(Written { path, bytes, removed, not_removed })
    }

    /// The newest snapshot that is whole, and those after it that are not.
    ///
    /// # Errors
    /// When the directory cannot be listed.
    ///
    /// ```
    /// # use rekindle_run::snapshots::{Section, Snapshots};
    /// # let folder = tempfile::tempdir()?;
    /// # let mut snapshots = Snapshots::open(folder.path(), 3)?;
    /// snapshots.write(1, &[Section::new("weights", &[1; 8])])?;
    /// let newest = snapshots.write(2, &[Section::new("weights", &[2; 8])])?;
    /// // Something happens to the newest.
    /// std::fs::OpenOptions::new().write(true).open(&newest.path)?.set_len(newest.bytes - 1)?;
    ///
    /// let latest = snapshots.latest()?;
    /// assert_eq!(latest.snapshot.map(|snapshot| snapshot.step()), Some(1));
    /// assert_eq!(latest.skipped[0].step, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn latest(&mut self) -> Result<Latest, SnapshotError> {
        let mut skipped = Vec::new();
        for Listed { step, path, .. } in self.list()?.into_iter().rev() {
            match read(&path, step) {
                Ok(snapshot) => return Ok(Latest { snapshot: Some(snapshot), skipped }),
                Err(error) => {
                    if matches!(error, SnapshotError::Damaged { .. }) {
                        self.damaged.insert(step);
                    }
                    skipped.push(Unusable { step, error });
                }
            }
        }
        Ok(Latest { snapshot: None, skipped })
    }

    /// The snapshot of a step.
    ///
    /// # Errors
    /// When there is none, or it is not whole.
    ///
    /// ```
    /// # use rekindle_run::snapshots::{SnapshotError, Snapshots};
    /// # let folder = tempfile::tempdir()?;
    /// # let snapshots = Snapshots::open(folder.path(), 3)?;
    /// let error = snapshots.read(7).unwrap_err();
    /// assert_eq!(error.to_string(), "there is no snapshot of step 7; there is none at all");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(&self, step: u64) -> Result<Snapshot, SnapshotError> {
        let listed = self.list()?;
        match listed.iter().find(|listed| listed.step == step) {
            Some(listed) => read(&listed.path, step),
            None => {
                let there = listed.iter().map(|listed| listed.step).collect();
                Err(SnapshotError::NoSuchStep { step, there })
            }
        }
    }

    /// All snapshots, oldest step first, without a look into them.
    ///
    /// # Errors
    /// When the directory cannot be listed.
    ///
    /// ```
    /// # use rekindle_run::snapshots::Snapshots;
    /// # let folder = tempfile::tempdir()?;
    /// assert!(Snapshots::open(folder.path(), 3)?.list()?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn list(&self) -> Result<Vec<Listed>, SnapshotError> {
        let mut listed = Vec::new();
        self.each_file(|file_name, path, found| {
            if let Some(step) = step_of(file_name) {
                listed.push(Listed { step, path, bytes: found.len() });
            }
            Ok(())
        })?;
        listed.sort_unstable_by_key(|listed| listed.step);
        Ok(listed)
    }

    fn path(&self, step: u64) -> PathBuf {
        self.directory.join(name(step))
    }

    /// Calls `look` for every file of the directory: links and the like are nobody's snapshots.
    fn each_file(
        &self,
        mut look: impl FnMut(&str, PathBuf, &FileMetadata) -> Result<(), SnapshotError>,
    ) -> Result<(), SnapshotError> {
        let failed = || SnapshotError::io(Doing::List, &self.directory);
        for entry in fs::read_dir(&self.directory).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            let file_name = entry.file_name();
            // A file that was removed meanwhile is not there.
            let (Some(file_name), Ok(found)) = (file_name.to_str(), entry.metadata()) else { continue };
            if found.is_file() {
                look(file_name, entry.path(), &found)?;
            }
        }
        Ok(())
    }

    /// Nobody else writes here, so whatever is unfinished stays so.
    fn remove_parts(&self) -> Result<usize, SnapshotError> {
        let mut count = 0;
        self.each_file(|file_name, path, _| {
            if file_name.strip_suffix(".part").is_some_and(|whole| step_of(whole).is_some()) {
                fs::remove_file(&path).map_err(SnapshotError::io(Doing::Remove, &path))?;
                count += 1;
            }
            Ok(())
        })?;
        Ok(count)
    }

    fn remove_oldest(&mut self, written: u64) -> Result<(Vec<u64>, Vec<Unusable>), SnapshotError> {
        let mut others = self.list()?;
        others.retain(|listed| listed.step != written);
        others.sort_by_key(|listed| (!self.damaged.contains(&listed.step), listed.step));
        let too_many = (others.len() + 1).saturating_sub(self.keep);
        let (mut removed, mut not_removed) = (Vec::new(), Vec::new());
        for Listed { step, path, .. } in others.into_iter().take(too_many) {
            match fs::remove_file(&path) {
                Ok(()) => {
                    self.damaged.remove(&step);
                    removed.push(step);
                }
                Err(error) => {
                    let error = SnapshotError::io(Doing::Remove, path)(error);
                    not_removed.push(Unusable { step, error });
                }
            }
        }
        Ok((removed, not_removed))
    }
}

/// Ten digits, so that a listing by name is one by step.
fn name(step: u64) -> String {
    format!("step-{step:010}.rekindle")
}

/// The step of a file's name; `None` for names that no snapshot has.
fn step_of(file_name: &str) -> Option<u64> {
    let step = file_name.strip_prefix("step-")?.strip_suffix(".rekindle")?.parse().ok()?;
    (name(step) == file_name).then_some(step)
}

pub(super) fn kind(found: &FileMetadata) -> &'static str {
    match found.file_type() {
        kind if kind.is_symlink() => "a symbolic link",
        kind if kind.is_dir() => "a directory",
        kind if kind.is_file() => "a file",
        _ => "no file",
    }
}

fn make(directory: &Path) -> Result<(), SnapshotError> {
    let look = || match fs::symlink_metadata(directory) {
        Ok(found) if found.is_dir() => Ok(true),
        Ok(found) => Err(SnapshotError::WrongKind {
            path: directory.to_owned(),
            found: kind(&found),
            expected: "a directory",
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(SnapshotError::io(Doing::List, directory)(error)),
    };
    if look()? {
        return Ok(());
    }
    fs::create_dir_all(directory).map_err(SnapshotError::io(Doing::Create, directory))?;
    if let Some(parent) = directory.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        sync_directory(parent)?;
    }
    look().map(|_| ())
}

/// Writes all of a snapshot and waits until the disk has it.
fn write_part(path: &Path, head: &[u8], sections: &[Section<'_>]) -> Result<u64, SnapshotError> {
    // One whose removal failed; a link is removed, not followed.
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(SnapshotError::io(Doing::Remove, path)(error));
        }
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    let mut file = file.map_err(SnapshotError::io(Doing::Create, path))?;
    let bytes = format::write(&mut file, head, sections).map_err(SnapshotError::io(Doing::Write, path))?;
    file.sync_all().map_err(SnapshotError::io(Doing::Sync, path))?;
    Ok(bytes)
}

/// A name is safe when the disk has the directory it is in.
fn sync_directory(directory: &Path) -> Result<(), SnapshotError> {
    // Elsewhere a directory cannot be opened as a file.
    if cfg!(unix) {
        let synced = File::open(directory).and_then(|opened| opened.sync_all());
        synced.map_err(SnapshotError::io(Doing::Sync, directory))?;
    }
    Ok(())
}

/// Reads a snapshot, and no more into memory than its head before its lengths are known to be right.
fn read(path: &Path, step: u64) -> Result<Snapshot, SnapshotError> {
    let failed = || SnapshotError::io(Doing::Read, path);
    let damaged = |damage| SnapshotError::Damaged { path: path.to_owned(), damage };
    let mut file = File::open(path).map_err(failed())?;
    let total = file.metadata().map_err(failed())?.len();
    format::look(&mut file, total).map_err(failed())?.map_err(damaged)?;
    file.rewind().map_err(failed())?;
    let mut bytes = Vec::new();
    // One more, which tells the end from a file that grows.
    let room = usize::try_from(total).ok().and_then(|total| total.checked_add(1));
    room.and_then(|room| bytes.try_reserve_exact(room).ok())
        .ok_or_else(|| SnapshotError::TooLarge { path: path.to_owned(), bytes: total })?;
    file.take(total.saturating_add(1)).read_to_end(&mut bytes).map_err(failed())?;
    let snapshot = Snapshot::from_vec(bytes).map_err(damaged)?;
    match snapshot.step() == step {
        true => Ok(snapshot),
        false => Err(damaged(Damage::Header {
            message: format!("it is of step {}, but its name says step {step}", snapshot.step()),
        })),
    }
}
