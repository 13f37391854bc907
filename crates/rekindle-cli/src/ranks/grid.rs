//! Who is where: replicas of a pipeline.

use rekindle_dist::Collective;

use super::RankArguments;
use crate::failure::Failure;

/// The place of a rank.
pub(super) struct Grid {
    /// How many replicas there are, and which this rank belongs to.
    pub(super) replicas: usize,
    pub(super) replica: usize,
    /// How many ranks a pipeline has, and which of them this is.
    pub(super) stages: usize,
    pub(super) stage: usize,
    /// The ranks of this replica.
    pub(super) pipeline: Box<dyn Collective>,
    /// The ranks with the same stages.
    pub(super) same_stages: Box<dyn Collective>,
}

impl Grid {
    /// How many replicas, of how many ranks.
    pub(super) fn shape(arguments: &RankArguments, ranks: usize) -> Result<(usize, usize), Failure> {
        let stages = arguments.pipeline.unwrap_or(1) as usize;
        let replicas =
            arguments.data_parallel.map_or_else(|| (ranks / stages).max(1), |replicas| replicas as usize);
        match replicas.checked_mul(stages) {
            Some(all) if all == ranks => Ok((replicas, stages)),
            _ => Err(Failure::request(
                anyhow::anyhow!(
                    "there are {ranks} ranks, but --data-parallel {replicas} of --pipeline {stages} are {}",
                    replicas.saturating_mul(stages)
                ),
                format!("start as many: mpirun -n {} rekindle train ...", replicas.saturating_mul(stages)),
            )),
        }
    }

    /// For a log.
    pub(super) fn describe(&self, world: &dyn Collective) -> String {
        format!(
            "rank {} of {}: replica {} of {}, rank {} of a pipeline of {}",
            world.rank(),
            world.size(),
            self.replica,
            self.replicas,
            self.stage,
            self.stages
        )
    }

    pub(super) fn new(world: &dyn Collective, (replicas, stages): (usize, usize)) -> Result<Self, Failure> {
        let (replica, stage) = (world.rank() / stages, world.rank() % stages);
        Ok(Self {
            replicas,
            replica,
            stages,
            stage,
            pipeline: world.split(replica, stage)?,
            same_stages: world.split(stage, replica)?,
        })
    }
}
