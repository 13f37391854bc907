//! What a plan does, on one page.
//!
//! ```text
//! Profile, Plan ──▶ Plan::judge ──▶ Report ──▶ html(): one file, no network
//! what was measured ────────────────┘    └──▶ svg(Figure): for papers
//! ```
//!
//! The crate turns plain values into text. It measures nothing, solves nothing and opens no file: every predicted
//! number is the simulator's, every measured one was handed in. What the page shows is described in `docs/report.md`.
//!
//! Names come from users' files, so all of them are escaped. Long plans stay small: what is thinner than a pixel is
//! drawn together, and the page says so.

mod figures;
pub mod kept;
mod markup;
mod measured;
mod page;
mod report;
mod scale;
mod step;
mod theme;

pub use measured::{Measured, MeasuredEvent, Point, Totals};
pub use report::{Figure, Report, ReportError, frontier_svg};
