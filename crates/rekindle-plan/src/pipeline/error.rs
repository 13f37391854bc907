//! What a pipeline cannot be asked for.

use crate::{Bytes, ProfileError, SolveError};

/// Why there is no pipeline.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// There is nothing to run.
    #[error("a pipeline of {ranks} ranks with {micro_batches} micro-batches: there has to be one of each")]
    Empty {
        /// How many ranks.
        ranks: usize,
        /// How many micro-batches.
        micro_batches: usize,
    },
    /// There are not enough stages.
    #[error("{stages} stages cannot be shared out among {ranks} ranks: each needs one")]
    TooFewStages {
        /// How many stages there are.
        stages: usize,
        /// How many ranks.
        ranks: usize,
    },
    /// Numbers grow too large.
    #[error("times or sizes of a pipeline do not fit 64 bits")]
    TooLarge,
    /// A rank has no plan within its budget.
    #[error(
        "rank {rank} has no plan within {budget_bytes} ({} bytes) with {in_flight} in flight; \
         {enough_bytes} ({} bytes) are enough", budget_bytes.get(), enough_bytes.get()
    )]
    BudgetTooSmall {
        /// Which rank, from 0 on.
        rank: usize,
        /// What it may take.
        budget_bytes: Bytes,
        /// How many micro-batches it holds at once.
        in_flight: usize,
        /// A budget that it has a plan for.
        enough_bytes: Bytes,
    },
    /// A rank's stages cannot be planned.
    #[error("rank {rank}: {source}")]
    Solve {
        /// Which rank, from 0 on.
        rank: usize,
        /// What the solver said.
        source: SolveError,
    },
    /// A rank's stages are no profile.
    #[error(transparent)]
    Profile(#[from] ProfileError),
}
