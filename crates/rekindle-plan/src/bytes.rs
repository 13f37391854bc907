//! Sizes in memory.

use std::fmt;
use std::iter::Sum;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A number of bytes. Arithmetic is checked: an overflow is `None`, never a wrapped number.
///
/// ```
/// use rekindle_plan::Bytes;
///
/// let budget: Bytes = "1.5GiB".parse()?;
/// assert_eq!(budget, Bytes::new(1_610_612_736));
/// assert_eq!(budget.to_string(), "1.5 GiB");
/// assert_eq!(budget.checked_add(Bytes::MAX), None);
/// # Ok::<(), rekindle_plan::ParseBytesError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Self = Self(0);
    /// The largest size that can be written down.
    pub const MAX: Self = Self(u64::MAX);

    /// A size of `count` bytes.
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// A size of `count` mebibytes, saturating at [`Bytes::MAX`].
    pub const fn mebibytes(count: u64) -> Self {
        Self(count.saturating_mul(1 << 20))
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

    /// The difference, or `None` when it would be negative.
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(difference) => Some(Self(difference)),
            None => None,
        }
    }

    /// The difference, or zero when it would be negative.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The sum of all, or `None` when it does not fit.
    pub fn checked_sum(sizes: impl IntoIterator<Item = Self>) -> Option<Self> {
        sizes.into_iter().try_fold(Self::ZERO, |sum, size| sum.checked_add(size))
    }
}

/// Saturating: for totals that are shown, not compared with a budget.
impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        Self(sizes.fold(0, |sum, size| sum.saturating_add(size.0)))
    }
}

const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl fmt::Display for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match UNITS.iter().find(|(_, size)| self.0 >= *size) {
            Some((unit, size)) => format!("{:.1} {unit}", self.0 as f64 / *size as f64),
            None => format!("{} B", self.0),
        };
        formatter.pad(&text)
    }
}

/// The text is not a size such as `64MiB`, `1.5 GiB`, `2GB` or `4096`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is not a size: expected a number and a unit, such as 64MiB, 1.5GiB, 2GB or 4096")]
pub struct ParseBytesError {
    /// The text that was found.
    pub found: String,
}

impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseBytesError { found: text.to_owned() };
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(error()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(scale).map(Self).ok_or_else(error);
        }
        let value = number.parse::<f64>().map_err(|_| error())? * scale as f64;
        // 2^53: beyond it a fraction of a unit can no longer be told apart from its neighbours.
        if value.is_finite() && (0.0..9_007_199_254_740_992.0).contains(&value) {
            Ok(Self(value.round() as u64))
        } else {
            Err(error())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64MiB", 64 << 20),
            ("64 mib", 64 << 20),
            ("2GB", 2_000_000_000),
            ("1.5GiB", 3 << 29),
            (" 8k ", 8 << 10),
        ] {
            assert_eq!(text.parse(), Ok(Bytes::new(bytes)), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_size() {
        for text in [
            "",
            "MiB",
            "-1",
            "1e9",
            "NaN",
            "inf",
            "1.2.3",
            "64 parsecs",
            "99999999999999999999",
            "20000000TiB",
            "1.5e400GiB",
            ".",
        ] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn shows_the_largest_fitting_unit() {
        assert_eq!(Bytes::new(0).to_string(), "0 B");
        assert_eq!(Bytes::new(1023).to_string(), "1023 B");
        assert_eq!(Bytes::mebibytes(222).to_string(), "222.0 MiB");
        assert_eq!(Bytes::MAX.to_string(), "16777216.0 TiB");
    }
}
