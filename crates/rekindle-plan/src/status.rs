//! How good a plan is known to be.

use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Name, Nanos};

/// How good a plan is known to be.
///
/// In a file: `"optimal"`, `{"feasible": {"gap": 0.01}}`, or a rule's name such as `"sqrt"`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Status {
    /// No plan of its class is faster within the budget.
    Optimal,
    /// It fits; the fastest plan may be faster by up to the gap.
    Feasible(Gap),
    /// It follows a rule and claims nothing.
    Rule(Name),
}

/// The most that may be left to gain, as a fraction of a plan's time: finite and not negative.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Gap(f64);

impl Gap {
    /// Nothing is left to gain.
    pub const ZERO: Self = Self(0.0);
    /// What a solver is asked for when nothing is said.
    pub const ONE_PERCENT: Self = Self(0.01);

    /// A gap of this fraction; `None` when it is negative or not finite.
    pub fn new(fraction: f64) -> Option<Self> {
        (fraction.is_finite() && fraction >= 0.0).then_some(Self(fraction))
    }

    /// What may be left to gain when a plan takes `step` and none takes less than `bound`.
    pub fn between(bound: Nanos, step: Nanos) -> Self {
        match step.saturating_sub(bound) {
            Nanos::ZERO => Self::ZERO,
            left => Self(left.get() as f64 / step.get() as f64),
        }
    }

    /// The fraction.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Optimal => formatter.write_str("optimal"),
            Self::Feasible(gap) => write!(formatter, "feasible, within {:.2}%", gap.0 * 100.0),
            Self::Rule(rule) => write!(formatter, "{rule}"),
        }
    }
}

/// The inside of `{"feasible": …}`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Feasible {
    gap: f64,
}

impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Optimal => serializer.serialize_str("optimal"),
            Self::Rule(rule) => serializer.serialize_str(rule.as_str()),
            Self::Feasible(gap) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("feasible", &Feasible { gap: gap.0 })?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Status {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StatusVisitor)
    }
}

struct StatusVisitor;

impl<'de> Visitor<'de> for StatusVisitor {
    type Value = Status;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(r#"a status: "optimal", {"feasible": {"gap": 0.01}} or a rule's name"#)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Status, E> {
        match text {
            "optimal" => Ok(Status::Optimal),
            rule => rule.parse().map(Status::Rule).map_err(E::custom),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Status, A::Error> {
        let status = match map.next_key::<String>()?.as_deref() {
            Some("feasible") => {
                let Feasible { gap } = map.next_value()?;
                let gap = Gap::new(gap);
                gap.ok_or_else(|| A::Error::custom("a gap is finite and not negative"))?
            }
            Some(other) => return Err(A::Error::unknown_field(other, &["feasible"])),
            None => return Err(A::Error::missing_field("feasible")),
        };
        match map.next_key::<String>()? {
            None => Ok(Status::Feasible(status)),
            Some(other) => Err(A::Error::unknown_field(&other, &["feasible"])),
        }
    }
}
