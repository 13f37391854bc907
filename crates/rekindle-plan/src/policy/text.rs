//! A policy as text: what it starts from, then its clauses, with commas between them.

use std::fmt;
use std::str::FromStr;

use super::clause::Clause;
use super::error::meant;
use super::{Policy, Start};
use crate::nearest;

/// The text is not a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is not a policy: expected {expected}{}", meant(*nearest))]
pub struct ParsePolicyError {
    /// The text that was found.
    pub found: String,
    /// What would have been right in its place.
    pub expected: &'static str,
    /// The word that was probably meant.
    pub nearest: Option<&'static str>,
}

impl ParsePolicyError {
    pub(super) fn new(found: &str, expected: &'static str) -> Self {
        Self { found: found.chars().take(80).collect(), expected, nearest: None }
    }

    /// One of the words that were expected was probably meant.
    pub(super) fn among(self, words: impl IntoIterator<Item = &'static str>) -> Self {
        Self { nearest: nearest(&self.found, words), ..self }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.start())?;
        self.clauses().iter().try_for_each(|clause| write!(formatter, ", {clause}"))
    }
}

impl FromStr for Policy {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut items = split(text)?.into_iter();
        let first = items.next().unwrap_or_default();
        let start = match first.as_slice() {
            [word] => Start::by_name(word),
            _ => None,
        };
        let policy = start.map(Self::starting_from).ok_or_else(|| {
            let expected = "recompute-all, keep-all, full, selective, dots-saveable or offload-inputs first";
            ParsePolicyError::new(&first.join(" "), expected).among(Start::names())
        })?;
        items.try_fold(policy, |policy, words| Ok(policy.with(clause(&words)?)))
    }
}

fn clause(words: &[String]) -> Result<Clause, ParsePolicyError> {
    let error = |expected| ParsePolicyError::new(&words.join(" "), expected);
    let mut words = words.iter().map(String::as_str);
    let verb = words.next().unwrap_or_default();
    let (pattern, object, rest) = (words.next(), words.next(), words.next());
    let pattern = |expected| match pattern {
        Some(pattern) if rest.is_none() => Ok(pattern.into()),
        _ => Err(error(expected)),
    };
    let alone = |expected| match object {
        None => pattern(expected),
        Some(_) => Err(error(expected)),
    };
    let object = |expected| object.map(str::to_owned).ok_or_else(|| error(expected));
    match verb {
        "keep" => Ok(Clause::Keep { pattern: alone("a boundary, such as `keep block.*.input`")? }),
        "pin" => Ok(Clause::Pin { pattern: alone("a stage, such as `pin router`")? }),
        "recompute" => Ok(Clause::Recompute { pattern: alone("a stage, such as `recompute block.*`")? }),
        "offload" => {
            let expected = "a boundary and a tier, such as `offload block.*.input host`";
            Ok(Clause::Offload { pattern: pattern(expected)?, tier: object(expected)? })
        }
        "compress" => {
            let expected = "a boundary and a codec, such as `compress block.*.up int8`";
            Ok(Clause::Compress { pattern: pattern(expected)?, codec: object(expected)? })
        }
        "tape" => {
            let expected = "a stage and an option, such as `tape block.* balanced`";
            Ok(Clause::Tape { pattern: pattern(expected)?, option: object(expected)? })
        }
        _ => {
            let verbs = ["keep", "offload", "compress", "pin", "tape", "recompute"];
            let unknown = error("keep, offload, compress, pin, tape or recompute");
            Err(ParsePolicyError { nearest: nearest(verb, verbs), ..unknown })
        }
    }
}

/// The words of each item. A word in quotes may hold anything, with `\` before a quote or another `\`.
fn split(text: &str) -> Result<Vec<Vec<String>>, ParsePolicyError> {
    let mut items = Vec::new();
    let mut words = Vec::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            ',' => items.push(std::mem::take(&mut words)),
            '"' => {
                let mut word = String::new();
                loop {
                    let letter = match letters.next() {
                        Some('"') => break,
                        Some('\\') => letters.next(),
                        letter => letter,
                    };
                    word.push(letter.ok_or_else(|| ParsePolicyError::new(text, "a quote at the end"))?);
                }
                words.push(word);
            }
            letter if letter.is_whitespace() => {}
            letter => {
                let mut word = String::from(letter);
                while let Some(letter) = letters.next_if(|letter| !ends_word(*letter)) {
                    word.push(letter);
                }
                words.push(word);
            }
        }
    }
    items.push(words);
    Ok(items)
}

fn ends_word(letter: char) -> bool {
    letter.is_whitespace() || matches!(letter, ',' | '"')
}

/// Writes a word so that it reads back as one, in quotes if need be: a stage may be called anything.
pub(super) fn write_word(formatter: &mut fmt::Formatter<'_>, word: &str) -> fmt::Result {
    match word.is_empty() || word.contains(ends_word) {
        true => write!(formatter, "\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\"")),
        false => formatter.write_str(word),
    }
}
