//! What a plan is made of: one vocabulary for every solver, the simulator and the executor.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A stage by its number, from 1: stage `i` turns boundary `x(i-1)` into `x(i)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stage(u32);

impl Stage {
    /// The stage with this number. Numbers start at 1.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The stage at this index of a list that starts at 0.
    pub(crate) fn at(index: usize) -> Self {
        Self(u32::try_from(index + 1).unwrap_or(u32::MAX))
    }

    /// The number, from 1.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The index into a list of stages, from 0.
    pub const fn index(self) -> usize {
        self.0.saturating_sub(1) as usize
    }

    /// The boundary the stage reads.
    pub const fn input(self) -> Boundary {
        Boundary(self.0.saturating_sub(1))
    }

    /// The boundary the stage makes.
    pub const fn output(self) -> Boundary {
        Boundary(self.0)
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0)
    }
}

/// A boundary by its number: `x0` is the region's input, `x(i)` the output of stage `i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Boundary(u32);

impl Boundary {
    /// The boundary with this number.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number, which is also the index into a list of boundaries.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The index into a list of boundaries, from 0.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Boundary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "x{}", self.0)
    }
}

/// The name of an option, a tier or a codec: letters, digits, `-`, `_` and `.`, so that it stays one word in a plan.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// Rules are called by letters, digits and dashes, so theirs always are names.
    pub(crate) fn of_rule(rule: crate::Rule) -> Self {
        Self(rule.to_string().into())
    }

    /// What plans of policies go by, whatever the policy says.
    pub(crate) fn of_policies() -> Self {
        Self("policy".into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The text cannot name an option, a tier or a codec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is not a name: expected letters, digits, `-`, `_` or `.`")]
pub struct ParseNameError {
    /// The text that was found.
    pub found: String,
}

impl FromStr for Name {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !text.is_empty() && text.chars().all(fits) {
            Ok(Self(text.into()))
        } else {
            Err(ParseNameError { found: text.to_owned() })
        }
    }
}

/// One step of a plan.
///
/// The text form is one line and parses back:
///
/// | text | means |
/// |---|---|
/// | `forward 3` | run stage 3 without a tape: reads `x2`, makes `x3` |
/// | `tape 3`, `tape 3 balanced` | run stage 3 and keep its tape (whole, or under an option); the tape includes `x3` and holds on to `x2` |
/// | `backward 3` | run the backward of stage 3 from its tape and the gradient of `x3`; the tape is gone afterwards |
/// | `keep x2` | `x2` stays when a stage has read it; without this it is released then |
/// | `drop x2`, `drop x2 host` | release `x2` from the device (once a running offload is through), or its copy in a tier or codec |
/// | `offload x2 host` | start to copy `x2` to a tier; it stays on the device until dropped |
/// | `fetch x2 host` | start to copy `x2` back to the device from a tier or codec; the first reader waits for it |
/// | `compress x2 int8` | make a compressed copy of `x2` on the device |
///
/// ```
/// use rekindle_plan::{Action, Stage};
///
/// let action: Action = "tape 3 balanced".parse()?;
/// assert!(matches!(&action, Action::Tape { stage, .. } if *stage == Stage::new(3)));
/// assert_eq!(action.to_string(), "tape 3 balanced");
/// # Ok::<(), rekindle_plan::ParseActionError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Run a stage without a tape.
    Forward {
        /// The stage to run.
        stage: Stage,
    },
    /// Run a stage and keep its tape.
    Tape {
        /// The stage to run.
        stage: Stage,
        /// The way to keep the tape; `None` keeps all of it.
        option: Option<Name>,
    },
    /// Run the backward of a stage.
    Backward {
        /// The stage to run back through.
        stage: Stage,
    },
    /// Let a boundary stay when it has been read.
    Keep {
        /// The boundary to keep.
        boundary: Boundary,
    },
    /// Release a boundary.
    Drop {
        /// The boundary to release.
        boundary: Boundary,
        /// The tier or codec that holds the copy to release; `None` is the device.
        place: Option<Name>,
    },
    /// Start to copy a boundary to a tier.
    Offload {
        /// The boundary to copy.
        boundary: Boundary,
        /// The tier to copy it to.
        tier: Name,
    },
    /// Start to copy a boundary back to the device.
    Fetch {
        /// The boundary to bring back.
        boundary: Boundary,
        /// The tier or codec that holds the copy.
        place: Name,
    },
    /// Make a compressed copy of a boundary on the device.
    Compress {
        /// The boundary to compress.
        boundary: Boundary,
        /// The codec to compress it with.
        codec: Name,
    },
}

impl Action {
    /// `forward STAGE`.
    pub const fn forward(stage: Stage) -> Self {
        Self::Forward { stage }
    }

    /// `tape STAGE`, all of it kept.
    pub const fn tape(stage: Stage) -> Self {
        Self::Tape { stage, option: None }
    }

    /// `backward STAGE`.
    pub const fn backward(stage: Stage) -> Self {
        Self::Backward { stage }
    }

    /// `keep BOUNDARY`.
    pub const fn keep(boundary: Boundary) -> Self {
        Self::Keep { boundary }
    }

    /// `drop BOUNDARY`, from the device.
    pub const fn drop(boundary: Boundary) -> Self {
        Self::Drop { boundary, place: None }
    }

    /// The stage the action runs, forward, taped or back; `None` for an action on a boundary.
    pub const fn stage(&self) -> Option<Stage> {
        match self {
            Self::Forward { stage } | Self::Tape { stage, .. } | Self::Backward { stage } => Some(*stage),
            _ => None,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forward { stage } => write!(formatter, "forward {stage}"),
            Self::Tape { stage, option } => match option {
                None => write!(formatter, "tape {stage}"),
                Some(option) => write!(formatter, "tape {stage} {option}"),
            },
            Self::Backward { stage } => write!(formatter, "backward {stage}"),
            Self::Keep { boundary } => write!(formatter, "keep {boundary}"),
            Self::Drop { boundary, place } => match place {
                None => write!(formatter, "drop {boundary}"),
                Some(place) => write!(formatter, "drop {boundary} {place}"),
            },
            Self::Offload { boundary, tier } => write!(formatter, "offload {boundary} {tier}"),
            Self::Fetch { boundary, place } => write!(formatter, "fetch {boundary} {place}"),
            Self::Compress { boundary, codec } => write!(formatter, "compress {boundary} {codec}"),
        }
    }
}

/// The text is not an action.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is not an action: expected {expected}")]
pub struct ParseActionError {
    /// The text that was found.
    pub found: String,
    /// What would have been right in its place.
    pub expected: &'static str,
}

impl FromStr for Action {
    type Err = ParseActionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |expected| ParseActionError { found: text.chars().take(80).collect(), expected };
        let mut words = text.split_ascii_whitespace();
        let verb = words.next().unwrap_or_default();
        let (subject, object, rest) = (words.next(), words.next(), words.next());
        if rest.is_some() {
            return Err(error("at most three words, such as `fetch x3 host`"));
        }
        let number = |word: Option<&str>| {
            // `u32::from_str` would take `+3`, which does not print back.
            word.filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()))
                .and_then(|word| word.parse::<u32>().ok())
        };
        let stage = || match number(subject) {
            Some(number) if number > 0 => Ok(Stage(number)),
            _ => Err(error("a stage's number from 1, such as `forward 3`")),
        };
        let boundary = || {
            number(subject.and_then(|word| word.strip_prefix('x')))
                .map(Boundary)
                .ok_or_else(|| error("a boundary, such as `keep x3`"))
        };
        let maybe_name = || {
            object
                .map(|word| {
                    word.parse::<Name>().map_err(|_| error("a name of letters, digits, `-`, `_` or `.`"))
                })
                .transpose()
        };
        let name = |expected| maybe_name()?.ok_or_else(|| error(expected));
        let alone = |action: Self| match object {
            None => Ok(action),
            Some(_) => Err(error("two words, such as `forward 3` or `keep x3`")),
        };
        match verb {
            "forward" => alone(Self::Forward { stage: stage()? }),
            "backward" => alone(Self::Backward { stage: stage()? }),
            "keep" => alone(Self::Keep { boundary: boundary()? }),
            "tape" => Ok(Self::Tape { stage: stage()?, option: maybe_name()? }),
            "drop" => Ok(Self::Drop { boundary: boundary()?, place: maybe_name()? }),
            "offload" => {
                Ok(Self::Offload { boundary: boundary()?, tier: name("a tier, such as `offload x3 host`")? })
            }
            "fetch" => Ok(Self::Fetch {
                boundary: boundary()?,
                place: name("a tier or codec, such as `fetch x3 host`")?,
            }),
            "compress" => Ok(Self::Compress {
                boundary: boundary()?,
                codec: name("a codec, such as `compress x3 int8`")?,
            }),
            _ => Err(error("one of forward, tape, backward, keep, drop, offload, fetch, compress")),
        }
    }
}

impl Serialize for Action {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Action {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn errors_say_what_was_expected() {
        for (text, expected) in [
            ("", "one of forward"),
            ("jump 3", "one of forward"),
            ("forward", "a stage's number"),
            ("forward 0", "a stage's number"),
            ("forward -1", "a stage's number"),
            ("forward +1", "a stage's number"),
            ("forward 3 fast", "two words"),
            ("forward 99999999999", "a stage's number"),
            ("keep 3", "a boundary"),
            ("keep x", "a boundary"),
            ("offload x3", "a tier"),
            ("tape 3 a/b", "a name"),
            ("drop x1 host now", "at most three words"),
        ] {
            let error = text.parse::<Action>().unwrap_err();
            assert!(error.expected.starts_with(expected), "{text}: {error}");
        }
    }

    pub(crate) fn any_action() -> impl Strategy<Value = Action> {
        let stage = (1..40u32).prop_map(Stage);
        let boundary = (0..40u32).prop_map(Boundary);
        let name = "[a-z0-9_.-]{1,8}".prop_map(|text| text.parse::<Name>().unwrap());
        prop_oneof![
            stage.clone().prop_map(Action::forward),
            (stage.clone(), proptest::option::of(name.clone()))
                .prop_map(|(stage, option)| Action::Tape { stage, option }),
            stage.prop_map(Action::backward),
            boundary.clone().prop_map(Action::keep),
            (boundary.clone(), proptest::option::of(name.clone()))
                .prop_map(|(boundary, place)| Action::Drop { boundary, place }),
            (boundary.clone(), name.clone()).prop_map(|(boundary, tier)| Action::Offload { boundary, tier }),
            (boundary.clone(), name.clone()).prop_map(|(boundary, place)| Action::Fetch { boundary, place }),
            (boundary, name).prop_map(|(boundary, codec)| Action::Compress { boundary, codec }),
        ]
    }

    proptest! {
        #[test]
        fn text_parses_back(action in any_action()) {
            prop_assert_eq!(action.to_string().parse::<Action>(), Ok(action));
        }

        #[test]
        fn any_text_is_an_action_or_an_error(text in ".{0,40}") {
            if let Ok(action) = text.parse::<Action>() {
                prop_assert_eq!(action.to_string().parse::<Action>(), Ok(action));
            }
        }
    }
}
