//! `mpirun rekindle train`: one process is one rank.
//!
//! ```text
//!   world of 4    pipeline of 2 ranks each     ranks with the same stages
//!   0  1          0 ─▶ 1   the first replica    0   1
//!   2  3          2 ─▶ 3   the second           │   │   add up their gradients
//!                                               2   3
//! ```
//!
//! Each of them may be several ranks, which have a part of every layer.

#[cfg(feature = "mpi")]
mod grid;
#[cfg(feature = "mpi")]
mod log;
#[cfg(feature = "mpi")]
mod parts;
#[cfg(feature = "mpi")]
mod plans;
#[cfg(feature = "mpi")]
mod run;
#[cfg(feature = "mpi")]
mod snapshots;
#[cfg(feature = "mpi")]
mod state;
#[cfg(feature = "mpi")]
mod summary;
#[cfg(feature = "mpi")]
mod together;
#[cfg(feature = "mpi")]
mod train;

use std::path::PathBuf;

use clap::Args;

use crate::failure::Failure;

/// Who does what, under `mpirun`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RankArguments {
    /// So many ranks, or groups of them, have different examples and add up their gradients [default: all ranks]
    #[arg(long, value_name = "N", help_heading = "Ranks", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) data_parallel: Option<u32>,
    /// So many ranks have some of the stages each; --micro-batches go through them, one forward, one backward; --budget is each
    /// rank's
    #[arg(long, value_name = "N", help_heading = "Ranks", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pipeline: Option<u32>,
    /// So many ranks have a part of every transformer block each: some of its heads, some columns of its perceptron
    #[arg(long, value_name = "N", help_heading = "Ranks", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) tensor_parallel: Option<u32>,
    /// What data parallel ranks share out: 1, the optimizer's state; 2, the sum of gradients as well
    #[arg(long, value_name = "STAGE", help_heading = "Ranks", value_parser = clap::value_parser!(u8).range(0..=2))]
    pub(crate) zero: Option<u8>,
    /// Let each rank keep its part of boundaries that several ranks have, as those of --tensor-parallel do
    #[arg(long, help_heading = "Ranks")]
    pub(crate) partition_checkpoints: bool,
    /// How gradients are added up: ordered by rank, the same bits as one process; or native, faster
    #[arg(long, value_enum, value_name = "HOW", help_heading = "Ranks")]
    pub(crate) reduction: Option<Summing>,
    /// A rank that the others wait for for so many seconds ends the run; one that sleeps does after 8
    #[arg(long, value_name = "SECONDS", default_value_t = 600, help_heading = "Ranks",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) patience: u32,
    /// Where each rank writes what it does, as rank-0.log and so on
    #[arg(long, value_name = "DIR", default_value = "rekindle-ranks", help_heading = "Ranks")]
    pub(crate) rank_logs: PathBuf,
}

/// How gradients are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Summing {
    Ordered,
    Native,
}

impl RankArguments {
    /// Whether this is one of several ranks, or is to be treated as one.
    pub(crate) fn asked(&self) -> Result<bool, Failure> {
        let flags = self.data_parallel.is_some()
            || self.pipeline.is_some()
            || self.tensor_parallel.is_some()
            || self.zero.is_some()
            || self.partition_checkpoints
            || self.reduction.is_some();
        let started = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"].iter().find_map(|name| {
            let ranks = std::env::var(name).ok()?.parse::<u32>().ok()?;
            (ranks > 1).then_some(ranks)
        });
        if cfg!(feature = "mpi") || !(flags || started.is_some()) {
            return Ok(flags || started.is_some());
        }
        let found = match started {
            Some(ranks) => format!("this is one of {ranks} ranks"),
            None => "ranks are asked for".to_owned(),
        };
        Err(Failure::request(
            anyhow::anyhow!("{found}, but this `rekindle` was built without MPI"),
            "build it with `--features mpi`, which needs an MPI on the machine: docs/distributed.md",
        ))
    }
}

#[cfg(feature = "mpi")]
pub(crate) use train::train;

/// Nobody gets here without MPI: [`RankArguments::asked`] refuses.
#[cfg(not(feature = "mpi"))]
pub(crate) fn train(
    arguments: &crate::arguments::TrainArguments,
    _: &crate::size::Size,
) -> Result<(), Failure> {
    arguments.ranks.asked().map(drop)
}
