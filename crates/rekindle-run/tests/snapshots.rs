//! Snapshots against everything that can happen to a file and to who writes it.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rekindle_run::snapshots::{Damage, Metadata, Section, Snapshot, SnapshotError, Snapshots};

/// Contents that tell their step.
fn contents(step: u64, length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|place| (step.wrapping_mul(31) ^ place.wrapping_mul(7) ^ (place >> 8)) as u8)
        .collect()
}

fn write(snapshots: &mut Snapshots, step: u64) {
    let (weights, state) = (contents(step, 300), step.to_string());
    let sections = [Section::new("weights", &weights), Section::new("state", state.as_bytes())];
    snapshots.write(step, &sections).unwrap();
}

fn steps(snapshots: &Snapshots) -> Vec<u64> {
    snapshots.list().unwrap().iter().map(|listed| listed.step).collect()
}

fn files(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

fn small() -> Vec<u8> {
    let metadata = Metadata::from([("model".to_owned(), "gpt".to_owned())]);
    let sections = [Section::new("weights", &[1, 2, 3]), Section::new("empty", b"")];
    Snapshot::encode(12, &metadata, &sections).unwrap()
}

#[test]
fn the_format_is_what_is_written_down() {
    let bytes = small();
    let header = concat!(
        r#"{"step":12,"metadata":{"model":"gpt"},"sections":["#,
        r#"{"name":"weights","length":3,"xxh3":"ac77eb88cbc4b8d4ebce9b7632ae733b"},"#,
        r#"{"name":"empty","length":0,"xxh3":"99aa06d3014798d86001c324468d497f"}]}"#
    );
    let mut expected = b"rekindle.snapshot/1\n".to_vec();
    expected.extend((header.len() as u64).to_le_bytes());
    expected.extend(header.as_bytes());
    expected.extend([1, 2, 3]);
    assert_eq!(bytes[..bytes.len() - 16], expected);
    assert_eq!(bytes[bytes.len() - 16..], xxhash_rust::xxh3::xxh3_128(&expected).to_be_bytes());
}

#[test]
fn cut_off_anywhere_it_is_refused() {
    let bytes = small();
    assert!(Snapshot::parse(&bytes).is_ok());
    for length in 0..bytes.len() {
        let damage = Snapshot::parse(&bytes[..length]).unwrap_err();
        match length {
            0 => assert_eq!(damage, Damage::NotASnapshot),
            _ => assert!(matches!(damage, Damage::Length { .. }), "{length} bytes: {damage}"),
        }
    }
    let longer = [&bytes[..], b"!"].concat();
    assert!(matches!(Snapshot::parse(&longer), Err(Damage::Length { .. })));
}

#[test]
fn every_flipped_bit_is_found() {
    let bytes = small();
    for place in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1 << bit;
            assert!(Snapshot::parse(&damaged).is_err(), "bit {bit} of byte {place}");
        }
    }
}

#[test]
fn lengths_that_lie_allocate_nothing() {
    let head = |length: u64, header: &str| {
        let mut bytes = b"rekindle.snapshot/1\n".to_vec();
        bytes.extend(length.to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend([0; 16]);
        Snapshot::parse(&bytes).unwrap_err()
    };
    assert!(matches!(head(u64::MAX, "{}"), Damage::Length { expected: u64::MAX, .. }));
    assert!(matches!(head(u64::MAX - 50, "{}"), Damage::Length { .. }));
    let section = r#"{"name":"a","length":18446744073709551615,"xxh3":""}"#;
    for sections in [section.to_owned(), format!("{section},{section}")] {
        let header = format!(r#"{{"step":1,"metadata":{{}},"sections":[{sections}]}}"#);
        let damage = head(header.len() as u64, &header);
        assert!(matches!(damage, Damage::Length { expected: u64::MAX, .. }), "{damage}");
    }
    for header in ["", "[]", "{", "null", r#"{"step":-1,"metadata":{},"sections":[]}"#, &"[".repeat(100_000)]
    {
        let damage = head(header.len() as u64, header);
        assert!(matches!(damage, Damage::Header { .. }), "{damage}");
    }
}

#[test]
fn another_version_is_refused_by_its_name() {
    let bytes = small();
    let other = |version: &str| [b"rekindle.snapshot/", version.as_bytes(), &bytes[19..]].concat();
    for version in ["2", "10", "1.1", ""] {
        let found = format!("rekindle.snapshot/{version}");
        assert_eq!(Snapshot::parse(&other(version)), Err(Damage::Version { found }));
    }
    // However long it is, and whatever is in it, it can be shown.
    let odd = Snapshot::parse(&other(&"\u{1b}[2J".repeat(100))).unwrap_err();
    assert!(odd.to_string().len() < 200 && !odd.to_string().contains('\u{1b}'), "{odd}");
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        step in any::<u64>(),
        metadata in proptest::collection::btree_map(".{0,9}", ".{0,9}", 0..4),
        sections in proptest::collection::btree_map(".{1,9}", proptest::collection::vec(any::<u8>(), 0..300), 0..5),
    ) {
        let given: Vec<_> = sections.iter().map(|(name, bytes)| Section::new(name, bytes)).collect();
        let bytes = Snapshot::encode(step, &metadata, &given).unwrap();
        let snapshot = Snapshot::parse(&bytes).unwrap();
        prop_assert_eq!(snapshot.step(), step);
        prop_assert_eq!(snapshot.metadata(), &metadata);
        prop_assert_eq!(snapshot.sections().collect::<Vec<_>>(), given);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), valid in any::<bool>()) {
        let mut bytes = [if valid { &b"rekindle.snapshot/1\n"[..] } else { b"" }, &bytes].concat();
        let _ = Snapshot::parse(&bytes);
        if let Some(length) = bytes.get_mut(20..28) {
            length.copy_from_slice(&30u64.to_le_bytes());
        }
        let _ = Snapshot::parse(&bytes);
    }
}

#[test]
fn names_that_cannot_be_told_apart_are_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut snapshots = Snapshots::open(folder.path(), 3).unwrap();
    for names in [["a", "a"], ["", "a"]] {
        let error = snapshots.write(1, &names.map(|name| Section::new(name, b""))).unwrap_err();
        assert!(matches!(error, SnapshotError::SectionName { .. }), "{error}");
    }
    let large = Metadata::from([("all of it".to_owned(), "x".repeat(17 << 20))]);
    let error = snapshots.write_with(1, &large, &[]).unwrap_err();
    assert!(matches!(error, SnapshotError::HeaderTooLarge { .. }), "{error}");
    assert_eq!(files(folder.path()), ["lock"]);
}

#[test]
fn the_last_few_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut snapshots = Snapshots::open(folder.path().join("a/b"), 3).unwrap();
    for step in (10..=60).step_by(10) {
        write(&mut snapshots, step);
    }
    assert_eq!(steps(&snapshots), [40, 50, 60]);
    // The same step again takes the place of the first.
    write(&mut snapshots, 60);
    assert_eq!(steps(&snapshots), [40, 50, 60]);
    // One that was just written stays, even when it is the oldest.
    write(&mut snapshots, 5);
    assert_eq!(steps(&snapshots), [5, 50, 60]);
    assert_eq!(snapshots.read(50).unwrap().section("state"), Some(&b"50"[..]));
    let error = snapshots.read(7).unwrap_err().to_string();
    assert_eq!(error, "there is no snapshot of step 7; there are 3 from step 5 to step 60");
    assert!(matches!(Snapshots::open(folder.path(), 0), Err(SnapshotError::KeepNone)));
}

#[test]
fn steps_of_any_length_and_strangers_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let strangers =
        ["notes.txt", "step-7.rekindle", "step-+000000007.rekindle", "step-000000000x.rekindle.part"];
    for name in strangers {
        fs::write(folder.path().join(name), "mine").unwrap();
    }
    fs::create_dir(folder.path().join("step-0000000077.rekindle")).unwrap();
    let mut snapshots = Snapshots::open(folder.path(), 1).unwrap();
    for step in [0, 9_999_999_999, u64::MAX] {
        write(&mut snapshots, step);
        assert_eq!(snapshots.latest().unwrap().snapshot.unwrap().step(), step);
    }
    assert_eq!(steps(&snapshots), [u64::MAX]);
    assert!(strangers.iter().all(|name| folder.path().join(name).exists()));
}

#[test]
fn a_damaged_newest_one_is_told_skipped_and_the_first_to_go() {
    let folder = tempfile::tempdir().unwrap();
    let mut snapshots = Snapshots::open(folder.path(), 3).unwrap();
    (1..=3).for_each(|step| write(&mut snapshots, step));
    let newest = snapshots.list().unwrap()[2].path.clone();
    let whole = fs::read(&newest).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() - 100] ^= 4;
    fs::write(&newest, &damaged).unwrap();
    let latest = snapshots.latest().unwrap();
    assert_eq!(latest.snapshot.unwrap().section("weights"), Some(&contents(2, 300)[..]));
    let told = latest.skipped[0].to_string();
    assert!(told.contains("step 3") && told.contains("section `weights` was damaged"), "{told}");
    // What is known to be damaged goes before older ones that are whole.
    write(&mut snapshots, 4);
    assert_eq!(steps(&snapshots), [1, 2, 4]);
    // A whole snapshot under another step's name is not what it says.
    fs::copy(folder.path().join("step-0000000004.rekindle"), folder.path().join("step-0000000009.rekindle"))
        .unwrap();
    let latest = snapshots.latest().unwrap();
    assert_eq!(latest.snapshot.unwrap().step(), 4);
    assert!(latest.skipped[0].to_string().contains("its name says step 9"), "{}", latest.skipped[0]);
}

#[test]
fn a_huge_hollow_file_is_refused_without_reading_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut snapshots = Snapshots::open(folder.path(), 3).unwrap();
    write(&mut snapshots, 1);
    let path = folder.path().join("step-0000000002.rekindle");
    fs::write(&path, small()).unwrap();
    let hollow = fs::OpenOptions::new().write(true).open(&path).unwrap();
    if let Err(error) = hollow.set_len(1 << 42) {
        println!("skipped: this file system has no files of 4 TiB: {error}");
        return;
    }
    let latest = snapshots.latest().unwrap();
    assert_eq!(latest.snapshot.unwrap().step(), 1);
    assert!(matches!(
        latest.skipped[0].error,
        SnapshotError::Damaged { damage: Damage::Length { found, .. }, .. } if found == 1 << 42
    ));
}

#[test]
fn two_trainings_in_one_directory_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let first = Snapshots::open(folder.path(), 3).unwrap();
    let error = Snapshots::open(folder.path(), 3).unwrap_err();
    let expected = format!("is in use by another training (process {})", std::process::id());
    assert!(error.to_string().contains(&expected), "{error}");
    drop(first);
    Snapshots::open(folder.path(), 3).unwrap();
}

#[test]
#[cfg(unix)]
fn links_are_not_followed() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let real = folder.path().join("real");
    fs::create_dir(&real).unwrap();
    let link = folder.path().join("link");
    symlink(&real, &link).unwrap();
    for path in [link.clone(), link.join("")] {
        let error = Snapshots::open(&path, 3).unwrap_err();
        assert!(matches!(error, SnapshotError::WrongKind { found: "a symbolic link", .. }), "{error}");
    }
    let dangling = folder.path().join("dangling");
    symlink(folder.path().join("nowhere"), &dangling).unwrap();
    assert!(matches!(Snapshots::open(&dangling, 3), Err(SnapshotError::WrongKind { .. })));
    assert!(!folder.path().join("nowhere").exists());

    // In the directory: neither the lock nor an unfinished file is written through a link.
    let victim = folder.path().join("victim");
    fs::write(&victim, "mine").unwrap();
    symlink(&victim, real.join("lock")).unwrap();
    assert!(matches!(Snapshots::open(&real, 3), Err(SnapshotError::WrongKind { .. })));
    fs::remove_file(real.join("lock")).unwrap();
    let mut snapshots = Snapshots::open(&real, 3).unwrap();
    symlink(&victim, real.join("step-0000000001.rekindle.part")).unwrap();
    symlink(&victim, real.join("step-0000000001.rekindle")).unwrap();
    write(&mut snapshots, 1);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
    assert_eq!(snapshots.latest().unwrap().snapshot.unwrap().step(), 1);
}

const CHILD: &str = "REKINDLE_SNAPSHOTS_CHILD";

/// A test of this binary as a process of its own, told where to write.
fn child(test: &str, directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, directory).stdin(Stdio::null());
    command
}

const KILLED_BYTES: usize = 400_000;

#[test]
#[ignore = "run as a child by `a_killed_training_leaves_whole_snapshots`"]
fn child_writes_until_it_is_killed() {
    let Some(directory) = std::env::var_os(CHILD) else { return };
    let mut snapshots = Snapshots::open(&directory, 3).unwrap();
    let first = snapshots.latest().unwrap().snapshot.map_or(0, |snapshot| snapshot.step());
    for step in first + 1.. {
        let weights = contents(step, KILLED_BYTES);
        snapshots.write(step, &[Section::new("weights", &weights)]).unwrap();
    }
}

#[test]
#[cfg(unix)]
fn a_killed_training_leaves_whole_snapshots() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = u64::from(std::process::id());
    let (mut last, mut unfinished) = (0, 0);
    for round in 0..20 {
        let mut running = child("child_writes_until_it_is_killed", folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // At least one more snapshot, then some moment of the ones after.
        let known = format!("step-{last:010}.rekindle");
        let newer = |name: &String| name.ends_with(".rekindle") && *name > known;
        wait_for(&mut running, || files(folder.path()).iter().any(newer));
        let other = Snapshots::open(folder.path(), 3).unwrap_err();
        assert!(matches!(other, SnapshotError::InUse { pid, .. } if pid == Some(running.id())), "{other}");
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros((random >> 33) % 30_000));
        // Every other time in the middle of writing one, and not before it is seen that there is one.
        let start = Instant::now();
        while round % 2 == 0 && !files(folder.path()).iter().any(|name| name.ends_with(".part")) {
            assert!(start.elapsed() < Duration::from_secs(60), "the child writes nothing");
        }
        running.kill().unwrap();
        assert!(!running.wait().unwrap().success());

        let mut snapshots = Snapshots::open(folder.path(), 3).unwrap();
        unfinished += snapshots.unfinished();
        let latest = snapshots.latest().unwrap();
        assert!(latest.skipped.is_empty(), "{:?}", latest.skipped);
        let snapshot = latest.snapshot.unwrap();
        assert!(snapshot.step() > last);
        assert!(snapshot.section("weights") == Some(&contents(snapshot.step(), KILLED_BYTES)));
        assert!(files(folder.path()).iter().all(|name| !name.ends_with(".part")));
        last = snapshot.step();
    }
    println!("{last} snapshots by 20 processes; {unfinished} were killed while they wrote one");
    assert!(unfinished > 0, "none of 20 processes was killed while it wrote a snapshot");
}

fn wait_for(running: &mut Child, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(running.try_wait().unwrap().is_none(), "the child ended by itself");
        assert!(start.elapsed() < Duration::from_secs(60), "the child writes nothing");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
#[ignore = "run as a child by the tests of full disks"]
fn child_meets_a_full_disk() {
    let Some(directory) = std::env::var_os(CHILD) else { return };
    let mut snapshots = Snapshots::open(&directory, 3).unwrap();
    write(&mut snapshots, 1);
    write(&mut snapshots, 2);
    let before = files(Path::new(&directory));
    let large = contents(3, 4 << 20);
    for _ in 0..2 {
        let error = snapshots.write(3, &[Section::new("weights", &large)]).unwrap_err();
        println!("the disk is full: {error}");
        assert!(matches!(error, SnapshotError::Io { .. }), "{error}");
        assert_eq!(files(Path::new(&directory)), before);
        let latest = snapshots.latest().unwrap();
        assert!(latest.skipped.is_empty());
        assert_eq!(latest.snapshot.unwrap().section("weights"), Some(&contents(2, 300)[..]));
    }
    // What fits is written again.
    write(&mut snapshots, 4);
    assert_eq!(steps(&snapshots), [1, 2, 4]);
}

/// Runs the child behind a line of shell, which ends with `exec "$@"`.
#[cfg(target_os = "linux")]
fn behind(shell: &[&str], directory: &Path) -> std::process::Output {
    let child = child("child_meets_a_full_disk", directory);
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).arg("sh").arg(child.get_program()).args(child.get_args());
    command.env(CHILD, directory).stdin(Stdio::null()).output().unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn a_file_that_may_not_grow_leaves_the_older_snapshots() {
    let folder = tempfile::tempdir().unwrap();
    let done = behind(&["sh", "-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\""], folder.path());
    let told = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{told}{}", String::from_utf8_lossy(&done.stderr));
    assert!(told.contains("File too large"), "{told}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_leaves_the_older_snapshots() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    // A mount that only the child sees, gone when it ends.
    let mount = format!("mount -t tmpfs -o size=1m tmpfs '{path}' || exit 77; exec \"$@\"");
    if Command::new("unshare").arg("--version").output().is_err() {
        println!("skipped: there is no `unshare` to mount a small disk with");
        return;
    }
    let done =
        behind(&["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", &mount], folder.path());
    let (told, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    if done.status.code() == Some(77) || errors.starts_with("unshare:") {
        println!("skipped: no small disk can be mounted here: {errors}");
        return;
    }
    assert!(done.status.success(), "{told}{errors}");
    assert!(told.contains("No space left on device"), "{told}");
}
