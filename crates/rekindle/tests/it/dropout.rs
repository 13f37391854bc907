//! Our dropout: the mask is a function of the seed and of each element's position.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor};
use rekindle::{Dropout, DropoutConfig, Error, Region, Rule, checkpoint};

use crate::common::*;

fn dropout(prob: f64) -> Dropout {
    DropoutConfig::new(prob).init().unwrap()
}

fn drop(dropout: &Dropout, x: Tensor<2>) -> Tensor<2> {
    dropout.forward(x)
}

fn ones(device: &Device) -> Tensor<2> {
    Tensor::ones([256, 256], device)
}

fn values(tensor: Tensor<2>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

#[test]
fn the_mask_has_its_probability_and_keeps_the_mean() {
    let _alone = alone();
    rekindle::seed(1);
    for prob in [0.001, 0.1, 0.5, 0.9] {
        let kept = (1.0 / (1.0 - prob)) as f32;
        let values = values(dropout(prob).forward(ones(&device())));
        assert!(values.iter().all(|value| *value == 0.0 || *value == kept), "{prob}");
        let count = values.len() as f64;
        let dropped = values.iter().filter(|value| **value == 0.0).count() as f64;
        // Five standard deviations: one wrong alarm in millions of seeds, and the seed is fixed.
        let deviation = (count * prob * (1.0 - prob)).sqrt();
        assert!((dropped - count * prob).abs() < 5.0 * deviation, "{dropped} of {count} at {prob}");
        // Neighbours in a row, in a column, and one word of a block further know nothing of each other.
        for step in [1, 4, 64, 256] {
            let both = values.iter().zip(&values[step..]).filter(|pair| *pair.0 == 0.0 && *pair.1 == 0.0);
            let expected = (count - step as f64) * prob * prob;
            let both = both.count() as f64;
            assert!((both - expected).abs() < 6.0 * expected.sqrt() + 5.0, "{both} pairs at {prob}, {step}");
        }
    }
}

/// Ranks with parts of one tensor share a seed; each drops elements of its own, and the same ones again.
#[test]
fn what_is_kept_apart_has_masks_of_its_own_from_the_same_seed() {
    let _alone = alone();
    let draw = |of: usize| {
        rekindle::seed(1);
        values(dropout(0.5).apart(of).forward(ones(&device())))
    };
    rekindle::seed(1);
    let plain = values(dropout(0.5).forward(ones(&device())));
    assert_eq!(draw(0), plain);
    let all: Vec<_> = (0..4).map(draw).collect();
    for (rank, mask) in all.iter().enumerate() {
        assert_eq!(*mask, draw(rank));
        for other in &all[..rank] {
            // Of two that know nothing of each other half the elements are alike.
            let alike = mask.iter().zip(other).filter(|pair| pair.0 == pair.1).count() as f64;
            assert!((alike / mask.len() as f64 - 0.5).abs() < 0.02, "{alike} of {}", mask.len());
        }
    }
}

#[test]
fn a_seed_gives_a_mask_and_the_next_one_another() {
    let _alone = alone();
    let draw = || values(dropout(0.5).forward(ones(&device())));
    rekindle::seed(1);
    let (first, second) = (draw(), draw());
    assert_ne!(first, second);
    rekindle::seed(1);
    assert_eq!(first, draw());
    rekindle::seed(2);
    assert_ne!(first, draw());
    // Burn's random state has no part in it, and is not moved by it.
    let device = device();
    let random = || Tensor::<1>::random([8], burn::tensor::Distribution::Default, &device);
    rekindle::seed(1);
    device.seed(3);
    let untouched = bytes(&random());
    device.seed(3);
    assert_eq!(first, draw());
    assert_eq!(untouched, bytes(&random()));
}

#[test]
fn stages_drop_different_elements_and_a_recomputation_the_same() {
    let _alone = alone();
    let x = ones(&device()).require_grad();
    for rule in rules() {
        rekindle::seed(1);
        let stages = vec![dropout(0.3); 3];
        let y = Region::new().stages("dropout", &stages, drop).rule(rule).forward(x.clone()).unwrap();
        // y = x * m1 * m2 * m3, so dy/dx is y itself, if the backward makes the masks of the forward.
        let gradient = x.grad(&y.clone().sum().backward()).unwrap();
        assert_eq!(values(gradient), values(y.clone().without_autodiff()), "{rule}");
        // Three masks of 0.7: as many are left if, and only if, they have nothing in common.
        let left = values(y.without_autodiff()).iter().filter(|value| **value != 0.0).count() as f64;
        assert!((left / 65536.0 - 0.343).abs() < 0.01, "{rule}: {left} left");
    }
}

#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
    dropout: Dropout,
}

#[derive(Module, Debug)]
struct Pack {
    layers: Vec<Layer>,
}

impl Layer {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        // Twice in a stage: the second is not the first again.
        let hidden = self.dropout.forward(self.linear.forward(x.clone()).tanh());
        x + self.dropout.forward(hidden)
    }
}

fn layers(count: usize, device: &Device) -> Vec<Layer> {
    device.seed(3);
    let layer = |_| Layer { linear: LinearConfig::new(8, 8).init(device), dropout: dropout(0.3) };
    let layers: Vec<Layer> = (0..count).map(layer).collect();
    settle(&layers);
    layers
}

fn layer(layer: &Layer, x: Tensor<2>) -> Tensor<2> {
    layer.forward(x)
}

#[test]
fn training_is_the_same_with_and_without_checkpoints() {
    let _alone = alone();
    for device in [device(), device().gradient_checkpointing()] {
        let layers = layers(6, &device);
        let x = random([16, 8], &device);
        for rule in rules() {
            same(&rule.to_string(), || {
                let mut seen = vec![];
                for _ in 0..2 {
                    // Before and after the region as well.
                    let input = layers[0].dropout.forward(x.clone()).require_grad();
                    let y =
                        Region::new().stages("layer", &layers, layer).rule(rule).forward(input.clone())?;
                    let y = layers[0].dropout.forward(y);
                    seen.push(bytes(&y));
                    let mut grads = y.powf_scalar(2.0).mean().backward();
                    seen.push(bytes(&input.grad_remove(&mut grads).unwrap()));
                    seen.extend(gradients(&layers, grads).into_iter().flatten());
                }
                Ok(seen)
            });
        }
    }
}

#[test]
fn regions_inside_stages_drop_the_same_elements_again() {
    let _alone = alone();
    let device = device();
    let packs: Vec<Pack> = layers(6, &device).chunks(2).map(|two| Pack { layers: two.to_vec() }).collect();
    let x = random([16, 8], &device);
    fn pack(pack: &Pack, x: Tensor<2>) -> Result<Tensor<2>, Error> {
        let Pack { layers: pack } = pack;
        let x = pack[0].dropout.forward(x);
        let x = Region::new().stages("layer", pack, layer).rule(Rule::SquareRoot).forward(x)?;
        Ok(pack[1].dropout.forward(checkpoint(&pack[0], x, layer)?))
    }
    for rule in rules() {
        same(&rule.to_string(), || {
            let y = Region::new().stages("pack", &packs, pack).rule(rule).forward(x.clone())?;
            Ok((bytes(&y), gradients(&packs, y.powf_scalar(2.0).mean().backward())))
        });
    }
}

#[test]
fn nothing_is_dropped_in_evaluation_when_frozen_or_at_zero() {
    let _alone = alone();
    rekindle::seed(1);
    let next = || values(dropout(0.5).forward(ones(&device())));
    let first = next();
    rekindle::seed(1);
    let one = |values: Vec<f32>| values.iter().all(|value| *value == 1.0);
    assert!(one(values(dropout(0.5).forward(ones(&Device::flex())))));
    assert!(one(values(dropout(0.5).valid().forward(ones(&Device::flex())))));
    assert!(one(values(dropout(0.5).freeze().forward(ones(&device())))));
    assert!(one(values(dropout(0.0).forward(ones(&device())))));
    assert!(!one(values(dropout(0.5).valid().train().forward(ones(&device())))));
    // None of the first four took a seed.
    rekindle::seed(1);
    let _ = dropout(0.5).freeze().forward(ones(&device()));
    assert_eq!(first, next());
}

#[test]
fn other_element_types_and_empty_tensors() {
    let _alone = alone();
    for dtype in [DType::F64, DType::F16, DType::BF16] {
        let x = Tensor::<2>::ones([8, 8], (&device(), dtype));
        let y = dropout(0.5).forward(x);
        assert_eq!(y.dtype(), dtype);
        assert!(y.into_data().iter::<f32>().all(|value| value == 0.0 || value == 2.0));
    }
    let empty = dropout(0.5).forward(Tensor::<2>::ones([0, 8], &device()));
    assert_eq!(empty.dims(), [0, 8]);
}

#[test]
fn a_probability_that_is_none_is_refused() {
    for prob in [-0.1, 1.0, 1.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let error = DropoutConfig::new(prob).init().unwrap_err();
        assert!(matches!(error, Error::Dropout { .. }), "{error}");
    }
    let error = DropoutConfig::new(1.0).init().unwrap_err().to_string();
    assert!(
        error.starts_with("dropout of 1, expected a probability of 0 or more and less than 1"),
        "{error}"
    );
    // As near to one as a number comes: a word decides, and nothing overflows.
    let _alone = alone();
    let y = dropout(1.0 - f64::EPSILON / 2.0).forward(ones(&device()));
    assert!(values(y).iter().all(|value| value.is_finite()));
}

#[test]
fn it_shows_what_it_is() {
    assert_eq!(dropout(0.5).to_string(), "Dropout {prob: 0.5}");
    assert_eq!(dropout(0.5).freeze().to_string(), "Dropout {prob: 0.5, training: disabled}");
    assert_eq!(dropout(0.25).prob(), 0.25);
}
