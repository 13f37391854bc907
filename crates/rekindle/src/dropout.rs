//! Dropout whose mask is made from a seed and each element's position.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Flag, Module, ModuleDisplay, Param};
use burn::tensor::{Tensor, TensorData};

use crate::{Error, philox, seeds};

/// How to make a [`Dropout`].
#[derive(Config, Debug)]
pub struct DropoutConfig {
    /// The fraction of elements that are set to zero: 0 or more, and less than 1.
    pub prob: f64,
}

impl DropoutConfig {
    /// A dropout of this probability.
    ///
    /// # Errors
    /// When the probability is not a number of 0 or more and less than 1.
    pub fn init(&self) -> Result<Dropout, Error> {
        // Not a number is in no range.
        match (0.0..1.0).contains(&self.prob) {
            true => Ok(Dropout { prob: self.prob, training: Param::from_bool(true) }),
            false => Err(Error::Dropout { found: self.prob }),
        }
    }
}

/// Sets a fraction of the elements to zero and scales the others up, so that the mean stays: Burn's `Dropout`, on random
/// numbers of its own.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use rekindle::DropoutConfig;
///
/// let dropout = DropoutConfig::new(0.5).init()?;
/// let y = dropout.forward(Tensor::<1>::ones([64], &Device::flex().autodiff()));
/// assert!(y.into_data().iter::<f32>().all(|y| y == 0.0 || y == 2.0));
/// // Without autodiff there is nothing to train, and nothing is dropped.
/// let y = dropout.forward(Tensor::<1>::ones([64], &Device::flex()));
/// assert!(y.into_data().iter::<f32>().all(|y| y == 1.0));
/// # Ok::<(), rekindle::Error>(())
/// ```
///
/// The mask is a function of a seed and of each element's position. Inside a stage the seed is the stage's, so a
/// recomputation drops the same elements; elsewhere it is the next of the sequence that [`seed`](crate::seed) starts.
/// Burn's random state is neither read nor moved, and the mask is made on all threads: the same bits on any number of
/// them, where Burn draws on one.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Dropout {
    prob: f64,
    /// Off in a part of the model that is frozen, as in Burn's.
    training: Param<Flag>,
}

impl Dropout {
    /// The fraction of elements that are set to zero.
    pub fn prob(&self) -> f64 {
        self.prob
    }

    /// Drops elements of `input`, on a device with autodiff; anywhere else, and when frozen, `input` is handed back.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        if !self.training.is_enabled() || !input.is_autodiff() || self.prob == 0.0 {
            return input;
        }
        let shape = input.shape();
        // A probability is a number of words out of 2^32; the conversion saturates.
        let dropped = (self.prob * 4_294_967_296.0).round() as u32;
        let kept = (1.0 / (1.0 - self.prob)) as f32;
        // A constant outside autodiff goes with every checkpointing strategy, and the tape keeps nothing but the mask.
        let device = input.device().without_autodiff();
        #[cfg(feature = "capture")]
        if crate::traced::is_captured(&device) {
            // Of the same shape and type: there are no values to find in it.
            let mask =
                Tensor::<D>::random(shape, burn::tensor::Distribution::Default, (&device, input.dtype()));
            return input * mask;
        }
        let mask = philox::mask(seeds::next(), dropped, kept, shape.num_elements());
        let mask = Tensor::<D>::from_data(TensorData::new(mask, shape), (&device, input.dtype()));
        input * mask
    }
}

impl ModuleDisplay for Dropout {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let content = content.add("prob", &self.prob);
        match self.training.is_enabled() {
            true => content.optional(),
            false => content.add("training", &self.training).optional(),
        }
    }
}
