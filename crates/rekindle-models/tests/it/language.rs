//! Language models of every shape under checkpoints: the same bits, and they learn.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor, TensorData, Tolerance};
use rekindle::{Budget, Planner, Rule, without_checkpointing};
use rekindle_models::estimate::preset;
use rekindle_models::{Activation, ConfigError, Gpt, GptBatch, GptConfig, Norms, Positions, Trainable};

use crate::common::{alone, device};
use crate::step::step;

/// All weights at once, so that they do not depend on which is looked at first.
fn build(config: &GptConfig) -> Gpt {
    device().seed(3);
    let model = config.init(&device()).unwrap();
    let _ = parameters(&model);
    model
}

fn parameters(model: &Gpt) -> u64 {
    struct Count(u64);
    impl ModuleVisitor for Count {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0 += param.val().shape().num_elements() as u64;
        }
    }
    let mut count = Count(0);
    model.visit(&mut count);
    count.0
}

/// Sequences that count on by three, each from another start.
fn counting(count: usize, sequence: usize, seed: u64) -> GptBatch {
    let of = |ahead: u64| {
        let token = |index: usize| {
            let (row, place) = ((index / sequence) as u64, (index % sequence) as u64);
            ((seed * 7 + row * 5 + 3 * (place + ahead)) % 20) as i64
        };
        let tokens: Vec<i64> = (0..count * sequence).map(token).collect();
        Tensor::<2, Int>::from_data(TensorData::new(tokens, [count, sequence]), &device())
    };
    GptBatch { tokens: of(0), targets: of(1) }
}

fn shapes() -> Vec<(&'static str, GptConfig)> {
    let llama = GptConfig::llama(20, 16, 4, 3, 12);
    vec![
        ("GPT-2", GptConfig::gpt2(20, 16, 4, 3, 12)),
        ("Llama", llama.clone()),
        ("Llama whose queries share keys", llama.clone().with_key_heads(Some(2))),
        ("one key for all queries, a tied head", llama.with_key_heads(Some(1)).with_tied(true)),
        (
            "rotary positions, layer norms and dropout",
            GptConfig::new(20, 16, 2, 3, 12).with_positions(Positions::Rotary { base: 500.0 }),
        ),
    ]
}

#[test]
fn gradients_of_every_shape_are_those_of_plain_training_in_both_cuts() {
    alone(|| {
        for (name, config) in shapes() {
            let (model, batch) = (build(&config), counting(2, 12, 1));
            let expected =
                without_checkpointing(|| step(&model, &model, &batch, Rule::StoreAll.into())).unwrap();
            assert!(expected.iter().skip(1).all(|gradient| gradient.iter().any(|byte| *byte != 0)), "{name}");
            for rule in ["store-all", "every-1", "every-2", "sqrt", "full"] {
                let rule: Rule = rule.parse().unwrap();
                assert!(step(&model, &model, &batch, rule.into()).unwrap() == expected, "{name}, {rule}");
                let fine = step(&model, &model.fine(), &batch, rule.into()).unwrap();
                assert!(fine == expected, "{name}, {rule}, in parts");
            }
            let planned = Planner::new(Budget::smallest()).plan(&model.fine(), &batch).unwrap();
            assert!(step(&model, &model.fine(), &batch, (&planned).into()).unwrap() == expected, "{name}");
        }
    });
}

#[test]
fn burns_modules_compute_the_same_within_rounding() {
    alone(|| {
        for (name, config) in shapes() {
            let config = config.with_dropout(0.0);
            let batch = counting(2, 12, 1);
            let [ours, burns] = [false, true].map(|burn| {
                let model = build(&config.clone().with_burn(burn));
                model.loss(&batch, Rule::StoreAll).unwrap().into_data()
            });
            let (ours, burns) = (ours.try_to_vec::<f32>().unwrap(), burns.try_to_vec::<f32>().unwrap());
            assert!((ours[0] - burns[0]).abs() < 1e-5, "{name}: {ours:?} {burns:?}");
        }
    });
}

#[test]
fn it_has_the_weights_that_are_counted() {
    alone(|| {
        // The smallest is small enough to count here; all have the sizes of their presets.
        let gpt2 = GptConfig::named("gpt2").unwrap();
        assert_eq!(parameters(&build(&gpt2)), preset("gpt2").unwrap().parameters());
        let mut small = GptConfig::named("llama-70b").unwrap();
        (small.layers, small.width, small.hidden, small.vocabulary) = (1, 128, Some(96), 50);
        // Queries and outputs of 128 by 128, keys and values of 8 heads of 2, the perceptron, three norms, embedding and head.
        let attention = 2 * 128 * 128 + 2 * 128 * 16;
        assert_eq!(parameters(&build(&small)), attention + 3 * 128 * 96 + 3 * 128 + 2 * 50 * 128);
        assert!(GptConfig::named("bert-large").is_none() && GptConfig::named("vit-l").is_none());
    });
}

#[test]
fn a_tied_head_is_the_embedding_also_after_a_step() {
    alone(|| {
        let config = GptConfig::gpt2(20, 16, 4, 2, 12).with_dropout(0.0);
        let mut model = build(&config);
        let batch = counting(4, 12, 1);
        let mut optimizer = AdamConfig::new().init();
        let mut losses = Vec::new();
        for _ in 0..60 {
            let loss = model.loss(&batch, Rule::EVERY_ONE).unwrap();
            let found = GradientsParams::from_grads(rekindle::backward(&loss).unwrap(), &model);
            model = optimizer.step(1e-2, model, found);
            losses.push(loss.into_scalar::<f32>());
        }
        assert!(losses[59] < losses[0] / 10.0, "{losses:?}");
        let untied = parameters(&build(&config.clone().with_tied(false).with_bias(true)));
        assert_eq!(untied - parameters(&model), 16 * 20 + 20);
    });
}

#[test]
fn every_shape_learns_what_comes_next() {
    alone(|| {
        for (name, config) in shapes() {
            let mut model = build(&config.with_dropout(0.0));
            let mut optimizer = AdamConfig::new().init();
            rekindle::seed(1);
            let unseen = |model: &Gpt| {
                let batch = counting(16, 12, 1_000);
                let batch = GptBatch { tokens: batch.tokens.inner(), targets: batch.targets.inner() };
                model.valid().accuracy(&batch).unwrap()
            };
            let before = unseen(&model);
            for step in 0..60 {
                let loss = model.loss(&counting(8, 12, step), Rule::EVERY_ONE).unwrap();
                let found = GradientsParams::from_grads(rekindle::backward(&loss).unwrap(), &model);
                model = optimizer.step(1e-2, model, found);
            }
            let after = unseen(&model);
            assert!(after > 0.9 && before < 0.5, "{name}: {before} {after}");
        }
    });
}

#[test]
fn rotary_positions_tell_how_far_and_not_where() {
    alone(|| {
        let model = build(&GptConfig::llama(20, 16, 4, 2, 12)).valid();
        let logits = |tokens: &[i64]| {
            let data = TensorData::new(tokens.to_vec(), [1, tokens.len()]);
            let tokens = Tensor::<2, Int>::from_data(data, &Device::flex());
            model.forward(tokens, Rule::StoreAll).unwrap()
        };
        // What stands before them may look the same, so what comes of the last does not depend on the place of the first.
        let short = logits(&[4, 9, 2]);
        let long = logits(&[4, 9, 2, 7]);
        let first = long.slice([0..1, 0..3, 0..20]);
        short.to_data().assert_approx_eq::<f32>(&first.to_data(), Tolerance::absolute(1e-5));
        // But the order counts.
        let turned = logits(&[9, 4, 2]);
        let last = |logits: Tensor<3>| logits.slice([0..1, 2..3, 0..20]).into_data();
        assert!(last(short).as_bytes() != last(turned).as_bytes());
    });
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let refused = |config: GptConfig| config.init(&device()).unwrap_err();
    let llama = GptConfig::llama(20, 16, 4, 1, 12);
    assert!(matches!(
        refused(llama.clone().with_key_heads(Some(3))),
        ConfigError::KeyHeads { heads: 4, key_heads: 3 }
    ));
    assert!(matches!(refused(llama.clone().with_key_heads(Some(0))), ConfigError::KeyHeads { .. }));
    assert!(matches!(refused(GptConfig::llama(20, 12, 4, 1, 12)), ConfigError::OddHeads { depth: 3 }));
    assert!(matches!(refused(llama.clone().with_hidden(Some(0))), ConfigError::Empty { .. }));
    assert!(matches!(refused(GptConfig::new(0, 16, 4, 1, 12)), ConfigError::Empty { what: "words" }));
    let odd = llama.with_norms(Norms::Layer).with_activation(Activation::Gelu);
    assert!(odd.init(&device()).is_ok());
}

#[test]
fn a_sequence_longer_than_the_positions_is_refused() {
    alone(|| {
        for (name, config) in shapes() {
            let error = build(&config).loss(&counting(1, 13, 1), Rule::EVERY_ONE).unwrap_err();
            let expected = "the model was given texts of 13 tokens, expected 1 to 12";
            assert!(error.to_string().contains(expected), "{name}: {error}");
        }
    });
}

#[test]
fn a_token_that_is_no_word_is_refused() {
    alone(|| {
        let tokens = Tensor::<2, Int>::from_data([[1, 20]], &device());
        let batch = GptBatch { tokens: tokens.clone(), targets: tokens };
        let error = build(&GptConfig::gpt2(20, 16, 4, 1, 12)).loss(&batch, Rule::EVERY_ONE).unwrap_err();
        assert!(error.to_string().contains("token 1 of sequence 0 is 20, expected 0 to 19"), "{error}");
    });
}
