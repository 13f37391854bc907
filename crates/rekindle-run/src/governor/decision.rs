//! What a governor says, and why.

use std::fmt;

use rekindle_plan::{Bytes, Nanos};

use super::{Pressure, Reading, Source};

/// What to run next.
///
/// ```
/// # use rekindle_plan::{Bytes, Nanos};
/// # use rekindle_run::governor::{Governing, Governor, Ladder, Reading, Rung};
/// # let rung = |budget, time| Rung { budget: Bytes::new(budget), step_time: Nanos::new(time), plan: () };
/// # let ladder = Ladder::new(vec![rung(10, 9), rung(20, 5)])?;
/// # let mut governor = Governor::new(ladder, Governing { reserve: Some(Bytes::ZERO), ..Governing::default() })?;
/// let decision = governor.next(&Reading::free(Bytes::new(15)), Bytes::ZERO);
/// if let Some(change) = &decision.change {
///     eprintln!("{change}");
/// }
/// assert_eq!(decision.rung, 0);
/// assert_eq!(decision.short, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Decision {
    /// The rung to run, counted from the tightest, which is 0.
    pub rung: usize,
    /// What changed since the last decision, to be logged; the first decision is a change from nothing.
    pub change: Option<Change>,
    /// Not even the smallest rung fits. `rung` is the smallest then: wait for memory
    /// ([`Governor::next_waiting`](super::Governor::next_waiting)), run it anyway and risk being stopped by the system,
    /// or stop with these figures.
    pub short: Option<Short>,
}

/// Even the smallest rung does not fit.
///
/// ```
/// use rekindle_plan::Bytes;
/// use rekindle_run::governor::Short;
///
/// let short = Short { needed: Bytes::mebibytes(64), free: Bytes::mebibytes(48) };
/// assert_eq!(short.to_string(), "the tightest plan needs 64.0 MiB, but only 48.0 MiB can be used");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tightest plan needs {needed}, but only {free} can be used")]
pub struct Short {
    /// What the smallest rung takes.
    pub needed: Bytes,
    /// What can be used: what is free and given back, less the reserve.
    pub free: Bytes,
}

/// A move from one rung to another. Its words are made to be logged.
///
/// ```
/// use rekindle_plan::{Bytes, Nanos};
/// use rekindle_run::governor::{Change, Position, Pressure, Reason};
///
/// let at = |rung, budget| Position { rung, budget: Bytes::mebibytes(budget), step_time: Nanos::new(5_000_000) };
/// let reason = Reason::Pressure { found: Pressure::percent(31.0), allowed: Pressure::percent(10.0) };
/// let change = Change { step: 7, from: Some(at(1, 200)), to: at(0, 100), reason };
/// assert_eq!(
///     change.to_string(),
///     "step 7: from 200.0 MiB (5.00 ms a step) to 100.0 MiB (5.00 ms a step), because programs waited for memory \
///      31.00% of the last ten seconds, where 10.00% is allowed"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Before which step, counted from 1.
    pub step: u64,
    /// Where it was; `None` before the first step.
    pub from: Option<Position>,
    /// Where it is now.
    pub to: Position,
    /// Why.
    pub reason: Reason,
}

/// A rung, without its plan.
///
/// ```
/// use rekindle_plan::{Bytes, Nanos};
/// use rekindle_run::governor::Position;
///
/// let at = Position { rung: 2, budget: Bytes::mebibytes(64), step_time: Nanos::new(1_500_000) };
/// assert_eq!(at.to_string(), "64.0 MiB (1.50 ms a step)");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Which, counted from the tightest.
    pub rung: usize,
    /// What it takes.
    pub budget: Bytes,
    /// How long a step takes.
    pub step_time: Nanos,
}

/// Why a governor moves.
///
/// ```
/// use rekindle_plan::Bytes;
/// use rekindle_run::governor::{Reading, Reason, Room};
///
/// let room = Room::new(&Reading::free(Bytes::mebibytes(96)), Bytes::ZERO, Bytes::mebibytes(32));
/// let reason = Reason::Spare { room, steps: 8 };
/// assert_eq!(
///     reason.to_string(),
///     "it would have fitted for 8 steps in a row, and 64.0 MiB can be used: 96.0 MiB free, 32.0 MiB of it reserved"
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// It is the first step.
    Start {
        /// What can be used; `None` when nobody knows.
        room: Option<Room>,
    },
    /// The rung it was on does not fit any more.
    NoRoom {
        /// What can be used.
        room: Room,
    },
    /// Programs wait for memory.
    Pressure {
        /// How much.
        found: Pressure,
        /// From where on it counts.
        allowed: Pressure,
    },
    /// There was room for a faster rung for long enough.
    Spare {
        /// What can be used.
        room: Room,
        /// For how many steps.
        steps: u32,
    },
}

/// What a step may use, and how that comes about.
///
/// ```
/// use rekindle_plan::Bytes;
/// use rekindle_run::governor::{Reading, Room};
///
/// let room = Room::new(&Reading::free(Bytes::new(70)), Bytes::new(40), Bytes::new(10));
/// assert_eq!(room.usable(), Bytes::new(100));
/// assert_eq!(room.to_string(), "100 B can be used: 70 B free, 40 B held from the last step, 10 B of it reserved");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Room {
    /// What is free now.
    pub free: Bytes,
    /// Whose memory it is.
    pub source: Source,
    /// What the last step still holds and the next one takes over.
    pub held: Bytes,
    /// What is to stay free.
    pub reserve: Bytes,
}

impl Room {
    /// What there is by a reading; nothing is free when that is unknown.
    ///
    /// ```
    /// use rekindle_plan::Bytes;
    /// use rekindle_run::governor::{Reading, Room};
    ///
    /// assert_eq!(Room::new(&Reading::default(), Bytes::ZERO, Bytes::new(5)).usable(), Bytes::ZERO);
    /// ```
    pub fn new(reading: &Reading, held: Bytes, reserve: Bytes) -> Self {
        Self { free: reading.free.unwrap_or_default(), source: reading.source, held, reserve }
    }

    /// What is free and given back, less the reserve.
    ///
    /// ```
    /// use rekindle_plan::Bytes;
    /// use rekindle_run::governor::{Reading, Room};
    ///
    /// let room = Room::new(&Reading::free(Bytes::MAX), Bytes::MAX, Bytes::ZERO);
    /// assert_eq!(room.usable(), Bytes::MAX);
    /// ```
    pub fn usable(&self) -> Bytes {
        let all = self.free.checked_add(self.held).unwrap_or(Bytes::MAX);
        all.saturating_sub(self.reserve)
    }
}

impl fmt::Display for Room {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free = Reading { free: Some(self.free), source: self.source, ..Reading::default() };
        write!(formatter, "{} can be used: {free}", self.usable())?;
        if self.held > Bytes::ZERO {
            write!(formatter, ", {} held from the last step", self.held)?;
        }
        match self.reserve {
            Bytes::ZERO => Ok(()),
            reserve => write!(formatter, ", {reserve} of it reserved"),
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({} a step)", self.budget, self.step_time)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start { room: Some(room) } => write!(formatter, "{room}"),
            Self::Start { room: None } => formatter.write_str("nobody knows how much memory is free"),
            Self::NoRoom { room } => write!(formatter, "only {room}"),
            Self::Pressure { found, allowed } => write!(
                formatter,
                "programs waited for memory {found} of the last ten seconds, where {allowed} is allowed"
            ),
            Self::Spare { room, steps } => {
                write!(formatter, "it would have fitted for {steps} steps in a row, and {room}")
            }
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, from, to, reason } = self;
        match from {
            Some(from) => write!(formatter, "step {step}: from {from} to {to}, because {reason}"),
            None => write!(formatter, "step {step}: {to}, because {reason}"),
        }
    }
}
