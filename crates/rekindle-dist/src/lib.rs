//! More than one machine: the same plans over MPI.
//!
//! One process is one rank, because Burn's random state is one per process. What a plan keeps and recomputes stays a rank's
//! own business; ranks meet in a [`Collective`], of which there is one for [MPI](Mpi) and one of [a single rank](Alone):
//!
//! - [`DataParallel`] adds up the gradients of ranks that have different examples, each gradient once.
//! - [`Zero`] shards the optimizer's state, and the gradients if asked to, over flat vectors.
//! - [`Partitioned`] keeps the n-th part of each boundary that all ranks have.
//! - [`TensorParallel`] runs models whose layers each rank has a part of.
//! - [`pipeline`] gives every rank some stages of a model and keeps all of them busy, one forward, one backward.
//!
//! Sums are [ordered](Reduction::Ordered) by rank, and so have the same bits as one process that adds up in the same order,
//! or [native](Reduction::Native), which is faster and rounds otherwise.
//!
//! ```
//! use rekindle_dist::{Alone, Collective, Reduction};
//!
//! // `Mpi::start` where there are more.
//! let world = Alone;
//! assert_eq!(world.all_reduce(vec![1.0, 2.0], Reduction::Ordered)?, [1.0, 2.0]);
//! # Ok::<(), rekindle_dist::DistError>(())
//! ```

mod agree;
mod alone;
mod collective;
mod data_parallel;
mod error;
mod flat;
mod mpi;
mod neighbours;
mod overlap;
mod partitioned;
pub mod pipeline;
mod tensor_parallel;
mod watchdog;
mod zero;

pub use agree::agree_on_plan;
pub use alone::Alone;
pub use collective::{Collective, Pending, Reduction};
pub use data_parallel::DataParallel;
pub use error::DistError;
pub use flat::Layout;
pub use mpi::Mpi;
pub use overlap::{Overlap, Overlapped};
pub use partitioned::{Partitioned, share_plan};
pub use tensor_parallel::TensorParallel;
pub use watchdog::{Patience, Within};
pub use zero::{Moments, Zero, ZeroStage};
