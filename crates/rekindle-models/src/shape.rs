//! What transformers differ in.

use serde::{Deserialize, Serialize};

/// How a transformer knows where a token stands.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Positions {
    /// A vector for each place, learned: as many as the longest sequence.
    Learned,
    /// Queries and keys are turned, by angles that grow with the place.
    Rotary {
        /// How much slower the slowest angle grows; 10,000 is usual.
        base: f64,
    },
}

/// What lies between the two layers of a perceptron.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Activation {
    /// The Gaussian error linear unit.
    Gelu,
    /// The same by way of `tanh`, as GPT-2 has it.
    GeluTanh,
    /// A third layer that gates the first.
    SwiGlu,
}

/// What values are divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Norms {
    /// Their deviation from their mean, which is taken away; with a bias.
    Layer,
    /// The root of their mean square.
    Rms,
}
