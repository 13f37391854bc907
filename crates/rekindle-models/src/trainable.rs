//! What whoever trains a model asks of it, whatever it is.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use rekindle::peers::Peers;
use rekindle::{Error, Region, Staged};

use crate::{ConfigError, Shares};

/// A model that is trained on batches by one loss, in coarse stages ([`Staged`]) or in fine ones.
pub trait Trainable: Module + Staged<Output = Tensor<1>, Batch: Batch> {
    /// The model's finest stages for a batch. Loss and gradients are those of the coarse ones, bit for bit.
    fn fine_stages(&self, batch: &Self::Batch) -> (Region<Self::Input, Tensor<1>>, Self::Input);

    /// The same model, cut into its finest stages.
    fn fine(&self) -> Fine<'_, Self> {
        Fine(self)
    }

    /// How much of a batch it gets right, from 0 to 1: classes, the next tokens, which text belongs to an image.
    ///
    /// For evaluation: on a model after [`Module::valid`], and a batch on its device.
    ///
    /// # Errors
    /// When the model cannot run on the batch.
    fn accuracy(&self, batch: &Self::Batch) -> Result<f64, Error>;

    /// The parts of a batch, where the loss of the whole is not the mean of theirs: `None`, usually, because it is.
    ///
    /// # Errors
    /// When the model cannot run on a part.
    fn couple(&self, _parts: &[Self::Batch]) -> Result<Option<Coupled<Self::Batch>>, Error> {
        Ok(None)
    }

    /// How peers would share its layers out; nothing, of a model that they cannot.
    fn shares(&self) -> Shares {
        Shares::default()
    }

    /// What one of several peers has of the model. All of them run it together from then on: each stage talks to the others.
    ///
    /// # Errors
    /// When there is nothing to share out, or no way to do it evenly.
    fn split(self, _peers: &Arc<dyn Peers>) -> Result<Self, ConfigError> {
        Err(ConfigError::NotSplit)
    }
}

/// A model in its finest stages.
#[derive(Clone, Copy, Debug)]
pub struct Fine<'a, M>(&'a M);

impl<M: Trainable> Staged for Fine<'_, M> {
    type Batch = M::Batch;
    type Input = M::Input;
    type Output = Tensor<1>;

    fn stages(&self, batch: &M::Batch) -> (Region<M::Input, Tensor<1>>, M::Input) {
        self.0.fine_stages(batch)
    }

    fn name(&self) -> String {
        self.0.name()
    }
}

/// Parts of a batch of which each needs to know something of the others.
#[derive(Clone, Debug)]
pub struct Coupled<B> {
    /// The parts, with what they need to know. The gradients of their losses add up to that of the whole.
    pub parts: Vec<B>,
    /// The loss of the whole.
    pub loss: Tensor<1>,
}

/// What a step of training is given.
pub trait Batch: Clone + Debug {
    /// How many examples there are.
    fn examples(&self) -> usize;

    /// Some of the examples.
    fn slice(&self, examples: Range<usize>) -> Self;

    /// The same on another device.
    fn to_device(&self, device: &Device) -> Self;

    /// The batch in so many parts, as equal as they can be, the larger ones first; one for each example if there are fewer.
    ///
    /// ```
    /// use burn::tensor::{Device, Int, Tensor};
    /// use rekindle_models::{Batch, GptBatch};
    ///
    /// let tokens = Tensor::<2, Int>::zeros([5, 8], &Device::flex());
    /// let parts = GptBatch { tokens: tokens.clone(), targets: tokens }.split(2);
    /// let sequences: Vec<usize> = parts.iter().map(Batch::examples).collect();
    /// assert_eq!(sequences, [3, 2]);
    /// ```
    fn split(&self, parts: usize) -> Vec<Self> {
        let examples = self.examples();
        let parts = parts.clamp(1, examples.max(1));
        let mut start = 0;
        let part = |index: usize| {
            let end = start + examples / parts + usize::from(index < examples % parts);
            self.slice(std::mem::replace(&mut start, end)..end)
        };
        (0..parts).map(part).collect()
    }
}
