//! Every rank has some stages of a model; micro-batches go through all of them, one forward, one backward.
//!
//! A rank starts as many micro-batches as there are ranks from it to the last one, and from then on runs one back for each that
//! it runs forth: so stage `s` of `P` (from 0 on) holds [`in_flight`] micro-batches, `P - s` at most, and needs a budget for as
//! many: between its forward and its backward [`boundaries_wait`], and no tape. [`simulate`] says how long a step takes and what each rank holds, for thousands of ranks in no time;
//! [`balance`] cuts a model into parts that take the same time.
//!
//! ```
//! use rekindle_dist::pipeline::{Cost, simulate};
//! use rekindle_plan::{Bytes, Nanos};
//!
//! let cost = Cost { forward: Nanos::new(1_000), backward: Nanos::new(2_000), ..Cost::default() };
//! let step = simulate(&[cost; 4], 12)?;
//! // Three of fifteen slots are empty.
//! assert!((step.bubble - 3.0 / 15.0).abs() < 1e-9);
//! assert_eq!(step.in_flight, [4, 3, 2, 1]);
//! # Ok::<(), rekindle_dist::DistError>(())
//! ```

mod balance;
mod run;
mod schedule;
mod simulate;
mod waiting;

pub use balance::balance;
pub use run::{Made, Step, train_step};
pub use schedule::{Work, in_flight, one_forward_one_backward};
pub use simulate::{Cost, Simulated, Span, simulate};
pub use waiting::boundaries_wait;
