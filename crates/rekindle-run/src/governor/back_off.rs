//! How long to wait for memory, and when to give up.

use std::time::Duration;

/// Waits that double up to a longest one, and end when their sum would pass what is allowed in all.
///
/// ```
/// use std::time::Duration;
/// use rekindle_run::governor::BackOff;
///
/// let seconds = Duration::from_secs;
/// let waits: Vec<u64> = BackOff::new(seconds(1), seconds(4), seconds(16)).map(|wait| wait.as_secs()).collect();
/// assert_eq!(waits, [1, 2, 4, 4, 4, 1]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackOff {
    next: Duration,
    longest: Duration,
    left: Duration,
}

/// A millisecond: shorter waits would only burn time.
const SHORTEST: Duration = Duration::from_millis(1);

impl BackOff {
    /// Waits from `first` to `longest`, `in_all` together. No wait but the last is shorter than a millisecond, so that
    /// there is an end to them.
    ///
    /// ```
    /// use std::time::Duration;
    /// use rekindle_run::governor::BackOff;
    ///
    /// let milli = Duration::from_millis;
    /// assert_eq!(BackOff::new(Duration::ZERO, milli(9), milli(6)).collect::<Vec<_>>(), [milli(1), milli(2), milli(3)]);
    /// ```
    pub fn new(first: Duration, longest: Duration, in_all: Duration) -> Self {
        let first = first.max(SHORTEST);
        Self { next: first, longest: longest.max(first), left: in_all }
    }
}

/// From 100 milliseconds to 5 seconds, one minute in all.
impl Default for BackOff {
    fn default() -> Self {
        Self::new(Duration::from_millis(100), Duration::from_secs(5), Duration::from_secs(60))
    }
}

impl Iterator for BackOff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let wait = self.next.min(self.left);
        self.left -= wait;
        self.next = self.next.saturating_mul(2).min(self.longest);
        (wait > Duration::ZERO).then_some(wait)
    }
}
