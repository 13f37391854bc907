//! Layers that are Burn's modules, run by our nodes or by Burn.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{self, BatchNorm, LayerNormConfig, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Device, Tensor};
use rekindle::nn::{batch_norm_relu, conv2d, layer_norm, linear, rms_norm};
use rekindle::{Dropout, DropoutConfig};

use crate::ConfigError;

/// Makes layers.
pub(crate) struct Layers<'a> {
    /// Whether Burn runs them.
    pub(crate) burn: bool,
    pub(crate) device: &'a Device,
}

impl Layers<'_> {
    pub(crate) fn linear(&self, config: &LinearConfig) -> Linear {
        let layer = config.init(self.device);
        match self.burn {
            true => Linear::Burns(layer),
            false => Linear::Ours(layer),
        }
    }

    pub(crate) fn norm(&self, config: &LayerNormConfig) -> Norm {
        Norm { layer: config.init(self.device), epsilon: config.epsilon, burn: self.burn, centred: true }
    }

    /// A norm that takes no mean away and adds no bias.
    pub(crate) fn rms_norm(&self, width: usize, epsilon: f64) -> Norm {
        let config = LayerNormConfig::new(width).with_epsilon(epsilon).with_bias(false);
        Norm { centred: false, ..self.norm(&config) }
    }

    pub(crate) fn dropout(&self, prob: f64) -> Result<Drop, ConfigError> {
        // Ours says which probabilities there are.
        let ours = DropoutConfig::new(prob).init()?;
        Ok(match self.burn {
            true => Drop::Burns(nn::DropoutConfig::new(prob).init()),
            false => Drop::Ours(ours),
        })
    }
}

#[derive(Module, Debug)]
pub(crate) enum Linear {
    Ours(nn::Linear),
    Burns(nn::Linear),
}

impl Linear {
    pub(crate) fn layer_mut(&mut self) -> &mut nn::Linear {
        match self {
            Self::Ours(layer) | Self::Burns(layer) => layer,
        }
    }

    pub(crate) fn layer(&self) -> &nn::Linear {
        match self {
            Self::Ours(layer) | Self::Burns(layer) => layer,
        }
    }

    pub(crate) fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Ours(layer) => linear(x, layer.weight.val(), layer.bias.as_ref().map(|bias| bias.val())),
            Self::Burns(layer) => layer.forward(x),
        }
    }
}

#[derive(Module, Debug)]
pub(crate) struct Norm {
    layer: nn::LayerNorm,
    /// The layer does not tell.
    epsilon: f64,
    burn: bool,
    /// Whether the mean is taken away first.
    centred: bool,
}

impl Norm {
    pub(crate) fn layer_mut(&mut self) -> &mut nn::LayerNorm {
        &mut self.layer
    }

    pub(crate) fn is_burns(&self) -> bool {
        self.burn
    }

    pub(crate) fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let Self { layer, epsilon, burn, centred } = self;
        match (centred, burn) {
            (true, true) => layer.forward(x),
            (true, false) => {
                layer_norm(x, layer.gamma.val(), layer.beta.as_ref().map(|beta| beta.val()), *epsilon)
            }
            (false, true) => {
                let square = x.clone().powi_scalar(2).mean_dim(D - 1);
                x / (square + *epsilon).sqrt() * layer.gamma.val().unsqueeze()
            }
            (false, false) => rms_norm(x, layer.gamma.val(), *epsilon),
        }
    }
}

#[derive(Module, Debug)]
pub(crate) enum Drop {
    Ours(Dropout),
    Burns(nn::Dropout),
}

impl Drop {
    /// `residual`, with what is left of `x` added.
    pub(crate) fn add<const D: usize>(&self, residual: Tensor<D>, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Ours(dropout) => dropout.add(residual, x),
            Self::Burns(dropout) => residual + dropout.forward(x),
        }
    }
}

/// A convolution without a bias that leaves pixels as many as they are, or as its stride says.
pub(crate) fn convolution(from: usize, to: usize, size: usize, stride: usize, device: &Device) -> Conv2d {
    let side = size / 2;
    Conv2dConfig::new([from, to], [size, size])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(side, side, side, side))
        .with_bias(false)
        .init(device)
}

/// Runs what [`convolution`] made.
pub(crate) fn convolved(layer: &Conv2d, x: Tensor<4>, burn: bool) -> Tensor<4> {
    if burn {
        return layer.forward(x);
    }
    let sides = layer.kernel_size.map(|size| size / 2);
    let options = ConvOptions::new(layer.stride, sides, layer.dilation, layer.groups);
    conv2d(x, layer.weight.val(), None, options)
}

/// Batch norm and a rectifier.
pub(crate) fn activated(norm: &BatchNorm, x: Tensor<4>, burn: bool) -> Tensor<4> {
    match burn {
        true => relu(norm.forward(x)),
        false => batch_norm_relu(x, norm),
    }
}
