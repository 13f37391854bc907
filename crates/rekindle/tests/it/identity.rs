//! Loss and gradients equal plain training bit for bit.

use std::sync::atomic::{AtomicUsize, Ordering};

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsAccumulator, GradientsParams};
use burn::tensor::{Int, Tensor};
use rekindle::{Region, Rule, checkpoint};

use crate::common::*;

#[test]
fn a_region_under_every_rule() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(7, &device);
    let x = random([4, 8], &device);
    for rule in rules() {
        let (_, gradients) = same(&rule.to_string(), || {
            let loss = region(&blocks, rule, x.clone())?.powf_scalar(2.0).mean();
            let value = bytes(&loss);
            Ok((value, gradients(&blocks, loss.backward())))
        });
        assert_eq!(gradients.len(), 7 * 6);
        assert!(gradients.iter().all(Option::is_some));
    }
}

#[test]
fn one_module_at_a_time() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(4, &device);
    let x = random([4, 8], &device).require_grad();
    same("checkpoint", || {
        let mut hidden = x.clone();
        for one in &blocks {
            hidden = checkpoint(one, hidden, block)?;
        }
        let mut grads = hidden.powf_scalar(2.0).mean().backward();
        let input = bytes(&x.grad_remove(&mut grads).unwrap());
        Ok((input, gradients(&blocks, grads)))
    });
}

#[test]
fn stages_of_different_types() {
    let _alone = alone();
    let device = device();
    device.seed(2);
    let embedding = EmbeddingConfig::new(16, 8).init(&device);
    let blocks = blocks(3, &device);
    let head: Linear = LinearConfig::new(8, 16).init(&device);
    settle(&embedding);
    settle(&head);
    let tokens = Tensor::<2, Int>::from_data([[1, 5, 2, 9], [3, 3, 0, 15]], &device);
    for rule in rules() {
        same(&rule.to_string(), || {
            let logits = Region::new()
                .stage("embedding", &embedding, |m: &Embedding, x: Tensor<2, Int>| {
                    m.forward(x).flatten::<2>(0, 1)
                })
                .stages("block", &blocks, block)
                .stage("head", &head, |m: &Linear, x: Tensor<2>| m.forward(x))
                .rule(rule)
                .forward(tokens.clone())?;
            let all = (embedding.clone(), blocks.clone(), head.clone());
            let grads = logits.powf_scalar(2.0).mean().backward();
            let gradients = gradients(&all, grads);
            assert!(gradients.iter().all(Option::is_some));
            Ok(gradients)
        });
    }
}

/// Three uses of one tensor: the outer addition's gradient must be added up first, as in one graph.
#[test]
fn a_residual_around_the_region() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(3, &device);
    let stem: Linear = LinearConfig::new(8, 8).init(&device);
    settle(&stem);
    let x = random([4, 8], &device).require_grad();
    for rule in rules() {
        same(&rule.to_string(), || {
            let inner = stem.forward(x.clone());
            let y = region(&blocks, rule, inner.clone())?.sin() + inner;
            let mut grads = y.powf_scalar(2.0).mean().backward();
            let input = bytes(&x.grad_remove(&mut grads).unwrap());
            let all = (stem.clone(), blocks.clone());
            Ok((input, gradients(&all, grads)))
        });
        same(&format!("{rule} on a leaf"), || {
            let y = region(&blocks, rule, x.clone())?.sin() + x.clone();
            let mut grads = y.powf_scalar(2.0).mean().backward();
            let input = bytes(&x.grad_remove(&mut grads).unwrap());
            Ok((input, gradients(&blocks, grads)))
        });
    }
}

#[test]
fn regions_in_a_row() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(6, &device);
    let x = random([4, 8], &device);
    same("two regions", || {
        let hidden = region(&blocks[..3], Rule::EVERY_ONE, x.clone())?;
        let hidden = region(&blocks[3..], Rule::SquareRoot, hidden.sin())?;
        Ok(gradients(&blocks, hidden.powf_scalar(2.0).mean().backward()))
    });
}

#[test]
fn frozen_parameters_get_no_gradient_and_change_none() {
    let _alone = alone();
    let device = device();
    let x = random([4, 8], &device);
    for frozen in 0..5 {
        let mut blocks = blocks(5, &device);
        blocks[frozen] = blocks[frozen].clone().no_grad();
        blocks[2].up = blocks[2].up.clone().no_grad();
        for rule in rules() {
            let gradients = same(&format!("{rule}, block {frozen} frozen"), || {
                let y = region(&blocks, rule, x.clone())?;
                Ok(gradients(&blocks, y.powf_scalar(2.0).mean().backward()))
            });
            assert!(gradients[frozen * 6..frozen * 6 + 6].iter().all(Option::is_none));
        }
    }
}

#[test]
fn several_backward_passes_accumulate() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(4, &device);
    let x = random([4, 8], &device);
    same("accumulation", || {
        let mut accumulator = GradientsAccumulator::new();
        for step in 0..3 {
            let y = region(&blocks, Rule::EVERY_ONE, x.clone() * (step as f32 + 1.0))?;
            let grads = y.powf_scalar(2.0).mean().backward();
            accumulator.accumulate(&blocks, GradientsParams::from_grads(grads, &blocks));
        }
        let sums = accumulator.grads();
        let first = sums.get::<2>(blocks[0].up.weight.id).map(|gradient| bytes(&gradient));
        Ok((sums.len(), first))
    });
}

#[test]
fn two_graphs_at_once() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(4, &device);
    let x = random([4, 8], &device);
    same("forward, forward, backward, backward", || {
        let first = region(&blocks, Rule::EVERY_ONE, x.clone())?.mean();
        let second = region(&blocks, Rule::SquareRoot, x.clone().sin())?.mean();
        let of_first = gradients(&blocks, first.backward());
        Ok((of_first, gradients(&blocks, second.backward())))
    });
}

#[test]
fn the_optimizer_needs_to_know_nothing() {
    let _alone = alone();
    let device = device();
    let x = random([4, 8], &device);
    same("weights after five Adam steps", || {
        let mut model = blocks(3, &device);
        let mut optimizer = AdamConfig::new().init();
        for _ in 0..5 {
            let loss = region(&model, Rule::EVERY_ONE, x.clone())?.powf_scalar(2.0).mean();
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(1e-2, model, grads);
        }
        Ok(model.iter().map(|block| bytes(&block.up.weight.val())).collect::<Vec<_>>())
    });
}

#[test]
fn a_device_with_balanced_checkpointing() {
    let _alone = alone();
    let device = device().gradient_checkpointing();
    let blocks = blocks(5, &device);
    let x = random([4, 8], &device);
    for rule in rules() {
        same(&rule.to_string(), || {
            let y = region(&blocks, rule, x.clone())?;
            Ok(gradients(&blocks, y.powf_scalar(2.0).mean().backward()))
        });
    }
}

#[test]
fn evaluation_is_a_plain_call() {
    let _alone = alone();
    let device = device();
    let trained = blocks(3, &device);
    let model = trained.valid();
    let x = random([4, 8], &device).without_autodiff();
    let expected = model.iter().fold(x.clone(), |x, block| block.forward(x));
    let y = region(&model, Rule::EVERY_ONE, x.clone()).unwrap();
    assert!(!y.is_autodiff());
    assert_eq!(bytes(&y), bytes(&expected));
    let y = checkpoint(&model[0], x.clone(), block).unwrap();
    assert_eq!(bytes(&y), bytes(&model[0].forward(x)));
}

#[test]
fn evaluation_calls_each_stage_once() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let _alone = alone();
    let device = device();
    let model = blocks(3, &device).valid();
    let x = random([4, 8], &device).without_autodiff();
    for rule in rules() {
        CALLS.store(0, Ordering::Relaxed);
        let counted = |layer: &Block, x: Tensor<2>| {
            CALLS.fetch_add(1, Ordering::Relaxed);
            layer.forward(x)
        };
        Region::new().stages("block", &model, counted).rule(rule).forward(x.clone()).unwrap();
        assert_eq!(CALLS.load(Ordering::Relaxed), 3, "{rule}");
    }
}

#[test]
fn nothing_to_train_on_a_training_device() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(3, &device).no_grad();
    let x = random([4, 8], &device);
    same("untracked", || {
        let y = region(&blocks, Rule::EVERY_ONE, x.clone())?;
        assert!(!y.is_tracked());
        Ok(bytes(&y))
    });
}

#[test]
fn an_empty_region_hands_its_input_through() {
    let _alone = alone();
    let x = random([4, 8], &device()).require_grad();
    let y = region(&[], Rule::EVERY_ONE, x.clone()).unwrap();
    let gradient = x.grad(&y.sum().backward()).unwrap();
    assert_eq!(bytes(&gradient), bytes(&x.ones_like().without_autodiff()));
}
