//! Where the towers begin and end: patches and tokens, and what they come to.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Initializer, LayerNormConfig, LinearConfig};
use burn::tensor::{Device, Int, Tensor};
use rekindle::nn::embedding;
use rekindle::{Error, tail};

use super::TwoTowerConfig;
use crate::layers::{Layers, Linear, Norm};

/// So many learned vectors, short ones: at Burn's length positions drown what is at them, and towers learn late.
fn vectors(count: usize, width: usize, device: &Device) -> Embedding {
    let short = Initializer::Normal { mean: 0.0, std: 0.02 };
    EmbeddingConfig::new(count, width).with_initializer(short).init(device)
}

/// Squares of an image and their places as vectors.
#[derive(Module, Debug)]
pub(super) struct Patches {
    linear: Linear,
    positions: Embedding,
    channels: usize,
    pixels: usize,
    patch: usize,
}

impl Patches {
    pub(super) fn new(config: &TwoTowerConfig, layers: &Layers<'_>) -> Self {
        let TwoTowerConfig { channels, pixels, patch, width, .. } = *config;
        let along = pixels / patch;
        Self {
            linear: layers.linear(&LinearConfig::new(channels * patch * patch, width)),
            positions: vectors(along * along, width, layers.device),
            channels,
            pixels,
            patch,
        }
    }

    pub(super) fn check(&self, images: &Tensor<4>) -> Result<(), Error> {
        let [count, ..] = images.dims();
        let expected = [count, self.channels, self.pixels, self.pixels];
        match images.dims() == expected {
            _ if count == 0 => Err(Error::EmptyBatch),
            true => Ok(()),
            false => Err(Error::InputShape {
                what: "images",
                found: images.dims().to_vec(),
                expected: expected.to_vec(),
            }),
        }
    }

    pub(super) fn forward(&self, images: Tensor<4>) -> Result<Tensor<3>, Error> {
        self.check(&images)?;
        let Self { channels, pixels, patch, .. } = *self;
        let ([count, ..], along) = (images.dims(), pixels / patch);
        let x = images.reshape([count, channels, along, patch, along, patch]);
        let x = x.permute([0, 2, 4, 1, 3, 5]).reshape([count, along * along, channels * patch * patch]);
        let positions = self.positions.weight.val().unsqueeze::<3>();
        // The backward asks for the patches, not for what becomes of them.
        Ok(tail(|| self.linear.forward(x) + positions))
    }
}

/// Tokens and their places as vectors.
#[derive(Module, Debug)]
pub(super) struct Tokens {
    tokens: Embedding,
    positions: Embedding,
}

impl Tokens {
    pub(super) fn new(config: &TwoTowerConfig, layers: &Layers<'_>) -> Self {
        let vectors = |count| vectors(count, config.width, layers.device);
        Self { tokens: vectors(config.vocabulary), positions: vectors(config.sequence) }
    }

    /// Whether there are so many texts, of a length there are positions for.
    pub(super) fn check(&self, texts: &Tensor<2, Int>, count: usize) -> Result<(), Error> {
        let ([found, length], [longest, _]) = (texts.dims(), self.positions.weight.dims());
        match (1..=longest).contains(&length) {
            _ if found != count => Err(Error::InputShape {
                what: "texts",
                found: texts.dims().to_vec(),
                expected: vec![count, length],
            }),
            true => Ok(()),
            false => Err(Error::TextLength { found: length, longest }),
        }
    }

    pub(super) fn forward(&self, texts: Tensor<2, Int>) -> Result<Tensor<3>, Error> {
        let [count, length] = texts.dims();
        self.check(&texts, count)?;
        if count == 0 {
            return Err(Error::EmptyBatch);
        }
        let positions = self.positions.weight.val().narrow(0, 0, length).unsqueeze::<3>();
        Ok(embedding(self.tokens.weight.val(), texts)? + positions)
    }
}

/// From the vectors of all patches or tokens to one of length 1.
#[derive(Module, Debug)]
pub(super) struct Head {
    norm: Norm,
    linear: Linear,
    pub(super) embedding: usize,
}

/// Keeps a vector of zeros from being divided by its length.
const EPSILON: f64 = 1e-12;

impl Head {
    pub(super) fn new(config: &TwoTowerConfig, layers: &Layers<'_>) -> Self {
        Self {
            norm: layers.norm(&LayerNormConfig::new(config.width)),
            linear: layers.linear(&LinearConfig::new(config.width, config.embedding).with_bias(false)),
            embedding: config.embedding,
        }
    }

    pub(super) fn forward(&self, x: Tensor<3>) -> Tensor<2> {
        let mean = x.mean_dim(1).squeeze_dim::<2>(1);
        let x = self.linear.forward(self.norm.forward(mean));
        let length = x.clone().square().sum_dim(1).add_scalar(EPSILON).sqrt();
        x / length
    }
}
