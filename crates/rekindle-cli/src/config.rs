//! Flags from a file: `rekindle.toml`.
//!
//! The file is turned into the arguments it stands for, and those go in front of what was typed. So clap judges both
//! alike, and a flag that is added to a command is a key of the file without a line here.

mod settings;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, CommandFactory, FromArgMatches};

use crate::arguments::Arguments;
use crate::failure::{self, Failure};
use crate::ranks;

use self::settings::{ConfigError, Setting, settings};

/// Where flags are looked for when no file is named.
const FILE: &str = "rekindle.toml";
/// The command that runs when none is named.
const COMMAND: &str = "train";

// Which file flags are taken from. Not documentation: clap would take it for the command's.
#[derive(Debug, Args)]
pub(crate) struct ConfigArguments {
    /// Take flags from this file [default: rekindle.toml, where there is one]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Config file")]
    config: Option<PathBuf>,
    /// Take no flags from a file
    #[arg(long, global = true, conflicts_with = "config", help_heading = "Config file")]
    no_config: bool,
}

/// The command line, with the flags of the file that it does not give itself.
pub(crate) fn parse() -> Result<Arguments, Failure> {
    let given: Vec<OsString> = std::env::args_os().collect();
    let command = command();
    let typed_alone = |command: Command| {
        let parsed = command.try_get_matches_from(&given);
        parsed.and_then(|matches| Arguments::from_arg_matches(&matches)).map_err(Failure::usage)
    };
    let Ok(matches) = lenient(command.clone()).try_get_matches_from(&given) else {
        return typed_alone(command);
    };
    let Some((file, text)) = read(&matches)? else {
        return typed_alone(command);
    };
    let refuse = |error: ConfigError| {
        let hint = error.hint();
        Failure::request(error, hint)
    };
    let settings = settings(&file, &text, &command).map_err(refuse)?;
    let merged = merge(&command, &matches, &given, settings);
    let parsed = command.try_get_matches_from(merged.arguments);
    if let Some(note) = note(&file, &merged.used, &merged.giving_way) {
        match &parsed {
            // Whatever the command line gives has been made room for: the file contradicts itself.
            Err(error) if error.kind() == clap::error::ErrorKind::ArgumentConflict => {
                return Err(refuse(ConfigError::contradicts_itself(&file, &merged.used, error)));
            }
            _ if ranks::is_first() => tell!("{note}"),
            _ => {}
        }
    }
    parsed.and_then(|matches| Arguments::from_arg_matches(&matches)).map_err(Failure::usage)
}

/// All that can be typed.
fn command() -> Command {
    ConfigArguments::augment_args(Arguments::command())
}

/// The command that was typed, as far as that can be told of a command line that may be wrong: the first word that is the name of
/// one, and the one that runs where none is.
pub(crate) fn typed() -> String {
    let command = command();
    let words = std::env::args_os().skip(1).filter_map(|word| word.into_string().ok());
    let mut names = words.filter(|word| command.find_subcommand(word).is_some());
    names.next().unwrap_or_else(|| COMMAND.to_owned())
}

/// What a command line would be, were nothing required: the file may still give it.
fn lenient(command: Command) -> Command {
    command.mut_subcommands(|command| command.mut_args(|argument| argument.required(false)))
}

/// The file that was named or found, and its text.
fn read(matches: &ArgMatches) -> Result<Option<(PathBuf, Vec<u8>)>, Failure> {
    // Global flags are in the matches of the command wherever they were typed.
    let matches = matches.subcommand().map_or(matches, |(_, matches)| matches);
    let asked = ConfigArguments::from_arg_matches(matches).map_err(Failure::usage)?;
    if asked.no_config {
        return Ok(None);
    }
    if let Some(path) = asked.config {
        let text = failure::read(&path)?;
        return Ok(Some((path, text)));
    }
    failure::refuse_device(Path::new(FILE))?;
    match std::fs::read(FILE) {
        Ok(text) => Ok(Some((FILE.into(), text))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let error = anyhow::Error::new(error).context(format!("cannot read `{FILE}`, found here"));
            Err(Failure::request(error, "make it a file that may be read, or give --no-config"))
        }
    }
}

struct Merged {
    arguments: Vec<OsString>,
    used: Vec<Setting>,
    /// Settings of the file that cannot be used with a flag of the command line, and that flag.
    giving_way: Vec<(Setting, String)>,
}

/// Puts the settings of the command that runs behind its name, in front of its own flags.
fn merge(command: &Command, matches: &ArgMatches, given: &[OsString], settings: Vec<Setting>) -> Merged {
    let (name, typed) = matches.subcommand().map_or((COMMAND, None), |(name, typed)| (name, Some(typed)));
    let is_typed = |id: &str| typed.is_some_and(|typed| is_typed(typed, id));
    let (mut used, mut giving_way) = (Vec::new(), Vec::new());
    for setting in settings.into_iter().filter(|setting| setting.table == name) {
        if is_typed(&setting.id) {
            continue;
        }
        let rivals = command.find_subcommand(name).map(|command| rivals(command, &setting.id));
        match rivals.unwrap_or_default().into_iter().find(|(id, _)| is_typed(id)) {
            Some((_, flag)) => giving_way.push((setting, flag)),
            None => used.push(setting),
        }
    }
    let mut arguments = given.to_vec();
    let behind = match typed {
        Some(_) => position(given, name) + 1,
        None => {
            arguments.push(name.into());
            arguments.len()
        }
    };
    let behind = behind.min(arguments.len());
    arguments.splice(behind..behind, used.iter().flat_map(|setting| setting.arguments.clone()));
    Merged { arguments, used, giving_way }
}

fn is_typed(matches: &ArgMatches, id: &str) -> bool {
    // An id that is not there would be a panic.
    matches.try_contains_id(id).is_ok() && matches.value_source(id) == Some(ValueSource::CommandLine)
}

/// The flags that cannot be used together with the one called `id`, as ids and as people write them.
fn rivals(command: &Command, id: &str) -> Vec<(String, String)> {
    let all = || command.get_arguments();
    let excludes = |one: &clap::Arg, other: &clap::Arg| {
        command.get_arg_conflicts_with(one).iter().any(|rival| rival.get_id() == other.get_id())
    };
    let Some(own) = all().find(|argument| argument.get_id() == id) else { return Vec::new() };
    let rivals = all().filter(|other| excludes(own, other) || excludes(other, own));
    let named = rivals.map(|rival| {
        let flag = rival.get_long().map_or_else(|| rival.get_id().to_string(), |long| format!("--{long}"));
        (rival.get_id().to_string(), flag)
    });
    named.collect()
}

/// Where the command's name stands: the first word that is no flag before it, nor the value of one.
fn position(given: &[OsString], name: &str) -> usize {
    let mut index = 1;
    while let Some(word) = given.get(index) {
        match word.to_str() {
            Some("--config") => index += 2,
            Some(word) if word == name => break,
            _ => index += 1,
        }
    }
    index
}

/// What people are told about the file; nothing when it gives nothing.
fn note(file: &Path, used: &[Setting], giving_way: &[(Setting, String)]) -> Option<String> {
    let file = file.display();
    let without: Vec<String> = giving_way
        .iter()
        .map(|(setting, flag)| format!("`{}`, which cannot be used with {flag}", setting.key))
        .collect();
    match (used.is_empty(), without.is_empty()) {
        (true, true) => None,
        (_, true) => Some(format!("using {file}")),
        (true, false) => Some(format!("using nothing of {file}: without {}", without.join(", nor "))),
        (false, false) => Some(format!("using {file} without {}", without.join(", nor "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    /// A command as it may be one day: with flags that exclude each other, that are required, repeated, counted.
    fn command() -> Command {
        use clap::{Arg, ArgAction};
        let train = Command::new("train")
            .arg(Arg::new("budget").long("budget").conflicts_with("strategy"))
            .arg(Arg::new("strategy").long("strategy").default_value("every-1"))
            .arg(Arg::new("learning_rate").long("learning-rate").required(true))
            .arg(Arg::new("verbose").long("verbose").short('v').action(ArgAction::Count))
            .arg(Arg::new("names").long("names").action(ArgAction::Append))
            .arg(Arg::new("json").long("json").action(ArgAction::SetTrue));
        ConfigArguments::augment_args(Command::new("rekindle")).subcommand(train)
    }

    fn merged(file: &str, typed: &str) -> (String, Option<String>) {
        let settings = settings(Path::new(FILE), file.as_bytes(), &command()).unwrap();
        let matches = lenient(command()).try_get_matches_from(words(typed)).unwrap();
        let merged = merge(&command(), &matches, &words(typed), settings);
        let note = note(Path::new(FILE), &merged.used, &merged.giving_way);
        let arguments = merged.arguments.join(" ".as_ref()).into_string().unwrap();
        (arguments, note)
    }

    #[test]
    fn a_file_becomes_arguments_behind_the_name_of_the_command() {
        let file = "[train]\nlearning_rate = -1e-3\njson = true\nverbose = 2\nnames = ['a', 'b c']\n";
        let all = "--learning-rate=-1e-3 --json --verbose --verbose --names=a --names=b c";
        let using = Some("using rekindle.toml".to_owned());
        assert_eq!(merged(file, "rekindle"), (format!("rekindle train {all}"), using.clone()));
        assert_eq!(
            merged(file, "rekindle --config train train --budget 3"),
            (format!("rekindle --config train train {all} --budget 3"), using)
        );
    }

    #[test]
    fn the_command_line_wins() {
        let file = "train.learning-rate = 1\ntrain.names = 'a'\ntrain.json = false\n";
        let (arguments, _) = merged(file, "rekindle train --names=b --learning-rate 2");
        assert_eq!(arguments, "rekindle train --names=b --learning-rate 2");
    }

    #[test]
    fn a_setting_gives_way_to_a_flag_it_cannot_be_used_with() {
        let (arguments, note) =
            merged("train.strategy = 'full'\ntrain.json = true", "rekindle train --budget=1");
        assert_eq!(arguments, "rekindle train --json --budget=1");
        let expected = "using rekindle.toml without `strategy`, which cannot be used with --budget";
        assert_eq!(note.unwrap(), expected);
        let (arguments, note) = merged("train.budget = 1", "rekindle train --strategy full");
        assert_eq!(arguments, "rekindle train --strategy full");
        assert!(note.unwrap().starts_with("using nothing of rekindle.toml: without `budget`"));
    }

    #[test]
    fn a_file_without_the_commands_table_is_not_mentioned() {
        let (arguments, note) = merged("[train]\n", "rekindle train --json");
        assert_eq!((arguments.as_str(), note), ("rekindle train --json", None));
    }
}
