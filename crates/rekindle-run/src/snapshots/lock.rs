//! One training for one directory.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::directory::kind;
use super::{Doing, SnapshotError};

const NAME: &str = "lock";

/// Holds the directory. The system lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing it would not do while this process starts another: that has the file as well, for a moment, and the lock with it.
        let _ = self.file.unlock();
    }
}

impl Lock {
    pub(super) fn take(directory: &Path) -> Result<Self, SnapshotError> {
        let path = directory.join(NAME);
        let mut file = open(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(SnapshotError::InUse { directory: directory.to_owned(), pid: holder(&mut file) });
            }
            Err(TryLockError::Error(error)) => return Err(SnapshotError::io(Doing::Lock, path)(error)),
        }
        // Only for the other's error. A disk that is full may not keep anyone from reading snapshots.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self { file })
    }
}

/// The lock's file, made when it is not there. It is never removed: who waits for it would hold a file that nobody else
/// sees.
fn open(path: &PathBuf) -> Result<File, SnapshotError> {
    // A file that must be new is not made through a link.
    match OpenOptions::new().read(true).write(true).create_new(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        made => return made.map_err(SnapshotError::io(Doing::Create, path)),
    }
    let found = fs::symlink_metadata(path).map_err(SnapshotError::io(Doing::Lock, path))?;
    if !found.is_file() {
        let found = kind(&found);
        return Err(SnapshotError::WrongKind { path: path.clone(), found, expected: "a file" });
    }
    OpenOptions::new().read(true).write(true).open(path).map_err(SnapshotError::io(Doing::Lock, path))
}

/// Who holds the lock, when it has said so already.
fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
