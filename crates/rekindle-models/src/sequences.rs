//! Sequences to learn from.

use std::ops::Range;

use burn::tensor::{Device, Int, Tensor};

use crate::Batch;

/// Sequences and what they are.
#[derive(Clone, Debug)]
pub struct SequenceBatch {
    /// The sequences: batch, steps, features.
    pub sequences: Tensor<3>,
    /// The class of each.
    pub classes: Tensor<1, Int>,
}

impl Batch for SequenceBatch {
    fn examples(&self) -> usize {
        self.classes.dims()[0]
    }

    fn slice(&self, examples: Range<usize>) -> Self {
        Self {
            sequences: self.sequences.clone().slice_dim(0, examples.clone()),
            classes: self.classes.clone().slice_dim(0, examples),
        }
    }

    fn to_device(&self, device: &Device) -> Self {
        Self {
            sequences: Tensor::from_data(self.sequences.to_data(), device),
            classes: Tensor::from_data(self.classes.to_data(), device),
        }
    }
}
