//! Two towers that learn which text belongs to an image, from batches of which every pair is held against every other.

mod contrast;
mod pairs;
mod towers;

use burn::config::Config;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Int, Tensor};
use rekindle::training::{Accumulated, Accumulation};
use rekindle::{Error, Region, Staged, Under};

pub use pairs::{PairBatch, PairGradient};

use crate::accuracy::share_right;
use crate::block::GptBlock;
use crate::layers::Layers;
use crate::{Batch, ConfigError, Coupled, GptConfig, Trainable};
use contrast::{Contrast, Embedded};
use towers::{Head, Patches, Tokens};

/// The size of a [`TwoTower`].
#[derive(Config, Debug)]
pub struct TwoTowerConfig {
    /// The pixels along a side of an image.
    pub pixels: usize,
    /// The pixels along a side of a patch.
    pub patch: usize,
    /// How many different tokens texts are made of.
    pub vocabulary: usize,
    /// The longest text.
    pub sequence: usize,
    /// The width of each tower's residual stream.
    pub width: usize,
    /// How many attention heads share it.
    pub heads: usize,
    /// How many blocks each tower has.
    pub layers: usize,
    /// The channels of the images.
    #[config(default = 3)]
    pub channels: usize,
    /// The width of what images and texts are compared by.
    #[config(default = 64)]
    pub embedding: usize,
    /// What similarities are divided by at first; it is learned.
    #[config(default = 0.07)]
    pub temperature: f64,
}

impl TwoTowerConfig {
    /// A model of this size.
    ///
    /// # Errors
    /// When a size is 0, the patches do not divide the image, the heads do not divide the width, or the temperature is not a
    /// number above 0.
    pub fn init(&self, device: &Device) -> Result<TwoTower, ConfigError> {
        let sizes = [
            ("pixels", self.pixels),
            ("patch", self.patch),
            ("vocabulary", self.vocabulary),
            ("sequence", self.sequence),
            ("width", self.width),
            ("layers", self.layers),
            ("channels", self.channels),
            ("embedding", self.embedding),
        ];
        if let Some((what, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(ConfigError::Empty { what });
        }
        if !self.pixels.is_multiple_of(self.patch) {
            return Err(ConfigError::Patch { side: self.pixels, patch: self.patch });
        }
        if !(self.temperature.is_finite() && self.temperature > 0.0) {
            return Err(ConfigError::Temperature { found: self.temperature });
        }
        let layers = Layers { burn: false, device };
        // Nothing is dropped: a part of a batch runs twice, and must make the same both times.
        let config = GptConfig::new(self.vocabulary, self.width, self.heads, self.layers, self.sequence);
        let config = config.with_dropout(0.0);
        let blocks = || {
            let block = |_| GptBlock::looking_both_ways(&config, device);
            (0..self.layers).map(block).collect::<Result<Vec<_>, _>>()
        };
        Ok(TwoTower {
            patches: Patches::new(self, &layers),
            image_blocks: blocks()?,
            image_head: Head::new(self, &layers),
            tokens: Tokens::new(self, &layers),
            text_blocks: blocks()?,
            text_head: Head::new(self, &layers),
            contrast: Contrast::new(self.temperature, device),
        })
    }
}

/// A tower for images and one for texts, each of which ends in a vector of length 1.
///
/// The loss of a batch is not the mean of its parts' losses: it compares every image with every text. Still a large batch runs
/// in parts with the exact gradient of the whole, in the memory of one part and the embeddings of all:
///
/// ```
/// use burn::optim::AdamConfig;
/// use burn::tensor::Device;
/// use rekindle::Rule;
/// use rekindle_models::TwoTowerConfig;
/// use rekindle_models::data::{Captions, Source};
///
/// let device = Device::flex().autodiff();
/// let captions = Captions::default();
/// let config = TwoTowerConfig::new(captions.pixels(), 4, Captions::VOCABULARY, Captions::TOKENS, 16, 2, 1);
/// let mut model = config.init(&device)?;
/// let mut optimizer = AdamConfig::new().init();
/// let batch = captions.draw(10, &mut fastrand::Rng::with_seed(1), &device);
/// let step = model.step(&batch, 4, Rule::EVERY_ONE)?;
/// assert!(step.loss.into_scalar::<f32>().is_finite());
/// model = optimizer.step(1e-3, model, step.gradients);
/// # let _ = model;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Module, Debug)]
pub struct TwoTower {
    patches: Patches,
    image_blocks: Vec<GptBlock>,
    image_head: Head,
    tokens: Tokens,
    text_blocks: Vec<GptBlock>,
    text_head: Head,
    contrast: Contrast,
}

impl TwoTower {
    /// Vectors of length 1, one for each image.
    ///
    /// # Errors
    /// When there are no images, or they have another size than the model's.
    pub fn embed_images(&self, images: Tensor<4>) -> Result<Tensor<2>, Error> {
        let x = self.patches.forward(images)?;
        let x = self.image_blocks.iter().try_fold(x, |x, block| block.forward(x, None))?;
        Ok(self.image_head.forward(x))
    }

    /// Vectors of length 1, one for each text.
    ///
    /// # Errors
    /// When there are no texts, they are too long, or a token is none of the vocabulary.
    pub fn embed_texts(&self, texts: Tensor<2, Int>) -> Result<Tensor<2>, Error> {
        let x = self.tokens.forward(texts)?;
        let x = self.text_blocks.iter().try_fold(x, |x, block| block.forward(x, None))?;
        Ok(self.text_head.forward(x))
    }

    /// What similarities are divided by now. On a model after [`Module::valid`], or any other.
    pub fn temperature(&self) -> f64 {
        f64::from(self.contrast.log_scale.val().neg().exp().into_scalar::<f32>())
    }

    fn embed(&self, batch: &PairBatch) -> Result<Embedded, Error> {
        self.check(batch)?;
        let images = self.embed_images(batch.images.clone())?;
        Ok(Embedded { images, texts: self.embed_texts(batch.texts.clone())? })
    }

    /// What can be refused before anything runs.
    fn check(&self, batch: &PairBatch) -> Result<(), Error> {
        self.patches.check(&batch.images)?;
        self.tokens.check(&batch.texts, batch.examples())
    }

    /// The mean loss of a batch at once, under a rule or a plan made for this model.
    ///
    /// # Errors
    /// When the batch does not fit the model, or the region cannot run.
    pub fn loss<'a>(&self, batch: &PairBatch, under: impl Into<Under<'a>>) -> Result<Tensor<1>, Error> {
        let (region, images) = self.stages(batch);
        region.under(under).forward(images)
    }

    /// The loss of a batch and its gradients, in parts of at most `chunk` pairs, each under a rule or a plan made for a part.
    ///
    /// The gradients are those of the batch at once, but for rounding; for the same chunk their bits are the same under all
    /// rules and plans. Parts are as equal as they can be: a plan is for parts of one size, so it goes with a chunk that
    /// divides the batch.
    ///
    /// # Errors
    /// When the chunk is 0, the batch does not fit the model, or a region cannot run.
    pub fn step<'a>(
        &self,
        batch: &PairBatch,
        chunk: usize,
        under: impl Into<Under<'a>>,
    ) -> Result<Accumulated, Error> {
        self.step_in(self, batch, chunk, under)
    }

    /// As [`step`](Self::step), with the model cut in another way: `model.step_in(&model.fine(), ...)`.
    ///
    /// # Errors
    /// As those of `step`.
    pub fn step_in<'a>(
        &self,
        cut: &impl Staged<Batch = PairBatch, Output = Tensor<1>>,
        batch: &PairBatch,
        chunk: usize,
        under: impl Into<Under<'a>>,
    ) -> Result<Accumulated, Error> {
        self.check(batch)?;
        let (pairs, under) = (batch.examples(), under.into());
        if chunk == 0 {
            return Err(Error::LossChunk { found: chunk, rows: pairs });
        }
        let parts = batch.split(pairs.div_ceil(chunk));
        let (parts, whole) = match self.couple(&parts)? {
            Some(Coupled { parts, loss }) => (parts, Some(loss)),
            None => (parts, None),
        };
        let mut sum = Accumulation::new();
        for part in parts {
            let (region, images) = cut.stages(&part);
            sum.add(self, region.under(under).forward(images)?, 1.0)?;
        }
        let mut step = sum.finish()?;
        if let Some(whole) = whole {
            step.loss = whole;
        }
        Ok(step)
    }

    /// The loss as a stage. What a part knows is there in any case, so that a plan for a batch of its own is one for a part
    /// of the same size.
    fn with_loss(
        &self,
        region: Region<Tensor<4>, Embedded>,
        batch: &PairBatch,
    ) -> Region<Tensor<4>, Tensor<1>> {
        let nothing = || {
            let sizes = [batch.examples(), self.image_head.embedding];
            PairGradient::nothing(sizes, &batch.images.device())
        };
        let known = (batch.known.is_some(), batch.known.clone().unwrap_or_else(nothing));
        region.stage_with("loss", &self.contrast, known, Contrast::loss)
    }

    /// From the images' embeddings to the beginning of the other tower, beside which they wait.
    fn with_tokens(
        &self,
        region: Region<Tensor<4>, Tensor<3>>,
        batch: &PairBatch,
    ) -> Region<Tensor<4>, (Tensor<2>, Tensor<3>)> {
        region.stage("image.head", &self.image_head, Head::forward).stage_with(
            "text.tokens",
            &self.tokens,
            batch.texts.clone(),
            |tokens: &Tokens, images: Tensor<2>, texts: Tensor<2, Int>| {
                tokens.check(&texts, images.dims()[0])?;
                Ok::<_, Error>((images, tokens.forward(texts)?))
            },
        )
    }

    fn with_text_head(
        &self,
        region: Region<Tensor<4>, (Tensor<2>, Tensor<3>)>,
    ) -> Region<Tensor<4>, Embedded> {
        region.stage("text.head", &self.text_head, |head: &Head, (images, x): (Tensor<2>, Tensor<3>)| {
            Embedded { images, texts: head.forward(x) }
        })
    }
}

/// The image tower, the text tower with the images' embeddings beside it, and the loss.
impl Staged for TwoTower {
    type Batch = PairBatch;
    type Input = Tensor<4>;
    type Output = Tensor<1>;

    fn name(&self) -> String {
        "two-tower".to_owned()
    }

    fn stages(&self, batch: &PairBatch) -> (Region<Tensor<4>, Tensor<1>>, Tensor<4>) {
        let region = Region::new().stage("image.patches", &self.patches, Patches::forward).stages(
            "image.block",
            &self.image_blocks,
            |block: &GptBlock, x: Tensor<3>| block.forward(x, None),
        );
        let region = self.with_tokens(region, batch);
        let region = region.stages("text.block", &self.text_blocks, GptBlock::forward_beside::<Tensor<2>>);
        (self.with_loss(self.with_text_head(region), batch), batch.images.clone())
    }
}

impl Trainable for TwoTower {
    /// The parts of the blocks.
    fn fine_stages(&self, batch: &PairBatch) -> (Region<Tensor<4>, Tensor<1>>, Tensor<4>) {
        let mut region = Region::new().stage("image.patches", &self.patches, Patches::forward);
        for (index, block) in self.image_blocks.iter().enumerate() {
            region = block.stages(region, &format!("image.block.{index}"), None);
        }
        let mut region = self.with_tokens(region, batch);
        for (index, block) in self.text_blocks.iter().enumerate() {
            region = block.stages_beside(region, &format!("text.block.{index}"));
        }
        (self.with_loss(self.with_text_head(region), batch), batch.images.clone())
    }

    /// The share of images whose most similar text, of those in the batch, is their own.
    fn accuracy(&self, batch: &PairBatch) -> Result<f64, Error> {
        let Embedded { images, texts } = self.embed(batch)?;
        let own = Tensor::<1, Int>::arange(0..batch.examples() as i64, &images.device());
        Ok(share_right(images.matmul(texts.transpose()), own))
    }

    /// Every part learns the gradient of the whole loss towards its embeddings: Gao and others 2021 call it a gradient cache.
    fn couple(&self, parts: &[PairBatch]) -> Result<Option<Coupled<PairBatch>>, Error> {
        if parts.len() < 2 {
            return Ok(None);
        }
        // A parameter that has no values yet shares its settings with its clones: it would be frozen with them.
        self.visit(&mut Initialise);
        // With autodiff but nothing to train: no tape, and the kernels of the second pass.
        let free = self.clone().no_grad();
        let (mut images, mut texts) = (Vec::new(), Vec::new());
        for part in parts {
            let embedded = free.embed(part)?;
            images.push(embedded.images);
            texts.push(embedded.texts);
            rekindle::sweep();
        }
        let all = Embedded { images: Tensor::cat(images, 0), texts: Tensor::cat(texts, 0) };
        let (loss, known) = self.contrast.look_back(all)?;
        let mut start = 0;
        let part = |part: &PairBatch| {
            let end = start + part.examples();
            let known = known.slice(std::mem::replace(&mut start, end)..end);
            PairBatch { known: Some(known), ..part.clone() }
        };
        Ok(Some(Coupled { parts: parts.iter().map(part).collect(), loss }))
    }
}

/// Gives every parameter its values.
struct Initialise;

impl ModuleVisitor for Initialise {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let _ = param.val();
    }
}
