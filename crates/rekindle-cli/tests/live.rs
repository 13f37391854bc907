//! The live view on a terminal: that it is drawn, that keys end a run, that the terminal comes back as it was.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

const TINY: [&str; 13] = [
    "train",
    "--tui",
    "--strategy=every-1",
    "--layers",
    "3",
    "--width",
    "16",
    "--heads",
    "2",
    "--sequence",
    "16",
    "--batch",
    "2",
];
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

/// A terminal with the command on it. Results go to a pipe, as in `rekindle train --tui --json > summary.json`.
struct Watched {
    child: Child,
    keys: File,
    /// The terminal's other side, to look at how it is set.
    terminal: File,
    drawn: Arc<Mutex<Vec<u8>>>,
}

fn watch(more: &[&str]) -> Watched {
    watch_command(&[&TINY, more].concat())
}

fn watch_command(arguments: &[&str]) -> Watched {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).unwrap();
    let terminal = OpenOptions::new().read(true).write(true).open(name).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_rekindle"))
        .args(arguments)
        .env("TERM", "xterm")
        .stdin(terminal.try_clone().unwrap())
        .stderr(terminal.try_clone().unwrap())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let keys = File::from(master);
    let drawn = Arc::new(Mutex::new(Vec::new()));
    let (mut reader, ours) = (keys.try_clone().unwrap(), Arc::clone(&drawn));
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = reader.read(&mut buffer) {
            ours.lock().unwrap().extend_from_slice(&buffer[..read]);
        }
    });
    Watched { child, keys, terminal, drawn }
}

impl Watched {
    fn drawn(&self) -> String {
        String::from_utf8_lossy(&self.drawn.lock().unwrap()).into_owned()
    }

    /// Waits until something is on the terminal.
    fn see(&mut self, text: &str) {
        let start = Instant::now();
        while !self.drawn().contains(text) {
            let ended = self.child.try_wait().unwrap();
            let patience = start.elapsed() < Duration::from_secs(120);
            assert!(ended.is_none() && patience, "no `{text}` in {:?}", self.drawn());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the end, and looks at the terminal: it is as it was, and what it showed is returned.
    fn end(mut self) -> (Output, String) {
        let mut stdout = Vec::new();
        self.child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
        let status = self.child.wait().unwrap();
        // What was written last may still be on its way.
        let start = Instant::now();
        while !self.drawn().contains(LEAVE) && start.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(100));
        let modes = tcgetattr(&self.terminal).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO), "{modes:?}");
        let drawn = self.drawn();
        assert_eq!((drawn.matches(ENTER).count(), drawn.matches(LEAVE).count()), (1, 1), "{drawn:?}");
        (Output { status, stdout, stderr: Vec::new() }, drawn)
    }
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_key_ends_the_run_after_the_step_with_its_result() {
    for key in ["q", "\x1b", "\x03"] {
        let mut watched = watch(&["--steps", "1000000", "--json"]);
        watched.see("tokens/s");
        watched.press(key);
        let (output, drawn) = watched.end();
        assert!(output.status.success(), "{drawn:?}");
        let steps = json(&output)["steps"].as_u64().unwrap();
        assert!((1..1_000_000).contains(&steps), "{steps}");
        assert!(drawn.contains(&format!("ended after {steps} of 1000000 steps")), "{drawn:?}");
    }
}

#[test]
fn a_run_that_is_watched_learns_the_same() {
    let (output, drawn) = watch(&["--steps", "5", "--json"]).end();
    assert!(drawn.contains("every-1") && drawn.contains("loss"), "{drawn:?}");
    let mut unwatched = Command::new(env!("CARGO_BIN_EXE_rekindle"));
    unwatched.args(TINY.iter().filter(|argument| **argument != "--tui")).args(["--steps", "5", "--json"]);
    let (watched, unwatched) = (json(&output), json(&unwatched.output().unwrap()));
    assert_eq!(watched["steps"], 5);
    for key in ["first_loss", "last_loss", "strategy"] {
        assert_eq!(watched[key], unwatched[key], "{key}");
    }
}

#[test]
fn an_error_gives_the_terminal_back_before_it_is_told() {
    let (output, drawn) = watch(&["--steps", "1000", "--learning-rate", "1e30"]).end();
    assert_eq!(output.status.code(), Some(1));
    let (_, after) = drawn.split_once(LEAVE).unwrap();
    assert!(after.contains("error: the loss is") && after.contains("hint: "), "{after:?}");
}

#[test]
fn measuring_has_a_bar_that_knows_how_many_stages_there_are() {
    let sizes = ["--layers", "3", "--width", "64", "--heads", "2", "--sequence", "64", "--batch", "2"];
    let arguments = [&["profile", "--cut", "blocks", "--runs", "20"][..], &sizes].concat();
    let mut watched = watch_command(&arguments);
    watched.see("1/5 block.0");
    assert!(watched.child.wait().unwrap().success(), "{}", watched.drawn());
    let unwatched = Command::new(env!("CARGO_BIN_EXE_rekindle")).args(arguments).output().unwrap();
    assert!(unwatched.status.success() && unwatched.stderr.is_empty());
}

#[test]
fn no_terminal_is_a_refusal() {
    let output = Command::new(env!("CARGO_BIN_EXE_rekindle")).args(TINY).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    insta::assert_snapshot!(String::from_utf8(output.stderr).unwrap(), @r"
    error: --tui draws on standard error, but standard error is not a terminal
    hint: leave --tui out; without it, progress is a line where there is a terminal and nothing elsewhere
    ");
}
