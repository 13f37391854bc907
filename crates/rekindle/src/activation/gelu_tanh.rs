//! The Gaussian error linear unit as GPT-2 computes it.

use burn::backend::tensor::FloatTensor;
use burn::tensor::Tensor;

use crate::kernel::Kernel;
use crate::node::{Found, GraphBackend, Operation, apply_one, rewrite, rewrite_from};
use crate::rows::exp;

/// [`gelu`](super::gelu) by way of `tanh`, an approximation that is off by up to 0.0005: what GPT-2 was trained with.
///
/// The backward reads the input, and nothing else is kept.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use rekindle::activation::gelu_tanh;
///
/// let x = Tensor::<1>::from_data([-1.0, 0.0, 1.0], &Device::flex().autodiff());
/// let y: Vec<f32> = gelu_tanh(x).into_data().try_to_vec()?;
/// assert!((y[0] + 0.158_808).abs() < 1e-6 && y[1] == 0.0 && (y[2] - 0.841_192).abs() < 1e-6);
/// # Ok::<(), burn::tensor::DataError>(())
/// ```
pub fn gelu_tanh<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    apply_one(GeluTanh, input).unwrap_or_else(|x| {
        let inner = x.clone() + x.clone().powi_scalar(3).mul_scalar(CUBE);
        x * burn::tensor::activation::sigmoid(inner.mul_scalar(SLOPE))
    })
}

/// Of the cube of `x`.
const CUBE: f32 = 0.044_715;
/// Twice the square root of 2 over pi: `(1 + tanh(u)) / 2` is the sigmoid of `2u`.
const SLOPE: f32 = 1.595_769;

#[derive(Clone, Copy, Debug)]
struct GeluTanh;

impl Operation<1> for GeluTanh {
    const READS: [bool; 1] = [true];
    const CHEAP: bool = true;

    fn forward<B: GraphBackend>(self, [input]: [FloatTensor<B>; 1]) -> FloatTensor<B> {
        let make = |input: &[f32]| {
            let mut output = input.to_vec();
            Forward.over(&mut output, 1);
            output
        };
        rewrite::<B>(input, |elements| Forward.over(elements, 1), make).unwrap_or_else(|input| {
            let sigmoid = sigmoid::<B>(input.clone());
            B::float_mul(input, sigmoid)
        })
    }

    fn backward<B: GraphBackend>(self, found: Found<B, 1>) -> [Option<FloatTensor<B>>; 1] {
        let [input] = found.inputs;
        [input.map(|input| {
            rewrite_from::<B>(found.gradient, &input, |input, gradient| Backward { input }.over(gradient, 1))
                .unwrap_or_else(|gradient| backward_by_operations::<B>(input.clone(), gradient))
        })]
    }
}

fn sigmoid<B: GraphBackend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let square = B::float_mul(x.clone(), x.clone());
    let factor = B::float_add_scalar(B::float_mul_scalar(square, (SLOPE * CUBE).into()), SLOPE.into());
    B::sigmoid(B::float_mul(x, factor))
}

fn backward_by_operations<B: GraphBackend>(x: FloatTensor<B>, gradient: FloatTensor<B>) -> FloatTensor<B> {
    let below = sigmoid::<B>(x.clone());
    let square = B::float_mul(x.clone(), x.clone());
    let inner = B::float_add_scalar(B::float_mul_scalar(square, (3.0 * SLOPE * CUBE).into()), SLOPE.into());
    let above = B::float_add_scalar(B::float_neg(below.clone()), 1.0.into());
    let bend = B::float_mul(B::float_mul(x, inner), above);
    let slope = B::float_mul(below, B::float_add_scalar(bend, 1.0.into()));
    B::float_mul(gradient, slope)
}

struct Forward;

impl Kernel for Forward {
    #[inline(always)]
    fn run(&self, _: usize, elements: &mut [f32]) {
        for x in elements {
            *x *= below(*x);
        }
    }
}

struct Backward<'a> {
    input: &'a [f32],
}

impl Kernel for Backward<'_> {
    #[inline(always)]
    fn run(&self, first: usize, gradient: &mut [f32]) {
        for (gradient, x) in gradient.iter_mut().zip(&self.input[first..]) {
            let below = below(*x);
            let bend = *x * (SLOPE + 3.0 * SLOPE * CUBE * *x * *x) * (1.0 - below);
            // Far out the bend is nothing times something infinite.
            *gradient *= if below == 0.0 || below == 1.0 { below } else { below * (1.0 + bend) };
        }
    }
}

/// The sigmoid of twice the argument of `tanh`. Without a branch, so that the compiler can do several at once.
#[inline(always)]
fn below(x: f32) -> f32 {
    let u = x * (SLOPE + SLOPE * CUBE * x * x);
    let e = exp(-u.abs());
    let smaller = e / (1.0 + e);
    if u < 0.0 { smaller } else { 1.0 - smaller }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_formula() {
        for step in -10_000..=10_000 {
            let x = step as f32 * 1e-3;
            let wide = f64::from(x);
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044_715 * wide.powi(3));
            let expected = 0.5 * wide * (1.0 + inner.tanh());
            let found = f64::from(x * below(x));
            assert!((found - expected).abs() <= 3e-7 * (1.0 + wide.abs()), "{x}: {found}, {expected}");
            let mut gradient = [1.0];
            Backward { input: &[x] }.over(&mut gradient, 1);
            let step = 1e-5;
            let value = |x: f64| {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
                0.5 * x * (1.0 + inner.tanh())
            };
            let slope = (value(wide + step) - value(wide - step)) / (2.0 * step);
            assert!((f64::from(gradient[0]) - slope).abs() < 2e-6, "{x}: {}, {slope}", gradient[0]);
        }
    }

    #[test]
    fn the_ends_are_what_they_should_be() {
        assert_eq!(below(f32::INFINITY), 1.0);
        assert_eq!(below(-1e30), 0.0);
        assert!(below(f32::NAN).is_nan());
        let mut gradient = [1.0, 1.0, 1.0];
        Backward { input: &[0.0, 1e30, -1e30] }.over(&mut gradient, 1);
        assert_eq!(gradient, [0.5, 1.0, 0.0]);
    }
}
