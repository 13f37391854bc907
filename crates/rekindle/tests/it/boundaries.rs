//! Trees of tensors between stages.

use burn::nn::Linear;
use burn::tensor::{Bool, Int, Tensor};
use rekindle::{Boundary, Region, checkpoint};

use crate::common::*;

#[derive(Boundary)]
struct Hidden {
    value: Tensor<2>,
    memory: Option<Tensor<2>>,
    rows: Tensor<1, Int>,
    mask: Tensor<2, Bool>,
    history: Vec<Tensor<2>>,
    pair: [Tensor<2>; 2],
    depth: usize,
    scale: (f32, bool),
}

#[derive(Boundary)]
struct Wrapped<T>(T, ());

fn step(block: &Block, hidden: Wrapped<Hidden>) -> Wrapped<Hidden> {
    let mut hidden = hidden.0;
    let value = block.forward(hidden.value.mask_fill(hidden.mask.clone(), 0.5));
    let value = value.select(0, hidden.rows.clone());
    hidden.value = match &hidden.memory {
        Some(memory) => value * memory.clone() * hidden.scale.0,
        None => value,
    };
    hidden.history.push(hidden.value.clone() + hidden.pair[0].clone());
    hidden.pair.swap(0, 1);
    hidden.depth += 1;
    hidden.scale.1 = !hidden.scale.1;
    Wrapped(hidden, ())
}

#[test]
fn a_struct_of_everything_crosses_every_stage() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(4, &device);
    // A leaf for each: a sum of three or more has an order (see the crate's page).
    let leaf = |scale: f32| (random([4, 8], &device) * scale).require_grad();
    let (x, memory, past, pair) = (leaf(1.0), leaf(0.5), leaf(1.5), [leaf(2.0), leaf(0.7)]);
    for with_memory in [true, false] {
        for rule in rules() {
            same(&rule.to_string(), || {
                let input = Hidden {
                    value: x.clone() * 1.5,
                    memory: with_memory.then(|| memory.clone().exp()),
                    rows: Tensor::from_data([3, 1, 2, 0], &device),
                    mask: x.clone().lower_elem(-1.0),
                    history: vec![past.clone()],
                    pair: pair.clone().map(|one| one * 2.0),
                    depth: 3,
                    scale: (0.25, false),
                };
                let region = Region::new().stages("step", &blocks, step).rule(rule);
                let output = region.forward(Wrapped(input, ()))?.0;
                assert_eq!((output.depth, output.history.len()), (7, 5));
                assert_eq!((output.scale, output.memory.is_some()), ((0.25, false), with_memory));
                let history = Tensor::stack::<3>(output.history, 0);
                let loss = (output.value.sum() + history.powf_scalar(2.0).sum()).sin();
                let rows = output.rows.to_data().as_bytes().to_vec();
                let mut grads = loss.backward();
                let leaves = [&x, &past, &pair[0], &pair[1]];
                let input = leaves.map(|leaf| bytes(&leaf.grad_remove(&mut grads).unwrap()));
                let memory = memory.grad_remove(&mut grads).map(|gradient| bytes(&gradient));
                assert_eq!(memory.is_some(), with_memory);
                Ok((rows, input, memory, gradients(&blocks, grads)))
            });
        }
    }
}

#[test]
fn outputs_that_nobody_uses() {
    let _alone = alone();
    let device = device();
    let block = &blocks(1, &device)[0];
    let x = random([4, 8], &device).require_grad();
    for (first, second) in [(true, false), (false, true), (true, true)] {
        let found = same(&format!("{first} {second}"), || {
            let (up, down) = checkpoint(block, x.clone(), |block: &Block, x: Tensor<2>| {
                let up = block.up.forward(x.clone());
                (up, block.norm.forward(x))
            })?;
            let mut loss = x.clone().sum();
            if first {
                loss = loss + up.powf_scalar(2.0).sum();
            }
            if second {
                loss = loss + down.powf_scalar(2.0).sum();
            }
            Ok(gradients(block, loss.backward()))
        });
        // norm gamma and beta, up weight and bias, down weight and bias
        let expected = [second, second, first, first, false, false];
        assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn a_tensor_that_passes_through_untracked_stays_untracked() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(3, &device);
    let (x, bias) = (random([4, 8], &device), random([4, 8], &device));
    for rule in rules() {
        let region =
            Region::new().stages("block", &blocks, |block: &Block, (x, bias): (Tensor<2>, Tensor<2>)| {
                (block.forward(x) + bias.clone(), bias)
            });
        let (y, bias) = region.rule(rule).forward((x.clone(), bias.clone())).unwrap();
        assert!(y.is_tracked());
        assert!(!bias.is_tracked(), "{rule}");
    }
}

#[test]
fn more_inputs_than_an_operation_has_parents() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(1, &device);
    let x = random([4, 8], &device);
    let leaves: Vec<Tensor<2>> = (0..20).map(|i| (x.clone() * (i as f32 / 7.0)).require_grad()).collect();
    same("twenty inputs", || {
        let many: Vec<Tensor<2>> = leaves.iter().map(|leaf| leaf.clone() * 2.0).collect();
        let y = checkpoint(&blocks[0].up, many, |linear: &Linear, many: Vec<Tensor<2>>| {
            many.into_iter().map(|x| linear.forward(x)).collect::<Vec<_>>()
        })?;
        let sum = y.into_iter().reduce(|a, b| a.sin() + b).unwrap();
        let mut grads = sum.mean().backward();
        let of = |leaf: &Tensor<2>, grads: &mut _| bytes(&leaf.grad_remove(grads).unwrap());
        let inputs: Vec<_> = leaves.iter().map(|leaf| of(leaf, &mut grads)).collect();
        Ok((inputs, gradients(&blocks, grads)))
    });
}

#[test]
fn int_and_bool_outputs_have_the_same_values() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(1, &device);
    let x = random([4, 8], &device);
    same("int and bool", || {
        let (y, best, positive) = checkpoint(&blocks[0], x.clone(), |block: &Block, x: Tensor<2>| {
            let y = block.forward(x);
            (y.clone(), y.clone().argmax(1), y.greater_elem(0.0))
        })?;
        let gradients = gradients(&blocks, y.sum().backward());
        let data = [best.into_data(), positive.into_data()].map(|data| data.as_bytes().to_vec());
        Ok((data, gradients))
    });
}

#[test]
fn masks_beside_the_boundary() {
    let _alone = alone();
    for device in [device(), device().gradient_checkpointing()] {
        let blocks = blocks(4, &device);
        let x = random([4, 8], &device);
        let mask = x.clone().greater_elem(0.5);
        for rule in rules() {
            same(&rule.to_string(), || {
                let step = |block: &Block, x: Tensor<2>, (mask, scale): (Tensor<2, Bool>, Tensor<2>)| {
                    block.forward(x.mask_fill(mask, 0.1)) * scale
                };
                let side = (mask.clone(), x.clone().exp());
                let region = Region::new().stages_with("block", &blocks, side, step).rule(rule);
                let y = region.forward(x.clone())?;
                Ok(gradients(&blocks, y.powf_scalar(2.0).mean().backward()))
            });
        }
    }
}
