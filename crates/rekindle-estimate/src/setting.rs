//! How a model is trained, as far as memory depends on it.

use crate::{Architecture, Precision};

/// What a step is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Sequences or images in a step, on one rank.
    pub batch: u64,
    /// Tokens of a sequence; pixels along a side of an image.
    pub length: u64,
    /// What activations are made of.
    pub precision: Precision,
    /// Whether there is dropout, as there is in a GPT-2 and not in a Llama.
    pub dropout: bool,
    /// How attention runs.
    pub attention: AttentionKind,
    /// What a tape holds.
    pub keeping: Keeping,
    /// Over how many ranks a layer is split.
    pub tensor_parallel: u64,
    /// Whether what is not split is at least cut along the sequence.
    pub sequence_parallel: bool,
}

impl Setting {
    /// A batch of one, as the architecture is usually trained, in 16 bits, with attention that holds every pair of positions.
    pub fn of(architecture: &Architecture) -> Self {
        Self {
            batch: 1,
            length: architecture.usual_length(),
            precision: Precision::Bf16,
            dropout: architecture.has_dropout(),
            attention: AttentionKind::Stored,
            keeping: Keeping::Framework,
            tensor_parallel: 1,
            sequence_parallel: false,
        }
    }

    /// The bytes of an activation.
    pub fn element(&self) -> u64 {
        self.precision.bytes()
    }
}

/// How attention runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionKind {
    /// Keeps a number for every pair of positions.
    Stored,
    /// Exact as well, in memory that grows with the sequence.
    Linear,
}

/// What a tape holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeping {
    /// What a framework keeps that differentiates operation by operation: the input of each, and the masks of dropout.
    Framework,
    /// What our nodes keep: no masks, no logits, and attention in linear memory.
    Nodes,
}

/// Over which ranks training is spread. Tensor parallelism is a [`Setting`], because it changes the stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parallel {
    /// What is divided among data-parallel ranks: nothing (0), optimizer state (1), gradients (2), weights (3).
    pub zero: u8,
    /// How many data-parallel ranks there are.
    pub data: u64,
    /// Into how many pieces the layers are cut, each on a rank of its own.
    pub pipeline: u64,
    /// How many parts of a batch go through the pieces in a step; `None` for as many as there are pieces.
    pub micro_batches: Option<u64>,
    /// Whether boundaries that all ranks of a split layer have are kept in parts, one on each.
    pub partition_checkpoints: bool,
}

impl Default for Parallel {
    fn default() -> Self {
        Self { zero: 0, data: 1, pipeline: 1, micro_batches: None, partition_checkpoints: false }
    }
}

impl Parallel {
    /// How many parts of a batch a rank of a pipeline, from 0 on, has forward and not yet back: one forward, one backward.
    pub fn in_flight(&self, rank: u64) -> u64 {
        let ranks = self.pipeline.max(1);
        self.micro_batches.unwrap_or(ranks).min(ranks.saturating_sub(rank)).max(1)
    }

    /// How many of so many layers a rank of a pipeline has: the first ones have one more where they do not come out even.
    pub fn layers(&self, rank: u64, layers: u64) -> u64 {
        let ranks = self.pipeline.max(1);
        layers / ranks + u64::from(rank < layers % ranks)
    }

    /// Over how many ranks a kept boundary is shared out. Where it is cut along the sequence no two ranks have the same of it.
    pub fn parts_of_boundaries(&self, setting: &Setting) -> u64 {
        match self.partition_checkpoints && !setting.sequence_parallel {
            true => setting.tensor_parallel.max(1),
            false => 1,
        }
    }
}
