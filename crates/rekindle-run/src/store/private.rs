//! A directory that belongs to one run: locked while it lives, removed when it ends, or by whoever comes next.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, mkdirat, openat, unlinkat};
use rustix::io::Errno;

use super::StoreError;

const PREFIX: &str = "rekindle-offload-";
const FILE: &str = "boundaries";
/// How many names are tried before the directory is said to be unusable.
const TRIES: usize = 100;

static NEXT: AtomicU64 = AtomicU64::new(0);

/// The directory, with one file in it.
#[derive(Debug)]
pub(crate) struct PrivateDirectory {
    parent: OwnedFd,
    name: String,
    /// Holds the lock as long as it is open.
    directory: OwnedFd,
    path: PathBuf,
}

impl PrivateDirectory {
    /// A new directory inside `parent`, and the file in it. What crashed runs left in `parent` is removed first.
    ///
    /// Nothing is locked between two runs that start at once. Who finds its new directory locked or gone was taken for
    /// a leftover in the moment before it had the lock, and makes another.
    pub(crate) fn create(parent: &Path) -> Result<(Self, File), StoreError> {
        let failed = |doing, path: &Path, error: Errno| StoreError::io(doing, path, &error.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = rustix::fs::open(parent, flags, Mode::empty());
        let above = above.map_err(|error| failed("opening the directory", parent, error))?;
        remove_leftovers(&above, parent);
        let mut last = Errno::EXIST;
        for _ in 0..TRIES {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{PREFIX}{}-{number}", std::process::id());
            let path = parent.join(&name);
            match mkdirat(&above, &name, Mode::RWXU) {
                Ok(()) => {}
                // Of another run, or put there by somebody: never used.
                Err(Errno::EXIST) => continue,
                Err(error) => return Err(failed("making a directory in", parent, error)),
            }
            match claim(&above, &name) {
                Ok((directory, file)) => {
                    let parent = above;
                    return Ok((Self { parent, name, directory, path: path.join(FILE) }, file));
                }
                Err(error @ (Errno::WOULDBLOCK | Errno::NOENT | Errno::LOOP | Errno::NOTDIR)) => last = error,
                Err(error) => {
                    let _ = unlinkat(&above, &name, AtFlags::REMOVEDIR);
                    return Err(failed("making the file in", &path, error));
                }
            }
        }
        Err(failed("making a directory in", parent, last))
    }

    /// Where the file is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        // What cannot be removed now is removed at the next start.
        let _ = unlinkat(&self.directory, FILE, AtFlags::empty());
        let _ = unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR);
    }
}

fn open_directory(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

/// Locks a new directory and makes the file in it.
fn claim(parent: &OwnedFd, name: &str) -> Result<(OwnedFd, File), Errno> {
    let directory = open_directory(parent, name)?;
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        // A file system without locks: nobody else can take ours for a leftover either.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::BADF | Errno::INVAL | Errno::NOLCK) => {}
        Err(error) => return Err(error),
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&directory, FILE, flags, Mode::RUSR | Mode::WUSR)?;
    Ok((directory, file.into()))
}

/// Removes directories that no living run has locked. Only what a run makes is removed: a directory that holds anything
/// else stays, and so does a link.
fn remove_leftovers(parent: &OwnedFd, path: &Path) {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
        if !name.starts_with(PREFIX) {
            continue;
        }
        let Ok(directory) = open_directory(parent, &name) else { continue };
        if flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = unlinkat(&directory, FILE, AtFlags::empty());
            let _ = unlinkat(parent, &name, AtFlags::REMOVEDIR);
        }
    }
}
