//! A transformer block, in the parts it can be cut into.

mod beside;

use std::sync::Arc;

use burn::module::Module;
use burn::nn::{LayerNormConfig, LinearConfig};
use burn::tensor::activation as burns;
use burn::tensor::{Bool, Device, Tensor};
use rekindle::activation::{gelu, gelu_tanh, swiglu};
use rekindle::nn::Rotary;
use rekindle::peers::{self, Peers};
use rekindle::{Attention as Attend, Boundary, Error, Region, again, tail};

use crate::layers::{Drop, Layers, Linear, Norm};
use crate::shape::{Activation, Norms, Positions};
use crate::split::check_even;
use crate::{ConfigError, GptConfig, Shares};

/// Attention and a two-layer perceptron, each behind a norm and around a residual.
#[derive(Module, Debug)]
pub struct GptBlock {
    pub(crate) projection: Projection,
    attention: Attention,
    pub(crate) output: Output,
    pub(crate) up: Up,
    activation: Activate,
    pub(crate) down: Output,
}

impl GptBlock {
    /// A block whose tokens look at none that comes after them.
    pub(crate) fn new(config: &GptConfig, device: &Device) -> Result<Self, ConfigError> {
        Self::build(config, true, device)
    }

    /// A block whose tokens all look at all. It takes no mask.
    pub(crate) fn looking_both_ways(config: &GptConfig, device: &Device) -> Result<Self, ConfigError> {
        Self::build(config, false, device)
    }

    fn build(config: &GptConfig, causal: bool, device: &Device) -> Result<Self, ConfigError> {
        let (width, heads, key_heads) = (config.width, config.heads, config.key_heads());
        if heads == 0 || !width.is_multiple_of(heads) {
            return Err(ConfigError::Heads { width, heads });
        }
        if key_heads == 0 || !heads.is_multiple_of(key_heads) {
            return Err(ConfigError::KeyHeads { heads, key_heads });
        }
        let depth = width / heads;
        let rotation = match config.positions {
            Positions::Learned => None,
            Positions::Rotary { .. } if !depth.is_multiple_of(2) => {
                return Err(ConfigError::OddHeads { depth });
            }
            Positions::Rotary { base } => Some(base),
        };
        let layers = Layers { burn: config.burn, device };
        let linear = |from, to| layers.linear(&LinearConfig::new(from, to).with_bias(config.bias));
        let norm = || match config.norms {
            Norms::Layer => layers.norm(&LayerNormConfig::new(width).with_epsilon(config.epsilon)),
            Norms::Rms => layers.rms_norm(width, config.epsilon),
        };
        let output = |from| {
            Ok::<_, ConfigError>(Output {
                linear: linear(from, width),
                dropout: layers.dropout(config.dropout)?,
                peers: None,
            })
        };
        let hidden = config.hidden();
        Ok(Self {
            projection: Projection {
                norm: norm(),
                query: linear(width, width),
                key: linear(width, key_heads * depth),
                value: linear(width, key_heads * depth),
                heads,
                rotation,
                peers: None,
            },
            attention: Attention { dropout: layers.dropout(config.dropout)?, causal },
            output: output(width)?,
            up: Up {
                norm: norm(),
                linear: linear(width, hidden),
                gate: (config.activation == Activation::SwiGlu).then(|| linear(width, hidden)),
                peers: None,
            },
            activation: Activate { function: config.activation, ours: !config.burn },
            down: output(hidden)?,
        })
    }

    /// One block. The mask is that of [`Gpt::mask`](crate::Gpt::mask), and none where all tokens look at all.
    ///
    /// # Errors
    /// When attention cannot run.
    pub fn forward(&self, x: Tensor<3>, mask: Option<Tensor<3, Bool>>) -> Result<Tensor<3>, Error> {
        // Queries, keys, values and what the perceptron makes of its input are most of a tape, and a third of the work.
        let projected = again(|| self.projection.forward(x))?;
        let x = self.output.forward(self.attention.forward(projected, mask)?)?;
        let x = self.activation.forward(again(|| self.up.forward(x)));
        // The backward of the last layer does not ask for what it makes.
        tail(|| self.down.forward(x))
    }

    /// How peers would share the layers of blocks out: heads, and columns of the perceptrons.
    pub(crate) fn shares(blocks: &[Self]) -> Shares {
        let mut shares = Shares::default();
        for Self { projection, output, up, down, .. } in blocks {
            let read_by_all = [&projection.query, &projection.key, &projection.value, &up.linear];
            read_by_all.into_iter().chain(&up.gate).for_each(|linear| shares.columns(linear.layer()));
            [output, down].into_iter().for_each(|output| shares.rows(output.linear.layer()));
        }
        shares
    }

    /// What one of several peers has of blocks.
    pub(crate) fn split(blocks: Vec<Self>, peers: &Arc<dyn Peers>) -> Result<Vec<Self>, ConfigError> {
        let shares = Self::shares(&blocks);
        let of = |block: Self| Ok(shares.cut(block.among(peers)?, peers.as_ref()));
        blocks.into_iter().map(of).collect()
    }

    /// The block as one of several peers runs it, with layers that are still whole.
    fn among(self, peers: &Arc<dyn Peers>) -> Result<Self, ConfigError> {
        let Self { projection, attention, output, up, activation, down } = self;
        let (Drop::Ours(dropout), None) = (attention.dropout, &projection.peers) else {
            return Err(ConfigError::NotSplit);
        };
        let columns = |linear: &Linear| linear.layer().weight.val().dims()[1];
        let depth = columns(&projection.query) / projection.heads;
        check_even("heads", projection.heads, peers)?;
        check_even("heads of keys and values", columns(&projection.key) / depth, peers)?;
        check_even("columns of a perceptron", columns(&up.linear), peers)?;
        let peers_of = || Some(Arc::clone(peers));
        let own = |mut output: Output| {
            if peers.rank() > 0 {
                output.linear.layer_mut().bias = None;
            }
            Output { peers: peers_of(), ..output }
        };
        Ok(Self {
            projection: Projection { peers: peers_of(), ..projection },
            // Each has other heads, and drops other scores of them; what goes back onto the residual stream all have, and drop
            // the same elements of.
            attention: Attention { dropout: Drop::Ours(dropout.apart(peers.rank())), ..attention },
            output: own(output),
            up: Up { peers: peers_of(), ..up },
            activation,
            down: own(down),
        })
    }

    /// Adds the block to a region as six stages.
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
            .stage(name("activation"), &self.activation, Activate::forward)
            .continuing()
            .stage(name("down"), &self.down, |part: &Output, x| tail(|| part.forward(x)))
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

/// The same inside of the perceptron.
#[derive(Boundary)]
struct Wide {
    residual: Tensor<3>,
    hidden: Tensor<3>,
    /// What gates it, if something does.
    gate: Option<Tensor<3>>,
}

/// Norm, queries, keys and values.
#[derive(Module, Debug)]
pub(crate) struct Projection {
    pub(crate) norm: Norm,
    pub(crate) query: Linear,
    pub(crate) key: Linear,
    pub(crate) value: Linear,
    heads: usize,
    /// The base of rotary positions.
    rotation: Option<f64>,
    /// Who has the other heads.
    #[module(skip)]
    peers: Option<Arc<dyn Peers>>,
}

/// What all peers read, if there are any.
fn given(x: Tensor<3>, peers: Option<&Arc<dyn Peers>>) -> Tensor<3> {
    match peers {
        Some(peers) => peers::given(x, peers),
        None => x,
    }
}

impl Projection {
    fn forward(&self, residual: Tensor<3>) -> Result<Projected, Error> {
        let [batch, sequence, width] = residual.dims();
        let depth = width / self.heads;
        let by_head = |x: Tensor<3>| {
            let heads = x.dims()[2] / depth;
            x.reshape([batch, sequence, heads, depth]).swap_dims(1, 2)
        };
        let x = given(self.norm.forward(residual.clone()), self.peers.as_ref());
        let [mut query, mut key] = [&self.query, &self.key].map(|linear| linear.forward(x.clone()));
        if let Some(base) = self.rotation {
            let rotary = Rotary::new(depth, sequence, base);
            query = rotary.forward(query)?;
            key = rotary.forward(key)?;
        }
        let [query, key] = [query, key].map(by_head);
        Ok(Projected { residual, query, key, value: by_head(self.value.forward(x)) })
    }
}

/// The part that holds every pair of positions, if attention is Burn's, and no weights.
#[derive(Module, Debug)]
pub(crate) struct Attention {
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
                let [key, value] = [key, value].map(|x| for_each_head(x, heads));
                let scores = query.matmul(key.transpose()).div_scalar((depth as f32).sqrt());
                let scores = match mask {
                    Some(mask) => {
                        let (found, expected) = (mask.dims(), [batch, sequence, sequence]);
                        // One for all sequences of the batch will do.
                        if found != expected && found != [1, sequence, sequence] {
                            let (found, expected) = (found.to_vec(), expected.to_vec());
                            return Err(Error::AttentionShape { what: "a mask", found, expected });
                        }
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

/// Keys or values again for every query that shares them.
fn for_each_head(x: Tensor<4>, heads: usize) -> Tensor<4> {
    let [batch, groups, sequence, depth] = x.dims();
    if groups == heads {
        return x;
    }
    let each = x.unsqueeze_dim::<5>(2).expand([batch, groups, heads / groups, sequence, depth]);
    each.reshape([batch, heads, sequence, depth])
}

/// Back onto the residual stream.
#[derive(Module, Debug)]
pub(crate) struct Output {
    pub(crate) linear: Linear,
    dropout: Drop,
    /// Who has the other rows of the layer.
    #[module(skip)]
    peers: Option<Arc<dyn Peers>>,
}

impl Output {
    fn forward(&self, Hidden { residual, hidden }: Hidden) -> Result<Tensor<3>, Error> {
        let x = self.linear.forward(hidden);
        let x = match &self.peers {
            Some(peers) => peers::summed(x, peers)?,
            None => x,
        };
        Ok(self.dropout.add(residual, x))
    }
}

/// Norm, and four times the width or so.
#[derive(Module, Debug)]
pub(crate) struct Up {
    pub(crate) norm: Norm,
    pub(crate) linear: Linear,
    pub(crate) gate: Option<Linear>,
    /// Who has the other columns.
    #[module(skip)]
    peers: Option<Arc<dyn Peers>>,
}

impl Up {
    fn forward(&self, residual: Tensor<3>) -> Wide {
        let x = given(self.norm.forward(residual.clone()), self.peers.as_ref());
        let gate = self.gate.as_ref().map(|gate| gate.forward(x.clone()));
        Wide { residual, hidden: self.linear.forward(x), gate }
    }
}

/// The part of the perceptron that costs little and makes as much as it reads: what to run again first.
#[derive(Module, Debug)]
pub(crate) struct Activate {
    #[module(skip)]
    function: Activation,
    /// Not Burn's.
    ours: bool,
}

impl Activate {
    fn forward(&self, Wide { residual, hidden, gate }: Wide) -> Hidden {
        let hidden = match (self.function, gate, self.ours) {
            (Activation::SwiGlu, Some(gate), true) => swiglu(gate, hidden),
            (Activation::SwiGlu, Some(gate), false) => burns::silu(gate) * hidden,
            (Activation::GeluTanh, _, true) => gelu_tanh(hidden),
            (Activation::GeluTanh, _, false) => burns::gelu_approximate(hidden),
            (Activation::Gelu | Activation::SwiGlu, _, true) => gelu(hidden),
            (Activation::Gelu | Activation::SwiGlu, _, false) => burns::gelu(hidden),
        };
        Hidden { residual, hidden }
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::attention::{MhaInput, MultiHeadAttentionConfig, generate_autoregressive_mask};
    use burn::tensor::{Distribution, TensorData, Tolerance};

    use super::*;

    #[test]
    fn it_attends_as_burns_attention_does() {
        let device = Device::flex().autodiff();
        for (burn, causal) in [(false, true), (true, true), (false, false), (true, false)] {
            let config = GptConfig::new(8, 16, 4, 1, 8).with_dropout(0.0).with_burn(burn);
            let ours = GptBlock::build(&config, causal, &device).unwrap();
            let mut burns = MultiHeadAttentionConfig::new(16, 4).with_dropout(0.0).init(&device);
            burns.query = ours.projection.query.layer().clone();
            burns.key = ours.projection.key.layer().clone();
            burns.value = ours.projection.value.layer().clone();
            burns.output = ours.output.linear.layer().clone();
            let x = Tensor::<3>::random([2, 6, 16], Distribution::Normal(0.0, 1.0), &device).require_grad();
            let mask = generate_autoregressive_mask(2, 6, &device);
            let projected = ours.projection.forward(x.clone()).unwrap();
            let told = (burn && causal).then(|| mask.clone());
            let hidden = ours.attention.forward(projected, told).unwrap();
            let found = ours.output.forward(hidden).unwrap();
            let normed = ours.projection.norm.forward(x.clone());
            let input = MhaInput::self_attn(normed);
            let input = if causal { input.mask_attn(mask) } else { input };
            let expected = x.clone() + burns.forward(input).context;
            found.to_data().assert_approx_eq::<f32>(&expected.to_data(), Tolerance::default());
            let gradient = |y: Tensor<3>| x.grad(&y.powf_scalar(2.0).sum().backward()).unwrap().into_data();
            gradient(found).assert_approx_eq::<f32>(&gradient(expected), Tolerance::default());
        }
    }
    /// It panicked in Burn's `expand`.
    #[test]
    fn a_mask_of_another_shape_is_an_error() {
        let device = Device::flex().autodiff();
        let config = GptConfig::new(8, 16, 4, 1, 8).with_dropout(0.0).with_burn(true);
        let block = GptBlock::build(&config, true, &device).unwrap();
        let x = Tensor::<3>::ones([2, 6, 16], &device);
        let run = |shape: [usize; 3]| {
            let falses = TensorData::new(vec![false; shape.iter().product()], shape);
            let mask = Tensor::<3, Bool>::from_data(falses, &device);
            block.forward(x.clone(), Some(mask))
        };
        for shape in [[2, 6, 5], [2, 1, 6], [3, 6, 6], [2, 7, 7]] {
            match run(shape) {
                Err(Error::AttentionShape { what: "a mask", found, expected }) => {
                    assert_eq!((found, expected), (shape.to_vec(), vec![2, 6, 6]));
                }
                other => panic!("{shape:?}: {:?}", other.map(|y| y.dims())),
            }
        }
        assert_eq!(run([1, 6, 6]).unwrap().dims(), [2, 6, 16]);
        assert_eq!(run([2, 6, 6]).unwrap().dims(), [2, 6, 16]);
    }
}
