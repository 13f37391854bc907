//! Softmax.

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{Bool, Tensor, TensorData};

use crate::Error;
use crate::kernel::Kernel;
use crate::node::{Found, GraphBackend, Operation, apply_one, rewrite, rewrite_from};
use crate::rows::{dot, exp, largest, sum};

/// The softmax along a dimension, as Burn's `softmax` computes it.
///
/// The backward reads the output and nothing else. Burn's autodiff takes a softmax apart into five operations, of which
/// each keeps something of the input's size.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use rekindle::activation::softmax;
///
/// let x = Tensor::<1>::from_data([0.0, 0.0], &Device::flex().autodiff()).require_grad();
/// let y = softmax(x.clone(), 0);
/// assert_eq!(y.to_data().try_to_vec::<f32>()?, [0.5, 0.5]);
/// let gradients = y.slice([0..1]).sum().backward();
/// assert_eq!(x.grad(&gradients).unwrap().into_data().try_to_vec::<f32>()?, [0.25, -0.25]);
/// # Ok::<(), burn::tensor::DataError>(())
/// ```
///
/// # Panics
/// As Burn's: when there is no such dimension.
pub fn softmax<const D: usize>(input: Tensor<D>, dim: usize) -> Tensor<D> {
    // Any other dimension is rare, and its rows lie scattered.
    if dim.checked_add(1) != Some(D) {
        return burn::tensor::activation::softmax(input, dim);
    }
    apply_one(Softmax { hidden: None }, input)
        .unwrap_or_else(|input| burn::tensor::activation::softmax(input, dim))
}

/// The softmax along the last dimension of what is left when some elements are hidden: where `mask` is true, `input` counts
/// as minus infinity. The mask has the shape of the input, or 1 in place of some of its dimensions but the last.
///
/// The same as filling in minus infinities first, but without going through the elements for it, forth and back. As in
/// Burn, a row of which everything is hidden has no softmax: it is made of `NaN`.
///
/// ```
/// use burn::tensor::{Bool, Device, Tensor};
/// use rekindle::activation::masked_softmax;
///
/// let device = Device::flex().autodiff();
/// let x = Tensor::<2>::from_data([[1.0, 1.0, 7.0], [2.0, 2.0, 2.0]], &device);
/// let mask = Tensor::<2, Bool>::from_data([[false, false, true]], &device);
/// let y: Vec<f32> = masked_softmax(x, mask)?.into_data().try_to_vec()?;
/// assert_eq!(y, [0.5, 0.5, 0.0, 0.5, 0.5, 0.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When the mask has another shape.
pub fn masked_softmax<const D: usize>(input: Tensor<D>, mask: Tensor<D, Bool>) -> Result<Tensor<D>, Error> {
    let (shape, found) = (input.dims(), mask.dims());
    let fits = |(input, mask): (&usize, &usize)| mask == input || *mask == 1;
    if !shape.iter().zip(&found).all(fits) || shape.last() != found.last() {
        return Err(Error::SoftmaxMask { found: found.to_vec(), expected: shape.to_vec() });
    }
    let filled =
        |input: Tensor<D>, mask| softmax(input.mask_fill(mask, f32::NEG_INFINITY), D.saturating_sub(1));
    #[cfg(feature = "capture")]
    if crate::traced::is_captured(&input.device()) {
        return Ok(filled(input, mask));
    }
    // Of a device that cannot be read just now.
    let Some(hidden) = Hidden::new(&shape, &mask) else { return Ok(filled(input, mask)) };
    Ok(apply_one(Softmax { hidden: Some(hidden) }, input).unwrap_or_else(|input| filled(input, mask)))
}

/// Which elements a softmax leaves out.
#[derive(Clone, Debug)]
struct Hidden {
    elements: Arc<[bool]>,
    shape: Vec<usize>,
    /// Sizes of the input but the last, and how many rows of the mask each step along them goes ahead.
    steps: Arc<[(usize, usize)]>,
}

impl Hidden {
    /// Of a mask that fits; none where it cannot be read.
    fn new<const D: usize>(input: &[usize; D], mask: &Tensor<D, Bool>) -> Option<Self> {
        let shape = mask.dims();
        let mut ahead = 1;
        let mut steps: Vec<(usize, usize)> = Vec::with_capacity(D);
        for (input, mask) in input.iter().zip(&shape).rev().skip(1) {
            steps.push((*input, if *mask == 1 { 0 } else { ahead }));
            ahead *= mask;
        }
        let elements = mask.clone().try_into_data().ok()?.try_into_vec_as::<bool>().ok()?;
        Some(Self { elements: elements.into(), shape: shape.to_vec(), steps: steps.into() })
    }

    /// The mask of a row.
    fn row(&self, mut index: usize, length: usize) -> &[bool] {
        let mut row = 0;
        for (size, ahead) in &*self.steps {
            row += index % size * ahead;
            index /= size;
        }
        &self.elements[row * length..][..length]
    }
}

/// Along the last dimension.
#[derive(Clone, Debug)]
struct Softmax {
    hidden: Option<Hidden>,
}

impl Operation<1> for Softmax {
    const READS: [bool; 1] = [false];
    const CHEAP: bool = false;

    fn record<B: GraphBackend>(self, input: [FloatTensor<B>; 1]) -> (FloatTensor<B>, Vec<FloatTensor<B>>) {
        let output = self.forward::<B>(input);
        (output.clone(), vec![output])
    }

    fn forward<B: GraphBackend>(self, [input]: [FloatTensor<B>; 1]) -> FloatTensor<B> {
        let row = row::<B>(&input);
        let hidden = self.hidden.as_ref();
        let update = |elements: &mut [f32]| Forward { row, hidden }.over(elements, row);
        let make = |input: &[f32]| {
            let mut output = input.to_vec();
            update(&mut output);
            output
        };
        rewrite::<B>(input, update, make).unwrap_or_else(|mut input| {
            if let Some(hidden) = hidden {
                let mask = TensorData::new(hidden.elements.to_vec(), hidden.shape.clone());
                let mask = B::bool_expand(B::bool_from_data(mask, &input.device()), input.shape());
                input = B::float_mask_fill(input, mask, f32::NEG_INFINITY.into());
            }
            let last = input.rank() - 1;
            B::softmax(input, last)
        })
    }

    /// What was hidden is zero in the output, and so is its gradient.
    fn for_backward(&self) -> Self {
        Self { hidden: None }
    }

    fn backward<B: GraphBackend>(self, found: Found<B, 1>) -> [Option<FloatTensor<B>>; 1] {
        [found.kept.first().map(|output| {
            let row = row::<B>(output);
            let update = |output: &[f32], gradient: &mut [f32]| Backward { output, row }.over(gradient, row);
            rewrite_from::<B>(found.gradient, output, update).unwrap_or_else(|gradient| {
                let last = output.rank() - 1;
                let product = B::float_mul(gradient, output.clone());
                let sum = B::float_sum_dim(product.clone(), last);
                B::float_sub(product, B::float_mul(output.clone(), sum))
            })
        })]
    }
}

/// Elements of the last dimension.
fn row<B: GraphBackend>(tensor: &FloatTensor<B>) -> usize {
    tensor.shape().as_slice().last().copied().unwrap_or(1).max(1)
}

/// Writes the softmax of each row over it.
struct Forward<'a> {
    row: usize,
    hidden: Option<&'a Hidden>,
}

impl Kernel for Forward<'_> {
    #[inline(always)]
    fn run(&self, first: usize, elements: &mut [f32]) {
        for (index, row) in elements.chunks_exact_mut(self.row).enumerate() {
            if let Some(hidden) = self.hidden {
                for (x, hidden) in row.iter_mut().zip(hidden.row(first / self.row + index, self.row)) {
                    *x = if *hidden { f32::NEG_INFINITY } else { *x };
                }
            }
            let largest = largest(row);
            // Of the three passes each is a loop the compiler can do several elements of at once.
            for x in &mut *row {
                *x = exp(*x - largest);
            }
            let scale = 1.0 / sum(row);
            for x in row {
                *x *= scale;
            }
        }
    }
}

/// Turns the gradient of the output into that of the input, row by row: `(g - sum(g y)) y`.
struct Backward<'a> {
    output: &'a [f32],
    row: usize,
}

impl Kernel for Backward<'_> {
    #[inline(always)]
    fn run(&self, first: usize, gradient: &mut [f32]) {
        let output = self.output[first..].chunks_exact(self.row);
        for (output, gradient) in output.zip(gradient.chunks_exact_mut(self.row)) {
            let sum = dot(output, gradient);
            for (gradient, output) in gradient.iter_mut().zip(output) {
                *gradient = (*gradient - sum) * output;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Distribution, Tolerance};

    use super::*;

    #[test]
    fn rows_of_any_length_add_up_to_one() {
        for row in [1, 2, 15, 16, 17, 40, 129] {
            let input: Vec<f32> = (0..3 * row).map(|i| (i as f32 * 0.7).sin() * 9.0).collect();
            let mut output = input.clone();
            Forward { row, hidden: None }.over(&mut output, row);
            for (input, output) in input.chunks(row).zip(output.chunks(row)) {
                let total: f64 = input.iter().map(|x| f64::from(*x).exp()).sum();
                for (x, y) in input.iter().zip(output) {
                    let expected = f64::from(*x).exp() / total;
                    assert!((f64::from(*y) - expected).abs() <= 2e-6 * expected, "{y}, expected {expected}");
                }
            }
        }
    }

    #[test]
    fn what_is_left_out_is_zero_and_what_is_no_number_stays_none() {
        let mut row = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY, 0.0];
        Forward { row: 4, hidden: None }.over(&mut row, 4);
        assert_eq!(row, [0.0, 0.5, 0.0, 0.5]);
        for bad in [[f32::NAN, 1.0], [1.0, f32::NAN], [f32::INFINITY, 1.0], [f32::NEG_INFINITY; 2]] {
            let mut row = bad;
            Forward { row: 2, hidden: None }.over(&mut row, 2);
            assert!(row.iter().any(|x| x.is_nan()), "{bad:?} gave {row:?}");
        }
    }

    /// For masks of all shapes that fit: as if minus infinities had been filled in.
    #[test]
    fn a_masked_row_is_that_of_minus_infinities() {
        let device = Device::flex().autodiff();
        let shape = [3, 2, 4, 5];
        let x = Tensor::<4>::random(shape, Distribution::Normal(0.0, 2.0), &device).require_grad();
        let weights = Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), &device);
        for mask in [[3, 2, 4, 5], [3, 1, 4, 5], [1, 1, 4, 5], [1, 2, 1, 5], [1, 1, 1, 5]] {
            let elements: Vec<bool> = (0..mask.iter().product()).map(|i: usize| i * 7 % 5 > 2).collect();
            let mask = Tensor::<4, Bool>::from_data(TensorData::new(elements, mask), &device);
            let run = |y: Tensor<4>| {
                let gradients = (y.clone() * weights.clone()).sum().backward();
                (y.into_data(), x.grad(&gradients).unwrap().into_data())
            };
            let found = run(masked_softmax(x.clone(), mask.clone()).unwrap());
            let filled = x.clone().mask_fill(mask.clone().expand(shape), f32::NEG_INFINITY);
            let expected = run(softmax(filled, 3));
            assert_eq!(found.0, expected.0);
            found.1.assert_approx_eq::<f32>(&expected.1, Tolerance::default());
        }
    }
    /// It panicked, as Burn's `mask_fill` does.
    #[test]
    fn a_mask_of_another_shape_is_an_error() {
        for device in [Device::flex(), Device::flex().autodiff()] {
            let x = Tensor::<2>::ones([3, 5], &device);
            for shape in [[3, 4], [3, 1], [2, 5], [6, 5], [0, 5]] {
                let mask = Tensor::<2, Bool>::from_data(
                    TensorData::new(vec![false; shape[0] * shape[1]], shape),
                    &device,
                );
                let Err(Error::SoftmaxMask { found, expected }) = masked_softmax(x.clone(), mask) else {
                    panic!("{shape:?} was taken")
                };
                assert_eq!((found, expected), (shape.to_vec(), vec![3, 5]));
            }
        }
        let error = Error::SoftmaxMask { found: vec![2, 5], expected: vec![3, 5] };
        assert_eq!(
            error.to_string(),
            "a softmax was given a mask of shape [2, 5], expected [3, 5], or 1 in place of some of its sizes but the last"
        );
    }
}
