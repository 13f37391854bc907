//! Images and their texts.

use burn::tensor::{Device, Int, IntDType, Tensor};
use rekindle_models::data::{Captions, PairFolder, Source};
use rekindle_models::{PairBatch, TwoTower, TwoTowerConfig};

use super::{DataArguments, Kind, vision};
use crate::data::Data;
use crate::failure::Failure;
use crate::report::counted;
use crate::size::Size;

/// Pairs of the user's, or made-up ones.
pub(crate) enum Pairs {
    Folder(PairFolder),
    Captions(Captions),
}

impl Source for Pairs {
    type Batch = PairBatch;

    fn draw(&self, examples: usize, random: &mut fastrand::Rng, device: &Device) -> PairBatch {
        match self {
            Self::Folder(folder) => folder.draw(examples, random, device),
            Self::Captions(captions) => captions.draw(examples, random, device),
        }
    }
}

/// What there is to see and to read.
struct Seen {
    data: Data<Pairs>,
    side: usize,
    vocabulary: usize,
    tokens: usize,
}

impl Seen {
    fn look(size: &Size, given: &DataArguments) -> Result<Self, Failure> {
        let Some(path) = &given.data else {
            // Images of four by four cells, each of four by four pixels at least.
            if !size.pixels.is_multiple_of(16) {
                return Err(Failure::request(
                    anyhow::anyhow!("--pixels is {}, expected a multiple of 16", size.pixels),
                    "16 is usual for the images inside the command",
                ));
            }
            let captions = Captions::new(size.pixels / 4);
            let checksum = format!("captions of {} pixels", size.pixels);
            let [training, held_out] = [captions, captions].map(Pairs::Captions);
            return Ok(Self {
                data: Data::new(training, Some(held_out), checksum),
                side: size.pixels,
                vocabulary: Captions::VOCABULARY,
                tokens: Captions::TOKENS,
            });
        };
        let tokens = size.sequence;
        let folder = vision::reader(size, given).read_pairs(path, tokens).map_err(vision::refused)?;
        let side = vision::side(path, folder.image(), folder.skipped())?;
        let checksum = folder.checksum();
        let (training, held_out) = folder.split(0.1).map_err(vision::refused)?;
        let data = Data::new(Pairs::Folder(training), Some(Pairs::Folder(held_out)), checksum);
        Ok(Self { data, side, vocabulary: PairFolder::VOCABULARY, tokens })
    }
}

/// Two towers whose embeddings of an image and its text are to be alike.
pub(crate) struct Towers {
    config: TwoTowerConfig,
    examples: usize,
    data: Data<Pairs>,
}

impl Towers {
    pub(crate) fn of(size: &Size, given: &DataArguments) -> Result<Self, Failure> {
        size.check_heads()?;
        let Seen { data, side, vocabulary, tokens } = Seen::look(size, given)?;
        vision::check_patch(size, side)?;
        let config =
            TwoTowerConfig::new(side, size.patch, vocabulary, tokens, size.width, size.heads, size.layers);
        Ok(Self { config, examples: size.batch / size.micro_batches.max(1), data })
    }
}

impl Kind for Towers {
    type Model = TwoTower;
    type Source = Pairs;
    const UNIT: &'static str = "pair";
    const UNITS: &'static str = "pairs";

    fn build(&self, device: &Device) -> Result<TwoTower, Failure> {
        Ok(self.config.init(device)?)
    }

    fn blank(&self, examples: usize, device: &Device) -> PairBatch {
        let side = self.config.pixels;
        let texts = Tensor::<2, Int>::zeros([examples, self.config.sequence], device).cast(IntDType::I64);
        PairBatch::new(Tensor::zeros([examples, 3, side, side], device), texts)
    }

    fn data(&self) -> Data<Pairs> {
        self.data.clone()
    }

    fn units(&self) -> usize {
        1
    }

    /// Patches, words, the blocks and heads of both towers, and the loss.
    fn stages(&self) -> usize {
        self.config.layers.saturating_mul(2).saturating_add(5)
    }

    fn least_bytes(&self) -> u128 {
        let (layers, width) = (self.config.layers as u128, self.config.width as u128);
        let side = self.config.pixels as u128;
        16 * 2 * layers * 12 * width * width + 12 * self.examples as u128 * side * side
    }

    fn describe(&self) -> String {
        let config = &self.config;
        format!(
            "two-tower, {} each, width {}, {}, {} by {} pixels",
            counted(config.layers, "block"),
            config.width,
            counted(config.heads, "head"),
            config.pixels,
            config.pixels
        )
    }
}
