//! What stages mark to be run again, where their tapes are to be small.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor};
use rekindle::activation::gelu;
use rekindle::nn::linear;
use rekindle::{
    Dropout, DropoutConfig, Measuring, NoModule, Profile, Region, Schedule, again, tail, what_is_kept,
};
use rekindle_plan::Action;

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
    fn new(device: &Device) -> Self {
        Self {
            up: LinearConfig::new(8, 32).init(device),
            down: LinearConfig::new(32, 8).with_bias(false).init(device),
            dropout: DropoutConfig::new(0.3).init().unwrap(),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let hidden = again(|| self.dropout.forward(through(&self.up, x.clone())));
        tail(|| x + through(&self.down, gelu(hidden)))
    }
}

fn layers(count: usize, device: &Device) -> Vec<Mlp> {
    device.seed(11);
    let layers: Vec<Mlp> = (0..count).map(|_| Mlp::new(device)).collect();
    settle(&layers);
    layers
}

fn judged(text: &str, stages: usize) -> Schedule {
    let options = ["balanced", "again"].map(|option| option.parse().unwrap());
    let profile = Profile::unmeasured((0..stages).map(|index| index.to_string()), &options).unwrap();
    let actions: Vec<Action> = text.split('/').map(|line| line.trim().parse().unwrap()).collect();
    Schedule::judge(&profile, &actions).unwrap().0
}

/// Kept in the forward, on the user's graph and on graphs of the plan's own; and made again under the option.
const PLANS: [&str; 4] = [
    "tape 1 again/tape 2 again/tape 3 again/backward 3/backward 2/backward 1",
    "tape 1 again/tape 2 balanced/tape 3/backward 3/backward 2/backward 1",
    "keep x0/forward 1/tape 2 again/tape 3/backward 3/backward 2/tape 1 again/drop x0/backward 1",
    "keep x0/forward 1/forward 2/tape 3 again/backward 3/forward 1/keep x1/tape 2 again/drop x1/backward 2/tape 1/drop x0/backward 1",
];

#[test]
fn gradients_are_the_same_bits_when_what_is_marked_is_run_again() {
    let _alone = alone();
    let device = device();
    let layers = layers(3, &device);
    for narrow in [false, true] {
        let x = random([4, 8], &device);
        let x = if narrow { x.cast(DType::BF16) } else { x };
        for text in PLANS {
            let schedule = judged(text, 3);
            same(text, || {
                let region = Region::new().stages("mlp", &layers, Mlp::forward).schedule(schedule.clone());
                let y = region.forward(x.clone())?.cast(DType::F32);
                Ok(gradients(&layers, y.powf_scalar(2.0).mean().backward()))
            });
        }
    }
}

#[test]
fn a_region_inside_of_a_stage_is_kept_in_ways_of_its_own() {
    let _alone = alone();
    let device = device();
    let layers = layers(6, &device);
    let pairs: Vec<Vec<Mlp>> = layers.chunks(2).map(<[Mlp]>::to_vec).collect();
    let outer =
        |pair: &Vec<Mlp>, x: Tensor<2>| again(|| Region::new().stages("mlp", pair, Mlp::forward).forward(x));
    let x = random([4, 8], &device);
    for text in PLANS {
        let schedule = judged(text, 3);
        same(text, || {
            let region = Region::new().stages("pair", &pairs, outer).schedule(schedule.clone());
            Ok(gradients(&pairs, region.forward(x.clone())?.powf_scalar(2.0).mean().backward()))
        });
    }
}

/// The wide tensors of a tape: what the layer made, what is left of it after the dropout, and what follows.
#[cfg(feature = "capture")]
#[test]
fn what_is_marked_is_on_no_tape() {
    let _alone = alone();
    let device = device();
    let layers = layers(1, &device);
    let wide = |text: &str| {
        let region = Region::new().stages("mlp", &layers, Mlp::forward).schedule(judged(text, 1));
        // Burn keeps what it makes of tensors that nobody tracks.
        let x = random([4, 8], &device).require_grad();
        let kept = what_is_kept(|| region.forward(x).unwrap()).1;
        let of = kept.rows()[0].tape.iter().filter(|tensor| tensor.tensor == "f32[4, 32]");
        of.count()
    };
    assert!(wide("tape 1/backward 1") > wide("tape 1 balanced/backward 1"));
    assert_eq!(wide("tape 1 balanced/backward 1"), 1);
    assert_eq!(wide("tape 1 again/backward 1"), 0);
}

#[test]
fn the_option_is_offered_where_something_is_marked_and_nowhere_else() {
    let _alone = alone();
    let device = device();
    let marked = layers(1, &device);
    let plain = LinearConfig::new(8, 8).init(&device);
    settle(&plain);
    let region = || {
        Region::new()
            .stages("marked", &marked, Mlp::forward)
            .stage("plain", &plain, |layer: &Linear, x: Tensor<2>| through(layer, x))
            // Nothing in it can be left out: it makes its values itself.
            .stage("in vain", &NoModule, |_: &NoModule, x: Tensor<2>| again(|| x.exp()))
    };
    let x = Tensor::<2>::ones([4, 8], &device).require_grad();
    let runs = Measuring { runs: 3, ..Measuring::default() };
    let measured = region().measure(x.clone(), runs, &mut |_, _| {}).unwrap();
    let names = |stage: &rekindle_plan::StageProfile| {
        stage.options.iter().map(|option| option.name.to_string()).collect::<Vec<_>>()
    };
    let found: Vec<_> = measured.stages.iter().map(names).collect();
    let expected = [vec!["balanced", "again"], vec!["balanced"], vec!["balanced"]];
    assert_eq!(found, expected);
    #[cfg(feature = "capture")]
    {
        let any = rekindle::DeviceModel::measure(&Device::flex());
        let traced = rekindle::trace("mlp", &region(), x, &any).unwrap();
        let stages = traced.profile().stages();
        assert_eq!(stages.iter().map(names).collect::<Vec<_>>(), expected);
        let [balanced, again] = &stages[0].options[..] else { panic!() };
        assert!(again.tape_bytes < balanced.tape_bytes, "{again:?}, {balanced:?}");
        assert!(balanced.tape_bytes < stages[0].tape_bytes);
    }
}
