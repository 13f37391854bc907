//! What model the weights in a file are of.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::WeightsError;
use crate::{Activation, GptConfig, Positions};

/// Where [`save`](super::save) puts the configuration.
const KEY: &str = "rekindle.config";

/// What is written beside the weights. Others look for the first.
pub(super) fn metadata(config: &GptConfig) -> HashMap<String, String> {
    let text = serde_json::to_string(config).unwrap_or_default();
    HashMap::from([("format".to_owned(), "pt".to_owned()), (KEY.to_owned(), text)])
}

/// The configuration that is in the file, or in `config.json` beside it.
pub(super) fn find(
    path: &Path,
    metadata: Option<&HashMap<String, String>>,
) -> Result<GptConfig, WeightsError> {
    if let Some(text) = metadata.and_then(|metadata| metadata.get(KEY)) {
        return serde_json::from_str(text)
            .map_err(|error| WeightsError::Config { path: path.to_owned(), reason: error.to_string() });
    }
    let config: PathBuf = path.with_file_name("config.json");
    let text = match std::fs::read(&config) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(WeightsError::NoConfig { path: path.to_owned(), config });
        }
        Err(source) => return Err(WeightsError::Read { path: config, source }),
    };
    let refuse = |reason: String| WeightsError::Config { path: config.clone(), reason };
    let foreign: Foreign = serde_json::from_slice(&text).map_err(|error| refuse(error.to_string()))?;
    foreign.config().map_err(refuse)
}

/// The keys of Hugging Face's `config.json` that matter here.
#[derive(Deserialize)]
#[serde(tag = "model_type", rename_all = "lowercase")]
enum Foreign {
    Gpt2(Gpt2),
    Llama(Llama),
}

#[derive(Deserialize)]
struct Gpt2 {
    vocab_size: usize,
    n_positions: usize,
    n_embd: usize,
    n_head: usize,
    n_layer: usize,
    n_inner: Option<usize>,
    activation_function: Option<String>,
    layer_norm_epsilon: Option<f64>,
    resid_pdrop: Option<f64>,
    tie_word_embeddings: Option<bool>,
}

#[derive(Deserialize)]
struct Llama {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    max_position_embeddings: usize,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    rope_scaling: Option<serde_json::Value>,
    attention_bias: Option<bool>,
    hidden_act: Option<String>,
    tie_word_embeddings: Option<bool>,
}

impl Foreign {
    fn config(self) -> Result<GptConfig, String> {
        match self {
            Self::Gpt2(found) => found.config(),
            Self::Llama(found) => found.config(),
        }
    }
}

impl Gpt2 {
    fn config(self) -> Result<GptConfig, String> {
        let activation = match self.activation_function.as_deref() {
            None | Some("gelu_new" | "gelu_pytorch_tanh") => Activation::GeluTanh,
            Some("gelu") => Activation::Gelu,
            Some(other) => {
                return Err(format!("`activation_function` is `{other}`, expected gelu_new or gelu"));
            }
        };
        let config =
            GptConfig::gpt2(self.vocab_size, self.n_embd, self.n_head, self.n_layer, self.n_positions);
        Ok(config
            .with_activation(activation)
            .with_hidden(self.n_inner)
            .with_epsilon(self.layer_norm_epsilon.unwrap_or(1e-5))
            .with_dropout(self.resid_pdrop.unwrap_or(0.1))
            .with_tied(self.tie_word_embeddings.unwrap_or(true)))
    }
}

impl Llama {
    fn config(self) -> Result<GptConfig, String> {
        if self.rope_scaling.is_some_and(|scaling| !scaling.is_null()) {
            return Err("`rope_scaling` is set, expected rotary positions without it".to_owned());
        }
        if self.attention_bias == Some(true) {
            return Err("`attention_bias` is true, expected linear layers without bias".to_owned());
        }
        if let Some(other) = self.hidden_act.filter(|name| name != "silu") {
            return Err(format!("`hidden_act` is `{other}`, expected silu"));
        }
        let config = GptConfig::llama(
            self.vocab_size,
            self.hidden_size,
            self.num_attention_heads,
            self.num_hidden_layers,
            self.max_position_embeddings,
        );
        Ok(config
            .with_hidden(Some(self.intermediate_size))
            .with_key_heads(self.num_key_value_heads.filter(|heads| *heads != self.num_attention_heads))
            .with_epsilon(self.rms_norm_eps.unwrap_or(1e-6))
            .with_positions(Positions::Rotary { base: self.rope_theta.unwrap_or(10_000.0) })
            .with_tied(self.tie_word_embeddings.unwrap_or(false)))
    }
}
