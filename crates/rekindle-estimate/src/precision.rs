//! How many digits activations have, as far as counting goes: a type by its name, without a tensor of it.

use std::fmt;
use std::str::FromStr;

/// The type of a model's activations. The names are those of `rekindle::training::Precision`, which also casts tensors.
///
/// ```
/// use rekindle_estimate::Precision;
///
/// let precision: Precision = "bf16".parse()?;
/// assert_eq!(precision.bytes(), 2);
/// # Ok::<(), rekindle_estimate::ParsePrecisionError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// 32 bits.
    F32,
    /// The range of `f32` in 16 bits.
    Bf16,
    /// IEEE's half precision.
    F16,
}

impl Precision {
    const ALL: [(Self, &'static str); 3] = [(Self::F32, "f32"), (Self::Bf16, "bf16"), (Self::F16, "f16")];

    /// The bytes of a number.
    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::ALL.into_iter().find(|(precision, _)| precision == self);
        formatter.pad(named.map_or("", |(_, name)| name))
    }
}

/// The text names no precision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is no precision, expected f32, bf16 or f16")]
pub struct ParsePrecisionError {
    /// The text that was found.
    pub found: String,
}

impl FromStr for Precision {
    type Err = ParsePrecisionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|(_, name)| *name == text);
        named.map(|(precision, _)| precision).ok_or_else(|| ParsePrecisionError { found: text.to_owned() })
    }
}
