//! Who has which part of a model.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use burn::module::{ModuleMapper, Param, ParamId};
use burn::tensor::Tensor;
use rekindle::Staged;
use rekindle_dist::Collective;
use rekindle_models::Trainable;

use super::grid::Grid;
use super::plans::Way;
use super::state::{Sections, Statistics, WholeModel};
use super::together::together;
use crate::cut::Cut;
use crate::failure::Failure;
use crate::strategy::Ready;

/// What each rank of a pipeline has.
pub(super) struct Parts {
    /// Its stages.
    pub(super) stages: Vec<Range<usize>>,
    /// Where weights lie in those of the whole.
    pub(super) sections: Sections,
    /// What is not trained, and whose it is.
    pub(super) statistics: Statistics,
}

impl Parts {
    /// Finds out who has what, and lets go of the weights that are not this rank's.
    pub(super) fn share_out<M: Trainable>(
        world: &dyn Collective,
        grid: &Grid,
        way: &Way,
        (whole, model): (&WholeModel, M),
        batch: &M::Batch,
    ) -> Result<(Self, M), Failure> {
        let (stages, mut owners) = owners(&model, batch, world, grid, way)?;
        for id in whole.parameters() {
            // A parameter that no stage has is trained by nobody; it stays with the first.
            owners.entry(id).or_insert(0);
        }
        let sections = Sections::new(whole, &owners, grid.shape);
        let statistics = Statistics::new(&model, &owners);
        let parts = Self { stages, sections, statistics };
        if grid.shape.stages == 1 {
            return Ok((parts, model));
        }
        let own = owners.iter().filter(|(_, owner)| **owner == grid.stage).map(|(id, _)| *id).collect();
        Ok((parts, model.map(&mut Only { own })))
    }
}

/// The stages of each rank of a pipeline, and which of these ranks trains a parameter.
type Owners = (Vec<Range<usize>>, HashMap<ParamId, usize>);

fn owners<M: Trainable>(
    model: &M,
    batch: &M::Batch,
    world: &dyn Collective,
    grid: &Grid,
    way: &Way,
) -> Result<Owners, Failure> {
    let cut = match way {
        Way::All(Ready::Planned(_, cut)) => *cut,
        _ => Cut::Blocks,
    };
    let (region, _) = cut.of(model).stages(batch);
    let parameters = region.parameters();
    let own = match way {
        Way::All(_) => 0..region.len(),
        Way::Some(section) => section.stages.clone(),
    };
    let ends = grid.pipeline.all_gather((own.end as u64).to_le_bytes().to_vec())?;
    let ends = ends.iter().map(|end| end[..].try_into().map_or(0, |end| u64::from_le_bytes(end) as usize));
    let mut start = 0;
    let stages: Vec<_> = ends.map(|end| std::mem::replace(&mut start, end)..end).collect();
    let mut owners = HashMap::new();
    let mut shared = None;
    for (rank, stages) in stages.iter().enumerate() {
        for id in parameters.get(stages.clone()).unwrap_or_default().iter().flatten() {
            if owners.insert(*id, rank).is_some_and(|other| other != rank) {
                shared.get_or_insert(rank);
            }
        }
    }
    let checked = match shared {
        None => Ok(()),
        Some(rank) => Err(Failure::request(
            anyhow::anyhow!(
                "rank {rank} of a pipeline would share a parameter with one before it, such as a tied embedding"
            ),
            "its gradients would have to be added up on the way; leave --pipeline out for this model",
        )),
    };
    together(world, checked)?;
    Ok((stages, owners))
}

/// Lets go of what other ranks train.
struct Only {
    own: HashSet<ParamId>,
}

impl ModuleMapper for Only {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.own.contains(&param.id) || !param.val().is_require_grad() {
            return param;
        }
        param.map(|tensor| Tensor::zeros([0; D], &tensor.device()).set_require_grad(false))
    }
}
