//! Training while another process takes memory for real, in a control group with a limit.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Holds the peak of every step against the budget it ran under; how many steps there were.
fn governed(found: &Value) -> u64 {
    let rows = found["governed"].as_array().unwrap();
    rows.iter().fold(0, |last, row| {
        let of = |what: &str| row[what].as_u64().unwrap();
        assert_eq!(of("from_step"), last + 1, "{found}");
        assert!(of("most_bytes") > 0 && of("most_bytes") <= of("budget_bytes"), "{row}");
        of("to_step")
    })
}

/// A control group with a limit, below the one this process is in. It is removed when it is dropped.
struct Group {
    directory: PathBuf,
    /// What it uses, and what of that the kernel would drop first.
    used: &'static str,
    inactive: &'static str,
}

impl Group {
    /// None where groups cannot be made: nobody but root may, and not in every container.
    fn with_limit(bytes: u64) -> Option<Self> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let of = |start: fn(&str) -> bool| {
            let line = groups.lines().find_map(|line| line.split_once(':').filter(|(_, of)| start(of)))?;
            Some(line.1.split_once(':')?.1.trim_start_matches('/').to_owned())
        };
        let name = format!("rekindle-test-{}", std::process::id());
        let first = of(|of| of.starts_with("memory:")).map(|path| {
            let directory = Path::new("/sys/fs/cgroup/memory").join(path).join(&name);
            let (used, inactive) = ("memory.usage_in_bytes", "total_inactive_file ");
            (Self { directory, used, inactive }, "memory.limit_in_bytes")
        });
        let second = of(|of| of.starts_with(':')).map(|path| {
            let directory = Path::new("/sys/fs/cgroup").join(path).join(&name);
            (Self { directory, used: "memory.current", inactive: "inactive_file " }, "memory.max")
        });
        [first, second].into_iter().flatten().find_map(|(group, limit)| {
            // Where no group is, a directory is one like any other.
            let above = group.directory.parent()?;
            above.join("cgroup.procs").exists().then(|| std::fs::create_dir(&group.directory).ok())??;
            let file = std::fs::OpenOptions::new().write(true).open(group.directory.join(limit));
            file.ok()?.write_all(bytes.to_string().as_bytes()).ok()?;
            group.used()?;
            Some(group)
        })
    }

    /// What its processes use, without what the kernel would drop first.
    fn used(&self) -> Option<u64> {
        let used: u64 = std::fs::read_to_string(self.directory.join(self.used)).ok()?.trim().parse().ok()?;
        let stat = std::fs::read_to_string(self.directory.join("memory.stat")).ok()?;
        let inactive = stat.lines().find_map(|line| line.strip_prefix(self.inactive));
        Some(used.saturating_sub(inactive?.trim().parse().ok()?))
    }

    /// Waits until what is used has grown by a step, and then not for some seconds.
    fn settle(&self) {
        let (first, start) = (self.used().unwrap(), Instant::now());
        let (mut most, mut since) = (first, Instant::now());
        while most < first + (25 << 20) || since.elapsed() < Duration::from_secs(3) {
            let used = self.used().unwrap();
            if used > most + (1 << 20) {
                (most, since) = (used, Instant::now());
            }
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{first} bytes at the start, {most} in the end"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The same command, in this group from its first moment on.
    fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(&self.directory);
        inside.arg(command.get_program()).args(command.get_args());
        inside
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last process may not quite be gone.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.directory).is_ok() || !self.directory.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

const TAKES: &str = "REKINDLE_TEST_TAKES";

#[test]
#[ignore = "run as a child by `a_second_process_that_takes_memory_fails_no_step`"]
fn child_takes_memory_until_nobody_listens() {
    let Some(bytes) = std::env::var(TAKES).ok().and_then(|bytes| bytes.parse().ok()) else { return };
    // Touched, every page of it.
    let taken = vec![1u8; bytes];
    println!("taken");
    let _ = std::io::stdin().read(&mut [0]);
    assert!(std::hint::black_box(taken).len() == bytes);
}

#[test]
fn a_second_process_that_takes_memory_fails_no_step() {
    const LIMIT: u64 = 512 << 20;
    // Enough for the other process to come and go while they last, on a machine where a step takes a quarter of a second or less.
    const STEPS: u64 = 90;
    let Some(group) = Group::with_limit(LIMIT) else {
        println!("skipped: no control group can be made here, so nothing limits two processes together");
        return;
    };
    let size = ["--layers", "8", "--width", "128", "--heads", "4", "--sequence", "128", "--batch", "4"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_rekindle"));
    command.args(["train", "--adaptive", "--json", "--steps", &STEPS.to_string()]).args(size);
    let mut training = group.inside(&command);
    training.env_remove("REKINDLE_CONFIG").env_remove("REKINDLE_MEMORY_ROOT");
    let mut training = training.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(training.stderr.take().unwrap()).lines().map(Result::unwrap);
    let start = lines.find(|line| line.starts_with("step 1: ")).unwrap();
    // Until it has run a step, whose memory it keeps; then another takes all that is left, but for less than is to be left free.
    group.settle();
    let takes = (LIMIT - group.used().unwrap()).saturating_sub(12 << 20);
    assert!(takes > 64 << 20, "{takes}");
    let mut other = Command::new(std::env::current_exe().unwrap());
    other.args(["child_takes_memory_until_nobody_listens", "--exact", "--ignored", "--nocapture"]);
    let mut other = group
        .inside(&other)
        .env(TAKES, takes.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(other.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.any(|line| line.contains("taken")), "the other process took nothing");
    let tighter = lines.find(|line| line.contains("because only")).expect("no tighter plan was taken");
    assert!(tighter.contains("in the control group"), "{start}\n{tighter}");
    // A few steps beside it, then it goes.
    std::thread::sleep(Duration::from_secs(3));
    drop(other.stdin.take());
    assert!(other.wait().unwrap().success());
    let words = lines.collect::<Vec<_>>().join("\n");
    let output = training.wait_with_output().unwrap();
    assert!(output.status.success(), "{start}\n{tighter}\n{words}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((governed(&found), found["steps"].as_u64()), (STEPS, Some(STEPS)), "{found}");
    assert!(found["plan_changes"].as_u64().unwrap() >= 1, "{found}");
    assert_eq!(found["gradients"]["identical"], found["gradients"]["tensors"]);
}
