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

/// A number between stages, or which of two options is there, is as good as a tensor to whoever reads it. It was once not compared, and
/// the gradient came out wrong.
#[test]
fn another_number_or_another_option_is_an_error() {
    let _alone = alone();
    let x = random([4, 8], &device()).require_grad();
    fn numbers(_: &NoModule, x: Tensor<2>) -> (Tensor<2>, f32) {
        (x.sin(), CALLS.fetch_add(1, SeqCst) as f32)
    }
    fn options(_: &NoModule, x: Tensor<2>) -> (Option<Tensor<2>>, Option<Tensor<2>>) {
        match CALLS.fetch_add(1, SeqCst) {
            0 => (Some(x.sin()), None),
            _ => (None, Some(x.sin())),
        }
    }
    let found = |y: Tensor<2>| match backward(&y.sum()).err().unwrap() {
        Error::StageChanged { stage, name, tensor, forward, recompute } => {
            assert_ne!(forward, recompute);
            (stage, name, tensor)
        }
        other => panic!("{other}"),
    };
    let first = || Region::new().stage("first", &NoModule, |_: &NoModule, x: Tensor<2>| x.tanh());
    let last = |_: &NoModule, x: Tensor<2>| x.tanh();
    CALLS.store(0, SeqCst);
    let region = first().stage("numbers", &NoModule, numbers);
    let region = region.stage("reads", &NoModule, |_: &NoModule, (x, by): (Tensor<2>, f32)| (x * by).tanh());
    let y = region.stage("last", &NoModule, last).rule(Rule::Full).forward(x.clone()).unwrap();
    assert_eq!(found(y), (2, "numbers".to_owned(), 1));
    CALLS.store(0, SeqCst);
    let region = first().stage("options", &NoModule, options);
    let region = region.stage(
        "reads",
        &NoModule,
        |_: &NoModule, (a, b): (Option<Tensor<2>>, Option<Tensor<2>>)| match (a, b) {
            (Some(a), _) => a * 2.0,
            (None, b) => b.unwrap() * 3.0,
        },
    );
    let y = region.stage("last", &NoModule, last).rule(Rule::Full).forward(x).unwrap();
    assert_eq!(found(y), (2, "options".to_owned(), 1));
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
