//! What a policy says of some stages or boundaries.

use std::fmt;

use super::pattern::Pattern;
use super::text::write_word;

/// One thing a policy says. A pattern is of stages for `pin`, `tape` and `recompute`, and of boundaries for the others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Clause {
    /// `keep PATTERN`: the boundary stays on the device.
    Keep {
        /// Which boundaries.
        pattern: Pattern,
    },
    /// `offload PATTERN TIER`: the boundary waits in a tier.
    Offload {
        /// Which boundaries.
        pattern: Pattern,
        /// The tier.
        tier: String,
    },
    /// `compress PATTERN CODEC`: the boundary waits on the device, compressed.
    Compress {
        /// Which boundaries.
        pattern: Pattern,
        /// The codec.
        codec: String,
    },
    /// `pin PATTERN`: the stage keeps its whole tape and is never run again.
    Pin {
        /// Which stages.
        pattern: Pattern,
    },
    /// `tape PATTERN OPTION`: the stage keeps its tape under this option.
    Tape {
        /// Which stages.
        pattern: Pattern,
        /// The way to keep the tape.
        option: String,
    },
    /// `recompute PATTERN`: the stage keeps no tape, and is run again.
    Recompute {
        /// Which stages.
        pattern: Pattern,
    },
}

impl Clause {
    /// What the clause speaks of.
    pub const fn pattern(&self) -> &Pattern {
        match self {
            Self::Keep { pattern }
            | Self::Offload { pattern, .. }
            | Self::Compress { pattern, .. }
            | Self::Pin { pattern }
            | Self::Tape { pattern, .. }
            | Self::Recompute { pattern } => pattern,
        }
    }

    /// Whether it speaks of boundaries, not of stages.
    pub const fn is_of_boundaries(&self) -> bool {
        matches!(self, Self::Keep { .. } | Self::Offload { .. } | Self::Compress { .. })
    }
}

impl fmt::Display for Clause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, object) = match self {
            Self::Keep { .. } => ("keep", None),
            Self::Offload { tier, .. } => ("offload", Some(tier)),
            Self::Compress { codec, .. } => ("compress", Some(codec)),
            Self::Pin { .. } => ("pin", None),
            Self::Tape { option, .. } => ("tape", Some(option)),
            Self::Recompute { .. } => ("recompute", None),
        };
        write!(formatter, "{verb} {}", self.pattern())?;
        match object {
            None => Ok(()),
            Some(object) => {
                formatter.write_str(" ")?;
                write_word(formatter, object)
            }
        }
    }
}
