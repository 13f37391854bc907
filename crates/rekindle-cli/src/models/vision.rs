//! Models of images.

use std::path::Path;

use burn::tensor::{Device, Int, IntDType, Tensor};
use rekindle_models::data::{FolderError, FolderReader, ImageFolder, OnBroken, Shapes, Skipped, Source};
use rekindle_models::{ImageBatch, ResNet, ResNetConfig, Vit, VitConfig};

use super::{DataArguments, Kind};
use crate::data::Data;
use crate::failure::Failure;
use crate::report::counted;
use crate::size::Size;

/// Images of the user's, or made-up ones.
pub(crate) enum Images {
    Folder(ImageFolder),
    Shapes(Shapes),
}

impl Source for Images {
    type Batch = ImageBatch;

    fn draw(&self, examples: usize, random: &mut fastrand::Rng, device: &Device) -> ImageBatch {
        match self {
            Self::Folder(folder) => folder.draw(examples, random, device),
            Self::Shapes(shapes) => shapes.draw(examples, random, device),
        }
    }
}

/// What there is to see.
struct Seen {
    data: Data<Images>,
    classes: usize,
    /// Pixels along a side.
    side: usize,
}

impl Seen {
    fn look(size: &Size, given: &DataArguments) -> Result<Self, Failure> {
        let Some(path) = &given.data else {
            let shapes =
                Shapes::new(size.pixels).map_err(|error| Failure::request(error, "give fewer --pixels"))?;
            let classes = shapes.names().len();
            let data = Data::new(
                Images::Shapes(shapes.clone()),
                Some(Images::Shapes(shapes)),
                format!("shapes of {} pixels", size.pixels),
            );
            return Ok(Self { data, classes, side: size.pixels });
        };
        let folder = reader(size, given).read(path).map_err(refused)?;
        let side = side(path, folder.image(), folder.skipped())?;
        let classes = folder.names().len();
        let checksum = folder.checksum();
        let (training, held_out) = folder.split(0.1).map_err(refused)?;
        let data = Data::new(Images::Folder(training), Some(Images::Folder(held_out)), checksum);
        Ok(Self { data, classes, side })
    }
}

/// How a folder is asked to be read.
pub(super) fn reader(size: &Size, given: &DataArguments) -> FolderReader {
    let reader = FolderReader::new().on_broken(match given.skip_broken {
        true => OnBroken::Skip,
        false => OnBroken::Refuse,
    });
    match size.asked_pixels {
        Some(side) => reader.resize(side),
        None => reader,
    }
}

/// The pixels along a side of a folder's images, after a word on what is not among them.
pub(super) fn side(
    path: &Path,
    [_, height, width]: [usize; 3],
    skipped: &[Skipped],
) -> Result<usize, Failure> {
    for Skipped { path, reason } in skipped {
        tell!("left out {}: {reason}", path.display());
    }
    match height == width {
        true => Ok(height),
        false => Err(Failure::request(
            anyhow::anyhow!(
                "the images of `{}` are {width} by {height} pixels, expected squares",
                path.display()
            ),
            "give --pixels to have them resized",
        )),
    }
}

pub(super) fn refused(error: FolderError) -> Failure {
    let hint = match &error {
        FolderError::Broken { .. } => "mend or remove the file, or give --skip-broken",
        FolderError::Sizes { .. } => {
            "give --pixels to have all of them resized, or --skip-broken to leave out those of another size than most"
        }
        FolderError::BinaryText { .. } => "give a text file, such as one in UTF-8",
        FolderError::Resize { .. } => "give fewer --pixels",
        FolderError::FewPairs { .. } | FolderError::NoText { .. } => {
            "give a folder of png or jpeg images, with a text beside each: cat.png and cat.txt"
        }
        FolderError::TextLength { .. } => "shorten the text, or give a larger --sequence",
        _ => "give a folder with a sub-folder of png or jpeg images for each class",
    };
    Failure::request(error, hint)
}

/// Refuses patches that do not divide an image.
pub(super) fn check_patch(size: &Size, side: usize) -> Result<(), Failure> {
    match side.is_multiple_of(size.patch) {
        true => Ok(()),
        false => Err(Failure::request(
            anyhow::anyhow!("--patch is {}, which does not divide {side} pixels", size.patch),
            "choose a patch that divides the image, or other --pixels",
        )),
    }
}

/// What no step of images can do without: weights four times, and the pixels.
fn least_bytes(weights: u128, examples: usize, side: usize) -> u128 {
    16 * weights + 12 * (examples as u128) * (side as u128) * (side as u128)
}

fn blank(examples: usize, side: usize, device: &Device) -> ImageBatch {
    let classes = Tensor::<1, Int>::zeros([examples], device).cast(IntDType::I64);
    ImageBatch { images: Tensor::zeros([examples, 3, side, side], device), classes }
}

/// A Vision Transformer.
pub(crate) struct Patched {
    config: VitConfig,
    examples: usize,
    data: Data<Images>,
}

impl Patched {
    pub(crate) fn of(size: &Size, given: &DataArguments) -> Result<Self, Failure> {
        size.check_heads()?;
        let Seen { data, classes, side } = Seen::look(size, given)?;
        check_patch(size, side)?;
        let config = VitConfig::new(side, size.patch, size.width, size.heads, size.layers, classes)
            .with_dropout(size.dropout)
            .with_burn(size.burn)
            .with_precision(size.precision);
        Ok(Self { config, examples: size.batch / size.micro_batches.max(1), data })
    }
}

impl Kind for Patched {
    type Model = Vit;
    type Source = Images;
    const UNIT: &'static str = "image";
    const UNITS: &'static str = "images";

    fn build(&self, device: &Device) -> Result<Vit, Failure> {
        Ok(self.config.init(device)?)
    }

    fn of_burns_modules(&self) -> Option<Self> {
        let config = self.config.clone().with_burn(true).with_precision(rekindle::training::Precision::F32);
        Some(Self { config, examples: self.examples, data: self.data.clone() })
    }

    fn blank(&self, examples: usize, device: &Device) -> ImageBatch {
        blank(examples, self.config.side, device)
    }

    fn data(&self) -> Data<Images> {
        self.data.clone()
    }

    fn units(&self) -> usize {
        1
    }

    /// The patches, the blocks, and the head with the loss.
    fn stages(&self) -> usize {
        self.config.layers.saturating_add(2)
    }

    fn least_bytes(&self) -> u128 {
        let (layers, width) = (self.config.layers as u128, self.config.width as u128);
        least_bytes(layers * 12 * width * width, self.examples, self.config.side)
    }

    fn describe(&self) -> String {
        let config = &self.config;
        format!(
            "vit, {}, width {}, {}, {} by {} pixels in {} patches",
            counted(config.layers, "block"),
            config.width,
            counted(config.heads, "head"),
            config.side,
            config.side,
            config.tokens()
        )
    }
}

/// A residual network of bottlenecks at three resolutions.
pub(crate) struct Residual {
    config: ResNetConfig,
    side: usize,
    examples: usize,
    data: Data<Images>,
}

impl Residual {
    pub(crate) fn of(size: &Size, given: &DataArguments) -> Result<Self, Failure> {
        // Three layers in each of as many bottlenecks at three resolutions, the stem and the head.
        let bottlenecks = size.layers.saturating_sub(2) / 9;
        if bottlenecks == 0 || 9 * bottlenecks + 2 != size.layers {
            let near = 9 * bottlenecks.max(1) + 2;
            return Err(Failure::request(
                anyhow::anyhow!("--layers is {}, expected 9 N + 2 for a resnet, such as {near}", size.layers),
                format!("give {near} or {}", near + 9),
            ));
        }
        let Seen { data, classes, side } = Seen::look(size, given)?;
        let config =
            ResNetConfig::new(vec![bottlenecks; 3], classes).with_width(size.width).with_burn(size.burn);
        Ok(Self { config, side, examples: size.batch / size.micro_batches.max(1), data })
    }
}

impl Kind for Residual {
    type Model = ResNet;
    type Source = Images;
    const UNIT: &'static str = "image";
    const UNITS: &'static str = "images";

    fn build(&self, device: &Device) -> Result<ResNet, Failure> {
        Ok(self.config.init(device)?)
    }

    fn of_burns_modules(&self) -> Option<Self> {
        let config = self.config.clone().with_burn(true);
        Some(Self { config, data: self.data.clone(), ..*self })
    }

    fn blank(&self, examples: usize, device: &Device) -> ImageBatch {
        blank(examples, self.side, device)
    }

    fn data(&self) -> Data<Images> {
        self.data.clone()
    }

    fn units(&self) -> usize {
        1
    }

    /// The stem, the bottlenecks, and the head with the loss.
    fn stages(&self) -> usize {
        self.config.bottlenecks.iter().sum::<usize>().saturating_add(2)
    }

    fn least_bytes(&self) -> u128 {
        // Bottlenecks of the last resolution have the most: 4 by 1, 9 and 4 times their inner width.
        let (blocks, inner) = (self.config.bottlenecks[2] as u128, 4 * self.config.width as u128);
        least_bytes(blocks * 17 * inner * inner, self.examples, self.side)
    }

    fn describe(&self) -> String {
        format!(
            "resnet, {} layers, width {}, {} by {} pixels",
            self.config.depth(),
            self.config.width,
            self.side,
            self.side
        )
    }
}
