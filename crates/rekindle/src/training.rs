//! What lies between a loss and the optimizer: gradients of micro-batches added up, losses scaled so that 16 bits hold their
//! gradients, and gradients clipped to a length.
//!
//! All of it goes through a model's parameters in the order of its fields and never asks how a gradient came about: the
//! bits are the same under every plan.
//!
//! ```
//! use burn::nn::LinearConfig;
//! use burn::optim::AdamConfig;
//! use burn::tensor::{Device, Tensor};
//! use rekindle::checkpoint;
//! use rekindle::training::{Accumulation, LossScale, clip_by_norm};
//!
//! let device = Device::flex().autodiff();
//! let mut model = LinearConfig::new(4, 1).init(&device);
//! let mut optimizer = AdamConfig::new().init();
//! let mut scale = LossScale::dynamic();
//! for _ in 0..3 {
//!     let mut sum = Accumulation::new();
//!     for _ in 0..4 {
//!         let batch = Tensor::<2>::ones([2, 4], &device);
//!         let loss = checkpoint(&model, batch, |model, batch| model.forward(batch))?.mean();
//!         // A quarter of the batch has a quarter of the say.
//!         sum.add(&model, scale.up(loss), 0.25)?;
//!     }
//!     // A step whose gradients are too large for their type is left out.
//!     let Ok(gradients) = scale.down(&model, sum.finish()?.gradients)? else { continue };
//!     let clipped = clip_by_norm(&model, gradients, 1.0)?;
//!     assert!(clipped.norm.is_finite());
//!     model = optimizer.step(1e-3, model, clipped.gradients);
//! }
//! # Ok::<(), rekindle::Error>(())
//! ```

mod accumulation;
mod loss_scale;
mod norm;
mod precision;

pub use accumulation::{Accumulated, Accumulation};
pub use loss_scale::{LossScale, Overflow};
pub use norm::{Clipped, clip_by_norm, global_norm};
pub use precision::Precision;
