//! Images and the texts that belong to them.

use std::ops::Range;

use burn::tensor::{Device, Int, Tensor};
use rekindle::Boundary;

use crate::Batch;

/// Images, and a text for each.
#[derive(Clone, Debug)]
pub struct PairBatch {
    /// The images: batch, channels, height, width.
    pub images: Tensor<4>,
    /// The tokens of the text of each, one text in a row.
    pub texts: Tensor<2, Int>,
    /// For a part of a larger batch: what it has to know of the others. None for a batch of its own.
    pub known: Option<PairGradient>,
}

/// What a part of a batch knows of the whole: the gradient of the whole loss, towards what the part makes.
#[derive(Boundary, Clone, Debug)]
pub struct PairGradient {
    /// That of the embedding of each image.
    pub images: Tensor<2>,
    /// That of the embedding of each text.
    pub texts: Tensor<2>,
    /// That of the logarithm of the scale, in one of the parts; zero in the others.
    pub scale: Tensor<1>,
}

impl PairBatch {
    /// A batch of its own.
    pub fn new(images: Tensor<4>, texts: Tensor<2, Int>) -> Self {
        Self { images, texts, known: None }
    }
}

impl PairGradient {
    /// As if nothing were known. Takes no memory, and there is some where there are no pairs: the model refuses those.
    pub(super) fn nothing([pairs, width]: [usize; 2], device: &Device) -> Self {
        let device = &device.clone().without_autodiff();
        let zeros = Tensor::<2>::zeros([1, 1], device).expand([pairs.max(1), width]);
        Self { images: zeros.clone(), texts: zeros, scale: Tensor::zeros([1], device) }
    }

    pub(super) fn slice(&self, pairs: Range<usize>) -> Self {
        let of = |tensor: &Tensor<2>| tensor.clone().slice_dim(0, pairs.clone());
        // One of the slices must count it, and no other.
        let scale = if pairs.start == 0 { self.scale.clone() } else { self.scale.zeros_like() };
        Self { images: of(&self.images), texts: of(&self.texts), scale }
    }
}

impl Batch for PairBatch {
    fn examples(&self) -> usize {
        self.images.dims()[0]
    }

    fn slice(&self, examples: Range<usize>) -> Self {
        // The model refuses texts that are too few, and must come to see them.
        let texts = self.texts.dims()[0];
        let read = examples.start.min(texts)..examples.end.min(texts);
        Self {
            images: self.images.clone().slice_dim(0, examples.clone()),
            texts: self.texts.clone().slice_dim(0, read),
            known: self.known.as_ref().map(|known| known.slice(examples)),
        }
    }

    fn to_device(&self, device: &Device) -> Self {
        let of = |tensor: &Tensor<2>| Tensor::from_data(tensor.to_data(), device);
        Self {
            images: Tensor::from_data(self.images.to_data(), device),
            texts: Tensor::from_data(self.texts.to_data(), device),
            known: self.known.as_ref().map(|known| PairGradient {
                images: of(&known.images),
                texts: of(&known.texts),
                scale: Tensor::from_data(known.scale.to_data(), device),
            }),
        }
    }
}
