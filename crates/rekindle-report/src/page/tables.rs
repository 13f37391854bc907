//! The tables of the page.

use std::collections::HashMap;

use rekindle_plan::{Boundary, Bytes, Live, LiveKind, Nanos, Stage};

use super::{again, counted, grouped, part, percent, signed_percent, time};
use crate::figures::totals::CLASSES;
use crate::kept::{self, Held, StageStory, Stay};
use crate::markup::Markup;
use crate::step::Step;
use crate::{MeasuredEvent, Report, Totals};

/// More rows than this only who wants to know them all reads.
const MOST_ROWS: usize = 40;
/// More than this, and a page is slow.
const MOST_UNFOLDED: usize = 5_000;
/// Of the tensors that set the peak, these tell the story.
const MOST_TENSORS: usize = 10;
/// More than this many stretches of numbers are counted only.
const MOST_RANGES: usize = 5;

/// A column: its head, and whether numbers stand in it.
type Column = (&'static str, bool);

/// A table that scrolls by itself where it is wider than the page.
fn table(page: &mut Markup, caption: &str, columns: &[Column], rows: &[Vec<String>]) {
    open(page, caption, columns);
    for row in rows {
        page.open("tr", &[]);
        cells(page, columns, row);
    }
    close(page);
}

fn open(page: &mut Markup, caption: &str, columns: &[Column]) {
    page.open(
        "div",
        &[("class", &"scroll"), ("tabindex", &"0"), ("role", &"region"), ("aria-label", &caption)],
    )
    .open("table", &[])
    .element("caption", &[], caption)
    .open("thead", &[])
    .open("tr", &[]);
    for (name, numbers) in columns {
        match numbers {
            true => page.element("th", &[("scope", &"col"), ("class", &"n")], name),
            false => page.element("th", &[("scope", &"col")], name),
        };
    }
    page.close("tr").close("thead").open("tbody", &[]).line();
}

fn cells(page: &mut Markup, columns: &[Column], cells: &[String]) {
    for (index, (cell, (_, numbers))) in cells.iter().zip(columns).enumerate() {
        match (index, numbers) {
            (0, _) => page.element("th", &[("scope", &"row")], cell),
            (_, true) => page.element("td", &[("class", &"n")], cell),
            (_, false) => page.element("td", &[], cell),
        };
    }
    page.close("tr").line();
}

fn close(page: &mut Markup) {
    page.close("tbody").close("table").close("div").line();
}

/// Predicted and measured, side by side.
pub(super) fn measured(page: &mut Markup, report: &Report<'_>, step: &Step<'_>) {
    let Some(measured) = &report.measured else { return };
    let simulation = &step.simulation;
    let columns = [("", false), ("predicted", true), ("measured", true), ("difference", true)];
    let difference = |found: u64, expected: u64| match expected {
        0 => "–".to_owned(),
        _ => signed_percent(found as f64 / expected as f64 - 1.0),
    };
    let rows = [
        vec![
            "peak".to_owned(),
            simulation.peak_bytes.to_string(),
            measured.peak_bytes.to_string(),
            difference(measured.peak_bytes.get(), simulation.peak_bytes.get()),
        ],
        vec![
            "step".to_owned(),
            if step.timed { time(simulation.step_ns) } else { "–".to_owned() },
            time(measured.step_ns),
            difference(measured.step_ns.get(), simulation.step_ns.get()),
        ],
    ];
    table(page, "Predicted and measured", &columns, &rows);
    if let Some(budget) = step.plan.budget_bytes.filter(|budget| measured.peak_bytes > *budget) {
        let words = format!(
            "The measured peak is above the budget, by {}.",
            measured.peak_bytes.saturating_sub(budget)
        );
        page.element("p", &[("class", &"note")], words);
    }
    if let Some(set_by) = measured.set_by.clone().or_else(|| set_by(step, &measured.events)) {
        page.element("p", &[("class", &"note")], format!("The measured peak was set by {set_by}."));
    }
    if let Some(transfers) = &measured.transfers {
        page.element("p", &[("class", &"note")], format!("In the measured step, {transfers}."));
    }
}

/// The action whose measured peak was the highest, and the largest of what its plan keeps then; `None` where no peak was seen.
fn set_by(step: &Step<'_>, events: &[MeasuredEvent]) -> Option<String> {
    let highest = events.iter().filter(|event| event.peak_bytes.is_some());
    // Of equals the first, as the simulator has it.
    let highest = highest.rev().max_by_key(|event| event.peak_bytes)?.action;
    let largest = kept::largest_at(step.profile, step.plan, highest).map(|(what, bytes)| match what {
        Held::Tape(stage) => {
            format!("; the largest it keeps then is the tape of {}, {bytes}", step.name(stage))
        }
        Held::Boundary(boundary) => {
            format!("; the largest it keeps then is {}, {bytes}", step.boundary(boundary))
        }
    });
    Some(format!(
        "the {}, action {} of {}{}",
        step.tell(highest),
        grouped(highest as u64 + 1),
        grouped(step.plan.actions.len() as u64),
        largest.unwrap_or_default()
    ))
}

/// What is alive at the peak.
pub(super) fn peak(page: &mut Markup, step: &Step<'_>) {
    let simulation = &step.simulation;
    page.element("h3", &[], "What sets the peak");
    let words = format!(
        "{} are alive during the {}, action {} of {}.",
        simulation.peak_bytes,
        step.tell(simulation.peak_action),
        grouped(simulation.peak_action as u64 + 1),
        grouped(step.plan.actions.len() as u64),
    );
    page.element("p", &[("class", &"note")], words);
    let groups = alike(&simulation.peak_tensors);
    let row = |words: String, bytes: Bytes, count: usize| {
        let all = Bytes::new(bytes.get().saturating_mul(count as u64));
        vec![words, each(bytes, count), percent(part(all, simulation.peak_bytes))]
    };
    let mut rows: Vec<Vec<String>> = Vec::new();
    for group in groups.iter().take(MOST_TENSORS) {
        let Some(first) = group.first() else { continue };
        rows.push(row(alive(step, group), first.bytes, group.len()));
    }
    if let Some(rest) = groups.get(MOST_TENSORS..).filter(|rest| !rest.is_empty()) {
        let count = rest.iter().map(|group| group.len()).sum::<usize>();
        let bytes: Bytes = rest.iter().flat_map(|group| group.iter().map(|live| live.bytes)).sum();
        rows.push(row(format!("{} more", grouped(count as u64)), bytes, 1));
    }
    let columns = [("tensors", false), ("bytes", true), ("of the peak", true)];
    table(page, "Alive at the peak, largest first", &columns, &rows);
}

/// Tensors of one kind and size together.
fn alike(tensors: &[Live]) -> Vec<Vec<&Live>> {
    let kind = |live: &Live| (live.bytes, std::mem::discriminant(&live.what));
    let mut groups: Vec<Vec<&Live>> = Vec::new();
    let mut places = HashMap::new();
    for live in tensors {
        // In a group there is one name only, so codecs stay apart.
        let codec = match &live.what {
            LiveKind::Compressed(_, codec) => Some(codec),
            _ => None,
        };
        let place = *places.entry((kind(live), codec)).or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => group.push(live),
            None => groups.push(vec![live]),
        }
    }
    groups
}

/// A group of tensors in words, such as `tapes of block.0 to block.3, head`.
fn alive(step: &Step<'_>, group: &[&Live]) -> String {
    let Some(first) = group.first() else { return String::new() };
    let numbers: Vec<u32> = group.iter().filter_map(|live| number(&live.what)).collect();
    let many = numbers.len() > 1;
    let of_stages = |what: &str| {
        format!("{what} of {}", ranges(&numbers, |number| step.name(Stage::new(number)).to_owned()))
    };
    let boundaries = || match numbers.as_slice() {
        [one] => step.boundary(Boundary::new(*one)),
        _ => ranges(&numbers, |number| Boundary::new(number).to_string()),
    };
    match &first.what {
        LiveKind::Boundary(_) if many => format!("boundaries {}", boundaries()),
        LiveKind::Boundary(_) => boundaries(),
        LiveKind::Compressed(_, codec) => format!("{} as {codec}", boundaries()),
        LiveKind::Tape(_) => of_stages(if many { "tapes" } else { "tape" }),
        LiveKind::Gradient(_) => format!("gradient of {}", boundaries()),
        LiveKind::ForwardExtra(_) => of_stages("workspace of the forward"),
        LiveKind::BackwardExtra(_) => of_stages("workspace of the backward"),
        other => other.to_string(),
    }
}

fn number(what: &LiveKind) -> Option<u32> {
    match what {
        LiveKind::Boundary(boundary) | LiveKind::Compressed(boundary, _) | LiveKind::Gradient(boundary) => {
            Some(boundary.number())
        }
        LiveKind::Tape(stage) | LiveKind::ForwardExtra(stage) | LiveKind::BackwardExtra(stage) => {
            Some(stage.number())
        }
        _ => None,
    }
}

/// Numbers as ranges, the first few of them.
fn ranges(numbers: &[u32], name: impl Fn(u32) -> String) -> String {
    let runs: Vec<&[u32]> = numbers.chunk_by(|left, right| left.checked_add(1) == Some(*right)).collect();
    let told = runs.iter().take(MOST_RANGES).filter_map(|run| match (run.first()?, run.last()?) {
        (first, last) if first == last => Some(name(*first)),
        (first, last) => Some(format!("{} to {}", name(*first), name(*last))),
    });
    let told = told.collect::<Vec<_>>().join(", ");
    match runs.iter().skip(MOST_RANGES).map(|run| run.len()).sum::<usize>() {
        0 => told,
        more => format!("{told} and {} more", grouped(more as u64)),
    }
}

/// Some points of the frontier, both ends among them.
pub(super) fn frontier(page: &mut Markup, report: &Report<'_>, step: &Step<'_>) {
    let points = &report.frontier;
    let shown = points.len().min(16);
    let index = |row: usize| if shown < 2 { 0 } else { row * (points.len() - 1) / (shown - 1) };
    let base = step.profile.lower_bound();
    let rows = (0..shown).map(|row| {
        let point = &points[index(row)];
        let over = match base {
            Nanos::ZERO => "–".to_owned(),
            base => signed_percent(point.step_ns.ratio(base) - 1.0),
        };
        vec![point.budget_bytes.to_string(), point.budget_bytes.get().to_string(), time(point.step_ns), over]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    page.open("details", &[]).element("summary", &[], "Its points as numbers");
    let caption = format!("{shown} of {}", counted(points.len() as u64, "point"));
    let columns = [("budget", false), ("bytes", true), ("step", true), ("over every stage once", true)];
    table(page, &caption, &columns, &rows);
    page.close("details").line();
}

/// The stages that keep their tape, the stages that run again, and the boundaries they run from.
pub(super) fn kept(page: &mut Markup, step: &Step<'_>) {
    let stories = kept::stages(step.profile, step.plan);
    let first = stories.iter().filter(|story| story.taped_first).count() as u64;
    let held: Bytes = stories.iter().filter(|story| story.taped_first).map(|story| story.tape_bytes).sum();
    let rest = match again(step) {
        0 => "nothing runs again".to_owned(),
        1 => "1 forward runs again".to_owned(),
        again => format!("{} forwards run again", grouped(again)),
    };
    let words = match first {
        0 => format!("No stage keeps its tape from the first run; {rest}."),
        1 => format!("1 stage keeps its tape from the first run, {held}; {rest}."),
        _ => {
            format!("{} stages keep their tape from the first run, {held} together; {rest}.", grouped(first))
        }
    };
    page.element("p", &[("class", &"note")], words);
    let rows = stage_rows(step, &stories);
    let columns = [("stages", false), ("forwards", true), ("tape kept from the", false), ("bytes", true)];
    cut(page, "Stages, neighbours that fare alike in one row", &columns, &rows);
    let stays = kept::stays(step.profile, step.plan);
    if stays.is_empty() {
        page.element("p", &[("class", &"note")], "No boundary is kept beyond its first reading.");
        return;
    }
    let columns = [
        ("boundary", false),
        ("bytes", true),
        ("where", false),
        ("from", true),
        ("until", true),
        ("for", false),
    ];
    cut(page, "Boundaries kept beyond their first reading", &columns, &stay_rows(step, &stays));
}

/// A table of so many rows, and one to unfold with the others.
fn cut(page: &mut Markup, caption: &str, columns: &[Column], rows: &[Vec<String>]) {
    let (first, more) = rows.split_at(rows.len().min(MOST_ROWS));
    table(page, caption, columns, first);
    if more.is_empty() {
        return;
    }
    let (unfolded, left_out) = more.split_at(more.len().min(MOST_UNFOLDED));
    let count = |rows: &[Vec<String>]| counted(rows.len() as u64, "more row");
    page.open("details", &[]).element("summary", &[], format!("And {}", count(more)));
    table(page, &format!("{caption}, continued"), columns, unfolded);
    if !left_out.is_empty() {
        page.element("p", &[("class", &"note")], format!("And {}, too many for a page.", count(left_out)));
    }
    page.close("details").line();
}

fn stage_rows(step: &Step<'_>, stories: &[StageStory]) -> Vec<Vec<String>> {
    let fare =
        |story: &StageStory| (story.forwards, story.taped_first, story.option.clone(), story.tape_bytes);
    let mut rows = Vec::new();
    let mut number = 1;
    for group in stories.chunk_by(|left, right| fare(left) == fare(right)) {
        let count = u32::try_from(group.len()).unwrap_or(u32::MAX);
        let (from, to) = (Stage::new(number), Stage::new(number.saturating_add(count - 1)));
        number = number.saturating_add(count);
        let Some(story) = group.first() else { continue };
        let names = match count {
            1 => step.name(from).to_owned(),
            _ => format!("{} to {}", step.name(from), step.name(to)),
        };
        let tape = if story.taped_first { "first run" } else { "last run" };
        let tape = match &story.option {
            Some(option) => format!("{tape}, {option}"),
            None => tape.to_owned(),
        };
        rows.push(vec![names, grouped(story.forwards), tape, each(story.tape_bytes, group.len())]);
    }
    rows
}

fn stay_rows(step: &Step<'_>, stays: &[Stay]) -> Vec<Vec<String>> {
    // Segments of one length, each starting where the one before ends.
    let alike = |left: &Stay, right: &Stay| {
        right.boundary.index() == left.boundary.index() + left.runs_again.max(1)
            && (&left.place, left.bytes, left.runs_again) == (&right.place, right.bytes, right.runs_again)
    };
    let rows = stays.chunk_by(alike).filter_map(|group| {
        let (first, last) = (group.first()?, group.last()?);
        let what = match group.len() {
            1 => step.boundary(first.boundary),
            _ => match first.runs_again.max(1) {
                1 => format!("{} to {}", first.boundary, last.boundary),
                stride => format!("{} to {}, every {}", first.boundary, last.boundary, ordinal(stride)),
            },
        };
        let place = first.place.as_ref().map_or_else(|| "device".to_owned(), ToString::to_string);
        let until = group.iter().map(|stay| step.stay(stay.to).0).fold(0.0, f64::max);
        let reader = |stay: &Stay| Stage::new(stay.boundary.number().saturating_add(1));
        let end = |stay: &Stay| Stage::new(stay.boundary.number().saturating_add(stay.runs_again as u32));
        let why = match (first.runs_again, group.len()) {
            (0, _) if first.place.is_some() => "bringing it back".to_owned(),
            (0, _) => "its tape".to_owned(),
            (1, 1) => format!("running {} again", step.name(reader(first))),
            (_, 1) => format!("running {} to {} again", step.name(reader(first)), step.name(end(first))),
            (1, _) => "running the next stage again".to_owned(),
            (count, _) => format!("running the next {} stages again", grouped(count as u64)),
        };
        let from = step.moment(step.stay(first.from).0);
        Some(vec![what, each(first.bytes, group.len()), place, from, step.moment(until), why])
    });
    rows.collect()
}

fn ordinal(number: usize) -> String {
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{}{ending}", grouped(number as u64))
}

fn each(bytes: Bytes, count: usize) -> String {
    if count == 1 { bytes.to_string() } else { format!("{} × {bytes}", grouped(count as u64)) }
}

/// The parts of all memory, with the colours of the bar.
pub(super) fn totals(page: &mut Markup, totals: &Totals) {
    let parts = totals.parts();
    let all: Bytes = parts.iter().map(|part| part.1).sum();
    let columns = [("part", false), ("bytes", true), ("of all", true)];
    open(page, "Memory by what it is for", &columns);
    for (class, (name, bytes)) in CLASSES.into_iter().zip(parts) {
        let swatch = format!("swatch {class}");
        page.open("tr", &[])
            .open("th", &[("scope", &"row")])
            .element("span", &[("class", &swatch)], "")
            .text(name)
            .close("th")
            .element("td", &[("class", &"n")], bytes)
            .element("td", &[("class", &"n")], percent(part(bytes, all)))
            .close("tr")
            .line();
    }
    page.open("tr", &[("class", &"sum")]);
    cells(page, &columns, &["all".to_owned(), all.to_string(), percent(1.0)]);
    close(page);
}
