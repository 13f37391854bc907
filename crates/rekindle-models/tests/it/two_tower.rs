//! A contrastive model in parts of its batch: the whole batch's gradient, the same bits under every plan.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor};
use rekindle::training::Accumulation;
use rekindle::{Budget, DeviceModel, Error, Nodes, Planner, Rule, Staged, Under, without_checkpointing};
use rekindle_models::data::{Captions, Source};
use rekindle_models::{Batch, ConfigError, PairBatch, Trainable, TwoTower, TwoTowerConfig};

use crate::common::{alone, device};

fn config(width: usize, layers: usize) -> TwoTowerConfig {
    let captions = Captions::default();
    TwoTowerConfig::new(captions.pixels(), 4, Captions::VOCABULARY, Captions::TOKENS, width, 2, layers)
        .with_embedding(16)
}

fn model(width: usize, layers: usize) -> TwoTower {
    device().seed(3);
    config(width, layers).init(&device()).unwrap()
}

fn pairs(count: usize, seed: u64) -> PairBatch {
    Captions::default().draw(count, &mut fastrand::Rng::with_seed(seed), &device())
}

/// Every gradient, none where there is none.
fn values(model: &TwoTower, gradients: &GradientsParams) -> Vec<Vec<f32>> {
    struct Collect<'a>(&'a GradientsParams, Vec<Vec<f32>>);
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient =
                self.0.get::<D>(param.id).map(|gradient| gradient.into_data().try_to_vec().unwrap());
            self.1.push(gradient.unwrap_or_default());
        }
    }
    let mut collect = Collect(gradients, Vec::new());
    model.visit(&mut collect);
    collect.1
}

fn bits(values: &[Vec<f32>]) -> Vec<Vec<u32>> {
    values.iter().map(|values| values.iter().map(|value| value.to_bits()).collect()).collect()
}

fn step(
    model: &TwoTower,
    cut: &impl Staged<Batch = PairBatch, Output = Tensor<1>>,
    batch: &PairBatch,
    chunk: usize,
    under: Under<'_>,
) -> (f32, Vec<Vec<f32>>) {
    let step = model.step_in(cut, batch, chunk, under).unwrap();
    (step.loss.into_scalar::<f32>(), values(model, &step.gradients))
}

/// The largest error of a parameter's gradient, relative to the length of what is expected of it.
///
/// The bias of keys, one in each block, adds the same to all scores of a query, which changes nothing: its gradient is zero
/// but for rounding, and cannot be compared so.
fn largest_error(found: &[Vec<f32>], expected: &[Vec<f32>], blocks: usize) -> f64 {
    let length = |values: Vec<f64>| values.into_iter().map(|value| value * value).sum::<f64>().sqrt();
    let wide = |values: &[f32]| values.iter().copied().map(f64::from).collect::<Vec<_>>();
    let whole = length(expected.iter().flat_map(|values| wide(values)).collect());
    let (mut largest, mut zeros) = (0.0, 0);
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.len(), expected.len());
        let (found, expected) = (wide(found), wide(expected));
        let error = length(found.iter().zip(&expected).map(|(found, expected)| found - expected).collect());
        let expected = length(expected);
        if expected < 1e-6 * whole {
            zeros += 1;
            assert!(error < 1e-6 * whole, "{error} of {whole}");
        } else {
            largest = f64::max(largest, error / expected);
        }
    }
    assert_eq!(zeros, blocks);
    largest
}

#[test]
fn gradients_have_the_same_bits_under_all_rules_and_plans_in_both_cuts() {
    alone(|| {
        let model = model(16, 2);
        // One part, parts of one size, and parts of 4, 3 and 3.
        for (count, chunk) in [(6, 6), (8, 4), (10, 4)] {
            let batch = pairs(count, 5);
            let (loss, expected) =
                without_checkpointing(|| step(&model, &model, &batch, chunk, Rule::StoreAll.into()));
            // Two blocks of 16 in each tower; patches 3, tokens 2, two heads of 3, the scale.
            assert_eq!(
                expected.iter().filter(|gradient| !gradient.is_empty()).count(),
                4 * 16 + 3 + 2 + 6 + 1
            );
            for rule in ["store-all", "full", "every-1", "every-2", "sqrt"] {
                let rule: Rule = rule.parse().unwrap();
                let coarse = step(&model, &model, &batch, chunk, rule.into());
                let fine = step(&model, &model.fine(), &batch, chunk, rule.into());
                for (found, cut) in [(coarse, "blocks"), (fine, "parts of blocks")] {
                    assert_eq!(found.0.to_bits(), loss.to_bits(), "{count} by {chunk}, {rule}, {cut}");
                    assert!(bits(&found.1) == bits(&expected), "{count} by {chunk}, {rule}, {cut}");
                }
            }
            if count % chunk > 0 {
                continue;
            }
            // A plan is made for a batch that knows nothing of others, and runs parts that do.
            let part = batch.slice(0..chunk);
            for budget in [Budget::smallest(), Budget::of_plain(0.9).unwrap()] {
                let coarse = Planner::new(budget).plan(&model, &part).unwrap();
                let found = step(&model, &model, &batch, chunk, (&coarse).into());
                assert!(bits(&found.1) == bits(&expected), "{budget}, blocks");
                let fine = Planner::new(budget).plan(&model.fine(), &part).unwrap();
                let found = step(&model, &model.fine(), &batch, chunk, (&fine).into());
                assert!(bits(&found.1) == bits(&expected), "{budget}, parts of blocks");
            }
        }
    });
}

#[test]
fn parts_have_the_gradient_of_the_whole() {
    alone(|| {
        let model = model(16, 2);
        for (count, chunks) in [(12, [1, 4, 6]), (13, [2, 5, 12])] {
            let batch = pairs(count, 7);
            let loss = model.loss(&batch, Rule::StoreAll).unwrap();
            let found = GradientsParams::from_grads(rekindle::backward(&loss).unwrap(), &model);
            let (loss, expected) = (loss.into_scalar::<f32>(), values(&model, &found));
            for chunk in chunks {
                let (found, gradients) = step(&model, &model, &batch, chunk, Rule::EVERY_ONE.into());
                assert!((found / loss - 1.0).abs() < 1e-5, "{found} for {loss}");
                let error = largest_error(&gradients, &expected, 4);
                assert!(error < 1e-4, "{count} by {chunk}: {error}");
            }
            // Plain accumulation compares each image with the texts of its part alone: another gradient altogether.
            let mut sum = Accumulation::new();
            for part in batch.split(2) {
                let share = part.examples() as f64 / count as f64;
                sum.add(&model, model.loss(&part, Rule::EVERY_ONE).unwrap(), share).unwrap();
            }
            let error = largest_error(&values(&model, &sum.finish().unwrap().gradients), &expected, 4);
            assert!(error > 0.1, "{error}");
        }
    });
}

#[test]
fn a_part_of_a_part_has_its_share() {
    alone(|| {
        // Nothing has looked at this model before its parts are coupled: that must not freeze it.
        let model = model(16, 1);
        let batch = pairs(8, 9);
        let coupled = model.couple(&batch.split(2)).unwrap().unwrap();
        let gradients = |parts: &[PairBatch]| {
            let mut sum = Accumulation::new();
            for part in parts {
                sum.add(&model, model.loss(part, Rule::EVERY_ONE).unwrap(), 1.0).unwrap();
            }
            values(&model, &sum.finish().unwrap().gradients)
        };
        let expected = gradients(&coupled.parts);
        let smaller: Vec<PairBatch> = coupled.parts.iter().flat_map(|part| part.split(3)).collect();
        assert_eq!(smaller.len(), 6);
        let error = largest_error(&gradients(&smaller), &expected, 2);
        assert!(error < 1e-4, "{error}");
        assert!(model.couple(&batch.split(1)).unwrap().is_none());
    });
}

#[test]
fn it_learns_which_text_belongs_to_images_it_has_not_seen() {
    alone(|| {
        let mut model = model(32, 1);
        let unseen = pairs(64, 9_999).to_device(&Device::flex());
        let before = model.valid().accuracy(&unseen).unwrap();
        let (cold, mut optimizer, mut losses) = (model.temperature(), AdamConfig::new().init(), Vec::new());
        for seed in 0..80 {
            let step = model.step(&pairs(32, seed), 16, Rule::EVERY_ONE).unwrap();
            losses.push(step.loss.into_scalar::<f32>());
            model = optimizer.step(1e-3, model, step.gradients);
        }
        let after = model.valid().accuracy(&unseen).unwrap();
        assert!(before < 0.1 && after > 0.4, "from {before} to {after}, losses {losses:?}");
        assert!(losses[79] < losses[0] / 2.0, "{losses:?}");
        assert!((cold - 0.07).abs() < 1e-6 && model.temperature() != cold);
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    alone(|| {
        let model = model(16, 1);
        let PairBatch { images, texts, .. } = pairs(4, 1);
        let refused = |batch: PairBatch| {
            // However it is run, it is refused in the same words.
            let errors = [
                model.loss(&batch, Rule::EVERY_ONE).map(drop),
                model.step(&batch, 2, Rule::EVERY_ONE).map(drop),
                model.couple(&batch.split(2)).map(drop),
                model.accuracy(&batch).map(drop),
            ];
            errors.map(|error| error.unwrap_err())
        };
        let narrow = |count: usize| texts.clone().slice_dim(0, 0..count);
        for count in [0, 3] {
            for error in refused(PairBatch::new(images.clone(), narrow(count))) {
                assert!(matches!(error, Error::InputShape { what: "texts", .. }), "{count}: {error}");
            }
        }
        let small = images.clone().slice_dim(2, 0..8);
        for error in refused(PairBatch::new(small, texts.clone())) {
            assert!(matches!(error, Error::InputShape { what: "images", .. }), "{error}");
        }
        let long = Tensor::cat(vec![texts.clone(), texts.clone()], 1);
        for error in refused(PairBatch::new(images.clone(), long)) {
            assert!(matches!(error, Error::TextLength { found: 8, longest: 4 }), "{error}");
        }
        let vocabulary = Captions::VOCABULARY;
        for token in [-1, vocabulary as i64] {
            let last = Tensor::<2, Int>::full([1, 4], token, &device());
            let texts = Tensor::cat(vec![narrow(3), last], 0);
            for error in refused(PairBatch::new(images.clone(), texts)) {
                assert!(matches!(error, Error::Token { found, .. } if found == token), "{error}");
            }
        }
        let nothing = PairBatch::new(images.clone().slice_dim(0, 0..0), narrow(0));
        for error in [
            model.loss(&nothing, Rule::EVERY_ONE).map(drop).unwrap_err(),
            model.step(&nothing, 2, Rule::EVERY_ONE).map(drop).unwrap_err(),
            model.accuracy(&nothing).map(drop).unwrap_err(),
            model.embed_texts(narrow(0)).map(drop).unwrap_err(),
        ] {
            assert!(matches!(error, Error::EmptyBatch), "{error}");
        }
        let batch = PairBatch::new(images, texts);
        let error = model.step(&batch, 0, Rule::EVERY_ONE).unwrap_err();
        assert!(matches!(error, Error::LossChunk { found: 0, rows: 4 }), "{error}");
        // Without autodiff there is nothing to go back through.
        let error = model.valid().step(&batch.to_device(&Device::flex()), 2, Rule::EVERY_ONE).unwrap_err();
        assert!(matches!(error, Error::Untracked), "{error}");
        let mut coupled = model.couple(&batch.split(2)).unwrap().unwrap().parts;
        coupled[0].known = coupled[1].slice(0..1).known;
        let error = model.loss(&coupled[0], Rule::EVERY_ONE).unwrap_err();
        assert!(matches!(error, Error::InputShape { what: "known gradients", .. }), "{error}");
    });
}

#[test]
fn it_is_traced_without_values() {
    alone(|| {
        let (model, batch) = (model(16, 1), pairs(4, 1));
        let here = DeviceModel {
            name: "some".into(),
            matmul_flops_per_second: 100_000_000_000,
            memory_bytes_per_second: 10_000_000_000,
            overhead_ns_per_op: 1000,
            tape_nodes: Nodes::default(),
        };
        let (region, images) = model.stages(&batch);
        let traced = rekindle::trace("two-tower", &region, images, &here).unwrap();
        let names: Vec<&str> = traced.profile().stages().iter().map(|stage| stage.name.as_str()).collect();
        let blocks =
            ["image.patches", "image.block.0", "image.head", "text.tokens", "text.block.0", "text.head"];
        assert_eq!(names[..6], blocks);
        let (region, images) = model.fine_stages(&batch);
        assert_eq!(
            rekindle::trace("two-tower", &region, images, &here).unwrap().profile().stages().len(),
            17
        );
    });
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let refused = |config: TwoTowerConfig| config.init(&device()).unwrap_err();
    assert!(matches!(refused(config(0, 1)), ConfigError::Empty { what: "width" }));
    assert!(matches!(refused(config(16, 0)), ConfigError::Empty { what: "layers" }));
    assert!(matches!(refused(config(15, 1)), ConfigError::Heads { width: 15, heads: 2 }));
    assert!(matches!(refused(config(16, 1).with_channels(0)), ConfigError::Empty { what: "channels" }));
    assert!(matches!(refused(config(16, 1).with_embedding(0)), ConfigError::Empty { what: "embedding" }));
    for temperature in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let refused = refused(config(16, 1).with_temperature(temperature));
        assert!(matches!(refused, ConfigError::Temperature { .. }), "{refused}");
    }
    let odd = TwoTowerConfig::new(16, 5, 8, 4, 16, 2, 1);
    assert!(matches!(refused(odd), ConfigError::Patch { side: 16, patch: 5 }));
}
