//! A Vision Transformer: an image as a sequence of patches, each of which looks at all others.

use std::sync::Arc;

use burn::config::Config;
use burn::module::{Initializer, Module, Param};
use burn::nn::{LayerNormConfig, LinearConfig};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Bool, Device, Int, Tensor};
use rekindle::nn::{LinearCrossEntropy, check_targets};
use rekindle::peers::Peers;
use rekindle::training::Precision;
use rekindle::{Error, Region, Staged, Under, tail};

use crate::accuracy::share_right;
use crate::block::GptBlock;
use crate::layers::{Layers, Linear, Norm};
use crate::{ConfigError, GptConfig, ImageBatch, Shares, Trainable};

/// The size of a [`Vit`].
#[derive(Config, Debug)]
pub struct VitConfig {
    /// The pixels along a side of an image.
    pub side: usize,
    /// The pixels along a side of a patch. Half of it makes four times the tokens, as does twice the side.
    pub patch: usize,
    /// The width of the residual stream.
    pub width: usize,
    /// How many attention heads share it.
    pub heads: usize,
    /// How many blocks there are.
    pub layers: usize,
    /// How many classes to tell apart.
    pub classes: usize,
    /// The channels of the images.
    #[config(default = 3)]
    pub channels: usize,
    /// The fraction of activations that is dropped.
    #[config(default = 0.0)]
    pub dropout: f64,
    /// Whether it is made of Burn's modules alone: to compare with. They keep more, and take more time.
    #[config(default = false)]
    pub burn: bool,
    /// The type of the activations. Weights are `f32`.
    #[config(default = "Precision::F32")]
    pub precision: Precision,
}

impl VitConfig {
    /// ViT-Ti/16: 12 blocks of 192, for images of 224 pixels along a side.
    pub fn tiny_16(classes: usize) -> Self {
        Self::new(224, 16, 192, 3, 12, classes)
    }

    /// ViT-S/16: 12 blocks of 384, for images of 224 pixels along a side.
    pub fn small_16(classes: usize) -> Self {
        Self::new(224, 16, 384, 6, 12, classes)
    }

    /// ViT-B/16: 12 blocks of 768, for images of 224 pixels along a side.
    pub fn base_16(classes: usize) -> Self {
        Self::new(224, 16, 768, 12, 12, classes)
    }

    /// ViT-L/16: 24 blocks of 1,024, for images of 224 pixels along a side.
    pub fn large_16(classes: usize) -> Self {
        Self::new(224, 16, 1_024, 16, 24, classes)
    }

    /// ViT-H/14: 32 blocks of 1,280, for images of 224 pixels along a side.
    pub fn huge_14(classes: usize) -> Self {
        Self::new(224, 14, 1_280, 16, 32, classes)
    }

    /// The tokens of an image: one for each patch, and none for the class.
    pub fn tokens(&self) -> usize {
        let across = self.side.checked_div(self.patch).unwrap_or(0);
        across.saturating_mul(across)
    }

    /// A model of this size.
    ///
    /// # Errors
    /// When a size is 0, the patches do not divide the image or the heads the width, the dropout is not a probability below
    /// 1, or the precision is one that the device, or Burn's modules beside weights of `f32`, do not have.
    pub fn init(&self, device: &Device) -> Result<Vit, ConfigError> {
        let &Self { side, patch, width, heads, channels, dropout, burn, precision, .. } = self;
        let sizes = [
            ("side", side),
            ("patch", patch),
            ("width", width),
            ("layers", self.layers),
            ("classes", self.classes),
            ("channels", channels),
        ];
        if let Some((what, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(ConfigError::Empty { what });
        }
        if !side.is_multiple_of(patch) {
            return Err(ConfigError::Patch { side, patch });
        }
        precision.check(device)?;
        if burn && precision != Precision::F32 {
            return Err(ConfigError::BurnPrecision { precision });
        }
        // A block reads neither the words nor how many there are.
        let of_text = GptConfig::new(1, width, heads, self.layers, 1).with_dropout(dropout).with_burn(burn);
        let block = |_| GptBlock::looking_both_ways(&of_text, device);
        let layers = Layers { burn, device };
        Ok(Vit {
            patches: Patches {
                linear: layers.linear(&LinearConfig::new(channels * patch * patch, width)),
                positions: Initializer::Normal { mean: 0.0, std: 0.02 }
                    .init([1, self.tokens(), width], device),
                image: [channels, side, side],
                patch,
                precision,
            },
            blocks: (0..self.layers).map(block).collect::<Result<_, _>>()?,
            head: VitHead {
                norm: layers.norm(&LayerNormConfig::new(width)),
                linear: layers.linear(&LinearConfig::new(width, self.classes)),
            },
        })
    }
}

/// A transformer over the patches of an image.
///
/// What it says of an image is a linear layer's of the mean over all tokens, as in Beyer and others 2022: there is no token
/// for the class.
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use rekindle::Rule;
/// use rekindle_models::{ImageBatch, VitConfig};
///
/// let device = Device::flex().autodiff();
/// let model = VitConfig::new(8, 4, 16, 2, 3, 10).init(&device)?;
/// let images = Tensor::<4>::ones([2, 3, 8, 8], &device);
/// let batch = ImageBatch { images, classes: Tensor::<1, Int>::zeros([2], &device) };
/// let gradients = model.loss(&batch, Rule::EVERY_ONE)?.backward();
/// # let _ = gradients;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Module, Debug)]
pub struct Vit {
    patches: Patches,
    blocks: Vec<GptBlock>,
    head: VitHead,
}

/// Patches and their places as vectors.
#[derive(Module, Debug)]
struct Patches {
    linear: Linear,
    positions: Param<Tensor<3>>,
    /// The channels, height and width of an image.
    image: [usize; 3],
    patch: usize,
    /// What comes after has the type that this makes.
    #[module(skip)]
    precision: Precision,
}

impl Patches {
    /// A convolution whose steps are as long as its patches are wide is a linear layer of the patches.
    fn forward(&self, images: Tensor<4>) -> Result<Tensor<3>, Error> {
        let [count, channels, height, width] = images.dims();
        let found = [channels, height, width];
        if found != self.image {
            let with_count = |[channels, height, width]: [usize; 3]| vec![count, channels, height, width];
            let expected = with_count(self.image);
            return Err(Error::InputShape { what: "images", found: with_count(found), expected });
        }
        let (rows, columns, patch) = (height / self.patch, width / self.patch, self.patch);
        let patches = images
            .reshape([count, channels, rows, patch, columns, patch])
            .permute([0, 2, 4, 1, 3, 5])
            .reshape([count, rows * columns, channels * patch * patch]);
        Ok(tail(|| self.precision.cast(self.linear.forward(patches) + self.positions.val())))
    }
}

/// From vectors to classes.
#[derive(Module, Debug)]
struct VitHead {
    norm: Norm,
    linear: Linear,
}

impl VitHead {
    /// One vector for each image.
    fn pooled(&self, x: Tensor<3>) -> Tensor<2> {
        Precision::F32.cast(self.norm.forward(x)).mean_dim(1).squeeze_dim(1)
    }

    fn logits(&self, x: Tensor<3>) -> Tensor<2> {
        self.linear.forward(self.pooled(x))
    }

    /// The mean cross entropy of telling `classes`.
    fn loss(&self, x: Tensor<3>, classes: Tensor<1, Int>) -> Result<Tensor<1>, Error> {
        match &self.linear {
            Linear::Ours(layer) => {
                let (weight, bias) = (layer.weight.val(), layer.bias.as_ref().map(|bias| bias.val()));
                LinearCrossEntropy::new().forward(self.pooled(x), weight, bias, classes)
            }
            Linear::Burns(_) => {
                let logs = log_softmax(self.logits(x), 1);
                let [rows, known] = logs.dims();
                check_targets(&classes, rows, known)?;
                Ok(logs.gather(1, classes.unsqueeze_dim(1)).mean().neg())
            }
        }
    }
}

/// Every token looks at every other.
const NO_MASK: Option<Tensor<3, Bool>> = None;

impl Vit {
    /// The blocks.
    pub fn blocks(&self) -> &[GptBlock] {
        &self.blocks
    }

    fn behind_patches(&self) -> Region<Tensor<4>, Tensor<3>> {
        Region::new().stage("patches", &self.patches, Patches::forward)
    }

    fn with_head(
        &self,
        body: Region<Tensor<4>, Tensor<3>>,
        batch: &ImageBatch,
    ) -> Region<Tensor<4>, Tensor<1>> {
        body.stage_with("head", &self.head, batch.classes.clone(), VitHead::loss)
    }

    /// The mean loss of a batch, under a rule or a plan made for this model: one stage for the patches, one for each block,
    /// one for the head.
    ///
    /// # Errors
    /// When images are of another size than the model, a class is none of its classes, or the region cannot run.
    pub fn loss<'a>(&self, batch: &ImageBatch, under: impl Into<Under<'a>>) -> Result<Tensor<1>, Error> {
        let (region, images) = self.stages(batch);
        region.under(under).forward(images)
    }

    /// The logits of images, for evaluation.
    ///
    /// # Errors
    /// When images are of another size than the model.
    pub fn forward(&self, images: Tensor<4>) -> Result<Tensor<2>, Error> {
        let x = self.patches.forward(images)?;
        let x = self.blocks.iter().try_fold(x, |x, block| block.forward(x, NO_MASK))?;
        Ok(self.head.logits(x))
    }
}

impl Staged for Vit {
    type Batch = ImageBatch;
    type Input = Tensor<4>;
    type Output = Tensor<1>;

    fn stages(&self, batch: &ImageBatch) -> (Region<Tensor<4>, Tensor<1>>, Tensor<4>) {
        let region = self.behind_patches().stages_with("block", &self.blocks, NO_MASK, GptBlock::forward);
        (self.with_head(region, batch), batch.images.clone())
    }
}

impl Trainable for Vit {
    /// The six parts of each block. Burn's dropout, in a model of Burn's modules, starts anew in each of them and drops
    /// other elements.
    fn fine_stages(&self, batch: &ImageBatch) -> (Region<Tensor<4>, Tensor<1>>, Tensor<4>) {
        let blocks = self.blocks.iter().enumerate();
        let region = blocks.fold(self.behind_patches(), |region, (index, block)| {
            block.stages(region, &format!("block.{index}"), NO_MASK)
        });
        (self.with_head(region, batch), batch.images.clone())
    }

    fn shares(&self) -> Shares {
        GptBlock::shares(&self.blocks)
    }

    /// The blocks: heads of attention, and columns of the perceptrons. Patches, norms and head stay whole on all.
    fn split(self, peers: &Arc<dyn Peers>) -> Result<Self, ConfigError> {
        Ok(Self { blocks: GptBlock::split(self.blocks, peers)?, ..self })
    }

    fn accuracy(&self, batch: &ImageBatch) -> Result<f64, Error> {
        Ok(share_right(self.forward(batch.images.clone())?, batch.classes.clone()))
    }
}
