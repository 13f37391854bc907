//! What training holds whatever the batch is.

use rekindle_plan::Bytes;
use serde::Serialize;

use crate::{Architecture, Parallel, Precision, Setting};

/// Weights, their gradients, and what Adam keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct State {
    /// What the model computes with.
    pub weights: Bytes,
    /// One for each weight.
    pub gradients: Bytes,
    /// Two moments in 32 bits, and the weights in 32 bits where the model computes with 16.
    pub optimizer: Bytes,
}

impl State {
    /// For Adam, as in ZeRO: 16 bytes for each parameter, divided as `parallel` says. On the rank of a pipeline that has most: the first has
    /// most layers, and the last may have the larger end.
    pub fn of(architecture: &Architecture, setting: &Setting, parallel: &Parallel) -> Self {
        let ends = [0, parallel.pipeline.max(1) - 1].map(|rank| architecture.parameters_on(rank, parallel));
        let most = ends.into_iter().max().unwrap_or_default();
        Self::of_parameters(most.div_ceil(setting.tensor_parallel.max(1)), setting, parallel)
    }

    /// The same on a rank of a pipeline, from 0 on: the embedding is on the first, and the head on the last.
    pub fn on(architecture: &Architecture, setting: &Setting, parallel: &Parallel, rank: u64) -> Self {
        let parameters = architecture.parameters_on(rank, parallel);
        Self::of_parameters(parameters.div_ceil(setting.tensor_parallel.max(1)), setting, parallel)
    }

    fn of_parameters(parameters: u64, setting: &Setting, parallel: &Parallel) -> Self {
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
