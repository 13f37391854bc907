//! Parameters and tensors that are used more than once: their gradients are sums, and sums of floats have an order.

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Tensor;
use rekindle::{Region, Rule, checkpoint};

use crate::common::*;

/// Uses its weight three times.
fn thrice(linear: &Linear, x: Tensor<2>) -> Tensor<2> {
    let step = |x| linear.forward(x).tanh();
    step(step(step(x)))
}

fn linear() -> Linear {
    let device = device();
    device.seed(8);
    let linear = LinearConfig::new(8, 8).init(&device);
    settle(&linear);
    linear
}

#[test]
fn one_module_in_every_stage() {
    let _alone = alone();
    let shared = linear();
    let modules = vec![shared.clone(); 5];
    let x = random([4, 8], &device());
    for rule in rules() {
        same(&rule.to_string(), || {
            let y = Region::new().stages("step", &modules, thrice).rule(rule).forward(x.clone())?;
            Ok(gradients(&shared, y.powf_scalar(2.0).mean().backward()))
        });
    }
}

/// A recurrent cell, checkpointed a chunk at a time: each chunk adds to what the later ones have added up.
#[test]
fn one_module_in_many_checkpoints() {
    let _alone = alone();
    let cell = linear();
    let x = random([4, 8], &device());
    same("chunks", || {
        let mut hidden = x.clone();
        for _ in 0..6 {
            hidden = checkpoint(&cell, hidden, thrice)?;
        }
        Ok(gradients(&cell, hidden.powf_scalar(2.0).mean().backward()))
    });
}

#[derive(Module, Debug)]
struct Tied {
    first: Linear,
    second: Linear,
}

#[test]
fn a_parameter_that_stands_twice_in_one_module() {
    let _alone = alone();
    let first = linear();
    let tied = Tied { second: first.clone(), first };
    let modules = vec![tied.clone(), tied.clone(), tied.clone()];
    let x = random([4, 8], &device());
    for rule in rules() {
        same(&rule.to_string(), || {
            let forward = |tied: &Tied, x: Tensor<2>| {
                let hidden = tied.second.forward(tied.first.forward(x).tanh()).tanh();
                tied.first.forward(hidden)
            };
            let y = Region::new().stages("tied", &modules, forward).rule(rule).forward(x.clone())?;
            Ok(gradients(&tied, y.powf_scalar(2.0).mean().backward()))
        });
    }
}

#[test]
fn one_tensor_as_two_inputs() {
    let _alone = alone();
    let linear = linear();
    let x = random([4, 8], &device()).require_grad();
    same("twice the same", || {
        let double = x.clone() * 2.0;
        let y = checkpoint(
            &linear,
            (double.clone(), double.clone()),
            |m: &Linear, (a, b): (Tensor<2>, Tensor<2>)| m.forward(a).tanh() * b,
        )?;
        let mut grads = y.powf_scalar(2.0).mean().backward();
        let input = bytes(&x.grad_remove(&mut grads).unwrap());
        Ok((input, gradients(&linear, grads)))
    });
}

#[test]
fn adapters_on_frozen_weights() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(3, &device).apply_lora(burn::module::Lora::new(2, 4.0));
    settle(&blocks);
    let x = random([4, 8], &device);
    for rule in [Rule::EVERY_ONE, Rule::StoreAll] {
        let found = same(&rule.to_string(), || {
            let y = region(&blocks, rule, x.clone())?;
            Ok(gradients(&blocks, y.powf_scalar(2.0).mean().backward()))
        });
        assert!(found.iter().any(Option::is_some) && found.iter().any(Option::is_none));
    }
}

#[derive(Module, Debug)]
struct Scales {
    used: Param<Tensor<2>>,
    unused: Param<Tensor<2>>,
}

/// A sum of one element looks like the mark by which the hub finds out whether there is one.
#[test]
fn a_parameter_of_one_element_in_many_checkpoints() {
    let _alone = alone();
    let one = || Param::from_tensor(random([1, 1], &device()));
    let scales = Scales { used: one(), unused: one() };
    settle(&scales);
    let x = random([5, 3], &device()).require_grad();
    let found = same("one element", || {
        let mut hidden = x.clone();
        for _ in 0..4 {
            hidden = checkpoint(&scales, hidden, |scales: &Scales, x: Tensor<2>| {
                let scale = scales.used.val();
                ((x * scale.clone()).tanh() * scale.clone()).tanh() * scale
            })?;
        }
        let mut grads = (hidden * scales.used.val()).sum().backward();
        let input = bytes(&x.grad_remove(&mut grads).unwrap());
        Ok((input, gradients(&scales, grads)))
    });
    assert!(found.1.iter().any(Option::is_some) && found.1.iter().any(Option::is_none), "{found:?}");
}

#[test]
fn an_output_that_somebody_holds_and_nobody_goes_back_through() {
    let _alone = alone();
    let cell = linear();
    let x = random([4, 8], &device());
    same("two outputs", || {
        let two = |cell: &Linear, x: Tensor<2>| (thrice(cell, x.clone()), cell.forward(x));
        let (first, held) = checkpoint(&cell, x.clone(), two)?;
        let dropped = checkpoint(&cell, first.clone(), two)?.0;
        let last = checkpoint(&cell, dropped, thrice)?;
        let found = gradients(&cell, last.powf_scalar(2.0).mean().backward());
        drop((first, held));
        Ok(found)
    });
}
