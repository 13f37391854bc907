//! Language models, on text.

use std::path::Path;

use burn::tensor::{Device, Int, IntDType, Tensor};
use rekindle::training::Precision;
use rekindle_models::data::{Text, TextTooShort};
use rekindle_models::weights::{self, WeightsError};
use rekindle_models::{Gpt, GptBatch, GptConfig};

use super::{DataArguments, Kind, ModelName};
use crate::data::Data;
use crate::failure::{self, Failure};
use crate::report::counted;
use crate::size::Size;

/// A text of our own, for whoever brings none.
const OWN_TEXT: &str = include_str!("../../corpus/rekindle.txt");

/// A GPT or a Llama.
#[derive(Clone)]
pub(crate) struct Language {
    name: &'static str,
    pub(crate) config: GptConfig,
    /// In a step's part.
    examples: usize,
    data: Data<Text>,
}

impl Language {
    pub(crate) fn of(size: &Size, given: &DataArguments) -> Result<Self, Failure> {
        let refuse = |what: String, hint: &str| Err(Failure::request(anyhow::Error::msg(what), hint));
        size.check_heads()?;
        if size.burn && size.precision != Precision::F32 {
            let what = format!(
                "--precision is {}, but Burn's modules do not mix types with weights of f32",
                size.precision
            );
            return refuse(what, "leave --precision or --burn out");
        }
        let llama = size.model == ModelName::Llama;
        if llama && !(size.width / size.heads).is_multiple_of(2) {
            let what = format!("a head has {} elements, expected an even number", size.width / size.heads);
            return refuse(what, "choose --width and --heads so that rotary positions find pairs to turn");
        }
        if let Some(key_heads) = size.key_heads
            && !(key_heads > 0 && size.heads.is_multiple_of(key_heads))
        {
            let what = format!("--key-heads is {key_heads}, which does not divide --heads {}", size.heads);
            return refuse(what, "choose a number of key heads that divides the heads");
        }
        let new = if llama { GptConfig::llama } else { GptConfig::new };
        let config = new(Text::VOCABULARY, size.width, size.heads, size.layers, size.sequence);
        Ok(Self {
            name: if llama { "llama" } else { "gpt" },
            config: config
                .with_dropout(size.dropout)
                .with_key_heads(size.key_heads)
                .with_burn(size.burn)
                .with_precision(size.precision),
            examples: size.batch / size.micro_batches.max(1),
            data: match given.unread {
                true => any_text(size.sequence)?,
                false => text(given.data.as_deref(), size.sequence)?,
            },
        })
    }
}

/// The text of a file, or our own.
fn text(path: Option<&Path>, sequence: usize) -> Result<Data<Text>, Failure> {
    let (bytes, name) = match path {
        Some(path) => {
            let (bytes, name) = (failure::read(path)?, format!("`{}`", path.display()));
            refuse_binary(&bytes, &name)?;
            (bytes, name)
        }
        None => (OWN_TEXT.as_bytes().to_vec(), "the text inside the command".to_owned()),
    };
    let data = text_of(bytes, &name, sequence)?;
    if !data.holds_out() {
        tell!("{name} is too short to hold out a tenth of it: nothing is told of what was not learned from");
    }
    Ok(data)
}

/// No text has a byte of zeros, whatever its encoding, but for those of two bytes a character, of which nothing is learned byte by byte.
fn refuse_binary(bytes: &[u8], name: &str) -> Result<(), Failure> {
    match bytes.iter().position(|byte| *byte == 0) {
        None => Ok(()),
        Some(place) => Err(Failure::request(
            anyhow::anyhow!("{name} is not text: byte {place} is zero"),
            "give a text file, such as one in UTF-8; `iconv -t UTF-8` makes one of text in UTF-16",
        )),
    }
}

/// A text that is long enough, for who does not read it.
fn any_text(sequence: usize) -> Result<Data<Text>, Failure> {
    text_of(vec![b' '; sequence.saturating_add(1)], "a text", sequence)
}

fn text_of(bytes: Vec<u8>, name: &str, sequence: usize) -> Result<Data<Text>, Failure> {
    let checksum = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&bytes));
    let text = Text::new(bytes, sequence).map_err(|TextTooShort { found, needed }| {
        Failure::request(
            anyhow::anyhow!("{name} has {found} bytes, expected at least {needed} for one sequence"),
            "give a longer file, or a smaller --sequence",
        )
    })?;
    let (training, held_out) = text.hold_out();
    Ok(Data::new(training, held_out, checksum))
}

impl Kind for Language {
    type Model = Gpt;
    type Source = Text;
    const UNIT: &'static str = "token";
    const UNITS: &'static str = "tokens";

    fn build(&self, device: &Device) -> Result<Gpt, Failure> {
        Ok(self.config.init(device)?)
    }

    fn of_burns_modules(&self) -> Option<Self> {
        let config = self.config.clone().with_burn(true).with_precision(Precision::F32);
        Some(Self { config, ..self.clone() })
    }

    fn blank(&self, examples: usize, device: &Device) -> GptBatch {
        // As the tokens of a run are; without a word on it they would be twice as wide.
        let tokens = Tensor::<2, Int>::zeros([examples, self.config.sequence], device).cast(IntDType::I32);
        GptBatch { tokens: tokens.clone(), targets: tokens }
    }

    fn data(&self) -> Data<Text> {
        self.data.clone()
    }

    fn units(&self) -> usize {
        self.config.sequence
    }

    /// The embedding, the blocks, and the head with the loss.
    fn stages(&self) -> usize {
        self.config.layers.saturating_add(2)
    }

    /// Weights, the boundaries' smallest number, and with Burn's modules one block's attention and the logits.
    fn least_bytes(&self) -> u128 {
        let config = &self.config;
        let [layers, width, heads, examples, sequence] =
            [config.layers, config.width, config.heads, self.examples, config.sequence]
                .map(|count| count as u128);
        let vocabulary = Text::VOCABULARY as u128;
        let weights = layers * 10 * width * width + (2 * vocabulary + sequence) * width;
        let of_burn = if config.burn { heads * sequence + vocabulary } else { 0 };
        let activations = examples * sequence * (2 * width + of_burn);
        4 * 4 * weights + config.precision.dtype().size() as u128 * activations
    }

    fn save(&self, path: &Path, model: &Gpt) -> Result<(), WeightsError> {
        weights::save(path, &self.config, model)
    }

    fn load(&self, path: &Path, model: Gpt, device: &Device) -> Result<Gpt, WeightsError> {
        weights::load_into(path, &self.config, model, device)
    }

    fn describe(&self) -> String {
        let config = &self.config;
        format!(
            "{}, {}, width {}, {}{}",
            self.name,
            counted(config.layers, "block"),
            config.width,
            counted(config.heads, "head"),
            config.key_heads.map_or_else(String::new, |heads| format!(" on {}", counted(heads, "key head"))),
        )
    }
}
