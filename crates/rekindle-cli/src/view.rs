//! The live view of a run: what is known of it, and how that is drawn.

use std::collections::VecDeque;
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Block, Chart, Dataset, Gauge, GraphType, LineGauge, Sparkline};
use rekindle::Bytes;

use crate::progress::Rate;

/// How many peaks are remembered: more than a terminal is wide.
const PEAKS: usize = 1024;

/// What a step's bytes are held against.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    /// What they are, such as `plain's peak`.
    pub(crate) name: &'static str,
    pub(crate) bytes: Bytes,
}

/// All that is known of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    pub(crate) model: String,
    /// The strategy's or the plan's name.
    pub(crate) strategy: String,
    pub(crate) steps: u32,
    pub(crate) rate: Rate,
    pub(crate) limit: Option<Limit>,
    /// Filled by [`View::ran`].
    pub(crate) losses: Vec<f32>,
    pub(crate) peaks: VecDeque<Bytes>,
    /// Bytes above those before the step, at this moment.
    pub(crate) now: Bytes,
    /// Since the first step began.
    pub(crate) elapsed: Duration,
    /// The step that runs is the last one.
    pub(crate) ending: bool,
}

impl View {
    /// A step was run.
    pub(crate) fn ran(&mut self, loss: f32, peak: Bytes) {
        self.losses.push(loss);
        if self.peaks.len() == PEAKS {
            self.peaks.pop_front();
        }
        self.peaks.push_back(peak);
    }

    fn per_second(&self) -> f64 {
        self.rate.after(self.losses.len() as u64, self.elapsed.as_secs_f64())
    }

    /// As long as the steps so far took, for those that are left.
    fn time_left(&self) -> Option<Duration> {
        let left = f64::from(self.steps) - self.losses.len() as f64;
        let seconds = self.elapsed.as_secs_f64() / self.losses.len() as f64 * left.max(0.0);
        Duration::try_from_secs_f64(seconds).ok()
    }

    /// How much of the limit so many bytes are; without a limit, of the largest peak.
    fn part(&self, bytes: Bytes) -> f64 {
        let largest = || self.peaks.iter().copied().max().unwrap_or_default();
        let whole = self.limit.as_ref().map_or_else(largest, |limit| limit.bytes);
        bytes.get() as f64 / (whole.get() as f64).max(1.0)
    }
}

/// Draws a run, on a terminal of any size.
pub(crate) fn draw(frame: &mut Frame<'_>, view: &View) {
    let memory = if frame.area().height < 16 { 2 } else { 6 };
    let rows = [1, 0, memory, 1, 1].map(|height| match height {
        0 => Constraint::Min(3),
        height => Constraint::Length(height),
    });
    let [head, loss, memory, progress, keys] = Layout::vertical(rows).areas(frame.area());
    let name = Line::from(vec![view.strategy.as_str().bold(), "  ".into(), view.model.as_str().into()]);
    frame.render_widget(name, head);
    draw_loss(frame, view, loss);
    draw_memory(frame, view, memory);
    draw_progress(frame, view, progress);
    let words = match view.ending {
        false => "q, Esc or Ctrl-C: end after this step",
        true => "ending after this step; Ctrl-C again: at once",
    };
    frame.render_widget(Line::from(words).dim(), keys);
}

fn draw_loss(frame: &mut Frame<'_>, view: &View, area: Rect) {
    // Two points for each column are all that can be seen.
    let points = thinned(&view.losses, 2 * usize::from(area.width));
    let values = || points.iter().map(|(_, loss)| *loss);
    let (low, high) = values()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), loss| (low.min(loss), high.max(loss)));
    let title = match view.losses.last() {
        Some(loss) => format!(" loss {loss:.3} "),
        None => " loss: in the first step ".to_owned(),
    };
    let block = Block::bordered().title(title);
    if points.is_empty() {
        return frame.render_widget(block, area);
    }
    let room = ((high - low) * 0.05).max(1e-3);
    let (low, high) = (low - room, high + room);
    let data = Dataset::default().data(&points).graph_type(GraphType::Line);
    let data = data.marker(Marker::Braille).style(Style::new().fg(Color::Cyan));
    let steps = (view.losses.len() as f64).max(2.0);
    let chart = Chart::new(vec![data])
        .block(block)
        .x_axis(Axis::default().bounds([1.0, steps]))
        .y_axis(Axis::default().bounds([low, high]).labels([format!("{low:.2}"), format!("{high:.2}")]));
    frame.render_widget(chart, area);
}

/// Steps and losses, no more than `most`: neighbours become their mean. What is not finite cannot be drawn.
fn thinned(losses: &[f32], most: usize) -> Vec<(f64, f64)> {
    let group = losses.len().div_ceil(most.max(1)).max(1);
    let mean = |(index, losses): (usize, &[f32])| {
        let sum: f64 = losses.iter().map(|loss| f64::from(*loss)).sum();
        let middle = (index * group) as f64 + (losses.len() as f64 + 1.0) / 2.0;
        (middle, sum / losses.len() as f64)
    };
    losses.chunks(group).enumerate().map(mean).filter(|(_, loss)| loss.is_finite()).collect()
}

fn draw_memory(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let peak = view.peaks.back().copied();
    let percent = |peak| format!("{:.0}%", view.part(peak) * 100.0);
    if area.height < 6 {
        let [gauge, history] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
        let label = match (peak, &view.limit) {
            (Some(peak), Some(_)) => format!("peak {peak}, {}", percent(peak)),
            (Some(peak), None) => format!("peak {peak}"),
            (None, _) => format!("now {}", view.now),
        };
        frame.render_widget(bar(view, peak.unwrap_or(view.now), label), gauge);
        return frame.render_widget(history_of(view, history), history);
    }
    let title = match (peak, &view.limit) {
        (Some(peak), Some(limit)) => {
            format!(" memory of a step: {} of {}, {} ", percent(peak), limit.name, limit.bytes)
        }
        (None, Some(limit)) => format!(" memory of a step: {} is {} ", limit.name, limit.bytes),
        (_, None) => " memory of a step ".to_owned(),
    };
    let block = Block::bordered().title(title);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let rows = [Constraint::Length(1), Constraint::Length(1), Constraint::Min(0)];
    let [now, most, history] = Layout::vertical(rows).areas(inner);
    frame.render_widget(bar(view, view.now, format!("now  {:>9}", view.now.to_string())), now);
    let words = peak.map(|peak| peak.to_string()).unwrap_or_default();
    frame.render_widget(bar(view, peak.unwrap_or_default(), format!("peak {words:>9}")), most);
    let [words, history] = Layout::horizontal([Constraint::Length(15), Constraint::Min(0)]).areas(history);
    frame.render_widget(Line::from("last steps"), words);
    frame.render_widget(history_of(view, history), history);
}

/// A line that is as full as the limit; red when it is over.
fn bar(view: &View, bytes: Bytes, label: String) -> LineGauge<'static> {
    let part = view.part(bytes);
    let color = if part > 1.0 { Color::Red } else { Color::Green };
    let gauge = LineGauge::default().label(label).ratio(part.clamp(0.0, 1.0));
    gauge.filled_style(Style::new().fg(color)).filled_symbol("█").unfilled_symbol("░")
}

/// The peaks of the last steps, the newest on the right.
fn history_of(view: &View, area: Rect) -> Sparkline<'static> {
    let skipped = view.peaks.len().saturating_sub(usize::from(area.width));
    let shown: Vec<u64> = view.peaks.iter().skip(skipped).map(|peak| peak.get()).collect();
    let most = shown.iter().copied().max().unwrap_or_default();
    let limit = view.limit.as_ref().map_or(most, |limit| limit.bytes.get());
    // The widget multiplies what it is given: sizes in KiB stay far from where that overflows.
    let shown = shown.into_iter().map(|peak| (peak / 1024).min(1 << 48));
    Sparkline::default().data(shown).max((limit.max(most) / 1024).clamp(1, 1 << 48))
}

fn draw_progress(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let done = view.losses.len();
    let mut label = format!("step {done}/{}", view.steps);
    if done > 0 {
        label += &format!(", {:.0} {}/s", view.per_second(), view.rate.units);
    }
    if let Some(left) = view.time_left().filter(|_| done > 0) {
        label += &format!(", {} left", clock(left));
    }
    let part = done as f64 / f64::from(view.steps.max(1));
    let gauge = Gauge::default().ratio(part.clamp(0.0, 1.0)).label(label);
    frame.render_widget(gauge.gauge_style(Style::new().fg(Color::Blue).bg(Color::Black)), area);
}

/// `1:02:03`, or `2:03`.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        hours => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(view: &View, width: u16, height: u16) -> Terminal<TestBackend> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        terminal
    }

    fn seen(view: &View, width: u16, height: u16) -> String {
        drawn(view, width, height).backend().to_string()
    }

    fn view(done: u32) -> View {
        let mut view = View {
            model: "gpt, 8 blocks, width 128, 4 heads, batch 8, 128 tokens, dropout 0.1".to_owned(),
            strategy: "every-1".to_owned(),
            steps: 60,
            rate: Rate { units: "tokens", per_step: 1024 },
            limit: Some(Limit { name: "plain's peak", bytes: Bytes::mebibytes(120) }),
            now: Bytes::mebibytes(12),
            elapsed: Duration::from_millis(700) * done,
            ..View::default()
        };
        for step in 0..done {
            view.ran(2.4 + 3.2 / (1.0 + step as f32 / 6.0), Bytes::mebibytes(40 + u64::from(step % 3) * 8));
        }
        view
    }

    #[test]
    fn a_run_at_80_by_24() {
        insta::assert_snapshot!(seen(&view(42), 80, 24));
    }

    #[test]
    fn a_run_at_40_by_12() {
        insta::assert_snapshot!(seen(&view(42), 40, 12));
    }

    #[test]
    fn the_first_step_and_the_last() {
        let ending = View { ending: true, ..view(60) };
        insta::assert_snapshot!(seen(&view(0), 60, 16) + "\n" + &seen(&ending, 60, 16));
    }

    #[test]
    fn no_size_and_no_figure_is_a_panic() {
        let mut strange = view(3);
        strange.ran(f32::NAN, Bytes::new(u64::MAX));
        strange.ran(f32::INFINITY, Bytes::ZERO);
        strange.ran(f32::MAX, Bytes::new(u64::MAX));
        let over = View { now: Bytes::new(u64::MAX), limit: None, ..strange.clone() };
        let nothing =
            View { limit: Some(Limit { name: "the budget", bytes: Bytes::ZERO }), ..strange.clone() };
        let endless = View { steps: u32::MAX, elapsed: Duration::MAX, ..view(1) };
        let mut flat = view(0);
        flat.ran(1.0, Bytes::ZERO);
        flat.ran(1.0, Bytes::ZERO);
        let views = [View::default(), view(0), view(1), view(60), flat, strange, over, nothing, endless];
        for view in &views {
            for (width, height) in (0..48).flat_map(|width| (0..20).map(move |height| (width, height))) {
                drawn(view, width, height);
            }
        }
    }

    #[test]
    fn a_long_run_is_drawn_with_as_many_points_as_can_be_seen() {
        let losses: Vec<f32> = (0..100_000).map(|step| step as f32).collect();
        let points = thinned(&losses, 160);
        assert_eq!(points.len(), 160);
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1));
        assert_eq!(thinned(&[3.0, f32::NAN, 1.0], 80), [(1.0, 3.0), (3.0, 1.0)]);
        assert_eq!(thinned(&[], 0), []);
    }
}
