//! Batch norm and convolutions as nodes: Burn's values and gradients, its running statistics, and the same bits under every plan.

use std::sync::MutexGuard;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::module::{Module, Param, RunningState};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{DType, Device, Distribution, Int, Shape, Tensor, TensorData, Tolerance};
use rekindle::nn::{batch_norm, batch_norm_relu, conv2d};
use rekindle::{Region, Rule, tail};

use crate::common::*;

/// One test at a time, and the same numbers in every run.
fn seeded() -> MutexGuard<'static, ()> {
    let alone = alone();
    device().seed(9);
    alone
}

fn normal<const D: usize>(shape: [usize; D], dtype: DType) -> Tensor<D> {
    Tensor::<D>::random(shape, Distribution::Normal(0.0, 1.0), &device()).cast(dtype)
}

/// A norm of parameters that are not all alike.
fn norm(channels: usize, dtype: DType) -> BatchNorm {
    let norm = BatchNormConfig::new(channels).init(&device());
    BatchNorm {
        gamma: Param::from_tensor(normal([channels], dtype)),
        beta: Param::from_tensor(normal([channels], dtype)),
        running_mean: RunningState::new(Tensor::zeros([channels], (&device(), dtype))),
        running_var: RunningState::new(Tensor::ones([channels], (&device(), dtype))),
        ..norm
    }
}

/// The same parameters with running statistics of their own.
fn again(norm: &BatchNorm) -> BatchNorm {
    let own = |state: &RunningState<Tensor<1>>| RunningState::new(state.value_sync());
    BatchNorm { running_mean: own(&norm.running_mean), running_var: own(&norm.running_var), ..norm.clone() }
}

/// What two forwards and a backward make: the output, the gradients of input, gamma and beta, and the statistics.
fn run<const D: usize>(
    norm: &BatchNorm,
    x: &Tensor<D>,
    forward: impl Fn(Tensor<D>, &BatchNorm) -> Tensor<D>,
) -> Vec<TensorData> {
    let norm = again(norm);
    let x = x.clone().detach().require_grad();
    forward(x.clone() * 2.0, &norm);
    let output = forward(x.clone(), &norm);
    let count = output.shape().num_elements() as i64;
    let weights = Tensor::<1, Int>::arange(0..count, &device()).float().sin();
    let weights = weights.cast(output.dtype()).reshape(output.shape());
    let gradients = (output.clone() * weights).sum().backward();
    let of = |param: &Param<Tensor<1>>| param.val().grad(&gradients).unwrap().into_data();
    vec![
        output.into_data(),
        x.grad(&gradients).unwrap().into_data(),
        of(&norm.gamma),
        of(&norm.beta),
        norm.running_mean.value_sync().into_data(),
        norm.running_var.value_sync().into_data(),
    ]
}

fn agree(what: &str, found: &[TensorData], expected: &[TensorData]) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!((found.dtype(), found.shape()), (expected.dtype(), expected.shape()), "{what}, {index}");
        match found.dtype() {
            DType::F64 => found.assert_approx_eq::<f64>(expected, Tolerance::absolute(1e-7)),
            _ => found.assert_approx_eq::<f32>(expected, Tolerance::rel_abs(2e-4, 1e-4)),
        }
    }
}

fn agrees<const D: usize>(shape: [usize; D], dtype: DType) {
    let norm = norm(shape[1], dtype);
    let x = normal(shape, dtype) * 3.0 + 1.0;
    let what = format!("{shape:?}, {dtype:?}");
    agree(&what, &run(&norm, &x, batch_norm), &run(&norm, &x, |x, norm| norm.forward(x)));
    let (ours, burns) = (run(&norm, &x, batch_norm_relu), run(&norm, &x, |x, norm| relu(norm.forward(x))));
    agree(&format!("{what}, rectified"), &ours, &burns);
}

#[test]
fn batch_norm_agrees_with_burns() {
    let _alone = seeded();
    for dtype in [DType::F32, DType::F64] {
        for shape in [[1, 1, 2, 1], [1, 3, 1, 5], [7, 1, 1, 1], [2, 5, 3, 7], [3, 20, 9, 8], [4, 3, 33, 31]] {
            agrees(shape, dtype);
        }
        for shape in [[1, 2, 3], [5, 4, 17]] {
            agrees(shape, dtype);
        }
        for shape in [[2, 1], [9, 6], [300, 33]] {
            agrees(shape, dtype);
        }
    }
}

#[test]
fn an_input_in_an_order_of_its_own_and_far_from_zero_agrees() {
    let _alone = seeded();
    let norm = norm(5, DType::F32);
    let x = (normal([3, 4, 5, 6], DType::F32) + 50.0).swap_dims(1, 2);
    let (ours, burns) = (run(&norm, &x, batch_norm_relu), run(&norm, &x, |x, norm| relu(norm.forward(x))));
    agree("swapped", &ours, &burns);
}

#[test]
fn what_is_not_a_number_stays_none() {
    let _alone = seeded();
    let norm = norm(2, DType::F32);
    let x = Tensor::<3>::from_data([[[1.0, f32::NAN, 2.0], [0.5, 1.0, -1.0]]], &device());
    let (ours, burns) = (run(&norm, &x, batch_norm_relu), run(&norm, &x, |x, norm| relu(norm.forward(x))));
    for (ours, burns) in ours.iter().zip(&burns) {
        for (ours, burns) in ours.iter::<f32>().zip(burns.iter::<f32>()) {
            assert!((ours - burns).abs() < 1e-4 || (ours.is_nan() && burns.is_nan()), "{ours}, {burns}");
        }
    }
}

#[test]
fn the_bits_are_the_same_on_any_number_of_threads() {
    let _alone = seeded();
    let (norm, x) = (norm(19, DType::F32), normal([6, 19, 40, 37], DType::F32));
    let on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| run(&norm, &x, batch_norm_relu))
    };
    let found = on(1);
    assert!(on(2) == found && on(7) == found);
}

/// An update that waits has the strategy of its step: Burn's own module panics in the next one under another.
#[test]
fn statistics_are_taken_over_by_a_step_under_another_strategy() {
    let _alone = seeded();
    let norm = norm(2, DType::F32);
    let x = normal([4, 2, 3, 3], DType::F32).into_data();
    let steps = |devices: [Device; 3]| {
        let norm = again(&norm);
        for device in devices {
            let x = Tensor::<4>::from_data(x.clone(), &device);
            let on = |param: &Param<Tensor<1>>| {
                Param::from_tensor(Tensor::from_data(param.val().into_data(), &device))
            };
            batch_norm(x, &BatchNorm { gamma: on(&norm.gamma), beta: on(&norm.beta), ..norm.clone() });
        }
        bytes(&norm.running_mean.value_sync())
    };
    let balanced = || device().gradient_checkpointing();
    assert!(steps([device(), balanced(), device()]) == steps([device(), device(), device()]));
}

/// Without autodiff, and in a module that is frozen, Burn's own goes by the running statistics, which do not move.
#[test]
fn evaluation_goes_by_the_running_statistics() {
    let _alone = seeded();
    let norm = norm(4, DType::F32);
    let x = normal([8, 4, 3, 3], DType::F32) + 2.0;
    batch_norm(x.clone(), &norm);
    let mean = norm.running_mean.value_sync().into_data();
    let still = norm.valid();
    let inner = x.clone().inner();
    assert_eq!(batch_norm_relu(inner.clone(), &still).into_data(), relu(still.forward(inner)).into_data());
    let frozen = BatchNorm { training: Param::from_bool(false), ..norm.clone() };
    assert_eq!(batch_norm(x.clone(), &frozen).into_data(), frozen.forward(x).into_data());
    assert_eq!(norm.running_mean.value_sync().into_data(), mean);
}

#[test]
fn an_input_of_sixteen_bits_goes_with_parameters_of_thirty_two() {
    let _alone = seeded();
    let norm = norm(3, DType::F32);
    let x = normal([4, 3, 5, 5], DType::F32);
    for dtype in [DType::BF16, DType::F16] {
        let narrow = x.clone().cast(dtype);
        let found = run(&norm, &narrow, batch_norm_relu);
        let expected = run(&norm, &narrow.cast(DType::F32), batch_norm_relu);
        assert_eq!((found[0].dtype(), found[1].dtype(), found[2].dtype()), (dtype, dtype, DType::F32));
        for (found, expected) in found.into_iter().zip(&expected) {
            found.convert::<f32>().assert_approx_eq::<f32>(expected, Tolerance::rel_abs(2e-2, 2e-2));
        }
    }
}

#[test]
#[should_panic(expected = "axis 1 expected 4, got 3")]
fn another_number_of_channels_is_refused_as_burn_does() {
    let _alone = seeded();
    batch_norm(normal([2, 3, 4, 4], DType::F32), &norm(4, DType::F32));
}

#[test]
fn a_convolution_has_the_bits_of_burns() {
    let _alone = seeded();
    for (channels, size, stride, padding, dilation, groups) in [
        ([3, 4], [1, 1], [1, 1], [0, 0], [1, 1], 1),
        ([3, 4], [3, 3], [1, 1], [1, 1], [1, 1], 1),
        ([4, 6], [3, 2], [2, 1], [0, 1], [1, 2], 2),
        ([5, 5], [2, 2], [3, 2], [1, 0], [2, 1], 5),
    ] {
        let config = Conv2dConfig::new(channels, size)
            .with_stride(stride)
            .with_padding(PaddingConfig2d::Explicit(padding[0], padding[1], padding[0], padding[1]))
            .with_dilation(dilation)
            .with_groups(groups);
        for bias in [true, false] {
            let layer: Conv2d = config.clone().with_bias(bias).init(&device());
            settle(&layer);
            let x = normal([2, channels[0], 9, 8], DType::F32);
            let step = |ours: bool| {
                let x = x.clone().detach().require_grad();
                let y = match ours {
                    true => convolved(&layer, x.clone()),
                    false => layer.forward(x.clone()),
                };
                let all = y.clone().powf_scalar(2.0).sum().backward();
                (bytes(&y), bytes(&x.grad(&all).unwrap()), gradients(&layer, all))
            };
            assert!(step(true) == step(false), "{config:?}, bias: {bias}");
        }
    }
}

fn convolved(layer: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    let PaddingConfig2d::Explicit(top, left, ..) = layer.padding else { panic!("{:?}", layer.padding) };
    let options = ConvOptions::new(layer.stride, [top, left], layer.dilation, layer.groups);
    conv2d(x, layer.weight.val(), layer.bias.as_ref().map(|bias| bias.val()), options)
}

#[test]
#[should_panic(expected = "conv2d")]
fn channels_that_do_not_go_together_are_refused_as_burn_does() {
    let _alone = seeded();
    let (x, weight) = (normal([1, 3, 4, 4], DType::F32), normal([2, 4, 1, 1], DType::F32));
    conv2d(x, weight, None, ConvOptions::new([1, 1], [0, 0], [1, 1], 1));
}

#[derive(Module, Debug)]
struct Normed {
    norm: BatchNorm,
    convolution: Conv2d,
}

impl Normed {
    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let activated = batch_norm_relu(x.clone(), &self.norm);
        tail(|| {
            let y = x + convolved(&self.convolution, activated);
            // Nothing but the stage's caller may look at this: it is `NaN` where it was left out.
            UNMADE.fetch_add(usize::from(y.to_data().iter::<f32>().all(f32::is_nan)), Ordering::Relaxed);
            y
        })
    }
}

/// How often a tail was left out.
static UNMADE: AtomicUsize = AtomicUsize::new(0);

fn layers(device: &Device) -> Vec<Normed> {
    device.seed(4);
    let convolution = Conv2dConfig::new([4, 4], [3, 3]).with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1));
    let layer =
        |_| Normed { norm: BatchNormConfig::new(4).init(device), convolution: convolution.init(device) };
    let layers: Vec<Normed> = (0..5).map(layer).collect();
    settle(&layers);
    layers
}

/// Two steps on fresh layers: gradients of both, and statistics after each half.
fn steps(device: &Device, rule: Rule) -> Result<Vec<Vec<u8>>, rekindle::Error> {
    let layers = layers(device);
    let statistics = || {
        let both = |layer: &Normed| {
            let norm = &layer.norm;
            [bytes(&norm.running_mean.value_sync()), bytes(&norm.running_var.value_sync())]
        };
        layers.iter().flat_map(both).collect::<Vec<_>>()
    };
    let mut seen = vec![];
    for step in 1..3 {
        device.seed(step);
        let x = Tensor::<4>::random(Shape::new([2, 4, 6, 5]), Distribution::Normal(0.5, 1.0), device);
        let y = Region::new().stages("layer", &layers, Normed::forward).rule(rule).forward(x)?;
        seen.extend(statistics());
        let found = gradients(&layers, y.powf_scalar(2.0).mean().backward());
        seen.extend(found.into_iter().flatten());
        seen.extend(statistics());
    }
    Ok(seen)
}

#[test]
fn plans_have_the_bits_of_plain_training_and_statistics_move_once() {
    let _alone = seeded();
    for device in [device(), device().gradient_checkpointing()] {
        for rule in rules() {
            same(&rule.to_string(), || steps(&device, rule));
        }
    }
}

#[test]
fn a_convolution_at_the_end_is_left_out() {
    let _alone = seeded();
    UNMADE.store(0, Ordering::Relaxed);
    steps(&device(), Rule::EVERY_ONE).unwrap();
    // The last stage keeps its tape in the forward; two steps of the other four.
    assert_eq!(UNMADE.load(Ordering::Relaxed), 2 * 4);
}
