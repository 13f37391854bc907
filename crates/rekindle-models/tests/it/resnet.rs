//! A residual network under checkpoints: the same bits, the same statistics, and it learns.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Distribution, Int, Tensor, TensorData};
use rekindle::{Budget, Planner, Rule, without_checkpointing};
use rekindle_models::estimate::{Architecture, ResNet as Counted, ResNetKind};
use rekindle_models::weights::save_module;
use rekindle_models::{ConfigError, ImageBatch, ResNet, ResNetConfig, Stem, Trainable};

use crate::common::{alone, device};
use crate::step::step;

fn net(bottlenecks: &[usize]) -> ResNet {
    device().seed(3);
    ResNetConfig::new(bottlenecks.to_vec(), 4).with_width(4).init(&device()).unwrap()
}

/// Pictures of which one quarter is bright: which one is their class.
fn quarters(count: usize, seed: u64) -> ImageBatch {
    let device = device();
    device.seed(seed);
    let noise = Tensor::<4>::random([count, 3, 8, 8], Distribution::Normal(0.0, 0.3), &device);
    let classes: Vec<i64> = (0..count as i64).map(|index| index % 4).collect();
    let bright =
        |index: usize, row: usize, column: usize| classes[index] == (row / 4 * 2 + column / 4) as i64;
    let mut light = Vec::with_capacity(count * 3 * 64);
    for index in 0..count {
        for _ in 0..3 {
            light.extend((0..64).map(|pixel| f32::from(u8::from(bright(index, pixel / 8, pixel % 8)))));
        }
    }
    let light = Tensor::<4>::from_data(TensorData::new(light, [count, 3, 8, 8]), &device);
    let classes = Tensor::<1, Int>::from_data(TensorData::new(classes, [count]), &device);
    ImageBatch { images: noise + light, classes }
}

#[test]
fn gradients_are_those_of_plain_training_in_both_cuts() {
    alone(|| {
        let (net, batch) = (net(&[2, 1, 2]), quarters(4, 5));
        let expected = without_checkpointing(|| step(&net, &net, &batch, Rule::StoreAll.into())).unwrap();
        // The loss, three convolutions with their norms in each of five bottlenecks, three shortcuts, stem and head.
        assert_eq!(expected.iter().filter(|gradient| !gradient.is_empty()).count(), 1 + 5 * 9 + 3 + 5);
        for rule in ["store-all", "every-1", "every-2", "sqrt", "full"] {
            let rule: Rule = rule.parse().unwrap();
            assert!(step(&net, &net, &batch, rule.into()).unwrap() == expected, "{rule}");
            assert!(
                step(&net, &net.fine(), &batch, rule.into()).unwrap() == expected,
                "{rule}, single convolutions"
            );
        }
        let planned = Planner::new(Budget::smallest()).plan(&net.fine(), &batch).unwrap();
        assert!(step(&net, &net.fine(), &batch, (&planned).into()).unwrap() == expected);
    });
}

#[test]
fn a_stem_that_ends_in_a_pool_has_the_same_bits() {
    alone(|| {
        for burn in [false, true] {
            device().seed(3);
            let config = ResNetConfig::new(vec![1, 1], 4).with_width(4).with_stem(Stem::Large);
            let net = config.with_burn(burn).init(&device()).unwrap();
            let images = Tensor::<4>::random([4, 3, 20, 20], Distribution::Normal(0.0, 1.0), &device());
            let batch = ImageBatch { images, ..quarters(4, 5) };
            let expected = without_checkpointing(|| step(&net, &net, &batch, Rule::StoreAll.into())).unwrap();
            for rule in [Rule::StoreAll, Rule::EVERY_ONE] {
                assert!(step(&net, &net, &batch, rule.into()).unwrap() == expected, "{rule}, burn {burn}");
                let fine = step(&net, &net.fine(), &batch, rule.into()).unwrap();
                assert!(fine == expected, "{rule}, single convolutions, burn {burn}");
            }
            let planned = Planner::new(Budget::smallest()).plan(&net.fine(), &batch).unwrap();
            assert!(step(&net, &net.fine(), &batch, (&planned).into()).unwrap() == expected, "burn {burn}");
            // 20 pixels along a side are 10 behind the convolution, and 5 behind the pool.
            assert_eq!(net.forward(batch.images).unwrap().dims(), [4, 4]);
        }
    });
}

/// As others count them: 25,549,352 in a ResNet-50 whose norms stand before its convolutions.
#[test]
fn familiar_sizes_have_their_layers_and_parameters() {
    let sizes =
        [ResNetConfig::layers_50(1_000), ResNetConfig::layers_101(1_000), ResNetConfig::layers_152(1_000)];
    assert_eq!(sizes.each_ref().map(ResNetConfig::depth), [50, 101, 152]);
    assert_eq!(ResNetConfig::layers_1001(10).depth(), 1_001);
    alone(|| assert_eq!(trained(&sizes[0].init(&device()).unwrap()), 25_549_352));
}

/// Plain training leaves the last update of running statistics pending, and a file had them a step behind.
#[test]
fn a_saved_file_has_the_last_update_of_running_statistics_and_is_the_same_each_time() {
    alone(|| {
        let folder = tempfile::tempdir().unwrap();
        let saved = |rule: Rule, plain: bool| {
            let (net, batch) = (net(&[1, 1]), quarters(4, 5));
            let before = folder.path().join("before");
            save_module(&before, &net).unwrap();
            match plain {
                true => without_checkpointing(|| step(&net, &net, &batch, rule.into())).unwrap(),
                false => step(&net, &net, &batch, rule.into()).unwrap(),
            };
            let files: Vec<Vec<u8>> = (0..8)
                .map(|number| {
                    let path = folder.path().join(number.to_string());
                    save_module(&path, &net).unwrap();
                    std::fs::read(path).unwrap()
                })
                .collect();
            assert!(files.iter().all(|file| *file == files[0]));
            assert!(std::fs::read(before).unwrap() != files[0], "statistics moved");
            files[0].clone()
        };
        let expected = saved(Rule::StoreAll, true);
        for rule in ["store-all", "every-1", "full"] {
            assert!(saved(rule.parse().unwrap(), false) == expected, "{rule}");
        }
    });
}

/// The weights that are trained; running statistics are not.
fn trained(net: &ResNet) -> u64 {
    struct Count(u64);
    impl ModuleVisitor for Count {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            self.0 += if value.is_tracked() { value.shape().num_elements() as u64 } else { 0 };
        }
    }
    let mut count = Count(0);
    net.visit(&mut count);
    count.0
}

#[test]
fn it_has_the_weights_that_are_counted() {
    // It draws them, from where the others do.
    alone(|| {
        for (bottlenecks, width) in [(vec![1, 1, 1], 16), (vec![2, 0, 3], 16), (vec![3], 16)] {
            let config = ResNetConfig::new(bottlenecks.clone(), 10).with_width(width);
            let counted = Architecture::ResNet(Counted {
                kind: ResNetKind::Cifar,
                bottlenecks: bottlenecks.iter().map(|count| *count as u64).collect(),
                classes: 10,
                pixels: 32,
            });
            let net = config.init(&device()).unwrap();
            assert_eq!(trained(&net), counted.parameters(), "{bottlenecks:?}");
            assert_eq!(config.depth() as u64, counted.layers());
        }
        assert_eq!(ResNetConfig::layers_1001(10).depth(), 1_001);
    });
}

#[test]
fn it_learns_under_checkpoints_what_it_has_not_seen() {
    alone(|| {
        let mut net = net(&[1, 1]);
        let mut optimizer = AdamConfig::new().init();
        rekindle::seed(1);
        let mut losses = Vec::new();
        for step in 0..30 {
            let loss = net.loss(&quarters(16, 100 + step), Rule::EVERY_ONE).unwrap();
            let found = GradientsParams::from_grads(rekindle::backward(&loss).unwrap(), &net);
            net = optimizer.step(1e-2, net, found);
            losses.push(loss.into_scalar::<f32>());
        }
        assert!(losses[29] < losses[0] / 4.0, "{losses:?}");
        let unseen = quarters(64, 7);
        let answers = net.valid().forward(unseen.images.inner()).unwrap().argmax(1).flatten::<1>(0, 1);
        let right = answers.equal(unseen.classes.inner()).int().sum().into_scalar::<i64>();
        assert!(right >= 56, "{right} of 64");
    });
}

#[test]
fn sizes_of_nothing_are_refused() {
    let refused = |config: ResNetConfig| config.init(&device()).err();
    let config = ResNetConfig::new(vec![1], 4);
    assert!(matches!(
        refused(ResNetConfig::new(vec![], 4)),
        Some(ConfigError::Empty { what: "bottlenecks" })
    ));
    assert!(matches!(refused(ResNetConfig::new(vec![1], 0)), Some(ConfigError::Empty { what: "classes" })));
    assert!(matches!(refused(config.clone().with_width(0)), Some(ConfigError::Empty { what: "width" })));
    assert!(matches!(refused(config.with_channels(0)), Some(ConfigError::Empty { what: "channels" })));
}
