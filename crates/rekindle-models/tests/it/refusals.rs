//! Batches that a model was not made for: an error that says what was found, under our nodes and under Burn's modules.

use burn::tensor::{Device, Int, Tensor, TensorData};
use rekindle::{Error, Rule};
use rekindle_models::{
    GptBatch, GptConfig, ImageBatch, RecurrentConfig, RecurrentKind, ResNetConfig, SequenceBatch, Trainable,
    VitConfig,
};

use crate::common::{alone, device};

fn classes(found: &[i64]) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::new(found.to_vec(), [found.len()]), &device())
}

fn images(channels: usize, found: &[i64]) -> ImageBatch {
    ImageBatch { images: Tensor::ones([found.len(), channels, 8, 8], &device()), classes: classes(found) }
}

fn sequences(features: usize, found: &[i64]) -> SequenceBatch {
    SequenceBatch { sequences: Tensor::ones([found.len(), 6, features], &device()), classes: classes(found) }
}

/// A target that is no class, in the row where it stands.
fn of_no_class(error: &Error, [at, target]: [i64; 2]) -> bool {
    matches!(error, Error::LossTarget { row, found, classes: 3 } if (*row as i64, *found) == (at, target))
}

#[test]
fn labels_that_are_no_classes() {
    alone(|| {
        let device: Device = device();
        for (labels, place) in [([0, 3, 1], [1, 3]), ([0, 1, -1], [2, -1])] {
            for burn in [false, true] {
                let net = ResNetConfig::new(vec![1], 3).with_width(4).with_burn(burn).init(&device).unwrap();
                let error = net.loss(&images(3, &labels), Rule::EVERY_ONE).unwrap_err();
                assert!(of_no_class(&error, place), "resnet, burn {burn}: {error}");
                let vit = VitConfig::new(8, 4, 8, 2, 1, 3).with_burn(burn).init(&device).unwrap();
                let error = vit.loss(&images(3, &labels), Rule::EVERY_ONE).unwrap_err();
                assert!(of_no_class(&error, place), "vit, burn {burn}: {error}");
                let gpt =
                    GptConfig::new(3, 8, 2, 1, 4).with_dropout(0.0).with_burn(burn).init(&device).unwrap();
                let tokens = Tensor::<2, Int>::zeros([1, 3], &device);
                let batch = GptBatch { tokens: tokens.clone(), targets: classes(&labels).unsqueeze() };
                let error = gpt.loss(&batch, Rule::EVERY_ONE).unwrap_err();
                assert!(of_no_class(&error, place), "gpt, burn {burn}: {error}");
                // Nor is there a word for it.
                let batch = GptBatch { tokens: classes(&labels).unsqueeze(), targets: tokens };
                let error = gpt.loss(&batch, Rule::EVERY_ONE).unwrap_err();
                assert!(error.to_string().contains(&place[1].to_string()), "gpt, burn {burn}: {error}");
            }
            for kind in [RecurrentKind::Lstm, RecurrentKind::Gru] {
                let net = RecurrentConfig::new(2, 4, 3).with_kind(kind).init(&device).unwrap();
                let batch = sequences(2, &labels);
                let error = net.loss(&batch, Rule::EVERY_ONE).unwrap_err();
                assert!(of_no_class(&error, place), "{kind:?}: {error}");
                let error = net.loss_truncated(&batch, 2).unwrap_err();
                assert!(of_no_class(&error, place), "{kind:?}, truncated: {error}");
            }
        }
    });
}

#[test]
fn a_label_too_few() {
    alone(|| {
        for burn in [false, true] {
            let net = ResNetConfig::new(vec![1], 3).with_width(4).with_burn(burn).init(&device()).unwrap();
            let batch = ImageBatch { classes: classes(&[0, 1]), ..images(3, &[0, 1, 2]) };
            let error = net.loss(&batch, Rule::EVERY_ONE).unwrap_err();
            assert!(matches!(error, Error::LossShape { what: "targets", .. }), "burn {burn}: {error}");
        }
    });
}

#[test]
fn images_of_other_channels_and_steps_of_other_features() {
    alone(|| {
        let net = ResNetConfig::new(vec![1], 3).with_width(4).init(&device()).unwrap();
        let grey = images(1, &[0, 1]);
        let found = [
            net.loss(&grey, Rule::EVERY_ONE).unwrap_err(),
            net.forward(grey.images.clone()).unwrap_err(),
            net.accuracy(&grey).unwrap_err(),
        ];
        for error in found {
            assert_eq!(
                error.to_string(),
                "the model was given images of shape [2, 1, 8, 8], expected [2, 3, 8, 8]"
            );
        }
        for kind in [RecurrentKind::Lstm, RecurrentKind::Gru] {
            let net = RecurrentConfig::new(2, 4, 3).with_kind(kind).init(&device()).unwrap();
            let wide = sequences(5, &[0, 1]);
            let found = [
                net.loss(&wide, Rule::EVERY_ONE).unwrap_err(),
                net.loss_truncated(&wide, 2).unwrap_err(),
                net.forward(wide.sequences.clone()).unwrap_err(),
                net.accuracy(&wide).unwrap_err(),
            ];
            for error in found {
                let said = error.to_string();
                assert!(said.starts_with("the model was given sequences of shape [2, "), "{kind:?}: {said}");
                assert!(
                    said.ends_with(", 5], expected [2, 6, 2]") || said.ends_with(", 2]"),
                    "{kind:?}: {said}"
                );
            }
        }
    });
}
