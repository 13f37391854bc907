//! Gradients of micro-batches, added up.

use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::Tensor;

use crate::{Error, backward};

/// The gradients of several losses, added up one after the other: a batch in parts, each of which takes the memory of its
/// part alone.
///
/// From the second part on the sum is held beside what the part itself takes: memory of the size of the trained parameters,
/// which a [`Budget`](crate::Budget) leaves room for with [`holding`](crate::Budget::holding).
///
/// See [the module](super) for an example.
#[derive(Default)]
pub struct Accumulation {
    gradients: Option<GradientsParams>,
    loss: Option<Tensor<1>>,
}

/// What the parts came to.
#[derive(Debug)]
#[non_exhaustive]
pub struct Accumulated {
    /// The shares of all losses, added up, without autodiff.
    pub loss: Tensor<1>,
    /// The gradients of that.
    pub gradients: GradientsParams,
}

impl std::fmt::Debug for Accumulation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Accumulation").field("loss", &self.loss).finish_non_exhaustive()
    }
}

impl Accumulation {
    /// Nothing so far.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `loss` back and adds `share` of its gradients: of a mean, the part of the batch that it is the mean of.
    ///
    /// Parts are added in the order of these calls, each parameter to itself, so the sum has the same bits whatever plan
    /// each part ran under. A share of 1 changes no bit.
    ///
    /// # Errors
    /// When the share is not a number above 0, or the backward fails.
    pub fn add<M: Module>(&mut self, model: &M, loss: Tensor<1>, share: f64) -> Result<(), Error> {
        if !(share.is_finite() && share > 0.0) {
            return Err(Error::Share { found: share });
        }
        let loss = if share == 1.0 { loss } else { loss.mul_scalar(share) };
        let gradients = GradientsParams::from_grads(backward(&loss)?, model);
        let loss = loss.without_autodiff();
        self.gradients = Some(match self.gradients.take() {
            None => gradients,
            Some(sum) => {
                let mut both = GradientsAccumulator::<M>::new();
                both.accumulate(model, sum);
                both.accumulate(model, gradients);
                both.grads()
            }
        });
        self.loss = Some(match self.loss.take() {
            None => loss,
            Some(sum) => sum + loss,
        });
        Ok(())
    }

    /// The sum.
    ///
    /// # Errors
    /// When nothing was added.
    pub fn finish(self) -> Result<Accumulated, Error> {
        match (self.loss, self.gradients) {
            (Some(loss), Some(gradients)) => Ok(Accumulated { loss, gradients }),
            _ => Err(Error::NothingAccumulated),
        }
    }
}
