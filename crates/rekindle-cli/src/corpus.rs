//! What a model learns from.

use burn::tensor::{Device, Tensor, TensorData};
use rekindle_models::GptBatch;

use crate::arguments::Size;
use crate::failure::{self, Failure};
use crate::measure::Batch;

/// A text of our own, for whoever brings none.
const OWN_TEXT: &str = include_str!("../corpus/rekindle.txt");

/// Bytes to learn from, handed out in random windows.
#[derive(Clone)]
pub(crate) struct Corpus {
    bytes: Vec<u8>,
    random: fastrand::Rng,
}

impl Corpus {
    /// The file at `path`, or our own text.
    pub(crate) fn open(path: Option<&std::path::Path>, sequence: usize, seed: u64) -> Result<Self, Failure> {
        let (bytes, name) = match path {
            Some(path) => (failure::read(path)?, format!("`{}`", path.display())),
            None => (OWN_TEXT.as_bytes().to_vec(), "the text inside the command".to_owned()),
        };
        if bytes.len() <= sequence {
            let found = bytes.len();
            let needed = sequence + 1;
            return Err(Failure::request(
                anyhow::anyhow!("{name} has {found} bytes, expected at least {needed} for one sequence"),
                "give a longer file, or a smaller --sequence",
            ));
        }
        Ok(Self { bytes, random: fastrand::Rng::with_seed(seed) })
    }

    /// How far the batches are: a number that [`Corpus::at`] goes on from.
    pub(crate) fn position(&self) -> u64 {
        self.random.get_seed()
    }

    /// The same text, from a position on.
    pub(crate) fn at(mut self, position: u64) -> Self {
        self.random = fastrand::Rng::with_seed(position);
        self
    }

    /// A number that tells texts apart.
    pub(crate) fn checksum(&self) -> String {
        format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&self.bytes))
    }

    /// The next batch, in its parts.
    pub(crate) fn batch(&mut self, size: &Size, device: &Device) -> Batch {
        let mut tokens = Vec::with_capacity(size.batch * size.sequence);
        let mut targets = Vec::with_capacity(size.batch * size.sequence);
        for _ in 0..size.batch {
            let start = self.random.usize(0..self.bytes.len() - size.sequence);
            let window = &self.bytes[start..=start + size.sequence];
            tokens.extend(window[..size.sequence].iter().map(|byte| i32::from(*byte)));
            targets.extend(window[1..].iter().map(|byte| i32::from(*byte)));
        }
        let shape = [size.batch, size.sequence];
        let all = GptBatch {
            tokens: Tensor::from_data(TensorData::new(tokens, shape), device),
            targets: Tensor::from_data(TensorData::new(targets, shape), device),
        };
        Batch::new(&all, size.micro_batches)
    }
}
