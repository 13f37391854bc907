//! A model to show: 26 stages, an optimal plan at a quarter of what store-all takes, and a run that never was.
#![allow(clippy::unwrap_used, dead_code, reason = "a test may fail by panicking, and each uses its part")]

use rekindle_plan::solvers::optimal;
use rekindle_plan::{Action, Bytes, Nanos, Plan, Profile, Request, Rule, StageProfile, simulate};
use rekindle_report::{Measured, MeasuredEvent, Point, Totals};

pub(crate) fn stage(name: impl Into<String>, milliseconds: u64) -> StageProfile {
    StageProfile {
        name: name.into(),
        output_bytes: Bytes::new(256 << 10),
        tape_bytes: Bytes::mebibytes(8),
        forward_ns: Nanos::new(milliseconds * 1_000_000),
        backward_ns: Nanos::new(milliseconds * 2_000_000),
        ..StageProfile::default()
    }
}

/// `embed`, `block.0` to `block.23`, `head`.
pub(crate) fn gpt() -> Profile {
    let blocks = (0..24).map(|index| stage(format!("block.{index}"), 7));
    let stages = [stage("embed", 2)].into_iter().chain(blocks).chain([stage("head", 4)]);
    Profile::new("gpt-24", "flex", Bytes::new(256 << 10), stages.collect()).unwrap()
}

/// Equal stages without a history.
pub(crate) fn equal(count: usize) -> Profile {
    let stages = (0..count).map(|index| stage(format!("block.{index}"), 1));
    Profile::new("equal", "none", Bytes::new(256 << 10), stages.collect()).unwrap()
}

pub(crate) fn quarter(profile: &Profile) -> Plan {
    let all = Plan::by_rule(profile, Rule::StoreAll, None).unwrap().predicted.peak_bytes;
    optimal::solve(profile, &Request::new(Bytes::new(all.get() / 4))).unwrap()
}

pub(crate) fn frontier(profile: &Profile) -> Vec<Point> {
    let frontier = optimal::frontier(profile, &Request::default()).unwrap();
    frontier.points().iter().map(Point::from).collect()
}

/// Test data: what a run might have shown, a little slower and a little larger than predicted, never the same twice in
/// a row. Nothing was measured.
pub(crate) fn invented(profile: &Profile, plan: &Plan) -> Measured {
    let simulation = simulate(profile, &plan.actions).unwrap();
    let mut now = 0;
    let mut events = Vec::new();
    for (index, (span, moment)) in simulation.spans.iter().zip(&simulation.moments).enumerate() {
        let length = span.end.get() - span.start.get();
        let length = length * (1_010 + (index as u64 * 37) % 60) / 1_000 + 1_000;
        let more = |bytes: Bytes| Bytes::new(bytes.get() / 1_000 * (1_002 + (index as u64 * 13) % 9));
        events.push(MeasuredEvent {
            action: index,
            start: Nanos::new(now),
            end: Nanos::new(now + length),
            live_bytes: Some(more(moment.after)),
            peak_bytes: Some(more(moment.peak)),
        });
        now += length + 2_000;
    }
    Measured {
        peak_bytes: events.iter().filter_map(|event| event.peak_bytes).max().unwrap_or_default(),
        step_ns: Nanos::new(now),
        events,
        set_by: Some("tape of block.20".to_owned()),
        transfers: Some("2 transfers of 1.0 MiB took 1.00 ms, all of it hidden behind computing".to_owned()),
    }
}

pub(crate) fn totals() -> Totals {
    Totals {
        weights: Bytes::mebibytes(19),
        gradients: Bytes::mebibytes(19),
        optimizer_state: Bytes::mebibytes(38),
        activations: Bytes::mebibytes(52),
        workspace: Bytes::mebibytes(6),
    }
}

/// A plan that offloads every second boundary: transfers to look at.
pub(crate) fn offloading(count: usize) -> (Profile, Plan) {
    let tier = rekindle_plan::Tier {
        name: "host".parse().unwrap(),
        capacity_bytes: Bytes::mebibytes(1_024),
        write_bytes_per_second: 200_000_000,
        read_bytes_per_second: 200_000_000,
    };
    let profile = equal(count).with_places(vec![tier], Vec::new()).unwrap();
    let mut actions: Vec<String> = Vec::new();
    for stage in 1..=count {
        let input = stage - 1;
        actions.extend([format!("offload x{input} host"), format!("forward {stage}")]);
    }
    for stage in (1..=count).rev() {
        let input = stage - 1;
        actions.extend([
            format!("fetch x{input} host"),
            format!("tape {stage}"),
            format!("drop x{input} host"),
            format!("backward {stage}"),
        ]);
    }
    let actions: Vec<Action> = actions.iter().map(|action| action.parse().unwrap()).collect();
    let status = rekindle_plan::Status::Rule("by-hand".parse().unwrap());
    let plan = Plan::judged(&profile, "by-hand".to_owned(), status, None, actions).unwrap();
    (profile, plan)
}

/// A plan for a chain of any length.
pub(crate) fn quarter_or_more(profile: &Profile) -> Plan {
    Plan::by_rule(profile, Rule::SquareRoot, None).unwrap()
}
