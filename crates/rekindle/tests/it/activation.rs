//! Our activations against Burn's: the same values and gradients, within rounding.

use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Distribution, Shape, Tensor, TensorData, Tolerance, activation as burns};
use rekindle::Region;
use rekindle::activation::{gelu, gelu_tanh, softmax};

use crate::common::*;

fn normal<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 2.0), &device())
}

/// The value of `function`, and the gradient of its input when each of its elements counts differently.
fn both<const D: usize>(x: &Tensor<D>, function: impl Fn(Tensor<D>) -> Tensor<D>) -> [TensorData; 2] {
    let x = x.clone().detach().require_grad();
    let y = function(x.clone());
    let shape: Shape = y.shape();
    let weights = Tensor::<1, burn::tensor::Int>::arange(0..shape.num_elements() as i64, &device());
    let weights = weights.float().sin().cast(y.dtype()).reshape(shape);
    let gradients = (y.clone() * weights).sum().backward();
    [y.into_data(), x.grad(&gradients).unwrap().into_data()]
}

fn agree<const D: usize>(
    x: Tensor<D>,
    ours: impl Fn(Tensor<D>) -> Tensor<D>,
    theirs: impl Fn(Tensor<D>) -> Tensor<D>,
) {
    for (ours, theirs) in both(&x, ours).iter().zip(&both(&x, theirs)) {
        assert_eq!((ours.dtype(), ours.shape()), (theirs.dtype(), theirs.shape()));
        match ours.dtype() {
            DType::F64 => ours.assert_approx_eq::<f64>(theirs, Tolerance::absolute(1e-12)),
            _ => ours.assert_approx_eq::<f32>(theirs, Tolerance::absolute(2e-6)),
        }
    }
}

#[test]
fn softmax_agrees_with_burns_in_every_dimension_and_layout() {
    let _alone = alone();
    agree(normal([5]), |x| softmax(x, 0), |x| burns::softmax(x, 0));
    for dim in 0..3 {
        agree(normal([3, 1, 37]), |x| softmax(x, dim), |x| burns::softmax(x, dim));
    }
    // Large enough for several threads, and for a last piece that is not whole.
    agree(normal([301, 129]), |x| softmax(x, 1), |x| burns::softmax(x, 1));
    agree(normal([40, 50]), |x| softmax(x.transpose(), 1), |x| burns::softmax(x.transpose(), 1));
    let twice = normal([7, 9]).cast(DType::F64);
    agree(twice, |x| softmax(x, 1), |x| burns::softmax(x, 1));
}

#[test]
fn gelu_agrees_with_burns() {
    let _alone = alone();
    agree(normal([3, 5]), gelu, burns::gelu);
    agree(normal([301, 129]), gelu, burns::gelu);
    agree(normal([40, 50]), |x| gelu(x.transpose()), |x| burns::gelu(x.transpose()));
    agree(normal([7, 9]).cast(DType::F64), gelu, burns::gelu);
    // Nobody else holds this one: it is written over.
    agree(normal([200, 200]), |x| gelu(x * 2.0), |x| burns::gelu(x * 2.0));
}

#[test]
fn a_row_that_may_look_nowhere_but_at_itself_has_a_zero_gradient() {
    let _alone = alone();
    let none = f32::NEG_INFINITY;
    let x = Tensor::<2>::from_data([[0.5, none, none], [0.1, 0.2, none]], &device());
    let [y, gradient] = both(&x, |x| softmax(x, 1));
    assert_eq!(y.try_to_vec::<f32>().unwrap()[..3], [1.0, 0.0, 0.0]);
    assert_eq!(gradient.try_to_vec::<f32>().unwrap()[..3], [0.0, 0.0, 0.0]);
    assert!(gradient.try_to_vec::<f32>().unwrap().iter().all(|gradient| gradient.is_finite()));
}

#[test]
fn a_tensor_that_somebody_else_holds_is_not_written_over() {
    let _alone = alone();
    let x = normal([64, 64]).require_grad();
    let before = x.to_data();
    let y = gelu(x.clone());
    let held = y.to_data();
    let z = softmax(y.clone(), 1);
    let gradients = (z * 3.0 + y.clone()).sum().backward();
    assert_eq!(x.to_data(), before);
    assert_eq!(y.to_data(), held);
    assert!(x.grad(&gradients).is_some());
}

#[test]
fn they_have_the_same_bits_under_every_plan() {
    let _alone = alone();
    let layers: Vec<Linear> = (0..4).map(|_| LinearConfig::new(48, 48).init(&device())).collect();
    layers.iter().for_each(settle);
    let x = random([64, 48], &device());
    for rule in rules() {
        same("softmax and gelu", || {
            rekindle::seed(5);
            let x = x.clone().require_grad();
            let stage = |layer: &Linear, x: Tensor<2>| softmax(gelu(layer.forward(x)), 1);
            let y = Region::new().stages("layer", &layers, stage).rule(rule).forward(x.clone())?;
            let y = (y.clone() * y).sum();
            let all = y.backward();
            let of_x = bytes(&x.grad(&all).unwrap());
            Ok((bytes(&y), of_x, gradients(&layers, all)))
        });
    }
}

#[test]
fn gelu_by_tanh_is_what_its_formula_says() {
    let _alone = alone();
    device().seed(4);
    let formula = |x: Tensor<3>| {
        let inner = (x.clone() + x.clone().powi_scalar(3) * 0.044_715) * (2.0 / std::f32::consts::PI).sqrt();
        x * (inner.tanh() + 1.0) * 0.5
    };
    agree(normal([3, 40, 65]), gelu_tanh, formula);
    // In an order of its own, and of a type without a kernel.
    agree(normal([3, 40, 65]).swap_dims(0, 2), gelu_tanh, formula);
    let wide = normal([2, 3, 4]).cast(DType::F64);
    for (ours, theirs) in both(&wide, gelu_tanh).iter().zip(&both(&wide, formula)) {
        ours.assert_approx_eq::<f64>(theirs, Tolerance::absolute(1e-7));
    }
}
