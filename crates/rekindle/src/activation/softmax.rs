//! Softmax.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Tensor;

use super::in_pieces;
use crate::node::{GraphBackend, Keeps, Operation, apply, rewrite_from};

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
        let last = input.rank() - 1;
        B::softmax(input, last)
    }

    fn backward<B: GraphBackend>(
        self,
        kept: Option<FloatTensor<B>>,
        gradient: FloatTensor<B>,
    ) -> FloatTensor<B> {
        let Some(output) = kept else { return gradient };
        let row = output.shape().as_slice().last().copied().unwrap_or(1).max(1);
        let in_rows = |output: &[f32], gradient: &mut [f32]| {
            in_pieces(output, gradient, row, |output, gradient| backward(output, gradient, row));
        };
        rewrite_from::<B>(gradient, &output, in_rows).unwrap_or_else(|gradient| {
            let last = output.rank() - 1;
            let product = B::float_mul(gradient, output.clone());
            let sum = B::float_sum_dim(product.clone(), last);
            B::float_sub(product, B::float_mul(output.clone(), sum))
        })
    }
}

/// Turns the gradient of the output into that of the input, row by row: `(g - sum(g y)) y`.
#[inline(always)]
fn backward(output: &[f32], gradient: &mut [f32], row: usize) {
    for (output, gradient) in output.chunks_exact(row).zip(gradient.chunks_exact_mut(row)) {
        let sum = dot(output, gradient);
        for (gradient, output) in gradient.iter_mut().zip(output) {
            *gradient = (*gradient - sum) * output;
        }
    }
}

/// A sum of products, in as many partial sums as a vector has places.
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const PLACES: usize = 16;
    let (a, a_rest) = a.as_chunks::<PLACES>();
    let (b, b_rest) = b.as_chunks::<PLACES>();
    let mut sums = [0.0; PLACES];
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}
