//! Sequences that ask for a memory.

use burn::tensor::{Device, Tensor, TensorData};

use super::Source;
use crate::{ConfigError, SequenceBatch};

/// Noise whose first steps show a symbol, which is the class of the whole: it must be remembered to the end.
///
/// A step has a feature for each symbol. Nothing after the first few steps says anything of the class, so a network that
/// does not learn from the beginning of a sequence does not learn at all.
///
/// ```
/// use burn::tensor::Device;
/// use rekindle_models::data::{Recall, Source};
///
/// let source = Recall::new(4, 50)?;
/// let batch = source.draw(8, &mut fastrand::Rng::with_seed(1), &Device::flex());
/// assert_eq!(batch.sequences.dims(), [8, 50, 4]);
/// # Ok::<(), rekindle_models::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Recall {
    classes: usize,
    steps: usize,
    noise: f32,
}

/// How many steps show the symbol.
const SHOWN: usize = 3;

impl Recall {
    /// One of so many symbols, and so many steps.
    ///
    /// # Errors
    /// When there is no symbol or no step.
    pub fn new(classes: usize, steps: usize) -> Result<Self, ConfigError> {
        match [("classes", classes), ("steps", steps)].into_iter().find(|(_, size)| *size == 0) {
            Some((what, _)) => Err(ConfigError::Empty { what }),
            None => Ok(Self { classes, steps, noise: 0.3 }),
        }
    }

    /// How far noise goes to either side of 0, where a symbol stands out by 1; 0.3 unless set.
    #[must_use]
    pub fn noise(mut self, noise: f32) -> Self {
        self.noise = noise;
        self
    }

    /// The features of a step.
    pub fn features(&self) -> usize {
        self.classes
    }
}

impl Source for Recall {
    type Batch = SequenceBatch;

    fn draw(&self, examples: usize, random: &mut fastrand::Rng, device: &Device) -> SequenceBatch {
        let mut values = Vec::with_capacity(examples * self.steps * self.classes);
        let mut classes = Vec::with_capacity(examples);
        for _ in 0..examples {
            let class = random.usize(..self.classes);
            classes.push(class as i64);
            for step in 0..self.steps {
                values.extend((0..self.classes).map(|feature| {
                    let shown = f32::from(u8::from(step < SHOWN && feature == class));
                    shown + self.noise * (2.0 * random.f32() - 1.0)
                }));
            }
        }
        let shape = [examples, self.steps, self.classes];
        SequenceBatch {
            sequences: Tensor::from_data(TensorData::new(values, shape), device),
            classes: Tensor::from_data(TensorData::new(classes, [examples]), device),
        }
    }
}
