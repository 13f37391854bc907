//! The command as people and programs see it: output, errors, exit codes.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use insta::assert_snapshot;
use rekindle_plan::{Action, Bytes, Nanos, Plan, Profile, Rule, StageProfile, Status};

fn rekindle(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rekindle"));
    command.args(arguments).env("NO_COLOR", "1").env("COLUMNS", "100");
    command.output().unwrap()
}

/// Everything there is to see, as one text.
fn seen(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    format!(
        "exit code {}\n--- standard output\n{}--- standard error\n{}",
        output.status.code().unwrap(),
        text(&output.stdout),
        text(&output.stderr)
    )
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", seen(output)))
}

const TINY: [&str; 10] =
    ["--layers", "3", "--width", "16", "--heads", "2", "--sequence", "16", "--batch", "2"];

fn tiny<'a>(command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [command].iter().chain(&TINY).chain(more).copied().collect()
}

/// Hides what differs from machine to machine.
fn steady() -> insta::Settings {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.add_filter(r"\d+(\.\d+)? (B|KiB|MiB)", "[BYTES]");
    settings.add_filter(r"\d+(\.\d+)? (ns|us|ms|s)\b", "[TIME]");
    settings.add_filter(r"[+-]\d+\.\d%", "[OVERHEAD]");
    settings.add_filter(r"\d+\.\d%", "[PERCENT]");
    settings.add_filter(r"\d+ tokens/s", "[SPEED] tokens/s");
    settings.add_filter(r"\d+\.\d plain steps", "[N] plain steps");
    settings.add_filter(r"up to \d+% apart", "up to [N]% apart");
    settings.add_filter(r"the peak is set by .*", "the peak is set by [TENSORS]");
    settings.add_filter(r"planned \([^)]*\)", "planned ([STATUS])");
    settings.add_filter(r"loss \d+\.\d+ -> \d+\.\d+", "loss [FIRST] -> [LAST]");
    settings.add_filter(r" {2,}", "  ");
    settings
}

struct Files {
    _folder: tempfile::TempDir,
    profile: PathBuf,
    plan: PathBuf,
}

impl Files {
    fn arguments(&self) -> [&str; 3] {
        ["simulate", self.profile.to_str().unwrap(), self.plan.to_str().unwrap()]
    }
}

fn profile() -> Profile {
    let stage = |index: u64| StageProfile {
        name: format!("block.{index}"),
        output_bytes: Bytes::mebibytes(1),
        tape_bytes: Bytes::mebibytes(8 + index),
        forward_ns: Nanos::new(1_000_000),
        backward_ns: Nanos::new(2_000_000),
        backward_extra_bytes: Bytes::mebibytes(2),
        ..StageProfile::default()
    };
    Profile::new("four", "flex", Bytes::mebibytes(1), (0..4).map(stage).collect()).unwrap()
}

/// A change to a profile's and a plan's text.
type Change = fn(&mut String, &mut String);

fn files(change: impl FnOnce(&mut String, &mut String)) -> Files {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan::by_rule(&profile(), Rule::SquareRoot, Some(Bytes::mebibytes(64))).unwrap();
    let (mut profile, mut plan) = (profile().to_json(), plan.to_json());
    change(&mut profile, &mut plan);
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    Files { profile: path("profile.json", &profile), plan: path("plan.json", &plan), _folder: folder }
}

/// The folder's name is random.
fn without_folder(text: &str, path: &Path) -> String {
    text.replace(path.parent().unwrap().to_str().unwrap(), "[FOLDER]")
}

#[test]
fn help() {
    steady().bind(|| {
        assert_snapshot!("help", seen(&rekindle(&["--help"])));
        assert_snapshot!("help_train", seen(&rekindle(&["train", "--help"])));
    });
}

#[test]
fn train_ends_with_a_table_against_plain_training() {
    let output = rekindle(&tiny("train", &["--steps", "3"]));
    steady().bind(|| assert_snapshot!("train", seen(&output)));
}

#[test]
fn train_learns_and_repeats_itself_under_every_strategy() {
    let run = |strategy: &str| {
        let more = ["--steps", "12", "--learning-rate", "0.01", "--json", "--strategy", strategy];
        let output = rekindle(&tiny("train", &more));
        assert!(output.status.success(), "{}", seen(&output));
        json(&output)
    };
    let plain = run("plain");
    let (first, last) = (plain["first_loss"].as_f64().unwrap(), plain["last_loss"].as_f64().unwrap());
    assert!(last < first - 0.3, "the loss goes from {first} to {last}");
    for strategy in ["every-1", "sqrt", "full", "store-all", "balanced", "optimal-90%", "optimal-smallest"] {
        let found = run(strategy);
        assert_eq!(found["last_loss"], plain["last_loss"], "{strategy}");
        assert_eq!(found["gradients"]["identical"], found["gradients"]["tensors"], "{strategy}");
    }
}

#[test]
fn train_on_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("book.txt");
    std::fs::write(&path, "abcdefgh".repeat(40)).unwrap();
    let data = path.to_str().unwrap();
    let output =
        rekindle(&tiny("train", &["--steps", "30", "--learning-rate", "0.01", "--json", "--data", data]));
    assert!(json(&output)["last_loss"].as_f64().unwrap() < 2.0, "{}", seen(&output));
}

#[test]
fn verify_counts_identical_gradients() {
    for strategy in ["every-1", "every-2", "sqrt", "full", "store-all", "balanced"] {
        let output = rekindle(&tiny("verify", &["--json", "--strategy", strategy]));
        assert!(output.status.success(), "{}", seen(&output));
        let verdict = json(&output);
        assert_eq!(verdict["tensors"], 54, "{strategy}");
        assert_eq!(verdict["identical"], 54, "{strategy}");
        assert_eq!(verdict["loss_identical"], true, "{strategy}");
        assert_eq!(verdict["strategy"], strategy);
    }
    let output = rekindle(&tiny("verify", &[]));
    steady().bind(|| assert_snapshot!("verify", seen(&output)));
}

#[test]
fn a_policy_gives_the_gradients_of_plain_training() {
    for policy in ["selective", "full", "dots-saveable", "recompute-all, keep block.*, pin block.1.**"] {
        for more in [&["--json"][..], &["--json", "--burn", "--dropout", "0"]] {
            let output = rekindle(&tiny("verify", &[&["--policy", policy], more].concat()));
            let verdict = json(&output);
            assert_eq!(verdict["strategy"], format!("policy-{policy}"));
            assert_eq!(
                (&verdict["identical"], &verdict["loss_identical"]),
                (&54.into(), &true.into()),
                "{policy}"
            );
        }
    }
    for (policy, words) in [
        ("keep-all, recompute block.*.atention", "the nearest name is `block.0.attention`"),
        ("offload-inputs", "hint: give the place, too"),
        ("keep-all, tape head lean", "hint: docs/policies.md"),
        ("mostly", "full, selective, dots-saveable"),
        ("selectiv", "the nearest name is `selective`"),
    ] {
        let output = rekindle(&tiny("verify", &["--policy", policy]));
        assert_eq!(output.status.code(), Some(2), "{policy}");
        assert!(seen(&output).contains(words), "{policy}: {}", seen(&output));
    }
    // Burn's dropout draws other numbers in parts of blocks: blocks are what is cut into.
    let output = rekindle(&tiny("verify", &["--policy", "full", "--burn", "--json"]));
    assert_eq!(json(&output)["identical"], 54);
    let output = rekindle(&tiny("verify", &["--strategy", "optimal-smallest", "--burn", "--cut", "parts"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(seen(&output).contains("hint: leave --cut out"), "{}", seen(&output));
    // `burn` is another model.
    let output = rekindle(&tiny("verify", &["--strategy", "burn"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(seen(&output).contains("hint: `--burn` makes"), "{}", seen(&output));
}

#[test]
fn train_writes_a_timeline_of_a_step() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("step.json");
    let file = path.to_str().unwrap();
    for (how, forwards, again) in [("every-1", 5, 4), ("store-all", 5, 0)] {
        let output = rekindle(&tiny("train", &["--steps", "1", "--strategy", how, "--trace", file]));
        assert!(output.status.success(), "{}", seen(&output));
        let timeline: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let events = timeline["traceEvents"].as_array().unwrap();
        let count = |kind: &str| events.iter().filter(|event| event["cat"] == kind).count();
        assert_eq!(
            (count("forward"), count("recompute"), count("backward")),
            (forwards, again, forwards),
            "{how}"
        );
        assert!(events.iter().any(|event| event["name"] == "block.0"), "{how}");
    }
    let before = std::fs::read(&path).unwrap();
    let output = rekindle(&tiny("train", &["--strategy", "plain", "--trace", file]));
    assert_eq!(output.status.code(), Some(2));
    assert!(seen(&output).contains("hint: --strategy store-all"), "{}", seen(&output));
    assert_eq!(std::fs::read(&path).unwrap(), before);
    let nowhere = directory.path().join("no").join("step.json");
    let output = rekindle(&tiny("train", &["--trace", nowhere.to_str().unwrap()]));
    assert_eq!(output.status.code(), Some(1), "{}", seen(&output));
}

#[test]
fn bench_runs_each_node_beside_burns() {
    let bench = json(&rekindle(&tiny("bench", &["--nodes", "--rounds", "1", "--json"])));
    let rows = bench["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 13);
    for row in rows {
        assert!(row["ns"].as_u64().unwrap() > 0 && row["burn_ns"].as_u64().unwrap() > 0, "{row}");
    }
    let part = |name: &str| {
        let row = rows.iter().find(|row| row["node"].as_str().unwrap().starts_with(name)).unwrap();
        row["peak_bytes"].as_f64().unwrap() / row["burn_peak_bytes"].as_f64().unwrap()
    };
    assert!(part("causal attention, 4096 tokens") < 0.15);
    assert!(part("linear cross entropy") < 0.5);
    assert!(part("rms norm") < 1.0);
    assert!(part("batch norm and rectifier") < 1.0);
    // It was taken and said nothing.
    let output = rekindle(&tiny("bench", &["--nodes", "--precision", "bf16"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(seen(&output).contains("--precision bf16 is given with --nodes"), "{}", seen(&output));
}

#[test]
fn bench_has_a_row_for_every_strategy() {
    let more = ["--rounds", "1", "--strategies", "every-1,sqrt,plain"];
    let output = rekindle(&tiny("bench", &more));
    steady().bind(|| assert_snapshot!("bench", seen(&output)));
    let size = ["--layers", "9", "--width", "64", "--sequence", "64", "--batch", "16"];
    let output = rekindle(&[&["bench", "--rounds", "2", "--json"], &size[..]].concat());
    let bench = json(&output);
    let rows = bench["rows"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["strategy"].as_str().unwrap()).collect();
    let rules = ["plain", "burn", "balanced", "store-all", "every-1", "every-2", "sqrt"];
    assert_eq!(names[..7], rules);
    assert_eq!(names[7..], ["optimal-50%", "optimal-25%", "optimal-smallest"]);
    for row in rows {
        assert_eq!(row["identical"], true, "{row}");
        assert!(row["peak_bytes"].as_u64().unwrap() > 0, "{row}");
        assert!(row["step_ns"].as_u64().unwrap() > 0, "{row}");
        assert!(row["overhead"].is_f64(), "{row}");
        if let Some(budget) = row["budget_bytes"].as_u64() {
            assert!(row["peak_bytes"].as_u64().unwrap() <= budget, "{row}");
        }
    }
    let peak = |name: &str| {
        let row = rows.iter().find(|row| row["strategy"] == name).unwrap();
        row["peak_bytes"].as_u64().unwrap()
    };
    assert!(peak("every-1") < peak("sqrt") && peak("sqrt") < peak("plain"));
    assert!(peak("plain") < peak("burn"));
}

#[test]
fn simulate_judges_a_plan() {
    let files = files(|_, _| ());
    assert_snapshot!("simulate", seen(&rekindle(&files.arguments())));
    let output = rekindle(&[&files.arguments()[..], &["--json"]].concat());
    assert_snapshot!("simulate_json", seen(&output));
}

/// A pipe can be read only once; the profile was once read twice, and came out cut off.
#[test]
#[cfg(unix)]
fn a_profile_may_come_through_a_pipe() {
    let files = files(|_, _| ());
    let piped = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rekindle"));
        let mut cat = Command::new("cat").arg(&files.profile).stdout(Stdio::piped()).spawn().unwrap();
        command.args(arguments).env("NO_COLOR", "1").env("COLUMNS", "100").stdin(cat.stdout.take().unwrap());
        let output = command.output().unwrap();
        cat.wait().unwrap();
        output
    };
    let plan = files.plan.to_str().unwrap();
    let found = piped(&["simulate", "/dev/stdin", plan]);
    assert_eq!(seen(&found), seen(&rekindle(&files.arguments())));
    let found = piped(&["plan", "/dev/stdin", "--budget", "1GiB", "--json"]);
    assert!(found.status.success(), "{}", seen(&found));
}

#[test]
fn simulate_refuses_with_words_that_help() {
    let cases: [(&str, Change); 7] = [
        ("truncated_plan", |_, plan| plan.truncate(plan.len() / 2)),
        ("other_version", |profile, _| *profile = profile.replace("profile/1", "profile/9")),
        ("negative", |profile, _| *profile = profile.replacen("1000000", "-1000000", 1)),
        ("unknown_key", |_, plan| *plan = plan.replacen("\"solver\"", "\"solvr\"", 1)),
        ("bad_action", |_, plan| *plan = plan.replacen("tape 3", "tape three", 1)),
        ("illegal", |_, plan| *plan = plan.replacen("keep x0", "keep x3", 1)),
        ("other_model", |profile, _| *profile = profile.replacen("block.0", "block.00", 1)),
    ];
    let mut all = String::new();
    for (name, change) in cases {
        let files = files(change);
        let output = rekindle(&files.arguments());
        let text = without_folder(&seen(&output), &files.profile);
        all += &format!("===== {name}\n{text}");
    }
    assert_snapshot!("simulate_refused", all);
    let files = files(|_, plan| *plan = plan.replacen("67108864", "1048576", 1));
    let output = rekindle(&[&files.arguments()[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(json(&output)["legal"], false);
    assert!(json(&output)["reason"].as_str().unwrap().contains("the budget is 1.0 MiB"));
}

/// A plan with the right bytes in a name cleared the screen of whoever looked at it.
#[test]
fn what_a_file_says_does_not_move_the_cursor() {
    let changes: [Change; 2] = [
        |_, plan| *plan = plan.replacen("\"sqrt\"", "\"\\u001b[2Jsqrt\"", 1),
        |_, plan| *plan = plan.replacen("tape 3", "\\u001b[2Jtape 3", 1),
    ];
    for change in changes {
        let files = files(change);
        let output = rekindle(&files.arguments());
        let text = [&output.stdout[..], &output.stderr[..]].concat();
        assert!(!text.contains(&0x1b), "{}", seen(&output));
        assert!(seen(&output).contains("\\u{1b}[2J"), "{}", seen(&output));
    }
}

#[test]
fn bad_requests_exit_with_2_and_a_hint() {
    let mut all = String::new();
    for arguments in [
        vec!["train", "--strategy", "sqr"],
        vec!["train", "--steps", "0"],
        vec!["train", "--heads", "3"],
        vec!["train", "--layers", "0"],
        vec!["train", "--layers", "99999999999"],
        vec!["train", "--layers", "100000", "--strategy", "full"],
        vec!["train", "--dropout", "1"],
        vec!["train", "--dropout", "NaN"],
        vec!["train", "--learning-rate", "-1"],
        vec!["train", "--data", "no/such/file"],
        vec!["train", "--sequence", "10000000"],
        vec!["train", "--budget", "0.3"],
        vec!["train", "--budget", "-5%"],
        vec!["train", "--margin", "5%", "--plan", "plan.json"],
        vec!["plan", "profile.json", "--budget", "0.25"],
        vec!["report", "--svg", "-o", "/dev/null"],
        vec!["simulate", "no/such/profile.json", "plan.json"],
        vec!["bench", "--strategies", "plain,every-0"],
        vec!["frobnicate"],
    ] {
        let output = rekindle(&arguments);
        assert_eq!(output.status.code(), Some(2), "{}", seen(&output));
        assert!(output.stdout.is_empty());
        let error = String::from_utf8(output.stderr).unwrap();
        all += &format!("$ rekindle {}\n{error}\n", arguments.join(" "));
    }
    // What is free differs from machine to machine, and from run to run.
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"\d+(\.\d+)? [KMGT]iB of memory", "[FREE] of memory");
    settings.bind(|| assert_snapshot!("bad_requests", all));
}

#[test]
fn a_model_too_large_for_the_machine_is_refused_before_it_is_built() {
    let output = rekindle(&["train", "--width", "16777216"]);
    assert_eq!(output.status.code(), Some(2), "{}", seen(&output));
    assert!(String::from_utf8(output.stderr).unwrap().contains("this model needs at least"));
}

/// `rekindle bench | head -1` once ended in a panic.
#[test]
fn a_reader_that_closes_its_end_is_no_panic() {
    let files = files(|_, _| ());
    let mut command = Command::new(env!("CARGO_BIN_EXE_rekindle"));
    let command = command.args(files.arguments()).stdout(std::process::Stdio::piped());
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", seen(&output));
    assert!(output.stderr.is_empty(), "{}", seen(&output));
}

/// `rekindle train 2>&1 | head -1`, and a log on a full disk, once ended in a panic after all the work.
#[cfg(target_os = "linux")]
#[test]
fn words_that_nobody_can_read_are_no_panic() {
    let full = || Stdio::from(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Stdio::from(writer)
    };
    for (arguments, code) in
        [(tiny("train", &["--steps", "1", "--json"]), 0), (vec!["train", "--heads", "3"], 2)]
    {
        for stderr in [full(), closed()] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_rekindle"));
            let output = command.args(&arguments).stderr(stderr).output().unwrap();
            assert_eq!(output.status.code(), Some(code), "{arguments:?}");
            assert_eq!(output.stdout.is_empty(), code != 0);
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_under_the_output_is_a_failure_with_words() {
    let files = files(|_, _| ());
    let mut command = Command::new(env!("CARGO_BIN_EXE_rekindle"));
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = command.args(files.arguments()).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", seen(&output));
    assert!(String::from_utf8(output.stderr).unwrap().contains("cannot write the result"));
}

#[cfg(unix)]
#[test]
fn what_a_link_leads_to_is_written_and_devices_stay_devices() {
    use std::os::unix::fs::FileTypeExt;
    let folder = tempfile::tempdir().unwrap();
    let [file, link] = ["file.json", "link.json"].map(|name| folder.path().join(name));
    std::fs::write(&file, "old").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let profile = |to: &str| rekindle(&tiny("profile", &["--trace", "-o", to]));
    let output = profile(&link.display().to_string());
    assert_eq!(output.status.code(), Some(0), "{}", seen(&output));
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert!(std::fs::read_to_string(&file).unwrap().contains("rekindle.profile/1"));
    let output = profile("/dev/full");
    assert_eq!(output.status.code(), Some(1), "{}", seen(&output));
    assert!(std::fs::metadata("/dev/full").unwrap().file_type().is_char_device());
    for arguments in [
        &["simulate", "/dev/zero", "/dev/zero"][..],
        &["train", "--data", "/dev/zero"],
        &["train", "--model", "lstm", "--data", "/dev/zero"],
        &["train", "--plan", "/dev/zero"],
        &["train", "--cache", "/dev/full"],
        &["train", "--weights", "/dev/zero"],
        &["report", "/dev/zero", "-o", "/dev/null"],
        &["sample", "/dev/zero"],
    ] {
        let output = rekindle(arguments);
        assert_eq!(output.status.code(), Some(2), "{}", seen(&output));
        assert!(seen(&output).contains("is a device, which may never end"), "{}", seen(&output));
    }
}

#[test]
fn a_loss_that_explodes_is_a_failure_with_a_hint() {
    let output = rekindle(&tiny("train", &["--steps", "40", "--learning-rate", "1e30"]));
    assert_eq!(output.status.code(), Some(1), "{}", seen(&output));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("the loss is") && error.contains("hint: try a smaller --learning-rate"),
        "{error}"
    );
}

/// Hides the folder and the fingerprint; figures of the planner are the same everywhere.
fn planned(arguments: &[&str], files: &Files) -> String {
    without_folder(&seen(&rekindle(arguments)), &files.profile)
}

#[test]
fn plan_says_what_it_found_and_how_good_it_is() {
    let files = files(|_, _| {});
    let profile = files.profile.to_str().unwrap();
    assert_snapshot!(planned(&["plan", profile, "--budget", "30MiB"], &files));
}

#[test]
fn plan_writes_a_plan_that_simulate_and_explain_read() {
    let files = files(|_, _| {});
    let profile = files.profile.to_str().unwrap();
    let made = files.profile.with_file_name("made.json");
    let made = made.to_str().unwrap();
    let output = rekindle(&["plan", profile, "--budget", "70%", "--margin", "5%", "-o", made, "--json"]);
    assert!(output.status.success(), "{}", seen(&output));
    assert_eq!(
        json(&output),
        serde_json::from_str::<serde_json::Value>(&std::fs::read_to_string(made).unwrap()).unwrap()
    );
    let plan = json(&output);
    assert_eq!(plan["solver"], "optimal");
    assert_eq!(plan["status"], "optimal");
    let (peak, budget) =
        (plan["predicted"]["peak_bytes"].as_u64().unwrap(), plan["budget_bytes"].as_u64().unwrap());
    assert!(peak as f64 * 1.05 <= budget as f64);
    assert_eq!(plan["predicted"]["lower_bound_ns"], plan["predicted"]["step_ns"]);
    let judged = json(&rekindle(&["simulate", profile, made, "--json"]));
    assert_eq!(judged["peak_bytes"], plan["predicted"]["peak_bytes"]);
    assert_eq!(judged["forwards"], plan["predicted"]["forwards"]);
    assert_snapshot!(planned(&["explain", profile, made], &files));
    let story = json(&rekindle(&["explain", profile, made, "--json"]));
    let forwards: u64 =
        story["stages"].as_array().unwrap().iter().map(|stage| stage["forwards"].as_u64().unwrap()).sum();
    assert_eq!(plan["predicted"]["forwards"], forwards);
}

#[test]
fn explain_says_what_is_moved_and_how_long_it_is_waited_for() {
    let files = files(|profile, _| {
        let tiers = r#", "tiers": [{"name": "disk", "capacity_bytes": 99999999, "write_bytes_per_second": 100000000, "read_bytes_per_second": 200000000}]}"#;
        *profile = profile.trim_end().strip_suffix('}').unwrap().to_owned() + tiers;
    });
    let actions =
        ["keep x0", "forward 1", "offload x0 disk", "drop x0", "tape 2", "tape 3", "tape 4", "backward 4"];
    let actions = [
        &actions[..],
        &["backward 3", "backward 2", "fetch x0 disk", "drop x0 disk", "tape 1", "backward 1"],
    ]
    .concat();
    let profile = Profile::from_json(&std::fs::read_to_string(&files.profile).unwrap()).unwrap();
    let actions: Vec<Action> = actions.iter().map(|action| action.parse().unwrap()).collect();
    let plan =
        Plan::judged(&profile, "by hand".to_owned(), Status::Rule("hand".parse().unwrap()), None, actions)
            .unwrap();
    std::fs::write(&files.plan, plan.to_json()).unwrap();
    let [_, profile, plan] = files.arguments();
    let story = json(&rekindle(&["explain", profile, plan, "--json"]));
    let moved = &story["transfers"][0];
    assert_eq!((&moved["place"], &moved["count"]), (&"disk".into(), &2.into()), "{story}");
    // One mebibyte there and back: at 100 MB/s and at 200 MB/s.
    assert_eq!((&moved["bytes"], &moved["time_ns"]), (&(2 << 20).into(), &15_728_640.into()), "{story}");
    let judged = json(&rekindle(&["simulate", profile, plan, "--json"]));
    assert!(judged["wait_ns"].as_u64() > Some(0), "{judged}");
    assert_eq!(story["wait_ns"], judged["wait_ns"]);
    let words = planned(&["explain", profile, plan], &files);
    assert!(
        words.contains("moved to and from  transfers    bytes") && words.contains("waited for transfers"),
        "{words}"
    );
}

#[test]
fn every_solver_plans_from_the_command_line() {
    let files = files(|profile, _| {
        let tiers = r#", "tiers": [{"name": "host", "capacity_bytes": 99999999, "write_bytes_per_second": 1000000000, "read_bytes_per_second": 1000000000}]}"#;
        *profile = profile.trim_end().strip_suffix('}').unwrap().to_owned() + tiers;
    });
    let profile = files.profile.to_str().unwrap();
    for solver in
        ["optimal", "revolve", "mixed", "online", "multi-level", "disk-revolve", "eager", "sqrt", "every-2"]
    {
        let output = rekindle(&["plan", profile, "--solver", solver, "--budget", "64MiB", "--json"]);
        assert!(output.status.success(), "{solver}: {}", seen(&output));
        assert_eq!(json(&output)["solver"], solver);
    }
    for solver in ["revolve", "mixed", "online"] {
        let output = rekindle(&["plan", profile, "--solver", solver, "--slots", "2", "--json"]);
        assert!(output.status.success(), "{solver}: {}", seen(&output));
    }
    assert_snapshot!(planned(&["plan", "--solver"], &files));
}

#[test]
fn plans_that_cannot_be_are_refused_with_what_can() {
    let files = files(|_, _| {});
    let profile = files.profile.to_str().unwrap();
    let seen = [
        planned(&["plan", profile, "--budget", "5MiB"], &files),
        planned(&["plan", profile], &files),
        planned(&["plan"], &files),
        planned(&["plan", profile, "--budget", "lots"], &files),
        planned(&["plan", profile, "--budget", "1e9%"], &files),
        planned(&["plan", profile, "--budget", "30MiB", "--solver", "magic"], &files),
        planned(&["plan", profile, "--budget", "30MiB", "--margin", "NaN"], &files),
        planned(&["plan", profile, "--solver", "store-all", "--budget", "30MiB"], &files),
        planned(&["plan", "missing.json", "--budget", "30MiB"], &files),
    ];
    assert_snapshot!(seen.join("\n"));
}

#[test]
fn frontier_draws_a_picture_and_lists_every_point() {
    let files = files(|_, _| {});
    let profile = files.profile.to_str().unwrap();
    assert_snapshot!(planned(&["frontier", profile], &files));
    let found = json(&rekindle(&["frontier", profile, "--json"]));
    let points = found["points"].as_array().unwrap();
    assert_eq!(points[0]["budget_bytes"], found["smallest_budget_bytes"]);
    assert_eq!(points[points.len() - 1]["step_ns"], found["fastest_ns"]);
    assert_eq!(found["complete"], true);
    for pair in points.windows(2) {
        assert!(pair[0]["budget_bytes"].as_u64() < pair[1]["budget_bytes"].as_u64());
        assert!(pair[0]["step_ns"].as_u64() > pair[1]["step_ns"].as_u64());
    }
}

#[test]
fn the_plan_at_a_point_of_the_frontier_is_as_fast_as_the_point() {
    let files = files(|_, _| {});
    let profile = files.profile.to_str().unwrap();
    let made = files.profile.with_file_name("at.json");
    let made = made.to_str().unwrap();
    let found = json(&rekindle(&["frontier", profile, "--json"]));
    for point in found["points"].as_array().unwrap() {
        let budget = point["budget_bytes"].to_string();
        let plan = json(&rekindle(&["frontier", profile, "--budget", &budget, "--json", "-o", made]));
        assert_eq!(plan["format"], "rekindle.plan/1");
        assert_eq!(plan["predicted"]["step_ns"], point["step_ns"]);
        assert_eq!(json(&rekindle(&["simulate", profile, made, "--json"]))["step_ns"], point["step_ns"]);
    }
    let below = found["smallest_budget_bytes"].as_u64().unwrap() - 1;
    let output = rekindle(&["frontier", profile, "--budget", &below.to_string()]);
    assert_eq!(output.status.code(), Some(2), "{}", seen(&output));
    assert!(seen(&output).contains(&format!("--budget {} or more", below + 1)), "{}", seen(&output));
}

const GRAPH: &str = r#"{"format": "rekindle.graph/1", "model": "two", "device": "none",
 "nodes": [{"name": "a", "kind": "forward",  "time_ns": 1000000, "bytes": 1048576},
           {"name": "b", "kind": "forward",  "time_ns": 1000000, "bytes": 1048576},
           {"name": "c", "kind": "forward",  "time_ns": 1000000, "bytes": 1048576},
           {"name": "d", "kind": "backward", "time_ns": 1000000, "bytes": 1048576},
           {"name": "e", "kind": "backward", "time_ns": 1000000, "bytes": 1048576}],
 "edges": [["a", "b"], ["b", "c"], ["c", "d"], ["b", "d"], ["d", "e"], ["a", "e"]]}"#;

#[test]
fn graphs_are_planned_and_judged() {
    let files = files(|profile, _| *profile = GRAPH.to_owned());
    let graph = files.profile.to_str().unwrap();
    let made = files.profile.with_file_name("made.json");
    let made = made.to_str().unwrap();
    let output = rekindle(&["plan", graph, "--budget", "3MiB", "--json", "-o", made]);
    assert!(output.status.success(), "{}", seen(&output));
    let plan = json(&output);
    assert_eq!(plan["format"], "rekindle.graph-plan/1");
    assert_eq!(plan["status"], "optimal");
    assert_eq!(plan["predicted"]["computes"], 6);
    assert_eq!(
        json(&rekindle(&["simulate", graph, made, "--json"]))["peak_bytes"],
        plan["predicted"]["peak_bytes"]
    );
    for solver in ["store-all", "min-cut"] {
        let output = rekindle(&["plan", graph, "--solver", solver, "--json"]);
        assert!(output.status.success(), "{solver}: {}", seen(&output));
    }
    // What it keeps is within the budget; its peak is not, and it says so.
    let output = rekindle(&["plan", graph, "--solver", "knapsack", "--budget", "1MiB", "--json"]);
    assert!(output.status.success() && seen(&output).contains("is over it"), "{}", seen(&output));
    for solver in ["store-all", "min-cut"] {
        let output = rekindle(&["plan", graph, "--solver", solver, "--budget", "1MiB"]);
        assert_eq!(output.status.code(), Some(2), "{solver}: {}", seen(&output));
    }
    let cyclic = files.profile.with_file_name("cyclic.json");
    std::fs::write(&cyclic, GRAPH.replace(r#"["a", "e"]"#, r#"["e", "a"]"#)).unwrap();
    let seen = [
        planned(&["plan", graph, "--budget", "3MiB"], &files),
        planned(&["simulate", graph, made], &files),
        planned(&["plan", graph, "--budget", "1MiB"], &files),
        planned(&["plan", graph, "--budget", "3MiB", "--solver", "revolve"], &files),
        planned(&["plan", graph, "--slots", "3"], &files),
        planned(&["plan", cyclic.to_str().unwrap(), "--budget", "3MiB"], &files),
    ];
    assert_snapshot!(seen.join("\n"));
}

#[test]
fn a_report_of_a_file_takes_no_flags_of_a_model() {
    for flags in [["--layers", "2"], ["--model", "gru"], ["--compress", "bf16"], ["--seed", "1"]] {
        let output = rekindle(&[&["report", "planned.json"], &flags[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{}", seen(&output));
        assert!(seen(&output).contains("cannot be used with"), "{}", seen(&output));
    }
}
