//! Micro-batches, loss scaling, clipping and activations of 16 bits, as users have them.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{DType, Device, Distribution, Int, Tensor, Tolerance};
use rekindle::activation::{gelu, swiglu};
use rekindle::nn::{LinearCrossEntropy, layer_norm, linear, rms_norm};
use rekindle::training::{Accumulation, LossScale, clip_by_norm, global_norm};
use rekindle::{Attention, DropoutConfig, Error, Region, Rule};

use crate::common::{alone, device};

#[derive(Module, Debug)]
struct Layer {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Layer {
    fn new(device: &Device) -> Self {
        Self {
            norm: LayerNormConfig::new(16).init(device),
            up: LinearConfig::new(16, 32).init(device),
            down: LinearConfig::new(32, 16).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let run =
            |x, layer: &Linear| linear(x, layer.weight.val(), layer.bias.as_ref().map(|bias| bias.val()));
        let normed =
            layer_norm(x.clone(), self.norm.gamma.val(), self.norm.beta.as_ref().map(|b| b.val()), 1e-5);
        let dropout = DropoutConfig::new(0.1).init().unwrap();
        dropout.add(x, run(gelu(run(normed, &self.up)), &self.down))
    }
}

#[derive(Module, Debug)]
struct Model {
    layers: Vec<Layer>,
    head: Linear,
}

impl Model {
    fn new(device: &Device) -> Self {
        device.seed(11);
        let model = Self {
            layers: (0..4).map(|_| Layer::new(device)).collect(),
            head: LinearConfig::new(16, 8).init(device),
        };
        // Weights are drawn when they are first looked at.
        let _ = bytes_of(&model, &GradientsParams::new());
        model
    }

    fn loss(&self, x: Tensor<2>, targets: Tensor<1, Int>, rule: Rule) -> Result<Tensor<1>, Error> {
        Region::new()
            .stages("layer", &self.layers, Layer::forward)
            .stage_with("head", &self.head, targets, |head: &Linear, x: Tensor<2>, targets| {
                let bias = head.bias.as_ref().map(|bias| bias.val());
                LinearCrossEntropy::new().forward(x, head.weight.val(), bias, targets)
            })
            .rule(rule)
            .forward(x)
    }
}

/// The bytes of all weights and gradients.
fn bytes_of(model: &impl Module, gradients: &GradientsParams) -> Vec<Vec<u8>> {
    struct Read<'a>(&'a GradientsParams, Vec<Vec<u8>>);
    impl ModuleVisitor for Read<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1.push(param.val().to_data().as_bytes().to_vec());
            self.1.extend(self.0.get::<D>(param.id).map(|gradient| gradient.to_data().as_bytes().to_vec()));
        }
    }
    let mut read = Read(gradients, Vec::new());
    model.visit(&mut read);
    read.1
}

fn batch(device: &Device, rows: usize, dtype: DType) -> (Tensor<2>, Tensor<1, Int>) {
    device.seed(5);
    let x = Tensor::<2>::random([rows, 16], Distribution::Normal(0.0, 1.0), device).cast(dtype);
    let targets = Tensor::<1, Int>::arange(0..rows as i64, device).remainder_scalar(8);
    (x, targets)
}

/// The gradients of a batch in parts of these sizes.
fn in_parts(model: &Model, sizes: &[usize], rule: Rule, dtype: DType) -> (f32, GradientsParams) {
    let (x, targets) = batch(&device(), sizes.iter().sum(), dtype);
    rekindle::seed(3);
    let mut sum = Accumulation::new();
    let mut start = 0;
    for size in sizes {
        let rows = start..start + size;
        let (x, targets) = (x.clone().slice([rows.clone()]), targets.clone().slice([rows]));
        let loss = model.loss(x, targets, rule).unwrap();
        sum.add(model, loss, *size as f64 / sizes.iter().sum::<usize>() as f64).unwrap();
        start += size;
    }
    let sum = sum.finish().unwrap();
    (sum.loss.into_scalar(), sum.gradients)
}

const RULES: [Rule; 3] = [Rule::StoreAll, Rule::Full, Rule::EVERY_ONE];

#[test]
fn micro_batches_have_the_same_bits_under_every_plan() {
    let _alone = alone();
    let model = Model::new(&device());
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for sizes in [vec![12], vec![4, 4, 4], vec![5, 5, 2]] {
            let (loss, expected) =
                rekindle::without_checkpointing(|| in_parts(&model, &sizes, Rule::StoreAll, dtype));
            for rule in RULES {
                let (found, gradients) = in_parts(&model, &sizes, rule, dtype);
                assert_eq!(found.to_bits(), loss.to_bits(), "{dtype:?} {sizes:?} {rule}");
                assert!(
                    bytes_of(&model, &gradients) == bytes_of(&model, &expected),
                    "{dtype:?} {sizes:?} {rule}"
                );
            }
        }
    }
}

#[test]
fn micro_batches_come_to_the_gradients_of_the_whole_batch() {
    let _alone = alone();
    #[derive(Module, Debug)]
    struct Still {
        model: Linear,
    }
    let device = device();
    device.seed(2);
    let model = Still { model: LinearConfig::new(16, 8).init(&device) };
    let (x, targets) = batch(&device, 12, DType::F32);
    let step = |sizes: &[usize]| {
        let mut sum = Accumulation::new();
        let mut start = 0;
        for size in sizes {
            let rows = start..start + size;
            let loss = LinearCrossEntropy::new().forward(
                x.clone().slice([rows.clone()]),
                model.model.weight.val(),
                None,
                targets.clone().slice([rows]),
            );
            sum.add(&model, loss.unwrap(), *size as f64 / 12.0).unwrap();
            start += size;
        }
        let sum = sum.finish().unwrap();
        let gradient = sum.gradients.get::<2>(model.model.weight.id).unwrap();
        (sum.loss.into_data(), gradient.into_data())
    };
    let (loss, expected) = step(&[12]);
    for sizes in [vec![6, 6], vec![7, 5], vec![1; 12]] {
        let (found, gradient) = step(&sizes);
        found.assert_approx_eq::<f32>(&loss, Tolerance::default());
        gradient.assert_approx_eq::<f32>(&expected, Tolerance::default());
    }
}

#[test]
fn activations_of_16_bits_keep_weights_and_their_gradients_at_32() {
    let _alone = alone();
    let model = Model::new(&device());
    let (wide_loss, wide) = in_parts(&model, &[24], Rule::EVERY_ONE, DType::F32);
    for (dtype, allowed) in [(DType::BF16, 0.02), (DType::F16, 0.003)] {
        let (loss, gradients) = in_parts(&model, &[24], Rule::EVERY_ONE, dtype);
        assert!((loss - wide_loss).abs() < allowed * wide_loss, "{dtype:?}: {loss}, {wide_loss}");
        let of = |gradients: &GradientsParams| gradients.get::<2>(model.layers[0].up.weight.id).unwrap();
        let (found, expected) = (of(&gradients), of(&wide));
        assert_eq!(found.dtype(), DType::F32);
        let length = |x: Tensor<2>| x.powi_scalar(2).sum().sqrt().into_scalar::<f32>();
        let off = length(found - expected.clone()) / length(expected);
        assert!(off > 0.0 && off < 2.0 * allowed, "{dtype:?}: off by {off}");
    }
}

type Node<'a> = Box<dyn Fn(Tensor<2>) -> Tensor<2> + 'a>;

/// What each operation makes of 16 bits is what it makes of the same numbers in 32, rounded.
#[test]
fn every_node_rounds_once() {
    let _alone = alone();
    let device = device();
    device.seed(8);
    let random = |sizes: [usize; 2]| Tensor::<2>::random(sizes, Distribution::Normal(0.0, 1.0), &device);
    let (weight, gamma) = (random([16, 16]), random([1, 16]).flatten::<1>(0, 1));
    let nodes: Vec<(&str, Node<'_>)> = vec![
        ("linear", Box::new(|x| linear(x, weight.clone(), Some(gamma.clone())))),
        ("linear without bias", Box::new(|x| linear(x, weight.clone(), None))),
        ("layer norm", Box::new(|x| layer_norm(x, gamma.clone(), Some(gamma.clone()), 1e-5))),
        ("layer norm without beta", Box::new(|x| layer_norm(x, gamma.clone(), None, 1e-5))),
        ("rms norm", Box::new(|x| rms_norm(x, gamma.clone(), 1e-5))),
        ("gelu", Box::new(gelu)),
        ("swiglu", Box::new(|x| swiglu(x.clone(), x))),
        ("softmax", Box::new(|x| rekindle::activation::softmax(x, 1))),
        (
            "attention",
            Box::new(|x| {
                let x = x.reshape([1, 2, 10, 8]);
                Attention::new().causal().forward(x.clone(), x.clone(), x).unwrap().reshape([10, 16])
            }),
        ),
    ];
    for dtype in [DType::BF16, DType::F16] {
        for (name, node) in &nodes {
            let x = random([10, 16]).cast(dtype);
            let (narrow, wide) =
                (x.clone().detach().require_grad(), x.clone().cast(DType::F32).detach().require_grad());
            let (found, expected) = (node(narrow.clone()), node(wide.clone()));
            assert_eq!(found.dtype(), dtype, "{name}");
            assert_eq!(found.to_data(), expected.clone().cast(dtype).to_data(), "{name}, {dtype:?}");
            let grown = |x: &Tensor<2>, y: Tensor<2>| x.grad(&y.sum().backward()).unwrap();
            let (found, expected) = (grown(&narrow, found), grown(&wide, expected));
            assert_eq!(found.dtype(), dtype, "the gradient of {name}");
            let tolerance = Tolerance::absolute(0.05).set_relative(0.05);
            found.cast(DType::F32).into_data().assert_approx_eq::<f32>(&expected.into_data(), tolerance);
        }
    }
}

/// Where nothing is trained there is no node, and the types are the same.
#[test]
fn types_mix_without_autodiff_too() {
    let device = Device::flex();
    let (weight, gamma) = (Tensor::<2>::ones([4, 4], &device), Tensor::<1>::ones([4], &device));
    for dtype in [DType::BF16, DType::F16] {
        let x = Tensor::<2>::from_data([[0.5, -1.0, 2.0, 4.0]], (&device, dtype));
        let made = [
            linear(x.clone(), weight.clone(), Some(gamma.clone())),
            layer_norm(x.clone(), gamma.clone(), None, 1e-5),
            rms_norm(x.clone(), gamma.clone(), 1e-5),
            gelu(x.clone()),
            swiglu(x.clone(), x.clone()),
        ];
        assert!(made.iter().all(|made| made.dtype() == dtype), "{dtype:?}");
        let sums = made[0].clone().cast(DType::F32).into_data();
        assert_eq!(sums.try_to_vec::<f32>().unwrap(), [6.5; 4]);
        let targets = Tensor::<1, Int>::from_data([1], &device);
        let loss = LinearCrossEntropy::new().forward(x, weight.clone(), None, targets).unwrap();
        assert_eq!(loss.dtype(), DType::F32);
        assert!((loss.into_scalar::<f32>() - 4f32.ln()).abs() < 1e-6);
    }
}

#[test]
fn swiglu_is_burns() {
    let _alone = alone();
    let device = device();
    device.seed(4);
    let random = || Tensor::<2>::random([33, 40], Distribution::Normal(0.0, 3.0), &device).require_grad();
    let (gate, up) = (random(), random());
    let burns = burn::tensor::activation::silu(gate.clone()) * up.clone();
    let ours = swiglu(gate.clone(), up.clone());
    let close = |found: Tensor<2>, expected: Tensor<2>| {
        found.into_data().assert_approx_eq::<f32>(&expected.into_data(), Tolerance::default());
    };
    close(ours.clone(), burns.clone());
    let weights = Tensor::<2>::random([33, 40], Distribution::Default, &device);
    let (found, expected) = ((ours * weights.clone()).sum().backward(), (burns * weights).sum().backward());
    close(gate.grad(&found).unwrap(), gate.grad(&expected).unwrap());
    close(up.grad(&found).unwrap(), up.grad(&expected).unwrap());
    // Both inputs may be one, and in 64 bits.
    let x = Tensor::<1>::from_data([-2.0, 0.5], (&device, DType::F64)).require_grad();
    let y = swiglu(x.clone(), x.clone());
    let expected: Vec<f64> = [-2.0f64, 0.5].iter().map(|x| x * x / (1.0 + (-x).exp())).collect();
    y.clone().into_data().assert_approx_eq::<f64>(&expected.as_slice().into(), Tolerance::default());
    assert_eq!(x.grad(&y.sum().backward()).unwrap().dtype(), DType::F64);
    // Without autodiff there is no node, and the same values.
    let plain = Device::flex();
    let y = swiglu(Tensor::<1>::from_data([1.0], &plain), Tensor::from_data([2.0], &plain));
    assert!((y.into_scalar::<f32>() - 1.462_117).abs() < 1e-6);
}

#[test]
fn a_step_that_overflows_is_left_out_and_the_scale_lowered() {
    let _alone = alone();
    let device = device();
    let mut model = Model::new(&device);
    let mut optimizer = AdamConfig::new().init();
    let mut scale = LossScale::dynamic();
    assert_eq!(scale.scale(), 65_536.0);
    let (x, targets) = batch(&device, 12, DType::F16);
    let mut taken = 0;
    let mut losses = Vec::new();
    for step in 0..40 {
        rekindle::seed(step);
        // Weights this large make gradients that no f16 holds.
        let loss = model.loss(x.clone() * 40.0, targets.clone(), Rule::EVERY_ONE).unwrap();
        losses.push(loss.clone().into_scalar::<f32>());
        let mut sum = Accumulation::new();
        sum.add(&model, scale.up(loss.mul_scalar(64.0)), 1.0).unwrap();
        let before = bytes_of(&model, &GradientsParams::new());
        match scale.down(&model, sum.finish().unwrap().gradients).unwrap() {
            Ok(gradients) => {
                taken += 1;
                assert!(global_norm(&model, &gradients).unwrap().is_finite());
                model = optimizer.step(1e-3, model, gradients);
            }
            Err(overflow) => {
                assert_eq!(overflow.next, overflow.scale / 2.0);
                assert_eq!(scale.scale(), overflow.next);
                assert!(bytes_of(&model, &GradientsParams::new()) == before);
            }
        }
    }
    assert!(scale.skipped() > 0 && taken > 20, "{taken} taken, {} skipped", scale.skipped());
    assert_eq!(scale.skipped() + taken, 40);
    assert!(losses.iter().all(|loss| loss.is_finite()) && losses[39] < losses[0], "{losses:?}");
}

#[test]
fn a_scale_is_a_power_of_two_and_changes_no_digit() {
    let _alone = alone();
    let model = Model::new(&device());
    let of = |scale: LossScale| {
        let (x, targets) = batch(&device(), 12, DType::F32);
        rekindle::seed(3);
        let mut scale = scale;
        let mut sum = Accumulation::new();
        sum.add(&model, scale.up(model.loss(x, targets, Rule::EVERY_ONE).unwrap()), 1.0).unwrap();
        let gradients = scale.down(&model, sum.finish().unwrap().gradients).unwrap().unwrap();
        bytes_of(&model, &gradients)
    };
    assert!(of(LossScale::none()) == of(LossScale::fixed(1024.0).unwrap()));
    for bad in [0.0, 3.0, 0.5, -2.0, f32::NAN, f32::INFINITY, 33_554_432.0] {
        let error = LossScale::fixed(bad).unwrap_err();
        assert!(matches!(error, Error::LossScale { .. }), "{error}");
    }
}

#[test]
fn a_scale_that_was_saved_goes_on() {
    let _alone = alone();
    let scale = LossScale::dynamic();
    let text = serde_json::to_string(&scale).unwrap();
    assert_eq!(serde_json::from_str::<LossScale>(&text).unwrap(), scale);
}

#[test]
fn gradients_are_clipped_together() {
    let _alone = alone();
    let model = Model::new(&device());
    let (_, gradients) = in_parts(&model, &[12], Rule::EVERY_ONE, DType::F32);
    let norm = global_norm(&model, &gradients).unwrap();
    assert!(norm > 0.1);
    let before = bytes_of(&model, &gradients);
    let loose = clip_by_norm(&model, gradients, norm * 1.01).unwrap();
    assert!(bytes_of(&model, &loose.gradients) == before, "short enough is left alone");
    let tight = clip_by_norm(&model, loose.gradients, norm / 4.0).unwrap();
    assert_eq!(tight.norm, norm);
    let clipped = global_norm(&model, &tight.gradients).unwrap();
    assert!((clipped / (norm / 4.0) - 1.0).abs() < 1e-5, "{clipped} of {norm}");
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = clip_by_norm(&model, GradientsParams::new(), bad).unwrap_err();
        assert!(matches!(error, Error::ClipNorm { .. }), "{error}");
    }
    let mut ruined = tight.gradients;
    let id = model.head.weight.id;
    let gradient = ruined.remove::<2>(id).unwrap();
    ruined.register(id, gradient / 0.0);
    let error = clip_by_norm(&model, ruined, 1.0).unwrap_err();
    assert!(matches!(error, Error::NotFinite { .. }), "{error}");
}

#[test]
fn what_cannot_be_added_up_is_refused() {
    let _alone = alone();
    let device = device();
    let model = Model::new(&device);
    let (x, targets) = batch(&device, 4, DType::F32);
    let loss = model.loss(x, targets, Rule::EVERY_ONE).unwrap();
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = Accumulation::new().add(&model, loss.clone(), bad).unwrap_err();
        assert!(matches!(error, Error::Share { .. }), "{error}");
    }
    assert!(matches!(Accumulation::new().finish().unwrap_err(), Error::NothingAccumulated));
}

/// A boundary of 16 bits takes half.
#[test]
fn checkpoints_of_16_bits_take_half() {
    let _alone = alone();
    fn kept(dtype: DType) -> u64 {
        let device = device();
        let model = Model::new(&device);
        let (x, _) = batch(&device, 64, dtype);
        let region = Region::new().stages("layer", &model.layers, Layer::forward);
        let found = region
            .measure(
                x,
                rekindle::Measuring { runs: 1, options: false, ..rekindle::Measuring::default() },
                &mut |_, _| {},
            )
            .unwrap();
        found.stages.iter().map(|stage| stage.output_bytes.get()).sum()
    }
    let wide = kept(DType::F32);
    assert_eq!(kept(DType::BF16) * 2, wide);
    assert_eq!(kept(DType::F16) * 2, wide);
}
