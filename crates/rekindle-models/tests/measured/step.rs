//! One step, and the most it takes.

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use rekindle::{Bytes, Error, Staged, Under, memory};

use crate::common::gradients;

/// The gradients `run` finds, and the most bytes above those before it.
pub(crate) fn peak_of(
    model: &impl Module,
    run: impl FnOnce() -> Result<GradientsParams, Error>,
) -> (Vec<Vec<u8>>, Bytes) {
    rekindle::sweep();
    let before = memory::live().unwrap();
    memory::reset_peak();
    let found = run().unwrap();
    let peak = memory::peak().unwrap().saturating_sub(before);
    (gradients(model, &found), peak)
}

/// A step's gradients, and the most bytes above those before it.
pub(crate) fn step<S, const D: usize>(
    model: &impl Module,
    cut: &S,
    batch: &S::Batch,
    under: Under<'_>,
) -> (Vec<Vec<u8>>, Bytes)
where
    S: Staged<Output = Tensor<D>>,
{
    rekindle::seed(9);
    peak_of(model, || {
        let (region, input) = cut.stages(batch);
        let loss = region.under(under).forward(input)?.mean();
        Ok(GradientsParams::from_grads(rekindle::backward(&loss)?, model))
    })
}
