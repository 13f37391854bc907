//! The Gaussian error linear unit.

use burn::backend::tensor::FloatTensor;
use burn::tensor::Tensor;

use crate::kernel::Kernel;
use crate::node::{Found, GraphBackend, Operation, apply_one, rewrite, rewrite_from};
use crate::rows::{exp, polynomial};

/// `x` times the probability that a normal variable is less than `x`: Burn's `gelu`, not the approximation by `tanh`.
///
/// The backward reads the input, as Burn's does. On Flex both directions use the machine's vectors, where Burn computes
/// the error function element by element; and the left tail keeps its digits, which `1 + erf` loses.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use rekindle::activation::gelu;
///
/// let x = Tensor::<1>::from_data([-1.0, 0.0, 1.0], &Device::flex().autodiff());
/// let y: Vec<f32> = gelu(x).into_data().try_to_vec()?;
/// assert!((y[0] + 0.158_655).abs() < 1e-6 && y[1] == 0.0 && (y[2] - 0.841_345).abs() < 1e-6);
/// # Ok::<(), burn::tensor::DataError>(())
/// ```
pub fn gelu<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    apply_one(Gelu, input).unwrap_or_else(burn::tensor::activation::gelu)
}

#[derive(Clone, Copy, Debug)]
struct Gelu;

impl Operation<1> for Gelu {
    const READS: [bool; 1] = [true];
    const CHEAP: bool = true;

    fn forward<B: GraphBackend>(self, [input]: [FloatTensor<B>; 1]) -> FloatTensor<B> {
        let make = |input: &[f32]| {
            let mut output = vec![0.0; input.len()];
            Forward { input }.over(&mut output, 1);
            output
        };
        rewrite::<B>(input, |elements| ForwardInPlace.over(elements, 1), make).unwrap_or_else(B::gelu)
    }

    fn backward<B: GraphBackend>(self, found: Found<B, 1>) -> [Option<FloatTensor<B>>; 1] {
        let [input] = found.inputs;
        [input.map(|input| {
            rewrite_from::<B>(found.gradient, &input, |input, gradient| Backward { input }.over(gradient, 1))
                .unwrap_or_else(|gradient| B::gelu_backward(input.clone(), gradient))
        })]
    }
}

struct Forward<'a> {
    input: &'a [f32],
}

impl Kernel for Forward<'_> {
    #[inline(always)]
    fn run(&self, first: usize, output: &mut [f32]) {
        for (output, x) in output.iter_mut().zip(&self.input[first..]) {
            *output = gelu_of(*x);
        }
    }
}

struct ForwardInPlace;

impl Kernel for ForwardInPlace {
    #[inline(always)]
    fn run(&self, _: usize, elements: &mut [f32]) {
        for x in elements {
            *x = gelu_of(*x);
        }
    }
}

struct Backward<'a> {
    input: &'a [f32],
}

impl Kernel for Backward<'_> {
    #[inline(always)]
    fn run(&self, first: usize, gradient: &mut [f32]) {
        const SCALE: f32 = 0.398_942_3; // 1 / sqrt(2 pi)
        for (gradient, x) in gradient.iter_mut().zip(&self.input[first..]) {
            let Normal { below, bell } = normal(*x);
            *gradient *= below + *x * (SCALE * bell);
        }
    }
}

#[inline(always)]
fn gelu_of(x: f32) -> f32 {
    x * normal(x).below
}

/// What both directions need of the normal distribution.
struct Normal {
    /// The probability of less than `x`.
    below: f32,
    /// `exp(-x^2 / 2)`
    bell: f32,
}

/// Without a branch, so that the compiler can do several at once.
///
/// The smaller tail is `t p(t) exp(-x^2 / 2) / 2` with `t = 1 / (1 + 0.3 |x| / sqrt(2))`. `p` is a polynomial of degree 8
/// in `2t - 1`, fitted for the least relative error, 2e-8, up to `|x|` = 13; beyond, the tail is less than any `f32`.
#[inline(always)]
fn normal(x: f32) -> Normal {
    const P: [f32; 9] = [
        0.324_979_93,
        0.276_523_62,
        0.198_781_54,
        0.118_716_77,
        0.056_955_006,
        0.020_419_797,
        0.004_383_946_3,
        -0.000_254_999,
        -0.000_505_601_87,
    ];
    let t = 1.0 / (1.0 + x.abs() * (0.3 * std::f32::consts::FRAC_1_SQRT_2));
    let p = polynomial(&P, t + t - 1.0);
    let bell = exp(-0.5 * x * x);
    let tail = 0.5 * (p * t) * bell;
    Normal { below: if x < 0.0 { tail } else { 1.0 - tail }, bell }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the series of the error function, or its continued fraction where that converges faster.
    fn reference(x: f64) -> f64 {
        let z = x.abs() / std::f64::consts::SQRT_2;
        let tail = match z < 2.5 {
            true => {
                let (mut term, mut sum, mut n) = (z, z, 0.0);
                while term.abs() > 1e-18 {
                    n += 1.0;
                    term *= -z * z / n;
                    sum += term / (2.0 * n + 1.0);
                }
                0.5 - sum / std::f64::consts::PI.sqrt()
            }
            false => {
                let fraction = (1..200).rev().fold(z, |below, n| z + f64::from(n) / 2.0 / below);
                0.5 * (-z * z).exp() / (fraction * std::f64::consts::PI.sqrt())
            }
        };
        x * if x < 0.0 { tail } else { 1.0 - tail }
    }

    #[test]
    fn both_tails_are_right_to_the_last_digits() {
        for step in -130_000..=130_000 {
            let x = step as f32 * 1e-4;
            let (found, expected) = (f64::from(gelu_of(x)), reference(f64::from(x)));
            let error = (found - expected).abs();
            // x^2 is rounded, and that is multiplied by its exponential.
            let allowed = 8e-7 + 6e-8 * f64::from(x * x);
            assert!(error <= allowed * expected.abs() + 1e-37, "gelu({x}) = {found}, expected {expected}");
        }
    }

    #[test]
    fn the_ends_are_what_they_should_be() {
        assert_eq!(gelu_of(0.0), 0.0);
        assert_eq!(gelu_of(f32::INFINITY), f32::INFINITY);
        assert_eq!(gelu_of(1e30), 1e30);
        assert_eq!(gelu_of(-1e30), 0.0);
        assert!(gelu_of(f32::NAN).is_nan());
        let mut gradient = [1.0, 1.0, 1.0];
        Backward { input: &[0.0, 20.0, -20.0] }.over(&mut gradient, 1);
        assert_eq!(gradient, [0.5, 1.0, 0.0]);
    }
}
