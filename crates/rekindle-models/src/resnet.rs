//! Residual networks of bottlenecks, up to a thousand layers.

use burn::config::Config;
use burn::module::Module;
use burn::nn::conv::Conv2d;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::MaxPool2dConfig;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::{Device, Int, Tensor};
use rekindle::nn::{LinearCrossEntropy, add, check_targets};
use rekindle::{Boundary, Error, Region, Staged, Under, tail};

use crate::accuracy::share_right;
use crate::layers::{activated, convolution, convolved};
use crate::{ConfigError, ImageBatch, Trainable};

/// What images meet first.
#[derive(Config, Copy, Debug, PartialEq, Eq)]
pub enum Stem {
    /// A convolution of 3 by 3, for images of a few dozen pixels along a side.
    Small,
    /// A convolution of 7 by 7 that halves the pixels along a side, and the largest of 3 by 3, which halves them once more:
    /// for images of 224.
    Large,
}

/// The size of a [`ResNet`].
#[derive(Config, Debug)]
pub struct ResNetConfig {
    /// How many bottlenecks at each resolution; each after the first halves the pixels along a side.
    pub bottlenecks: Vec<usize>,
    /// How many classes to tell apart.
    pub classes: usize,
    /// The channels of the images.
    #[config(default = 3)]
    pub channels: usize,
    /// The channels of the stem, and inside of the first bottlenecks.
    #[config(default = 16)]
    pub width: usize,
    /// What images meet first.
    #[config(default = "Stem::Small")]
    pub stem: Stem,
    /// Burn's convolutions, batch norms and rectifiers instead of ours, to compare with: they take more time, and nothing
    /// can be left out at the end of a bottleneck.
    #[config(default = false)]
    pub burn: bool,
}

impl ResNetConfig {
    /// The network of 1,001 layers of He and others 2016, with which Chen and others 2016 showed what checkpoints save.
    pub fn layers_1001(classes: usize) -> Self {
        Self::new(vec![111, 111, 111], classes)
    }

    /// 50 layers for images of 224 pixels along a side, in 25.5 million parameters at 1,000 classes; norms stand before
    /// convolutions, as in He and others 2016.
    pub fn layers_50(classes: usize) -> Self {
        Self::new(vec![3, 4, 6, 3], classes).with_width(64).with_stem(Stem::Large)
    }

    /// As [`layers_50`](Self::layers_50), of 101 layers.
    pub fn layers_101(classes: usize) -> Self {
        Self { bottlenecks: vec![3, 4, 23, 3], ..Self::layers_50(classes) }
    }

    /// As [`layers_50`](Self::layers_50), of 152 layers.
    pub fn layers_152(classes: usize) -> Self {
        Self { bottlenecks: vec![3, 8, 36, 3], ..Self::layers_50(classes) }
    }

    /// The layers with weights along the longest way.
    pub fn depth(&self) -> usize {
        3 * self.bottlenecks.iter().sum::<usize>() + 2
    }

    /// A network of this size.
    ///
    /// # Errors
    /// When there is no bottleneck, or a size is 0.
    pub fn init(&self, device: &Device) -> Result<ResNet, ConfigError> {
        let sizes = [
            ("classes", self.classes),
            ("channels", self.channels),
            ("width", self.width),
            ("bottlenecks", self.bottlenecks.iter().sum()),
        ];
        if let Some((what, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(ConfigError::Empty { what });
        }
        let mut blocks = Vec::new();
        let mut from = self.width;
        for (level, count) in self.bottlenecks.iter().enumerate() {
            let inner = self.width << level;
            for index in 0..*count {
                let stride = if level > 0 && index == 0 { 2 } else { 1 };
                blocks.push(Bottleneck::new([from, inner], stride, self.burn, device));
                from = 4 * inner;
            }
        }
        let (kernel, stride) = if self.stem == Stem::Large { (7, 2) } else { (3, 1) };
        Ok(ResNet {
            stem: convolution(self.channels, self.width, kernel, stride, device),
            pooled: self.stem == Stem::Large,
            blocks,
            head: ResNetHead {
                norm: BatchNormConfig::new(from).init(device),
                linear: LinearConfig::new(from, self.classes).init(device),
                burn: self.burn,
            },
            burn: self.burn,
        })
    }
}

/// A stem, bottlenecks that normalise before they convolve, and a linear head over the mean of all pixels.
#[derive(Module, Debug)]
pub struct ResNet {
    stem: Conv2d,
    /// Whether the stem ends in the largest of 3 by 3.
    pooled: bool,
    blocks: Vec<Bottleneck>,
    head: ResNetHead,
    burn: bool,
}

/// Three convolutions around a residual, the first of which makes the channels fewer and the last many again.
#[derive(Module, Debug)]
pub struct Bottleneck {
    reduce: Normed,
    middle: Normed,
    expand: Normed,
    shortcut: Option<Conv2d>,
}

/// Batch norm, a rectifier, a convolution.
#[derive(Module, Debug)]
struct Normed {
    norm: BatchNorm,
    convolution: Conv2d,
    burn: bool,
}

impl Normed {
    fn activated(&self, x: Tensor<4>) -> Tensor<4> {
        activated(&self.norm, x, self.burn)
    }

    fn convolved(&self, activated: Tensor<4>) -> Tensor<4> {
        convolved(&self.convolution, activated, self.burn)
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.convolved(self.activated(x))
    }
}

/// What goes around a bottleneck, and what goes through it.
#[derive(Boundary)]
struct Split {
    around: Tensor<4>,
    through: Tensor<4>,
}

/// The first third of a bottleneck.
#[derive(Module, Debug)]
struct Reduce {
    reduce: Normed,
    shortcut: bool,
}

impl Reduce {
    /// What goes around, and what the convolution reads. Where channels or pixels change, the shortcut reads that, too: then it goes around
    /// as well. What comes out of the shortcut would be kept for nobody, as the backward of a sum asks for neither of its parts.
    fn activated(&self, x: Tensor<4>) -> Split {
        let through = self.reduce.activated(x.clone());
        Split { around: if self.shortcut { through.clone() } else { x }, through }
    }

    fn forward(&self, x: Tensor<4>) -> Split {
        let Split { around, through } = self.activated(x);
        Split { around, through: tail(|| self.reduce.convolved(through)) }
    }
}

/// The last third.
#[derive(Module, Debug)]
struct Expand {
    expand: Normed,
    shortcut: Option<Conv2d>,
}

impl Expand {
    /// Neither the sum nor the convolutions need what they make.
    fn forward(&self, Split { around, through }: Split) -> Tensor<4> {
        let activated = self.expand.activated(through);
        let burn = self.expand.burn;
        tail(|| {
            let around = match &self.shortcut {
                Some(shortcut) => convolved(shortcut, around, burn),
                None => around,
            };
            let through = self.expand.convolved(activated);
            if burn { around + through } else { add(around, through) }
        })
    }
}

impl Bottleneck {
    fn new([from, inner]: [usize; 2], stride: usize, burn: bool, device: &Device) -> Self {
        let to = 4 * inner;
        let normed = |from, to, size, stride| Normed {
            norm: BatchNormConfig::new(from).init(device),
            convolution: convolution(from, to, size, stride, device),
            burn,
        };
        Self {
            reduce: normed(from, inner, 1, 1),
            middle: normed(inner, inner, 3, stride),
            expand: normed(inner, to, 1, 1),
            shortcut: (from != to || stride != 1).then(|| convolution(from, to, 1, stride, device)),
        }
    }

    /// The whole bottleneck.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let (first, last) = self.ends();
        let Split { around, through } = first.activated(x);
        last.forward(Split { around, through: self.middle.forward(first.reduce.convolved(through)) })
    }

    fn ends(&self) -> (Reduce, Expand) {
        let Self { reduce, expand, shortcut, .. } = self.clone();
        (Reduce { reduce, shortcut: shortcut.is_some() }, Expand { expand, shortcut })
    }

    /// Adds the bottleneck to a region as three stages. A convolution at the end of one is left out where it runs again.
    fn stages<I: Boundary>(&self, region: Region<I, Tensor<4>>, name: &str) -> Region<I, Tensor<4>> {
        let (first, last) = self.ends();
        region
            .stage(format!("{name}.reduce"), &first, Reduce::forward)
            .stage(
                format!("{name}.middle"),
                &self.middle,
                |middle: &Normed, Split { around, through }: Split| {
                    let activated = middle.activated(through);
                    Split { around, through: tail(|| middle.convolved(activated)) }
                },
            )
            .stage(format!("{name}.expand"), &last, Expand::forward)
    }
}

/// The last norm, the mean of all pixels, and the classes.
#[derive(Module, Debug)]
pub struct ResNetHead {
    norm: BatchNorm,
    linear: Linear,
    burn: bool,
}

impl ResNetHead {
    /// The logits of each image.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        self.linear.forward(self.pooled(x))
    }

    fn loss(&self, x: Tensor<4>, classes: Tensor<1, Int>) -> Result<Tensor<1>, Error> {
        let pooled = self.pooled(x);
        if self.burn {
            let logits = self.linear.forward(pooled);
            let [rows, known] = logits.dims();
            check_targets(&classes, rows, known)?;
            return Ok(CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, classes));
        }
        let Linear { weight, bias, .. } = &self.linear;
        let bias = bias.as_ref().map(|bias| bias.val());
        LinearCrossEntropy::new().forward(pooled, weight.val(), bias, classes)
    }

    /// The mean of all pixels of an image.
    fn pooled(&self, x: Tensor<4>) -> Tensor<2> {
        activated(&self.norm, x, self.burn).flatten::<3>(2, 3).mean_dim(2).squeeze_dim::<2>(2)
    }
}

impl Staged for ResNet {
    type Batch = ImageBatch;
    type Input = Tensor<4>;
    type Output = Tensor<1>;

    fn name(&self) -> String {
        "resnet".to_owned()
    }

    fn stages(&self, batch: &ImageBatch) -> (Region<Tensor<4>, Tensor<1>>, Tensor<4>) {
        let region = self.behind_stem().stages("block", &self.blocks, Bottleneck::forward);
        (self.with_head(region, batch), batch.images.clone())
    }
}

impl Trainable for ResNet {
    /// Stages of single convolutions.
    fn fine_stages(&self, batch: &ImageBatch) -> (Region<Tensor<4>, Tensor<1>>, Tensor<4>) {
        let blocks = self.blocks.iter().enumerate();
        let region = blocks.fold(self.behind_stem(), |region, (index, block)| {
            block.stages(region, &format!("block.{index}"))
        });
        (self.with_head(region, batch), batch.images.clone())
    }

    fn accuracy(&self, batch: &ImageBatch) -> Result<f64, Error> {
        Ok(share_right(self.forward(batch.images.clone())?, batch.classes.clone()))
    }
}

impl ResNet {
    /// The bottlenecks.
    pub fn blocks(&self) -> &[Bottleneck] {
        &self.blocks
    }

    fn behind_stem(&self) -> Region<Tensor<4>, Tensor<4>> {
        let Self { burn, pooled, .. } = *self;
        Region::new().stage("stem", &self.stem, move |stem: &Conv2d, x: Tensor<4>| {
            check_channels(stem, &x)?;
            // What the pool is made of must be there for its backward.
            Ok(match pooled {
                true => halved(convolved(stem, x, burn)),
                false => tail(|| convolved(stem, x, burn)),
            })
        })
    }

    fn with_head(
        &self,
        region: Region<Tensor<4>, Tensor<4>>,
        batch: &ImageBatch,
    ) -> Region<Tensor<4>, Tensor<1>> {
        region.stage_with("head", &self.head, batch.classes.clone(), ResNetHead::loss)
    }

    /// The mean loss of a batch: one stage for the stem, one for each bottleneck, one for the head.
    ///
    /// # Errors
    /// When images have other channels than the network, a class is none of its classes, or the region cannot run.
    pub fn loss<'a>(&self, batch: &ImageBatch, under: impl Into<Under<'a>>) -> Result<Tensor<1>, Error> {
        let (region, images) = self.stages(batch);
        region.under(under).forward(images)
    }

    /// The logits of images, for evaluation.
    ///
    /// # Errors
    /// When images have other channels than the network was made for.
    pub fn forward(&self, images: Tensor<4>) -> Result<Tensor<2>, Error> {
        check_channels(&self.stem, &images)?;
        let stem = convolved(&self.stem, images, self.burn);
        let stem = if self.pooled { halved(stem) } else { stem };
        Ok(self.head.forward(self.blocks.iter().fold(stem, |x, block| block.forward(x))))
    }
}

/// The largest of 3 by 3 pixels, for every second one along each side.
fn halved(x: Tensor<4>) -> Tensor<4> {
    let one = PaddingConfig2d::Explicit(1, 1, 1, 1);
    MaxPool2dConfig::new([3, 3]).with_strides([2, 2]).with_padding(one).init().forward(x)
}

/// Refuses images of other channels than the stem reads. Any size along a side will do.
fn check_channels(stem: &Conv2d, images: &Tensor<4>) -> Result<(), Error> {
    let ([count, found, height, width], [_, channels, ..]) = (images.dims(), stem.weight.dims());
    match found == channels {
        true => Ok(()),
        false => Err(Error::InputShape {
            what: "images",
            found: images.dims().to_vec(),
            expected: vec![count, channels, height, width],
        }),
    }
}
