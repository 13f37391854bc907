//! Notices a rank that does nothing any more.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

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
}

impl Watchdog {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Seen { when: Instant::now(), what: "start", under_way: false })))
    }

    pub(crate) fn began(&self, what: &'static str) {
        self.note(what, true);
    }

    pub(crate) fn ended(&self, what: &'static str) {
        self.note(what, false);
    }

    fn note(&self, what: &'static str, under_way: bool) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) =
            Seen { when: Instant::now(), what, under_way };
    }

    /// Calls `bark` once this rank has neither asked for nor waited for anything for so long.
    pub(crate) fn watch(
        &self,
        patience: Duration,
        bark: impl FnOnce(String) + Send + 'static,
    ) -> std::io::Result<()> {
        let seen = Arc::downgrade(&self.0);
        let watch = move || {
            let mut bark = Some(bark);
            while let Some(left) = left(&seen, patience) {
                match left {
                    Ok(left) => std::thread::sleep(left),
                    Err(reason) => {
                        if let Some(bark) = bark.take() {
                            bark(reason);
                        }
                        return;
                    }
                }
            }
        };
        std::thread::Builder::new().name("rekindle-watch".to_owned()).spawn(watch).map(drop)
    }
}

/// How long to wait before looking again, or what to say; nothing when there is nobody to look after any more.
fn left(seen: &Weak<Mutex<Seen>>, patience: Duration) -> Option<Result<Duration, String>> {
    let seen = seen.upgrade()?;
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let idle = seen.when.elapsed();
    Some(match (seen.under_way, patience.checked_sub(idle)) {
        (true, _) => Ok(patience / 10),
        (false, Some(left)) if !left.is_zero() => Ok(left.min(patience / 10)),
        (false, _) => Err(format!(
            "hangs: it has asked for nothing for {:.1} s, since `{}` ended",
            idle.as_secs_f64(),
            seen.what
        )),
    })
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
        dog.watch(Duration::from_millis(50), move |reason| drop(send.send(reason)))
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(told.recv_timeout(Duration::from_millis(200)).is_err());
        dog.ended("all-reduce");
        let told = told.recv_timeout(Duration::from_secs(20));
        assert!(told.is_ok_and(|reason| reason.contains("since `all-reduce` ended")));
    }
}
