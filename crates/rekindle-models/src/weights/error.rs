//! Why weights are not read or written.

use std::path::PathBuf;

use crate::ConfigError;

/// Why weights were not read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The file cannot be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is damaged, or of another kind.
    #[error("`{}` is no whole safetensors file: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Nothing says what model the weights are of.
    #[error(
        "`{}` does not say what model it is of: expected a file that rekindle wrote, or `{}` beside it",
        path.display(),
        config.display()
    )]
    NoConfig {
        /// The file.
        path: PathBuf,
        /// Where a configuration was looked for.
        config: PathBuf,
    },
    /// A configuration cannot be used.
    #[error("the configuration in `{}` cannot be used: {reason}", path.display())]
    Config {
        /// The file with the configuration.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no such model.
    #[error("`{}` is of a model that cannot be: {source}", path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: Box<ConfigError>,
    },
    /// Weights are missing.
    #[error("`{}` lacks {}", path.display(), listed(names))]
    Missing {
        /// The file.
        path: PathBuf,
        /// The names that were looked for.
        names: Vec<String>,
    },
    /// There are weights that the model has not.
    #[error("`{}` has {}, which the model has not", path.display(), listed(names))]
    Unexpected {
        /// The file.
        path: PathBuf,
        /// The names that were found.
        names: Vec<String>,
    },
    /// Weights are of another shape.
    #[error("`{name}` in `{}` has shape {found:?}, expected {expected:?}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The weights.
        name: String,
        /// Their shape.
        found: Vec<usize>,
        /// The shape of the model's.
        expected: Vec<usize>,
    },
    /// Weights are of a type that weights do not have.
    #[error("`{name}` in `{}` is of type {found}, expected F32, F16, BF16 or F64", path.display())]
    Type {
        /// The file.
        path: PathBuf,
        /// The weights.
        name: String,
        /// Their type.
        found: String,
    },
    /// Nobody has names for such a model.
    #[error(
        "there are names for models of GPT-2's kind (learned positions, layer norms, biases) and of Llama's (rotary positions, \
         root-mean-square norms, gates, no biases), and this one is neither"
    )]
    NoNames,
    /// The file cannot be written.
    #[error("cannot write `{}`: {reason}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
}

/// The first few, and how many more there are.
fn listed(names: &[String]) -> String {
    let first: Vec<String> = names.iter().take(3).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(first.len()) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}
