//! What a notebook shows: tables, and the report's figures.

use std::fmt::Write;

use rekindle_plan::{Bytes, Profile};
use rekindle_report::{Figure, Report};

use crate::plan::PyPlan;
use crate::simulation::PySimulation;

/// A profile's rows beyond this many are counted, not shown.
const MOST_ROWS: usize = 64;

/// A table of stages.
pub(crate) fn profile(profile: &Profile, store_all: Option<Bytes>) -> String {
    let stages = profile.stages();
    let mut html = format!(
        "<div><p><b>{}</b> on {}: {} stages, input {}, {} to keep every tape, {} to run every stage once</p><table>",
        escaped(profile.model()),
        escaped(profile.device()),
        stages.len(),
        profile.input_bytes(),
        store_all.map_or_else(|| "too much".to_owned(), |bytes| bytes.to_string()),
        profile.lower_bound(),
    );
    html.push_str(&row("th", ["stage", "output", "tape", "forward", "backward", "options"]));
    for stage in stages.iter().take(MOST_ROWS) {
        let options: Vec<&str> = stage.options.iter().map(|option| option.name.as_str()).collect();
        let pinned = if stage.pinned { " (pinned)" } else { "" };
        html.push_str(&row(
            "td",
            [
                &format!("{}{pinned}", stage.name),
                &stage.output_bytes.to_string(),
                &stage.tape_bytes.to_string(),
                &stage.forward_ns.to_string(),
                &stage.backward_ns.to_string(),
                &options.join(", "),
            ],
        ));
    }
    html.push_str("</table>");
    if stages.len() > MOST_ROWS {
        let _ = write!(html, "<p>and {} more stages</p>", stages.len() - MOST_ROWS);
    }
    html.push_str("</div>");
    html
}

/// A plan: its figures, and where its profile is known its timeline and its memory.
pub(crate) fn plan(plan: &PyPlan) -> String {
    let found = &plan.inner;
    let budget = found.budget_bytes.map(|bytes| format!(" of {bytes}")).unwrap_or_default();
    let words = format!(
        "<p><b>{}</b> ({}): peak {}{budget}, step {}, {} of it recomputing, {} actions</p>",
        escaped(&found.solver),
        escaped(&found.status.to_string()),
        found.predicted.peak_bytes,
        found.predicted.step_ns,
        found.predicted.recompute_ns,
        found.actions.len()
    );
    let figures = plan.profile.as_ref().map(|profile| {
        let report = Report::new(&profile.inner, found);
        [Figure::Timeline, Figure::Memory].map(|figure| drawn(report.svg(figure).ok())).concat()
    });
    format!("<div>{words}{}</div>", figures.unwrap_or_default())
}

/// A judged plan: memory over the step, and what sets the peak.
pub(crate) fn simulation(simulation: &PySimulation) -> String {
    let found = &simulation.inner;
    let plan = &simulation.plan.inner;
    let action = plan.actions.get(found.peak_action).map(ToString::to_string).unwrap_or_default();
    let words = format!(
        "<p>peak {} at action {} (<code>{}</code>), step {}, {} of it recomputing, {} waiting</p>",
        found.peak_bytes,
        found.peak_action,
        escaped(&action),
        found.step_ns,
        found.recompute_ns,
        found.wait_ns
    );
    let memory = Report::new(&simulation.profile.inner, plan).svg(Figure::Memory).ok();
    let mut alive = row("th", ["alive at the peak", "bytes"]);
    let tensors = &found.peak_tensors;
    for live in tensors.iter().take(MOST_ROWS) {
        alive.push_str(&row("td", [&live.what.to_string(), &live.bytes.to_string()]));
    }
    let more = tensors.len().saturating_sub(MOST_ROWS);
    let more = if more > 0 { format!("<p>and {more} more</p>") } else { String::new() };
    format!("<div>{words}{}<table>{alive}</table>{more}</div>", drawn(memory))
}

/// A figure on white, because it is drawn for paper and a notebook may be dark.
fn drawn(svg: Option<String>) -> String {
    svg.map(|svg| format!("<div style=\"background:#ffffff;overflow-x:auto\">{svg}</div>"))
        .unwrap_or_default()
}

fn row<const N: usize>(cell: &str, cells: [&str; N]) -> String {
    let cells: String = cells.iter().map(|text| format!("<{cell}>{}</{cell}>", escaped(text))).collect();
    format!("<tr>{cells}</tr>")
}

/// Text that is no markup: names come from users' files. What XML cannot hold becomes a replacement character.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\t' | '\n' | '\r' => safe.push(letter),
            letter if letter < ' ' || matches!(letter, '\u{fffe}' | '\u{ffff}') => safe.push('\u{fffd}'),
            letter => safe.push(letter),
        }
    }
    safe
}
