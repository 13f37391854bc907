//! Ways to train one model, by name.

use std::fmt;
use std::str::FromStr;

use rekindle::Rule;

/// How to train: as Burn does, with Burn's own checkpointing, or under a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strategy {
    /// Every activation is kept, in one graph.
    Plain,
    /// Burn's `gradient_checkpointing()`: cheap operations are recomputed one by one.
    Balanced,
    /// A region under a textbook rule.
    Rule(Rule),
}

impl fmt::Display for Strategy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => formatter.pad("plain"),
            Self::Balanced => formatter.pad("balanced"),
            Self::Rule(rule) => rule.fmt(formatter),
        }
    }
}

impl FromStr for Strategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "plain" => Ok(Self::Plain),
            "balanced" => Ok(Self::Balanced),
            _ => text.parse().map(Self::Rule).map_err(|_| {
                "expected plain, balanced, store-all, full, sqrt or every-K with K from 1, such as every-1"
                    .to_owned()
            }),
        }
    }
}
