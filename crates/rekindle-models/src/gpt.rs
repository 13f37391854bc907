//! A GPT: learned positions, pre-norm blocks, dropout, a head of its own.

use burn::config::Config;
use burn::module::Module;
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::{Embedding, EmbeddingConfig, Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Bool, Device, Int, Tensor};
use rekindle::{Dropout, DropoutConfig, Error, Region, Rule};

use crate::ConfigError;
use crate::attention::SelfAttention;

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
}

impl GptConfig {
    /// A model of this size.
    ///
    /// # Errors
    /// When the heads do not divide the width, or the dropout is not a probability below 1.
    pub fn init(&self, device: &Device) -> Result<Gpt, ConfigError> {
        let block = |_| GptBlock::new(self, device);
        Ok(Gpt {
            embedding: EmbeddingConfig::new(self.vocabulary, self.width).init(device),
            positions: EmbeddingConfig::new(self.sequence, self.width).init(device),
            blocks: (0..self.layers).map(block).collect::<Result<_, _>>()?,
            norm: LayerNormConfig::new(self.width).init(device),
            head: LinearConfig::new(self.width, self.vocabulary).init(device),
        })
    }
}

/// A decoder-only transformer.
#[derive(Module, Debug)]
pub struct Gpt {
    embedding: Embedding,
    positions: Embedding,
    blocks: Vec<GptBlock>,
    norm: LayerNorm,
    head: Linear,
}

/// Attention and a two-layer perceptron, each behind a norm and around a residual.
#[derive(Module, Debug)]
pub struct GptBlock {
    attention_norm: LayerNorm,
    attention: SelfAttention,
    perceptron_norm: LayerNorm,
    up: Linear,
    activation: Gelu,
    down: Linear,
    dropout: Dropout,
}

impl GptBlock {
    fn new(config: &GptConfig, device: &Device) -> Result<Self, ConfigError> {
        let width = config.width;
        Ok(Self {
            attention_norm: LayerNormConfig::new(width).init(device),
            attention: SelfAttention::new(width, config.heads, config.dropout, device)?,
            perceptron_norm: LayerNormConfig::new(width).init(device),
            up: LinearConfig::new(width, 4 * width).init(device),
            activation: Gelu::new(),
            down: LinearConfig::new(4 * width, width).init(device),
            dropout: DropoutConfig::new(config.dropout).init()?,
        })
    }

    /// One block. `mask` is true where attention must not look; every position must be left something to look at.
    pub fn forward(&self, x: Tensor<3>, mask: Tensor<3, Bool>) -> Tensor<3> {
        let normed = self.attention_norm.forward(x.clone());
        let x = x + self.dropout.forward(self.attention.forward(normed, mask));
        let normed = self.perceptron_norm.forward(x.clone());
        let hidden = self.activation.forward(self.up.forward(normed));
        x + self.dropout.forward(self.down.forward(hidden))
    }
}

impl Gpt {
    /// How many stages [`Gpt::region`] has.
    pub fn stages(&self) -> usize {
        self.blocks.len()
    }

    /// The blocks, one for each stage.
    pub fn blocks(&self) -> &[GptBlock] {
        &self.blocks
    }

    /// The blocks, as stages that a plan can be given to.
    pub fn region(&self, mask: Tensor<3, Bool>) -> Region<Tensor<3>, Tensor<3>> {
        Region::new().stages_with("block", &self.blocks, mask, GptBlock::forward)
    }

    /// The logits of `tokens`, with the blocks under `rule`.
    ///
    /// # Errors
    /// When the region cannot run.
    pub fn forward(&self, tokens: Tensor<2, Int>, rule: Rule) -> Result<Tensor<3>, Error> {
        let [batch, sequence] = tokens.dims();
        let device = tokens.device();
        let mask = generate_autoregressive_mask(batch, sequence, &device);
        let positions = Tensor::arange(0..sequence as i64, &device).unsqueeze::<2>();
        let x = self.embedding.forward(tokens) + self.positions.forward(positions);
        let x = self.region(mask).rule(rule).forward(x)?;
        Ok(self.head.forward(self.norm.forward(x)))
    }

    /// The mean cross entropy of predicting `targets`.
    ///
    /// # Errors
    /// When the region cannot run.
    pub fn loss(
        &self,
        tokens: Tensor<2, Int>,
        targets: Tensor<2, Int>,
        rule: Rule,
    ) -> Result<Tensor<1>, Error> {
        let logits = self.forward(tokens, rule)?;
        let [batch, sequence, vocabulary] = logits.dims();
        let count = batch * sequence;
        let log_probabilities = log_softmax(logits.reshape([count, vocabulary]), 1);
        Ok(log_probabilities.gather(1, targets.reshape([count, 1])).mean().neg())
    }
}
