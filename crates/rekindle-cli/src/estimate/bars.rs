//! Memory as bars of characters.

use rekindle_models::estimate::State;
use rekindle_plan::Bytes;

use super::Shown;

/// The width of the longest bar.
const WIDTH: u64 = 60;

/// A bar for each strategy: weights, gradients, the optimizer's state, activations with workspace, and where `room` ends.
pub(super) fn picture(state: &State, rows: &[Shown], room: Option<Bytes>) -> String {
    let longest =
        rows.iter().map(|shown| shown.total_bytes).chain(room).max().unwrap_or_default().get().max(1);
    let cells = |bytes: u64| (u128::from(bytes) * u128::from(WIDTH) / u128::from(longest)) as usize;
    let widest = rows.iter().map(|shown| shown.row.strategy.len()).max().unwrap_or(0);
    let mut lines = Vec::with_capacity(rows.len() + 1);
    for shown in rows {
        let mut bar = String::new();
        let mut sum = 0u64;
        let activations = shown.total_bytes.saturating_sub(state.total());
        let parts =
            [(state.weights, '█'), (state.gradients, '▓'), (state.optimizer, '▒'), (activations, '░')];
        for (bytes, mark) in parts {
            let before = cells(sum);
            sum = sum.saturating_add(bytes.get());
            bar.extend(std::iter::repeat_n(mark, cells(sum) - before));
        }
        if let Some(room) = room {
            let end = cells(room.get());
            let length = bar.chars().count();
            bar = match length <= end {
                true => format!("{bar}{}|", " ".repeat(end - length)),
                false => {
                    let before: String = bar.chars().take(end).collect();
                    let after: String = bar.chars().skip(end).collect();
                    format!("{before}|{after}")
                }
            };
        }
        lines.push(format!(" {:widest$}  {bar}", shown.row.strategy));
    }
    let room = if room.is_some() { ", | what there is" } else { "" };
    lines.push(format!(" █ weights ▓ gradients ▒ optimizer ░ activations{room}"));
    lines.join("\n")
}
