//! What transformers and residual networks are made of, as one node each: they keep their inputs only, and take less time than Burn's.
//!
//! Each computes what Burn's function of the same name computes, within rounding, on the same parameters; the modules stay
//! Burn's own. On Flex they have kernels of their own; on any other backend they go through Burn's operations.

mod add;
mod batch_norm;
mod convolution;
mod embedding;
mod linear;
mod loss;
mod norm;
mod recurrent;
mod rotary;

pub use add::add;
pub use batch_norm::{batch_norm, batch_norm_relu};
pub use convolution::conv2d;
pub use embedding::embedding;
pub use linear::linear;
pub use loss::{LinearCrossEntropy, check_targets};
pub use norm::{layer_norm, rms_norm};
pub use recurrent::{gru, lstm};
pub use rotary::Rotary;
