//! The governor under random readings: what it promises whatever memory does.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use proptest::prelude::*;
use rekindle_plan::{Bytes, Nanos};
use rekindle_run::governor::{
    BackOff, Decision, DeviceMemory, Gauge, Governing, Governor, Ladder, Pressure, Reading, Reason, Rung,
    ShapeCache, Source, SystemMemory,
};
use std::path::Path;
use std::time::Duration;

fn rung(budget: u64, time: u64) -> Rung<usize> {
    Rung { budget: Bytes::new(budget), step_time: Nanos::new(time), plan: 0 }
}

/// Budgets 100, 200, .. with one rung each.
fn even(count: u64) -> Ladder<usize> {
    Ladder::new((1..=count).map(|i| rung(100 * i, 1_000 - i)).collect()).unwrap()
}

fn governor(count: u64) -> Governor<usize> {
    let governing = Governing { reserve: Some(Bytes::ZERO), patience: 3, ..Governing::default() };
    Governor::new(even(count), governing).unwrap()
}

fn free(bytes: u64) -> Reading {
    Reading::free(Bytes::new(bytes))
}

fn pressed(bytes: u64, percent: f64) -> Reading {
    Reading { pressure: Some(Pressure::percent(percent)), ..free(bytes) }
}

fn run(governor: &mut Governor<usize>, reading: Reading) -> Decision {
    governor.next(&reading, Bytes::ZERO)
}

prop_compose! {
    fn any_ladder()(gaps in proptest::collection::vec((1..200u64, 1..50u64), 1..12)) -> Ladder<usize> {
        let (mut budget, mut time) = (0, 10_000);
        let rungs = gaps.into_iter().map(|(more, less)| {
            (budget, time) = (budget + more, time - less);
            rung(budget, time)
        });
        Ladder::new(rungs.collect()).unwrap()
    }
}

prop_compose! {
    fn any_governing(smallest: u64)(
        reserve in 0..100u64,
        above in proptest::option::of(0..1_500u64),
        patience in 0..6u32,
        margin_percent in 0..30u32,
    ) -> Governing {
        let limit = above.map(|above| Bytes::new(smallest + above));
        Governing { reserve: Some(Bytes::new(reserve)), limit, patience, margin_percent, ..Governing::default() }
    }
}

prop_compose! {
    fn any_reading()(
        free in proptest::option::weighted(0.9, 0..2_500u64),
        percent in proptest::option::of(prop_oneof![3 => Just(0.0), 1 => 0.0..60.0]),
    ) -> Reading {
        let pressure = percent.map(Pressure::percent);
        Reading { free: free.map(Bytes::new), pressure, ..Reading::default() }
    }
}

fn any_governor() -> impl Strategy<Value = (Governor<usize>, Governing)> {
    any_ladder().prop_flat_map(|ladder| {
        let smallest = ladder.rungs()[0].budget.get();
        any_governing(smallest)
            .prop_map(move |governing| (Governor::new(ladder.clone(), governing).unwrap(), governing))
    })
}

proptest! {
    #[test]
    fn no_rung_takes_more_than_can_be_used_or_is_allowed(
        (mut governor, governing) in any_governor(),
        readings in proptest::collection::vec((any_reading(), 0..500u64), 1..60),
    ) {
        for (reading, held) in readings {
            let decision = governor.next(&reading, Bytes::new(held));
            let budget = governor.rung(decision.rung).budget;
            prop_assert!(governing.limit.is_none_or(|limit| budget <= limit));
            if let Some(free) = reading.free {
                let usable = (free.get() + held).saturating_sub(governing.reserve.unwrap().get());
                let smallest = governor.rung(0).budget.get();
                prop_assert_eq!(decision.short.is_some(), usable < smallest);
                prop_assert!(budget.get() <= usable.max(smallest), "{budget} of {usable}");
            }
            prop_assert_eq!(decision.change.is_some_and(|change| change.to.rung != decision.rung), false);
        }
    }

    #[test]
    fn a_constant_reading_settles_and_is_never_left_again(
        (mut governor, governing) in any_governor(),
        before in proptest::collection::vec(any_reading(), 0..20),
        constant in any_reading(),
        keeps in any::<bool>(),
    ) {
        for reading in before {
            let _ = governor.next(&reading, Bytes::ZERO);
        }
        // An allocator that keeps what is freed holds what the last rung took; the sum is the same.
        let mut rungs = Vec::new();
        for _ in 0..200 {
            let last = governor.current().map_or(Bytes::ZERO, |rung| governor.rung(rung).budget);
            let held = match constant.free {
                Some(free) if keeps => last.min(free),
                _ => Bytes::ZERO,
            };
            let seen = Reading { free: constant.free.map(|free| free.saturating_sub(held)), ..constant };
            rungs.push(governor.next(&seen, held).rung);
        }
        let moves: Vec<_> = rungs.windows(2).filter(|pair| pair[0] != pair[1]).collect();
        // The first move may take back what earlier readings led to; then it is one direction only.
        let directions: Vec<_> = moves.iter().map(|pair| pair[1] > pair[0]).collect();
        prop_assert!(directions.windows(2).all(|pair| pair[0] == pair[1]), "{rungs:?}");
        let settled = 13 * (governing.patience as usize + 1);
        prop_assert!(rungs[settled.min(199)..].windows(2).all(|pair| pair[0] == pair[1]), "{rungs:?}");
    }

    #[test]
    fn a_drop_is_followed_before_the_next_step(
        (mut governor, governing) in any_governor(),
        before in proptest::collection::vec(any_reading(), 0..20),
        dropped in 0..1_500u64,
    ) {
        for reading in before {
            let _ = governor.next(&reading, Bytes::ZERO);
        }
        let was = governor.current();
        let decision = governor.next(&free(dropped), Bytes::ZERO);
        let usable = dropped.saturating_sub(governing.reserve.unwrap().get());
        let fits = governor.rung(decision.rung).budget.get() <= usable;
        prop_assert!(fits || (decision.rung == 0 && decision.short.is_some()));
        // And no further than needed.
        if was.is_some_and(|was| decision.rung < was) {
            prop_assert!(governor.rung(decision.rung + 1).budget.get() > usable);
        }
    }

    #[test]
    fn the_fastest_is_back_within_patience_once_there_is_room(
        (mut governor, governing) in any_governor(),
        before in proptest::collection::vec(any_reading(), 0..30),
    ) {
        for reading in before {
            let _ = governor.next(&reading, Bytes::ZERO);
        }
        // A step that fills the streak with a smaller rung is not what is asked about here.
        let _ = governor.next(&free(0), Bytes::ZERO);
        let mut last = None;
        for _ in 0..governing.patience.max(1) {
            last = Some(governor.next(&free(1 << 40), Bytes::ZERO));
        }
        let rungs = governor.ladder().rungs();
        let allowed = governing.limit.unwrap_or(Bytes::MAX);
        let fastest = rungs.iter().rposition(|rung| rung.budget <= allowed);
        prop_assert_eq!(last.map(|decision| decision.rung), fastest);
    }

    #[test]
    fn the_same_readings_give_the_same_decisions(
        (mut first, _) in any_governor(),
        readings in proptest::collection::vec(any_reading(), 1..40),
    ) {
        let mut second = first.clone();
        for reading in readings {
            prop_assert_eq!(first.next(&reading, Bytes::ZERO), second.next(&reading, Bytes::ZERO));
        }
    }

    #[test]
    fn sizes_near_the_end_of_all_numbers_are_fine(
        bytes in proptest::collection::vec((any::<u64>(), any::<u64>()), 1..20),
        margin_percent in any::<u32>(),
        patience in any::<u32>(),
    ) {
        let ladder = Ladder::new(vec![rung(1, 9), rung(u64::MAX - 1, 2), rung(u64::MAX, 1)]).unwrap();
        let mut governor =
            Governor::new(ladder, Governing { margin_percent, patience, ..Governing::default() }).unwrap();
        for (free, held) in bytes {
            let _ = governor.next(&Reading::free(Bytes::new(free)), Bytes::new(held));
        }
    }
}

#[test]
fn a_faster_rung_needs_its_margin_for_some_steps_in_a_row() {
    let mut governor = governor(3);
    assert_eq!(run(&mut governor, free(100)).rung, 0);
    // 200 would fit, but not with 5% more.
    for _ in 0..9 {
        assert_eq!(run(&mut governor, free(209)).rung, 0);
    }
    let rungs: Vec<_> =
        [210, 210, 205, 210, 210, 210].map(|bytes| run(&mut governor, free(bytes)).rung).into();
    assert_eq!(rungs, [0, 0, 0, 0, 0, 1], "the third reading starts it anew");
}

#[test]
fn it_goes_to_the_fastest_that_fitted_all_along() {
    let mut governor = governor(5);
    assert_eq!(run(&mut governor, free(100)).rung, 0);
    let rungs: Vec<_> = [900, 330, 900].map(|bytes| run(&mut governor, free(bytes)).rung).into();
    assert_eq!(rungs, [0, 0, 2]);
}

#[test]
fn under_pressure_it_goes_down_rung_by_rung_and_waits_for_the_effect() {
    let mut governor = governor(4);
    let rungs: Vec<_> = (0..8).map(|_| run(&mut governor, pressed(9_000, 50.0)).rung).collect();
    assert_eq!(rungs, [2, 2, 2, 1, 1, 1, 0, 0]);
    // A little pressure is enough not to go up.
    assert!((0..20).all(|_| run(&mut governor, pressed(9_000, 1.0)).rung == 0));
    let rungs: Vec<_> = (0..3).map(|_| run(&mut governor, pressed(9_000, 0.99)).rung).collect();
    assert_eq!(rungs, [0, 0, 3]);
}

#[test]
fn unknown_memory_changes_nothing() {
    let mut governor = governor(3);
    let start = run(&mut governor, Reading::default());
    assert_eq!(start.rung, 2);
    let words = start.change.unwrap().to_string();
    assert_eq!(words, "step 1: 300 B (997 ns a step), because nobody knows how much memory is free");
    assert_eq!(run(&mut governor, free(150)).rung, 0);
    assert!((0..20).all(|_| run(&mut governor, Reading::default()).rung == 0));
}

#[test]
fn every_change_says_why_with_figures() {
    let mut governor = governor(3);
    let start = run(&mut governor, free(310)).change.unwrap();
    assert_eq!(start.to_string(), "step 1: 300 B (997 ns a step), because 310 B can be used: 310 B free");
    assert_eq!(start.from, None);
    assert_eq!(run(&mut governor, free(310)).change, None);
    let short = run(&mut governor, Reading { source: Source::Machine, ..free(40) });
    let change = short.change.unwrap();
    assert_eq!(
        change.to_string(),
        "step 3: from 300 B (997 ns a step) to 100 B (999 ns a step), because only 40 B can be used: 40 B free on \
         the machine"
    );
    assert!(matches!(change.reason, Reason::NoRoom { .. }));
    assert_eq!(short.short.unwrap().to_string(), "the tightest plan needs 100 B, but only 40 B can be used");
}

#[test]
fn the_reserve_is_a_twentieth_and_at_most_a_quarter_of_a_gibibyte() {
    let mut governor = Governor::new(even(1), Governing::default()).unwrap();
    // The least that must be free for the one rung of 100 bytes to fit, less these.
    let mut reserved = |total: Option<u64>| {
        let total = total.map(Bytes::mebibytes);
        (0..=300).map(Bytes::mebibytes).find(|reserve| {
            let free = reserve.checked_add(Bytes::new(100));
            governor.next(&Reading { free, total, ..Reading::default() }, Bytes::ZERO).short.is_none()
        })
    };
    assert_eq!(reserved(Some(1_000)), Some(Bytes::mebibytes(50)));
    assert_eq!(reserved(Some(64_000)), Some(Bytes::mebibytes(256)));
    assert_eq!(reserved(None), Some(Bytes::mebibytes(256)));
}

#[test]
fn waiting_ends_when_there_is_memory_or_no_more_time() {
    let mut governor = governor(2);
    let mut waited = Duration::ZERO;
    let mut never = DeviceMemory::new(|| Some((Bytes::new(1), Bytes::new(9))));
    let back_off = BackOff::new(Duration::from_secs(1), Duration::from_secs(8), Duration::from_secs(30));
    let decision = governor.next_waiting(&mut never, Bytes::ZERO, back_off, |wait| waited += wait);
    assert!(decision.short.is_some());
    assert_eq!(waited, Duration::from_secs(30));
    // Enough from the start: no wait at all.
    let mut plenty = DeviceMemory::new(|| Some((Bytes::new(1_000), Bytes::new(9_000))));
    let decision = governor.next_waiting(&mut plenty, Bytes::ZERO, back_off, |_| panic!("it waited"));
    assert_eq!(decision.short, None);
}

#[test]
fn a_cache_forgets_what_was_not_used_for_the_longest_time() {
    let mut cache = ShapeCache::new(2);
    let mut made = Vec::new();
    for key in [1, 2, 1, 3, 1, 2] {
        let make = || {
            made.push(key);
            Ok::<_, ()>(())
        };
        cache.get_or_try_insert_with(key, make).unwrap();
    }
    assert_eq!(made, [1, 2, 3, 2]);
    assert_eq!((cache.hits(), cache.misses(), cache.len()), (2, 4, 2));
    assert_eq!(cache.get_or_try_insert_with(9, || Err("no")), Err("no"));
    // A failure costs nobody its place.
    assert!(cache.get_or_try_insert_with(1, || Err("forgotten")).is_ok());
}

/// Files as a machine has them, in a directory of their own.
fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    root
}

fn read(root: &Path) -> (Option<u64>, Option<u64>, Source, Option<Pressure>) {
    let reading = SystemMemory::at(root).read();
    (reading.free.map(Bytes::get), reading.total.map(Bytes::get), reading.source, reading.pressure)
}

const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable: 80 kB\n");

#[test]
fn a_machine_without_groups_has_what_is_available() {
    let root = machine(&[MEMINFO]);
    assert_eq!(read(root.path()), (Some(81_920), Some(102_400), Source::Machine, None));
}

#[test]
fn the_tightest_group_counts_without_its_page_cache() {
    let root = machine(&[
        MEMINFO,
        ("proc/self/cgroup", "0::/job/train\n"),
        ("proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
        ("proc/pressure/memory", "some avg10=1.50 avg60=0 avg300=0 total=0\n"),
        ("sys/fs/cgroup/job/train/memory.max", "max\n"),
        ("sys/fs/cgroup/job/train/memory.current", "30000\n"),
        ("sys/fs/cgroup/job/train/memory.pressure", "some avg10=7.00 avg60=0 avg300=0 total=0\n"),
        ("sys/fs/cgroup/job/memory.max", "50000\n"),
        ("sys/fs/cgroup/job/memory.current", "45000\n"),
        ("sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 4000\n"),
    ]);
    let expected = (Some(9_000), Some(50_000), Source::ControlGroup, Some(Pressure::percent(7.0)));
    assert_eq!(read(root.path()), expected);
    // From there on the kernel slows the group down: as good as a limit.
    std::fs::write(root.path().join("sys/fs/cgroup/job/train/memory.high"), "31000\n").unwrap();
    assert_eq!(read(root.path()).0, Some(1_000));
}

#[test]
fn groups_of_the_first_version_count_too() {
    let root = machine(&[
        MEMINFO,
        ("proc/self/cgroup", "4:memory:/box/abc\n0::/\n"),
        ("proc/self/mountinfo", "35 31 0:32 /box/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "40000\n"),
        ("sys/fs/cgroup/memory/memory.usage_in_bytes", "30000\n"),
        ("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 5000\n"),
    ]);
    assert_eq!(read(root.path()), (Some(15_000), Some(40_000), Source::ControlGroup, None));
}

#[test]
fn nonsense_and_absent_files_are_unknown() {
    let root = machine(&[
        ("proc/meminfo", "\u{0}\u{0}nonsense"),
        ("proc/self/cgroup", "0::/a\n4:memory:/b\n"),
        ("proc/self/mountinfo", "nothing of the kind"),
        ("proc/pressure/memory", "some avg10=lots\n"),
        ("sys/fs/cgroup/a/memory.max", "5 apples"),
        ("sys/fs/cgroup/memory/b/memory.limit_in_bytes", "-1"),
    ]);
    assert_eq!(read(root.path()), (None, None, Source::Unnamed, None));
    assert_eq!(SystemMemory::at(root.path().join("nowhere")).read(), Reading::default());
}

#[test]
fn a_group_over_its_limit_has_nothing_free() {
    let root = machine(&[
        MEMINFO,
        ("proc/self/cgroup", "0::/\n"),
        ("sys/fs/cgroup/memory.max", "100\n"),
        ("sys/fs/cgroup/memory.current", "200\n"),
    ]);
    assert_eq!(read(root.path()).0, Some(0));
}
