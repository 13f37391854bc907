//! A transformer block, in the parts it can be cut into.

use burn::module::Module;
use burn::nn::{LayerNormConfig, LinearConfig};
use burn::tensor::{Bool, Device, Tensor};
use rekindle::activation::gelu;
use rekindle::{Attention as Attend, Boundary, Error, Region, tail};

use crate::ConfigError;
use crate::layers::{Drop, Layers, Linear, Norm};

/// The size of a [`GptBlock`], and what it may look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockConfig {
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) dropout: f64,
    /// Whether a token looks at none that comes after it.
    pub(crate) causal: bool,
    /// Whether Burn runs it.
    pub(crate) burn: bool,
}

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
    pub(crate) fn new(config: BlockConfig, device: &Device) -> Result<Self, ConfigError> {
        let BlockConfig { width, heads, dropout, causal, burn } = config;
        if heads == 0 || !width.is_multiple_of(heads) {
            return Err(ConfigError::Heads { width, heads });
        }
        let layers = Layers { burn, device };
        let linear = |from, to| layers.linear(&LinearConfig::new(from, to));
        let norm = || layers.norm(&LayerNormConfig::new(width));
        let output = |from| {
            Ok::<_, ConfigError>(Output { linear: linear(from, width), dropout: layers.dropout(dropout)? })
        };
        Ok(Self {
            projection: Projection {
                norm: norm(),
                query: linear(width, width),
                key: linear(width, width),
                value: linear(width, width),
                heads,
            },
            attention: Attention { dropout: layers.dropout(dropout)?, causal },
            output: output(width)?,
            up: Up { norm: norm(), linear: linear(width, 4 * width) },
            down: Down { output: output(4 * width)? },
        })
    }

    /// One block. The mask is that of [`Gpt::mask`](crate::Gpt::mask), and none where all tokens look at all.
    ///
    /// # Errors
    /// When attention cannot run.
    pub fn forward(&self, x: Tensor<3>, mask: Option<Tensor<3, Bool>>) -> Result<Tensor<3>, Error> {
        let projected = self.projection.forward(x);
        let x = self.output.forward(self.attention.forward(projected, mask)?);
        let x = self.up.forward(x);
        // The backward of the last layer does not ask for what it makes.
        Ok(tail(|| self.down.forward(x)))
    }

    /// Adds the block to a region as five stages.
    ///
    /// The activation is no stage of its own: the tape of what comes next would hold on to its output, four times the width.
    /// Together with `down` it runs again under a balanced tape, and only what matrix products made is kept.
    pub(crate) fn stages<I: Boundary>(
        &self,
        region: Region<I, Tensor<3>>,
        name: &str,
        mask: Option<Tensor<3, Bool>>,
    ) -> Region<I, Tensor<3>> {
        let name = |part: &str| format!("{name}.{part}");
        region
            .stage(name("qkv"), &self.projection, |part: &Projection, x| tail(|| part.forward(x)))
            .stage_with(name("attention"), &self.attention, mask, Attention::forward)
            .continuing()
            .stage(name("projection"), &self.output, |part: &Output, x| tail(|| part.forward(x)))
            .continuing()
            .stage(name("up"), &self.up, |part: &Up, x| tail(|| part.forward(x)))
            .continuing()
            .stage(name("down"), &self.down, |part: &Down, x| tail(|| part.forward(x)))
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
    norm: Norm,
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
            query: by_head(self.query.forward(x.clone())),
            key: by_head(self.key.forward(x.clone())),
            value: by_head(self.value.forward(x)),
        }
    }
}

/// The part that holds every pair of positions, if attention is Burn's, and no weights.
#[derive(Module, Debug)]
struct Attention {
    dropout: Drop,
    /// Burn's attention is told by its mask.
    causal: bool,
}

impl Attention {
    fn forward(
        &self,
        Projected { residual, query, key, value }: Projected,
        mask: Option<Tensor<3, Bool>>,
    ) -> Result<Hidden, Error> {
        let [batch, heads, sequence, depth] = query.dims();
        let attended = match &self.dropout {
            Drop::Ours(dropout) => {
                let attend = if self.causal { Attend::new().causal() } else { Attend::new() };
                attend.dropout(dropout).forward(query, key, value)?
            }
            Drop::Burns(dropout) => {
                let scores = query.matmul(key.transpose()).div_scalar((depth as f32).sqrt());
                let scores = match mask {
                    Some(mask) => {
                        let mask = mask.unsqueeze_dim::<4>(1).expand([batch, heads, sequence, sequence]);
                        scores.mask_fill(mask, f32::NEG_INFINITY)
                    }
                    None => scores,
                };
                dropout.forward(burn::tensor::activation::softmax(scores, 3)).matmul(value)
            }
        };
        Ok(Hidden { residual, hidden: attended.swap_dims(1, 2).reshape([batch, sequence, heads * depth]) })
    }
}

/// Back onto the residual stream.
#[derive(Module, Debug)]
struct Output {
    linear: Linear,
    dropout: Drop,
}

impl Output {
    fn forward(&self, Hidden { residual, hidden }: Hidden) -> Tensor<3> {
        self.dropout.add(residual, self.linear.forward(hidden))
    }
}

/// Norm, and four times the width.
#[derive(Module, Debug)]
struct Up {
    norm: Norm,
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
        let hidden = match &self.output.linear {
            Linear::Ours(_) => gelu(hidden),
            Linear::Burns(_) => burn::tensor::activation::gelu(hidden),
        };
        self.output.forward(Hidden { residual, hidden })
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
        for (burn, causal) in [(false, true), (true, true), (false, false), (true, false)] {
            let config = BlockConfig { width: 16, heads: 4, dropout: 0.0, causal, burn };
            let ours = GptBlock::new(config, &device).unwrap();
            let mut burns = MultiHeadAttentionConfig::new(16, 4).with_dropout(0.0).init(&device);
            burns.query = ours.projection.query.layer().clone();
            burns.key = ours.projection.key.layer().clone();
            burns.value = ours.projection.value.layer().clone();
            burns.output = ours.output.linear.layer().clone();
            let x = Tensor::<3>::random([2, 6, 16], Distribution::Normal(0.0, 1.0), &device).require_grad();
            let mask = generate_autoregressive_mask(2, 6, &device);
            let projected = ours.projection.forward(x.clone());
            let told = (burn && causal).then(|| mask.clone());
            let hidden = ours.attention.forward(projected, told).unwrap();
            let found = ours.output.forward(hidden);
            let normed = ours.projection.norm.forward(x.clone());
            let input = MhaInput::self_attn(normed);
            let input = if causal { input.mask_attn(mask) } else { input };
            let expected = x.clone() + burns.forward(input).context;
            found.to_data().assert_approx_eq::<f32>(&expected.to_data(), Tolerance::default());
            let gradient = |y: Tensor<3>| x.grad(&y.powf_scalar(2.0).sum().backward()).unwrap().into_data();
            gradient(found).assert_approx_eq::<f32>(&gradient(expected), Tolerance::default());
        }
    }
}
