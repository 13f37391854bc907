//! Language models: GPT-2's shape and Llama's, and what lies between.

use std::ops::Range;
use std::sync::Arc;

use burn::config::Config;
use burn::module::Module;
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::{Embedding, EmbeddingConfig, Initializer, LayerNormConfig, LinearConfig};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Bool, Device, Int, Tensor};
use rekindle::nn::{LinearCrossEntropy, check_targets, embedding};
use rekindle::peers::Peers;
use rekindle::training::Precision;
use rekindle::{Error, Region, Rule, Staged, Under};

use crate::accuracy::share_right;
use crate::block::GptBlock;
use crate::estimate::{Architecture, preset};
use crate::layers::{Layers, Linear, Norm};
use crate::shape::{Activation, Norms, Positions};
use crate::{Batch, ConfigError, Shares, Trainable};

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
    /// The heads of keys and values, if they are fewer than those of queries, which share them.
    pub key_heads: Option<usize>,
    /// The width inside of the perceptron, if it is not four times that of the residual stream.
    pub hidden: Option<usize>,
    /// How it knows where a token stands.
    #[config(default = "Positions::Learned")]
    pub positions: Positions,
    /// What lies between the two layers of a perceptron.
    #[config(default = "Activation::Gelu")]
    pub activation: Activation,
    /// Which norms there are.
    #[config(default = "Norms::Layer")]
    pub norms: Norms,
    /// What norms add to what they divide by.
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// Whether linear layers have a bias.
    #[config(default = true)]
    pub bias: bool,
    /// Whether the head's weights are those of the embedding; it has no bias then.
    #[config(default = false)]
    pub tied: bool,
}

impl GptConfig {
    /// GPT-2's shape: the head is the embedding, the activation by way of `tanh`.
    pub fn gpt2(vocabulary: usize, width: usize, heads: usize, layers: usize, sequence: usize) -> Self {
        let config = Self::new(vocabulary, width, heads, layers, sequence);
        config.with_activation(Activation::GeluTanh).with_tied(true)
    }

    /// Llama's shape: rotary positions, root-mean-square norms, gated perceptrons of 8/3 the width, no bias, no dropout.
    pub fn llama(vocabulary: usize, width: usize, heads: usize, layers: usize, sequence: usize) -> Self {
        Self::new(vocabulary, width, heads, layers, sequence)
            .with_dropout(0.0)
            .with_positions(Positions::Rotary { base: 10_000.0 })
            .with_activation(Activation::SwiGlu)
            .with_norms(Norms::Rms)
            .with_bias(false)
            .with_hidden(Some(width.saturating_mul(8).div_ceil(3)))
    }

    /// A model by its name: those of [`estimate::presets`](crate::estimate::presets) that have this shape, such as `gpt2-medium`
    /// and `llama-7b`.
    ///
    /// ```
    /// use rekindle_models::GptConfig;
    ///
    /// let config = GptConfig::named("llama-70b").unwrap();
    /// assert_eq!((config.width, config.layers, config.key_heads), (8192, 80, Some(8)));
    /// assert!(GptConfig::named("resnet-50").is_none());
    /// ```
    pub fn named(name: &str) -> Option<Self> {
        let Architecture::Transformer(shape) = preset(name)? else { return None };
        // Those that read pictures, or text in both directions.
        if shape.patch > 0 || shape.other > 0 {
            return None;
        }
        let [vocabulary, width, heads, layers, sequence, hidden, key_heads] = [
            shape.vocabulary,
            shape.width,
            shape.heads,
            shape.layers,
            shape.length,
            shape.hidden,
            shape.key_value_heads,
        ]
        .map(|size| usize::try_from(size).unwrap_or(usize::MAX));
        let of = if shape.gated { Self::llama } else { Self::gpt2 };
        let config = of(vocabulary, width, heads, layers, sequence).with_hidden(Some(hidden));
        Some(config.with_key_heads((key_heads != heads).then_some(key_heads)).with_tied(shape.tied))
    }

    pub(crate) fn key_heads(&self) -> usize {
        self.key_heads.unwrap_or(self.heads)
    }

    pub(crate) fn hidden(&self) -> usize {
        self.hidden.unwrap_or(self.width.saturating_mul(4))
    }

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
        let sizes = [
            ("words", self.vocabulary),
            ("width", self.width),
            ("places in a sequence", self.sequence),
            ("width in its perceptrons", self.hidden()),
        ];
        if let Some((what, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(ConfigError::Empty { what });
        }
        let block = |_| GptBlock::new(self, device);
        let layers = Layers { burn: self.burn, device };
        // As a head, an embedding as large as Burn's would be sure of everything; and places must not drown the words.
        let embedding = |count| match self.tied {
            true => EmbeddingConfig::new(count, self.width)
                .with_initializer(Initializer::Normal { mean: 0.0, std: 0.02 }),
            false => EmbeddingConfig::new(count, self.width),
        };
        let learned = self.positions == Positions::Learned;
        let (vocabulary, sequence) = (self.vocabulary, self.sequence);
        Ok(Gpt {
            embedding: GptEmbedding {
                tokens: embedding(vocabulary).init(device),
                positions: learned.then(|| embedding(sequence).init(device)),
                precision: self.precision,
                sequence,
            },
            blocks: (0..self.layers).map(block).collect::<Result<_, _>>()?,
            head: GptHead {
                norm: match self.norms {
                    Norms::Layer => layers.norm(&LayerNormConfig::new(self.width).with_epsilon(self.epsilon)),
                    Norms::Rms => layers.rms_norm(self.width, self.epsilon),
                },
                linear: (!self.tied)
                    .then(|| layers.linear(&LinearConfig::new(self.width, vocabulary).with_bias(self.bias))),
            },
        })
    }
}

/// A decoder-only transformer.
#[derive(Module, Debug)]
pub struct Gpt {
    pub(crate) embedding: GptEmbedding,
    pub(crate) blocks: Vec<GptBlock>,
    pub(crate) head: GptHead,
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
pub(crate) struct GptEmbedding {
    pub(crate) tokens: Embedding,
    pub(crate) positions: Option<Embedding>,
    /// What comes after has the type that this makes.
    #[module(skip)]
    precision: Precision,
    /// The longest sequence.
    sequence: usize,
}

impl GptEmbedding {
    fn forward(&self, tokens: Tensor<2, Int>) -> Result<Tensor<3>, Error> {
        let [_, sequence] = tokens.dims();
        if sequence > self.sequence {
            return Err(Error::TextLength { found: sequence, longest: self.sequence });
        }
        let places = Tensor::arange(0..sequence as i64, &tokens.device()).unsqueeze::<2>();
        let words = embedding(self.tokens.weight.val(), tokens)?;
        Ok(self.precision.cast(match &self.positions {
            Some(positions) => words + positions.forward(places),
            None => words,
        }))
    }
}

/// From vectors to tokens.
#[derive(Module, Debug)]
pub(crate) struct GptHead {
    pub(crate) norm: Norm,
    /// None, where it is the embedding.
    pub(crate) linear: Option<Linear>,
}

/// The head as a stage: with the weights it may have from the embedding.
#[derive(Module, Debug)]
struct HeadStage {
    norm: Norm,
    words: Words,
    burn: bool,
}

/// What turns a vector into the logits of words.
#[derive(Module, Debug)]
enum Words {
    Own(Linear),
    Tied(Embedding),
}

impl HeadStage {
    /// Of the width, by words.
    fn weight(&self) -> (Tensor<2>, Option<Tensor<1>>) {
        match &self.words {
            Words::Own(linear) => {
                let layer = linear.layer();
                (layer.weight.val(), layer.bias.as_ref().map(|bias| bias.val()))
            }
            Words::Tied(embedding) => (embedding.weight.val().transpose(), None),
        }
    }

    fn logits(&self, x: Tensor<3>) -> Tensor<3> {
        let x = self.norm.forward(x);
        Precision::F32.cast(match (&self.words, self.burn) {
            (Words::Own(linear), _) => linear.forward(x),
            (Words::Tied(_), true) => x.matmul(self.weight().0.unsqueeze()),
            (Words::Tied(_), false) => rekindle::nn::linear(x, self.weight().0, None),
        })
    }

    /// The mean cross entropy of predicting `targets`.
    fn loss(&self, x: Tensor<3>, targets: Tensor<2, Int>) -> Result<Tensor<1>, Error> {
        let [batch, sequence, width] = x.dims();
        let count = batch * sequence;
        match self.burn {
            false => {
                let x = self.norm.forward(x).reshape([count, width]);
                let (weight, bias) = self.weight();
                LinearCrossEntropy::new().forward(x, weight, bias, targets.reshape([count]))
            }
            true => {
                let logits = self.logits(x).flatten::<2>(0, 1);
                let logs = log_softmax(logits, 1);
                let targets = targets.reshape([count]);
                check_targets(&targets, count, logs.dims()[1])?;
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
        self.is_burns().then(|| generate_autoregressive_mask(batch, sequence, device))
    }

    /// Whether it is made of Burn's modules alone.
    fn is_burns(&self) -> bool {
        self.head.norm.is_burns()
    }

    fn head_stage(&self) -> HeadStage {
        let words = match &self.head.linear {
            Some(linear) => Words::Own(linear.clone()),
            None => Words::Tied(self.embedding.tokens.clone()),
        };
        HeadStage { norm: self.head.norm.clone(), words, burn: self.is_burns() }
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
        self.body(&tokens).stage("head", &self.head_stage(), HeadStage::logits).rule(rule).forward(tokens)
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

    fn name(&self) -> String {
        // A Llama has rotary positions, which are no parameters.
        if self.embedding.positions.is_some() { "gpt" } else { "llama" }.to_owned()
    }

    fn stages(&self, batch: &GptBatch) -> (Region<Tensor<2, Int>, Tensor<1>>, Tensor<2, Int>) {
        let body = self.body(&batch.tokens);
        let region = body.stage_with("head", &self.head_stage(), batch.targets.clone(), HeadStage::loss);
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
        let region = region.stage_with("head", &self.head_stage(), batch.targets.clone(), HeadStage::loss);
        (region, batch.tokens.clone())
    }

    fn shares(&self) -> Shares {
        GptBlock::shares(&self.blocks)
    }

    /// The blocks: heads of attention, and columns of the perceptrons. Embedding, norms and head stay whole on all.
    fn split(self, peers: &Arc<dyn Peers>) -> Result<Self, ConfigError> {
        Ok(Self { blocks: GptBlock::split(self.blocks, peers)?, ..self })
    }

    fn accuracy(&self, batch: &GptBatch) -> Result<f64, Error> {
        Ok(share_right(self.forward(batch.tokens.clone(), Rule::StoreAll)?, batch.targets.clone()))
    }
}
