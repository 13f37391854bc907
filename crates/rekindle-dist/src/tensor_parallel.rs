//! Ranks that have parts of the same layers.

use std::sync::Arc;

use rekindle::peers::Peers;

use crate::{Collective, Reduction};

/// Ranks that have a part of each layer, and run every stage together: the [`Peers`] that models are split over.
///
/// What lies between two stages all of them have ([`Partitioned`](crate::Partitioned) keeps a part of it on each). A stage that is run
/// again talks again, so all have to run the same plan: give all the first one's ([`share_plan`](crate::share_plan)), or
/// compare them before the first step ([`agree_on_plan`](crate::agree_on_plan)). Measure the stages on all ranks at once: what they wait for each
/// other is then part of the time of a stage, and so of what a plan costs.
///
/// ```
/// use std::sync::Arc;
///
/// use rekindle::peers::Peers;
/// use rekindle_dist::{Alone, TensorParallel};
///
/// let peers: Arc<dyn Peers> = TensorParallel::new(Arc::new(Alone)).peers();
/// assert_eq!((peers.rank(), peers.size()), (0, 1));
/// ```
#[derive(Clone)]
pub struct TensorParallel {
    ranks: Arc<dyn Collective>,
    reduction: Reduction,
}

impl std::fmt::Debug for TensorParallel {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (rank, size) = (self.ranks.rank(), self.ranks.size());
        formatter
            .debug_struct("TensorParallel")
            .field("rank", &rank)
            .field("size", &size)
            .finish_non_exhaustive()
    }
}

impl TensorParallel {
    /// The ranks of a group.
    pub fn new(ranks: Arc<dyn Collective>) -> Self {
        Self { ranks, reduction: Reduction::default() }
    }

    /// How to add up; ordered by rank unless said otherwise.
    #[must_use]
    pub fn reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }

    /// As models take them.
    pub fn peers(self) -> Arc<dyn Peers> {
        Arc::new(self)
    }
}

impl Peers for TensorParallel {
    fn rank(&self) -> usize {
        self.ranks.rank()
    }

    fn size(&self) -> usize {
        self.ranks.size()
    }

    fn sum(&self, values: Vec<f32>) -> Result<Vec<f32>, String> {
        self.ranks.all_reduce(values, self.reduction).map_err(|error| error.to_string())
    }
}
