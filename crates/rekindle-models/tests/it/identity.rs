//! The models train the same under every rule, bit for bit.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Distribution, Int, Tensor};
use rekindle::{Rule, without_checkpointing};
use rekindle_models::{ConfigError, ConvNetConfig, GptBatch, GptConfig};

use crate::common::{alone, device};

fn rules() -> Vec<Rule> {
    let names = ["store-all", "full", "every-1", "every-2", "sqrt"];
    names.iter().filter_map(|name| name.parse().ok()).collect()
}

fn bytes<const D: usize>(tensor: &Tensor<D>) -> Vec<u8> {
    tensor.to_data().as_bytes().to_vec()
}

/// All parameters and running statistics.
fn state(module: &impl Module) -> Vec<Vec<u8>> {
    struct Collect(Vec<Vec<u8>>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(bytes(&param.val()));
        }
    }
    let mut collect = Collect(Vec::new());
    module.valid().visit(&mut collect);
    collect.0
}

/// Trains three steps under every rule and plain, and wants the same weights.
fn trains_the_same(train: impl Fn(Rule) -> Vec<Vec<u8>> + Sync) {
    alone(|| {
        let device = device();
        let start = || {
            rekindle::seed(1);
            device.seed(1);
        };
        start();
        let plain = without_checkpointing(|| train(Rule::StoreAll));
        assert!(!plain.is_empty());
        for rule in rules() {
            start();
            assert!(train(rule) == plain, "{rule} differs from plain training");
        }
    });
}

#[test]
fn gpt() {
    let device = device();
    trains_the_same(|rule| {
        let mut model = GptConfig::new(64, 16, 2, 4, 8).init(&device).unwrap();
        let mut optimizer = SgdConfig::new().init();
        for step in 0..3 {
            let numbers = Tensor::<1, Int>::arange(step..step + 17, &device);
            let tokens = numbers.clone().narrow(0, 0, 16).reshape([2, 8]);
            let targets = numbers.narrow(0, 1, 16).reshape([2, 8]);
            let loss = model.loss(&GptBatch { tokens, targets }, rule).unwrap();
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(0.1, model, gradients);
        }
        state(&model)
    });
}

#[test]
fn conv_net_and_its_running_statistics() {
    let device = device();
    trains_the_same(|rule| {
        let mut model = ConvNetConfig::new(3, 4, 3, 10).init(&device);
        let mut optimizer = SgdConfig::new().init();
        let mut seen = Vec::new();
        for _ in 0..3 {
            let images = Tensor::<4>::random([2, 3, 6, 6], Distribution::Default, &device);
            let loss = model.forward(images, rule).unwrap().powf_scalar(2.0).mean();
            let statistics = model.statistics();
            seen.extend(statistics.iter().flat_map(|(mean, variance)| [bytes(mean), bytes(variance)]));
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(0.1, model, gradients);
        }
        seen.extend(state(&model));
        seen
    });
}

#[test]
fn a_later_token_changes_nothing_before_it() {
    alone(|| {
        let device = Device::flex();
        let model = GptConfig::new(64, 16, 2, 2, 8).init(&device).unwrap();
        let logits = |last: i32| {
            let tokens = Tensor::<2, Int>::from_data([[1, 2, 3, 4, 5, last]], &device);
            model.forward(tokens, Rule::EVERY_ONE).unwrap()
        };
        let (some, other) = (logits(6), logits(7));
        let before = |logits: &Tensor<3>| bytes(&logits.clone().narrow(1, 0, 5));
        assert!(before(&some) == before(&other));
        assert!(bytes(&some) != bytes(&other));
    });
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let device = Device::flex();
    let config = |heads: usize| GptConfig::new(64, 16, heads, 2, 8);
    for heads in [0, 3, 32] {
        let error = config(heads).init(&device).unwrap_err();
        assert!(matches!(error, ConfigError::Heads { width: 16, .. }), "{error}");
    }
    for dropout in [-1.0, 1.0, f64::NAN] {
        let error = config(2).with_dropout(dropout).init(&device).unwrap_err();
        assert!(matches!(error, ConfigError::Refused(_)), "{error}");
    }
}
