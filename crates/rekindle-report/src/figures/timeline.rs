//! What runs when, for every stage: forward, again, backward, transfers; and what is kept in between.

use rekindle_plan::{Action, Stage};

use super::{Anchor, Area, Canvas, Drawing, Frame, Look, Swatch, legend_height};
use crate::kept;
use crate::markup::distinct;
use crate::scale::{Scale, time_unit};
use crate::step::{Step, Work};

/// More rows than this cannot be told apart; stages then share one.
const MOST_ROWS: usize = 80;
/// Names nearer than this would lie on one another.
const NAME_HEIGHT: f64 = 12.0;
/// More marks than this make a page slow.
const MOST_MARKS: usize = 2_000;
/// What is narrower than this cannot be seen.
const NARROWEST: f64 = 0.8;
/// The widest that letters of names are on average, in the fonts a page is seen in.
const LETTER: f64 = 7.0;

/// One mark: what is done in a row, from where to where on the axis.
#[derive(Clone, Copy, Debug)]
struct Bar {
    row: usize,
    kind: Kind,
    from: f64,
    to: f64,
    /// The first of its actions and the last.
    actions: (usize, usize),
    count: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tape,
    Kept,
    Away,
    Forward,
    Again,
    Backward,
    Transfer,
}

impl Kind {
    fn class(self) -> &'static str {
        match self {
            Self::Tape => "tape",
            Self::Kept => "kept",
            Self::Away => "away",
            Self::Forward => "forward",
            Self::Again => "again",
            Self::Backward => "backward",
            Self::Transfer => "transfer",
        }
    }
}

/// How many stages share a row.
pub(crate) fn stages_in_a_row(step: &Step<'_>) -> usize {
    step.profile.stages().len().div_ceil(MOST_ROWS)
}

pub(crate) fn draw(step: &Step<'_>, look: Look) -> Drawing {
    let stages = step.profile.stages().len();
    let shared = stages_in_a_row(step);
    let rows = stages.div_ceil(shared);
    let pitch = (640.0 / rows as f64).min(if look.is_narrow() { 15.0 } else { 17.0 });
    let named = (NAME_HEIGHT / pitch).ceil().max(1.0) as usize;

    let bars = bars(step, shared);
    let used = |kind: Kind| bars.iter().any(|bar| bar.kind == kind);
    let legend = [
        (Kind::Forward, Swatch::Fill("forward"), "forward"),
        (Kind::Again, Swatch::Fill("again"), "forward again"),
        (Kind::Backward, Swatch::Fill("backward"), "backward"),
        (Kind::Transfer, Swatch::Fill("transfer"), "moved or compressed"),
        (Kind::Tape, Swatch::Line("tape-line"), "tape kept"),
        (Kind::Kept, Swatch::Line("kept-line"), "boundary kept"),
        (Kind::Away, Swatch::Line("away-line"), "copy elsewhere"),
    ];
    let legend: Vec<_> =
        legend.into_iter().filter(|item| used(item.0)).map(|(_, swatch, words)| (swatch, words)).collect();
    let names = row_names(step, rows, shared, if look.is_narrow() { 11 } else { 18 });
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let left = (longest as f64 * LETTER + 8.0).max(28.0);
    let top = legend_height(&legend, look) + 14.0;
    let height = top + pitch * rows as f64 + 42.0;
    let mut canvas = Canvas::new("timeline", &summary(step), height, look);
    canvas.stripes();
    canvas.legend(&legend, 0.0);
    let frame = Frame { left, right: look.width() - 8.0, top, bottom: top + pitch * rows as f64 };
    let across = Scale::linear(0.0, step.length(), frame.left, frame.right);
    for (row, words) in names.iter().enumerate() {
        let y = frame.top + pitch * row as f64;
        if row % named > 0 {
            continue;
        }
        canvas.line("grid", (frame.left, y), (frame.right, y));
        canvas.label("number", Anchor::End, (frame.left - 6.0, y + pitch / 2.0 + 4.0), words);
    }
    let turn = across.at(step.turn());
    canvas.line("turn", (turn, frame.top), (turn, frame.bottom));
    let unit = if step.timed { (time_unit(step.length()), "time") } else { ((1.0, ""), "actions") };
    frame.horizontal_axis(&mut canvas, &across, unit.0, unit.1);

    let pixel = step.length() / (frame.right - frame.left);
    let most = if look.is_narrow() { MOST_MARKS / 2 } else { MOST_MARKS };
    let (drawn, merged) = together(bars, pixel, most);
    for bar in &drawn {
        let from = across.at(bar.from);
        let width = (across.at(bar.to) - from).max(NARROWEST);
        let top = frame.top + pitch * bar.row as f64;
        let (y, height) = place(bar.kind, pitch, shared > 1);
        canvas.mark(bar.kind.class(), Area { x: from, y: top + y, width, height }, &tell(step, bar));
    }
    canvas.finish(merged || shared > 1)
}

/// Where in its row a bar lies, and how high it is.
fn place(kind: Kind, pitch: f64, shared: bool) -> (f64, f64) {
    let inner = pitch - 2.0;
    match kind {
        Kind::Tape => (pitch / 2.0 - 1.5, (pitch / 3.0).min(3.0)),
        Kind::Kept | Kind::Away => (pitch - 2.5, 1.5),
        Kind::Transfer => (pitch - 1.0 - inner * 0.4, inner * 0.4),
        // Stages that share a row go forward and back at the same time, as far as a pixel can tell.
        Kind::Forward | Kind::Again if shared => (1.0, inner * 0.5),
        Kind::Backward if shared => (1.0 + inner * 0.5, inner * 0.5),
        Kind::Forward | Kind::Again | Kind::Backward => (1.0, inner),
    }
}

fn bars(step: &Step<'_>, shared: usize) -> Vec<Bar> {
    let row = |stage: Stage| stage.index() / shared;
    let bar = |kind, row, (from, to), actions| Bar { row, kind, from, to, actions, count: 1 };
    let mut bars = Vec::with_capacity(step.works.len());
    for story in kept::stages(step.profile, step.plan) {
        let (made, used) = story.taped;
        let Some(stage) = step.plan.actions.get(made).and_then(Action::stage) else { continue };
        let between = (step.work(made).1, step.work(used).0);
        if between.1 > between.0 {
            bars.push(bar(Kind::Tape, row(stage), between, (made, used)));
        }
    }
    for stay in kept::stays(step.profile, step.plan) {
        let kind = if stay.place.is_none() { Kind::Kept } else { Kind::Away };
        let between = (step.stay(stay.from).0, step.stay(stay.to).0);
        bars.push(bar(kind, row(step.home(stay.boundary)), between, (stay.from, stay.to)));
    }
    for (index, (action, work)) in step.plan.actions.iter().zip(&step.works).enumerate() {
        let kind = match work {
            Work::Forward => Kind::Forward,
            Work::Again => Kind::Again,
            Work::Backward => Kind::Backward,
            Work::Transfer => Kind::Transfer,
            Work::Nothing => continue,
        };
        let home = match action {
            Action::Offload { boundary, .. }
            | Action::Fetch { boundary, .. }
            | Action::Compress { boundary, .. } => Some(step.home(*boundary)),
            other => other.stage(),
        };
        if let Some(stage) = home {
            bars.push(bar(kind, row(stage), step.work(index), (index, index)));
        }
    }
    bars
}

/// Draws neighbours of a kind together: where they touch within half a pixel and at least one is hardly to be seen,
/// and further apart for as long as there are too many.
fn together(mut bars: Vec<Bar>, pixel: f64, most: usize) -> (Vec<Bar>, bool) {
    let drawing_order = |bar: &Bar| (bar.kind as u8, bar.row);
    bars.sort_by(|left, right| {
        drawing_order(left).cmp(&drawing_order(right)).then(left.from.total_cmp(&right.from))
    });
    let before = bars.len();
    let (mut gap, mut thin) = (0.5 * pixel, 1.5 * pixel);
    loop {
        let mut drawn: Vec<Bar> = Vec::new();
        for bar in &bars {
            match drawn.last_mut() {
                Some(last)
                    if (last.row, last.kind) == (bar.row, bar.kind)
                        && bar.from - last.to <= gap
                        && (last.to - last.from < thin || bar.to - bar.from < thin) =>
                {
                    last.to = last.to.max(bar.to);
                    last.actions = (last.actions.0.min(bar.actions.0), last.actions.1.max(bar.actions.1));
                    last.count += bar.count;
                }
                _ => drawn.push(*bar),
            }
        }
        // One bar for every kind in every row is always few enough.
        if drawn.len() <= most.max(MOST_ROWS * 7) {
            let merged = drawn.len() < before;
            return (drawn, merged);
        }
        (bars, gap, thin) = (drawn, gap * 2.0, f64::INFINITY);
    }
}

/// What the rows are called: the stages' names, or their numbers where several share a row.
fn row_names(step: &Step<'_>, rows: usize, shared: usize, most: usize) -> Vec<String> {
    let stages = step.profile.stages();
    match shared {
        0 | 1 => distinct(stages.iter().map(|stage| stage.name.as_str()), most),
        _ => (0..rows)
            .map(|row| (row * shared + 1, ((row + 1) * shared).min(stages.len())))
            .map(|(first, last)| if first == last { first.to_string() } else { format!("{first} to {last}") })
            .collect(),
    }
}

fn tell(step: &Step<'_>, bar: &Bar) -> String {
    let span = format!("{} to {}", step.moment(bar.from), step.moment(bar.to));
    let (first, last) = bar.actions;
    if bar.count > 1 {
        let what = match bar.kind {
            Kind::Tape => "tapes kept",
            Kind::Kept => "boundaries kept",
            Kind::Away => "copies elsewhere",
            Kind::Forward => "forwards",
            Kind::Again => "forwards again",
            Kind::Backward => "backwards",
            Kind::Transfer => "moved or compressed",
        };
        return format!("{} {what}\nfirst {}\nlast {}\n{span}", bar.count, step.tell(first), step.tell(last));
    }
    let what = match (bar.kind, step.plan.actions.get(first)) {
        (Kind::Tape, Some(action)) => {
            action.stage().map_or_else(String::new, |stage| format!("tape of {} kept", step.name(stage)))
        }
        (Kind::Kept, Some(Action::Keep { boundary })) => format!("{} kept", step.boundary(*boundary)),
        (
            Kind::Away,
            Some(Action::Offload { boundary, tier: place } | Action::Compress { boundary, codec: place }),
        ) => {
            format!("{} in {place}", step.boundary(*boundary))
        }
        _ => step.tell(first),
    };
    format!("{what}\n{span}")
}

fn summary(step: &Step<'_>) -> String {
    let stages = step.profile.stages().len();
    let again = step.works.iter().filter(|work| **work == Work::Again).count();
    let moved = step.works.iter().filter(|work| **work == Work::Transfer).count();
    format!(
        "What runs when, stages from top to bottom: {stages} stages, {again} forwards run again, {moved} transfers."
    )
}
