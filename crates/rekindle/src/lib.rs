//! Gradient checkpointing for [Burn](https://burn.dev): train with a fraction of the activations, and get the same
//! gradients, bit for bit.
//!
//! Training keeps what every operation needs for the backward pass. A checkpoint keeps the input of a stage only, and
//! runs the stage again when the backward pass gets there.
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::{AdamConfig, GradientsParams};
//! use burn::tensor::{Device, Tensor};
//! use rekindle::Region;
//!
//! #[derive(Module, Debug)]
//! struct Model {
//!     layers: Vec<Linear>,
//! }
//!
//! impl Model {
//!     fn forward(&self, x: Tensor<2>) -> Result<Tensor<2>, rekindle::Error> {
//!         // was: self.layers.iter().fold(x, |x, layer| layer.forward(x).tanh())
//!         Region::new()
//!             .stages("layer", &self.layers, |layer: &Linear, x: Tensor<2>| layer.forward(x).tanh())
//!             .forward(x)
//!     }
//! }
//!
//! let device = Device::flex().autodiff();
//! let mut model = Model { layers: (0..4).map(|_| LinearConfig::new(8, 8).init(&device)).collect() };
//! let mut optimizer = AdamConfig::new().init();
//!
//! let loss = model.forward(Tensor::ones([2, 8], &device))?.mean();
//! let gradients = GradientsParams::from_grads(loss.backward(), &model);
//! model = optimizer.step(1e-3, model, gradients);
//! # let _ = model;
//! # Ok::<(), rekindle::Error>(())
//! ```
//!
//! - [`checkpoint`]: one module, one call.
//! - [`Region`]: many stages under a [`Rule`] or a [`Plan`].
//! - [`plan`], [`Planner`], [`Budget`]: from a model and a budget to a plan that runs.
//! - [`Policy`], [`Planner::plan_policy`]: by the names of stages, what is kept, recomputed, moved or shrunk.
//! - [`derive@Stages`]: the same by attributes on the fields of a module.
//! - [`tail`]: the end of a stage that a recomputation can do without.
//! - [`again`]: what a stage has to offer where its tape is to be small, so that it is kept in part.
//! - [`Places`]: disk, host memory and codecs for plans to use.
//! - [`backward`]: a backward pass that returns errors; [`backward_handing_over`] gives gradients away as soon as they are made.
//! - [`seed`], [`without_checkpointing`]: runs that can be compared.
//! - [`Dropout`]: Burn's, with a mask that is made in parallel and never kept.
//! - [`Attention`]: exact, in memory that grows with the sequence and not with its square.
//! - [`nn`]: linear layers, norms, and a loss without logits, as one node each.
//! - [`activation`]: softmax, masked or not, GELU and SwiGLU that keep less and take less time.
//! - [`peers`]: layers that several processes have a part of each.
//! - [`training`]: micro-batches, loss scaling and clipping, between the loss and the optimizer.
//! - [`Checks`], [`what_is_kept`], [`TraceHandle`]: what happened, and whether it was right.
//! - `trace`, `trace_model`: the profile of a model without running it, of one that fits no machine at hand too.
//! - [`memory`]: live and peak bytes on CPU backends.
//!
//! # What is the same, and what is not
//!
//! Loss and gradients equal those of plain training bit for bit: random numbers are replayed, running statistics move
//! once, sums are added up in Burn's order. What differs, because Burn leaves no way around it:
//!
//! - An input that is not a leaf and that no used output depends on gets a gradient of (minus) zeros, not none.
//! - A sum of three or more contributions has an order. A tensor or parameter that is used three times or more, on
//!   parallel branches or partly outside the region, may have them added up in another one, and differ in the last bit.
//!   Uses one after the other, a residual around the region, and a parameter shared by stages or checkpoints in a row
//!   are added up as Burn adds them.
//!
//! The page "How it works" (`docs/how-it-works.md`) says why.

// The derive macro names this crate.
extern crate self as rekindle;

pub mod activation;
mod again;
mod attention;
mod backward;
mod boundary;
mod budget;
mod carried;
mod checks;
mod description;
mod dropout;
mod error;
mod file;
mod flag;
mod hand_over;
mod kept;
mod kernel;
mod matrix;
pub mod memory;
pub mod nn;
mod node;
pub mod peers;
mod philox;
mod pieces;
mod places;
mod planned;
mod planner;
mod region;
mod rows;
mod seeds;
mod stage;
mod staged;
mod stalled;
mod tail;
mod trace_handle;
#[cfg(feature = "capture")]
mod traced;
pub mod training;
mod values;

pub use again::again;
pub use attention::Attention;
pub use backward::backward;
pub use boundary::{Boundary, Parts, PartsReader};
pub use budget::{Budget, bookkeeping};
pub use carried::Carried;
pub use checks::Checks;
pub use description::{Description, Difference, StageDescription};
pub use dropout::{Dropout, DropoutConfig};
pub use error::Error;
pub use hand_over::{Take, backward_handing_over, expecting_hand_over};
pub use kept::{KeptList, KeptRow, TapeTensor, what_is_kept};
pub use node::sweep;
pub use places::Places;
pub use planned::{PLANNED_FORMAT, Planned};
pub use planner::{Planner, measure, plan};
pub use region::{Region, checkpoint, without_checkpointing};
pub use rekindle_derive::{Boundary, Stages};
pub use rekindle_plan::{Bytes, Nanos, Plan, Policy, PolicyError, Profile, Rule, Schedule};
pub use rekindle_run::{Event, Fault, Measurement, Measuring, Spread, Trace};
pub use seeds::seed;
pub use stage::{NoModule, StageOutput};
pub use staged::{Staged, Under};
pub use stalled::give_up_after;
pub use tail::tail;
pub use trace_handle::TraceHandle;
#[cfg(feature = "capture")]
pub use traced::{DeviceModel, Nodes, Traced, TracedStage, Work, trace, trace_model};
pub use values::has_values;
