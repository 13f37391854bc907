//! `rekindle frontier`: the cheapest time for every budget.

use std::time::Duration;

use rekindle_plan::solvers::optimal::{self, Frontier, FrontierPoint};
use rekindle_plan::{Bytes, Gap, Nanos, Profile, Request};
use serde::Serialize;
use textplots::{Chart, Plot, Shape};

use crate::arguments::FrontierArguments;
use crate::failure::Failure;
use crate::plan::{finish, refused};
use crate::{files, report};

#[derive(Serialize)]
struct Found<'a> {
    model: &'a str,
    device: &'a str,
    stages: usize,
    fingerprint: String,
    smallest_budget_bytes: Bytes,
    store_all_bytes: Bytes,
    fastest_ns: Nanos,
    /// False when the time limit left something out.
    complete: bool,
    points: Vec<Point>,
}

/// What is said of a frontier that the time limit ended.
const INCOMPLETE: &str =
    " time was up: there may be faster plans, and plans in less memory (--time-limit gives it more)";

#[derive(Serialize)]
struct Point {
    budget_bytes: Bytes,
    step_ns: Nanos,
    lower_bound_ns: Nanos,
    /// Time beyond the fastest, as a fraction of it.
    overhead: f64,
    gap: f64,
}

/// Runs the command.
pub(crate) fn run(arguments: &FrontierArguments) -> Result<(), Failure> {
    if let Some(path) = &arguments.output {
        files::check_writable(path)?;
    }
    let profile = files::profile(&arguments.profile)?;
    let budget = arguments.budget.map(|budget| budget.bytes(&profile)).transpose();
    let budget = budget.map_err(|error| refused(error.into(), 0.0))?;
    let request =
        Request { time_limit: Duration::from_secs(u64::from(arguments.time_limit)), ..Request::default() };
    let waiting = report::spinner(&format!("planning {} stages for every budget", profile.stages().len()));
    let frontier = optimal::frontier(&profile, &request);
    waiting.finish_and_clear();
    let frontier = frontier.map_err(|error| refused(error, 0.0))?;
    let plan = budget.map(|budget| frontier.plan(&profile, budget)).transpose();
    let plan = plan.map_err(|error| refused(error, 0.0))?;
    match (arguments.json, &plan) {
        (false, _) => show(&profile, &frontier)?,
        (true, None) => report::show_json(&result(&profile, &frontier))?,
        // One document: the plan.
        (true, Some(_)) => {}
    }
    match &plan {
        Some(plan) => finish(&profile, plan, arguments.output.as_deref(), arguments.json),
        None => Ok(()),
    }
}

fn overhead(profile: &Profile, point: &FrontierPoint) -> f64 {
    point.step_ns.ratio(profile.lower_bound()) - 1.0
}

fn result<'a>(profile: &'a Profile, frontier: &Frontier) -> Found<'a> {
    let points = frontier.points();
    let end = |point: Option<&FrontierPoint>| point.map_or(Bytes::ZERO, |point| point.budget_bytes);
    Found {
        model: profile.model(),
        device: profile.device(),
        stages: profile.stages().len(),
        fingerprint: profile.fingerprint(),
        smallest_budget_bytes: end(points.first()),
        store_all_bytes: end(points.last()),
        fastest_ns: profile.lower_bound(),
        complete: frontier.is_complete(),
        points: points
            .iter()
            .map(|point| Point {
                budget_bytes: point.budget_bytes,
                step_ns: point.step_ns,
                lower_bound_ns: point.lower_bound_ns,
                overhead: overhead(profile, point),
                gap: Gap::between(point.lower_bound_ns, point.step_ns).get(),
            })
            .collect(),
    }
}

fn show(profile: &Profile, frontier: &Frontier) -> Result<(), Failure> {
    let points = frontier.points();
    let title = format!("step time over store-all, in percent, against the budget for {}", profile.model());
    if let Some(picture) = picture(profile, points) {
        report::show(&format!("{title}\n\n{picture}"))?;
    }
    // A page of rows, both ends among them.
    let most = 16;
    let shown = points.len().min(most);
    let index = |row: usize| if shown < 2 { 0 } else { row * (points.len() - 1) / (shown - 1) };
    let rows = (0..shown).map(|row| {
        let point = &points[index(row)];
        let gap = Gap::between(point.lower_bound_ns, point.step_ns).get();
        [
            point.budget_bytes.to_string(),
            point.budget_bytes.get().to_string(),
            point.step_ns.to_string(),
            report::signed_percent(overhead(profile, point)),
            format!("{:.2}%", gap * 100.0),
        ]
    });
    report::show(&report::table(["budget", "bytes", "step", "over store-all", "gap"], rows))?;
    if let more @ 1.. = points.len() - shown {
        report::show(&format!(" and {more} more points (--json lists all)"))?;
    }
    match frontier.is_complete() {
        true => Ok(()),
        false => report::show(INCOMPLETE),
    }
}

/// A staircase in dots.
fn picture(profile: &Profile, points: &[FrontierPoint]) -> Option<String> {
    let (first, last) = (points.first()?, points.last()?);
    if first.budget_bytes == last.budget_bytes {
        return None;
    }
    // The axes' numbers are in the unit that people read best.
    let unit = [1u64 << 40, 1 << 30, 1 << 20, 1 << 10]
        .into_iter()
        .find(|unit| last.budget_bytes.get() >= *unit)
        .unwrap_or(1);
    let at = |bytes: Bytes| (bytes.get() as f64 / unit as f64) as f32;
    let mut steps: Vec<(f32, f32)> = Vec::with_capacity(2 * points.len());
    for point in points {
        let height = (overhead(profile, point) * 100.0) as f32;
        if let Some((_, before)) = steps.last().copied() {
            steps.push((at(point.budget_bytes), before));
        }
        steps.push((at(point.budget_bytes), height));
    }
    let (left, right) = (at(first.budget_bytes), at(last.budget_bytes));
    let shape = Shape::Lines(&steps);
    let mut chart = Chart::new(120, 48, left, right);
    let chart = chart.lineplot(&shape);
    chart.axis();
    chart.figures();
    let name = match unit.trailing_zeros() {
        40 => "TiB",
        30 => "GiB",
        20 => "MiB",
        10 => "KiB",
        _ => "bytes",
    };
    Some(format!("{chart}{:>58}\n", format!("budget in {name}")))
}
