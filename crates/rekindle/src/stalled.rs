//! Recomputations that would never return.
//!
//! A stage that behaves in the forward and reaches for a tensor of the user's graph when it is run again waits for a lock that its
//! own thread holds: Burn's backward has it while the hub runs. Nobody can free a thread from that. But a third one can see
//! it, and a run that ends with words is better than one that never ends.
//!
//! Where the recomputation has a thread of its own it is better still: the one that holds the lock can be told, and leaves with
//! an error. Kernels that share their work among threads are slower there, and stages see other thread-locals, so that is for
//! regions whose checks are turned on.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use crate::Error;
use crate::backward::catching;

/// How often a stage that stands still is looked at before it is given up.
const LOOKS: u64 = 12;

/// How much longer it may stand still while other threads work: they may work for it.
const WHILE_OTHERS_WORK: u64 = 5;

/// In milliseconds; 0 for never.
static LIMIT: AtomicU64 = AtomicU64::new(60_000);
static RUNNING: Mutex<Vec<Running>> = Mutex::new(Vec::new());

thread_local! {
    /// Where the system tells of this thread, if it does.
    static TASK: OnceCell<Option<PathBuf>> = const { OnceCell::new() };
    /// Who waits for this thread and can leave with an error, if anybody.
    static WAITING: RefCell<Option<Sender<Error>>> = const { RefCell::new(None) };
}

/// The stack of a recomputation's own thread: what a main thread has.
const STACK_BYTES: usize = 8 << 20;

/// A stage that is run again.
struct Running {
    id: u64,
    task: PathBuf,
    stage: usize,
    name: String,
    /// Who is told. Without anybody, the process is ended.
    waiting: Option<Sender<Error>>,
}

/// How long a stage that is run again in a backward pass may stand still before the process is ended; a minute, if nothing is
/// said, and for ever with `None`.
///
/// A stage that uses a tracked tensor of somebody else only when it is run again waits for its own thread, for ever. No error can
/// be returned from there: the process is aborted, with the words that [`Error::TrackedCapture`] has. Under
/// [`Checks::Checksums`](crate::Checks::Checksums) stages are run again on a thread of their own, and it is that error.
///
/// Standing still means that its thread has not run for a moment, for all of the time. While other threads of the process work,
/// they may work for the stage, or be a loader of data: then it is five times as long. A stage that waits for something outside
/// of the process, such as another machine, may need more time. Only Linux tells of threads; elsewhere nothing is ended.
///
/// ```
/// use std::time::Duration;
///
/// rekindle::give_up_after(Some(Duration::from_secs(600)));
/// ```
pub fn give_up_after(limit: Option<Duration>) {
    let milliseconds =
        limit.map_or(0, |limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(LOOKS));
    LIMIT.store(milliseconds, Ordering::Relaxed);
}

/// Runs the recomputations of a region on a thread of their own, so that one that stands still is an error.
///
/// # Errors
/// Whatever is raised there, panics, or stands still. What stands still goes on once the caller has let go of what it waits for;
/// nobody looks at what it makes.
pub(crate) fn apart<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    let (tell, told) = channel();
    let made = Arc::new(Mutex::new(None));
    let run = Arc::new(Mutex::new(Some(run)));
    let there = {
        let (made, run) = (Arc::clone(&made), Arc::clone(&run));
        move || {
            WAITING.set(Some(tell));
            if let Some(run) = locked(&run).take() {
                let result = catching(run);
                *locked(&made) = Some(result);
            }
            // The channel closes with the thread's last hold on it, which says that it is through.
            WAITING.set(None);
        }
    };
    let thread = std::thread::Builder::new().name("rekindle-again".to_owned()).stack_size(STACK_BYTES);
    if thread.spawn(there).is_err()
        && let Some(run) = locked(&run).take()
    {
        // A machine without a thread to spare: then here.
        return Ok(run());
    }
    if let Ok(error) = told.recv() {
        return Err(error);
    }
    let made = locked(&made).take();
    made.unwrap_or_else(|| Err(Error::Panicked { message: "the recomputation's thread ended".to_owned() }))
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a stage again, watched.
///
/// # Errors
/// The stage's own, or that it was given up before it went on.
pub(crate) fn watched<T>(
    stage: usize,
    name: &str,
    run: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    /// Stops watching also when the stage panics.
    struct Leave(u64);
    impl Leave {
        /// Whether it was watched to the end.
        fn leave(&self) -> bool {
            running(|running| {
                let before = running.len();
                running.retain(|other| other.id != self.0);
                running.len() < before
            })
        }
    }
    impl Drop for Leave {
        fn drop(&mut self) {
            self.leave();
        }
    }
    static NEXT: AtomicU64 = AtomicU64::new(0);
    static WATCHDOG: Once = Once::new();
    let task = TASK.with(|task| task.get_or_init(task_of_this_thread).clone());
    let Some(task) = task else { return run() };
    // A machine without a thread to spare: nobody looks, that is all.
    WATCHDOG.call_once(|| drop(std::thread::Builder::new().name("rekindle-watch".to_owned()).spawn(watch)));
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let waiting = WAITING.with_borrow(Option::clone);
    running(|running| running.push(Running { id, task, stage, name: name.to_owned(), waiting }));
    let leave = Leave(id);
    let made = run();
    match leave.leave() {
        true => made,
        // Nobody waits for it any more, and what would follow is not to draw numbers beside somebody else.
        false => Err(Error::TrackedCapture { stage, name: name.to_owned() }),
    }
}

fn running<T>(look: impl FnOnce(&mut Vec<Running>) -> T) -> T {
    look(&mut locked(&RUNNING))
}

/// Looks again and again. Looks are counted, not time: a process that was stopped for a while did not stand still.
fn watch() -> ! {
    let mut seen: HashMap<u64, (u64, u64)> = HashMap::new();
    let mut ticks = process_ticks();
    loop {
        let limit = LIMIT.load(Ordering::Relaxed);
        let pause = if limit == 0 { 1000 } else { limit / LOOKS };
        std::thread::sleep(Duration::from_millis(pause));
        let now = process_ticks();
        // A tick is ten milliseconds. A bar that is drawn now and then is no work.
        let idle = now.saturating_sub(ticks) <= pause / 1000;
        ticks = now;
        let given_up = running(|running| {
            seen.retain(|id, _| running.iter().any(|running| running.id == *id));
            let mut given_up = None;
            for running in running.iter() {
                let Some(switches) = switches(&running.task) else { continue };
                let (before, looks) = seen.get(&running.id).copied().unwrap_or((switches, 0));
                let looks = match (limit > 0 && before == switches, idle) {
                    (false, _) => 0,
                    (true, true) => looks + WHILE_OTHERS_WORK,
                    (true, false) => looks + 1,
                };
                seen.insert(running.id, (switches, looks));
                if looks >= LOOKS * WHILE_OTHERS_WORK {
                    // The innermost is the one that waits.
                    given_up = Some(running.id);
                }
            }
            let position = running.iter().position(|running| Some(running.id) == given_up)?;
            let Running { stage, name, waiting, .. } = running.remove(position);
            let error = Error::TrackedCapture { stage, name };
            match waiting {
                Some(waiting) => waiting.send(error).err().map(|unsent| unsent.0),
                None => Some(error),
            }
        });
        if let Some(error) = given_up {
            let seconds = limit as f64 / 1e3;
            eprintln!(
                "rekindle: {error}. It was run again for its backward, and waits for its own thread since {seconds} s, \
                 which no error can end (`rekindle::give_up_after`)"
            );
            std::process::abort();
        }
    }
}

#[cfg(target_os = "linux")]
fn task_of_this_thread() -> Option<PathBuf> {
    Some(Path::new("/proc").join(std::fs::read_link("/proc/thread-self").ok()?))
}

#[cfg(not(target_os = "linux"))]
fn task_of_this_thread() -> Option<PathBuf> {
    None
}

/// How often a thread has begun to wait, or was made to.
fn switches(task: &Path) -> Option<u64> {
    let status = std::fs::read_to_string(task.join("status")).ok()?;
    let counts = status.lines().filter(|line| line.contains("ctxt_switches"));
    Some(counts.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok()).sum())
}

/// The time that all threads have worked, in hundredths of a second.
fn process_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name, in parentheses, may have spaces in it. User and system time are fields 14 and 15.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_that_waits_does_not_move_and_one_that_runs_does() {
        let task = task_of_this_thread().unwrap();
        let before = switches(&task).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        assert!(switches(&task).unwrap() > before);
        let (tell, told) = std::sync::mpsc::channel();
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(task_of_this_thread().unwrap()).unwrap();
            wait.recv().unwrap_err();
        });
        let other = told.recv().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let before = switches(&other).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(switches(&other).unwrap(), before);
        drop(release);
        thread.join().unwrap();
    }

    #[test]
    fn what_is_through_is_not_watched_any_more() {
        let watched_now = || running(|running| running.iter().filter(|one| one.name == "mine").count());
        let watched_once = watched(1, "mine", || Ok(watched_now()));
        assert_eq!(watched_once.unwrap(), usize::from(cfg!(target_os = "linux")));
        let panicked = std::panic::catch_unwind(|| {
            watched(1, "mine", || -> Result<(), Error> { panic!("as expected") })
        });
        assert!(panicked.is_err());
        assert_eq!(watched_now(), 0);
    }

    #[test]
    fn what_runs_apart_comes_back_and_its_panics_and_errors_too() {
        let name = || std::thread::current().name().map(str::to_owned);
        assert_eq!(apart(name).unwrap().as_deref(), Some("rekindle-again"));
        let raised = apart(|| -> u8 { crate::backward::raise(Error::Untracked) });
        assert!(matches!(raised, Err(Error::Untracked)));
        let panicked = apart(|| -> u8 { panic!("as expected") }).unwrap_err();
        assert!(matches!(&panicked, Error::Panicked { message } if message == "as expected"), "{panicked}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn work_is_counted() {
        let before = process_ticks();
        let start = std::time::Instant::now();
        while start.elapsed() < Duration::from_millis(100) {
            std::hint::spin_loop();
        }
        assert!(process_ticks() > before);
    }
}
