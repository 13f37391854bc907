//! Long chains, and graphs that nobody goes back through.

use burn::tensor::Tensor;
use rekindle::{NoModule, Region, Rule};

use crate::common::*;

#[test]
fn ten_thousand_stages_under_sqrt_run_without_deep_recursion() {
    let _alone = alone();
    let run = || {
        let x = Tensor::<1>::ones([2], &device()).require_grad();
        let stages = vec![NoModule; 10_000];
        let region = Region::new().stages("stage", &stages, |_: &NoModule, x: Tensor<1>| x * 0.9999);
        let y = region.rule(Rule::SquareRoot).forward(x.clone()).unwrap();
        let gradients = y.sum().backward();
        x.grad(&gradients).unwrap().into_data().try_to_vec::<f32>().unwrap()
    };
    let small_stack = std::thread::Builder::new().stack_size(256 << 10);
    let gradient = small_stack.spawn(run).unwrap().join().unwrap();
    let expected = (0..10_000).fold(1.0f32, |product, _| product * 0.9999);
    assert_eq!(gradient, [expected, expected]);
}

#[test]
fn two_hundred_stages_under_full_recompute() {
    let _alone = alone();
    let x = Tensor::<1>::ones([2], &device()).require_grad();
    let stages = vec![NoModule; 200];
    let (y, kept) = rekindle::what_is_kept(|| {
        let region = Region::new().stages("stage", &stages, |_: &NoModule, x: Tensor<1>| x.sin());
        region.rule(Rule::Full).forward(x.clone()).unwrap()
    });
    assert_eq!(kept.rows().len(), 1, "{kept}");
    let gradient = x.grad(&y.sum().backward()).unwrap();
    let plain = (0..200).fold(x.clone(), |x, _| x.sin());
    assert_eq!(bytes(&gradient), bytes(&x.grad(&plain.sum().backward()).unwrap()));
}
