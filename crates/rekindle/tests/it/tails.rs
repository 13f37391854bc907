//! The end of a stage that a recomputation leaves out.

use std::sync::atomic::{AtomicUsize, Ordering};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor};
use rekindle::activation::gelu;
use rekindle::nn::linear;
use rekindle::{Checks, Dropout, DropoutConfig, Error, Measuring, NoModule, Nodes, Region, Rule, tail};

use crate::common::*;

#[derive(Module, Debug)]
struct Mlp {
    up: Linear,
    down: Linear,
    dropout: Dropout,
}

fn through(layer: &Linear, x: Tensor<2>) -> Tensor<2> {
    linear(x, layer.weight.val(), layer.bias.as_ref().map(|bias| bias.val()))
}

impl Mlp {
    fn new(dropout: f64, device: &Device) -> Self {
        Self {
            up: LinearConfig::new(8, 16).init(device),
            down: LinearConfig::new(16, 8).with_bias(false).init(device),
            dropout: DropoutConfig::new(dropout).init().unwrap(),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let hidden = gelu(through(&self.up, x.clone()));
        tail(|| {
            let y = self.dropout.add(x, through(&self.down, hidden));
            // Nothing but the stage's caller may look at this: it is `NaN` where it was left out.
            UNMADE.fetch_add(usize::from(y.to_data().iter::<f32>().all(f32::is_nan)), Ordering::Relaxed);
            y
        })
    }
}

/// How often a tail was left out.
static UNMADE: AtomicUsize = AtomicUsize::new(0);

fn layers(count: usize, device: &Device) -> Vec<Mlp> {
    device.seed(11);
    // Without dropout, the end is nothing but a sum.
    let layers: Vec<Mlp> =
        (0..count).map(|layer| Mlp::new(if layer % 2 == 0 { 0.3 } else { 0.0 }, device)).collect();
    settle(&layers);
    layers
}

#[test]
fn a_tail_is_left_out_once_for_each_segment_that_is_recomputed_and_gradients_stay_the_same() {
    let _alone = alone();
    let device = device();
    let layers = layers(6, &device);
    let x = random([4, 8], &device);
    let run = |rule: Rule| {
        let region = Region::new().stages("mlp", &layers, Mlp::forward).rule(rule);
        let y = region.forward(x.clone())?;
        Ok(gradients(&layers, y.powf_scalar(2.0).mean().backward()))
    };
    // Of the last segment, tapes are made in the forward pass, where everything is read.
    for (rule, unmade) in [("store-all", 0), ("every-1", 5), ("every-2", 2), ("every-3", 1), ("full", 6)] {
        let rule: Rule = rule.parse().unwrap();
        UNMADE.store(0, Ordering::Relaxed);
        run(rule).unwrap();
        assert_eq!(UNMADE.load(Ordering::Relaxed), unmade, "{rule}");
        same(&rule.to_string(), || run(rule));
    }
}

#[test]
fn a_tail_of_sixteen_bits_is_left_out_too() {
    let _alone = alone();
    let device = device();
    let layers = layers(3, &device);
    let x = random([4, 8], &device).cast(DType::BF16);
    UNMADE.store(0, Ordering::Relaxed);
    same("bf16", || {
        let region = Region::new().stages("mlp", &layers, Mlp::forward).rule(Rule::EVERY_ONE);
        let y = region.forward(x.clone())?;
        assert_eq!(y.dtype(), DType::BF16);
        Ok(gradients(&layers, y.cast(DType::F32).powf_scalar(2.0).mean().backward()))
    });
    assert_eq!(UNMADE.load(Ordering::Relaxed), 2);
}

#[test]
fn what_is_compared_is_made() {
    let _alone = alone();
    let device = device();
    let layers = layers(4, &device);
    UNMADE.store(0, Ordering::Relaxed);
    let region = Region::new().stages("mlp", &layers, Mlp::forward).rule(Rule::EVERY_ONE);
    let y = region.checks(Checks::Checksums).forward(random([4, 8], &device)).unwrap();
    rekindle::backward(&y.mean()).unwrap();
    assert_eq!(UNMADE.load(Ordering::Relaxed), 0);
}

#[test]
fn a_tail_that_its_own_backward_reads_is_an_error_not_a_wrong_gradient() {
    let _alone = alone();
    let device = device();
    device.seed(11);
    let weights: Vec<Linear> = (0..3).map(|_| LinearConfig::new(8, 8).init(&device)).collect();
    let wrong = |layer: &Linear, x: Tensor<2>| tail(|| gelu(through(layer, x)));
    let region = Region::new().stages("layer", &weights, wrong).rule(Rule::EVERY_ONE);
    let y = region.forward(random([4, 8], &device)).unwrap();
    let error = rekindle::backward(&y.mean()).err().unwrap();
    assert!(matches!(&error, Error::TailRead { stage: 2, name } if name == "layer.1"), "{error}");
}

#[test]
fn a_region_inside_of_a_tail_has_tails_of_its_own() {
    let _alone = alone();
    let device = device();
    let layers = layers(4, &device);
    let x = random([4, 8], &device);
    let outer = |pair: &Vec<Mlp>, x: Tensor<2>| {
        tail(|| Region::new().stages("mlp", pair, Mlp::forward).rule(Rule::EVERY_ONE).forward(x))
    };
    let pairs: Vec<Vec<Mlp>> = layers.chunks(2).map(<[Mlp]>::to_vec).collect();
    same("nested", || {
        let region = Region::new().stages("pair", &pairs, outer).rule(Rule::EVERY_ONE);
        Ok(gradients(&pairs, region.forward(x.clone())?.powf_scalar(2.0).mean().backward()))
    });
}

#[test]
fn measuring_says_what_a_tail_takes() {
    let _alone = alone();
    let device = device();
    device.seed(11);
    let layer = LinearConfig::new(256, 512).init(&device);
    settle(&layer);
    let region = Region::new()
        .stage("with", &layer, |layer: &Linear, x: Tensor<2>| tail(|| through(layer, x)))
        .stage("without", &NoModule, |_: &NoModule, x: Tensor<2>| gelu(x));
    let x = Tensor::<2>::ones([512, 256], &device);
    let measured = region
        .measure(x, Measuring { runs: 5, options: true, ..Measuring::default() }, &mut |_, _| {})
        .unwrap();
    let [with, without] = &measured.stages[..] else { panic!() };
    // Without its product there is next to nothing left of the stage.
    assert!(with.unread_ns.get() > with.forward_ns.get() / 2, "{with:?}");
    assert_eq!(without.unread_ns.get(), 0);
    assert!(measured.into_profile("tails", "flex").is_ok());
}

#[cfg(feature = "capture")]
#[test]
fn tracing_says_what_a_tail_takes() {
    let _alone = alone();
    let device = device();
    let layer = LinearConfig::new(256, 512).init(&device);
    let region = Region::new()
        .stage("with", &layer, |layer: &Linear, x: Tensor<2>| tail(|| through(layer, x)))
        .stage("without", &NoModule, |_: &NoModule, x: Tensor<2>| gelu(x));
    let model = rekindle::DeviceModel {
        name: "any".to_owned(),
        matmul_flops_per_second: 1_000_000_000,
        memory_bytes_per_second: 10_000_000_000,
        overhead_ns_per_op: 0,
        tape_nodes: Nodes::default(),
    };
    let traced = rekindle::trace("tails", &region, Tensor::<2>::ones([512, 256], &device), &model).unwrap();
    let profile = traced.into_profile();
    let [with, without] = profile.stages() else { panic!() };
    assert!(with.unread_ns.get() > with.forward_ns.get() / 2, "{with:?}");
    assert_eq!(without.unread_ns.get(), 0);
}
