//! The text of a config file, as the arguments it stands for.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command};
use rekindle_plan::nearest;
use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

/// A key of the file: a flag, and what it is set to.
#[derive(Debug)]
pub(crate) struct Setting {
    /// The command's name.
    pub(crate) table: String,
    /// The flag, without dashes.
    pub(crate) key: String,
    /// What clap calls the flag.
    pub(crate) id: String,
    pub(crate) line: usize,
    /// As one would type them.
    pub(crate) arguments: Vec<OsString>,
}

/// Why a config file is refused.
#[derive(Debug, thiserror::Error)]
#[error("`{}`, line {line}: {problem}", file.display())]
pub(crate) struct ConfigError {
    file: PathBuf,
    line: usize,
    problem: Problem,
}

#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum Problem {
    #[error("not text: byte {byte} of the file is not UTF-8")]
    NotText { byte: usize },
    #[error("not TOML: {message}")]
    NotToml { message: String },
    #[error("there is no command `{table}`; there are {}", known.join(", "))]
    UnknownTable { table: String, known: Vec<String> },
    #[error("`{command}` is {found}, expected a table")]
    NotATable { command: String, found: &'static str },
    #[error("`{key}` stands in no table")]
    OutsideATable { key: String, commands: Vec<String> },
    #[error("`rekindle {table}` has no flag `{key}`; its flags are {}", known.join(", "))]
    UnknownKey { table: String, key: String, known: Vec<String>, positional: bool },
    #[error("`{key}` in [{table}] is set twice, first in line {first_line}")]
    Twice { table: String, key: String, first_line: usize },
    #[error("`{key}` in [{table}] is {found}, expected {expected}")]
    WrongType { table: String, key: String, found: &'static str, expected: &'static str },
    #[error("`{key}` in [{table}]: {message}")]
    Value { table: String, key: String, message: String },
    #[error("[{table}] contradicts itself: {message}")]
    Contradiction { table: String, message: String, lines: Vec<usize> },
}

impl ConfigError {
    /// Two settings of one table that clap does not take together.
    pub(crate) fn contradicts_itself(file: &Path, used: &[Setting], error: &clap::Error) -> Self {
        let message = first_paragraph(error);
        let named = used.iter().filter(|setting| message.contains(&format!("--{}", setting.key)));
        let lines: Vec<usize> = named.map(|setting| setting.line).collect();
        let table = used.first().map(|setting| setting.table.clone()).unwrap_or_default();
        let line = lines.first().copied().unwrap_or(1);
        Self { file: file.to_owned(), line, problem: Problem::Contradiction { table, message, lines } }
    }

    /// What to do about it.
    pub(crate) fn hint(&self) -> String {
        let did_you_mean = |found: &str, known: &[String], otherwise: String| {
            nearest(found, known.iter().map(String::as_str))
                .map_or(otherwise, |name| format!("did you mean `{name}`?"))
        };
        match &self.problem {
            Problem::NotText { .. } => "save the file as UTF-8".to_owned(),
            Problem::NotToml { .. } => {
                "a file is made of tables and keys, such as [train] and below it steps = 50".to_owned()
            }
            Problem::UnknownTable { table, known } => {
                did_you_mean(table, known, "a table has the name of a command, such as [train]".to_owned())
            }
            Problem::NotATable { command, .. } => format!("write [{command}], and its flags below it"),
            Problem::OutsideATable { key, commands } => match commands.first() {
                Some(command) => format!("put it below the command it is for, such as [{command}]"),
                None => format!("no command has a flag `{key}`; keys stand below a command, such as [train]"),
            },
            Problem::UnknownKey { table, key, positional: true, .. } => {
                format!("`{key}` is given on the command line: rekindle {table} {}", key.to_uppercase())
            }
            Problem::UnknownKey { table, key, known, .. } => {
                did_you_mean(&dashed(key), known, format!("`rekindle {table} --help` describes the flags"))
            }
            Problem::Twice { .. } => "`-` and `_` are the same in a key; keep one of the two".to_owned(),
            Problem::WrongType { table, key, .. } => {
                format!("the key is the flag --{key}, which `rekindle {table} --help` describes")
            }
            Problem::Value { table, key, .. } => {
                format!("the value came from the file; `rekindle {table} --help` describes --{key}")
            }
            Problem::Contradiction { lines, .. } => {
                let lines: Vec<String> = lines.iter().map(usize::to_string).collect();
                format!("keep one of the lines {}", lines.join(" and "))
            }
        }
    }
}

/// Every setting of a file, in its order, with all of the file checked: also the tables of other commands.
pub(crate) fn settings(file: &Path, text: &[u8], command: &Command) -> Result<Vec<Setting>, ConfigError> {
    let line_of = |at: usize| 1 + text.iter().take(at).filter(|byte| **byte == b'\n').count();
    let refuse = |at: usize, problem| ConfigError { file: file.to_owned(), line: line_of(at), problem };
    let text = std::str::from_utf8(text).map_err(|error| {
        let byte = error.valid_up_to();
        refuse(byte, Problem::NotText { byte })
    })?;
    let document = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        refuse(at, Problem::NotToml { message: error.message().trim().replace('\n', ", ") })
    })?;
    let mut found = Vec::new();
    for (name, value) in in_order(document.get_ref()) {
        let table = name.get_ref().to_string();
        let known = command.find_subcommand(&table);
        let keys = match (known, value.get_ref()) {
            (Some(command), DeValue::Table(keys)) => (command, keys),
            (None, DeValue::Table(_)) => {
                let known = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
                return Err(refuse(name.span().start, Problem::UnknownTable { table, known }));
            }
            (Some(_), other) => {
                let found = kind(other);
                return Err(refuse(name.span().start, Problem::NotATable { command: table, found }));
            }
            (None, _) => {
                let commands = with_flag(command, &table);
                return Err(refuse(name.span().start, Problem::OutsideATable { key: table, commands }));
            }
        };
        let (command, keys) = keys;
        let mut of_table: Vec<Setting> = Vec::new();
        for (name, value) in in_order(keys) {
            let setting = setting(command, name.get_ref(), value.get_ref());
            let mut setting = setting.map_err(|problem| {
                // The key, because a value may go over many lines.
                refuse(name.span().start, problem)
            })?;
            setting.line = line_of(name.span().start);
            if let Some(first) = of_table.iter().find(|first| first.id == setting.id) {
                let (key, first_line) = (setting.key, first.line);
                let problem = Problem::Twice { table: setting.table, key, first_line };
                return Err(refuse(name.span().start, problem));
            }
            of_table.push(setting);
        }
        found.append(&mut of_table);
    }
    Ok(found)
}

/// The parser sorts by name; people read from the top.
fn in_order<'a, 'i>(
    table: &'a DeTable<'i>,
) -> Vec<(&'a Spanned<std::borrow::Cow<'i, str>>, &'a Spanned<DeValue<'i>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    entries
}

/// The commands that have a flag of this name.
fn with_flag(command: &Command, key: &str) -> Vec<String> {
    let has = |command: &&Command| flags(command).any(|flag| is_called(flag, key));
    command.get_subcommands().filter(has).map(|command| command.get_name().to_owned()).collect()
}

/// What a file may set.
fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    let says_itself = |argument: &&Arg| {
        use ArgAction::{Help, HelpLong, HelpShort, Version};
        matches!(argument.get_action(), Help | HelpLong | HelpShort | Version)
    };
    command.get_arguments().filter(move |argument| argument.get_long().is_some() && !says_itself(argument))
}

fn is_called(flag: &Arg, key: &str) -> bool {
    let key = dashed(key);
    flag.get_long() == Some(key.as_str())
        || flag.get_all_aliases().unwrap_or_default().contains(&key.as_str())
}

/// `learning_rate` and `learning-rate` are one flag.
fn dashed(key: &str) -> String {
    key.replace('_', "-")
}

fn setting(command: &Command, key: &str, value: &DeValue<'_>) -> Result<Setting, Problem> {
    let table = command.get_name().to_owned();
    let Some(flag) = flags(command).find(|flag| is_called(flag, key)) else {
        let mut known: Vec<String> = flags(command).filter_map(Arg::get_long).map(str::to_owned).collect();
        known.sort();
        let positional = command.get_positionals().any(|positional| positional.get_id() == key);
        return Err(Problem::UnknownKey { table, key: key.to_owned(), known, positional });
    };
    let key = flag.get_long().unwrap_or(key).to_owned();
    let arguments = arguments(flag, &key, value).map_err(|expected| Problem::WrongType {
        table: table.clone(),
        key: key.clone(),
        found: kind(value),
        expected,
    })?;
    // Alone, so that what clap refuses is this value; whatever it misses besides is for later.
    let alone = command.clone().no_binary_name(true).mut_args(|argument| argument.required(false));
    match alone.try_get_matches_from(&arguments) {
        Err(error)
            if !matches!(error.kind(), ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict) =>
        {
            Err(Problem::Value { table, key, message: first_paragraph(&error) })
        }
        _ => Ok(Setting { table, key, id: flag.get_id().to_string(), line: 1, arguments }),
    }
}

/// What one would type; or else what the flag takes.
fn arguments(flag: &Arg, key: &str, value: &DeValue<'_>) -> Result<Vec<OsString>, &'static str> {
    let switch = || OsString::from(format!("--{key}"));
    let with = |value: String| OsString::from(format!("--{key}={value}"));
    let repeats = matches!(flag.get_action(), ArgAction::Append) || flag.get_value_delimiter().is_some();
    match (flag.get_action(), value) {
        (ArgAction::SetTrue | ArgAction::SetFalse, DeValue::Boolean(true)) => Ok(vec![switch()]),
        (ArgAction::SetTrue | ArgAction::SetFalse, DeValue::Boolean(false)) => Ok(Vec::new()),
        (ArgAction::SetTrue | ArgAction::SetFalse, _) => Err("true or false"),
        (ArgAction::Count, DeValue::Integer(count)) => match whole(count).parse::<u8>() {
            Ok(count) => Ok((0..count).map(|_| switch()).collect()),
            Err(_) => Err("a number from 0 to 255"),
        },
        (ArgAction::Count, _) => Err("a number from 0 to 255"),
        (_, DeValue::Array(values)) if repeats && !values.is_empty() => {
            let values = values.iter().map(|value| scalar(value.get_ref()).map(with));
            values.collect::<Option<_>>().ok_or("a list of texts or numbers")
        }
        (_, value) => match scalar(value) {
            Some(value) => Ok(vec![with(value)]),
            None if repeats => Err("a text, a number, or a list of some"),
            None => Err("a text or a number"),
        },
    }
}

/// The text of a value that is a text or a number.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(whole(number)),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

/// A whole number in digits, also where the file writes 0xff.
fn whole(number: &DeInteger<'_>) -> String {
    match (number.radix(), u64::from_str_radix(number.as_str(), number.radix())) {
        (2 | 8 | 16, Ok(value)) => value.to_string(),
        _ => number.to_string(),
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(true) => "true",
        DeValue::Boolean(false) => "false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(values) if values.is_empty() => "an empty list",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// What clap says, without its frame: the rest is about the command line.
fn first_paragraph(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use proptest::prelude::*;

    fn read(text: &[u8]) -> Result<Vec<Setting>, ConfigError> {
        settings(Path::new("file"), text, &crate::arguments::Arguments::command())
    }

    #[test]
    fn every_flag_of_every_command_is_a_key() {
        let command = crate::arguments::Arguments::command();
        for command in command.get_subcommands() {
            for flag in command.get_arguments().filter_map(Arg::get_long) {
                // Nothing is set to a table, so the key is known when that is what is wrong with it.
                let text = format!("[{}]\n{} = {{}}", command.get_name(), flag.replace('-', "_"));
                let problem = read(text.as_bytes()).unwrap_err().problem;
                assert!(matches!(problem, Problem::WrongType { .. }), "{text}: {problem}");
            }
        }
    }

    #[test]
    fn numbers_are_read_as_toml_writes_them() {
        let text = b"[train]\nsteps = 1_000\nseed = 0xff\nlearning-rate = +1e-3\nlayers = 0b11";
        let arguments: Vec<OsString> =
            read(text).unwrap().into_iter().flat_map(|found| found.arguments).collect();
        assert_eq!(arguments, ["--steps=1000", "--seed=255", "--learning-rate=+1e-3", "--layers=3"]);
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_panic(text: Vec<u8>) {
            let _ = read(&text);
        }

        #[test]
        fn no_key_and_no_value_is_a_panic(
            table in "(train|bench|plan|[a-z]{0,4})",
            key in "(steps|json|strategies|solver|learning_rate|data|[a-z_-]{0,6})",
            value in "(-?[0-9]{1,30}|[0-9]\\.[0-9]e[0-9]{1,4}|nan|true|'[^']{0,8}'|\\[[0-9, ]*\\]|\\{\\}|[0-9-]{10}|.{0,8})",
        ) {
            if let Err(error) = read(format!("[{table}]\n{key} = {value}\n").as_bytes()) {
                prop_assert!(!error.to_string().is_empty() && !error.hint().is_empty());
            }
        }
    }
}
