//! Moves along a frontier while training, as memory comes and goes.
//!
//! ```text
//!   Gauge ──▶ Reading ──▶ Governor::next ──▶ Decision ──▶ run the rung's plan
//!   free, pressure         between two steps    rung, why, or short
//! ```
//!
//! A [`Ladder`] has a few plans of one model, from the tightest to the fastest. Before every step the [`Governor`] is
//! told what is free, and says which of them to run: a tighter one at once when memory is short, a faster one only when
//! it would have fitted for some steps in a row. It computes no plan and reads no clock, so a decision costs nothing and
//! the same readings always give the same decisions. Every plan of a ladder gives the same gradients, so moving between
//! them changes nothing but time and memory.
//!
//! ```
//! use rekindle_plan::{Bytes, Nanos};
//! use rekindle_run::governor::{Governing, Governor, Ladder, Reading, Rung};
//!
//! let rung = |mebibytes, milliseconds: u64, plan| Rung {
//!     budget: Bytes::mebibytes(mebibytes),
//!     step_time: Nanos::new(milliseconds * 1_000_000),
//!     plan,
//! };
//! let ladder = Ladder::new(vec![rung(100, 90, "tight"), rung(200, 75, "middle"), rung(400, 60, "all")])?;
//! let reserve = Some(Bytes::mebibytes(50));
//! let mut governor = Governor::new(ladder, Governing { reserve, ..Governing::default() })?;
//!
//! // Between steps nothing of the last one is left, so all that is free can be used, but for the reserve.
//! let decision = governor.next(&Reading::free(Bytes::mebibytes(460)), Bytes::ZERO);
//! assert_eq!(governor.rung(decision.rung).plan, "all");
//!
//! let decision = governor.next(&Reading::free(Bytes::mebibytes(260)), Bytes::ZERO);
//! assert_eq!(governor.rung(decision.rung).plan, "middle");
//! let change = decision.change.ok_or("no change")?;
//! assert_eq!(
//!     change.to_string(),
//!     "step 2: from 400.0 MiB (60.00 ms a step) to 200.0 MiB (75.00 ms a step), because only 210.0 MiB can be used: \
//!      260.0 MiB free, 50.0 MiB of it reserved"
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `docs/adaptive.md` says what is read, what is decided, and what to do when nothing fits.

mod back_off;
mod decision;
mod govern;
mod ladder;
mod memory_files;
mod reading;
mod shape_cache;
mod system_memory;

pub use back_off::BackOff;
pub use decision::{Change, Decision, Position, Reason, Room, Short};
pub use govern::{Governing, Governor, LimitTooSmall};
pub use ladder::{Ladder, LadderError, Rung};
pub use reading::{DeviceMemory, Gauge, Pressure, Reading, Source};
pub use shape_cache::{ShapeCache, bucket};
pub use system_memory::SystemMemory;
