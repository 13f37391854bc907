//! A Vision Transformer under checkpoints: the same bits, and it learns.

use burn::module::Module;
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Distribution, Int, Tensor};
use rekindle::training::Precision;
use rekindle::{Budget, Error, Planner, Rule, without_checkpointing};
use rekindle_models::data::{Shapes, Source};
use rekindle_models::estimate::{Architecture, Transformer, preset};
use rekindle_models::{ConfigError, ImageBatch, ResNetConfig, Trainable, Vit, VitConfig};

use crate::common::{alone, device};
use crate::step::step;

/// Twelve pixels along a side, nine tokens of four by four, three blocks.
fn config() -> VitConfig {
    VitConfig::new(12, 4, 16, 2, 3, 5)
}

fn vit(config: &VitConfig) -> Vit {
    device().seed(3);
    config.init(&device()).unwrap()
}

fn images(count: usize, side: usize) -> ImageBatch {
    device().seed(5);
    let images = Tensor::<4>::random([count, 3, side, side], Distribution::Normal(0.0, 1.0), &device());
    ImageBatch { images, classes: Tensor::<1, Int>::arange(0..count as i64, &device()).remainder_scalar(5) }
}

/// Compares both cuts with plain training under rules and plans.
fn gradients_are_those_of_plain(config: &VitConfig, fine_is_coarse: bool) {
    alone(|| {
        let (model, batch) = (vit(config), images(3, config.side));
        let plain = |cut: &dyn Fn() -> Vec<Vec<u8>>| without_checkpointing(cut);
        let expected = plain(&|| step(&model, &model, &batch, Rule::StoreAll.into()).unwrap());
        let of_fine = plain(&|| step(&model, &model.fine(), &batch, Rule::StoreAll.into()).unwrap());
        // The loss; sixteen in each block, three before and four behind them; none is left out, and none is zero.
        assert_eq!(expected.len(), 1 + 16 * config.layers + 3 + 4);
        let nothing = |gradient: &Vec<u8>| gradient.iter().all(|byte| *byte == 0);
        assert!(!expected.iter().any(nothing), "{:?}", expected.iter().position(nothing));
        assert_eq!(of_fine == expected, fine_is_coarse);
        for rule in ["store-all", "every-1", "every-2", "sqrt", "full"] {
            let rule: Rule = rule.parse().unwrap();
            assert!(step(&model, &model, &batch, rule.into()).unwrap() == expected, "{rule}, blocks");
            assert!(step(&model, &model.fine(), &batch, rule.into()).unwrap() == of_fine, "{rule}, parts");
        }
        for budget in [Budget::smallest(), Budget::of_plain(1.1).unwrap()] {
            let planned = Planner::new(budget).plan(&model, &batch).unwrap();
            assert!(step(&model, &model, &batch, (&planned).into()).unwrap() == expected, "{budget}, blocks");
            let planned = Planner::new(budget).plan(&model.fine(), &batch).unwrap();
            assert!(
                step(&model, &model.fine(), &batch, (&planned).into()).unwrap() == of_fine,
                "{budget}, parts"
            );
        }
    });
}

#[test]
fn gradients_are_those_of_plain_training_in_both_cuts() {
    gradients_are_those_of_plain(&config(), true);
}

#[test]
fn dropout_is_replayed_in_both_cuts() {
    gradients_are_those_of_plain(&config().with_dropout(0.2), true);
}

#[test]
fn activations_of_16_bits_give_the_same_bits_in_both_cuts() {
    gradients_are_those_of_plain(&config().with_precision(Precision::Bf16), true);
}

#[test]
fn burns_modules_give_the_same_bits_too() {
    gradients_are_those_of_plain(&config().with_burn(true), true);
    // Burn's dropout starts anew in every stage.
    gradients_are_those_of_plain(&config().with_burn(true).with_dropout(0.2), false);
}

#[test]
fn our_nodes_find_what_burns_modules_find() {
    alone(|| {
        let batch = images(3, 12);
        let found = [false, true].map(|burn| {
            let loss = vit(&config().with_burn(burn)).loss(&batch, Rule::StoreAll).unwrap();
            loss.into_scalar::<f32>()
        });
        assert!((found[0] - found[1]).abs() < 1e-5, "{found:?}");
    });
}

#[test]
fn every_pixel_is_seen_and_its_place_counts() {
    alone(|| {
        let model = vit(&VitConfig::new(12, 4, 16, 2, 1, 5)).valid();
        let batch = images(2, 12);
        let logits = |images: Tensor<4>| model.forward(images).unwrap().into_data();
        let images = batch.images.inner();
        let whole = logits(images.clone());
        // Two rows of patches in each other's place are not the same image: positions tell.
        let (above, below) = (images.clone().narrow(2, 0, 4), images.clone().narrow(2, 4, 8));
        assert!(logits(Tensor::cat(vec![below, above], 2)) != whole);
        // Every pixel of every patch is seen.
        for (row, column) in [(0, 0), (3, 4), (5, 11), (11, 11)] {
            let changed = images.clone().slice_assign(
                [0..1, 1..2, row..row + 1, column..column + 1],
                Tensor::full([1, 1, 1, 1], 9.0, &images.device()),
            );
            let changed = logits(changed);
            assert!(changed != whole, "{row}, {column}");
            let second = |data: &burn::tensor::TensorData| data.as_bytes()[5 * 4..].to_vec();
            assert!(second(&changed) == second(&whole), "the other image is not");
        }
    });
}

/// Presets have a token for the class, with a position of its own, where we take the mean: two vectors of the width.
#[test]
fn it_has_the_weights_that_are_counted() {
    // It draws them, from where the others do.
    alone(|| {
        for (name, config) in [("vit-l", VitConfig::large_16(1_000)), ("vit-h", VitConfig::huge_14(1_000))] {
            let Some(Architecture::Transformer(preset)) = preset(name) else { panic!("{name}") };
            let found = [config.layers, config.width, config.heads, config.patch].map(|size| size as u64);
            assert_eq!(found, [preset.layers, preset.width, preset.heads, preset.patch], "{name}");
            assert_eq!(config.tokens() as u64 + 1, preset.positions, "{name}");
            // Two blocks of each: all of them are gigabytes.
            let (config, counted) = (VitConfig { layers: 2, ..config }, Transformer { layers: 2, ..preset });
            let model = config.init(&Device::flex()).unwrap();
            let expected = Architecture::Transformer(counted).parameters() - 2 * config.width as u64;
            assert_eq!(model.num_params() as u64, expected, "{name}");
        }
        // What the papers say, in millions, for a thousand classes.
        for (config, expected) in [
            (VitConfig::tiny_16(1_000), 5.7),
            (VitConfig::small_16(1_000), 22.0),
            (VitConfig::base_16(1_000), 86.5),
        ] {
            let found = config.init(&Device::flex()).unwrap().num_params() as f64 / 1e6;
            assert!((found / expected - 1.0).abs() < 0.01, "{found} million, expected {expected}");
        }
    });
}

/// What a model has learned of shapes in so many steps: losses, and what it gets right of images it has not seen.
fn learned<M: Trainable<Batch = ImageBatch>>(mut model: M, rate: f64, steps: usize) -> (Vec<f32>, f64) {
    let shapes = Shapes::new(16).unwrap();
    let mut optimizer = AdamConfig::new().init();
    let mut random = fastrand::Rng::with_seed(1);
    rekindle::seed(1);
    let mut losses = Vec::new();
    for _ in 0..steps {
        let batch = shapes.draw(32, &mut random, &device());
        let (region, images) = model.stages(&batch);
        let loss = region.rule(Rule::EVERY_ONE).forward(images).unwrap();
        let found = GradientsParams::from_grads(rekindle::backward(&loss).unwrap(), &model);
        model = optimizer.step(rate, model, found);
        losses.push(loss.into_scalar::<f32>());
    }
    let unseen = shapes.draw(400, &mut fastrand::Rng::with_seed(99), &Device::flex());
    let right = model.valid().accuracy(&unseen).unwrap();
    (losses, right)
}

#[test]
fn it_learns_shapes_it_has_not_seen() {
    alone(|| {
        let (losses, right) = learned(vit(&VitConfig::new(16, 4, 32, 4, 2, 5)), 3e-3, 120);
        assert!(losses[110..].iter().sum::<f32>() / 10.0 < losses[0] / 2.0, "{losses:?}");
        assert!(right > 0.7, "{right} of five classes");
    });
}

#[test]
fn a_residual_network_learns_shapes_too() {
    alone(|| {
        device().seed(3);
        let net = ResNetConfig::new(vec![1, 1], 5).with_width(8).init(&device()).unwrap();
        let (losses, right) = learned(net, 1e-2, 40);
        assert!(losses[30..].iter().sum::<f32>() / 10.0 < losses[0] / 2.0, "{losses:?}");
        assert!(right > 0.7, "{right} of five classes");
    });
}

#[test]
fn images_of_another_size_are_refused() {
    alone(|| {
        let model = vit(&config());
        let expected = [3, 3, 12, 12];
        for shape in [[3, 3, 24, 24], [3, 3, 12, 8], [3, 1, 12, 12], [3, 3, 13, 13], [3, 3, 0, 0]] {
            let images = Tensor::<4>::ones(shape, &device());
            let batch =
                ImageBatch { images: images.clone(), classes: Tensor::<1, Int>::zeros([3], &device()) };
            let refused = |error: Error| match error {
                Error::InputShape { what: "images", found, expected: sizes } => {
                    found == shape && sizes == expected
                }
                _ => false,
            };
            assert!(refused(model.loss(&batch, Rule::EVERY_ONE).unwrap_err()), "{shape:?}");
            assert!(refused(model.forward(images).unwrap_err()), "{shape:?}");
            assert!(refused(model.accuracy(&batch).unwrap_err()), "{shape:?}");
            let planned = Planner::new(Budget::smallest()).plan(&model, &batch);
            assert!(planned.is_err(), "{shape:?}");
        }
        let mut batch = images(3, 12);
        batch.classes = batch.classes.add_scalar(4);
        let error = model.loss(&batch, Rule::EVERY_ONE).unwrap_err();
        assert!(matches!(error, Error::LossTarget { found: 5, classes: 5, .. }), "{error}");
    });
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let refused = |config: VitConfig| config.init(&device()).err();
    let patch = |patch| VitConfig { patch, ..config() };
    assert!(matches!(refused(patch(5)), Some(ConfigError::Patch { side: 12, patch: 5 })));
    assert!(matches!(refused(patch(24)), Some(ConfigError::Patch { side: 12, patch: 24 })));
    for heads in [0, 3, 32] {
        let found = refused(VitConfig { heads, ..config() });
        assert!(matches!(found, Some(ConfigError::Heads { width: 16, .. })), "{heads} heads");
    }
    for (what, config) in [
        ("side", VitConfig { side: 0, ..config() }),
        ("patch", patch(0)),
        ("width", VitConfig { width: 0, ..config() }),
        ("layers", VitConfig { layers: 0, ..config() }),
        ("classes", VitConfig { classes: 0, ..config() }),
        ("channels", config().with_channels(0)),
    ] {
        let found = refused(config);
        assert!(matches!(found, Some(ConfigError::Empty { what: found }) if found == what), "{what}");
    }
    for dropout in [-1.0, 1.0, f64::NAN] {
        assert!(matches!(refused(config().with_dropout(dropout)), Some(ConfigError::Refused(_))));
    }
    let narrow = config().with_burn(true).with_precision(Precision::Bf16);
    assert!(matches!(refused(narrow), Some(ConfigError::BurnPrecision { .. })));
    assert_eq!((config().tokens(), patch(0).tokens()), (9, 0));
}
