//! One step, as bytes to hold against those of another.

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use rekindle::{Error, Staged, Under};

use crate::common::gradients;

/// The bytes of a loss, and of every parameter's gradient.
pub(crate) fn bits(model: &impl Module, loss: &Tensor<1>) -> Result<Vec<Vec<u8>>, Error> {
    let found = GradientsParams::from_grads(rekindle::backward(loss)?, model);
    let mut bits = vec![loss.to_data().as_bytes().to_vec()];
    bits.extend(gradients(model, &found));
    Ok(bits)
}

/// The bits of one step under a rule or a plan.
pub(crate) fn step<S: Staged<Output = Tensor<1>>>(
    model: &impl Module,
    cut: &S,
    batch: &S::Batch,
    under: Under<'_>,
) -> Result<Vec<Vec<u8>>, Error> {
    rekindle::seed(9);
    let (region, input) = cut.stages(batch);
    bits(model, &region.under(under).forward(input)?)
}
