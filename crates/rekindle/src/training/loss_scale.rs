//! Losses scaled up, so that gradients of 16 bits do not vanish.

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::norm::{global_norm, scaled};
use crate::Error;

/// What a loss is multiplied by before its backward, and its gradients divided by after it.
///
/// `f16` holds nothing below 6e-8: small gradients of activations become zero on their way. Scaled up they do not; scaled
/// up too far they become infinite. A dynamic scale starts high and is halved whenever that happens, and the step is left
/// out; after many steps in a row it is tried twice as high. It is always a power of two, which changes no digit.
///
/// `bf16` has the range of `f32` and needs none: [`LossScale::none`] still leaves out steps that are not finite.
///
/// It can be saved with a model, so that a run that goes on does so with the same bits. See [the module](super) for an example.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    scale: f32,
    dynamic: bool,
    /// Steps in a row that were finite.
    finite: u32,
    skipped: u64,
}

/// Steps in a row after which a higher scale is tried.
const PATIENCE: u32 = 2000;
const FIRST: f32 = 65_536.0;
const HIGHEST: f32 = 16_777_216.0;

/// A step was left out, because a gradient was infinite or not a number.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("a gradient is infinite or not a number at a loss scale of {scale}")]
#[non_exhaustive]
pub struct Overflow {
    /// The scale it happened at.
    pub scale: f32,
    /// The scale of the next step; the same where there is no lower one.
    pub next: f32,
}

impl Default for LossScale {
    fn default() -> Self {
        Self::none()
    }
}

impl LossScale {
    /// No scaling.
    pub fn none() -> Self {
        Self { scale: 1.0, dynamic: false, finite: 0, skipped: 0 }
    }

    /// Always the same scale.
    ///
    /// # Errors
    /// When it is not a power of two from 1 to 2^24.
    pub fn fixed(scale: f32) -> Result<Self, Error> {
        let is_power =
            (1.0..=HIGHEST).contains(&scale) && (scale as u32).is_power_of_two() && scale.fract() == 0.0;
        match is_power {
            true => Ok(Self { scale, ..Self::none() }),
            false => Err(Error::LossScale { found: scale }),
        }
    }

    /// 65,536 at first, half of it after every step that is not finite, twice after 2,000 in a row that are.
    pub fn dynamic() -> Self {
        Self { scale: FIRST, dynamic: true, ..Self::none() }
    }

    /// What losses are multiplied by now.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// How many steps were left out so far.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The loss to go back from.
    pub fn up<const D: usize>(&self, loss: Tensor<D>) -> Tensor<D> {
        match self.scale == 1.0 {
            true => loss,
            false => loss.mul_scalar(self.scale),
        }
    }

    /// The gradients of the loss itself, from those of the scaled one; or word that the step must be left out.
    ///
    /// # Errors
    /// When the device cannot be read.
    pub fn down<M: Module>(
        &mut self,
        model: &M,
        gradients: GradientsParams,
    ) -> Result<Result<GradientsParams, Overflow>, Error> {
        let scale = self.scale;
        if !global_norm(model, &gradients)?.is_finite() {
            self.skipped += 1;
            self.finite = 0;
            if self.dynamic {
                self.scale = (scale / 2.0).max(1.0);
            }
            return Ok(Err(Overflow { scale, next: self.scale }));
        }
        self.finite += 1;
        if self.dynamic && self.finite >= PATIENCE {
            self.finite = 0;
            self.scale = (scale * 2.0).min(HIGHEST);
        }
        Ok(Ok(match scale == 1.0 {
            true => gradients,
            false => scaled(model, gradients, f64::from(1.0 / scale)),
        }))
    }
}
