//! What breaks around the offload file, one test each, named by what broke.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rekindle_plan::{Action, Boundary, Bytes, Profile, Rule, Schedule, StageProfile, Tier};
use rekindle_run::counted::CountedEngine;
use rekindle_run::{
    DiskFile, DiskStore, Executor, PackedTensor, Parcel, Remedy, Store, StoreError, Stores, Way,
};

fn x(number: u32) -> Boundary {
    Boundary::new(number)
}

fn parcel(length: usize, seed: u8) -> Parcel {
    let bytes: Vec<u8> = (0..length).map(|index| (index as u8).wrapping_mul(31) ^ seed).collect();
    let tensor = PackedTensor { dtype: "u8".into(), shape: vec![length], bytes: bytes.into() };
    Parcel { tensors: vec![tensor], structure: vec![u64::from(seed)] }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    entries
}

/// Runs one of this file's tests in another process, which sees `REKINDLE_FAULT`.
fn child(test: &str, directory: &Path) -> Command {
    let mut command = Command::new("sh");
    // A write beyond the limit is then an error, and not the end of the process.
    command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env("REKINDLE_FAULT", directory);
    command
}

/// The directory, in a process that was started by [`child`].
fn in_child() -> Option<PathBuf> {
    std::env::var_os("REKINDLE_FAULT").map(PathBuf::from)
}

#[test]
fn boundaries_of_many_sizes_come_back_and_their_room_is_used_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = DiskStore::open(directory.path(), Bytes::mebibytes(64)).unwrap();
    let sizes = [0, 1, 4095, 4096, 4097, 1 << 20, 3_000_001];
    let mut length = Bytes::ZERO;
    for step in 0..4u8 {
        for (number, size) in (0..).zip(sizes) {
            store.put(x(number), parcel(size, step)).unwrap();
        }
        for (number, size) in (0..7).zip(sizes).rev() {
            store.prefetch(x(number)).unwrap();
            assert_eq!(store.take(x(number)).unwrap(), parcel(size, step));
            // A plan may fetch it again.
            assert_eq!(store.take(x(number)).unwrap(), parcel(size, step));
            store.forget(x(number)).unwrap();
        }
        assert_eq!(store.used(), Bytes::ZERO);
        assert!(step == 0 || store.file().length() == length, "the file does not grow from step to step");
        length = store.file().length();
    }
    let transfers = store.transfers();
    assert_eq!(transfers.iter().filter(|transfer| transfer.way == Way::Out).count(), 4 * sizes.len());
    assert!(transfers.iter().all(|transfer| transfer.start <= transfer.end));
}

#[test]
fn the_file_and_its_directory_are_private_and_removed_at_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let store = DiskStore::open(directory.path(), Bytes::mebibytes(1)).unwrap();
    let path = store.file().path().to_owned();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    drop(store);
    assert_eq!(entries(directory.path()), [] as [PathBuf; 0]);
}

#[test]
fn the_limit_is_reached_and_a_refused_boundary_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = DiskStore::open(directory.path(), Bytes::new(10_000)).unwrap();
    store.put(x(1), parcel(6_000, 1)).unwrap();
    let error = store.put(x(2), parcel(5_000, 2)).unwrap_err();
    let (needed, free, limit) = (Bytes::new(5_000), Bytes::new(4_000), Bytes::new(10_000));
    assert_eq!(error, StoreError::Full { boundary: x(2), needed, free, limit });
    assert_eq!(store.take(x(1)).unwrap(), parcel(6_000, 1));
    assert_eq!(store.take(x(2)), Err(StoreError::Absent { boundary: x(2) }));
    // Many small ones fit to the last byte, although each takes a page of the file.
    store.forget(x(1)).unwrap();
    for number in 0..100 {
        store.put(x(number), parcel(100, number as u8)).unwrap();
    }
    assert!(matches!(store.put(x(100), parcel(1, 0)), Err(StoreError::Full { .. })));
    assert_eq!(store.take(x(99)).unwrap(), parcel(100, 99));
}

#[test]
fn a_disk_without_room_is_found_at_the_start() {
    const NAME: &str = "a_disk_without_room_is_found_at_the_start";
    if let Some(directory) = in_child() {
        let file = DiskFile::open(directory, "64GiB".parse().unwrap()).unwrap();
        let error = file.reserve(Bytes::mebibytes(8)).unwrap_err();
        let StoreError::DiskFull { needed, found, path } = &error else { panic!("{error}") };
        assert_eq!((*needed, path.as_path()), (Bytes::mebibytes(8), file.path()));
        assert!(*found <= Bytes::mebibytes(1), "{error}");
        assert!(error.to_string().contains("8.0 MiB are needed"), "{error}");
        // What fits is still taken, and what does not is refused when it comes.
        let mut store = file.store();
        store.put(x(0), parcel(500_000, 1)).unwrap();
        let error = store.put(x(1), parcel(900_000, 2)).unwrap_err();
        assert!(matches!(error, StoreError::DiskFull { .. }), "{error}");
        assert_eq!(store.take(x(0)).unwrap(), parcel(500_000, 1));
        println!("the child was here");
        return;
    }
    // A disk of 1 MiB that only the child sees.
    let directory = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=1m none \"$REKINDLE_FAULT\" || exit 77; exec \"$0\" \"$@\"";
    let ran = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env("REKINDLE_FAULT", directory.path())
        .output();
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match ran {
        Ok(ran) if words(&ran.stdout).contains("running 1 test") => {
            let out = words(&ran.stdout);
            assert!(
                ran.status.success() && out.contains("the child was here"),
                "{out}{}",
                words(&ran.stderr)
            );
        }
        _ => println!("skipped: this user may not mount a small disk"),
    }
}

#[test]
fn a_short_write_is_an_error_of_the_boundary_it_cut() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    if let Some(directory) = in_child() {
        let file = DiskFile::open(&directory, Bytes::mebibytes(64)).unwrap();
        file.reserve(Bytes::mebibytes(2)).unwrap();
        let mut store = file.store();
        // From here on the system writes 300,000 bytes of the file and then no more.
        setrlimit(Resource::Fsize, Rlimit { current: Some(300_000), maximum: Some(300_000) }).unwrap();
        store.put(x(0), parcel(200_000, 1)).unwrap();
        store.put(x(1), parcel(200_000, 2)).unwrap();
        store.wait(x(0)).unwrap();
        let error = store.wait(x(1)).unwrap_err();
        assert!(matches!(error, StoreError::Io { doing: "writing to", .. }), "{error}");
        assert_eq!(store.take(x(0)).unwrap(), parcel(200_000, 1));
        assert_eq!(store.take(x(1)), Err(StoreError::Absent { boundary: x(1) }));
        assert_eq!(store.used(), Bytes::new(200_000));
        println!("the child was here");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let ran = child("a_short_write_is_an_error_of_the_boundary_it_cut", directory.path()).output().unwrap();
    let words = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && words.contains("the child was here"), "{words}");
    assert_eq!(entries(directory.path()), [] as [PathBuf; 0]);
}

#[test]
fn a_flipped_byte_in_the_file_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = DiskStore::open(directory.path(), Bytes::mebibytes(8)).unwrap();
    store.put(x(3), parcel(100_000, 1)).unwrap();
    store.wait(x(3)).unwrap();
    flip(store.file().path(), 77_777);
    store.prefetch(x(3)).unwrap();
    let error = store.take(x(3)).unwrap_err();
    assert!(matches!(&error, StoreError::Damaged { boundary, .. } if *boundary == x(3)), "{error}");
    // It stays damaged, and only it.
    assert_eq!(store.take(x(3)), Err(error));
    store.forget(x(3)).unwrap();
    store.put(x(3), parcel(100_000, 2)).unwrap();
    assert_eq!(store.take(x(3)).unwrap(), parcel(100_000, 2));
}

fn flip(path: &Path, offset: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 4], offset).unwrap();
}

#[test]
fn a_file_cut_short_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = DiskStore::open(directory.path(), Bytes::mebibytes(8)).unwrap();
    store.put(x(3), parcel(100_000, 1)).unwrap();
    store.wait(x(3)).unwrap();
    fs::OpenOptions::new().write(true).open(store.file().path()).unwrap().set_len(50_000).unwrap();
    let error = store.take(x(3)).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}

#[test]
fn a_step_over_a_damaged_file_computes_the_boundary_again() {
    let stages = (0..4).map(|index| StageProfile {
        name: format!("stage.{index}"),
        output_bytes: Bytes::new(64),
        tape_bytes: Bytes::new(200),
        ..StageProfile::default()
    });
    let tier = Tier {
        name: "disk".parse().unwrap(),
        capacity_bytes: Bytes::new(1 << 20),
        write_bytes_per_second: 1,
        read_bytes_per_second: 1,
    };
    let profile = Profile::new("chain", "none", Bytes::new(64), stages.collect()).unwrap();
    let profile = profile.with_places(vec![tier], vec![]).unwrap();
    let step = |actions: &[Action], damage: bool| {
        let directory = tempfile::tempdir().unwrap();
        let file = DiskFile::open(directory.path(), Bytes::new(1 << 20)).unwrap();
        let (schedule, _) = Schedule::judge(&profile, actions).unwrap();
        let mut engine = CountedEngine::new(profile.clone());
        let stores = Stores::from([("disk".parse().unwrap(), Box::new(file.store()) as Box<dyn Store>)]);
        let mut executor = Executor::<CountedEngine>::new(schedule, stores).traced();
        let input = engine.input();
        drop(executor.forward(&mut engine, input).unwrap());
        if damage {
            flip(file.path(), 5);
        }
        let gradient = engine.output_gradient();
        let gradient = executor.backward(&mut engine, gradient).unwrap();
        let remedies: Vec<_> = executor.recoveries().iter().map(|had| had.remedy.clone()).collect();
        (gradient.value(), remedies, executor.trace().unwrap().clone())
    };
    let text = "keep x0/forward 1/forward 2/keep x2/forward 3/offload x2 disk/drop x2/tape 4/backward 4/fetch x2 disk/\
        tape 3/drop x2 disk/backward 3/forward 1/tape 2/backward 2/tape 1/drop x0/backward 1";
    let actions: Vec<Action> = text.split('/').map(|line| line.parse().unwrap()).collect();
    let (plain, _, _) = step(&Rule::StoreAll.actions(4).unwrap(), false);
    let (whole, none, trace) = step(&actions, false);
    assert_eq!((whole, none), (plain, vec![]));
    let ways: Vec<_> = trace.transfers().iter().map(|moved| (moved.way, moved.bytes)).collect();
    assert_eq!(ways, [(Way::Out, Bytes::new(64)), (Way::Back, Bytes::new(64))]);
    assert!(trace.hidden().is_some_and(|part| (0.0..=1.0).contains(&part)));
    let (damaged, remedies, _) = step(&actions, true);
    assert_eq!((damaged, remedies), (plain, vec![Remedy::Recomputed(x(0))]));
}

#[test]
fn a_directory_that_is_not_there_or_a_file_is_an_error_that_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let open = |path: &Path| DiskFile::open(path, Bytes::mebibytes(1)).map(drop).unwrap_err();
    let missing = directory.path().join("missing");
    let error = open(&missing);
    assert!(matches!(&error, StoreError::Io { path, .. } if *path == missing), "{error}");
    let file = directory.path().join("file");
    fs::write(&file, "not a directory").unwrap();
    assert!(open(&file).to_string().contains("file"));
    assert_eq!(fs::read(&file).unwrap(), b"not a directory");
}

#[test]
fn a_directory_that_must_not_be_written_to_is_an_error_that_names_it() {
    if let Some(forbidden) = in_child() {
        let error = DiskFile::open(&forbidden, Bytes::mebibytes(1)).map(drop).unwrap_err();
        let StoreError::Io { kind, path, .. } = &error else { panic!("{error}") };
        assert_eq!(*kind, std::io::ErrorKind::PermissionDenied, "{error}");
        assert!(path.starts_with(&forbidden), "{error}");
        println!("refused");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let forbidden = directory.path().join("forbidden");
    fs::create_dir(&forbidden).unwrap();
    fs::set_permissions(&forbidden, fs::Permissions::from_mode(0o500)).unwrap();
    let plain = child("a_directory_that_must_not_be_written_to_is_an_error_that_names_it", &forbidden);
    let is_root = fs::metadata(&forbidden).unwrap().uid() == 0;
    // To root nothing is forbidden, but to root in a namespace where nobody is: it owns the directory, and may do no more.
    let words = if is_root { &["unshare", "--user"][..] } else { &["env"] };
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(plain.get_program()).args(plain.get_args());
    let done = command.env("REKINDLE_FAULT", &forbidden).output();
    let Ok(done) = done else {
        println!("skipped: nothing is forbidden to this user, and there is no `unshare` to become another");
        return;
    };
    let (told, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    if errors.starts_with("unshare:") {
        println!("skipped: nothing is forbidden to this user, who cannot become another: {errors}");
        return;
    }
    assert!(done.status.success() && told.contains("refused"), "{told}{errors}");
    assert_eq!(entries(&forbidden), [] as [PathBuf; 0]);
}

#[test]
fn two_runs_in_one_directory_do_not_disturb_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = DiskStore::open(directory.path(), Bytes::mebibytes(1)).unwrap();
    first.put(x(0), parcel(9_000, 1)).unwrap();
    let mut second = DiskStore::open(directory.path(), Bytes::mebibytes(1)).unwrap();
    second.put(x(0), parcel(9_000, 2)).unwrap();
    assert_ne!(first.file().path(), second.file().path());
    assert_eq!(first.take(x(0)).unwrap(), parcel(9_000, 1));
    drop(first);
    assert_eq!(second.take(x(0)).unwrap(), parcel(9_000, 2));
    assert_eq!(entries(directory.path()), [second.file().path().parent().unwrap()]);
}

#[test]
fn many_runs_that_start_at_once_each_get_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8u8)
            .map(|seed| {
                let directory = directory.path();
                scope.spawn(move || {
                    for _ in 0..20 {
                        let mut store = DiskStore::open(directory, Bytes::mebibytes(1)).unwrap();
                        store.put(x(0), parcel(5_000, seed)).unwrap();
                        assert_eq!(store.take(x(0)).unwrap(), parcel(5_000, seed));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(entries(directory.path()), [] as [PathBuf; 0]);
}

#[test]
fn links_are_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("boundaries"), "precious").unwrap();
    // Names that the next runs of this process would take, and one that looks like a leftover.
    for number in 0..64 {
        let name = format!("rekindle-offload-{}-{number}", std::process::id());
        symlink(elsewhere.path(), directory.path().join(name)).unwrap();
    }
    symlink(elsewhere.path(), directory.path().join("rekindle-offload-1-1")).unwrap();
    let mut store = DiskStore::open(directory.path(), Bytes::mebibytes(1)).unwrap();
    store.put(x(0), parcel(100, 1)).unwrap();
    assert_eq!(store.take(x(0)).unwrap(), parcel(100, 1));
    assert!(!fs::symlink_metadata(store.file().path().parent().unwrap()).unwrap().is_symlink());
    drop(store);
    assert_eq!(fs::read(elsewhere.path().join("boundaries")).unwrap(), b"precious");
    assert_eq!(entries(elsewhere.path()).len(), 1);
    assert_eq!(entries(directory.path()).len(), 65, "links are left to whoever made them");
}

#[test]
fn leftovers_of_a_killed_run_are_removed_at_the_next_start() {
    if let Some(directory) = in_child() {
        let mut store = DiskStore::open(&directory, Bytes::mebibytes(1)).unwrap();
        store.put(x(0), parcel(100_000, 1)).unwrap();
        store.wait(x(0)).unwrap();
        println!("written");
        std::io::stdout().flush().unwrap();
        // Until it is killed.
        std::thread::sleep(std::time::Duration::from_secs(60));
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut running = child("leftovers_of_a_killed_run_are_removed_at_the_next_start", directory.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("written")));
    // While it lives, nobody touches what it has.
    let left = entries(directory.path());
    assert_eq!(left.len(), 1);
    drop(DiskFile::open(directory.path(), Bytes::mebibytes(1)).unwrap());
    assert_eq!(entries(directory.path()), left);
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(entries(directory.path()), left, "killed, it could not clean up");
    let file = DiskFile::open(directory.path(), Bytes::mebibytes(1)).unwrap();
    assert_eq!(entries(directory.path()), [file.path().parent().unwrap()]);
}

#[test]
fn a_directory_with_something_else_in_it_is_not_emptied() {
    let directory = tempfile::tempdir().unwrap();
    let theirs = directory.path().join("rekindle-offload-1-2");
    fs::create_dir(&theirs).unwrap();
    fs::write(theirs.join("notes"), "keep").unwrap();
    drop(DiskFile::open(directory.path(), Bytes::mebibytes(1)).unwrap());
    assert_eq!(fs::read(theirs.join("notes")).unwrap(), b"keep");
}
