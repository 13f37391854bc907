//! Softmax.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Tensor;

use super::exp::exp;
use crate::kernel::Kernel;
use crate::node::{GraphBackend, Keeps, Operation, apply, rewrite, rewrite_from};

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
    apply(Softmax, input).unwrap_or_else(|input| burn::tensor::activation::softmax(input, dim))
}

/// Along the last dimension.
#[derive(Clone, Copy, Debug)]
struct Softmax;

impl Operation for Softmax {
    const KEEPS: Keeps = Keeps::Output;

    fn forward<B: GraphBackend>(self, input: FloatTensor<B>) -> FloatTensor<B> {
        let row = row::<B>(&input);
        let update = |elements: &mut [f32]| Forward { row }.over(elements, row);
        let make = |input: &[f32]| {
            let mut output = input.to_vec();
            update(&mut output);
            output
        };
        rewrite::<B>(input, update, make).unwrap_or_else(|input| {
            let last = input.rank() - 1;
            B::softmax(input, last)
        })
    }

    fn backward<B: GraphBackend>(
        self,
        kept: Option<FloatTensor<B>>,
        gradient: FloatTensor<B>,
    ) -> FloatTensor<B> {
        let Some(output) = kept else { return gradient };
        let row = row::<B>(&output);
        let update = |output: &[f32], gradient: &mut [f32]| Backward { output, row }.over(gradient, row);
        rewrite_from::<B>(gradient, &output, update).unwrap_or_else(|gradient| {
            let last = output.rank() - 1;
            let product = B::float_mul(gradient, output.clone());
            let sum = B::float_sum_dim(product.clone(), last);
            B::float_sub(product, B::float_mul(output.clone(), sum))
        })
    }
}

/// Elements of the last dimension.
fn row<B: GraphBackend>(tensor: &FloatTensor<B>) -> usize {
    tensor.shape().as_slice().last().copied().unwrap_or(1).max(1)
}

/// As many partial results as a wide vector has places: a fixed number, so that bits do not depend on the machine.
const PLACES: usize = 16;

/// Writes the softmax of each row over it.
struct Forward {
    row: usize,
}

impl Kernel for Forward {
    #[inline(always)]
    fn run(&self, _: usize, elements: &mut [f32]) {
        for row in elements.chunks_exact_mut(self.row) {
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

/// The largest element; not a number, if one of them is not.
#[inline(always)]
fn largest(row: &[f32]) -> f32 {
    let (chunks, rest) = row.as_chunks::<PLACES>();
    let mut found = [f32::NEG_INFINITY; PLACES];
    for chunk in chunks {
        for (found, x) in found.iter_mut().zip(chunk) {
            *found = larger(*found, *x);
        }
    }
    rest.iter().fold(halved(found, larger), |a, b| larger(a, *b))
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a >= b || a.is_nan() { a } else { b }
}

#[inline(always)]
fn sum(row: &[f32]) -> f32 {
    let (chunks, rest) = row.as_chunks::<PLACES>();
    let mut sums = [0.0; PLACES];
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += x;
        }
    }
    halved(sums, |a, b| a + b) + rest.iter().sum::<f32>()
}

/// One result of many, the upper half joined to the lower until one is left.
#[inline(always)]
fn halved(mut results: [f32; PLACES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = PLACES / 2;
    while half > 0 {
        for place in 0..half {
            results[place] = join(results[place], results[place + half]);
        }
        half /= 2;
    }
    results[0]
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

/// A sum of products, in as many partial sums as a vector has places.
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, a_rest) = a.as_chunks::<PLACES>();
    let (b, b_rest) = b.as_chunks::<PLACES>();
    let mut sums = [0.0; PLACES];
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    halved(sums, |a, b| a + b) + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_any_length_add_up_to_one() {
        for row in [1, 2, 15, 16, 17, 40, 129] {
            let input: Vec<f32> = (0..3 * row).map(|i| (i as f32 * 0.7).sin() * 9.0).collect();
            let mut output = input.clone();
            Forward { row }.over(&mut output, row);
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
        Forward { row: 4 }.over(&mut row, 4);
        assert_eq!(row, [0.0, 0.5, 0.0, 0.5]);
        for bad in [[f32::NAN, 1.0], [1.0, f32::NAN], [f32::INFINITY, 1.0], [f32::NEG_INFINITY; 2]] {
            let mut row = bad;
            Forward { row: 2 }.over(&mut row, 2);
            assert!(row.iter().any(|x| x.is_nan()), "{bad:?} gave {row:?}");
        }
    }
}
