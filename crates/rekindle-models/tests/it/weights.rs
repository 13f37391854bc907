//! Weights in files: what was written is read, and what is damaged or of another model is refused.

use std::path::Path;
use std::process::Command;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Int, Tensor, TensorData, Tolerance};
use rekindle::Rule;
use rekindle_models::weights::{WeightsError, load, load_into, load_module, save, save_module};
use rekindle_models::{Gpt, GptConfig, Positions, ResNetConfig};
use tempfile::tempdir;

use crate::common::alone;

fn device() -> Device {
    Device::flex()
}

fn bytes(module: &impl Module) -> Vec<Vec<u8>> {
    #[derive(Default)]
    struct Collect(Vec<Vec<u8>>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.val().into_data().as_bytes().to_vec());
        }
    }
    let mut collect = Collect::default();
    module.visit(&mut collect);
    collect.0
}

fn logits(model: &Gpt, tokens: &[Vec<i64>]) -> TensorData {
    let shape = [tokens.len(), tokens[0].len()];
    let tokens: Tensor<2, Int> = Tensor::from_data(TensorData::new(tokens.concat(), shape), &device());
    model.forward(tokens, Rule::StoreAll).unwrap().into_data()
}

fn shapes() -> [GptConfig; 5] {
    let llama = GptConfig::llama(20, 16, 4, 2, 12);
    [
        GptConfig::new(20, 16, 4, 2, 12),
        GptConfig::gpt2(20, 16, 4, 2, 12),
        llama.clone(),
        llama.clone().with_key_heads(Some(2)),
        llama.with_tied(true).with_hidden(Some(7)),
    ]
}

#[test]
fn what_was_written_is_read_again_bit_for_bit() {
    alone(|| {
        let directory = tempdir().unwrap();
        let path = directory.path().join("model.safetensors");
        for config in shapes() {
            let model = config.init(&device()).unwrap();
            save(&path, &config, &model).unwrap();
            let (found, read) = load(&path, &device()).unwrap();
            assert_eq!(format!("{found:?}"), format!("{config:?}"));
            assert!(bytes(&read) == bytes(&model), "{config:?}");
            let again = load_into(&path, &config, config.init(&device()).unwrap(), &device()).unwrap();
            assert!(bytes(&again) == bytes(&model), "{config:?}");
        }
        // Nothing else is left beside the file.
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    });
}

#[test]
fn what_is_read_is_trained_like_any_other_model() {
    alone(|| {
        let directory = tempdir().unwrap();
        let path = directory.path().join("model.safetensors");
        let config = GptConfig::gpt2(20, 16, 4, 1, 4);
        save(&path, &config, &config.init(&device()).unwrap()).unwrap();
        let training = device().autodiff();
        let (_, model) = load(&path, &training).unwrap();
        let tokens = Tensor::<2, Int>::zeros([1, 4], &training);
        let batch = rekindle_models::GptBatch { tokens: tokens.clone(), targets: tokens };
        let loss = model.loss(&batch, Rule::EVERY_ONE).unwrap();
        let gradients = burn::optim::GradientsParams::from_grads(loss.backward(), &model);
        assert_eq!(gradients.len(), bytes(&model).len());
    });
}

#[test]
fn any_module_has_the_names_of_its_fields() {
    alone(|| {
        let directory = tempdir().unwrap();
        let path = directory.path().join("net.safetensors");
        let config = ResNetConfig::new(vec![1, 1], 4).with_width(4);
        let net = config.init(&device()).unwrap();
        save_module(&path, &net).unwrap();
        let read = load_module(&path, config.init(&device()).unwrap()).unwrap();
        assert!(bytes(&read) == bytes(&net));
        let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
        assert!(text.contains("\"blocks.1.middle.norm.gamma\""), "{}", &text[..600]);
        let other = ResNetConfig::new(vec![1, 1], 5).with_width(4).init(&device()).unwrap();
        let error = load_module(&path, other).unwrap_err();
        assert!(
            matches!(error, WeightsError::Shape { ref name, .. } if name == "head.linear.bias"),
            "{error}"
        );
        let deeper = ResNetConfig::new(vec![1, 2], 4).with_width(4).init(&device()).unwrap();
        assert!(matches!(load_module(&path, deeper).unwrap_err(), WeightsError::Missing { .. }));
    });
}

/// A safetensors file of `f32` zeros.
fn file(tensors: &[(&str, &[usize])], metadata: &str) -> Vec<u8> {
    let (mut header, mut end) = (format!("{{\"__metadata__\":{metadata}"), 0);
    for (name, shape) in tensors {
        let start = end;
        end += 4 * shape.iter().product::<usize>();
        header += &format!(
            ",\"{name}\":{{\"dtype\":\"F32\",\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}"
        );
    }
    header += "}";
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + end, 0);
    bytes
}

#[test]
fn a_file_that_is_damaged_or_of_another_model_is_refused() {
    alone(|| {
        let directory = tempdir().unwrap();
        let path = directory.path().join("model.safetensors");
        let config = GptConfig::llama(20, 16, 4, 2, 12);
        let refused = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            load(&path, &device()).unwrap_err()
        };
        assert!(matches!(load(&path, &device()).unwrap_err(), WeightsError::Read { .. }));
        for junk in [&b""[..], b"{}", b"no weights at all", &[255; 64]] {
            assert!(matches!(refused(junk), WeightsError::Format { .. }), "{junk:?}");
        }
        assert!(matches!(refused(&file(&[("w", &[2])], "{}")), WeightsError::NoConfig { .. }));
        save(&path, &config, &config.init(&device()).unwrap()).unwrap();
        let whole = std::fs::read(&path).unwrap();
        assert!(matches!(refused(&whole[..whole.len() - 1]), WeightsError::Format { .. }));
        // A configuration beside the file counts where the file has none.
        let beside = directory.path().join("config.json");
        for (text, part) in [
            ("{", "EOF"),
            ("{\"model_type\":\"bert\"}", "unknown variant `bert`"),
            ("{\"model_type\":\"gpt2\",\"n_embd\":8}", "missing field"),
        ] {
            std::fs::write(&beside, text).unwrap();
            let error = refused(&file(&[("w", &[2])], "{}"));
            assert!(
                matches!(error, WeightsError::Config { .. }) && error.to_string().contains(part),
                "{error}"
            );
        }
        // Named after what broke: sizes that nothing could hold were allocated before the file was looked at.
        let vast = "{\"model_type\":\"gpt2\",\"vocab_size\":9,\"n_positions\":4,\"n_embd\":4,\"n_head\":1,\
                \"n_layer\":18446744073709551615}";
        std::fs::write(&beside, vast).unwrap();
        assert!(matches!(refused(&file(&[("w", &[2])], "{}")), WeightsError::Config { .. }));
        let small = vast.replace("18446744073709551615", "0");
        std::fs::write(&beside, small).unwrap();
        let whole: [(&str, &[usize]); 4] =
            [("wte.weight", &[9, 4]), ("wpe.weight", &[4, 4]), ("ln_f.weight", &[4]), ("ln_f.bias", &[4])];
        std::fs::write(&path, file(&whole, "{}")).unwrap();
        assert!(load(&path, &device()).is_ok());
        let error = refused(&file(&whole[..3], "{}"));
        assert!(error.to_string().ends_with("lacks `ln_f.bias`"), "{error}");
        let more: Vec<(&str, &[usize])> = whole.into_iter().chain([("h.0.ln_1.weight", &[4][..])]).collect();
        let error = refused(&file(&more, "{}"));
        assert!(error.to_string().ends_with("has `h.0.ln_1.weight`, which the model has not"), "{error}");
        let mut other = whole;
        other[1].1 = &[5, 4];
        let error = refused(&file(&other, "{}"));
        assert!(error.to_string().contains("has shape [5, 4], expected [4, 4]"), "{error}");
        let text = file(&whole, "{}");
        let at = text.windows(3).position(|window| window == b"F32").unwrap();
        let mut integers = text;
        integers[at..at + 3].copy_from_slice(b"I32");
        assert!(matches!(refused(&integers), WeightsError::Type { .. }));
    });
}

#[test]
fn a_shape_that_nobody_has_names_for_is_not_written() {
    alone(|| {
        let directory = tempdir().unwrap();
        let path = directory.path().join("model.safetensors");
        let config = GptConfig::new(20, 16, 4, 1, 12).with_positions(Positions::Rotary { base: 1e4 });
        let error = save(&path, &config, &config.init(&device()).unwrap()).unwrap_err();
        assert!(matches!(error, WeightsError::NoNames));
        assert!(!path.exists());
        let config = GptConfig::gpt2(20, 16, 4, 1, 12);
        let nowhere = directory.path().join("nowhere").join("model.safetensors");
        let error = save(&nowhere, &config, &config.init(&device()).unwrap()).unwrap_err();
        assert!(matches!(error, WeightsError::Write { .. }));
    });
}

/// Bytes changed by chance: refused or read, but never a panic.
#[test]
fn no_file_makes_it_panic() {
    alone(|| {
        let directory = tempdir().unwrap();
        let path = directory.path().join("model.safetensors");
        let config = GptConfig::gpt2(5, 4, 2, 1, 3);
        save(&path, &config, &config.init(&device()).unwrap()).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let mut random = fastrand::Rng::with_seed(3);
        let mut refused = 0;
        for _ in 0..2_000 {
            let mut bytes = whole.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(0..bytes.len().min(2_200));
                bytes[at] = random.u8(..);
            }
            std::fs::write(&path, &bytes).unwrap();
            refused += usize::from(load(&path, &device()).is_err());
        }
        assert!(refused > 500, "{refused}");
    });
}

/// Who runs PyTorch; `None` where it is said to be left out.
fn python() -> Option<String> {
    if std::env::var_os("REKINDLE_SKIP_PYTORCH").is_some_and(|skip| skip == "1") {
        eprintln!("left out: REKINDLE_SKIP_PYTORCH=1");
        return None;
    }
    let named = std::env::var("REKINDLE_PYTHON").ok();
    let names =
        named.map_or_else(|| vec!["python3".to_owned(), "/usr/bin/python3".to_owned()], |name| vec![name]);
    let has = |name: &&String| {
        Command::new(name).args(["-c", "import torch"]).output().is_ok_and(|output| output.status.success())
    };
    let found = names.iter().find(has).cloned();
    assert!(
        found.is_some(),
        "no PyTorch for {names:?}; install it (`apt-get install --no-install-recommends python3-torch`), name a Python that \
         has it in REKINDLE_PYTHON, or set REKINDLE_SKIP_PYTORCH=1"
    );
    found
}

#[test]
fn logits_are_those_of_pytorch_on_the_same_weights() {
    alone(|| {
        let Some(python) = python() else { return };
        for kind in ["gpt2", "llama"] {
            let directory = tempdir().unwrap();
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch/logits.py");
            let output = Command::new(&python).arg(script).arg(kind).arg(directory.path()).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            #[derive(serde::Deserialize)]
            struct Expected {
                tokens: Vec<Vec<i64>>,
                logits: Vec<f32>,
            }
            let text = std::fs::read(directory.path().join("logits.json")).unwrap();
            let Expected { tokens, logits: expected } = serde_json::from_slice(&text).unwrap();
            let (_, model) = load(&directory.path().join("model.safetensors"), &device()).unwrap();
            let found = logits(&model, &tokens);
            assert!(expected.iter().any(|logit| logit.abs() > 1.0), "{kind}");
            let expected = TensorData::new(expected, found.shape().clone());
            found.assert_approx_eq::<f32>(&expected, Tolerance::rel_abs(1e-5, 1e-5));
        }
    });
}
