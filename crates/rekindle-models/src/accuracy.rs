//! How much of a batch is right.

use burn::tensor::{Int, Tensor};

/// The share of rows whose largest logit, along the last dimension, is that of their target.
pub(crate) fn share_right<const D: usize, const T: usize>(logits: Tensor<D>, targets: Tensor<T, Int>) -> f64 {
    let count = targets.shape().num_elements();
    let answers = logits.argmax(D - 1).reshape([count]);
    let right = answers.equal(targets.reshape([count])).int().sum();
    right.into_scalar::<i64>() as f64 / count.max(1) as f64
}
