//! `rekindle.toml`: what it sets, and how it is refused.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::path::Path;
use std::process::{Command, Output};

use insta::assert_snapshot;

const TINY: &str = "layers = 3\nwidth = 16\nheads = 2\nsequence = 16\nbatch = 2\n";

fn rekindle(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rekindle"));
    command.args(arguments).current_dir(folder).env("NO_COLOR", "1").env("COLUMNS", "100");
    command.output().unwrap()
}

fn folder(file: impl AsRef<[u8]>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rekindle.toml"), file).unwrap();
    folder
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", words(&output.stderr)))
}

#[test]
fn a_file_sets_flags_and_the_command_line_wins() {
    let file =
        format!("# what we always do\n[train]\n{TINY}steps = 2\nstrategy = \"every-2\"\njson = true\n");
    let folder = folder(file);
    // Also without a command: that is `train`.
    for (arguments, steps, strategy) in [
        (vec![], 2, "every-2"),
        (vec!["train"], 2, "every-2"),
        (vec!["train", "--steps", "3"], 3, "every-2"),
        (vec!["--config", "rekindle.toml", "train", "--strategy=full"], 2, "full"),
    ] {
        let output = rekindle(folder.path(), &arguments);
        assert!(output.status.success(), "{}", words(&output.stderr));
        let summary = json(&output);
        assert_eq!(
            (summary["steps"].as_u64(), summary["strategy"].as_str()),
            (Some(steps), Some(strategy)),
            "{arguments:?}"
        );
        assert!(words(&output.stderr).starts_with("using rekindle.toml\n"), "{}", words(&output.stderr));
    }
}

#[test]
fn lists_are_for_flags_that_take_many() {
    let folder =
        folder(format!("[bench]\n{TINY}strategies = [\"plain\", \"sqrt\"]\nrounds = 1\njson = true\n"));
    let bench = json(&rekindle(folder.path(), &["bench"]));
    let rows = bench["rows"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["strategy"].as_str().unwrap()).collect();
    assert_eq!(names, ["plain", "sqrt"]);
}

#[test]
fn a_file_that_is_not_wanted_is_not_read() {
    let folder = folder("this is not TOML");
    let output = rekindle(folder.path(), &["plan", "--solver", "--no-config"]);
    assert!(output.status.success(), "{}", words(&output.stderr));
    assert!(output.stderr.is_empty());
    // One that is named takes the place of the one that is found.
    let other = folder.path().join("other.toml");
    std::fs::write(&other, "[plan]\nsolver = \"list\"\n").unwrap();
    let output = rekindle(folder.path(), &["plan", "--config", "other.toml"]);
    assert!(output.status.success(), "{}", words(&output.stderr));
    assert_eq!(words(&output.stderr), "using other.toml\n");
}

#[test]
fn a_file_without_a_table_for_the_command_is_not_mentioned() {
    let output = rekindle(folder("[train]\nsteps = 3\n").path(), &["plan", "--solver"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", words(&output.stderr));
}

#[test]
fn help_needs_no_file_and_tells_of_it() {
    let output = rekindle(folder("broken").path(), &["train", "--help"]);
    assert!(output.status.success());
    assert!(words(&output.stdout).contains("--config <FILE>"));
}

#[test]
fn a_setting_gives_way_to_a_flag_that_excludes_it() {
    let folder = folder(format!("[verify]\n{TINY}strategy = \"full\"\n"));
    std::fs::write(folder.path().join("ds.json"), r#"{"activation_checkpointing": {}}"#).unwrap();
    let output = rekindle(folder.path(), &["verify", "--deepspeed", "ds.json", "--json"]);
    assert_eq!(json(&output)["strategy"], "every-1");
    let note = "using rekindle.toml without `strategy`, which cannot be used with --deepspeed\n";
    assert!(words(&output.stderr).starts_with(note), "{}", words(&output.stderr));
}

#[test]
fn the_sizes_of_a_model_give_way_to_a_file_that_is_reported() {
    let folder = folder("[report]\nlayers = 2\n");
    let said = words(&rekindle(folder.path(), &["report", "missing.json"]).stderr);
    let note = "using nothing of rekindle.toml: without `layers`, which cannot be used with file\nerror: missing.json";
    assert!(said.starts_with(note), "{said}");
}

#[test]
fn a_bad_file_is_refused_with_its_line_and_a_hint() {
    let mut all = String::new();
    for file in [
        "[train]\nstpes = 3\n",
        "[train]\nlearning_rte = 3\n",
        "[train]\nprofile = \"p.json\"\ncolour = \"red\"\n",
        "[plan]\nprofile = \"p.json\"\n",
        "[trian]\nsteps = 3\n",
        "[colours]\n",
        "steps = 3\n",
        "colour = 3\n",
        "train = 3\n",
        "[train]\n\nsteps = 0\n",
        "[train]\nsteps = 2.5\n",
        "[train]\nsteps = \"many\"\n",
        "[train]\nsteps = 99999999999999999999999999\n",
        "[train]\nstrategy = \"sqr\"\n",
        "[train]\nstrategy = true\n",
        "[train]\nstrategy = [\"full\"]\n",
        "[train]\ndata = \"\"\n",
        "[train]\ndata = 1979-05-27\n",
        "[train]\njson = \"yes\"\n",
        "[train]\njson = 1\n",
        "[train]\nlearning-rate = 1\nlearning_rate = 2\n",
        "[train]\nsteps = 3\nsteps = 4\n",
        "[train]\nstrategy = \"full\"\ndeepspeed = \"ds.json\"\n",
        "[train.size]\nlayers = 3\n",
        "[train]\nconfig = \"other.toml\"\n",
        "[train]\nhelp = true\n",
        // Also in the table of another command.
        "[bench]\nstrategies = []\n",
        "[bench]\nstrategies = [\"plain\", 3, [\"full\"]]\n",
        "[bench]\nstrategies = [\"plain\", \"every-0\"]\n",
        "[train\n",
        "[train]\nsteps 3\n",
        "{\"train\": {}}",
        "[train]\nsteps = ",
    ] {
        let output = rekindle(folder(file).path(), &["train"]);
        assert_eq!(output.status.code(), Some(2), "{file}: {}", words(&output.stderr));
        assert!(output.stdout.is_empty());
        all += &format!("{}\n{}\n", file.trim_end(), words(&output.stderr));
    }
    assert_snapshot!(all);
}

#[test]
fn a_file_that_cannot_be_read_is_refused() {
    let not_text = rekindle(folder(b"[train]\n# \xff\n").path(), &[]);
    let named = rekindle(folder("").path(), &["train", "--config", "missing.toml"]);
    let both = rekindle(folder("").path(), &["train", "--config", "a.toml", "--no-config"]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("rekindle.toml")).unwrap();
    let a_folder = rekindle(folder.path(), &[]);
    let mut all = String::new();
    for output in [not_text, named, both, a_folder] {
        assert_eq!(output.status.code(), Some(2));
        all += &format!("{}\n", words(&output.stderr));
    }
    assert_snapshot!(all);
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_that_never_ends_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/dev/zero", folder.path().join("rekindle.toml")).unwrap();
    let output = rekindle(folder.path(), &["train", "--layers", "0"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(words(&output.stderr).contains("is a device, which may never end"), "{}", words(&output.stderr));
}

#[test]
fn an_empty_file_and_a_file_with_a_mark_in_front_are_fine() {
    for file in ["", "\n# nothing\n", "\u{feff}[plan]\nsolver = \"list\"\n", "[plan]\r\nsolver = 'list'\r\n"]
    {
        let output = rekindle(folder(file).path(), &["plan", "--solver"]);
        assert!(output.status.success(), "{file:?}: {}", words(&output.stderr));
    }
}
