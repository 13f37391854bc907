//! What the section `activation_checkpointing` of a DeepSpeed configuration comes to here.
//!
//! Every key is mapped to something or refused by its name: a setting that is dropped without a word would be a promise
//! that nobody keeps.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::Path;

use rekindle_plan::{Rule, nearest};
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use crate::failure::{self, Failure};
use crate::strategy::Strategy;

const SECTION: &str = "activation_checkpointing";
const NUMBER: &str = "number_checkpoints";
const SYNCHRONIZE: &str = "synchronize_checkpoint_boundary";

/// What is true only where something else is done than here: the key, why it is refused, and what there is instead.
const REFUSED: [Refused; 4] = [
    Refused {
        key: "partition_activations",
        reason: "splits checkpoints over the ranks of a model, and this file says nothing of ranks",
        instead: "set it to false; over ranks give --tensor-parallel and --partition-checkpoints; `--budget smallest` takes the least memory on one rank",
    },
    Refused {
        key: "cpu_checkpointing",
        reason: "moves checkpoints to host memory, and this command trains in host memory",
        instead: "set it to false; in your own model, `Region::host` lets a plan offload",
    },
    Refused {
        key: "contiguous_memory_optimization",
        reason: "copies checkpoints into one buffer against fragments in the memory of a GPU, \
                 and this command trains on the CPU, where the allocator places each by itself",
        instead: "set it to false",
    },
    Refused {
        key: "profile",
        reason: "logs the time of every checkpoint, which training does not do here",
        instead: "set it to false; `rekindle profile` measures the forward and the backward of every stage",
    },
];

/// A key that is true, and is not done here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) key: &'static str,
    reason: &'static str,
    instead: &'static str,
}

/// What a configuration comes to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub(crate) rule: Rule,
    /// Why this rule, and what became of every other key: one line each.
    pub(crate) notes: Vec<String>,
    /// The other sections of the file.
    pub(crate) ignored: Vec<String>,
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeepSpeedError {
    #[error("not a DeepSpeed configuration: {0}")]
    NotJson(serde_json::Error),
    #[error("there is no section `{SECTION}`; there are {}", list(found))]
    NoSection { found: Vec<String> },
    #[error("`{SECTION}` has no key `{key}`; DeepSpeed's are {}", KEYS.join(", "))]
    UnknownKey { key: String },
    #[error("`{key}` is {found}, expected {expected}")]
    WrongType { key: String, found: String, expected: &'static str },
    #[error("{}", refusals(keys))]
    Refused { keys: Vec<Refused> },
}

const KEYS: [&str; 6] = [REFUSED[0].key, REFUSED[1].key, REFUSED[2].key, NUMBER, SYNCHRONIZE, REFUSED[3].key];

fn list(names: &[String]) -> String {
    match names.is_empty() {
        true => "none at all".to_owned(),
        false => names.join(", "),
    }
}

fn refusals(keys: &[Refused]) -> String {
    let all = keys.iter().map(|refused| format!("`{}` is true: it {}", refused.key, refused.reason));
    all.collect::<Vec<_>>().join("; ")
}

impl DeepSpeedError {
    /// What to do about it.
    pub(crate) fn hint(&self) -> String {
        match self {
            Self::NotJson(_) => {
                "give the JSON file that DeepSpeed is given, such as ds_config.json".to_owned()
            }
            Self::NoSection { found } => match nearest(SECTION, found.iter().map(String::as_str)) {
                Some(name) => format!("`{name}` is probably meant to be `{SECTION}`"),
                None => format!("add \"{SECTION}\": {{}}, or choose with --strategy"),
            },
            Self::UnknownKey { key } => match nearest(key, KEYS) {
                Some(name) => format!("did you mean `{name}`?"),
                None => "remove it; docs/config.md says what becomes of each key".to_owned(),
            },
            Self::WrongType { .. } => "docs/config.md says what becomes of each key".to_owned(),
            Self::Refused { keys } => {
                let all = keys.iter().map(|refused| format!("{}: {}", refused.key, refused.instead));
                all.collect::<Vec<_>>().join("\nhint: ")
            }
        }
    }
}

/// What `text` comes to for a model of so many stages.
pub(crate) fn mapped(text: &str, stages: usize) -> Result<Mapped, DeepSpeedError> {
    let file: File = serde_json::from_str(text).map_err(DeepSpeedError::NotJson)?;
    let Some(section) = file.section else {
        return Err(DeepSpeedError::NoSection { found: file.others });
    };
    let mut rule = Rule::EVERY_ONE;
    let mut notes = Vec::new();
    let (mut refused, mut off) = (Vec::new(), Vec::new());
    for (key, value) in &section.0 {
        match key.as_str() {
            // DeepSpeed's own default.
            NUMBER if value.is_null() => {}
            NUMBER => {
                let (found, note) = for_number(number(key, value)?, stages);
                rule = found;
                notes.push(note);
            }
            SYNCHRONIZE if boolean(key, value)? => notes.push(format!(
                "{SYNCHRONIZE}: already so, an operation on the CPU has ended before the next one begins"
            )),
            SYNCHRONIZE => off.push(key.as_str()),
            key => match REFUSED.iter().find(|refused| refused.key == key) {
                Some(found) if boolean(key, value)? => refused.push(*found),
                Some(_) => off.push(key),
                None => return Err(DeepSpeedError::UnknownKey { key: key.to_owned() }),
            },
        }
    }
    if !refused.is_empty() {
        return Err(DeepSpeedError::Refused { keys: refused });
    }
    if !notes.iter().any(|note| note.starts_with(NUMBER)) {
        notes.insert(0, format!("no {NUMBER}: {rule}, a checkpoint at every stage"));
    }
    if !off.is_empty() {
        notes.push(format!("nothing to do for what is off: {}", off.join(", ")));
    }
    Ok(Mapped { rule, notes, ignored: file.others })
}

/// At most so many checkpoints, as evenly as a rule can place them.
fn for_number(number: NonZeroUsize, stages: usize) -> (Rule, String) {
    let every = NonZeroUsize::new(stages.div_ceil(number.get())).unwrap_or(NonZeroUsize::MIN);
    let rule = Rule::EveryK(every);
    let kept = stages.div_ceil(every.get());
    let note = match number.get() > stages {
        true => format!("{NUMBER} {number}, more than the {stages} stages: {rule}, a checkpoint at each"),
        false => format!("{NUMBER} {number}: {rule}, {kept} checkpoints in {stages} stages"),
    };
    (rule, note)
}

fn boolean(key: &str, value: &Value) -> Result<bool, DeepSpeedError> {
    value.as_bool().ok_or_else(|| wrong_type(key, value, "true or false"))
}

fn number(key: &str, value: &Value) -> Result<NonZeroUsize, DeepSpeedError> {
    let found = value.as_u64().and_then(|number| usize::try_from(number).ok()).and_then(NonZeroUsize::new);
    found.ok_or_else(|| wrong_type(key, value, "a whole number from 1, or null"))
}

fn wrong_type(key: &str, value: &Value, expected: &'static str) -> DeepSpeedError {
    let found = match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(_) => "a text".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    };
    DeepSpeedError::WrongType { key: key.to_owned(), found, expected }
}

/// The section, and the names of all others.
struct File {
    section: Option<Section>,
    others: Vec<String>,
}

/// Keys in the order of the file. DeepSpeed refuses a key that is there twice, and so do we.
struct Section(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for File {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Sections;
        impl<'de> Visitor<'de> for Sections {
            type Value = File;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object of sections")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<File, A::Error> {
                let mut file = File { section: None, others: Vec::new() };
                while let Some(name) = map.next_key::<String>()? {
                    if name == SECTION {
                        if file.section.replace(map.next_value()?).is_some() {
                            return Err(A::Error::custom(format!("`{SECTION}` is there twice")));
                        }
                    } else {
                        map.next_value::<IgnoredAny>()?;
                        file.others.push(name);
                    }
                }
                Ok(file)
            }
        }
        deserializer.deserialize_map(Sections)
    }
}

impl<'de> Deserialize<'de> for Section {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Section;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "`{SECTION}` to be an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Section, A::Error> {
                let mut keys: Vec<(String, Value)> = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, Value>()? {
                    if keys.iter().any(|(earlier, _)| *earlier == key) {
                        return Err(A::Error::custom(format!("`{key}` is there twice")));
                    }
                    keys.push((key, value));
                }
                Ok(Section(keys))
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

/// The strategy of a configuration the user named, with what became of it said on standard error.
pub(crate) fn strategy(file: &Path, stages: usize) -> Result<Strategy, Failure> {
    let mapped = mapped(&failure::read_text(file)?, stages).map_err(|error| {
        let hint = error.hint();
        let error = anyhow::Error::new(error).context(format!("`{}`", file.display()));
        Failure::request(error, hint)
    })?;
    for note in &mapped.notes {
        tell!("{}: {note}", file.display());
    }
    if !mapped.ignored.is_empty() {
        tell!("{}: ignored: {}", file.display(), mapped.ignored.join(", "));
    }
    Ok(Strategy::Rule(mapped.rule))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn section(keys: &str) -> String {
        format!(r#"{{"train_batch_size": 8, "{SECTION}": {{{keys}}}, "fp16": {{"enabled": true}}}}"#)
    }

    #[test]
    fn an_empty_section_checkpoints_every_stage_as_deepspeed_does() {
        let found = mapped(&section(""), 8).unwrap();
        assert_eq!(found.rule, Rule::EVERY_ONE);
        assert_eq!(found.notes, ["no number_checkpoints: every-1, a checkpoint at every stage"]);
        assert_eq!(found.ignored, ["train_batch_size", "fp16"]);
        assert_eq!(mapped(&section(r#""number_checkpoints": null"#), 8).unwrap(), found);
    }

    #[test]
    fn a_number_of_checkpoints_is_every_k_with_no_more_than_that() {
        let rule = |number: usize, stages| {
            mapped(&section(&format!(r#""number_checkpoints": {number}"#)), stages).unwrap().rule.to_string()
        };
        assert_eq!(rule(4, 8), "every-2");
        assert_eq!(rule(3, 8), "every-3");
        assert_eq!(rule(1, 8), "every-8");
        assert_eq!(rule(8, 8), "every-1");
        assert_eq!(rule(100, 8), "every-1");
        assert_eq!(rule(1, 1), "every-1");
        assert_eq!(rule(5, 0), "every-1");
        for (number, stages) in (1..20).flat_map(|number| (1..40).map(move |stages| (number, stages))) {
            let every: usize = rule(number, stages).strip_prefix("every-").unwrap().parse().unwrap();
            assert!(stages.div_ceil(every) <= number, "{number} of {stages}");
            assert!(every == 1 || stages.div_ceil(every - 1) > number, "{number} of {stages}: no smaller K");
        }
    }

    #[test]
    fn every_key_of_deepspeed_is_mapped_or_refused_by_name() {
        for key in KEYS.into_iter().filter(|key| *key != NUMBER) {
            let off = mapped(&section(&format!(r#""{key}": false"#)), 8).unwrap();
            assert!(off.notes.iter().any(|note| note.contains(key)), "{key}: {:?}", off.notes);
            match mapped(&section(&format!(r#""{key}": true"#)), 8) {
                Ok(on) => assert!(on.notes.iter().any(|note| note.starts_with(key)), "{key}"),
                Err(DeepSpeedError::Refused { keys }) => assert_eq!(keys[0].key, key),
                Err(other) => panic!("{key}: {other}"),
            }
        }
    }

    #[test]
    fn all_that_is_refused_is_named_at_once() {
        let text = section(r#""profile": true, "cpu_checkpointing": true, "partition_activations": false"#);
        let error = mapped(&text, 8).unwrap_err();
        let words = error.to_string();
        assert!(words.starts_with("`profile` is true: it logs") && words.contains("; `cpu_checkpointing`"));
        assert_eq!(error.hint().lines().count(), 2);
    }

    proptest! {
        #[test]
        fn no_text_is_a_panic(text in ".*", stages: usize) {
            let _ = mapped(&text, stages);
            let _ = mapped(&section(&text), stages);
        }

        #[test]
        fn no_value_is_a_panic(key in 0..KEYS.len(), value in "(-?[0-9]{1,25}(\\.[0-9]e[0-9]{1,3})?|null|true|\"a\"|\\[\\]|\\{\\})", stages: usize) {
            match mapped(&section(&format!(r#""{}": {value}"#, KEYS[key])), stages) {
                Ok(mapped) => prop_assert!(!mapped.notes.is_empty()),
                Err(error) => prop_assert!(!error.to_string().is_empty() && !error.hint().is_empty()),
            }
        }
    }
}
