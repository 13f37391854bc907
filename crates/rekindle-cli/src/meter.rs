//! The memory of a run: what the allocator counts, or what the pool of its device says.
//!
//! There is one device in a run, so there is one meter in a process.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use burn::tensor::Device;
use rekindle::Bytes;
use rekindle::memory::{self, PoolWatch};

/// The device whose pool is looked at; nothing while the allocator counts.
static POOL: OnceLock<Pool> = OnceLock::new();

struct Pool {
    device: Device,
    /// Who looks for the peak, while somebody asks for it.
    watch: Mutex<Option<PoolWatch>>,
}

impl Pool {
    fn watch(&self) -> MutexGuard<'_, Option<PoolWatch>> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn usage(&self) -> (Bytes, Bytes) {
        let usage = self.device.memory_pool_usage().unwrap_or_default();
        (Bytes::new(usage.bytes_in_use), Bytes::new(usage.bytes_reserved))
    }
}

/// From now on tells of the memory of this device.
pub(crate) fn tell_of(device: &Device) {
    if device.memory_pool_usage().is_some() {
        POOL.get_or_init(|| Pool { device: device.clone(), watch: Mutex::new(None) });
    }
}

/// Whether a pool is looked at: from time to time, which takes time of the device.
pub(crate) fn is_pool() -> bool {
    POOL.get().is_some()
}

/// The bytes in use now.
pub(crate) fn live() -> Bytes {
    match POOL.get() {
        Some(pool) => pool.usage().0,
        None => memory::live().unwrap_or_default(),
    }
}

/// What a pool has taken of its device, in use or not; nothing where there is none.
pub(crate) fn reserved() -> Option<Bytes> {
    POOL.get().map(|pool| pool.usage().1)
}

/// The most bytes in use since [`reset_peak`]; of a pool, the most that were seen.
pub(crate) fn peak() -> Bytes {
    match POOL.get() {
        Some(pool) => pool.watch().as_ref().map_or_else(|| pool.usage().0, PoolWatch::peak),
        None => memory::peak().unwrap_or_default(),
    }
}

/// Starts to look for the peak anew.
pub(crate) fn reset_peak() {
    match POOL.get() {
        Some(pool) => {
            let mut watch = pool.watch();
            match &*watch {
                Some(watch) => watch.reset(),
                None => *watch = PoolWatch::start(&pool.device),
            }
        }
        None => memory::reset_peak(),
    }
}

/// Starts to look for the peak of many steps: seldom enough that they are as fast as without.
pub(crate) fn look_now_and_then() {
    match POOL.get() {
        Some(pool) => *pool.watch() = PoolWatch::every(SELDOM, &pool.device),
        None => memory::reset_peak(),
    }
}

const SELDOM: Duration = Duration::from_millis(2);

/// Stops to look for the peak, where that takes time.
pub(crate) fn rest() {
    if let Some(pool) = POOL.get() {
        *pool.watch() = None;
    }
}

/// Has the threads make what they keep for good, so that no step seems to take it. A pool knows nothing of that.
pub(crate) fn make_scratch() {
    if !is_pool() {
        memory::make_scratch();
    }
}

/// Gives what a pool has in reserve back to its device, so that what it takes next is what is needed.
pub(crate) fn give_back() {
    if let Some(pool) = POOL.get() {
        finish();
        pool.device.memory_cleanup();
    }
}

/// Waits until the device has done what it was told. The processor has.
pub(crate) fn finish() {
    if let Some(pool) = POOL.get() {
        // A device that fails says so to whoever reads from it next.
        let _ = pool.device.sync();
    }
}
