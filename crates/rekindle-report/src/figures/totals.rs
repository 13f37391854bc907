//! Everything that takes memory, as one bar.

use rekindle_plan::Bytes;

use super::{Area, Canvas, Drawing, Look, Swatch};
use crate::Totals;

/// The classes of the parts, in the order of [`Totals::parts`].
pub(crate) const CLASSES: [&str; 5] = ["part-1", "part-2", "part-3", "part-4", "part-5"];

pub(crate) fn draw(totals: &Totals, look: Look) -> Drawing {
    let parts = totals.parts();
    let all: Bytes = parts.iter().map(|part| part.1).sum();
    let words: Vec<String> = parts.iter().map(|(name, bytes)| format!("{name} {bytes}")).collect();
    let summary =
        format!("The memory of training at its predicted peak, {all} in all: {}.", words.join(", "));
    // In the page a table says what the colours mean.
    let paper = look == Look::Paper;
    let mut canvas = Canvas::new("totals", &summary, if paper { 64.0 } else { 38.0 }, look);
    let mut left = 0.0;
    for ((class, words), (_, bytes)) in CLASSES.into_iter().zip(&words).zip(parts) {
        let share = bytes.get() as f64 / all.get().max(1) as f64;
        let width = share * look.width();
        if width > 0.0 {
            let words = format!("{words}\n{:.1}% of {all}", share * 100.0);
            // A gap tells neighbours apart without their colours.
            let area = Area { x: left, y: 2.0, width: (width - 1.5).max(0.5), height: 32.0 };
            canvas.mark(class, area, &words);
        }
        left += width;
    }
    if paper {
        let items = CLASSES.into_iter().zip(parts).map(|(class, (name, _))| (Swatch::Fill(class), name));
        canvas.legend(&items.collect::<Vec<_>>(), 44.0);
    }
    canvas.finish(false)
}
