//! Random numbers are replayed, and what is drawn outside a region is the same with and without it.

use burn::tensor::{Distribution, Tensor};
use rekindle::{NoModule, Region, Rule, checkpoint, without_checkpointing};

use crate::common::*;

fn noise(_: &NoModule, x: Tensor<2>) -> Tensor<2> {
    let noise = Tensor::random_like(&x, Distribution::Default);
    x * noise
}

#[test]
fn a_stage_draws_the_same_when_it_is_run_again() {
    let _alone = alone();
    let x = Tensor::<2>::ones([8, 8], &device()).require_grad();
    for rule in rules() {
        rekindle::seed(1);
        let y =
            Region::new().stages("noise", &vec![NoModule; 5], noise).rule(rule).forward(x.clone()).unwrap();
        // y = x * n1 * ... * n5, so x * dy/dx is y itself, if the backward draws what the forward drew.
        let gradient = x.grad(&y.clone().sum().backward()).unwrap();
        let difference = (gradient - y.without_autodiff()).abs().max().into_scalar::<f32>();
        assert!(difference < 1e-6, "{rule}: {difference}");
    }
}

#[test]
fn what_is_drawn_around_regions_is_the_same_without_them() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(3, &device);
    for rule in rules() {
        same(&rule.to_string(), || {
            let mut seen = vec![];
            for _ in 0..3 {
                // Before, between and after regions, and after their backward.
                let x = Tensor::<2>::random([4, 8], Distribution::Default, &device);
                let hidden = region(&blocks, rule, x)?;
                let between = Tensor::<2>::random([4, 8], Distribution::Default, &device);
                let hidden = checkpoint(&blocks[0], hidden * between, block)?;
                let after = Tensor::<2>::random([4, 8], Distribution::Default, &device);
                let loss = (hidden * after).powf_scalar(2.0).mean();
                seen.push(bytes(&loss));
                seen.extend(gradients(&blocks, loss.backward()).into_iter().flatten());
            }
            Ok(seen)
        });
    }
}

#[test]
fn steps_draw_different_numbers() {
    let _alone = alone();
    let x = Tensor::<2>::ones([8, 8], &device()).require_grad();
    let draw = || bytes(&checkpoint(&NoModule, x.clone(), noise).unwrap());
    rekindle::seed(1);
    let (first, second) = (draw(), draw());
    assert_ne!(first, second);
    rekindle::seed(1);
    assert_eq!(first, draw());
    rekindle::seed(2);
    assert_ne!(first, draw());
}

thread_local! {
    static LAST: std::cell::Cell<Vec<u8>> = const { std::cell::Cell::new(Vec::new()) };
}

#[test]
fn what_follows_a_backward_does_not_repeat_a_recomputation() {
    let _alone = alone();
    let device = device();
    let x = Tensor::<2>::ones([8, 8], &device).require_grad();
    rekindle::seed(1);
    // What is left of a stage's numbers once it has drawn its own.
    fn and_more(_: &NoModule, x: Tensor<2>) -> Tensor<2> {
        let drawn = Tensor::<2>::random([8, 8], Distribution::Default, &x.device());
        LAST.set(bytes(&Tensor::<2>::random([8, 8], Distribution::Default, &x.device())));
        // Not the second: it is drawn in every run, but what follows the first is what would follow a recomputation.
        x * drawn
    }
    fn once(_: &NoModule, x: Tensor<2>) -> Tensor<2> {
        let drawn = Tensor::<2>::random([8, 8], Distribution::Default, &x.device());
        x * drawn
    }
    let outside = |stage: fn(&NoModule, Tensor<2>) -> Tensor<2>| {
        rekindle::seed(1);
        checkpoint(&NoModule, x.clone(), stage).unwrap().sum().backward();
        bytes(&Tensor::<2>::random([8, 8], Distribution::Default, &device))
    };
    let followed = outside(and_more);
    let next = LAST.take();
    let after_once = outside(once);
    assert_ne!(after_once, next, "the stage's own sequence must not go on outside of it");
    assert_eq!(after_once, followed, "what follows does not depend on how much a recomputation drew");
}

#[test]
fn parameters_that_are_not_initialised_yet_do_not_disturb_the_seeds() {
    let _alone = alone();
    let device = device();
    let x = random([4, 8], &device);
    let step = |model: &[Block]| {
        rekindle::seed(9);
        let y = region(model, Rule::EVERY_ONE, x.clone()).unwrap();
        gradients(&model.to_vec(), y.powf_scalar(2.0).mean().backward())
    };
    device.seed(21);
    let lazy: Vec<Block> = (0..3).map(|_| Block::new(8, &device)).collect();
    let first = step(&lazy);
    assert_eq!(first, step(&lazy), "the first step, which initialises, equals the second");
    rekindle::seed(9);
    let plain = without_checkpointing(|| {
        let y = region(&lazy, Rule::EVERY_ONE, x.clone()).unwrap();
        gradients(&lazy, y.powf_scalar(2.0).mean().backward())
    });
    assert_eq!(first, plain);
}
