//! A chain of stages on several ranks: every rank has some of them, and micro-batches go through all, one forward, one backward.
//!
//! A rank starts as many micro-batches as there are ranks from it to the last one, and from then on runs one back for each that
//! it runs forth: so rank `s` of `P` (from 0 on) holds [`in_flight`] micro-batches, `P - s` at most. [`balance`] cuts a chain into
//! parts that take the same time, [`plan`] finds a plan for each rank that fits a budget with that many of them waiting, and
//! [`simulate`] says how long a step takes, who waits and what each rank holds: for thousands of ranks, without any.
//!
//! ```
//! use rekindle_plan::pipeline::{Cost, simulate};
//! use rekindle_plan::{Bytes, Nanos};
//!
//! let cost = Cost { forward: Nanos::new(1_000), backward: Nanos::new(2_000), ..Cost::default() };
//! let step = simulate(&[cost; 4], 12)?;
//! // Three of fifteen slots are empty.
//! assert!((step.bubble - 3.0 / 15.0).abs() < 1e-9);
//! assert_eq!(step.in_flight, [4, 3, 2, 1]);
//! # Ok::<(), rekindle_plan::pipeline::PipelineError>(())
//! ```

mod balance;
mod error;
mod order;
mod plan;
mod simulate;
mod waiting;

pub use balance::balance;
pub use error::PipelineError;
pub use order::{Work, in_flight, one_forward_one_backward};
pub use plan::{RankPlan, by_rule, plan, section};
pub use simulate::{Cost, Simulated, Span, simulate};
pub use waiting::boundaries_wait;
