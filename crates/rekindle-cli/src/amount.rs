//! Amounts as people write them: `2GiB`, `30%`.

use std::fmt;
use std::str::FromStr;

use rekindle_plan::{Bytes, ParseBytesError, Plan, PlanError, Profile, Rule};

/// A budget: bytes, or a part of what keeping everything takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Budget {
    Bytes(Bytes),
    Part(Fraction),
}

impl Budget {
    /// The budget in bytes for a profile.
    pub(crate) fn bytes(self, profile: &Profile) -> Result<Bytes, PlanError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Part(part) => {
                let all = Plan::by_rule(profile, Rule::StoreAll, None)?.predicted.peak_bytes.get();
                Ok(Bytes::new((all as f64 * part.0) as u64))
            }
        }
    }
}

impl FromStr for Budget {
    type Err = ParseBudgetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // Less than a byte: who writes it means something else.
        if text.contains('.') && text.parse::<f64>().is_ok_and(|number| (0.0..1.0).contains(&number)) {
            return Err(ParseBudgetError::PartOfAByte { found: text.to_owned() });
        }
        match text.ends_with('%') {
            true => text.parse().map(Self::Part).map_err(ParseBudgetError::Part),
            false => text.parse().map(Self::Bytes).map_err(ParseBudgetError::Bytes),
        }
    }
}

/// Why a text is no budget.
#[derive(Debug)]
pub(crate) enum ParseBudgetError {
    Bytes(ParseBytesError),
    Part(ParseFractionError),
    PartOfAByte { found: String },
}

impl fmt::Display for ParseBudgetError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(error) => write!(formatter, "{error}, or a part of what store-all takes such as 30%"),
            Self::Part(error) => error.fmt(formatter),
            Self::PartOfAByte { found } => {
                let percent = found.parse::<f64>().map_or(0.0, |part| (part * 1e4).round() / 1e2);
                write!(formatter, "`{found}` is a part of a byte: expected {percent}% or {found}GiB")
            }
        }
    }
}

impl std::error::Error for ParseBudgetError {}

/// What a run may take: bytes, a part of what plain training takes, what is free, or as little as possible.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    Bytes(Bytes),
    Part(Fraction),
    Free,
    Smallest,
}

impl Target {
    /// Whether as little as possible is asked for.
    pub(crate) fn is_smallest(self) -> bool {
        matches!(self, Self::Smallest)
    }

    /// The budget. A part is one of `plain`, where that was measured, and of what the profile says of it otherwise.
    pub(crate) fn budget(self, plain: Option<Bytes>) -> Result<rekindle::Budget, rekindle::Error> {
        match (self, plain) {
            (Self::Bytes(bytes), _) => Ok(rekindle::Budget::bytes(bytes)),
            (Self::Part(part), Some(plain)) => {
                Ok(rekindle::Budget::bytes(Bytes::new((plain.get() as f64 * part.0) as u64)))
            }
            (Self::Part(part), None) => rekindle::Budget::of_plain(part.0),
            (Self::Free, _) => Ok(rekindle::Budget::free()),
            (Self::Smallest, _) => Ok(rekindle::Budget::smallest()),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Without a blank: it is part of a name.
            Self::Bytes(bytes) => formatter.write_str(&bytes.to_string().replace(' ', "")),
            Self::Part(part) => write!(formatter, "{}%", (part.0 * 1e4).round() / 1e2),
            Self::Free => formatter.write_str("auto"),
            Self::Smallest => formatter.write_str("smallest"),
        }
    }
}

impl FromStr for Target {
    type Err = ParseTargetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Free),
            "smallest" => Ok(Self::Smallest),
            _ => match text.parse() {
                Ok(Budget::Bytes(bytes)) => Ok(Self::Bytes(bytes)),
                Ok(Budget::Part(part)) => Ok(Self::Part(part)),
                Err(ParseBudgetError::PartOfAByte { found }) => Err(ParseTargetError::PartOfAByte { found }),
                Err(_) => Err(ParseTargetError::Other { found: text.to_owned() }),
            },
        }
    }
}

#[derive(Debug)]
pub(crate) enum ParseTargetError {
    PartOfAByte { found: String },
    Other { found: String },
}

impl fmt::Display for ParseTargetError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PartOfAByte { found } => {
                ParseBudgetError::PartOfAByte { found: found.clone() }.fmt(formatter)
            }
            Self::Other { found } => write!(
                formatter,
                "`{found}` is not a budget: expected bytes such as 64MiB, a part of what plain training takes such as 30%, \
                 auto for what is free, or smallest"
            ),
        }
    }
}

impl std::error::Error for ParseTargetError {}

/// A fraction from 0: `5%` or `0.05`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Fraction(pub(crate) f64);

#[derive(Debug)]
pub(crate) struct ParseFractionError {
    found: String,
}

impl fmt::Display for ParseFractionError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "`{}` is not a fraction: expected 0% to 1000%, such as 5%, or 0.05", self.found)
    }
}

impl std::error::Error for ParseFractionError {}

impl FromStr for Fraction {
    type Err = ParseFractionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (number, scale) = match text.strip_suffix('%') {
            Some(percent) => (percent, 100.0),
            None => (text, 1.0),
        };
        let number = number.trim().parse::<f64>().ok().map(|number| number / scale);
        // NaN and infinity are in no range. Who writes 5 may mean 5%: without a sign it is less than 1.
        let most = if scale == 1.0 { 1.0 - f64::EPSILON } else { 10.0 };
        let number = number.filter(|number| (0.0..=most).contains(number));
        number.map(Self).ok_or_else(|| ParseFractionError { found: text.to_owned() })
    }
}
