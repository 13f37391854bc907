//! Memory over the step, predicted and measured, with the budget.

use std::fmt::Write;

use rekindle_plan::Bytes;

use super::{Anchor, Area, Canvas, Drawing, Frame, Look, Swatch, legend_height};
use crate::markup::Px;
use crate::scale::{Scale, bytes_unit, time_unit};
use crate::step::Step;
use crate::{Measured, MeasuredEvent};

/// What is nearer than this is drawn together.
const THIN: f64 = 0.5;
/// What can be pointed at is at least this wide.
const HIT: f64 = 3.0;
/// A budget this many times above everything else would leave a flat line at the bottom.
const FAR: f64 = 3.0;

/// A stretch of the step in which this much is alive.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Level {
    from: f64,
    to: f64,
    bytes: f64,
}

pub(crate) fn draw(step: &Step<'_>, measured: Option<&Measured>, look: Look) -> Drawing {
    let predicted = predicted(step);
    let seen: Vec<Level> = measured.map(|measured| levels(step, &measured.events)).unwrap_or_default();
    let peak = step.simulation.peak_bytes.get() as f64;
    let seen_peak = measured.map_or(0.0, |measured| measured.peak_bytes.get() as f64);
    let highest = seen.iter().map(|level| level.bytes).fold(peak.max(seen_peak), f64::max);
    let budget = step.plan.budget_bytes.map(|bytes| bytes.get() as f64);
    let near = budget.filter(|budget| *budget <= FAR * highest.max(1.0));
    let top = highest.max(near.unwrap_or(0.0)).max(1.0);
    let latest = seen.last().map_or(0.0, |level| level.to).max(step.length());

    let height = if look.is_narrow() { 270.0 } else { 320.0 };
    let mut canvas = Canvas::new("memory", &summary(step, measured), height, look);
    let mut items = vec![(Swatch::Line("predicted"), "predicted")];
    if !seen.is_empty() {
        items.push((Swatch::Line("measured"), "measured"));
    }
    if near.is_some() {
        items.push((Swatch::Line("budget"), "budget"));
    }
    canvas.legend(&items, 0.0);
    let legend = legend_height(&items, look);
    let frame = Frame { left: 46.0, right: look.width() - 8.0, top: legend + 26.0, bottom: height - 40.0 };
    let across = Scale::linear(0.0, latest, frame.left, frame.right);
    // Room above the highest line for its label.
    let up = Scale::linear(0.0, top * 1.1, frame.bottom, frame.top);
    frame.vertical_axis(&mut canvas, &up, bytes_unit(top), 5);
    let (unit, words) = if step.timed { (time_unit(latest), "time") } else { ((1.0, ""), "actions") };
    frame.horizontal_axis(&mut canvas, &across, unit, words);

    let turn = across.at(step.turn());
    canvas.line("turn", (turn, frame.top), (turn, frame.bottom));
    let thin = (latest / (frame.right - frame.left)) * THIN;
    let drawn = together(&predicted, thin);
    let mut thinned = drawn.len() < predicted.iter().filter(|level| level.to > level.from).count();
    let outline = outline(&drawn, &across, &up);
    let area = format!("{outline}V{}H{}Z", Px(frame.bottom), Px(frame.left));
    canvas.path("area", &area);
    canvas.path("predicted", &outline);
    if !seen.is_empty() {
        let drawn = together(&seen, thin);
        thinned |= drawn.len() < seen.iter().filter(|level| level.to > level.from).count();
        canvas.path("measured", &self::outline(&drawn, &across, &up));
    }

    let (from, to) = step.stay(step.simulation.peak_action);
    let dot = (across.at((from + to) / 2.0), up.at(peak));
    let left_is_free = dot.0 > frame.left + 0.45 * (frame.right - frame.left);
    if let Some(budget) = near {
        let y = up.at(budget);
        canvas.line("budget", (frame.left, y), (frame.right, y));
        let words = format!("budget {}", Bytes::new(budget as u64));
        match left_is_free {
            true => canvas.label("words", Anchor::Start, (frame.left + 4.0, y - 6.0), &words),
            false => canvas.label("words", Anchor::End, (frame.right, y - 6.0), &words),
        }
    }
    let (x, y) = (Px(dot.0), Px(dot.1));
    canvas.markup.empty("circle", &[("class", &"peak"), ("cx", &x), ("cy", &y), ("r", &"3.5")]).line();
    let words = format!("peak {}", step.simulation.peak_bytes);
    let above = near.map_or(dot.1, |budget| dot.1.min(up.at(budget))) - 6.0;
    let near_the_end = dot.0 > frame.right - 60.0;
    let anchor = if near_the_end { Anchor::End } else { Anchor::Middle };
    canvas.label("words strong", anchor, (dot.0.max(frame.left + 40.0), above), &words);
    hits(&mut canvas, step, &frame, &across);
    canvas.finish(thinned)
}

fn summary(step: &Step<'_>, measured: Option<&Measured>) -> String {
    let simulation = &step.simulation;
    let (from, _) = step.stay(simulation.peak_action);
    let mut words = format!(
        "Memory over the step: the predicted peak is {}, reached at {} by the {}.",
        simulation.peak_bytes,
        step.moment(from),
        step.tell(simulation.peak_action),
    );
    if let Some(budget) = step.plan.budget_bytes {
        let _ = write!(words, " The budget is {budget}.");
    }
    if let Some(measured) = measured {
        let _ = write!(words, " The measured peak is {}.", measured.peak_bytes);
    }
    words
}

fn predicted(step: &Step<'_>) -> Vec<Level> {
    let moments = step.simulation.moments.iter().enumerate();
    moments
        .map(|(index, moment)| {
            let (from, to) = step.stay(index);
            Level { from, to, bytes: moment.peak.get() as f64 }
        })
        .collect()
}

/// What was seen while each action ran, and between it and the next.
fn levels(step: &Step<'_>, events: &[MeasuredEvent]) -> Vec<Level> {
    let mut events: Vec<&MeasuredEvent> = events.iter().collect();
    events.sort_by_key(|event| (event.start, event.end));
    let mut levels: Vec<Level> = Vec::new();
    for (index, event) in events.iter().enumerate() {
        let (from, to) = step.seen(event);
        let from = levels.last().map_or(from, |last| from.max(last.to));
        let most = event.peak_bytes.max(event.live_bytes);
        if let Some(bytes) = most {
            levels.push(Level { from, to: to.max(from), bytes: bytes.get() as f64 });
        }
        let next = events.get(index + 1).map(|next| step.seen(next).0);
        if let (Some(bytes), Some(next)) = (event.live_bytes, next.filter(|next| *next > to)) {
            levels.push(Level { from: to.max(from), to: next, bytes: bytes.get() as f64 });
        }
    }
    levels
}

/// The same levels with what is thinner than `thin` drawn together, at its highest: a peak is never lost.
fn together(levels: &[Level], thin: f64) -> Vec<Level> {
    let mut drawn: Vec<Level> = Vec::new();
    for level in levels {
        match drawn.last_mut() {
            Some(last) if last.to - last.from < thin || level.to - level.from <= 0.0 => {
                last.to = level.to.max(last.to);
                last.bytes = last.bytes.max(level.bytes);
            }
            _ => drawn.push(*level),
        }
    }
    drawn
}

fn outline(levels: &[Level], across: &Scale, up: &Scale) -> String {
    let mut path = String::new();
    let mut at: Option<f64> = None;
    for level in levels {
        let (from, to, y) = (across.at(level.from), across.at(level.to), up.at(level.bytes));
        // Writing to a string does not fail.
        let _ = match at {
            // Nothing was seen in between.
            Some(end) if from - end > 1.0 => write!(path, "M{} {}H{}", Px(from), Px(y), Px(to)),
            Some(_) => write!(path, "V{}H{}", Px(y), Px(to)),
            None => write!(path, "M{} {}H{}", Px(from), Px(y), Px(to)),
        };
        at = Some(to);
    }
    path
}

/// Columns to point at: one for every action that is wide enough, one for several where they are not.
fn hits(canvas: &mut Canvas, step: &Step<'_>, frame: &Frame, across: &Scale) {
    let moments = &step.simulation.moments;
    let mut first = 0;
    while first < moments.len() {
        let from = across.at(step.stay(first).0);
        let mut last = first;
        while last + 1 < moments.len() && across.at(step.stay(last).1) - from < HIT {
            last += 1;
        }
        let to = across.at(step.stay(last).1);
        let most = moments[first..=last].iter().map(|moment| moment.peak).max().unwrap_or_default();
        let told = match last - first {
            0..=2 => (first..=last).map(|index| step.tell(index)).collect::<Vec<_>>().join("\n"),
            more => format!("{}\nto {}\n({} actions)", step.tell(first), step.tell(last), more + 1),
        };
        let words =
            format!("{told}\n{most}, then {}\nat {}", moments[last].after, step.moment(step.stay(first).0));
        let area =
            Area { x: from, y: frame.top, width: (to - from).max(0.5), height: frame.bottom - frame.top };
        canvas.mark("hit", area, &words);
        first = last + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(from: f64, to: f64, bytes: f64) -> Level {
        Level { from, to, bytes }
    }

    #[test]
    fn drawing_together_never_loses_a_peak() {
        let levels: Vec<Level> =
            (0..10_000).map(|i| level(f64::from(i), f64::from(i + 1), f64::from(i % 977))).collect();
        let drawn = together(&levels, 50.0);
        assert!(drawn.len() <= 201, "{}", drawn.len());
        let most = |levels: &[Level]| levels.iter().map(|level| level.bytes).fold(0.0, f64::max);
        assert_eq!(most(&drawn), most(&levels));
        assert_eq!((drawn[0].from, drawn[drawn.len() - 1].to), (0.0, 10_000.0));
    }

    #[test]
    fn what_takes_no_time_is_not_lost_either() {
        let levels = [level(0.0, 10.0, 1.0), level(10.0, 10.0, 5.0), level(10.0, 20.0, 2.0)];
        assert_eq!(together(&levels, 0.1), [level(0.0, 10.0, 5.0), level(10.0, 20.0, 2.0)]);
    }
}
