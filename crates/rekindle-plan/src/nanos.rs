//! Spans of time.

use std::fmt;
use std::iter::Sum;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Bytes;

/// A span of time in nanoseconds. Arithmetic is checked, as for [`Bytes`].
///
/// ```
/// use rekindle_plan::Nanos;
///
/// let step = Nanos::new(2_500_000);
/// assert_eq!(step.to_string(), "2.50 ms");
/// assert_eq!(step.checked_add(Nanos::MAX), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nanos(u64);

impl Nanos {
    /// No time.
    pub const ZERO: Self = Self(0);
    /// The longest span that can be written down, some 584 years.
    pub const MAX: Self = Self(u64::MAX);

    /// A span of `count` nanoseconds.
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// The count.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The sum, or `None` when it does not fit.
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The difference, or zero when it would be negative.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The sum of all, or `None` when it does not fit.
    pub fn checked_sum(spans: impl IntoIterator<Item = Self>) -> Option<Self> {
        spans.into_iter().try_fold(Self::ZERO, |sum, span| sum.checked_add(span))
    }

    /// How long `bytes` take at `bytes_per_second`, rounded up; `None` when it does not fit or the speed is zero.
    pub fn to_move(bytes: Bytes, bytes_per_second: u64) -> Option<Self> {
        let nanos = (u128::from(bytes.get()) * 1_000_000_000).checked_div(u128::from(bytes_per_second))?
            + u128::from(
                !(u128::from(bytes.get()) * 1_000_000_000).is_multiple_of(u128::from(bytes_per_second)),
            );
        u64::try_from(nanos).ok().map(Self)
    }

    /// The span over another, as a ratio; 1 when both are zero.
    pub fn ratio(self, base: Self) -> f64 {
        if self == base { 1.0 } else { self.0 as f64 / base.0 as f64 }
    }
}

/// Saturating: for totals that are shown.
impl Sum for Nanos {
    fn sum<I: Iterator<Item = Self>>(spans: I) -> Self {
        Self(spans.fold(0, |sum, span| sum.saturating_add(span.0)))
    }
}

impl From<Duration> for Nanos {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            0..1_000 => format!("{} ns", self.0),
            1_000..1_000_000 => format!("{:.2} us", self.0 as f64 / 1e3),
            1_000_000..1_000_000_000 => format!("{:.2} ms", self.0 as f64 / 1e6),
            _ => format!("{:.2} s", self.0 as f64 / 1e9),
        };
        formatter.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moving_bytes_rounds_up_and_never_divides_by_zero() {
        let bytes = Bytes::new;
        assert_eq!(Nanos::to_move(bytes(0), 1), Some(Nanos::ZERO));
        assert_eq!(Nanos::to_move(bytes(1), 3_000_000_000), Some(Nanos::new(1)));
        assert_eq!(Nanos::to_move(bytes(6), 2), Some(Nanos::new(3_000_000_000)));
        assert_eq!(Nanos::to_move(bytes(6), 0), None);
        assert_eq!(Nanos::to_move(Bytes::MAX, 1), None);
    }
}
