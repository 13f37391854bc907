//! Transfers beside the computation: how long they take, and who waits for them.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod by_hand;
mod chains;

use by_hand::{codec, judged, moments, tier};
use rekindle_plan::{Bytes, Nanos, Profile, Span, StageProfile};

/// Three stages of 100 ns forth and 200 ns back; a boundary takes 250 ns to `host` and 500 ns back, 300 ns to be
/// halved and 400 ns to be restored.
fn moving() -> Profile {
    let stages = (1..=3).map(|number| StageProfile {
        name: format!("stage.{number}"),
        output_bytes: Bytes::new(1_000),
        tape_bytes: Bytes::new(3_000),
        forward_ns: Nanos::new(100),
        backward_ns: Nanos::new(200),
        ..StageProfile::default()
    });
    let profile = Profile::new("moving", "none", Bytes::new(1_000), stages.collect()).unwrap();
    let tiers = vec![tier(10_000, 4_000_000_000, 2_000_000_000)];
    // 1,000 bytes in 250, 500, 300 (rounded up) and 400 ns.
    let codecs = vec![codec(512, 3_333_333_334, 2_500_000_000)];
    profile.with_places(tiers, codecs).unwrap()
}

/// The step's time, and how much of it is waiting.
fn times(plan: &str) -> (u64, u64) {
    let simulation = judged(&moving(), plan);
    (simulation.step_ns.get(), simulation.wait_ns.get())
}

#[test]
fn a_drop_waits_only_for_what_is_left_of_the_offload() {
    let back = "tape 3/backward 3/tape 2/backward 2/fetch x0 host/drop x0 host/tape 1/backward 1";
    // One stage runs beside the 250 ns: 150 are left to wait, and 500 for the fetch.
    let plan = format!("keep x0/offload x0 host/forward 1/drop x0/keep x1/forward 2/{back}");
    let plan = plan.replace("backward 2/", "backward 2/drop x1/");
    assert_eq!(times(&plan), (300 + 600 + 200 + 650, 650));
    // Two stages run beside it: 50.
    let plan = format!("keep x0/offload x0 host/forward 1/keep x1/forward 2/drop x0/{back}");
    let plan = plan.replace("backward 2/", "backward 2/drop x1/");
    assert_eq!(times(&plan), (300 + 600 + 200 + 550, 550));
}

#[test]
fn a_fetch_is_waited_for_by_its_first_reader_and_by_nobody_before() {
    let start = "keep x0/offload x0 host/forward 1/forward 2/drop x0/tape 3";
    let end = "keep x0/forward 1/tape 2/backward 2/tape 1/drop x0/drop x0 host/backward 1";
    // 50 for the drop; then the fetch, of which a backward hides 200 or nothing.
    let plan = format!("{start}/fetch x0 host/backward 3/{end}");
    assert_eq!(times(&plan), (300 + 600 + 300 + 350, 350));
    let plan = format!("{start}/backward 3/fetch x0 host/{end}");
    assert_eq!(times(&plan), (300 + 600 + 300 + 550, 550));
    // The memory is taken from the start of the fetch on.
    let plan = format!("{start}/fetch x0 host/backward 3/{end}");
    let found = moments(&moving(), &plan);
    // Before it: x2, tape 3. With it: x0 and the gradient as well.
    assert_eq!(found[5].1, 4_000);
    assert_eq!(found[6], (6_000, 6_000));
}

#[test]
fn a_stage_that_reads_for_the_last_time_waits_for_the_offload_as_a_drop_does() {
    let kept = "offload x0 host/keep x0/forward 1/drop x0";
    let read = "offload x0 host/forward 1";
    let rest = "forward 2/tape 3/backward 3/fetch x0 host/drop x0 host/keep x0/forward 1/tape 2/backward 2/tape 1/drop x0/backward 1";
    let of = |start: &str| times(&format!("{start}/{rest}"));
    assert_eq!(of(kept), of(read));
    assert_eq!(of(read), (300 + 600 + 300 + 650, 650));
}

#[test]
fn a_span_tells_when_a_transfer_runs_beside_the_computation_and_who_waits_for_it() {
    let start = "keep x0/offload x0 host/forward 1/forward 2/drop x0/tape 3/fetch x0 host/backward 3";
    let end = "keep x0/forward 1/tape 2/backward 2/tape 1/drop x0/drop x0 host/backward 1";
    let simulation = judged(&moving(), &format!("{start}/{end}"));
    let span = |index: usize| {
        let Span { reached, start, end } = simulation.spans[index];
        (reached.get(), start.get(), end.get())
    };
    // The offload takes 250 ns; two stages of 100 run beside it, and the drop waits for the rest.
    assert_eq!(span(1), (0, 0, 250));
    assert_eq!(span(3), (100, 100, 200));
    assert_eq!(span(4), (200, 250, 250));
    // The fetch takes 500 ns from 350 on; the first who needs x0 waits until 850.
    assert_eq!(span(6), (350, 350, 850));
    assert_eq!(span(7), (350, 350, 550));
    assert_eq!(span(9), (550, 850, 950));
    assert_eq!(simulation.spans.last().map(|span| span.end), Some(simulation.step_ns));
}

#[test]
fn offloads_to_one_tier_queue_up() {
    let start = "keep x0/offload x0 host/forward 1/keep x1/offload x1 host/forward 2";
    let end = "tape 3/backward 3/tape 2/drop x1/backward 2/tape 1/drop x0/backward 1";
    // At 200 ns both are under way; x0 is through at 250, x1 at 500.
    let plan = format!("{start}/drop x0 host/{end}/drop x1 host");
    assert_eq!(times(&plan), (300 + 600 + 200 + 50, 50));
    let plan = format!("{start}/drop x1 host/drop x0 host/{end}");
    assert_eq!(times(&plan), (300 + 600 + 200 + 300, 300));
}

#[test]
fn a_codec_takes_the_devices_time_and_memory() {
    let plan = "keep x0/forward 1/compress x0 half/drop x0/forward 2/tape 3/backward 3/fetch x0 half/drop x0 half/keep x0/forward 1/tape 2/backward 2/tape 1/drop x0/backward 1";
    // Nothing to wait for, but 300 to compress and 400 to restore.
    assert_eq!(times(plan), (300 + 600 + 300 + 700, 0));
    let found = moments(&moving(), plan);
    // x0 and x1; 512 of 1,024 bytes on top; x0 gone.
    assert_eq!(found[1].1, 2_000);
    assert_eq!(found[2], (2_500, 2_500));
    assert_eq!(found[3], (2_500, 1_500));
    // The gradient of x2 and the copy; x0 on top; the copy gone.
    assert_eq!(found[6].1, 1_500);
    assert_eq!(found[7], (2_500, 2_500));
    assert_eq!(found[8], (2_500, 2_000));
}
