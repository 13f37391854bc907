//! A GPT trained by Burn's own `Learner`, under a plan.
//!
//! - [`PlannedGpt`]: the model and its plan as one module, with the steps that burn-train asks for. Start here.
//! - [`StepPeak`]: the peak memory of a step as a metric beside the loss.
//! - [`text`]: a little text, in windows of bytes.
//! - [`Lines`]: shows the training as one line for each pass over the data.

mod lines;
mod planned_gpt;
mod step_peak;
pub mod text;

pub use lines::{History, Lines};
pub use planned_gpt::{PlannedGpt, StepOutput};
pub use step_peak::StepPeak;
