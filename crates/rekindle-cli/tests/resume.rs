//! A training that stops and goes on is one that never stopped.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rekindle_run::snapshots::{Snapshot, Snapshots};

fn train(folder: &Path, arguments: &[&str]) -> Command {
    let size = ["--layers", "2", "--width", "32", "--heads", "2", "--sequence", "16", "--batch", "2"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_rekindle"));
    command.env_remove("REKINDLE_CONFIG").args(["train", "--json", "--snapshots"]).arg(folder);
    command.args(size).args(arguments).stdout(Stdio::null());
    command
}

fn done(folder: &Path, arguments: &[&str]) {
    let output = train(folder, arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn refused(folder: &Path, arguments: &[&str]) -> String {
    let output = train(folder, arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Weights by name, without the numbers that Burn gives parameters anew in every process.
fn weights(folder: &Path, step: u64) -> Vec<u8> {
    let snapshot: Snapshot = Snapshots::open(folder, 3).unwrap().read(step).unwrap();
    let record = burn::store::ModuleRecord::from_bytes(burn::tensor::Bytes::from_bytes_vec(
        snapshot.section("weights").unwrap().to_vec(),
    ));
    let device = burn::tensor::Device::flex();
    let config = rekindle_models::GptConfig::new(256, 32, 2, 2, 16);
    let model = config.init(&device).unwrap();
    let model = burn::module::Module::load_record(model, record.unwrap());
    struct Collect(Vec<u8>);
    impl burn::module::ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &burn::module::Param<burn::tensor::Tensor<D>>) {
            self.0.extend_from_slice(param.val().into_data().as_bytes());
        }
    }
    let mut collect = Collect(Vec::new());
    burn::module::Module::visit(&model, &mut collect);
    collect.0
}

#[test]
fn a_run_that_goes_on_under_another_plan_has_the_same_weights() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    done(whole.path(), &["--steps", "9", "--strategy", "plain"]);
    done(parts.path(), &["--steps", "4", "--strategy", "every-1"]);
    done(parts.path(), &["--steps", "7", "--resume", "--budget", "smallest"]);
    done(parts.path(), &["--steps", "9", "--resume", "--strategy", "sqrt"]);
    assert_eq!(weights(whole.path(), 9), weights(parts.path(), 9));
    let words = refused(parts.path(), &["--steps", "9", "--resume"]);
    assert!(words.contains("the run is through: 9 of 9 steps are done"), "{words}");
}

#[test]
fn snapshots_of_another_run_are_refused_by_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let words = refused(folder.path(), &["--resume"]);
    assert!(words.contains("has no snapshot to go on from"), "{words}");
    done(folder.path(), &["--steps", "2"]);
    let words = refused(folder.path(), &["--steps", "4"]);
    assert!(words.contains("has snapshots already, up to step 2") && words.contains("--resume"), "{words}");
    let words = refused(folder.path(), &["--steps", "4", "--resume", "--seed", "2"]);
    assert!(words.contains("is of another run; seed: found 1, expected 2"), "{words}");
    let words = refused(folder.path(), &["--steps", "4", "--resume", "--dropout", "0.2"]);
    assert!(words.contains("is of another run; model: found gpt, 2 blocks"), "{words}");
    let file = folder.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    refused(&file, &["--steps", "4"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn a_snapshot_that_cannot_be_written_costs_no_training() {
    let (whole, parent) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let often = ["--steps", "200", "--snapshot-every", "1", "--strategy", "every-1"];
    done(whole.path(), &often);
    let (folder, away) = (parent.path().join("snapshots"), parent.path().join("away"));
    let child = train(&folder, &often).stderr(Stdio::piped()).spawn().unwrap();
    let is_snapshot = |file: std::io::Result<std::fs::DirEntry>| {
        file.unwrap().path().extension() == Some("rekindle".as_ref())
    };
    while !std::fs::read_dir(&folder).is_ok_and(|mut files| files.any(is_snapshot)) {
        std::thread::sleep(Duration::from_millis(1));
    }
    // As a disk that is unmounted.
    std::fs::rename(&folder, &away).unwrap();
    std::fs::write(&folder, "no directory").unwrap();
    let output = child.wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    // It trained on, said so, and could not write the last one either.
    assert_eq!(output.status.code(), Some(2), "{words}");
    assert!(words.contains("hint: ") && !words.contains("panicked"), "{words}");
    std::fs::remove_file(&folder).unwrap();
    std::fs::rename(&away, &folder).unwrap();
    done(&folder, &[&often[..], &["--resume"]].concat());
    assert_eq!(weights(whole.path(), 200), weights(&folder, 200));
}

/// The highest step that a file in the folder says it is of.
fn newest(folder: &Path) -> Option<u64> {
    let files = std::fs::read_dir(folder).ok()?;
    let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
    let step = |name: String| name.strip_prefix("step-")?.strip_suffix(".rekindle")?.parse().ok();
    names.filter_map(step).max()
}

/// Kills a run that takes so many steps with these arguments twenty times. Gives how many kills found it further than the one before.
fn killed_twenty_times(folder: &Path, steps: u64, arguments: &[&str]) -> u32 {
    let mut random = fastrand::Rng::with_seed(7);
    let last = || {
        let latest = Snapshots::open(folder, 2).unwrap().latest().unwrap();
        latest.snapshot.map_or(0, |snapshot| snapshot.step())
    };
    let mut further = 0;
    for round in 0..20 {
        let before = last();
        assert!(before < steps, "the run was through before its kill {round}");
        let resume: &[&str] = if before > 0 { &["--resume"] } else { &[] };
        let mut child = train(folder, &[arguments, resume].concat()).stderr(Stdio::null()).spawn().unwrap();
        if round % 2 == 0 {
            // Somewhere between the first look at the directory and the first steps.
            std::thread::sleep(Duration::from_millis(random.u64(5..120)));
        } else {
            // While it trains: it has come further than the last one, and is at some moment of a step or of a snapshot.
            while newest(folder).is_none_or(|newest| newest <= before) {
                assert!(child.try_wait().unwrap().is_none(), "the run ended by itself after step {before}");
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_micros(random.u64(0..20_000)));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let now = last();
        assert!(now >= before && (round % 2 == 0 || now > before), "kill {round}: from {before} to {now}");
        further += u32::from(now > before);
    }
    done(folder, &[arguments, &["--resume"]].concat());
    further
}

#[test]
fn a_run_that_is_killed_twenty_times_ends_with_the_same_weights() {
    let (whole, killed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let often = ["--steps", "400", "--snapshot-every", "1", "--keep", "2", "--strategy", "every-1"];
    done(whole.path(), &often);
    assert!(killed_twenty_times(killed.path(), 400, &often) >= 10);
    assert_eq!(weights(whole.path(), 400), weights(killed.path(), 400));
}

#[test]
fn a_run_with_a_disk_that_is_killed_twenty_times_ends_with_the_same_weights() {
    let (whole, killed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let boundaries = folder.path().join("boundaries");
    std::fs::create_dir(&boundaries).unwrap();
    let (plan, disk) = (folder.path().join("plan.json"), format!("64MiB:{}", boundaries.display()));
    let plan = plan.to_str().unwrap();
    let made = tempfile::tempdir().unwrap();
    done(made.path(), &["--steps", "1", "--budget", "smallest", "--disk", &disk, "--cache", plan]);
    assert!(std::fs::read_to_string(plan).unwrap().contains("offload"), "the plan moves nothing");
    done(whole.path(), &["--steps", "200", "--strategy", "plain"]);
    let often = ["--steps", "200", "--snapshot-every", "1", "--keep", "2", "--plan", plan, "--disk", &disk];
    assert!(killed_twenty_times(killed.path(), 200, &often) >= 10);
    assert_eq!(weights(whole.path(), 200), weights(killed.path(), 200));
    // What those that were killed left behind is gone with the one that was not.
    assert_eq!(std::fs::read_dir(&boundaries).unwrap().count(), 0);
}
