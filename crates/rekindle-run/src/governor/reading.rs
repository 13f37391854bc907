//! What is known of memory at one moment, and who can tell.

use std::fmt;

use rekindle_plan::Bytes;

/// Reads how much memory is free.
///
/// It never fails: what cannot be read is unknown, and the governor then leaves things as they are.
///
/// ```
/// use rekindle_plan::Bytes;
/// use rekindle_run::governor::{Gauge, Reading};
///
/// /// Always the same: for tests.
/// struct Fixed(Bytes);
///
/// impl Gauge for Fixed {
///     fn read(&mut self) -> Reading {
///         Reading::free(self.0)
///     }
/// }
///
/// let mut gauge: Box<dyn Gauge> = Box::new(Fixed(Bytes::mebibytes(512)));
/// assert_eq!(gauge.read().free, Some(Bytes::mebibytes(512)));
/// ```
pub trait Gauge {
    /// What is free now.
    fn read(&mut self) -> Reading;
}

/// What is known of memory at one moment. Everything in it may be unknown.
///
/// ```
/// use rekindle_plan::Bytes;
/// use rekindle_run::governor::Reading;
///
/// assert_eq!(Reading::default().to_string(), "unknown");
/// assert_eq!(Reading::free(Bytes::mebibytes(512)).to_string(), "512.0 MiB free");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// What could be taken without anything else being pushed out.
    pub free: Option<Bytes>,
    /// All the memory of which `free` is a part.
    pub total: Option<Bytes>,
    /// Whose memory it is.
    pub source: Source,
    /// How much programs had to wait for memory lately.
    pub pressure: Option<Pressure>,
}

/// Whose memory a reading is of.
///
/// ```
/// use rekindle_run::governor::Source;
///
/// assert_eq!(Source::ControlGroup.to_string(), "in the control group");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// Nobody said.
    #[default]
    Unnamed,
    /// The whole machine's.
    Machine,
    /// That of the process's control group, or one above it: a container's.
    ControlGroup,
    /// A device's.
    Device,
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Unnamed => "",
            Self::Machine => "on the machine",
            Self::ControlGroup => "in the control group",
            Self::Device => "on the device",
        })
    }
}

impl Reading {
    /// So much is free, and nothing else is known.
    ///
    /// ```
    /// use rekindle_plan::Bytes;
    /// use rekindle_run::governor::Reading;
    ///
    /// assert_eq!(Reading::free(Bytes::new(7)).total, None);
    /// ```
    pub fn free(free: Bytes) -> Self {
        Self { free: Some(free), ..Self::default() }
    }

    /// The one with less free, and the higher pressure of both: for memory that two gauges look at, such as a host and
    /// a pool within it.
    ///
    /// ```
    /// use rekindle_plan::Bytes;
    /// use rekindle_run::governor::{Pressure, Reading};
    ///
    /// let pressed = Reading { pressure: Some(Pressure::percent(3.0)), ..Reading::free(Bytes::new(20)) };
    /// let tight = Reading::free(Bytes::new(10)).tightest(pressed);
    /// assert_eq!((tight.free, tight.pressure), (Some(Bytes::new(10)), Some(Pressure::percent(3.0))));
    /// assert_eq!(Reading::default().tightest(Reading::free(Bytes::new(5))).free, Some(Bytes::new(5)));
    /// ```
    #[must_use]
    pub fn tightest(self, other: Self) -> Self {
        let pressure = self.pressure.max(other.pressure);
        let tighter = match (self.free, other.free) {
            (Some(mine), Some(its)) if its < mine => other,
            (None, Some(_)) => other,
            _ => self,
        };
        Self { pressure, ..tighter }
    }
}

impl fmt::Display for Reading {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.free {
            None => formatter.write_str("unknown")?,
            Some(free) => write!(formatter, "{free} free")?,
        }
        if self.free.is_some() && self.source != Source::Unnamed {
            write!(formatter, " {}", self.source)?;
        }
        match self.pressure {
            Some(pressure) if pressure > Pressure::NONE => write!(formatter, ", {pressure} of waiting"),
            _ => Ok(()),
        }
    }
}

/// The part of the last ten seconds in which some program had to wait for memory, as Linux tells it (`some avg10`).
///
/// ```
/// use rekindle_run::governor::Pressure;
///
/// assert_eq!(Pressure::percent(12.34).to_string(), "12.34%");
/// assert!(Pressure::percent(0.5) > Pressure::NONE);
/// // What is no part of anything is none at all, or all of it.
/// assert_eq!(Pressure::percent(f64::NAN), Pressure::NONE);
/// assert_eq!(Pressure::percent(250.0), Pressure::percent(100.0));
/// ```
// In hundredths of a percent, which is how finely the kernel tells it: whole numbers compare without surprises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pressure(u16);

impl Pressure {
    /// Nobody waited.
    pub const NONE: Self = Self(0);

    /// So many percent of the time, from 0 to 100.
    ///
    /// ```
    /// use rekindle_run::governor::Pressure;
    ///
    /// assert_eq!(Pressure::percent(-3.0), Pressure::NONE);
    /// ```
    pub fn percent(percent: f64) -> Self {
        // A cast takes what is no number for 0.
        Self((percent.clamp(0.0, 100.0) * 100.0).round() as u16)
    }
}

impl fmt::Display for Pressure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&format!("{}.{:02}%", self.0 / 100, self.0 % 100))
    }
}

/// A device's memory, told by a closure: `(free, total)`, or `None` when the device does not say.
///
/// Memory that a pool keeps for itself counts as free when the next step can take it from the pool.
///
/// ```
/// use rekindle_plan::Bytes;
/// use rekindle_run::governor::{DeviceMemory, Gauge};
///
/// let mut gauge = DeviceMemory::new(|| Some((Bytes::mebibytes(3_000), Bytes::mebibytes(8_000))));
/// assert_eq!(gauge.read().to_string(), "2.9 GiB free on the device");
/// ```
pub struct DeviceMemory<F>(F);

impl<F: FnMut() -> Option<(Bytes, Bytes)>> DeviceMemory<F> {
    /// A gauge that asks `tell`.
    ///
    /// ```
    /// use rekindle_run::governor::{DeviceMemory, Gauge};
    ///
    /// assert_eq!(DeviceMemory::new(|| None).read().free, None);
    /// ```
    pub fn new(tell: F) -> Self {
        Self(tell)
    }
}

impl<F: FnMut() -> Option<(Bytes, Bytes)>> Gauge for DeviceMemory<F> {
    fn read(&mut self) -> Reading {
        let told = (self.0)();
        let (free, total) = told.unzip();
        Reading { free, total, source: Source::Device, pressure: None }
    }
}

impl<F> fmt::Debug for DeviceMemory<F> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("DeviceMemory(..)")
    }
}
