//! Profiles without running: what is counted, what is refused, and that nothing is left behind.

use std::cell::Cell;

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Bool, Int, Tensor};
use rekindle::{
    Boundary, Bytes, DeviceModel, DropoutConfig, Error, Nanos, NoModule, Nodes, Profile, Region, Rule,
    Traced, checkpoint, trace, trace_model,
};
use rekindle_plan::Request;
use rekindle_plan::solvers::Solver;

use crate::common::*;

fn some_device() -> DeviceModel {
    DeviceModel {
        name: "some".into(),
        matmul_flops_per_second: 1_000_000_000,
        memory_bytes_per_second: 1_000_000_000,
        overhead_ns_per_op: 100,
        tape_nodes: Nodes::default(),
    }
}

fn traced<I: Boundary, O: Boundary>(region: Region<I, O>, input: I) -> Result<Traced, Error> {
    trace("test", &region, input, &some_device())
}

fn linear(layer: &Linear, x: Tensor<2>) -> Tensor<2> {
    layer.forward(x)
}

#[test]
fn a_linear_layer_costs_what_the_formula_says() {
    let _alone = alone();
    let layer = LinearConfig::new(24, 40).init(&device());
    let x = Tensor::<2>::ones([16, 24], &device());
    let product = 2 * 16 * 24 * 40;
    for (x, products) in [(x.clone().require_grad(), 2), (x, 1)] {
        let traced = traced(Region::new().stage("linear", &layer, linear), x).unwrap();
        let [stage] = traced.stages() else { panic!("one stage") };
        assert_eq!(stage.forward.flops, product);
        assert_eq!(
            stage.backward.flops,
            products * product,
            "of the weights, and of the input if it is tracked"
        );
        assert_eq!(stage.parameter_bytes, Bytes::new(4 * (24 * 40 + 40)));
        // A product, and the bias added to what it made.
        let (product_bytes, sum_bytes) = (4 * (16 * 24 + 24 * 40 + 16 * 40), 4 * (16 * 40 + 40 + 16 * 40));
        assert_eq!(stage.forward.operations, 2);
        assert_eq!(stage.forward.moved_bytes, Bytes::new(product_bytes + sum_bytes));
        let profile = &traced.profile().stages()[0];
        assert_eq!(profile.parameter_gradient_bytes, stage.parameter_bytes);
        assert_eq!(profile.output_bytes, Bytes::new(4 * 16 * 40));
        assert_eq!(profile.tape_bytes, profile.output_bytes, "the input is not the stage's own");
        assert_eq!(profile.forward_ns, Nanos::new((product + 100) + (sum_bytes + 100)));
        assert_eq!(traced.profile().input_bytes(), Bytes::new(4 * 16 * 24));
    }
}

#[test]
fn a_convolution_costs_what_the_formula_says() {
    let _alone = alone();
    let layer = Conv2dConfig::new([3, 5], [3, 3]).with_stride([2, 2]).init(&device());
    let x = Tensor::<4>::ones([2, 3, 17, 17], &device()).require_grad();
    let region = Region::new().stage("convolution", &layer, |layer: &Conv2d, x: Tensor<4>| layer.forward(x));
    let traced = traced(region, x).unwrap();
    let forward = 2 * (2 * 5 * 8 * 8) * (3 * 3 * 3);
    assert_eq!(traced.stages()[0].forward.flops, forward);
    assert_eq!(traced.stages()[0].backward.flops, 2 * forward);
}

#[test]
fn stages_that_are_alike_are_gone_through_once_and_others_are_told_apart() {
    let _alone = alone();
    let device = device();
    let x = Tensor::<2>::ones([4, 8], &device).require_grad();
    let layers = blocks(5, &device);
    let alike = traced(Region::new().stages("block", &layers, block), x.clone()).unwrap();
    assert_eq!((alike.distinct_stages(), alike.stages().len()), (1, 5));
    let names: Vec<&str> = alike.profile().stages().iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(names, ["block.0", "block.1", "block.2", "block.3", "block.4"]);
    assert!(alike.to_string().contains("block.0 and 4 like it"), "{alike}");
    // Frozen, it goes back through less; the function is the same.
    let frozen = vec![layers[0].clone(), layers[1].clone().no_grad()];
    let frozen = traced(Region::new().stages("block", &frozen, block), x.clone()).unwrap();
    assert_eq!(frozen.distinct_stages(), 2);
    assert!(frozen.stages()[1].backward.flops < frozen.stages()[0].backward.flops);
    // One type, two widths of what lies between.
    let wide = [(8, 16), (16, 8), (8, 16)].map(|(from, to)| LinearConfig::new(from, to).init(&device));
    let region = wide.iter().fold(Region::new(), |region, layer| region.stage("linear", layer, linear));
    assert_eq!(traced(region, x.clone()).unwrap().distinct_stages(), 2);
    // The same operations, of which one stage hides some from the backward.
    let region = Region::new()
        .stage("through", &NoModule, |_: &NoModule, x: Tensor<2>| x.clone().tanh() + x)
        .stage("cut", &NoModule, |_: &NoModule, x: Tensor<2>| x.clone().tanh().detach() + x);
    let cut = traced(region, x).unwrap();
    assert_eq!(cut.distinct_stages(), 2);
    assert!(cut.profile().stages()[1].backward_ns < cut.profile().stages()[0].backward_ns);
}

#[test]
fn a_stage_that_reads_values_is_refused_by_name() {
    let _alone = alone();
    fn reads(_: &NoModule, x: Tensor<2>) -> Tensor<2> {
        let largest = x.clone().max().into_scalar::<f32>();
        x / largest
    }
    let layers = blocks(1, &device());
    let x = Tensor::<2>::ones([4, 8], &device()).require_grad();
    let region = || Region::new().stages("block", &layers, block).stage("reader", &NoModule, reads);
    for _ in 0..2 {
        let error = traced(region(), x.clone()).unwrap_err();
        assert!(matches!(&error, Error::Untraceable { stage: 2, name, .. } if name == "reader"), "{error}");
        assert!(error.to_string().starts_with("stage 2 (`reader`) cannot be traced: "), "{error}");
    }
    // Seeding, and tensors from elsewhere.
    let seeds = |_: &NoModule, x: Tensor<2>| {
        x.device().seed(1);
        x
    };
    let error = traced(Region::new().stage("seeds", &NoModule, seeds), x.clone()).unwrap_err();
    assert!(matches!(error, Error::Untraceable { stage: 1, .. }), "{error}");
    let elsewhere = |_: &NoModule, x: Tensor<2>| x + Tensor::<2>::ones([4, 8], &device());
    let error = traced(Region::new().stage("elsewhere", &NoModule, elsewhere), x.clone()).unwrap_err();
    assert!(matches!(error, Error::Untraceable { stage: 1, .. }), "{error}");
    // While the model is built.
    let built = trace_model("reader", &some_device(), |device| {
        let x = Tensor::<2>::ones([4, 8], device).require_grad();
        let sum = (x.clone() * 2.0).sum().into_scalar::<f32>();
        assert!(sum > 0.0);
        Ok::<_, Error>((Region::new().stage("tanh", &NoModule, |_: &NoModule, x: Tensor<2>| x.tanh()), x))
    });
    let error = built.unwrap_err();
    assert!(matches!(&error, Error::Untraceable { stage: 0, name, .. } if name == "reader"), "{error}");
    // What a stage fails with is handed on, and so is what building fails with.
    let fails = |_: &NoModule, _: Tensor<2>| Err::<Tensor<2>, _>(Error::Dropout { found: 2.0 });
    assert!(matches!(traced(Region::new().stage("fails", &NoModule, fails), x), Err(Error::Dropout { .. })));
    let built = trace_model("fails", &some_device(), |_| {
        Err::<(Region<Tensor<1>, Tensor<1>>, Tensor<1>), _>(Error::Untracked)
    });
    assert!(matches!(built, Err(Error::Untracked)));
    // And the next one is traced as if nothing had been.
    let x = Tensor::<2>::ones([4, 8], &device()).require_grad();
    assert!(traced(Region::new().stages("block", &layers, block), x).is_ok());
}

#[test]
fn what_makes_no_profile_is_an_error() {
    let _alone = alone();
    let x = Tensor::<2>::ones([4, 8], &device());
    let none = traced(Region::<Tensor<2>, Tensor<2>>::new(), x.clone().require_grad());
    assert!(matches!(none, Err(Error::Profile(_))));
    let tanh = || Region::new().stage("tanh", &NoModule, |_: &NoModule, x: Tensor<2>| x.tanh());
    assert!(matches!(traced(tanh(), x.clone()), Err(Error::Untracked)));
    let side = x.clone().require_grad() * 2.0;
    let times = |_: &NoModule, x: Tensor<2>, side: Tensor<2>| x * side;
    let region = Region::new().stage_with("side", &NoModule, side, times);
    assert!(matches!(traced(region, x.require_grad()), Err(Error::TrackedCapture { stage: 1, .. })));
}

/// Tokens, a mask, a number, two outputs of which one has no gradient.
#[test]
fn boundaries_of_all_kinds_are_traced() {
    let _alone = alone();
    #[derive(Boundary)]
    struct Hidden {
        x: Tensor<3>,
        mask: Tensor<2, Bool>,
        depth: usize,
    }
    let device = device();
    let embedding = EmbeddingConfig::new(50, 8).init(&device);
    let layer = LinearConfig::new(8, 8).init(&device);
    let region = Region::new()
        .stage("embedding", &embedding, |embedding: &Embedding, tokens: Tensor<2, Int>| Hidden {
            x: embedding.forward(tokens.clone()),
            mask: tokens.equal_elem(0),
            depth: 3,
        })
        .stage("linear", &layer, |layer: &Linear, hidden: Hidden| {
            let mask = hidden.mask.unsqueeze_dim::<3>(2).expand([2, 6, 8]);
            let x = (0..hidden.depth).fold(hidden.x, |x, _| layer.forward(x).mask_fill(mask.clone(), 0.0));
            (x, mask)
        });
    let traced = traced(region, Tensor::<2, Int>::zeros([2, 6], &device)).unwrap();
    let [embedding, linear] = traced.profile().stages() else { panic!("two stages") };
    let floats = 2 * 6 * 8 * 4;
    assert_eq!(traced.profile().input_bytes(), Bytes::new(2 * 6 * 4));
    assert_eq!(embedding.output_bytes, Bytes::new(floats + 2 * 6));
    assert_eq!(embedding.gradient_bytes, Some(Bytes::new(floats)));
    assert_eq!(linear.output_bytes, Bytes::new(floats + 2 * 6 * 8));
    // A shared parameter is one parameter; three products forward and six back.
    assert_eq!(traced.stages()[1].parameter_bytes, Bytes::new(4 * (8 * 8 + 8)));
    assert_eq!(traced.stages()[1].forward.flops, 3 * 2 * 2 * 6 * 8 * 8);
    assert_eq!(traced.stages()[1].backward.flops, 6 * 2 * 2 * 6 * 8 * 8);
}

#[test]
fn a_dropout_keeps_its_mask_when_asked_to_and_draws_nothing() {
    let _alone = alone();
    let device = device();
    let ours = DropoutConfig::new(0.5).init().unwrap();
    let keeping = DropoutConfig::new(0.5).with_keep_mask(true).init().unwrap();
    let burns = burn::nn::DropoutConfig::new(0.5).init();
    let x = Tensor::<2>::ones([32, 32], &device).require_grad();
    let drawn = || {
        let drawn = |_: &NoModule, x: Tensor<2>| {
            x.clone() * Tensor::random(x.shape(), burn::tensor::Distribution::Default, &x.device())
        };
        bytes(&checkpoint(&NoModule, x.clone(), drawn).unwrap())
    };
    rekindle::seed(4);
    let before = drawn();
    rekindle::seed(4);
    let region = Region::new()
        .stage("ours", &ours, |dropout: &rekindle::Dropout, x: Tensor<2>| dropout.forward(x))
        .stage("keeping", &keeping, |dropout: &rekindle::Dropout, x: Tensor<2>| dropout.forward(x))
        .stage("burns", &burns, |dropout: &burn::nn::Dropout, x: Tensor<2>| dropout.forward(x));
    let traced = traced(region, x.clone()).unwrap();
    assert_eq!(drawn(), before, "tracing takes no seed");
    // The output, and the mask where it is kept.
    let tapes: Vec<u64> = traced.profile().stages().iter().map(|stage| stage.tape_bytes.get()).collect();
    assert_eq!(tapes[..2], [32 * 32 * 4, 2 * 32 * 32 * 4]);
}

#[test]
fn regions_inside_a_stage_are_traced_as_if_there_were_none() {
    let _alone = alone();
    let layers = blocks(2, &device());
    let x = Tensor::<2>::ones([4, 8], &device()).require_grad();
    let plain = |layers: &Vec<Block>, x: Tensor<2>| layers.iter().fold(x, |x, layer| layer.forward(x));
    let nested = |layers: &Vec<Block>, x: Tensor<2>| {
        Region::new().stages("block", layers, block).rule(Rule::Full).forward(x)
    };
    let plain = traced(Region::new().stage("all", &layers, plain), x.clone()).unwrap();
    let nested = traced(Region::new().stage("all", &layers, nested), x).unwrap();
    assert_eq!(plain.profile(), nested.profile());
}

#[test]
fn the_balanced_tape_is_smaller_and_takes_longer() {
    let _alone = alone();
    let x = Tensor::<2>::ones([64, 64], &device()).require_grad();
    let region = Region::new()
        .stage("chain", &NoModule, |_: &NoModule, x: Tensor<2>| (x.exp() * 2.0).sqrt().exp().tanh());
    let traced = traced(region, x).unwrap();
    let stage = &traced.profile().stages()[0];
    let [balanced] = &stage.options[..] else { panic!("one option") };
    assert_eq!(balanced.name.as_str(), "balanced");
    assert!(balanced.tape_bytes < stage.tape_bytes, "{balanced:?} {stage:?}");
    assert!(balanced.backward_ns > stage.backward_ns, "{balanced:?} {stage:?}");
}

#[test]
fn a_traced_profile_is_planned_written_and_read_like_any_other() {
    let _alone = alone();
    let device = device();
    let layers = blocks(8, &device);
    let x = Tensor::<2>::ones([16, 8], &device).require_grad();
    let region = || Region::new().stages("block", &layers, block);
    let profile = traced(region(), x.clone()).unwrap().into_profile();
    assert_eq!(Profile::from_json(&profile.to_json()).unwrap(), profile);
    let all: u64 = profile.stages().iter().map(|stage| stage.tape_bytes.get()).sum();
    let plan = Solver::Optimal.solve(&profile, &Request::new(Bytes::new(all / 2))).unwrap();
    let y = region().plan_for(plan, profile).forward(x.clone()).unwrap();
    assert!(x.grad(&y.sum().backward()).is_some());
}

#[test]
fn a_device_is_measured_quickly_and_kept_in_a_file() {
    let _alone = alone();
    let start = std::time::Instant::now();
    let model = DeviceModel::measure(&device());
    assert!(start.elapsed().as_secs() < 5, "some tenths of a second on a quiet machine");
    assert_eq!(model.name, "flex");
    assert!(
        model.matmul_flops_per_second > 100_000_000 && model.memory_bytes_per_second > 100_000_000,
        "{model:?}"
    );
    let text = serde_json::to_string(&model).unwrap();
    assert_eq!(serde_json::from_str::<DeviceModel>(&text).unwrap(), model);
    // One that can do nothing takes longer than can be written down.
    let still = DeviceModel { matmul_flops_per_second: 0, ..model };
    let layer = LinearConfig::new(8, 8).init(&device());
    let x = Tensor::<2>::ones([4, 8], &device()).require_grad();
    let result = trace("still", &Region::new().stage("linear", &layer, linear), x, &still);
    assert!(matches!(result, Err(Error::Profile(_))));
}

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

#[test]
fn tracing_again_gives_the_same_and_calls_a_stage_a_handful_of_times() {
    let _alone = alone();
    let counted = |_: &NoModule, x: Tensor<2>| {
        CALLS.set(CALLS.get() + 1);
        x.tanh()
    };
    let region = || (0..10).fold(Region::new(), |region, _| region.stage("tanh", &NoModule, counted));
    let x = Tensor::<2>::ones([4, 8], &device()).require_grad();
    let first = traced(region(), x.clone()).unwrap();
    assert_eq!(
        CALLS.replace(0),
        10 + 3,
        "forward each, and of one of them back under two options, and without a reader"
    );
    assert_eq!(traced(region(), x).unwrap().profile(), first.profile());
}
