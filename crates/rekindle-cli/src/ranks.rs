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
mod beside;
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

use crate::config;
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
    /// A rank that the others wait for for so many seconds ends the run; one that sleeps does after 8 [default: in a step twenty times the
    /// slowest so far, or what the first was planned to take, and at least 8; anywhere else 600]
    #[arg(long, value_name = "SECONDS", help_heading = "Ranks", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) patience: Option<u32>,
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
        let started = started().map(|started| started.ranks);
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

/// One of several ranks, as whoever started them says before MPI does.
struct Started {
    rank: u32,
    ranks: u32,
}

fn started() -> Option<Started> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    let names = [
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        ("PMI_SIZE", "PMI_RANK"),
        ("MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
    ];
    let all = names.iter().filter_map(|(ranks, rank)| Some((number(ranks)?, number(rank).unwrap_or(0))));
    // `srun --mpi=pmix` gives a rank without the number of ranks, and Slurm the number of tasks to whoever it starts, with MPI or without:
    // only the two together are ranks.
    let of_slurm = number("SLURM_STEP_NUM_TASKS").zip(number("PMIX_RANK"));
    let mut several = all.chain(of_slurm).filter(|(ranks, _)| *ranks > 1);
    several.next().map(|(ranks, rank)| Started { rank, ranks })
}

/// Whether this is the first of several ranks, or the only process there is: what all of them have to say, it says.
pub(crate) fn is_first() -> bool {
    started().is_none_or(|started| started.rank == 0)
}

/// What a rank does that fails before it has met the others, such as one whose flags cannot be read. Those that train are about to ask
/// whether all can go on: it is with them that it fails.
pub(crate) fn fail_together(failure: Failure) -> Result<(), Failure> {
    match failure.is_told() || started().is_none() {
        true => Err(failure),
        false if config::typed() == "train" => fail_with_all(failure),
        // Ranks that do something else are none: each is by itself.
        false => Err(once(failure)),
    }
}

/// Help is the same wherever it is asked for.
fn once(failure: Failure) -> Failure {
    if failure.is_help() && !is_first() { failure.into_told() } else { failure }
}

#[cfg(feature = "mpi")]
use together::fail_with_all;
#[cfg(feature = "mpi")]
pub(crate) use train::train;

/// Without MPI no rank knows of the others.
#[cfg(not(feature = "mpi"))]
fn fail_with_all(failure: Failure) -> Result<(), Failure> {
    Err(once(failure))
}

/// Nobody gets here without MPI: [`RankArguments::asked`] refuses.
#[cfg(not(feature = "mpi"))]
pub(crate) fn train(
    arguments: &crate::arguments::TrainArguments,
    _: &crate::size::Size,
) -> Result<(), Failure> {
    arguments.ranks.asked().map(drop)
}
