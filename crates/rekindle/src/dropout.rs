//! Dropout whose mask is made from a seed and each element's position.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::config::Config;
use burn::module::{Content, DisplaySettings, Flag, Module, ModuleDisplay, Param};
use burn::tensor::{Device, Distribution, Tensor, TensorData};

use crate::kernel::Kernel;
use crate::nn::add;
use crate::node::{
    AnyTensor, Found, GraphBackend, Operation, apply_one, apply_widened, is_capture, rewrite, rewrite_from,
    unmade,
};
use crate::philox::Mask;
use crate::{Error, seeds};

/// How to make a [`Dropout`].
#[derive(Config, Debug)]
pub struct DropoutConfig {
    /// The fraction of elements that are set to zero: 0 or more, and less than 1.
    pub prob: f64,
    /// Keeps the mask for the backward, as Burn's dropout does: memory of the input's size, for the time it takes to
    /// make the mask again.
    #[config(default = false)]
    pub keep_mask: bool,
}

impl DropoutConfig {
    /// A dropout of this probability.
    ///
    /// # Errors
    /// When the probability is not a number of 0 or more and less than 1.
    pub fn init(&self) -> Result<Dropout, Error> {
        // Not a number is in no range.
        match (0.0..1.0).contains(&self.prob) {
            true => {
                let (prob, keep_mask) = (self.prob, self.keep_mask);
                Ok(Dropout { prob, keep_mask, apart: 0, training: Param::from_bool(true) })
            }
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
/// them, where Burn draws on one. Nothing is kept for the backward, which makes the mask
/// once more, unless [`DropoutConfig::keep_mask`] is set.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Dropout {
    prob: f64,
    keep_mask: bool,
    /// Which of several numbers are its own.
    apart: u64,
    /// Off in a part of the model that is frozen, as in Burn's.
    training: Param<Flag>,
}

impl Dropout {
    /// The fraction of elements that are set to zero.
    pub fn prob(&self) -> f64 {
        self.prob
    }

    /// The same dropout on numbers of its own, for each number `of`: processes that share a seed, and have different parts of one
    /// tensor, are not to drop the same elements of each. With 0 it is as it was.
    #[must_use]
    pub fn apart(mut self, of: usize) -> Self {
        self.apart = of as u64;
        self
    }

    /// Drops elements of `input`, on a device with autodiff; anywhere else, and when frozen, `input` is handed back.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let Some(mask) = self.mask(&input) else { return input };
        let applied = match self.keep_mask {
            true => apply_one(DropKeeping(mask), input),
            false => apply_one(Drop(mask), input),
        };
        applied.unwrap_or_else(|input| forward_without_node(mask, input))
    }

    /// `residual`, with what is left of `input` added to it: one pass instead of two.
    ///
    /// # Panics
    /// As Burn's addition: when the shapes do not go together.
    pub fn add<const D: usize>(&self, residual: Tensor<D>, input: Tensor<D>) -> Tensor<D> {
        let same = residual.dims() == input.dims() && residual.dtype() == input.dtype();
        let lean = same && !self.keep_mask;
        let Some(mask) = lean.then(|| self.mask(&input)).flatten() else {
            return add(residual, self.forward(input));
        };
        let dtype = residual.dtype();
        apply_widened(DropAdd(mask), [AnyTensor::from(residual), AnyTensor::from(input)], dtype)
            .map(|output| Tensor::from_dispatch(output.0))
            .unwrap_or_else(|[residual, input]| {
                let [residual, input] = [residual, input].map(|given| Tensor::<D>::from_dispatch(given.0));
                residual + forward_without_node(mask, input)
            })
    }

    /// What to drop of what is made from `input` now; nothing, on a device without autodiff and when frozen.
    pub(crate) fn mask<const D: usize>(&self, input: &Tensor<D>) -> Option<Mask> {
        if !self.training.is_enabled() || !input.is_autodiff() || self.prob == 0.0 {
            return None;
        }
        // A probability is a number of words out of 2^32; the conversion saturates.
        let dropped = (self.prob * 4_294_967_296.0).round() as u32;
        let kept = (1.0 / (1.0 - self.prob)) as f32;
        // Where there are no values, there is nothing to draw.
        let key = if has_no_values(&input.device()) { 0 } else { seeds::apart(seeds::next(), self.apart) };
        Some(Mask { key, dropped, kept })
    }
}

/// On a backend we have no nodes on. A constant outside autodiff goes with every checkpointing strategy, and the tape keeps
/// nothing but the mask.
pub(crate) fn forward_without_node<const D: usize>(mask: Mask, input: Tensor<D>) -> Tensor<D> {
    let (shape, dtype, device) = (input.shape(), input.dtype(), input.device().without_autodiff());
    let factors = TensorData::new(mask.factors(shape.num_elements()), shape);
    input * Tensor::<D>::from_data(factors, (&device, dtype))
}

/// Whether tensors of this device have shapes alone.
pub(crate) fn has_no_values(device: &Device) -> bool {
    #[cfg(feature = "capture")]
    return crate::traced::is_captured(device);
    #[cfg(not(feature = "capture"))]
    {
        let _ = device;
        false
    }
}

/// The backward makes the mask again: nothing is kept for it.
#[derive(Clone, Copy, Debug)]
struct Drop(Mask);

impl Drop {
    fn run<B: GraphBackend>(self, input: FloatTensor<B>) -> FloatTensor<B> {
        let Self(mask) = self;
        let rewritten =
            rewrite::<B>(input, |elements| mask.apply_to(elements), |elements| mask.apply(elements));
        rewritten.unwrap_or_else(|input| {
            let factors = factors::<B>(mask, &input);
            B::float_mul(input, factors)
        })
    }
}

impl Operation<1> for Drop {
    const READS: [bool; 1] = [false];
    const CHEAP: bool = true;

    fn forward<B: GraphBackend>(self, [input]: [FloatTensor<B>; 1]) -> FloatTensor<B> {
        self.run::<B>(input)
    }

    fn unmade<B: GraphBackend>(&self, [input]: &[FloatTensor<B>; 1]) -> Option<FloatTensor<B>> {
        Some(unmade::<B>(input.shape(), input))
    }

    fn backward<B: GraphBackend>(self, found: Found<B, 1>) -> [Option<FloatTensor<B>>; 1] {
        [Some(self.run::<B>(found.gradient))]
    }
}

/// Adds what is left to another tensor, the first.
#[derive(Clone, Copy, Debug)]
struct DropAdd(Mask);

impl Operation<2> for DropAdd {
    const READS: [bool; 2] = [false, false];
    // To run it again would take both inputs, which nobody else reads.
    const CHEAP: bool = false;

    fn forward<B: GraphBackend>(self, [residual, input]: [FloatTensor<B>; 2]) -> FloatTensor<B> {
        let add = |residual: &[f32], elements: &mut [f32]| {
            MaskedAdd { mask: self.0, residual }.over(elements, Mask::GROUP);
        };
        rewrite_from::<B>(input, &residual, add)
            .unwrap_or_else(|input| B::float_add(residual, Drop(self.0).run::<B>(input)))
    }

    fn unmade<B: GraphBackend>(&self, [_, input]: &[FloatTensor<B>; 2]) -> Option<FloatTensor<B>> {
        Some(unmade::<B>(input.shape(), input))
    }

    fn backward<B: GraphBackend>(self, found: Found<B, 2>) -> [Option<FloatTensor<B>>; 2] {
        [Some(found.gradient.clone()), found.wanted[1].then(|| Drop(self.0).run::<B>(found.gradient))]
    }
}

/// Drops elements and adds others.
struct MaskedAdd<'a> {
    mask: Mask,
    residual: &'a [f32],
}

impl Kernel for MaskedAdd<'_> {
    #[inline(always)]
    fn run(&self, first: usize, elements: &mut [f32]) {
        // A piece at a time, that is still at hand when it is added to.
        let pieces = elements.chunks_mut(8 * Mask::GROUP).zip(self.residual[first..].chunks(8 * Mask::GROUP));
        for (index, (elements, residual)) in pieces.enumerate() {
            self.mask.run(first + index * 8 * Mask::GROUP, elements);
            for (x, residual) in elements.iter_mut().zip(residual) {
                *x += residual;
            }
        }
    }
}

/// Keeps the mask for the backward.
#[derive(Clone, Copy, Debug)]
struct DropKeeping(Mask);

impl Operation<1> for DropKeeping {
    const READS: [bool; 1] = [false];
    const CHEAP: bool = true;

    fn forward<B: GraphBackend>(self, [input]: [FloatTensor<B>; 1]) -> FloatTensor<B> {
        Drop(self.0).run::<B>(input)
    }

    fn record<B: GraphBackend>(self, [input]: [FloatTensor<B>; 1]) -> (FloatTensor<B>, Vec<FloatTensor<B>>) {
        let factors = factors::<B>(self.0, &input);
        (B::float_mul(input, factors.clone()), vec![factors])
    }

    fn backward<B: GraphBackend>(self, mut found: Found<B, 1>) -> [Option<FloatTensor<B>>; 1] {
        [Some(match found.kept.pop() {
            Some(factors) => B::float_mul(found.gradient, factors),
            // Balanced checkpointing keeps nothing that can be made again.
            None => Drop(self.0).run::<B>(found.gradient),
        })]
    }
}

/// What the elements of a tensor are multiplied by, as a tensor.
fn factors<B: GraphBackend>(mask: Mask, input: &FloatTensor<B>) -> FloatTensor<B> {
    let (shape, device, dtype) = (input.shape(), input.device(), input.dtype());
    #[cfg(feature = "capture")]
    if is_capture::<B>() {
        // Of the same shape and type: there are no values to find in it.
        return B::float_random(shape, Distribution::Default, &device, dtype.into());
    }
    let factors = TensorData::new(mask.factors(shape.num_elements()), shape);
    B::float_from_data(factors.convert_dtype(dtype), &device)
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
