//! What a notebook shows: tables, and the report's figures.

use rekindle_plan::graph::{Graph, GraphPlan};
use rekindle_plan::solvers::optimal::FrontierPoint;
use rekindle_plan::{Bytes, Profile};
use rekindle_report::{Figure, Point, Report, frontier_svg};

use crate::estimate::PyEstimate;
use crate::explanation::PyExplanation;
use crate::graph::kind_name;
use crate::plan::PyPlan;
use crate::simulation::PySimulation;

/// Rows beyond this many are counted, not shown.
const MOST_ROWS: usize = 64;

/// A table of stages.
pub(crate) fn profile(profile: &Profile, store_all: Option<Bytes>) -> String {
    let stages = profile.stages();
    let words = format!(
        "<p><b>{}</b> on {}: {} stages, input {}, {} to keep every tape, {} to run every stage once</p>",
        escaped(profile.model()),
        escaped(profile.device()),
        stages.len(),
        profile.input_bytes(),
        store_all.map_or_else(|| "too much".to_owned(), |bytes| bytes.to_string()),
        profile.lower_bound(),
    );
    let rows = stages.iter().map(|stage| {
        let options: Vec<&str> = stage.options.iter().map(|option| option.name.as_str()).collect();
        let pinned = if stage.pinned { " (pinned)" } else { "" };
        row(
            "td",
            [
                &format!("{}{pinned}", stage.name),
                &stage.output_bytes.to_string(),
                &stage.tape_bytes.to_string(),
                &stage.forward_ns.to_string(),
                &stage.backward_ns.to_string(),
                &options.join(", "),
            ],
        )
    });
    let table = some("stages", rows, ["stage", "output", "tape", "forward", "backward", "options"]);
    format!("<div>{words}{table}</div>")
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
    let alive = found.peak_tensors.iter();
    let alive = alive.map(|live| row("td", [&live.what.to_string(), &live.bytes.to_string()]));
    let alive = some("tensors", alive, ["alive at the peak", "bytes"]);
    format!("<div>{words}{}{alive}</div>", drawn(memory))
}

/// A table of nodes.
pub(crate) fn graph(graph: &Graph, store_all: Option<Bytes>) -> String {
    let nodes = graph.nodes();
    let words = format!(
        "<p><b>{}</b> on {}: {} nodes, {} to compute each once, {}</p>",
        escaped(graph.model()),
        escaped(graph.device()),
        nodes.len(),
        store_all.map_or_else(|| "too much".to_owned(), |bytes| bytes.to_string()),
        graph.lower_bound(),
    );
    let rows = nodes.iter().enumerate().map(|(number, node)| {
        let pinned = if node.pinned { " (pinned)" } else { "" };
        let output = if graph.outputs().contains(&number) { " (output)" } else { "" };
        let reads: Vec<&str> = graph.reads(number).iter().map(|&read| nodes[read].name.as_str()).collect();
        row(
            "td",
            [
                &format!("{}{pinned}{output}", node.name),
                kind_name(node.kind),
                &node.time_ns.to_string(),
                &node.bytes.to_string(),
                &node.workspace_bytes.to_string(),
                &reads.join(", "),
            ],
        )
    });
    let table = some("nodes", rows, ["node", "kind", "time", "bytes", "workspace", "reads"]);
    format!("<div>{words}{table}</div>")
}

/// A plan of a graph: its figures and its actions.
pub(crate) fn graph_plan(plan: &GraphPlan) -> String {
    let budget = plan.budget_bytes.map(|bytes| format!(" of {bytes}")).unwrap_or_default();
    let words = format!(
        "<p><b>{}</b> ({}): peak {}{budget}, step {}, {} of it computing again, {} actions</p>",
        escaped(&plan.solver),
        escaped(&plan.status.to_string()),
        plan.predicted.peak_bytes,
        plan.predicted.step_ns,
        plan.predicted.recompute_ns,
        plan.actions.len()
    );
    let rows = plan.actions.iter().enumerate();
    let rows = rows.map(|(number, action)| row("td", [&number.to_string(), &action.to_string()]));
    format!("<div>{words}{}</div>", some("actions", rows, ["", "action"]))
}

/// A judged plan of a graph: its figures, and what sets the peak.
pub(crate) fn graph_simulation(words: &str, peak_values: &[(String, u64)]) -> String {
    let alive = peak_values.iter();
    let alive = alive.map(|(what, bytes)| row("td", [what.as_str(), &Bytes::new(*bytes).to_string()]));
    let alive = some("values", alive, ["alive at the peak", "bytes"]);
    format!("<div><p>{}</p>{alive}</div>", escaped(words))
}

/// The cheapest time for every budget, as a curve.
pub(crate) fn frontier(profile: &Profile, points: &[FrontierPoint]) -> String {
    let ends = points.first().zip(points.last()).map(|(first, last)| {
        format!(
            "<p><b>{}</b>: {} points, from {} in {} to {} in {}</p>",
            escaped(profile.model()),
            points.len(),
            first.step_ns,
            first.budget_bytes,
            last.step_ns,
            last.budget_bytes
        )
    });
    let points: Vec<Point> = points.iter().map(Into::into).collect();
    format!("<div>{}{}</div>", ends.unwrap_or_default(), drawn(frontier_svg(profile, &points)))
}

/// What a plan keeps, where and why.
pub(crate) fn explanation(explanation: &PyExplanation) -> String {
    let stages = explanation.stage_rows();
    let stages = stages.iter().map(|cells| row("td", cells.each_ref().map(String::as_str)));
    let stages = some("stages", stages, ["stages", "run", "tape", "option"]);
    let kept = explanation.kept.iter().map(|stay| row("td", stay.cells().each_ref().map(String::as_str)));
    let kept = match explanation.kept.is_empty() {
        true => String::new(),
        false => some("boundaries", kept, ["kept", "bytes", "on", "during", "to"]),
    };
    let alive = explanation.peak_tensors.iter();
    let alive = alive.map(|(what, bytes)| row("td", [what.as_str(), &Bytes::new(*bytes).to_string()]));
    let alive = some("tensors", alive, ["alive at the peak", "bytes"]);
    format!(
        "<div><p>{}</p>{stages}{kept}<p>{}</p>{alive}</div>",
        escaped(&explanation.summary),
        escaped(&explanation.peak)
    )
}

/// What every strategy takes.
pub(crate) fn estimate(estimate: &PyEstimate) -> String {
    let mut html = format!("<div><p>{}</p><table>", escaped(&estimate.words()));
    let header = ["strategy", "activations", "workspace", "in all", "more work"];
    let fits = estimate.room.map(|room| [format!("batch that fits {room}"), "longest that fits".to_owned()]);
    let cells = header.into_iter().map(str::to_owned).chain(fits.into_iter().flatten());
    html.push_str(&row_of("th", cells));
    for found in &estimate.rows {
        let bytes = |bytes: u64| Bytes::new(bytes).to_string();
        let cells = [
            found.strategy.clone(),
            bytes(found.activations_bytes),
            bytes(found.workspace_bytes),
            bytes(found.total_bytes),
            format!("{:+.1}%", found.overhead * 100.0),
        ];
        let number =
            |number: Option<u64>| number.map_or_else(|| "none".to_owned(), |number| number.to_string());
        let fits = estimate.room.map(|_| [number(found.largest_batch), number(found.longest)]);
        html.push_str(&row_of("td", cells.into_iter().chain(fits.into_iter().flatten())));
    }
    html.push_str("</table></div>");
    html
}

/// A table of at most so many rows, and how many more there are.
fn some<const N: usize>(
    what: &str,
    rows: impl ExactSizeIterator<Item = String>,
    header: [&str; N],
) -> String {
    let more = rows.len().saturating_sub(MOST_ROWS);
    let rows: String = rows.take(MOST_ROWS).collect();
    let more = if more > 0 { format!("<p>and {more} more {what}</p>") } else { String::new() };
    format!("<table>{}{rows}</table>{more}", row("th", header))
}

/// A figure on white, because it is drawn for paper and a notebook may be dark.
fn drawn(svg: Option<String>) -> String {
    svg.map(|svg| format!("<div style=\"background:#ffffff;overflow-x:auto\">{svg}</div>"))
        .unwrap_or_default()
}

fn row<const N: usize>(cell: &str, cells: [&str; N]) -> String {
    row_of(cell, cells.into_iter().map(str::to_owned))
}

fn row_of(cell: &str, cells: impl Iterator<Item = String>) -> String {
    let cells: String = cells.map(|text| format!("<{cell}>{}</{cell}>", escaped(&text))).collect();
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
