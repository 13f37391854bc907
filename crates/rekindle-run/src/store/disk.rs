//! Boundaries in a file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rekindle_plan::{Boundary, Bytes};
use rustix::io::Errno;
use xxhash_rust::xxh3::Xxh3;

use super::extents::{ALIGNMENT, Extents};
use super::private::PrivateDirectory;
use super::slabs::Label;
use super::transfers::{Log, Ticket, Worker};
use super::{Buffer, Parcel, Store, StoreError, Transfer, Way};

/// The file grows by this much, so that it does not grow at every step of the first passes.
const GROWTH: u64 = 64 << 20;
/// What is read or written at once: much for one call, little enough that its checksum finds it in the cache.
const PIECE: usize = 512 << 10;

/// One file for the boundaries of a run, in a directory of its own, with a thread that writes and one that reads.
/// Stores of one file share its limit.
///
/// The directory is made inside the one that is given, for this user only, and removed when the last handle is gone.
/// What a run that was killed left behind is removed when the next one starts there.
///
/// ```
/// use rekindle_plan::Bytes;
/// use rekindle_run::DiskFile;
///
/// let directory = tempfile::tempdir()?;
/// let file = DiskFile::open(directory.path(), Bytes::mebibytes(8))?;
/// file.reserve(Bytes::mebibytes(1))?; // a disk without room is found here, not in the middle of a step
/// let store = file.store();
/// let path = file.path().to_owned();
/// assert!(path.starts_with(directory.path()));
/// drop((file, store));
/// assert!(!path.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct DiskFile(Arc<Disk>);

/// Dropped in this order: the threads end before the file is removed.
#[derive(Debug)]
struct Disk {
    writer: Worker,
    reader: Worker,
    media: Arc<Media>,
    space: Mutex<Space>,
    limit: Bytes,
    directory: PrivateDirectory,
}

/// What the threads work with. They must not own what ends them.
#[derive(Debug)]
struct Media {
    file: File,
    path: PathBuf,
}

#[derive(Debug, Default)]
struct Space {
    extents: Extents,
    /// The bytes of all boundaries, without what rounding adds.
    used: Bytes,
    regions: u64,
}

/// A part of the file.
#[derive(Clone, Copy, Debug)]
struct Region {
    offset: u64,
    /// Of its boundary.
    length: u64,
}

impl Region {
    fn taken(self) -> u64 {
        self.length.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX)
    }
}

impl DiskFile {
    /// A new file inside `directory`, which must exist, for at most `limit` of boundaries.
    ///
    /// # Errors
    /// When the directory is not there, is not a directory or must not be written to.
    pub fn open(directory: impl AsRef<Path>, limit: Bytes) -> Result<Self, StoreError> {
        let (directory, file) = PrivateDirectory::create(directory.as_ref())?;
        let media = Media { file, path: directory.path().to_owned() };
        Ok(Self(Arc::new(Disk {
            writer: Worker::start("rekindle-write")?,
            reader: Worker::start("rekindle-read")?,
            media: Arc::new(media),
            space: Mutex::default(),
            limit,
            directory,
        })))
    }

    /// Makes sure that the disk has room for `bytes` of boundaries, now rather than in the middle of a step.
    ///
    /// # Errors
    /// When it has not, with what was needed and what was found.
    pub fn reserve(&self, bytes: Bytes) -> Result<(), StoreError> {
        let mut space = self.space();
        let wanted = bytes.get().checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
        let by = wanted.saturating_sub(space.extents.end());
        self.0.media.grow(&mut space.extents, by)
    }

    /// An empty store in this file.
    pub fn store(&self) -> DiskStore {
        DiskStore { disk: self.clone(), parcels: BTreeMap::new(), log: Log::default() }
    }

    /// What all its stores hold now.
    pub fn used(&self) -> Bytes {
        self.space().used
    }

    /// How long the file is.
    pub fn length(&self) -> Bytes {
        Bytes::new(self.space().extents.end())
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        self.0.directory.path()
    }

    fn space(&self) -> MutexGuard<'_, Space> {
        self.0.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A region for a boundary, in a file that will hold `replaced` less.
    fn allocate(&self, boundary: Boundary, length: u64, replaced: u64) -> Result<Region, StoreError> {
        let mut space = self.space();
        let limit = self.0.limit;
        let (others, needed) = (space.used.saturating_sub(Bytes::new(replaced)), Bytes::new(length));
        let full = StoreError::Full { boundary, needed, free: limit.saturating_sub(others), limit };
        if others.checked_add(needed).is_none_or(|total| total > limit) {
            return Err(full);
        }
        let mut region = Region { offset: 0, length };
        let taken = region.taken();
        if taken > 0 {
            region.offset = match space.extents.take(taken) {
                Some(offset) => offset,
                None => {
                    let missing = space.extents.missing(taken);
                    // The limit is of boundaries; every one of them may be rounded up. Holes between them are not
                    // made up for.
                    let rounding = ALIGNMENT.saturating_mul(space.regions + 1);
                    let most = limit.get().saturating_add(rounding).saturating_add(replaced);
                    let room = most.saturating_sub(space.extents.end());
                    if missing > room {
                        return Err(full);
                    }
                    let generous = GROWTH.min(limit.get() / 8).next_multiple_of(ALIGNMENT);
                    let generous = generous.min(room / ALIGNMENT * ALIGNMENT).max(missing);
                    let grown = self.0.media.grow(&mut space.extents, generous);
                    grown.or_else(|_| self.0.media.grow(&mut space.extents, missing))?;
                    space.extents.take(taken).ok_or(full)?
                }
            };
        }
        space.used = space.used.checked_add(needed).unwrap_or(Bytes::MAX);
        space.regions += 1;
        Ok(region)
    }

    fn release(&self, region: Region) {
        let mut space = self.space();
        space.used = space.used.saturating_sub(Bytes::new(region.length));
        space.regions = space.regions.saturating_sub(1);
        space.extents.give(region.offset, region.taken());
    }
}

impl Media {
    /// Makes the file longer, with the disk's promise that the room is there.
    fn grow(&self, extents: &mut Extents, by: u64) -> Result<(), StoreError> {
        if by == 0 {
            return Ok(());
        }
        let end = extents.end();
        let grown = match rustix::io::retry_on_intr(|| preallocate(&self.file, end, by)) {
            // A file system that cannot promise: a full disk is then found when it is written to.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => rustix::fs::ftruncate(&self.file, end.saturating_add(by)),
            other => other,
        };
        if let Err(error) = grown {
            let _ = rustix::fs::ftruncate(&self.file, end);
            return Err(self.failed("making room in", &error.into(), by));
        }
        extents.grow(by);
        Ok(())
    }

    /// Writes a parcel and drops it; its checksum.
    fn write(&self, region: Region, parcel: Parcel) -> Result<u64, StoreError> {
        let mut hash = Xxh3::new();
        let mut offset = region.offset;
        for tensor in parcel.tensors {
            for bytes in tensor.bytes.as_slice().chunks(PIECE) {
                hash.update(bytes);
                // Goes on after a short write and after a signal.
                let written = self.file.write_all_at(bytes, offset);
                written.map_err(|error| self.failed("writing to", &error, region.length))?;
                offset += bytes.len() as u64;
            }
        }
        Ok(hash.digest())
    }

    /// Reads a parcel's tensors, each into a buffer of its own: whoever imports it takes that memory over, so that what is
    /// read takes no more than a plan counts for a boundary that is on its way back.
    fn read(
        &self,
        boundary: Boundary,
        region: Region,
        lengths: &[usize],
        checksum: u64,
    ) -> Result<Vec<Buffer>, StoreError> {
        let damaged = |found: String, expected: String| StoreError::Damaged { boundary, found, expected };
        let mut hash = Xxh3::new();
        let mut offset = region.offset;
        let mut tensors = Vec::with_capacity(lengths.len());
        for length in lengths {
            let tensor = Buffer::filled(*length, PIECE, |piece| {
                let read = self.file.read_exact_at(piece, offset);
                read.map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof => {
                        let end = region.offset + region.length;
                        damaged("a shorter file".to_owned(), format!("at least {end} bytes"))
                    }
                    _ => self.failed("reading", &error, region.length),
                })?;
                hash.update(piece);
                offset += piece.len() as u64;
                Ok(())
            })?;
            tensors.push(tensor);
        }
        let found = hash.digest();
        match found == checksum {
            true => Ok(tensors),
            false => {
                Err(damaged(format!("the checksum {found:016x}"), format!("the checksum {checksum:016x}")))
            }
        }
    }

    fn failed(&self, doing: &'static str, error: &io::Error, needed: u64) -> StoreError {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                let found = rustix::fs::fstatvfs(&self.file);
                let found = found.map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize));
                let (needed, found) = (Bytes::new(needed), Bytes::new(found));
                StoreError::DiskFull { path: self.path.clone(), needed, found }
            }
            _ => StoreError::io(doing, &self.path, error),
        }
    }
}

#[cfg(target_os = "linux")]
fn preallocate(file: &File, offset: u64, length: u64) -> Result<(), Errno> {
    rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), offset, length)
}

#[cfg(not(target_os = "linux"))]
fn preallocate(_: &File, _: u64, _: u64) -> Result<(), Errno> {
    Err(Errno::OPNOTSUPP)
}

/// Boundaries in a file, each in one region of it, with a checksum.
///
/// ```
/// use rekindle_plan::{Boundary, Bytes};
/// use rekindle_run::{DiskStore, PackedTensor, Parcel, Store};
///
/// let directory = tempfile::tempdir()?;
/// let mut store = DiskStore::open(directory.path(), Bytes::mebibytes(8))?;
/// let tensor = PackedTensor { dtype: "u8".into(), shape: vec![3], bytes: vec![1, 2, 3].into() };
/// let parcel = Parcel { tensors: vec![tensor], structure: vec![] };
/// store.put(Boundary::new(1), parcel.clone())?;
/// assert_eq!(store.take(Boundary::new(1))?, parcel);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DiskStore {
    disk: DiskFile,
    parcels: BTreeMap<Boundary, Entry>,
    log: Log,
}

#[derive(Debug)]
struct Entry {
    label: Label,
    region: Region,
    written: Written,
    coming: Option<Ticket<Vec<Buffer>>>,
}

#[derive(Debug)]
enum Written {
    Going(Ticket<u64>),
    /// With this checksum.
    There(u64),
}

impl DiskStore {
    /// A store in a file of its own: see [`DiskFile::open`].
    ///
    /// # Errors
    /// When the directory cannot be used.
    pub fn open(directory: impl AsRef<Path>, limit: Bytes) -> Result<Self, StoreError> {
        Ok(DiskFile::open(directory, limit)?.store())
    }

    /// The file it is in.
    pub fn file(&self) -> &DiskFile {
        &self.disk
    }

    /// What it holds now.
    pub fn used(&self) -> Bytes {
        self.parcels.values().map(|entry| Bytes::new(entry.region.length)).sum()
    }

    /// The entry and its checksum, once it is written. One that could not be written is gone.
    fn settle(&mut self, boundary: Boundary) -> Result<(&mut Entry, u64), StoreError> {
        let absent = StoreError::Absent { boundary };
        let mut entry = self.parcels.remove(&boundary).ok_or(absent)?;
        let checksum = match entry.written {
            Written::There(checksum) => checksum,
            Written::Going(ticket) => match ticket.wait() {
                Ok(checksum) => checksum,
                Err(error) => {
                    self.disk.release(entry.region);
                    return Err(error);
                }
            },
        };
        entry.written = Written::There(checksum);
        Ok((self.parcels.entry(boundary).insert_entry(entry).into_mut(), checksum))
    }
}

impl Store for DiskStore {
    fn put(&mut self, boundary: Boundary, parcel: Parcel) -> Result<(), StoreError> {
        let replaced = self.parcels.get(&boundary).map_or(0, |entry| entry.region.length);
        let region = self.disk.allocate(boundary, parcel.bytes().get(), replaced)?;
        // Transfers run in the order they were brought, so a region may be given to the next while it is written.
        if let Some(old) = self.parcels.remove(&boundary) {
            self.disk.release(old.region);
        }
        let label = Label::of(&parcel);
        let (media, log) = (self.disk.0.media.clone(), self.log.clone());
        let written = self
            .disk
            .0
            .writer
            .run(move || log.timed(boundary, Way::Out, region.length, || media.write(region, parcel)));
        let entry = Entry { label, region, written: Written::Going(written), coming: None };
        self.parcels.insert(boundary, entry);
        Ok(())
    }

    fn wait(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        self.settle(boundary).map(|_| ())
    }

    fn prefetch(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        let (disk, log) = (self.disk.clone(), self.log.clone());
        let (entry, checksum) = self.settle(boundary)?;
        if entry.coming.is_none() {
            let (media, region) = (disk.0.media.clone(), entry.region);
            let lengths: Vec<usize> = entry.label.lengths().collect();
            entry.coming = Some(disk.0.reader.run(move || {
                log.timed(boundary, Way::Back, region.length, || {
                    media.read(boundary, region, &lengths, checksum)
                })
            }));
        }
        Ok(())
    }

    fn take(&mut self, boundary: Boundary) -> Result<Parcel, StoreError> {
        self.prefetch(boundary)?;
        let entry = self.parcels.get_mut(&boundary).ok_or(StoreError::Absent { boundary })?;
        let coming = entry.coming.take().ok_or(StoreError::Absent { boundary })?;
        Ok(entry.label.filled(coming.wait()?))
    }

    fn forget(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        let entry = self.parcels.remove(&boundary).ok_or(StoreError::Absent { boundary })?;
        self.disk.release(entry.region);
        Ok(())
    }

    fn transfers(&mut self) -> Vec<Transfer> {
        self.log.drain()
    }
}

impl Drop for DiskStore {
    fn drop(&mut self) {
        for entry in std::mem::take(&mut self.parcels).into_values() {
            self.disk.release(entry.region);
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::PackedTensor;

    #[test]
    fn a_disk_that_is_full_in_the_middle_of_a_write_says_so() {
        let path = PathBuf::from("/dev/full");
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let media = Media { file, path };
        let tensor = PackedTensor { dtype: "u8".into(), shape: vec![9], bytes: vec![1; 9].into() };
        let parcel = Parcel { tensors: vec![tensor], structure: vec![] };
        let error = media.write(Region { offset: 0, length: 9 }, parcel).unwrap_err();
        assert!(matches!(error, StoreError::DiskFull { needed, .. } if needed == Bytes::new(9)), "{error}");
    }
}
