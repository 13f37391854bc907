//! Every rank has some stages of a model; micro-batches go through all of them, one forward, one backward.
//!
//! What is planned without any rank, [`balance`], [`plan`] and [`simulate`], is [`rekindle_plan::pipeline`]'s; here a step is run.

mod message;
mod run;

pub use rekindle_plan::pipeline::*;
pub use run::{Made, Step, Waiting, train_step};
