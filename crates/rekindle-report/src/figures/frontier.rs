//! The cheapest time for every budget, and where the plan stands.

use std::fmt::Write;

use rekindle_plan::{Bytes, Profile};

use super::{Anchor, Canvas, Drawing, Frame, Look, Swatch, legend_height};
use crate::markup::Px;
use crate::scale::{Scale, bytes_unit, time_unit};
use crate::step::Step;
use crate::{Measured, Point};

/// Points nearer than this to the one before get no dot of their own.
const APART: f64 = 7.0;
/// Budgets this many times apart are drawn by their ratios.
const FAR_BUDGETS: f64 = 8.0;
/// So are times.
const FAR_TIMES: f64 = 2.0;
/// Two names nearer than this, across and down, would lie on one another.
const NAME: (f64, f64) = (90.0, 30.0);

/// `None` when there are no points. Without a step it is the curve alone.
pub(crate) fn draw(
    profile: &Profile,
    step: Option<&Step<'_>>,
    points: &[Point],
    measured: Option<&Measured>,
    look: Look,
) -> Option<Drawing> {
    let mut points = points.to_vec();
    points.sort_by_key(|point| (point.budget_bytes, point.step_ns));
    let (first, last) = (points.first()?, points.last()?);
    let own =
        step.map(|step| (step.simulation.peak_bytes.get() as f64, step.simulation.step_ns.get() as f64));
    let seen = measured.map(|measured| (measured.peak_bytes.get() as f64, measured.step_ns.get() as f64));
    // A budget beyond the last point buys nothing more: it need not be on the axis.
    let budget = step.and_then(|step| step.plan.budget_bytes).map(|bytes| bytes.get() as f64);
    let budget = budget.filter(|budget| *budget <= last.budget_bytes.get() as f64 * 1.2);

    let sizes = || own.into_iter().chain(seen).map(|at| at.0).chain(budget);
    let least = sizes().fold(first.budget_bytes.get() as f64, f64::min);
    let most = sizes().fold(last.budget_bytes.get() as f64, f64::max);
    let times = points.iter().map(|point| point.step_ns.get() as f64);
    let times: Vec<f64> = times.chain(own.into_iter().chain(seen).map(|at| at.1)).collect();
    let fastest = times.iter().copied().fold(f64::INFINITY, f64::min);
    let slowest = times.iter().copied().fold(0.0, f64::max);

    let height = if look.is_narrow() { 280.0 } else { 320.0 };
    let mut canvas = Canvas::new("frontier", &summary(step, first, last), height, look);
    let mut items = vec![(Swatch::Line("frontier"), "the cheapest time")];
    if budget.is_some() {
        items.push((Swatch::Line("budget"), "budget"));
    }
    canvas.legend(&items, 0.0);
    let legend = legend_height(&items, look);
    let frame = Frame { left: 52.0, right: look.width() - 12.0, top: legend + 26.0, bottom: height - 40.0 };
    // Ratios, where the ends lie far apart: the smallest budgets cost so much that nothing else could be seen.
    let across = match most > FAR_BUDGETS * least.max(1.0) {
        true => Scale::logarithmic(least.max(1.0), most, frame.left + 8.0, frame.right),
        false => Scale::linear(0.0, most, frame.left, frame.right),
    };
    let ends = (frame.bottom - 14.0, frame.top + 8.0);
    let up = match slowest > FAR_TIMES * fastest {
        true => Scale::logarithmic(fastest, slowest, ends.0, ends.1),
        false => Scale::linear(fastest, slowest, ends.0, ends.1),
    };
    frame.vertical_axis(&mut canvas, &up, time_unit(slowest), 5);
    frame.horizontal_axis(&mut canvas, &across, bytes_unit(most), "budget");
    if let Some(budget) = budget {
        let x = across.at(budget);
        canvas.line("budget", (x, frame.top), (x, frame.bottom));
    }

    let place =
        |point: &Point| (across.at(point.budget_bytes.get() as f64), up.at(point.step_ns.get() as f64));
    let (stairs, drawn) = stairs(points.iter().map(place), frame.right);
    canvas.path("frontier", &stairs);
    let mut dot: Option<(f64, f64)> = None;
    let mut dots = 0;
    for point in &points {
        let (x, y) = place(point);
        if dot.is_some_and(|before| (x - before.0).hypot(y - before.1) < APART) {
            continue;
        }
        dot = Some((x, y));
        dots += 1;
        spot(
            &mut canvas,
            "mark point",
            (x, y),
            "2.5",
            &tell(profile, point.budget_bytes, point.step_ns.get(), "budget"),
        );
    }
    let on_paper = |(x, y): (f64, f64)| (across.at(x), up.at(y));
    let (below_own, below_seen) = match (own.map(on_paper), seen.map(on_paper)) {
        (Some(own), Some(seen)) => names_below(own, seen),
        _ => (ABOVE, ABOVE),
    };
    if let (Some(at), Some(measured)) = (seen.map(on_paper), measured) {
        let words = tell(profile, measured.peak_bytes, measured.step_ns.get(), "measured peak");
        spot(&mut canvas, "mark seen", at, "5", &words);
        name(&mut canvas, &frame, at, "measured", below_seen);
    }
    if let (Some(at), Some(step)) = (own.map(on_paper), step) {
        let taken = &step.simulation;
        let words = tell(profile, taken.peak_bytes, taken.step_ns.get(), "this plan’s peak");
        spot(&mut canvas, "mark chosen", at, "5.5", &words);
        name(&mut canvas, &frame, at, "this plan", below_own);
    }
    Some(canvas.finish(drawn < points.len() || dots < points.len()))
}

/// A staircase through places, without the steps that nobody could see; and how many are left.
fn stairs(places: impl Iterator<Item = (f64, f64)>, right: f64) -> (String, usize) {
    let mut path = String::new();
    let mut last: Option<(f64, f64)> = None;
    let mut drawn = 0;
    for (x, y) in places {
        // Writing to a string does not fail.
        let _ = match last {
            None => write!(path, "M{} {}", Px(x), Px(y)),
            Some(before) if x - before.0 < 0.5 && (y - before.1).abs() < 0.5 => continue,
            Some(_) => write!(path, "H{}V{}", Px(x), Px(y)),
        };
        last = Some((x, y));
        drawn += 1;
    }
    let _ = write!(path, "H{}", Px(right));
    (path, drawn)
}

fn spot(canvas: &mut Canvas, class: &'static str, at: (f64, f64), radius: &'static str, words: &str) {
    let (x, y) = (Px(at.0), Px(at.1));
    canvas
        .markup
        .open("circle", &[("class", &class), ("cx", &x), ("cy", &y), ("r", &radius)])
        .element("title", &[], words)
        .close("circle")
        .line();
}

/// How far below its spot a name stands.
const ABOVE: f64 = -10.0;
const BELOW: f64 = 18.0;

/// Where the names of two spots stand: above both, or where these are near each other above the higher and below the lower one.
fn names_below(own: (f64, f64), seen: (f64, f64)) -> (f64, f64) {
    let near = (own.0 - seen.0).abs() < NAME.0 && (own.1 - seen.1).abs() < NAME.1;
    match (near, own.1 < seen.1) {
        (false, _) => (ABOVE, ABOVE),
        (true, true) => (ABOVE, BELOW),
        (true, false) => (BELOW, ABOVE),
    }
}

fn name(canvas: &mut Canvas, frame: &Frame, at: (f64, f64), words: &'static str, below: f64) {
    let late = at.0 > frame.right - 80.0;
    let (anchor, aside) = if late { (Anchor::End, -8.0) } else { (Anchor::Start, 8.0) };
    let y = (at.1 + below).clamp(frame.top + 4.0, frame.bottom - 6.0);
    canvas.label("words strong", anchor, (at.0 + aside, y), words);
}

fn tell(profile: &Profile, bytes: Bytes, nanos: u64, what: &str) -> String {
    let base = profile.lower_bound().get() as f64;
    let over = match base > 0.0 {
        true => format!(", {:+.1}% over everything once", (nanos as f64 / base - 1.0) * 100.0),
        false => String::new(),
    };
    format!(
        "{what} {bytes}\nstep {}{over}",
        rekindle_plan::Nanos::new(nanos).to_string().replace(" us", " µs")
    )
}

fn summary(step: Option<&Step<'_>>, first: &Point, last: &Point) -> String {
    let plan = step.map(|step| {
        format!(" This plan takes {} in {}.", step.simulation.step_ns, step.simulation.peak_bytes)
    });
    format!(
        "The cheapest step for every budget, from {} in {} to {} in {}.{}",
        first.step_ns,
        first.budget_bytes,
        last.step_ns,
        last.budget_bytes,
        plan.unwrap_or_default(),
    )
}
