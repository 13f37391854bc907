//! A stage that does something else when it is run again is named.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use burn::tensor::Tensor;
use rekindle::{Checks, Error, NoModule, Region, Rule, backward, checkpoint};

use crate::common::*;

static CALLS: AtomicUsize = AtomicUsize::new(0);

fn grows(_: &NoModule, x: Tensor<2>) -> Tensor<2> {
    match CALLS.fetch_add(1, SeqCst) {
        0 => x,
        _ => Tensor::cat(vec![x.clone(), x], 0),
    }
}

fn drifts(_: &NoModule, x: Tensor<2>) -> Tensor<2> {
    x * (1.0 + CALLS.fetch_add(1, SeqCst) as f32)
}

#[test]
fn another_shape_is_an_error_before_anything_is_computed_wrongly() {
    let _alone = alone();
    CALLS.store(0, SeqCst);
    let x = random([4, 8], &device()).require_grad();
    let y = checkpoint(&NoModule, x, grows).unwrap();
    let error = backward(&y.sum()).err().unwrap();
    let Error::StageChanged { stage, forward, recompute, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((*stage, forward.as_str(), recompute.as_str()), (1, "f32[4, 8]", "f32[8, 8]"));
}

#[test]
fn burns_own_backward_panics_with_the_same_words() {
    let _alone = alone();
    CALLS.store(0, SeqCst);
    let x = random([4, 8], &device()).require_grad();
    let y = checkpoint(&NoModule, x, grows).unwrap();
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| y.sum().backward()));
    let message = panic.err().unwrap().downcast::<String>().unwrap();
    assert!(message.contains("stage 1 (`checkpoint`) made f32[8, 8]"), "{message}");
}

#[test]
fn training_goes_on_after_an_error() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(3, &device);
    let x = random([4, 8], &device);
    let step = || {
        rekindle::seed(1);
        let y = region(&blocks, Rule::EVERY_ONE, x.clone()).unwrap();
        gradients(&blocks, backward(&y.powf_scalar(2.0).mean()).unwrap())
    };
    let before = step();
    CALLS.store(0, SeqCst);
    let hidden = region(&blocks, Rule::EVERY_ONE, x.clone()).unwrap();
    let y = checkpoint(&NoModule, hidden, grows).unwrap();
    assert!(backward(&y.sum()).is_err());
    assert_eq!(before, step());
}

#[test]
fn other_values_are_found_by_checksums() {
    let _alone = alone();
    let x = random([4, 8], &device()).require_grad();
    let run = |checks| {
        CALLS.store(0, SeqCst);
        let region = Region::new().stage("steady", &NoModule, |_: &NoModule, x: Tensor<2>| x.tanh());
        let region = region.stage("drifting", &NoModule, drifts).stage(
            "after",
            &NoModule,
            |_: &NoModule, x: Tensor<2>| x.tanh(),
        );
        let y = region.checks(checks).forward(x.clone()).unwrap();
        backward(&y.sum())
    };
    assert!(run(Checks::Shapes).is_ok());
    let error = run(Checks::Checksums).err().unwrap();
    let Error::StageChanged { stage, name, forward, recompute, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((*stage, name.as_str()), (2, "drifting"));
    assert_ne!(forward, recompute);
    assert!(forward.starts_with("f32[4, 8] with checksum "));
}

#[test]
fn checksums_find_nothing_where_nothing_differs() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(5, &device);
    let x = random([4, 8], &device);
    for rule in rules() {
        let region = Region::new().stages("block", &blocks, block).rule(rule).checks(Checks::Checksums);
        backward(&region.forward(x.clone()).unwrap().sum()).unwrap();
    }
}
