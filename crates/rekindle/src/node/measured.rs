//! Burn, as it is measured.

use std::hash::{Hash, Hasher};

use burn::backend::TensorMetadata;
use rekindle_plan::{Bytes, Name, Stage};
use rekindle_run::Measurable;

use super::boundary::{OnDevice, Part, PartGradients};
use super::engine::BurnEngine;
use super::tensor::describe;
use super::{BALANCED, GraphBackend, TapeStrategy};
use crate::{Error, memory};

impl<B: GraphBackend> Measurable for BurnEngine<B> {
    fn stages(&self) -> usize {
        self.stages.len()
    }

    fn stage_name(&self, stage: Stage) -> String {
        self.name(stage)
    }

    fn kind(&self, stage: Stage, input: &OnDevice<B>) -> u64 {
        let stage = &self.stages[stage.index()];
        let mut hash = std::hash::DefaultHasher::new();
        stage.kind().hash(&mut hash);
        for part in &input.parts {
            let (dtype, shape) = part.dtype_and_shape();
            (describe(dtype, shape.as_slice()), part.wanted()).hash(&mut hash);
        }
        input.structure.hash(&mut hash);
        let side = stage.side();
        side.tensors.iter().for_each(|tensor| tensor.describe().hash(&mut hash));
        side.structure.hash(&mut hash);
        hash.finish()
    }

    fn options(&self, stage: Stage) -> Vec<Name> {
        let can_be = self.stages[stage.index()].can_be_taped(TapeStrategy::Balanced, self.strategy);
        // A model that is balanced already has no other tape.
        match self.strategy {
            TapeStrategy::Disabled if can_be => BALANCED.parse().into_iter().collect(),
            _ => Vec::new(),
        }
    }

    fn parameter_gradient_bytes(&self, stage: Stage) -> Bytes {
        let (mine, later) = self.parameters[stage.index()..].split_at(1);
        let mine = mine.iter().flatten().filter(|id| !later.iter().flatten().any(|other| other == *id));
        mine.filter_map(|id| self.parameter_bytes.get(id).copied()).sum()
    }

    fn some_gradient(&mut self, output: &OnDevice<B>) -> Result<PartGradients<B>, Error> {
        let gradients = output.parts.iter().map(|part| match part {
            Part::Float { tensor, wanted: true } => {
                Some(B::float_ones(tensor.shape(), &tensor.device(), tensor.dtype().into()))
            }
            _ => None,
        });
        Ok(gradients.collect())
    }

    fn left_out(&self) -> bool {
        self.left_out
    }

    fn forget_gradients(&mut self) {
        self.parameter_gradients.clear();
    }

    fn look_for_peaks(&mut self, look: bool) -> bool {
        // What the process's allocator counts is exact, and costs nothing to speak of.
        let has_pool = self.device.memory_pool_usage().is_some();
        self.pool = match look && has_pool {
            true => memory::PoolWatch::start(&self.device),
            false => None,
        };
        has_pool
    }

    fn finish(&mut self) {
        // A device that fails says so to whoever reads from it next.
        let _ = self.device.sync();
    }
}
