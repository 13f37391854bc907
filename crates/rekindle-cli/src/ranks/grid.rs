//! Who is where: replicas, of pipelines, of ranks that have parts of the same layers.

use std::sync::Arc;

use rekindle::peers::Peers;
use rekindle_dist::{Collective, Reduction, TensorParallel};

use super::RankArguments;
use crate::failure::Failure;

/// How many ranks there are of what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Groups that have different examples.
    pub(super) replicas: usize,
    /// In each of them, groups that have different stages.
    pub(super) stages: usize,
    /// In each of these, ranks that have a part of every layer.
    pub(super) peers: usize,
}

impl Shape {
    pub(super) fn new(arguments: &RankArguments, ranks: usize) -> Result<Self, Failure> {
        let [stages, peers] =
            [arguments.pipeline, arguments.tensor_parallel].map(|n| n.unwrap_or(1) as usize);
        let each = stages.saturating_mul(peers);
        let replicas =
            arguments.data_parallel.map_or_else(|| (ranks / each).max(1), |replicas| replicas as usize);
        let all = replicas.saturating_mul(each);
        if all == ranks {
            return Ok(Self { replicas, stages, peers });
        }
        let of_peers = if peers > 1 { format!(" of --tensor-parallel {peers}") } else { String::new() };
        let hint = match arguments.data_parallel {
            // Replicas are as many as there is room for.
            None if ranks > each => {
                let fewer = ranks / each * each;
                format!(
                    "start a multiple of {each} ranks: mpirun -n {fewer} rekindle train ..., or -n {}",
                    fewer + each
                )
            }
            _ => format!("start as many: mpirun -n {all} rekindle train ..."),
        };
        Err(Failure::request(
            anyhow::anyhow!(
                "there are {ranks} ranks, but --data-parallel {replicas} of --pipeline {stages}{of_peers} are {all}"
            ),
            hint,
        ))
    }
}

/// The place of a rank.
pub(super) struct Grid {
    pub(super) shape: Shape,
    /// Which replica it belongs to.
    pub(super) replica: usize,
    /// Which rank of a pipeline it is.
    pub(super) stage: usize,
    /// Which part of every layer it has.
    pub(super) peer: usize,
    /// All ranks of this replica, by stages and then by parts.
    pub(super) of_replica: Box<dyn Collective>,
    /// The ranks of this replica with the same part.
    pub(super) pipeline: Box<dyn Collective>,
    /// The ranks with the same stages and the same part.
    pub(super) same_stages: Box<dyn Collective>,
    /// The ranks of this replica with the other parts of the same stages.
    pub(super) peers: Arc<dyn Collective>,
}

impl Grid {
    pub(super) fn new(world: &dyn Collective, shape: Shape) -> Result<Self, Failure> {
        let Shape { stages, peers, .. } = shape;
        // Those that talk most are neighbours.
        let (group, peer) = (world.rank() / peers, world.rank() % peers);
        let (replica, stage) = (group / stages, group % stages);
        Ok(Self {
            shape,
            replica,
            stage,
            peer,
            of_replica: world.split(replica, stage * peers + peer)?,
            pipeline: world.split(replica * peers + peer, stage)?,
            same_stages: world.split(stage * peers + peer, replica)?,
            peers: Arc::from(world.split(group, peer)?),
        })
    }

    /// Whom a model is split over, if it is.
    pub(super) fn peers(&self, how: Reduction) -> Option<Arc<dyn Peers>> {
        let peers = || TensorParallel::new(Arc::clone(&self.peers)).reduction(how).peers();
        (self.shape.peers > 1).then(peers)
    }

    /// Whether gradients are added up over replicas while the backward goes on.
    pub(super) fn overlaps(&self) -> bool {
        self.shape.replicas > 1 && self.shape.stages == 1
    }

    /// For a log.
    pub(super) fn describe(&self, world: &dyn Collective) -> String {
        let Shape { replicas, stages, peers } = self.shape;
        let part = match peers {
            1 => String::new(),
            _ => format!(", part {} of {peers} of every layer", self.peer),
        };
        format!(
            "rank {} of {}: replica {} of {replicas}, rank {} of a pipeline of {stages}{part}",
            world.rank(),
            world.size(),
            self.replica,
            self.stage,
        )
    }
}
