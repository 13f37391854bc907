//! The threads that move boundaries beside the computation.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use rekindle_plan::{Boundary, Bytes};

use super::StoreError;

/// Which way a boundary went: see [`Transfer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// From the device to the store.
    Out,
    /// From the store to the device.
    Back,
}

/// A transfer that ended.
///
/// ```
/// use rekindle_plan::{Boundary, Bytes};
/// use rekindle_run::{HostStore, PackedTensor, Parcel, Store, Way};
///
/// let mut store = HostStore::new(Bytes::mebibytes(1));
/// let tensor = PackedTensor { dtype: "u8".into(), shape: vec![3], bytes: vec![1, 2, 3].into() };
/// store.put(Boundary::new(3), Parcel { tensors: vec![tensor], structure: vec![] })?;
/// store.wait(Boundary::new(3))?;
/// let transfers = store.transfers();
/// assert_eq!((transfers[0].way, transfers[0].bytes), (Way::Out, Bytes::new(3)));
/// assert!(store.transfers().is_empty()); // told once
/// # Ok::<(), rekindle_run::StoreError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// What was moved.
    pub boundary: Boundary,
    /// Which way.
    pub way: Way,
    /// How many bytes.
    pub bytes: Bytes,
    /// When it began.
    pub start: Instant,
    /// When it was over.
    pub end: Instant,
}

/// How many transfers may wait for a thread; who brings one more waits. Each holds memory of the device.
const QUEUE: usize = 8;
/// A log that nobody reads does not grow for ever.
const LOGGED: usize = 1 << 16;

type Job = Box<dyn FnOnce() + Send>;

/// A thread that does one transfer after the other.
#[derive(Debug)]
pub(crate) struct Worker {
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
    stopped: Arc<AtomicBool>,
}

impl Worker {
    pub(crate) fn start(name: &str) -> Result<Self, StoreError> {
        let (jobs, queue) = sync_channel::<Job>(QUEUE);
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = stopped.clone();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            for job in queue {
                // Whoever drops the store no longer asks for what is in the queue.
                if !stop.load(Ordering::Acquire) {
                    job();
                }
            }
        });
        let thread = thread.map_err(|error| StoreError::Broken { message: error.to_string() })?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), stopped })
    }

    /// Hands the thread a transfer. A panic in it becomes an error of its own, and the thread goes on.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
    ) -> Ticket<T> {
        let (reply, ticket) = sync_channel(1);
        let job = Box::new(move || {
            let done = catch_unwind(AssertUnwindSafe(work));
            let done = done.unwrap_or_else(|panic| Err(StoreError::Broken { message: words(&*panic) }));
            // Nobody may be waiting any more.
            let _ = reply.send(done);
        });
        if let Some(jobs) = &self.jobs {
            // A queue without a thread drops the job, and the ticket says so.
            let _ = jobs.send(job);
        }
        Ticket(ticket)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.map_or_else(|| "it panicked".to_owned(), |text| format!("it panicked: {text}"))
}

/// The promise of a transfer's result.
#[derive(Debug)]
pub(crate) struct Ticket<T>(Receiver<Result<T, StoreError>>);

impl<T> Ticket<T> {
    /// Waits for the transfer.
    pub(crate) fn wait(self) -> Result<T, StoreError> {
        let done = self.0.recv();
        done.unwrap_or_else(|_| Err(StoreError::Broken { message: "its thread is gone".to_owned() }))
    }
}

/// The transfers that ended, for whoever traces them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Transfer>>>);

impl Log {
    /// Runs `work` and writes down when, if it succeeded.
    pub(crate) fn timed<T>(
        &self,
        boundary: Boundary,
        way: Way,
        bytes: u64,
        work: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let start = Instant::now();
        let done = work()?;
        let transfer = Transfer { boundary, way, bytes: Bytes::new(bytes), start, end: Instant::now() };
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if log.len() < LOGGED {
            log.push(transfer);
        }
        Ok(done)
    }

    pub(crate) fn drain(&self) -> Vec<Transfer> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_the_thread_goes_on() {
        let worker = Worker::start("test").unwrap();
        let broken: Ticket<()> = worker.run(|| panic!("no such luck"));
        let error = broken.wait().unwrap_err();
        assert_eq!(error, StoreError::Broken { message: "it panicked: no such luck".to_owned() });
        assert_eq!(worker.run(|| Ok(3)).wait(), Ok(3));
    }

    #[test]
    fn dropping_the_worker_ends_it_and_what_was_queued_is_told() {
        let worker = Worker::start("test").unwrap();
        let (go, gate) = sync_channel::<()>(0);
        let first = worker.run(move || {
            let _ = (gate.recv(), gate.recv());
            Ok(())
        });
        let second = worker.run(|| Ok(()));
        go.send(()).unwrap(); // The first one runs now.
        worker.stopped.store(true, Ordering::Release);
        go.send(()).unwrap();
        drop(worker);
        assert_eq!(first.wait(), Ok(()));
        assert!(matches!(second.wait(), Err(StoreError::Broken { .. })));
    }
}
