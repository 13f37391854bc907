//! Live and peak bytes: counted on backends that use the process's allocator, such as `flex`, and looked up on those that have
//! a pool of their own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use burn::tensor::Device;
use rekindle_plan::Bytes;
use rekindle_run::governor::{Gauge, SystemMemory};

static INSTALLED: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicUsize = AtomicUsize::new(0);
/// The peak of the running lap, and of all laps before it since [`reset_peak`].
static PEAK: AtomicUsize = AtomicUsize::new(0);
static EARLIER: AtomicUsize = AtomicUsize::new(0);

/// A global allocator that counts, around another one.
///
/// ```
/// use rekindle::memory::{self, CountingAllocator};
///
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator = CountingAllocator::system();
///
/// let before = memory::live().unwrap();
/// memory::reset_peak();
/// drop(vec![0u8; 1 << 20]);
/// assert!(memory::peak().unwrap().get() >= before.get() + (1 << 20));
/// assert!(memory::live().unwrap().get() < before.get() + (1 << 20));
/// ```
#[derive(Debug, Default)]
pub struct CountingAllocator<A = System>(A);

impl CountingAllocator {
    /// Counts what the system's allocator hands out.
    pub const fn system() -> Self {
        Self(System)
    }
}

impl<A> CountingAllocator<A> {
    /// Counts what `allocator` hands out.
    pub const fn around(allocator: A) -> Self {
        Self(allocator)
    }
}

fn grown(bytes: usize) {
    INSTALLED.store(true, Relaxed);
    let live = LIVE.fetch_add(bytes, Relaxed) + bytes;
    // Most allocations are no new peak: look before writing, so that threads do not fight over the line.
    if live > PEAK.load(Relaxed) {
        PEAK.fetch_max(live, Relaxed);
    }
}

fn shrunk(bytes: usize) {
    LIVE.fetch_sub(bytes, Relaxed);
}

#[allow(unsafe_code)]
// SAFETY: every call is handed on unchanged to the allocator inside; counting touches no memory it hands out.
unsafe impl<A: GlobalAlloc> GlobalAlloc for CountingAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those `alloc` asks for.
        let pointer = unsafe { self.0.alloc(layout) };
        if !pointer.is_null() {
            grown(layout.size());
        }
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for `alloc`.
        let pointer = unsafe { self.0.alloc_zeroed(layout) };
        if !pointer.is_null() {
            grown(layout.size());
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from the allocator inside, with this layout.
        unsafe { self.0.dealloc(pointer, layout) };
        shrunk(layout.size());
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as for `dealloc`; the size is the caller's.
        let moved = unsafe { self.0.realloc(pointer, layout, size) };
        if !moved.is_null() {
            // While it moves, both blocks exist.
            grown(size);
            shrunk(layout.size());
        }
        moved
    }
}

/// The bytes allocated now; `None` when no [`CountingAllocator`] is installed.
pub fn live() -> Option<Bytes> {
    counted(&LIVE)
}

/// The most bytes allocated at once since [`reset_peak`]; `None` when no [`CountingAllocator`] is installed.
pub fn peak() -> Option<Bytes> {
    counted(&PEAK).max(counted(&EARLIER))
}

fn counted(counter: &AtomicUsize) -> Option<Bytes> {
    INSTALLED.load(Relaxed).then(|| Bytes::new(counter.load(Relaxed) as u64))
}

/// Starts to look for the peak anew.
pub fn reset_peak() {
    EARLIER.store(0, Relaxed);
    PEAK.store(LIVE.load(Relaxed), Relaxed);
}

/// The peak since the last lap, which leaves [`peak`] as it is; `None` when no [`CountingAllocator`] is installed.
pub(crate) fn lap() -> Option<Bytes> {
    let lap = PEAK.swap(LIVE.load(Relaxed), Relaxed);
    EARLIER.fetch_max(lap, Relaxed);
    INSTALLED.load(Relaxed).then(|| Bytes::new(lap as u64))
}

/// Looks for the peak of a device's own pool, such as that of a GPU, from a thread of its own.
///
/// Burn tells what a pool has in use at the moment, and no peak. So this asks again and again while the device works. What is
/// allocated and freed between two looks is missed: the peak is a lower bound, and the looks take time of the thread that
/// hands work to the device. It stops when it is dropped.
#[derive(Debug)]
pub struct PoolWatch {
    shared: Arc<PoolShared>,
    looking: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct PoolShared {
    device: Device,
    /// Held while looking, so that nothing seen before a reset counts after it.
    peak: Mutex<u64>,
    stop: AtomicBool,
}

impl PoolShared {
    fn peak(&self) -> MutexGuard<'_, u64> {
        self.peak.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn in_use(&self) -> u64 {
        self.device.memory_pool_usage().map_or(0, |pool| pool.bytes_in_use)
    }

    fn look(&self) {
        let mut peak = self.peak();
        *peak = self.in_use().max(*peak);
    }
}

impl PoolWatch {
    /// Begins to look, as often as it can; `None` on a device without a pool, such as `flex`, and where no thread can be
    /// started.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use rekindle::memory::PoolWatch;
    ///
    /// assert!(PoolWatch::start(&Device::flex()).is_none());
    /// ```
    pub fn start(device: &Device) -> Option<Self> {
        // The system makes it some 60 microseconds: much less than a kernel of any size takes.
        Self::every(Duration::from_micros(5), device)
    }

    /// The same, with a pause between two looks: for runs that are not to become slower.
    pub fn every(pause: Duration, device: &Device) -> Option<Self> {
        device.memory_pool_usage()?;
        let shared = Arc::new(PoolShared {
            device: device.clone(),
            peak: Mutex::new(0),
            stop: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&shared);
        let looking = std::thread::Builder::new().name("pool".to_owned()).spawn(move || {
            while !theirs.stop.load(Relaxed) {
                theirs.look();
                // Whoever waits for the lock gets it here.
                std::thread::sleep(pause);
            }
        });
        Some(Self { shared, looking: Some(looking.ok()?) })
    }

    /// The most bytes in use that were seen since [`reset`](Self::reset), those of now included.
    pub fn peak(&self) -> Bytes {
        self.shared.look();
        Bytes::new(*self.shared.peak())
    }

    /// Starts to look for the peak anew.
    pub fn reset(&self) {
        *self.shared.peak() = 0;
    }
}

impl Drop for PoolWatch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        if let Some(looking) = self.looking.take() {
            // One that panicked has seen what it has seen.
            let _ = looking.join();
        }
    }
}

/// The memory that this process could still take: what the machine has available, or its control group where that
/// allows less. `None` where the system does not say.
pub fn free() -> Option<Bytes> {
    SystemMemory::new().read().free
}

/// Has the process keep the memory that it frees, instead of handing it back to the system: at the start of `main`.
///
/// A recomputed stage frees everything it took but its output, and the next one takes as much again. GNU's allocator
/// hands such blocks back, and the system clears each page when it is touched anew: in six steps of 24 GPT blocks, on one
/// thread, 541,000 pages under `every-1` and 89,000 without checkpoints; with these settings 15,000 under `every-1`. How
/// much it is depends on what else the program holds. The process stays as large as it ever was.
///
/// Other allocators and systems have ways of their own; there this does nothing and is `false`.
pub fn keep_freed() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // The largest the allocator takes for the first; above it every block is the system's.
        let settings = [(libc::M_MMAP_THRESHOLD, 32 << 20), (libc::M_TRIM_THRESHOLD, i32::MAX)];
        settings.into_iter().all(|(setting, value)| {
            #[allow(unsafe_code)]
            // SAFETY: it takes two numbers and no pointer, and writes its settings under the allocator's own lock.
            let set = unsafe { libc::mallopt(setting, value) };
            set == 1
        })
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    false
}

/// The memory that this process has freed and its allocator keeps, as after [`keep_freed`]: the next step takes it again, and the system
/// does not count it as free. `None` where the allocator does not say: only GNU's does.
///
/// Blocks that went back to the system are not in it: those of more than 32 MiB, whatever the settings. What was handed back by
/// [`give_back`] still is: it keeps its place, without memory, until it is used again.
pub fn kept() -> Option<Bytes> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[allow(unsafe_code)]
        // SAFETY: it takes nothing and returns numbers, and reads them under the allocator's own locks.
        let info = unsafe { libc::mallinfo2() };
        Some(Bytes::new(info.fordblks as u64))
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    None
}

/// Has every thread that operations of tensors are shared among, and this one, make the scratch memory that it keeps for good.
///
/// On processors the first product of matrices that a thread has a part in makes it: as much as the thread's cache, in the
/// middle of some step, which would seem to take that much more. [`measure`](crate::measure) and whatever plans do this first.
pub fn make_scratch() {
    rayon::broadcast(|_| crate::matrix::make_scratch());
    crate::matrix::make_scratch();
}

/// Hands memory that was freed and kept back to the system, now; whether there was any. For a program that called
/// [`keep_freed`] and learns that others need it.
pub fn give_back() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[allow(unsafe_code)]
        // SAFETY: it takes a number and no pointer, and works under the allocator's own lock.
        let given = unsafe { libc::malloc_trim(0) };
        given == 1
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    false
}
