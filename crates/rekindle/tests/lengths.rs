//! Sequences whose lengths change from step to step: a plan for each, made once.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use burn::tensor::Tensor;
use rekindle::{Budget, Bytes, Error, Planned, Planner, Region, Staged};
use rekindle_run::governor::ShapeCache;

#[path = "it/common.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::*;

struct Chain(Vec<Block>);

impl Staged for Chain {
    type Batch = Tensor<2>;
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn stages(&self, batch: &Tensor<2>) -> (Region<Tensor<2>, Tensor<2>>, Tensor<2>) {
        (Region::new().stages("block", &self.0, block), batch.clone())
    }
}

/// A batch of this length, with numbers of its own.
fn batch(length: usize, step: usize) -> Tensor<2> {
    let values = (0..length * 8).map(|index| ((index * 7 + step * 13) % 29) as f32 / 29.0);
    let values: Vec<f32> = values.collect();
    Tensor::<1>::from_floats(values.as_slice(), &device()).reshape([length, 8]).require_grad()
}

#[test]
fn lengths_that_change_from_step_to_step_have_plans_of_their_own_made_once() {
    let _alone = alone();
    let chain = Chain(blocks(6, &device()));
    let mut plans: ShapeCache<usize, Planned> = ShapeCache::new(4);
    let mut step = |length: usize, number: usize, checkpointed: bool| -> Result<_, Error> {
        rekindle::seed(number as u64);
        let x = batch(length, number);
        let y = match checkpointed {
            false => rekindle::without_checkpointing(|| {
                Region::new().stages("block", &chain.0, block).forward(x.clone())
            })?,
            true => {
                let make = || Planner::new(Budget::smallest()).plan(&chain, &x);
                let planned = plans.get_or_try_insert_with(length, make)?;
                // Planning has drawn numbers of its own.
                rekindle::seed(number as u64);
                planned.forward(&chain, &x)?
            }
        };
        let loss = y.sum();
        let all = rekindle::backward(&loss)?;
        Ok((bytes(&loss), bytes(&x.grad(&all).unwrap()), gradients(&chain.0, all)))
    };
    let lengths = [32, 64, 32, 64, 64, 32];
    for (number, length) in lengths.into_iter().enumerate() {
        let (ours, plain) = (step(length, number, true).unwrap(), step(length, number, false).unwrap());
        assert!(ours.2.iter().all(Option::is_some));
        assert_eq!(ours, plain, "step {number}, of length {length}");
    }
    assert_eq!((plans.misses(), plans.hits()), (2, 4));
    // Each is for its own length: half as long takes less, and is refused for the other.
    let mut of = |length: usize| plans.get_or_try_insert_with(length, || Err(())).unwrap().clone();
    let (short, long) = (of(32), of(64));
    let needs = |planned: &Planned| planned.budget_bytes().unwrap_or(Bytes::ZERO);
    assert!(needs(&short) < needs(&long), "{} and {}", needs(&short), needs(&long));
    assert!(short.forward(&chain, &batch(64, 0)).is_err());
}
