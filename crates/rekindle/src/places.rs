//! Where boundaries may lie besides the device: host memory, a disk, or on the device in fewer bytes.

use std::sync::{Arc, Mutex, PoisonError};

use rekindle_plan::{Action, Bytes, Codec, Name, Plan, Profile};
use rekindle_run::codec;
use rekindle_run::{
    Coded, Fault, HostPool, OwnMemory, PackedTensor, Parcel, Store, Stores, measure_codec, measure_store,
};

use crate::Error;

/// What a plan may use besides keeping and recomputing. Cheap to clone: clones share their memory and their file.
///
/// ```
/// use rekindle::{Bytes, Places};
///
/// let folder = std::env::temp_dir();
/// let places = Places::new().disk(&folder, Bytes::mebibytes(64))?.codec("bf16")?;
/// assert_eq!(places.names().collect::<Vec<_>>(), ["disk", "bf16"]);
/// # Ok::<(), rekindle::Error>(())
/// ```
///
/// Each place is measured when a plan is made ([`Planner::places`](crate::Planner::places)): how fast boundaries go there
/// and come back. The planner then chooses for every boundary whether it is kept, recomputed, moved or shrunk.
///
/// Moving a boundary changes no bit of it, and neither does a lossless codec. The others are used only when named here.
#[derive(Clone, Debug, Default)]
pub struct Places {
    host: Option<(HostPool, Bytes)>,
    #[cfg(unix)]
    disk: Option<(rekindle_run::DiskFile, Bytes)>,
    codecs: Vec<Name>,
    others: Vec<Other>,
    faults: FaultLog,
}

/// A place that somebody else has made.
#[derive(Clone)]
struct Other {
    name: Name,
    bytes_per_kibibyte: u32,
    make: Arc<dyn Fn() -> Box<dyn Store> + Send + Sync>,
}

impl std::fmt::Debug for Other {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Other").field(&self.name).finish()
    }
}

/// What went wrong in the places of a run.
pub(crate) type FaultLog = Arc<Mutex<Vec<Fault>>>;

/// Writes down what went wrong, up to a number that somebody might read.
pub(crate) fn note_faults(log: &FaultLog, faults: &[Fault]) {
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    let room = 1000_usize.saturating_sub(log.len());
    log.extend(faults.iter().take(room).cloned());
}

/// How often a place is tried when it is measured.
const RUNS: usize = 5;

impl Places {
    /// No place but the device.
    pub fn new() -> Self {
        Self::default()
    }

    /// Up to `limit` of host memory, as the tier `host`. Of use for a device with memory of its own; a plan for any other
    /// refuses it.
    #[must_use]
    pub fn host(mut self, limit: Bytes) -> Self {
        self.host = Some((HostPool::new(limit), limit));
        self
    }

    /// A file of up to `limit` in a private folder inside `directory`, as the tier `disk`. It is removed with the last
    /// clone, and after a crash by the next run that uses the directory.
    ///
    /// # Errors
    /// When the directory is not there or must not be written to.
    #[cfg(unix)]
    pub fn disk(mut self, directory: impl AsRef<std::path::Path>, limit: Bytes) -> Result<Self, Error> {
        let file = rekindle_run::DiskFile::open(directory, limit);
        let file = file.map_err(|source| Error::Place { place: "disk".to_owned(), source })?;
        self.disk = Some((file, limit));
        Ok(self)
    }

    /// A codec: `bf16`, `f16`, `int8`, `int4` and `top-k` lose digits, `lz4` and `zstd` do not; `lossless` is the best of
    /// these.
    ///
    /// # Errors
    /// When there is no codec of this name.
    pub fn codec(mut self, name: &str) -> Result<Self, Error> {
        let name = if name == "lossless" { LOSSLESS } else { name };
        let known = name.parse::<Name>().ok().filter(|name| codec::by_name(name).is_some());
        let Some(name) = known else {
            return Err(Error::UnknownCodec { found: name.to_owned(), known: CODECS });
        };
        if !self.codecs.contains(&name) {
            self.codecs.push(name);
        }
        Ok(self)
    }

    /// A store of your own, which holds boundaries in memory that counts as the device's, but less of it: `bytes_per_kibibyte` of
    /// 1,024, at most, and without losing a digit. Plans use it as they use a codec, but ask for a boundary
    /// ([`Store::prefetch`]) before the backward that goes before the one it is for, wherever the budget has room for both. `make` makes
    /// an empty one for each run of a region.
    ///
    /// ```
    /// use rekindle::{Bytes, Places};
    /// use rekindle_run::HostPool;
    ///
    /// // As if it were half.
    /// let pool = HostPool::new(Bytes::mebibytes(64));
    /// let places = Places::new().shrinking("half".parse()?, 512, move || Box::new(pool.store()));
    /// assert_eq!(places.names().collect::<Vec<_>>(), ["half"]);
    /// # Ok::<(), rekindle_plan::ParseNameError>(())
    /// ```
    #[must_use]
    pub fn shrinking(
        mut self,
        name: Name,
        bytes_per_kibibyte: u32,
        make: impl Fn() -> Box<dyn Store> + Send + Sync + 'static,
    ) -> Self {
        self.others.retain(|other| other.name != name);
        self.others.push(Other { name, bytes_per_kibibyte, make: Arc::new(make) });
        self
    }

    /// What plans call them.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let tiers = [self.host.as_ref().map(|_| HOST), self.disk_limit().map(|_| DISK)];
        let codecs = self.codecs.iter().map(Name::as_str);
        let others = self.others.iter().map(|other| other.name.as_str());
        tiers.into_iter().flatten().chain(codecs).chain(others)
    }

    /// What went wrong in them since this was last asked: a full disk, a damaged file; and how the boundary was had all the same
    /// ([`Fault::remedy`]). The steps went on, and their gradients are right: what was lost was computed again, or kept on the device,
    /// which then took more than planned.
    pub fn take_faults(&self) -> Vec<Fault> {
        std::mem::take(&mut self.faults.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn fault_log(&self) -> FaultLog {
        self.faults.clone()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.names().next().is_none()
    }

    /// The profile with these places instead of its own, as fast as they are now.
    ///
    /// # Errors
    /// When a place cannot be used: host memory on a device that has no other, a full disk.
    pub fn measure(&self, profile: Profile) -> Result<Profile, Error> {
        if self.host.is_some() && matches!(profile.device(), "flex" | "ndarray") {
            return Err(Error::HostIsDevice { device: profile.device().to_owned() });
        }
        let size = usual_size(&profile);
        let mut tiers = Vec::new();
        for (name, mut store, limit) in self.tiers() {
            let speed = measure_store(store.as_mut(), &[size.min(limit)], RUNS);
            let speed = speed.map_err(|source| Error::Place { place: name.to_owned(), source })?;
            tiers.extend(name.parse().ok().map(|name| speed.tier(name, limit)));
        }
        let sample = sample(size);
        let mut codecs = Vec::new();
        for name in &self.codecs {
            let Some(codec) = codec::by_name(name) else { continue };
            let speed = measure_codec(codec.as_ref(), &sample, RUNS)
                .map_err(|error| Error::Run { reason: error.to_string() })?;
            let mut found = speed.codec(name.clone());
            if codec.encoded_length(1024).is_none() {
                // How small it gets depends on the values: room for boundaries that are harder than the sample.
                let careful = u64::from(found.bytes_per_kibibyte) * 17 / 16 + 1;
                found.bytes_per_kibibyte = u32::try_from(careful).unwrap_or(u32::MAX);
            }
            codecs.push(found);
        }
        for other in &self.others {
            let speed = measure_store((other.make)().as_mut(), &[size], RUNS);
            let speed = speed.map_err(|source| Error::Place { place: other.name.to_string(), source })?;
            codecs.push(Codec {
                name: other.name.clone(),
                bytes_per_kibibyte: other.bytes_per_kibibyte,
                compress_bytes_per_second: speed.write_bytes_per_second,
                restore_bytes_per_second: speed.read_bytes_per_second,
            });
        }
        profile.with_places(tiers, codecs).map_err(|error| Error::Run { reason: error.to_string() })
    }

    /// Empty stores for one run of a region.
    pub(crate) fn stores(&self) -> Stores {
        let tiers = self.tiers().into_iter().filter_map(|(name, store, _)| Some((name.parse().ok()?, store)));
        let codecs = self.codecs.iter().filter_map(|name| {
            // In the device's memory, which the plan counts.
            let store = Coded::boxed(codec::by_name(name)?, Box::new(OwnMemory::new()));
            Some((name.clone(), Box::new(store) as Box<dyn Store>))
        });
        let others = self.others.iter().map(|other| (other.name.clone(), (other.make)()));
        tiers.chain(codecs).chain(others).collect()
    }

    /// Whether a plan's codec is a store of somebody's own.
    pub(crate) fn has_other(&self, name: &Name) -> bool {
        self.others.iter().any(|other| other.name == *name)
    }

    fn tiers(&self) -> Vec<(&'static str, Box<dyn Store>, Bytes)> {
        let mut tiers = Vec::new();
        if let Some((pool, limit)) = &self.host {
            tiers.push((HOST, Box::new(pool.store()) as Box<dyn Store>, *limit));
        }
        #[cfg(unix)]
        if let Some((file, limit)) = &self.disk {
            tiers.push((DISK, Box::new(file.store()), *limit));
        }
        tiers
    }

    #[cfg(unix)]
    fn disk_limit(&self) -> Option<Bytes> {
        self.disk.as_ref().map(|(_, limit)| *limit)
    }

    #[cfg(not(unix))]
    fn disk_limit(&self) -> Option<Bytes> {
        None
    }

    /// Makes sure that a disk has room for all that `plan` puts there at once, at most: now, rather than in the middle of a step.
    /// A [`Planner`](crate::Planner) does so itself; it is for plans that come from a file.
    ///
    /// # Errors
    /// When the disk has less.
    pub fn reserve(&self, profile: &Profile, plan: &Plan) -> Result<(), Error> {
        #[cfg(unix)]
        if let Some((file, limit)) = &self.disk {
            let moved = plan.actions.iter().filter_map(|action| match action {
                Action::Offload { boundary, tier } if tier.as_str() == DISK => {
                    profile.boundary_bytes(*boundary)
                }
                _ => None,
            });
            let bytes = moved.sum::<Bytes>().min(*limit);
            file.reserve(bytes).map_err(|source| Error::Place { place: DISK.to_owned(), source })?;
        }
        Ok(())
    }
}

const HOST: &str = "host";
const DISK: &str = "disk";
const LOSSLESS: &str = if cfg!(feature = "zstd") { "zstd" } else { "lz4" };
const CODECS: &str = if cfg!(feature = "zstd") {
    "bf16, f16, int8, int4, top-k, lz4, zstd, lossless"
} else {
    "bf16, f16, int8, int4, top-k, lz4, lossless"
};

/// The lossy codecs that a plan uses, each once.
pub(crate) fn lossy_codecs(plan: &Plan) -> Vec<Name> {
    let mut names: Vec<Name> = Vec::new();
    for action in &plan.actions {
        if let Action::Compress { codec: name, .. } = action
            && !names.contains(name)
            && codec::by_name(name).is_none_or(|codec| !codec.is_lossless())
        {
            names.push(name.clone());
        }
    }
    names
}

/// The size that most of a model's boundaries have.
fn usual_size(profile: &Profile) -> Bytes {
    let mut sizes: Vec<Bytes> = profile.stages().iter().map(|stage| stage.output_bytes).collect();
    sizes.sort_unstable();
    sizes.get(sizes.len() / 2).copied().unwrap_or_default().max(Bytes::new(4 << 10))
}

/// Numbers as activations are: around zero, most of them small, and with random digits.
fn sample(size: Bytes) -> Parcel {
    let count = (size.get() / 4) as usize;
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 16_777_216.0
    };
    // A sum of four is close enough to a bell.
    let values = (0..count).map(|_| (0..4).map(|_| uniform()).sum::<f32>() - 2.0);
    let bytes: Vec<u8> = values.flat_map(f32::to_ne_bytes).collect();
    let tensor = PackedTensor { dtype: "f32".to_owned(), shape: vec![count], bytes: bytes.into() };
    Parcel { tensors: vec![tensor], structure: Vec::new() }
}
