//! A GPT: learned positions, pre-norm blocks, dropout, a head of its own.

use std::ops::Range;

use burn::config::Config;
use burn::module::Module;
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::{Embedding, EmbeddingConfig, LayerNormConfig, LinearConfig};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Bool, Device, Int, Tensor};
use rekindle::nn::LinearCrossEntropy;
use rekindle::training::Precision;
use rekindle::{Error, Region, Rule, Staged, Under};

use crate::accuracy::share_right;
use crate::block::{BlockConfig, GptBlock};
use crate::layers::{Layers, Linear, Norm};
use crate::{Batch, ConfigError, Trainable};

/// The size of a [`Gpt`].
#[derive(Config, Debug)]
pub struct GptConfig {
    /// How many different tokens there are; 256 for bytes.
    pub vocabulary: usize,
    /// The width of the residual stream.
    pub width: usize,
    /// How many attention heads share it.
    pub heads: usize,
    /// How many blocks there are.
    pub layers: usize,
    /// The longest sequence.
    pub sequence: usize,
    /// The fraction of activations that is dropped.
    #[config(default = 0.1)]
    pub dropout: f64,
    /// Whether it is made of Burn's modules alone: to compare with. They keep more, and take more time.
    #[config(default = false)]
    pub burn: bool,
    /// The type of the activations. Weights are `f32`.
    #[config(default = "Precision::F32")]
    pub precision: Precision,
}

impl GptConfig {
    /// A model of this size.
    ///
    /// # Errors
    /// When the heads do not divide the width, the dropout is not a probability below 1, or the precision is one that the
    /// device, or Burn's modules beside weights of `f32`, do not have.
    pub fn init(&self, device: &Device) -> Result<Gpt, ConfigError> {
        self.precision.check(device)?;
        if self.burn && self.precision != Precision::F32 {
            return Err(ConfigError::BurnPrecision { precision: self.precision });
        }
        let &Self { width, heads, dropout, burn, .. } = self;
        let block = |_| GptBlock::new(BlockConfig { width, heads, dropout, causal: true, burn }, device);
        let layers = Layers { burn: self.burn, device };
        Ok(Gpt {
            embedding: GptEmbedding {
                tokens: EmbeddingConfig::new(self.vocabulary, self.width).init(device),
                positions: EmbeddingConfig::new(self.sequence, self.width).init(device),
                precision: self.precision,
            },
            blocks: (0..self.layers).map(block).collect::<Result<_, _>>()?,
            head: GptHead {
                norm: layers.norm(&LayerNormConfig::new(self.width)),
                linear: layers.linear(&LinearConfig::new(self.width, self.vocabulary)),
            },
        })
    }
}

/// A decoder-only transformer.
#[derive(Module, Debug)]
pub struct Gpt {
    embedding: GptEmbedding,
    blocks: Vec<GptBlock>,
    head: GptHead,
}

/// What a [`Gpt`] learns from: sequences, and what follows each of their tokens.
#[derive(Clone, Debug)]
pub struct GptBatch {
    /// The tokens, one sequence in a row.
    pub tokens: Tensor<2, Int>,
    /// The token that follows each of them.
    pub targets: Tensor<2, Int>,
}

impl Batch for GptBatch {
    fn examples(&self) -> usize {
        self.tokens.dims()[0]
    }

    fn slice(&self, examples: Range<usize>) -> Self {
        let of = |tensor: &Tensor<2, Int>| tensor.clone().slice_dim(0, examples.clone());
        Self { tokens: of(&self.tokens), targets: of(&self.targets) }
    }

    fn to_device(&self, device: &Device) -> Self {
        let of = |tensor: &Tensor<2, Int>| Tensor::from_data(tensor.to_data(), device);
        Self { tokens: of(&self.tokens), targets: of(&self.targets) }
    }
}

/// Tokens and their places as vectors.
#[derive(Module, Debug)]
struct GptEmbedding {
    tokens: Embedding,
    positions: Embedding,
    /// What comes after has the type that this makes.
    #[module(skip)]
    precision: Precision,
}

impl GptEmbedding {
    fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [_, sequence] = tokens.dims();
        let positions = Tensor::arange(0..sequence as i64, &tokens.device()).unsqueeze::<2>();
        self.precision.cast(self.tokens.forward(tokens) + self.positions.forward(positions))
    }
}

/// From vectors to tokens.
#[derive(Module, Debug)]
struct GptHead {
    norm: Norm,
    linear: Linear,
}

impl GptHead {
    fn logits(&self, x: Tensor<3>) -> Tensor<3> {
        Precision::F32.cast(self.linear.forward(self.norm.forward(x)))
    }

    /// The mean cross entropy of predicting `targets`.
    fn loss(&self, x: Tensor<3>, targets: Tensor<2, Int>) -> Result<Tensor<1>, Error> {
        let [batch, sequence, width] = x.dims();
        let count = batch * sequence;
        match &self.linear {
            Linear::Ours(layer) => {
                let x = self.norm.forward(x).reshape([count, width]);
                let (weight, bias) = (layer.weight.val(), layer.bias.as_ref().map(|bias| bias.val()));
                LinearCrossEntropy::new().forward(x, weight, bias, targets.reshape([count]))
            }
            Linear::Burns(_) => {
                let logits = self.logits(x).flatten::<2>(0, 1);
                let logs = log_softmax(logits, 1);
                Ok(logs.gather(1, targets.reshape([count, 1])).mean().neg())
            }
        }
    }
}

impl Gpt {
    /// The blocks.
    pub fn blocks(&self) -> &[GptBlock] {
        &self.blocks
    }

    /// The blocks alone, as stages that a plan can be given to. The mask is that of [`mask`](Self::mask).
    pub fn region(&self, mask: Option<Tensor<3, Bool>>) -> Region<Tensor<3>, Tensor<3>> {
        Region::new().stages_with("block", &self.blocks, mask, GptBlock::forward)
    }

    /// Who must not look where, in so many sequences of so many tokens: Burn's modules ask for it, ours know.
    pub fn mask(&self, [batch, sequence]: [usize; 2], device: &Device) -> Option<Tensor<3, Bool>> {
        let burn = matches!(self.head.linear, Linear::Burns(_));
        burn.then(|| generate_autoregressive_mask(batch, sequence, device))
    }

    /// The embedding and the blocks.
    fn body(&self, tokens: &Tensor<2, Int>) -> Region<Tensor<2, Int>, Tensor<3>> {
        Region::new().stage("embedding", &self.embedding, GptEmbedding::forward).stages_with(
            "block",
            &self.blocks,
            self.mask(tokens.dims(), &tokens.device()),
            GptBlock::forward,
        )
    }

    /// The logits of `tokens`, with the embedding, the blocks and the head as stages under `rule`.
    ///
    /// # Errors
    /// When the region cannot run.
    pub fn forward(&self, tokens: Tensor<2, Int>, rule: Rule) -> Result<Tensor<3>, Error> {
        self.body(&tokens).stage("head", &self.head, GptHead::logits).rule(rule).forward(tokens)
    }

    /// The mean cross entropy of predicting a batch's targets, under a rule or a plan made for this model.
    ///
    /// # Errors
    /// When the region cannot run.
    pub fn loss<'a>(&self, batch: &GptBatch, under: impl Into<Under<'a>>) -> Result<Tensor<1>, Error> {
        let (region, tokens) = self.stages(batch);
        region.under(under).forward(tokens)
    }
}

/// The whole of training: the embedding, each block, and the head with the loss.
impl Staged for Gpt {
    type Batch = GptBatch;
    type Input = Tensor<2, Int>;
    type Output = Tensor<1>;

    fn stages(&self, batch: &GptBatch) -> (Region<Tensor<2, Int>, Tensor<1>>, Tensor<2, Int>) {
        let body = self.body(&batch.tokens);
        let region = body.stage_with("head", &self.head, batch.targets.clone(), GptHead::loss);
        (region, batch.tokens.clone())
    }
}

impl Trainable for Gpt {
    /// The parts of the blocks, so that a plan can recompute the attention alone, or keep what matrix products made and
    /// recompute the rest. Loss and gradients are those of the coarse cut, bit for bit; but Burn's dropout, in a model of
    /// Burn's modules, starts anew in every stage and drops other elements.
    fn fine_stages(&self, batch: &GptBatch) -> (Region<Tensor<2, Int>, Tensor<1>>, Tensor<2, Int>) {
        let mask = self.mask(batch.tokens.dims(), &batch.tokens.device());
        let mut region = Region::new().stage("embedding", &self.embedding, GptEmbedding::forward);
        for (index, block) in self.blocks.iter().enumerate() {
            region = block.stages(region, &format!("block.{index}"), mask.clone());
        }
        let region = region.stage_with("head", &self.head, batch.targets.clone(), GptHead::loss);
        (region, batch.tokens.clone())
    }

    fn accuracy(&self, batch: &GptBatch) -> Result<f64, Error> {
        Ok(share_right(self.forward(batch.tokens.clone(), Rule::StoreAll)?, batch.targets.clone()))
    }
}
