//! Images to learn from.

use std::ops::Range;

use burn::tensor::{Device, Int, Tensor};

use crate::Batch;

/// Images and what they show.
#[derive(Clone, Debug)]
pub struct ImageBatch {
    /// The images: batch, channels, height, width.
    pub images: Tensor<4>,
    /// The class of each.
    pub classes: Tensor<1, Int>,
}

impl Batch for ImageBatch {
    fn examples(&self) -> usize {
        self.classes.dims()[0]
    }

    fn slice(&self, examples: Range<usize>) -> Self {
        Self {
            images: self.images.clone().slice_dim(0, examples.clone()),
            classes: self.classes.clone().slice_dim(0, examples),
        }
    }

    fn to_device(&self, device: &Device) -> Self {
        Self {
            images: Tensor::from_data(self.images.to_data(), device),
            classes: Tensor::from_data(self.classes.to_data(), device),
        }
    }
}
