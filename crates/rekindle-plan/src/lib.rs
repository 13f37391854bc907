//! What to keep of a chain of stages, so that training it fits a budget in bytes.
//!
//! ```text
//! Profile ──▶ a rule, a policy ──▶ Plan ──▶ simulate() ──▶ Schedule, for an executor
//!  sizes,     or a solver           actions,   the only judge: legal?
//!  times                            text/JSON  peak? time? what sets the peak?
//! ```
//!
//! The crate knows no tensor, no files and no printing: everything is a plain value that can be written down and
//! compared. Stages are numbered from 1; stage `i` turns boundary `x(i-1)` into `x(i)`, so `x0` is the region's input.
//!
//! ```
//! use rekindle_plan::{Bytes, Plan, Profile, Request, Rule, StageProfile, solvers};
//!
//! let block = |i: usize| StageProfile {
//!     name: format!("block.{i}"),
//!     output_bytes: Bytes::mebibytes(1),
//!     tape_bytes: Bytes::mebibytes(32),
//!     ..StageProfile::default()
//! };
//! let profile = Profile::new("gpt", "flex", Bytes::mebibytes(1), (0..24).map(block).collect())?;
//!
//! let all = Plan::by_rule(&profile, Rule::StoreAll, None)?;
//! let each = Plan::by_rule(&profile, Rule::EVERY_ONE, None)?;
//! assert_eq!(all.predicted.peak_bytes, Bytes::mebibytes(770));
//! assert_eq!(each.predicted.peak_bytes, Bytes::mebibytes(57));
//!
//! // The fastest plan for a budget, and a proof of it.
//! let plan = solvers::optimal::solve(&profile, &Request::new(Bytes::mebibytes(200)))?;
//! assert!(plan.predicted.peak_bytes <= Bytes::mebibytes(200));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod action;
mod bytes;
mod divisor;
mod format;
pub mod graph;
mod illegal;
mod nanos;
mod nearest;
pub mod pipeline;
mod plan;
pub mod policy;
mod profile;
mod reads;
mod request;
pub mod rules;
mod schedule;
mod simulation;
mod simulator;
pub mod solvers;
mod status;

pub use action::{Action, Boundary, Name, ParseActionError, ParseNameError, Stage};
pub use bytes::{Bytes, ParseBytesError};
pub use format::FormatError;
pub use illegal::{Illegal, Reason};
pub use nanos::Nanos;
pub use nearest::nearest;
pub use plan::{PLAN_FORMAT, Plan, PlanError, Predicted};
pub use policy::{ParsePolicyError, Policy, PolicyError};
pub use profile::{Codec, PROFILE_FORMAT, Profile, ProfileError, StageProfile, TapeOption, Tier};
pub use request::{Request, SolveError};
pub use rules::{ParseRuleError, Rule, RuleError};
pub use schedule::{Piece, Schedule};
pub use simulation::{Live, LiveKind, Moment, Simulation, Span};
pub use simulator::simulate;
pub use status::{Gap, Status};
