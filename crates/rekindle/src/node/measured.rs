//! Burn, as it is measured.

use std::hash::{Hash, Hasher};

use burn::backend::TensorMetadata;
use burn::backend::autodiff::NodeId;
use rekindle_plan::{Bytes, Name, Stage};
use rekindle_run::{Engine, Measurable};

use super::boundary::{OnDevice, Part, PartGradients};
use super::engine::BurnEngine;
use super::tensor::describe;
use super::{GraphBackend, Keeping, TapeStrategy};
use crate::{Error, memory};

/// The most that a gradient takes beside its elements: what a backend writes down of it. The simulator knows nothing of that, and what is
/// set aside for it is not for each stage to measure.
const HANDLE_BYTES: u64 = 512;

/// The parameters whose gradients a stage's backward is the first to make: those that no later stage shares.
fn own_parameters<B: GraphBackend>(engine: &BurnEngine<B>, stage: Stage) -> impl Iterator<Item = NodeId> {
    let (own, later) = engine.parameters[stage.index()..].split_at(1);
    let is_own = |id: &&NodeId| !later.iter().flatten().any(|other| other == *id);
    own.iter().flatten().filter(is_own).copied()
}

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
        // A model that is balanced already has no other tape.
        if self.strategy != TapeStrategy::Disabled {
            return Vec::new();
        }
        let (of, marks) = (&self.stages[stage.index()], self.marks[stage.index()]);
        let mut options = super::options();
        options.retain(|option| {
            let keeping = Keeping::of(Some(option), self.strategy);
            keeping.is_some_and(|keeping| {
                of.can_be_taped(keeping.strategy, self.strategy) && (marks || !keeping.again)
            })
        });
        options
    }

    fn parameter_gradient_bytes(&self, stage: Stage) -> Bytes {
        own_parameters(self, stage).filter_map(|id| self.parameter_bytes.get(&id).copied()).sum()
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

    fn forget_own_gradients(&mut self, stage: Stage) -> Bytes {
        let shaped = self.parameter_gradient_bytes(stage);
        let own: Vec<NodeId> = own_parameters(self, stage).collect();
        let before = self.live_bytes().unwrap_or_default();
        let gradients = own.iter().filter_map(|id| self.parameter_gradients.remove(id)).count() as u64;
        let kept = before.saturating_sub(self.live_bytes().unwrap_or_default());
        // A gradient can be a part of something larger, as that of a convolution with a stride is, and keeps all of it.
        match kept.saturating_sub(shaped).get() > gradients * HANDLE_BYTES {
            true => kept,
            false => shaped,
        }
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
