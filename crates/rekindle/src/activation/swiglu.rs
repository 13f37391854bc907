//! The gated unit of Llama's perceptron.

use burn::backend::tensor::FloatTensor;
use burn::tensor::Tensor;

use crate::kernel::Kernel;
use crate::node::{AnyTensor, Found, GraphBackend, Operation, apply_widened, elements, rewrite_from};
use crate::rows::sigmoid;

/// `silu(gate) * up`, where `silu(x)` is `x` times its sigmoid: what Burn's `SwiGlu` computes between its linear layers.
///
/// The backward reads the two inputs and computes the sigmoid again; Burn's operations keep that, and the product, too.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use rekindle::activation::swiglu;
///
/// let device = Device::flex().autodiff();
/// let gate = Tensor::<1>::from_data([0.0, 20.0, -200.0], &device);
/// let y: Vec<f32> = swiglu(gate, Tensor::from_data([5.0, 3.0, 1.0], &device)).into_data().try_to_vec()?;
/// assert_eq!(y, [0.0, 60.0, 0.0]);
/// # Ok::<(), burn::tensor::DataError>(())
/// ```
///
/// # Panics
/// As Burn's multiplication: when the shapes do not go together.
pub fn swiglu<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    let plain = |gate: Tensor<D>, up: Tensor<D>| burn::tensor::activation::silu(gate) * up;
    if gate.dims() != up.dims() || gate.dtype() != up.dtype() {
        return plain(gate, up);
    }
    let dtype = gate.dtype();
    apply_widened(SwiGlu, [AnyTensor::from(gate), AnyTensor::from(up)], dtype)
        .map(|output| Tensor::from_dispatch(output.0))
        .unwrap_or_else(|[gate, up]| plain(Tensor::from_dispatch(gate.0), Tensor::from_dispatch(up.0)))
}

#[derive(Clone, Copy, Debug)]
struct SwiGlu;

impl Operation<2> for SwiGlu {
    const READS: [bool; 2] = [true; 2];
    const CHEAP: bool = true;

    fn forward<B: GraphBackend>(self, [gate, up]: [FloatTensor<B>; 2]) -> FloatTensor<B> {
        rewrite_from::<B>(gate, &up, |up, gate| Forward { up }.over(gate, 1)).unwrap_or_else(|gate| {
            let sigmoid = B::sigmoid(gate.clone());
            B::float_mul(B::float_mul(gate, sigmoid), up)
        })
    }

    fn backward<B: GraphBackend>(self, found: Found<B, 2>) -> [Option<FloatTensor<B>>; 2] {
        let [Some(gate), Some(up)] = found.inputs else { return [None, None] };
        let gradient = found.gradient;
        let lying =
            elements::<B>(&gate).zip(elements::<B>(&up)).filter(|_| elements::<B>(&gradient).is_some());
        let Some((gate_at, up_at)) = lying else {
            return by_operations::<B>(gate, up, gradient);
        };
        // Out of reach is none of them.
        let over = |gradient: FloatTensor<B>, kernel: &dyn Fn(&mut [f32])| {
            rewrite_from::<B>(gradient, &gate, |_, elements| kernel(elements)).unwrap_or_else(|same| same)
        };
        let of_up = found.wanted[1]
            .then(|| over(gradient.clone(), &|elements| OfUp { gate: gate_at }.over(elements, 1)));
        let of_gate = found.wanted[0]
            .then(|| over(gradient, &|elements| OfGate { gate: gate_at, up: up_at }.over(elements, 1)));
        [of_gate, of_up]
    }
}

fn by_operations<B: GraphBackend>(
    gate: FloatTensor<B>,
    up: FloatTensor<B>,
    gradient: FloatTensor<B>,
) -> [Option<FloatTensor<B>>; 2] {
    let sigmoid = B::sigmoid(gate.clone());
    let silu = B::float_mul(gate, sigmoid.clone());
    // The derivative of silu is s + x s (1 - s), where x s is silu itself.
    let slope =
        B::float_sub(B::float_add(sigmoid.clone(), silu.clone()), B::float_mul(silu.clone(), sigmoid));
    let of_gate = B::float_mul(B::float_mul(gradient.clone(), up), slope);
    [Some(of_gate), Some(B::float_mul(gradient, silu))]
}

#[inline(always)]
fn silu(x: f32) -> f32 {
    let y = x * sigmoid(x);
    // Minus infinity times nothing.
    if x < -200.0 { 0.0 } else { y }
}

/// Writes the output over the gate.
struct Forward<'a> {
    up: &'a [f32],
}

impl Kernel for Forward<'_> {
    #[inline(always)]
    fn run(&self, first: usize, gate: &mut [f32]) {
        for (gate, up) in gate.iter_mut().zip(&self.up[first..]) {
            *gate = silu(*gate) * up;
        }
    }
}

/// Writes the gradient of `up` over that of the output.
struct OfUp<'a> {
    gate: &'a [f32],
}

impl Kernel for OfUp<'_> {
    #[inline(always)]
    fn run(&self, first: usize, gradient: &mut [f32]) {
        for (gradient, gate) in gradient.iter_mut().zip(&self.gate[first..]) {
            *gradient *= silu(*gate);
        }
    }
}

/// Writes the gradient of the gate over that of the output.
struct OfGate<'a> {
    gate: &'a [f32],
    up: &'a [f32],
}

impl Kernel for OfGate<'_> {
    #[inline(always)]
    fn run(&self, first: usize, gradient: &mut [f32]) {
        let inputs = self.gate[first..].iter().zip(&self.up[first..]);
        for (gradient, (gate, up)) in gradient.iter_mut().zip(inputs) {
            let (sigmoid, silu) = (sigmoid(*gate), silu(*gate));
            *gradient = *gradient * up * (sigmoid + silu * (1.0 - sigmoid));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silu_is_right_to_the_last_digits_and_at_its_ends() {
        for step in -86_900..=86_900 {
            let x = step as f32 * 1e-3;
            let exact = f64::from(x) / (1.0 + (-f64::from(x)).exp());
            let found = f64::from(silu(x));
            assert!(
                (found - exact).abs() <= 4e-7 * exact.abs() + 1e-36,
                "silu({x}) = {found}, expected {exact}"
            );
        }
        assert_eq!(silu(f32::NEG_INFINITY), 0.0);
        assert_eq!(silu(f32::INFINITY), f32::INFINITY);
        assert!(silu(f32::NAN).is_nan());
    }
}
