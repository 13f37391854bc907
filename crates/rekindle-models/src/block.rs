//! A transformer block, in the parts it can be cut into.

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{Bool, Device, Tensor};
use rekindle::activation::{gelu, masked_softmax};
use rekindle::{Boundary, Dropout, DropoutConfig, Region};

use crate::{ConfigError, GptConfig};

/// Attention and a two-layer perceptron, each behind a norm and around a residual.
#[derive(Module, Debug)]
pub struct GptBlock {
    projection: Projection,
    attention: Attention,
    output: Output,
    up: Up,
    down: Down,
}

impl GptBlock {
    pub(crate) fn new(config: &GptConfig, device: &Device) -> Result<Self, ConfigError> {
        let (width, heads) = (config.width, config.heads);
        if heads == 0 || !width.is_multiple_of(heads) {
            return Err(ConfigError::Heads { width, heads });
        }
        let dropout = || DropoutConfig::new(config.dropout).with_keep_mask(!config.lean).init();
        let linear = |from: usize, to: usize| LinearConfig::new(from, to).init(device);
        Ok(Self {
            projection: Projection {
                norm: LayerNormConfig::new(width).init(device),
                query: linear(width, width),
                key: linear(width, width),
                value: linear(width, width),
                heads,
            },
            attention: Attention { dropout: dropout()? },
            output: Output { linear: linear(width, width), dropout: dropout()? },
            up: Up { norm: LayerNormConfig::new(width).init(device), linear: linear(width, 4 * width) },
            down: Down { output: Output { linear: linear(4 * width, width), dropout: dropout()? } },
        })
    }

    /// One block. `mask` is true where attention must not look; every position must be left something to look at.
    pub fn forward(&self, x: Tensor<3>, mask: Tensor<3, Bool>) -> Tensor<3> {
        let projected = self.projection.forward(x);
        let x = self.output.forward(self.attention.forward(projected, mask));
        self.down.forward(self.up.forward(x))
    }

    /// Adds the block to a region as five stages.
    ///
    /// The activation is no stage of its own: a boundary that only passes the residual on would count it once more.
    pub(crate) fn stages<I: Boundary>(
        &self,
        region: Region<I, Tensor<3>>,
        name: &str,
        mask: Tensor<3, Bool>,
    ) -> Region<I, Tensor<3>> {
        let name = |part: &str| format!("{name}.{part}");
        region
            .stage(name("qkv"), &self.projection, Projection::forward)
            .stage_with(name("attention"), &self.attention, mask, Attention::forward)
            .continuing()
            .stage(name("projection"), &self.output, Output::forward)
            .continuing()
            .stage(name("up"), &self.up, Up::forward)
            .continuing()
            .stage(name("down"), &self.down, Down::forward)
            .continuing()
    }
}

/// The residual stream, and queries, keys and values by head.
#[derive(Boundary)]
struct Projected {
    residual: Tensor<3>,
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
}

/// The residual stream, and what is to be added to it in the end.
#[derive(Boundary)]
struct Hidden {
    residual: Tensor<3>,
    hidden: Tensor<3>,
}

/// Norm, queries, keys and values.
#[derive(Module, Debug)]
struct Projection {
    norm: LayerNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    heads: usize,
}

impl Projection {
    fn forward(&self, residual: Tensor<3>) -> Projected {
        let [batch, sequence, width] = residual.dims();
        let depth = width / self.heads;
        let by_head = |x: Tensor<3>| x.reshape([batch, sequence, self.heads, depth]).swap_dims(1, 2);
        let x = self.norm.forward(residual.clone());
        Projected {
            residual,
            // Scaling the queries is less work than scaling the scores.
            query: by_head(self.query.forward(x.clone())),
            key: by_head(self.key.forward(x.clone())),
            value: by_head(self.value.forward(x)),
        }
    }
}

/// The part that holds every pair of positions, and no weights.
///
/// With our dropout: Burn's draws the mask of all probabilities on one thread, which took a seventh of a step.
#[derive(Module, Debug)]
struct Attention {
    dropout: Dropout,
}

impl Attention {
    fn forward(&self, Projected { residual, query, key, value }: Projected, mask: Tensor<3, Bool>) -> Hidden {
        let [batch, heads, sequence, depth] = query.dims();
        let attended = rekindle::Attention::new().causal().dropout(&self.dropout).forward(query, key, value).unwrap();
        let hidden = attended.swap_dims(1, 2).reshape([batch, sequence, heads * depth]);
        Hidden { residual, hidden }
    }
}

/// Back onto the residual stream.
#[derive(Module, Debug)]
struct Output {
    linear: Linear,
    dropout: Dropout,
}

impl Output {
    fn forward(&self, Hidden { residual, hidden }: Hidden) -> Tensor<3> {
        residual + self.dropout.forward(self.linear.forward(hidden))
    }
}

/// Norm, and four times the width.
#[derive(Module, Debug)]
struct Up {
    norm: LayerNorm,
    linear: Linear,
}

impl Up {
    fn forward(&self, residual: Tensor<3>) -> Hidden {
        let hidden = self.linear.forward(self.norm.forward(residual.clone()));
        Hidden { residual, hidden }
    }
}

/// Activation, and back to the width.
#[derive(Module, Debug)]
struct Down {
    output: Output,
}

impl Down {
    fn forward(&self, Hidden { residual, hidden }: Hidden) -> Tensor<3> {
        self.output.forward(Hidden { residual, hidden: gelu(hidden) })
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::attention::{MhaInput, MultiHeadAttentionConfig, generate_autoregressive_mask};
    use burn::tensor::{Distribution, Tolerance};

    use super::*;

    #[test]
    fn it_attends_as_burns_attention_does() {
        let device = Device::flex().autodiff();
        let config = GptConfig::new(8, 16, 4, 1, 8).with_dropout(0.0);
        let ours = GptBlock::new(&config, &device).unwrap();
        let mut burns = MultiHeadAttentionConfig::new(16, 4).with_dropout(0.0).init(&device);
        burns.query = ours.projection.query.clone();
        burns.key = ours.projection.key.clone();
        burns.value = ours.projection.value.clone();
        burns.output = ours.output.linear.clone();
        let x = Tensor::<3>::random([2, 6, 16], Distribution::Normal(0.0, 1.0), &device).require_grad();
        let mask = generate_autoregressive_mask(2, 6, &device);
        let found =
            ours.output.forward(ours.attention.forward(ours.projection.forward(x.clone()), mask.clone()));
        let normed = ours.projection.norm.forward(x.clone());
        let expected = x.clone() + burns.forward(MhaInput::self_attn(normed).mask_attn(mask)).context;
        found.to_data().assert_approx_eq::<f32>(&expected.to_data(), Tolerance::default());
        let gradient = |y: Tensor<3>| x.grad(&y.powf_scalar(2.0).sum().backward()).unwrap().into_data();
        gradient(found).assert_approx_eq::<f32>(&gradient(expected), Tolerance::default());
    }
}
