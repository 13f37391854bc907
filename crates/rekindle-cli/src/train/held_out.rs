//! Examples that tell what was learned.

use burn::tensor::Device;
use rekindle_models::data::Source;
use rekindle_models::{Batch, Trainable};

use crate::data::Data;
use crate::failure::Failure;
use crate::size::Size;

/// Examples that no batch has.
pub(super) struct HeldOut<B> {
    batch: B,
}

impl<B: Batch> HeldOut<B> {
    /// As many as four batches have, if some are held out.
    pub(super) fn look<S: Source<Batch = B>>(data: &Data<S>, size: &Size, device: &Device) -> Option<Self> {
        let batch = data.held_out(size.batch.saturating_mul(4), &device.clone().inner())?;
        Some(Self { batch })
    }

    /// How many there are.
    pub(super) fn examples(&self) -> usize {
        self.batch.examples()
    }

    /// What a model makes of them, a batch at a time.
    pub(super) fn accuracy<M: Trainable<Batch = B>>(&self, model: &M) -> Result<f64, Failure> {
        let parts = self.batch.split(4);
        let mut right = 0.0;
        for part in &parts {
            right += model.valid().accuracy(part)? * part.examples() as f64;
        }
        Ok(right / self.batch.examples().max(1) as f64)
    }
}
