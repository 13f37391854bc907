//! How results are shown.

use std::io::{ErrorKind, Write};

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use indicatif::{ProgressBar, ProgressStyle};
use rekindle::Bytes;
use rekindle_plan::{Action, Plan, Profile, Simulation};
use serde::Serialize;

use crate::failure::Failure;
use crate::tell::Printable;

/// A table without lines; all columns but the first are numbers, set right.
pub(crate) fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    laid_out(header, rows, CellAlignment::Right)
}

/// A table without lines, of words: all columns are set left.
pub(crate) fn words<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    laid_out(header, rows, CellAlignment::Left)
}

fn laid_out<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
    alignment: CellAlignment,
) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(alignment);
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

/// What is alive at a plan's peak, the largest first.
pub(crate) fn show_alive(simulation: &Simulation) -> Result<(), Failure> {
    let most = 8;
    let tensors = simulation.peak_tensors.iter().take(most);
    let rows = tensors.map(|live| [live.what.to_string(), live.bytes.to_string()]);
    show(&format!("\n{}", table(["alive at the peak", "bytes"], rows)))?;
    match simulation.peak_tensors.len().saturating_sub(most) {
        0 => Ok(()),
        more => show(&format!(" and {more} more")),
    }
}

/// What a plan's peak is made of: the action, its stage, and the largest that is alive then.
pub(crate) fn set_by(profile: &Profile, plan: &Plan, simulation: &Simulation) -> String {
    let action = plan.actions.get(simulation.peak_action);
    let stage = action.and_then(Action::stage).and_then(|stage| profile.stages().get(stage.index()));
    let name = stage.map(|stage| format!(" (`{}`)", stage.name)).unwrap_or_default();
    let action = action.map(ToString::to_string).unwrap_or_default();
    let largest = simulation.peak_tensors.iter().take(2);
    let largest = largest.map(|live| format!("{} ({})", live.what, live.bytes)).collect::<Vec<_>>();
    format!("`{action}`{name} with {}", largest.join(" and "))
}

/// A sign on standard error that something is going on; nothing where that is not a terminal.
pub(crate) fn spinner(message: &str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(message.to_owned());
    spinner.enable_steady_tick(std::time::Duration::from_millis(120));
    spinner
}

/// A bar on standard error; nothing where that is not a terminal.
pub(crate) fn bar(length: u64, message: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    let style = ProgressStyle::with_template("{prefix} [{bar:24}] {pos}/{len} {msg}");
    if let Ok(style) = style {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_prefix(message.to_owned());
    bar
}

/// A result on standard output. A reader that has seen enough and closed its end is no failure.
pub(crate) fn show(text: &str) -> Result<(), Failure> {
    let mut output = std::io::stdout().lock();
    match writeln!(output, "{}", Printable(text)).and_then(|()| output.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let error = anyhow::Error::new(error).context("cannot write the result");
            Err(Failure::failed(error, "check where standard output goes, and whether there is room"))
        }
        _ => Ok(()),
    }
}

/// A result for programs, on standard output.
pub(crate) fn show_json(value: &impl Serialize) -> Result<(), Failure> {
    // Every result is made of strings, numbers and lists.
    show(&serde_json::to_string_pretty(value).unwrap_or_default())
}

/// `12.3%` of `whole`.
pub(crate) fn percent_of(part: Bytes, whole: Bytes) -> String {
    match whole.get() {
        0 => "-".to_owned(),
        whole => format!("{:.1}%", part.get() as f64 / whole as f64 * 100.0),
    }
}

/// `+12.3%` for an overhead of 0.123.
pub(crate) fn signed_percent(fraction: f64) -> String {
    format!("{:+.1}%", fraction * 100.0)
}

/// Whether all gradients have the same bytes, for people.
pub(crate) fn yes_or(identical: usize, tensors: usize) -> String {
    match identical == tensors {
        true => format!("all {tensors}"),
        false => format!("{identical} of {tensors}"),
    }
}

/// A number of things: one of them, or several.
pub(crate) fn counted(number: usize, of: &str) -> String {
    format!("{number} {of}{}", if number == 1 { "" } else { "s" })
}
