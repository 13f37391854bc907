//! What a plan of a graph is made of.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Name;

/// One step of a plan of a graph. The text form is two words and parses back:
///
/// | text | means |
/// |---|---|
/// | `compute conv.3` | compute the node from what it reads, all of which is there; its value is there afterwards |
/// | `free conv.3` | the node's value is gone |
///
/// ```
/// use rekindle_plan::graph::GraphAction;
///
/// let action: GraphAction = "compute conv.3".parse()?;
/// assert_eq!(action.to_string(), "compute conv.3");
/// # Ok::<(), rekindle_plan::graph::ParseGraphActionError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GraphAction {
    /// Compute a node.
    Compute {
        /// The node to compute.
        node: Name,
    },
    /// Free a node's value.
    Free {
        /// The node whose value goes.
        node: Name,
    },
}

impl GraphAction {
    /// `compute NODE`.
    pub const fn compute(node: Name) -> Self {
        Self::Compute { node }
    }

    /// `free NODE`.
    pub const fn free(node: Name) -> Self {
        Self::Free { node }
    }

    /// The node it is about.
    pub const fn node(&self) -> &Name {
        match self {
            Self::Compute { node } | Self::Free { node } => node,
        }
    }
}

impl fmt::Display for GraphAction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Compute { node } => write!(formatter, "compute {node}"),
            Self::Free { node } => write!(formatter, "free {node}"),
        }
    }
}

/// The text is not an action on a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is not an action: expected {expected}")]
pub struct ParseGraphActionError {
    /// The text that was found.
    pub found: String,
    /// What would have been right in its place.
    pub expected: &'static str,
}

impl FromStr for GraphAction {
    type Err = ParseGraphActionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |expected| ParseGraphActionError { found: text.to_owned(), expected };
        let mut words = text.split_ascii_whitespace();
        let make = match words.next() {
            Some("compute") => Self::compute,
            Some("free") => Self::free,
            _ => return Err(error("compute or free, and the name of a node")),
        };
        match (words.next().map(Name::from_str), words.next()) {
            (Some(Ok(node)), None) => Ok(make(node)),
            (Some(Err(_)), _) => Err(error("a name of letters, digits, `-`, `_` or `.` as the second word")),
            (None, _) => Err(error("the name of a node as the second word")),
            (_, Some(_)) => Err(error("two words")),
        }
    }
}

impl Serialize for GraphAction {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GraphAction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_action_is_told_apart() {
        for (text, words) in [
            ("", "compute or free"),
            ("drop x", "compute or free"),
            ("compute", "as the second word"),
            ("compute a/b", "letters, digits"),
            ("free a b", "two words"),
        ] {
            let error = text.parse::<GraphAction>().unwrap_err();
            assert!(error.to_string().contains(words), "{text}: {error}");
        }
        assert_eq!("  free   a ".parse(), Ok(GraphAction::free("a".parse().unwrap())));
    }
}
