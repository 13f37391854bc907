//! Images and their texts.

use burn::tensor::{Device, Int, IntDType, Tensor};
use rekindle_models::data::Captions;
use rekindle_models::{PairBatch, TwoTower, TwoTowerConfig};

use super::{DataArguments, Kind};
use crate::data::Data;
use crate::failure::Failure;
use crate::report::counted;
use crate::size::Size;

/// Two towers whose embeddings of an image and its text are to be alike.
pub(crate) struct Towers {
    config: TwoTowerConfig,
    examples: usize,
    data: Data<Captions>,
}

impl Towers {
    pub(crate) fn of(size: &Size, _given: &DataArguments) -> Result<Self, Failure> {
        size.check_heads()?;
        let cells = 4;
        if !size.pixels.is_multiple_of(4 * cells) {
            return Err(Failure::request(
                anyhow::anyhow!("--pixels is {}, expected a multiple of {}", size.pixels, 4 * cells),
                "16 is usual",
            ));
        }
        if !size.pixels.is_multiple_of(size.patch) {
            return Err(Failure::request(
                anyhow::anyhow!("--patch is {}, which does not divide {} pixels", size.patch, size.pixels),
                "choose a patch that divides the image, or other --pixels",
            ));
        }
        let captions = Captions::new(size.pixels / cells);
        let config = TwoTowerConfig::new(
            captions.pixels(),
            size.patch,
            Captions::VOCABULARY,
            Captions::TOKENS,
            size.width,
            size.heads,
            size.layers,
        );
        let data = Data::new(captions, Some(captions), format!("captions of {} pixels", size.pixels));
        Ok(Self { config, examples: size.batch / size.micro_batches.max(1), data })
    }
}

impl Kind for Towers {
    type Model = TwoTower;
    type Source = Captions;
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

    fn data(&self) -> Data<Captions> {
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
