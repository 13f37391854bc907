//! Notices a rank that does nothing any more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::neighbours::{Neighbours, state};

/// How long a rank may do nothing for the others, who wait for it, before that ends the run.
///
/// ```
/// use std::time::Duration;
/// use rekindle_dist::Patience;
///
/// // A step takes minutes, but whoever sleeps for ten seconds waits for something that does not come.
/// let patience = Patience { asleep: Some(Duration::from_secs(10)), ..Some(Duration::from_secs(600)).into() };
/// assert_eq!(patience.computing, Some(Duration::from_secs(600)));
/// assert_eq!(patience.stopped, None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Patience {
    /// While it computes or not: give more than the longest step takes. For a part of the run that is known better, there is
    /// [`Mpi::within`](crate::Mpi::within).
    pub computing: Option<Duration>,
    /// While all of its threads sleep, as far as the system tells (Linux): neither at work nor at a disk. Give more than a rank
    /// waits for anything but other ranks, such as a pipe or a network.
    pub asleep: Option<Duration>,
    /// While its process is stopped (SIGSTOP), as far as the system tells another rank of its machine (Linux). A run that is stopped as
    /// a whole is not meant.
    pub stopped: Option<Duration>,
    /// While it waits for another rank, which does nothing wrong as far as anybody sees: for a message that nobody sends, or where ranks
    /// wait for each other. Give more than the longest time that a rank may compute, or it is the wrong one that is told off.
    pub waiting: Option<Duration>,
}

impl From<Option<Duration>> for Patience {
    fn from(computing: Option<Duration>) -> Self {
        Self { computing, ..Self::default() }
    }
}

impl Patience {
    /// How long to wait between looks; nothing, where there is nothing to look for. A time that is set later may be short.
    fn look(&self) -> Option<Duration> {
        let least = [self.computing, self.asleep, self.stopped, self.waiting].into_iter().flatten().min()?;
        Some((least / 10).min(LOOK))
    }
}

/// The longest time between two looks.
const LOOK: Duration = Duration::from_millis(500);

/// What a rank did last. The last clone of it ends the watch.
#[derive(Clone, Debug)]
pub(crate) struct Watchdog(Arc<Mutex<Seen>>);

#[derive(Debug)]
struct Seen {
    /// When something began or ended.
    when: Instant,
    /// What that was.
    what: &'static str,
    /// Whether it has begun only: then it is other ranks that are waited for.
    under_way: bool,
    /// The most that it may compute at the moment, if that is less than ever.
    within: Option<Duration>,
}

/// Whoever has this knows how long a rank may compute. See [`Mpi::within`](crate::Mpi::within).
#[derive(Debug)]
#[must_use = "it counts while somebody has it"]
pub struct Within {
    watchdog: Watchdog,
    before: Option<Duration>,
}

impl Drop for Within {
    fn drop(&mut self) {
        self.watchdog.seen().within = self.before;
    }
}

impl Watchdog {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Seen {
            when: Instant::now(),
            what: "start",
            under_way: false,
            within: None,
        })))
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the rank compute for so long and no longer, until what this gives is let go of.
    pub(crate) fn within(&self, most: Duration) -> Within {
        let mut seen = self.seen();
        let before = seen.within;
        seen.within = Some(before.map_or(most, |before| before.min(most)));
        // What it did until now, it was allowed to.
        seen.when = Instant::now();
        drop(seen);
        Within { watchdog: self.clone(), before }
    }

    pub(crate) fn began(&self, what: &'static str) {
        self.note(what, true);
    }

    pub(crate) fn ended(&self, what: &'static str) {
        self.note(what, false);
    }

    fn note(&self, what: &'static str, under_way: bool) {
        let mut seen = self.seen();
        *seen = Seen { when: Instant::now(), what, under_way, within: seen.within };
    }

    /// Calls `bark` once this rank has neither asked for nor waited for anything for so long; with its number, once one of its neighbours
    /// was stopped for so long.
    pub(crate) fn watch(
        &self,
        patience: Patience,
        mut neighbours: Neighbours,
        bark: impl FnOnce(Option<usize>, String) + Send + 'static,
    ) -> std::io::Result<()> {
        let Some(look) = patience.look() else { return Ok(()) };
        let seen = Arc::downgrade(&self.0);
        let watch = move || {
            let mut asleep = None;
            while let Some(found) = looked(&seen, patience, &mut asleep) {
                if let Err(reason) = found {
                    return bark(None, reason);
                }
                if let Some(stopped) = patience.stopped {
                    let times = stopped.div_duration_f64(look).ceil() as u32;
                    if let Some(rank) = neighbours.stopped(times) {
                        let seconds = stopped.as_secs_f64();
                        return bark(
                            Some(rank),
                            format!("hangs: its process has been stopped for {seconds:.1} s"),
                        );
                    }
                }
                std::thread::sleep(look);
            }
        };
        std::thread::Builder::new().name("rekindle-watch".to_owned()).spawn(watch).map(drop)
    }
}

/// Nothing to say, or what; nothing at all when there is nobody to look after any more. `asleep` is since when all threads were found
/// asleep.
fn looked(
    seen: &Weak<Mutex<Seen>>,
    patience: Patience,
    asleep: &mut Option<Instant>,
) -> Option<Result<(), String>> {
    let seen = seen.upgrade()?;
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let idle = seen.when.elapsed();
    let over = |most: Option<Duration>, time: Duration| most.is_some_and(|most| time >= most);
    if seen.under_way {
        *asleep = None;
        return Some(match over(patience.waiting, idle) {
            false => Ok(()),
            true => Err(format!(
                "waits in vain: what it asked for, `{}`, has not come for {:.1} s",
                seen.what,
                idle.as_secs_f64()
            )),
        });
    }
    let since = match patience.asleep.is_some() && all_others_sleep() {
        true => Some(asleep.map_or_else(Instant::now, |since| since.max(seen.when))),
        false => None,
    };
    *asleep = since;
    let how = match since {
        Some(since) if over(patience.asleep, since.elapsed()) => "it sleeps, and has",
        _ if over(patience.computing, idle) || over(seen.within, idle) => "it has",
        _ => return Some(Ok(())),
    };
    let idle = idle.as_secs_f64();
    Some(Err(format!("hangs: {how} asked for nothing for {idle:.1} s, since `{}` ended", seen.what)))
}

/// Whether every thread of this process but the one that asks sleeps: none runs, could run, or waits for a disk. `false` where nobody
/// tells.
fn all_others_sleep() -> bool {
    let own = std::fs::read_link("/proc/thread-self").ok();
    let Some(own) = own.as_deref().and_then(|path| path.file_name()) else { return false };
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return false };
    // One that is gone by now does nothing either.
    tasks
        .flatten()
        .filter(|task| task.file_name() != own)
        .all(|task| state(&task.path()).is_none_or(|state| state == 'S'))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_rank_that_computes_for_too_long_is_told_of_and_one_that_waits_is_not() {
        let dog = Watchdog::new();
        let (send, told) = mpsc::channel();
        dog.began("all-reduce");
        let patience = Patience::from(Some(Duration::from_millis(50)));
        let watched = dog.watch(patience, Neighbours::default(), move |_, reason| drop(send.send(reason)));
        watched.unwrap_or_else(|error| panic!("{error}"));
        assert!(told.recv_timeout(Duration::from_millis(200)).is_err());
        dog.ended("all-reduce");
        let told = told.recv_timeout(Duration::from_secs(20));
        assert!(told.is_ok_and(|reason| reason.contains("since `all-reduce` ended")));
    }

    #[test]
    fn a_rank_that_waits_for_longer_than_any_rank_computes_is_told_of() {
        let dog = Watchdog::new();
        let (send, told) = mpsc::channel();
        let patience = Patience { waiting: Some(Duration::from_millis(500)), ..Patience::default() };
        let watched = dog.watch(patience, Neighbours::default(), move |_, reason| drop(send.send(reason)));
        watched.unwrap_or_else(|error| panic!("{error}"));
        // One that computes is not meant.
        assert!(told.recv_timeout(Duration::from_millis(800)).is_err());
        dog.began("exchange");
        let told = told.recv_timeout(Duration::from_secs(20));
        assert!(told.is_ok_and(|reason| reason.contains("waits in vain: what it asked for, `exchange`")));
    }

    #[test]
    fn a_time_that_is_set_for_a_while_counts_for_that_while() {
        let dog = Watchdog::new();
        let (send, told) = mpsc::channel();
        let patience = Patience::from(Some(Duration::from_secs(600)));
        let watched = dog.watch(patience, Neighbours::default(), move |_, reason| drop(send.send(reason)));
        watched.unwrap_or_else(|error| panic!("{error}"));
        drop(dog.within(Duration::from_millis(50)));
        assert!(told.recv_timeout(Duration::from_millis(1500)).is_err());
        let _outer = dog.within(Duration::from_millis(50));
        // Nobody may allow more than somebody else did.
        let _inner = dog.within(Duration::from_secs(600));
        assert!(told.recv_timeout(Duration::from_secs(20)).is_ok());
    }
}
