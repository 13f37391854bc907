//! From a budget to a run, as people and programs see it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by panicking")]

use std::path::Path;
use std::process::{Command, Output};

use insta::assert_snapshot;
use rekindle_plan::{Plan, Profile};

fn rekindle(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rekindle"));
    command.args(arguments).env("NO_COLOR", "1").env("COLUMNS", "100").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Large enough that its tensors, and not the nodes of graphs, are what takes memory.
const SMALL: [&str; 10] =
    ["--layers", "4", "--width", "64", "--heads", "4", "--sequence", "64", "--batch", "4"];

fn small<'a>(command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [command].iter().chain(&SMALL).chain(more).copied().collect()
}

fn done(arguments: &[&str]) -> Output {
    let output = rekindle(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    output
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A refusal's words, without what differs from run to run.
fn refused(arguments: &[&str], folder: &Path) -> String {
    let output = rekindle(arguments);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(output.stdout.is_empty());
    text(&output.stderr).replace(folder.to_str().unwrap(), "[FOLDER]")
}

fn steady() -> insta::Settings {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.add_filter(r"\d+(\.\d+)? (B|KiB|MiB)", "[BYTES]");
    settings.add_filter(r"\d+(\.\d+)? (ns|us|ms|s)\b", "[TIME]");
    settings.add_filter(r"\b\d{5,} bytes", "[N] bytes");
    settings.add_filter(r"--(budget|memory) \d{5,}", "--$1 [N]");
    settings.add_filter(r"xxh3-128:[0-9a-f]{32}", "[FINGERPRINT]");
    settings.add_filter(r"\d+% apart", "[N]% apart");
    settings.add_filter(r"\[TIME\] +\d+%", "[TIME]  [N]%");
    // Two stages need nearly as much; what threads allocate for good decides.
    settings.add_filter(r", which `.*`\)? with .* needs\.", ", which [ACTION] with [TENSORS] needs.");
    settings.add_filter(r"EOF while parsing .* at line \d+ column \d+", "EOF at [PLACE]");
    settings.add_filter(r" {2,}", "  ");
    settings
}

#[test]
fn every_kind_of_budget_is_kept_and_predicted() {
    for budget in
        [&["--budget", "60%"][..], &["--budget", "auto"], &["--budget", "smallest"], &["--memory", "1GiB"]]
    {
        let found = json(&done(&small("train", &[&["--steps", "2", "--json"][..], budget].concat())));
        let bytes = |value: &serde_json::Value| value.as_u64().unwrap_or_else(|| panic!("{value}"));
        let (peak, limit) = (bytes(&found["peak_bytes"]), bytes(&found["budget_bytes"]));
        assert!(peak <= limit, "{budget:?}: {peak} over {limit}");
        let predicted = bytes(&found["predicted"]["peak_bytes"]);
        let off = peak as f64 / predicted as f64 - 1.0;
        assert!(off.abs() < 0.15, "{budget:?}: {peak}, but {predicted} predicted");
        assert!(!found["predicted"]["set_by"].as_array().unwrap().is_empty());
        assert_eq!(found["gradients"]["identical"], found["gradients"]["tensors"], "{budget:?}");
        assert!(bytes(&found["totals"]["all"]) > bytes(&found["totals"]["weights"]) * 3);
    }
}

#[test]
fn a_budget_that_nothing_fits_names_the_smallest() {
    let folder = tempfile::tempdir().unwrap();
    let words = [
        refused(&small("train", &["--budget", "100KiB"]), folder.path()),
        refused(&small("train", &["--memory", "1MiB"]), folder.path()),
        refused(&small("train", &["--memory", "25%"]), folder.path()),
        refused(&small("train", &["--budget", "much"]), folder.path()),
        refused(&small("train", &["--budget", "1GiB", "--strategy", "full"]), folder.path()),
    ];
    steady().bind(|| assert_snapshot!("budgets_refused", words.join("\n")));
}

#[test]
fn a_cached_plan_is_used_again_and_refused_for_another_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    let cache = path.to_str().unwrap();
    let train = |more: &[&'static str]| {
        let more: Vec<&str> =
            [&["--steps", "1", "--json", "--cut", "parts", "--cache", cache][..], more].concat();
        rekindle(&small("train", &more).to_vec())
    };
    assert!(train(&["--budget", "70%"]).status.success());
    let first = std::fs::read_to_string(&path).unwrap();
    assert!(train(&["--budget", "70%"]).status.success());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), first, "nothing was measured or planned again");
    // The file is a profile and a plan to every command that reads one.
    done(&["frontier", cache]);
    done(&["explain", cache, cache]);
    done(&["simulate", cache, cache]);
    // The plan runs by itself, too.
    let found = json(&done(&small("train", &["--steps", "1", "--json", "--plan", cache])));
    assert_eq!(found["gradients"]["identical"], found["gradients"]["tensors"]);
    let other = |more: &[&'static str]| {
        let arguments: Vec<&str> = [&small("train", &["--plan", cache])[..], more].concat();
        let arguments: Vec<&str> = arguments.into_iter().collect();
        refused(&arguments, folder.path())
    };
    let mut words = vec![other(&["--dropout", "0.3"])];
    // The plan of parts was once run without a word.
    let blocks = small("train", &["--cut", "blocks", "--budget", "80%", "--cache", cache]);
    words.push(refused(&blocks, folder.path()));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), first);
    std::fs::write(&path, &first[..first.len() / 2]).unwrap();
    words.push(other(&[]));
    std::fs::write(&path, "{\"format\": \"rekindle.planned/9\"}").unwrap();
    words.push(other(&[]));
    steady().bind(|| assert_snapshot!("plans_refused", words.join("\n")));
}

/// The smallest budget of parts was named, where that of blocks is smaller.
#[test]
fn the_smallest_budget_that_is_named_is_that_of_the_better_cut() {
    let named = |cut: &str| {
        let output = rekindle(&small("train", &["--steps", "1", "--budget", "1000", "--cut", cut]));
        assert_eq!(output.status.code(), Some(2), "{cut}");
        let words = text(&output.stderr);
        let (_, hint) = words.split_once("give --budget ").unwrap();
        hint.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let better = named("blocks").min(named("parts"));
    // What is measured differs a little from run to run.
    assert!(named("auto") <= better + better / 50, "{} {better}", named("auto"));
}

#[test]
fn a_profile_a_plan_and_a_run_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (profile, plan, page) = (at("profile.json"), at("plan.json"), at("page.html"));
    for cut in ["parts", "blocks"] {
        let output = done(&small("profile", &["--cut", cut, "--runs", "2", "-o", &profile]));
        if cut == "blocks" {
            let seen = text(&output.stdout);
            steady().bind(|| assert_snapshot!("profile", seen));
        }
        let known = Profile::from_json(&std::fs::read_to_string(&profile).unwrap()).unwrap();
        assert_eq!(known.stages().len(), if cut == "parts" { 26 } else { 6 });
        // What Burn's graphs take for themselves is in no profile, and tells in a model this small: up to 0.9% of the peak in
        // parts of blocks. `train` leaves as much free by itself. And its kernels take a few percent more in a run where two of their
        // threads happen to need the most at the same time, which two measurements do not both see.
        done(&["plan", &profile, "--budget", "80%", "--margin", "10%", "-o", &plan]);
        let found =
            json(&done(&small("train", &["--steps", "1", "--json", "--plan", &plan, "--profile", &profile])));
        assert_eq!(found["gradients"]["identical"], found["gradients"]["tensors"], "{cut}");
        assert!(found["peak_bytes"].as_u64() <= found["budget_bytes"].as_u64(), "{cut}");
    }
    // For a model of another size.
    let arguments = ["train", "--layers", "5", "--plan", &plan, "--profile", &profile];
    let mut words = vec![refused(&arguments, folder.path())];
    let arguments = ["train", "--layers", "4", "--width", "64", "--plan", &plan, "--profile", &profile];
    words.push(refused(&arguments, folder.path()));
    words.push(refused(&small("train", &["--plan", &plan]), folder.path()));
    // Of stages that are as large, by chance.
    let llama = small("train", &["--model", "llama", "--plan", &plan, "--profile", &profile]);
    words.push(refused(&llama, folder.path()));
    steady().bind(|| assert_snapshot!("profiles_refused", words.join("\n")));
    done(&["report", &profile, "--plan", &plan, "-o", &page, "--svg"]);
    assert!(std::fs::read_to_string(&page).unwrap().contains("block.3"));
    assert!(Path::new(&at("page.memory.svg")).exists() && Path::new(&at("page.frontier.svg")).exists());
    let other = Plan::from_json(&std::fs::read_to_string(&plan).unwrap()).unwrap();
    assert_eq!(other.status.to_string(), "optimal");
}

#[test]
fn a_report_of_a_run_shows_what_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    done(&small("report", &["--cut", "parts", "--budget", "60%", "-o", page.to_str().unwrap()]));
    let html = std::fs::read_to_string(&page).unwrap();
    for words in ["Predicted and measured", "The frontier", "optimizer state", "block.0.attention"] {
        assert!(html.contains(words), "{words}");
    }
    assert!(!html.contains("http://") || !html.contains("src="), "nothing comes from a network");
}

/// The sum of gradients was not counted, one part was measured, nothing was clipped, and the page did not say so.
#[test]
fn a_report_counts_what_the_recipe_takes() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let recipe = ["--cut", "blocks", "--micro-batches", "4", "--clip-norm", "0.5"];
    let reported = |more: &[&str]| {
        let more = [&recipe[..], more, &["-o", page.to_str().unwrap()]].concat();
        done(&small("report", &more));
        std::fs::read_to_string(&page).unwrap()
    };
    let html = reported(&["--budget", "smallest"]);
    for words in [
        "gpt, 4 blocks, width 64, 4 heads, batch 4 in 4 parts, 64 tokens, dropout 0.1, clipped to 0.5",
        "A whole step took ",
        " of them sums of gradients, which were held the whole time",
        "what follows is of one part",
    ] {
        assert!(html.contains(words), "{words}: {html}");
    }
    // A budget is for the sum, too: the smallest is that of training.
    let smallest = |command: &str| {
        let output = rekindle(&small(command, &[&recipe[..], &["--budget", "1000"]].concat()));
        assert_eq!(output.status.code(), Some(2), "{command}");
        let words = text(&output.stderr);
        assert!(words.contains("are held the whole time (sums of gradients)"), "{words}");
        let (_, hint) = words.split_once("give --budget ").unwrap();
        hint.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let (named, trained) = (smallest("report"), smallest("train"));
    // What is named is in steps of 64 KiB.
    assert!(named.abs_diff(trained) <= trained / 20 + (64 << 10), "{named} {trained}");
    let html = reported(&["--budget", &named.to_string()]);
    assert!(!html.contains("The measured peak is above the budget"), "{html}");
}

#[cfg(unix)]
#[test]
fn a_file_that_cannot_be_written_is_refused_before_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("nowhere/at-all.json");
    for command in ["profile", "report"] {
        // Such a model would take minutes to measure, and more memory than there is.
        let sizes = ["--layers", "500", "--width", "2048", "--sequence", "4096", "--batch", "64"];
        let arguments = [&[command, "-o", nowhere.to_str().unwrap()][..], &sizes].concat();
        let output = rekindle(&arguments);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("cannot write"), "{}", text(&output.stderr));
    }
    let output = rekindle(&small("train", &["--cache", nowhere.to_str().unwrap()]));
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).starts_with("error: cannot write"), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_full_disk_leaves_the_old_plan() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    let train = |shell: &str, budget: &str| {
        let flags = small("train", &["--steps", "1", "--budget", budget, "--cache", plan.to_str().unwrap()]);
        let script = format!("{shell} exec {} {}", env!("CARGO_BIN_EXE_rekindle"), flags.join(" "));
        Command::new("sh").args(["-c", &script]).output().unwrap()
    };
    let output = train("", "70%");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let old = std::fs::read_to_string(&plan).unwrap();
    let output = train("trap '' XFSZ; ulimit -f 1;", "80%");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("cannot write the plan to"), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("the room on the disk"), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_to_string(&plan).unwrap(), old);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no part is left behind");
}

#[test]
fn a_profile_says_how_far_apart_its_times_lay() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profile.json");
    let flags = ["--cut", "blocks", "--runs", "3", "--json"];
    let output = done(&small("profile", &flags));
    let found = json(&output);
    let spreads = found["measured"]["spreads"].as_array().unwrap();
    assert_eq!((spreads.len(), &found["measured"]["runs"]), (6, &3.into()));
    let parts = spreads.iter().flat_map(|spread| [&spread["forward"], &spread["backward"]]);
    let largest = parts.map(|part| part.as_f64().unwrap()).fold(0.0, f64::max);
    assert!(largest > 0.0 && found["measured"]["noise"].as_f64() == Some(largest), "{found}");
    // What is printed is planned like what is written to a file, which has none of it.
    std::fs::write(&path, &output.stdout).unwrap();
    done(&["plan", path.to_str().unwrap(), "--budget", "80%"]);
    let traced = json(&done(&small("profile", &["--trace", "--json"])));
    assert!(traced["measured"].is_null());
}

#[test]
fn a_trace_needs_no_text_and_notes_no_more_of_attention_the_longer_it_is() {
    // It took gigabytes of notes.
    let long = ["--layers", "1", "--width", "16", "--heads", "2", "--batch", "1", "--sequence", "1000000"];
    done(&[&["profile", "--trace", "--cut", "blocks", "--json"][..], &long].concat());
    let sizes = ["--layers", "1", "--width", "16", "--heads", "2", "--batch", "1", "--sequence", "65536"];
    let found = json(&done(&[&["profile", "--trace", "--cut", "blocks", "--json"][..], &sizes].concat()));
    assert_eq!(found["stages"].as_array().unwrap().len(), 3);
    let output = rekindle(&[&["profile"][..], &sizes].concat());
    assert!(text(&output.stderr).contains("expected at least 65537"), "{}", text(&output.stderr));
}

#[test]
fn a_full_disk_leaves_the_old_report() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    std::fs::write(&page, "the old one").unwrap();
    // No file may grow beyond one block, as if the disk were full.
    let script = format!(
        "trap '' XFSZ; ulimit -f 1; exec {} report --layers 2 --width 32 --sequence 32 --batch 1 --budget smallest -o {}",
        env!("CARGO_BIN_EXE_rekindle"),
        page.display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("cannot write"), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains("hint: check the folder, its permissions and the room on the disk")
    );
    assert_eq!(std::fs::read_to_string(&page).unwrap(), "the old one");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no part is left behind");
}

/// What is held beside the steps was counted before all of it was there: examples that are held out, scratch memory of threads.
#[test]
fn memory_is_kept_with_everything_that_training_holds() {
    let models = [&["--model", "vit", "--layers", "3"][..], &["--model", "two-tower"]];
    for model in models {
        let train = |more: &[&str]| json(&done(&[&["train", "--json"], model, more].concat()));
        let all = train(&["--steps", "1", "--strategy", "store-all"])["totals"]["all"].as_u64().unwrap();
        let memory = all * 9 / 10;
        let found = train(&["--steps", "2", "--memory", &memory.to_string()]);
        assert!(found["totals"]["all"].as_u64().unwrap() <= memory, "{memory}: {found}");
    }
}

/// Such a plan was once run, and told in the end that it had taken more.
#[test]
fn a_plan_that_cannot_keep_its_budget_here_is_refused_before_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (profile, plan) = (at("profile.json"), at("plan.json"));
    done(&small("profile", &["--cut", "blocks", "-o", &profile]));
    // Tapes are a little larger than it says, as a trace may have it; what two measurements differ by is less.
    let mut low: serde_json::Value = serde_json::from_slice(&std::fs::read(&profile).unwrap()).unwrap();
    for stage in low["stages"].as_array_mut().unwrap() {
        let output = stage["output_bytes"].as_u64().unwrap();
        let lower = |tape: &mut serde_json::Value| {
            *tape = (tape.as_u64().unwrap() * 15 / 16).max(output).into();
        };
        lower(&mut stage["tape_bytes"]);
        stage["options"]
            .as_array_mut()
            .into_iter()
            .flatten()
            .for_each(|option| lower(&mut option["tape_bytes"]));
    }
    std::fs::write(&profile, low.to_string()).unwrap();
    let peak =
        json(&done(&["plan", &profile, "--budget", "80%", "--json"]))["predicted"]["peak_bytes"].to_string();
    // To the byte: nothing is left for what a region lists, either.
    done(&["plan", &profile, "--budget", &peak, "-o", &plan]);
    let words =
        refused(&small("train", &["--steps", "1", "--plan", &plan, "--profile", &profile]), folder.path());
    assert!(words.contains("as its stages are measured here it takes"), "{words}");
    assert!(words.contains("or with --margin "), "{words}");
}

#[test]
fn a_bench_leaves_out_what_there_is_no_plan_for() {
    let arguments = small("bench", &["--rounds", "1", "--json", "--strategies", "every-1,optimal-1%"]);
    let output = done(&arguments);
    let names: Vec<String> =
        json(&output)["rows"].as_array().unwrap().iter().map(|row| row["strategy"].to_string()).collect();
    assert_eq!(names, ["\"plain\"", "\"every-1\""]);
    assert!(
        text(&output.stderr).contains("`optimal-1%` is left out: error: no plan takes"),
        "{}",
        text(&output.stderr)
    );
    // Alone it is what was asked for.
    let words = refused(&small("bench", &["--rounds", "1", "--strategies", "optimal-1%"]), Path::new("/"));
    assert!(words.contains("no plan takes"), "{words}");
}
