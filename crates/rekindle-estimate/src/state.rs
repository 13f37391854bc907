//! What training holds whatever the batch is.

use rekindle_plan::Bytes;

use crate::{Architecture, Parallel, Precision, Setting};

/// Weights, their gradients, and what Adam keeps, on the rank that has most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// What the model computes with.
    pub weights: Bytes,
    /// One for each weight.
    pub gradients: Bytes,
    /// Two moments in 32 bits, and the weights in 32 bits where the model computes with 16.
    pub optimizer: Bytes,
}

impl State {
    /// For Adam, as in ZeRO: 16 bytes for each parameter, divided as `parallel` says.
    pub fn of(architecture: &Architecture, setting: &Setting, parallel: &Parallel) -> Self {
        let split = setting.tensor_parallel.max(1).saturating_mul(parallel.pipeline.max(1));
        let parameters = architecture.parameters().div_ceil(split);
        let (element, rest) = match setting.precision {
            Precision::F32 => (4, 8),
            _ => (2, 12),
        };
        let among = |from: u8, each: u64| {
            let ranks = if parallel.zero >= from { parallel.data.max(1) } else { 1 };
            Bytes::new(parameters.saturating_mul(each).div_ceil(ranks))
        };
        Self { weights: among(3, element), gradients: among(2, element), optimizer: among(1, rest) }
    }

    /// All of it.
    pub fn total(&self) -> Bytes {
        [self.weights, self.gradients, self.optimizer].into_iter().sum()
    }
}
