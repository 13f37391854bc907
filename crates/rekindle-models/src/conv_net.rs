//! A convolutional net with batch norm.

use burn::config::Config;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d, Relu};
use burn::tensor::{Device, Tensor};
use rekindle::{Error, Region, Staged, Under};

/// The size of a [`ConvNet`].
#[derive(Config, Debug)]
pub struct ConvNetConfig {
    /// The channels of the images.
    pub channels: usize,
    /// The channels between the blocks.
    pub width: usize,
    /// How many residual blocks there are.
    pub layers: usize,
    /// How many classes to tell apart.
    pub classes: usize,
}

impl ConvNetConfig {
    /// A net of this size.
    pub fn init(&self, device: &Device) -> ConvNet {
        ConvNet {
            stem: ConvBlock::new(self.channels, self.width, device),
            blocks: (0..self.layers).map(|_| ConvBlock::new(self.width, self.width, device)).collect(),
            head: LinearConfig::new(self.width, self.classes).init(device),
        }
    }
}

/// A stem, residual blocks and a linear head over the mean of all pixels.
#[derive(Module, Debug)]
pub struct ConvNet {
    stem: ConvBlock,
    blocks: Vec<ConvBlock>,
    head: Linear,
}

/// A convolution, batch norm and a rectifier.
#[derive(Module, Debug)]
pub struct ConvBlock {
    convolution: Conv2d,
    norm: BatchNorm,
    activation: Relu,
}

impl ConvBlock {
    fn new(from: usize, to: usize, device: &Device) -> Self {
        let convolution =
            Conv2dConfig::new([from, to], [3, 3]).with_padding(PaddingConfig2d::Same).with_bias(false);
        Self {
            convolution: convolution.init(device),
            norm: BatchNormConfig::new(to).init(device),
            activation: Relu::new(),
        }
    }

    /// The block without a residual, as the stem is.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.activation.forward(self.norm.forward(self.convolution.forward(x)))
    }

    /// The block around a residual.
    pub fn residual(&self, x: Tensor<4>) -> Tensor<4> {
        x.clone() + self.forward(x)
    }
}

impl Staged for ConvNet {
    type Batch = Tensor<4>;
    type Input = Tensor<4>;
    type Output = Tensor<2>;

    fn stages(&self, images: &Tensor<4>) -> (Region<Tensor<4>, Tensor<2>>, Tensor<4>) {
        let region = Region::new()
            .stage("stem", &self.stem, ConvBlock::forward)
            .stages("block", &self.blocks, ConvBlock::residual)
            .stage("head", &self.head, |head: &Linear, x: Tensor<4>| {
                let pooled = x.flatten::<3>(2, 3).mean_dim(2).squeeze_dim::<2>(2);
                head.forward(pooled)
            });
        (region, images.clone())
    }
}

impl ConvNet {
    /// What comes before the blocks.
    pub fn stem(&self) -> &ConvBlock {
        &self.stem
    }

    /// The residual blocks.
    pub fn blocks(&self) -> &[ConvBlock] {
        &self.blocks
    }

    /// The logits of `images`: one stage for the stem, one for each block, one for the head.
    ///
    /// # Errors
    /// When the region cannot run.
    pub fn forward<'a>(&self, images: Tensor<4>, under: impl Into<Under<'a>>) -> Result<Tensor<2>, Error> {
        let (region, images) = self.stages(&images);
        region.under(under).forward(images)
    }

    /// The running mean and variance of every batch norm, in order.
    pub fn statistics(&self) -> Vec<(Tensor<1>, Tensor<1>)> {
        let blocks = std::iter::once(&self.stem).chain(&self.blocks);
        let of = |norm: &BatchNorm| (norm.running_mean.value_sync(), norm.running_var.value_sync());
        blocks.map(|block| of(&block.norm)).collect()
    }
}
