//! Gradients that are handed over while the backward goes on.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Gradients, Tensor};
use rekindle::training::Accumulation;
use rekindle::{DropoutConfig, Region, Take, backward, backward_handing_over, expecting_hand_over};

use super::common::alone;

#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
    dropout: rekindle::Dropout,
}

fn run(layer: &Layer, x: Tensor<2>) -> Tensor<2> {
    layer.dropout.forward(layer.linear.forward(x).tanh())
}

/// Five stages; the second and the fourth are one layer.
fn layers(device: &Device) -> Vec<Layer> {
    let layer = || Layer {
        linear: LinearConfig::new(6, 6).init(device),
        dropout: DropoutConfig::new(0.3).init().unwrap(),
    };
    let mut layers: Vec<Layer> = (0..5).map(|_| layer()).collect();
    let _ = of_params(&layers, &GradientsParams::new());
    layers[3] = layers[1].clone();
    layers
}

fn loss(layers: &[Layer], seed: u64, rule: &str) -> Tensor<1> {
    let device = Device::flex().autodiff();
    device.seed(seed);
    rekindle::seed(seed);
    let x = Tensor::<2>::random([3, 6], burn::tensor::Distribution::Default, &device);
    let region = Region::new().stages("layer", layers, run).rule(rule.parse().unwrap());
    region.forward(x).unwrap().powf_scalar(2.0).mean()
}

/// Every parameter's gradient, of those that have one.
fn of_params(model: &Vec<Layer>, gradients: &GradientsParams) -> HashMap<ParamId, Vec<f32>> {
    struct Look<'a>(&'a GradientsParams, HashMap<ParamId, Vec<f32>>);
    impl ModuleVisitor for Look<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            // Burn draws weights when they are looked at first.
            let _ = param.val();
            let gradient = self.0.get::<D>(param.id);
            self.1.extend(gradient.map(|values| (param.id, values.into_data().iter::<f32>().collect())));
        }
    }
    let mut look = Look(gradients, HashMap::new());
    model.visit(&mut look);
    look.1
}

fn of_grads(model: &Vec<Layer>, gradients: Gradients) -> HashMap<ParamId, Vec<f32>> {
    of_params(model, &GradientsParams::from_grads(gradients, model))
}

type Taken = Rc<RefCell<Vec<(ParamId, Vec<f32>)>>>;

fn taking() -> (Taken, Take) {
    let taken = Taken::default();
    let into = Rc::clone(&taken);
    let take = move |id: ParamId, gradient: Tensor<1>| {
        into.borrow_mut().push((id, gradient.into_data().iter::<f32>().collect()));
    };
    (taken, Box::new(take))
}

#[test]
fn what_is_handed_over_is_what_a_backward_gives_each_parameter_once() {
    let _alone = alone();
    let model = layers(&Device::flex().autodiff());
    for rule in ["store-all", "every-1", "every-2", "full"] {
        let expected = of_grads(&model, backward(&loss(&model, 4, rule)).unwrap());
        assert_eq!(expected.len(), 8, "one layer is there twice");
        let (taken, take) = taking();
        let left = of_grads(
            &model,
            backward_handing_over(&expecting_hand_over(|| loss(&model, 4, rule)), take).unwrap(),
        );
        assert!(left.is_empty(), "{rule}: all of them");
        let taken = taken.take();
        // The layer that is there twice is complete with the second stage.
        let order: Vec<usize> = taken
            .iter()
            .map(|(id, _)| (0..5).find(|stage| model[*stage].linear.weight.id == *id).unwrap_or(9))
            .filter(|stage| *stage < 9)
            .collect();
        assert_eq!(order, [4, 2, 1, 0], "{rule}");
        assert_eq!(taken.len(), 8, "{rule}: each once");
        assert!(taken.into_iter().all(|(id, found)| expected[&id] == found), "{rule}: bit for bit");
        // Nobody takes from the next one.
        assert_eq!(of_grads(&model, backward(&loss(&model, 4, rule)).unwrap()), expected, "{rule}");
    }
}

#[test]
fn a_forward_that_expects_nothing_of_the_kind_has_each_gradient_once_all_the_same() {
    let _alone = alone();
    let model = layers(&Device::flex().autodiff());
    for rule in ["store-all", "every-1", "every-2", "full"] {
        let expected = of_grads(&model, backward(&loss(&model, 4, rule)).unwrap());
        let (taken, take) = taking();
        let left = of_grads(&model, backward_handing_over(&loss(&model, 4, rule), take).unwrap());
        let taken = taken.take();
        let kept_to_the_end = HashMap::from([("store-all", 8), ("full", 0)]).get(rule).copied().unwrap_or(2);
        assert_eq!((left.len(), taken.len()), (kept_to_the_end, 8 - kept_to_the_end), "{rule}");
        let found: HashMap<ParamId, Vec<f32>> = left.into_iter().chain(taken).collect();
        assert_eq!(found, expected, "{rule}");
    }
}

#[test]
fn sums_of_parts_are_handed_over_with_the_last() {
    let _alone = alone();
    let model = layers(&Device::flex().autodiff());
    let mut sum = Accumulation::new();
    for seed in 0..3 {
        sum.add(&model, loss(&model, seed, "every-1"), 1.0 / 3.0).unwrap();
    }
    let expected = sum.finish().unwrap();
    let mut sum = Accumulation::new();
    for seed in 0..2 {
        sum.add(&model, loss(&model, seed, "every-1"), 1.0 / 3.0).unwrap();
    }
    let (taken, take) = taking();
    let last = expecting_hand_over(|| loss(&model, 2, "every-1"));
    sum.add_handing_over(&model, last, 1.0 / 3.0, take).unwrap();
    let found = sum.finish().unwrap();
    assert_eq!(found.loss.into_data(), expected.loss.into_data());
    assert!(of_params(&model, &found.gradients).is_empty());
    let expected = of_params(&model, &expected.gradients);
    let taken = taken.take();
    assert_eq!(taken.len(), expected.len());
    assert!(taken.into_iter().all(|(id, found)| expected[&id] == found), "bit for bit");
    // What the last part does not reach keeps what it had.
    let mut sum = Accumulation::new();
    sum.add(&model, loss(&model, 0, "every-1"), 1.0).unwrap();
    let before = of_grads(&model, backward(&loss(&model, 0, "every-1")).unwrap());
    let (taken, take) = taking();
    let first = vec![model[0].clone()];
    let last = expecting_hand_over(|| loss(&first, 0, "every-1"));
    sum.add_handing_over(&model, last, 1.0, take).unwrap();
    let left = of_params(&model, &sum.finish().unwrap().gradients);
    assert_eq!(taken.take().len(), 2, "the first layer's");
    assert_eq!(left.len(), 6);
    assert!(left.into_iter().all(|(id, found)| before[&id] == found));
}

#[test]
fn a_region_inside_of_a_stage_hands_nothing_over_by_itself() {
    let _alone = alone();
    let model = layers(&Device::flex().autodiff());
    let nested = |model: &Vec<Layer>| {
        rekindle::seed(1);
        let x = Tensor::<2>::ones([3, 6], &Device::flex().autodiff());
        let inner = |layers: &Vec<Layer>, x: Tensor<2>| Region::new().stages("layer", layers, run).forward(x);
        Region::new().stage("all", model, inner).forward(x).unwrap().mean()
    };
    let expected = of_grads(&model, backward(&nested(&model)).unwrap());
    let (taken, take) = taking();
    backward_handing_over(&expecting_hand_over(|| nested(&model)), take).unwrap();
    let taken = taken.take();
    assert_eq!(taken.len(), 8, "by the outer one, each once");
    assert!(taken.into_iter().all(|(id, found)| expected[&id] == found), "bit for bit");
}
