//! The memory that Linux says this process could still take.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rekindle_plan::Bytes;

use super::memory_files::{self, Mount, Version};
use super::{Gauge, Pressure, Reading, Source};

/// The memory that this process could still take on Linux: the least of what the machine has available and of what its
/// control group, and every group above it, has left below its limit.
///
/// A group's page cache that is not in use counts as free, because the kernel drops it first. Both versions of control
/// groups are read, wherever they are mounted. Pressure is the highest of the machine's and the group's. Each of these
/// files may be missing; on other systems all of them are, and the reading is unknown.
///
/// ```
/// use rekindle_run::governor::{Gauge, SystemMemory};
///
/// let reading = SystemMemory::new().read();
/// assert_eq!(reading.free.is_some(), cfg!(target_os = "linux"));
/// ```
#[derive(Clone, Debug)]
pub struct SystemMemory {
    root: PathBuf,
}

impl SystemMemory {
    /// The memory of this process's machine.
    ///
    /// ```
    /// use rekindle_run::governor::{Gauge, SystemMemory};
    ///
    /// println!("{}", SystemMemory::new().read());
    /// ```
    pub fn new() -> Self {
        Self::at("/")
    }

    /// The same with all files under `root`, which is a machine's root directory or a copy of its files.
    ///
    /// ```
    /// use rekindle_run::governor::{Gauge, Reading, SystemMemory};
    ///
    /// assert_eq!(SystemMemory::at("/there/is/no/such/root").read(), Reading::default());
    /// ```
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// A file by its path from the root.
    fn file(&self, path: &str) -> Option<String> {
        text(&self.root.join(path.trim_start_matches('/')))
    }

    /// The process's group that counts memory, and all above it up to where they are mounted.
    fn groups(&self, version: Version) -> Vec<PathBuf> {
        let listed = self.file("/proc/self/cgroup").unwrap_or_default();
        let Some(path) = memory_files::group_path(&listed, version) else { return Vec::new() };
        let mounts = self.file("/proc/self/mountinfo").unwrap_or_default();
        let mount = memory_files::mount(&mounts, version).unwrap_or_else(|| usual(version));
        let top = self.root.join(mount.point.trim_start_matches('/'));
        let own = top.join(memory_files::below(path, &mount.root));
        own.ancestors().take_while(|group| group.starts_with(&top)).map(Path::to_path_buf).collect()
    }
}

impl Default for SystemMemory {
    fn default() -> Self {
        Self::new()
    }
}

impl Gauge for SystemMemory {
    fn read(&mut self) -> Reading {
        let meminfo = self.file("/proc/meminfo").unwrap_or_default();
        let mut reading = Reading {
            free: memory_files::meminfo(&meminfo, "MemAvailable"),
            total: memory_files::meminfo(&meminfo, "MemTotal"),
            source: Source::Machine,
            pressure: self.file("/proc/pressure/memory").and_then(|text| memory_files::pressure(&text)),
        };
        if reading.free.is_none() {
            (reading.total, reading.source) = (None, Source::Unnamed);
        }
        for version in [Version::Two, Version::One] {
            let groups = self.groups(version);
            let own = groups.first().and_then(|group| pressure(group));
            reading.pressure = reading.pressure.max(own);
            for group in groups {
                reading = reading.tightest(left(&group, version));
            }
        }
        reading
    }
}

/// Where a version's groups are when nobody says.
fn usual(version: Version) -> Mount {
    let point = match version {
        Version::One => "/sys/fs/cgroup/memory",
        Version::Two => "/sys/fs/cgroup",
    };
    Mount { root: "/".to_owned(), point: point.to_owned() }
}

/// What a group has left below its limit; unknown when it has none.
fn left(group: &Path, version: Version) -> Reading {
    let amount = |name: &str| memory_files::amount(&text(&group.join(name))?);
    let limit = version.limits().iter().filter_map(|name| amount(name)).min();
    let Some((limit, used)) = limit.zip(amount(version.usage())) else { return Reading::default() };
    let stat = text(&group.join("memory.stat")).unwrap_or_default();
    let used = used.saturating_sub(memory_files::reclaimable(&stat).unwrap_or_default());
    let free = limit.saturating_sub(used);
    Reading { free: Some(free), total: Some(limit), source: Source::ControlGroup, pressure: None }
}

fn pressure(group: &Path) -> Option<Pressure> {
    memory_files::pressure(&text(&group.join("memory.pressure"))?)
}

/// The kernel's files about memory are small; whatever else lies at their place is not read to its end.
const MOST: Bytes = Bytes::mebibytes(1);

fn text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MOST.get()).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
