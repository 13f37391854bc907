//! One rank's training, step by step.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use burn::optim::{Adam, GradientsParams};
use burn::tensor::Device;
use rekindle::training::LossScale;
use rekindle::{Bytes, Carried, Staged, Take, memory};
use rekindle_dist::pipeline::{Made, train_step};
use rekindle_dist::{Collective, Layout, Mpi, Overlap, Partitioned, Reduction, Zero};
use rekindle_models::Trainable;
use rekindle_plan::Action;

use super::beside::Beside;
use super::grid::Grid;
use super::parts::Parts;
use super::plans::Way;
use super::state::Whole;
use super::summary::RankSummary;
use crate::cut::Cut;
use crate::failure::Failure;
use crate::measure::{self, Recipe, build, part_seed, step, step_handing_over};
use crate::models::Kind;
use crate::size::Size;
use crate::strategy::Ready;
use crate::totals::parameter_bytes;

/// What a rank trains, and with whom.
pub(super) struct Run<'a, M> {
    pub(super) world: &'a Mpi,
    pub(super) grid: &'a Grid,
    pub(super) size: &'a Size,
    pub(super) device: &'a Device,
    pub(super) model: M,
    pub(super) way: Way,
    pub(super) optimizer: Zero<'a, Adam>,
    pub(super) parts: Parts,
    pub(super) taken: Taken,
}

/// What steps have taken so far.
#[derive(Default)]
pub(super) struct Taken {
    /// The most of activations and gradients in a step.
    peak: Bytes,
    /// The most while gradients are added up and weights updated, above what lies before the step.
    update: Bytes,
    /// The most of everything.
    most: Bytes,
    computing: Duration,
    all: Duration,
}

/// What one step came to.
pub(super) struct Stepped {
    /// The mean over all ranks.
    pub(super) loss: f32,
    pub(super) peak: Bytes,
    pub(super) computing: Duration,
    pub(super) took: Duration,
}

/// A rank's gradients of its part of a batch.
struct Computed {
    /// On ranks that have the last stages.
    loss: Option<f32>,
    gradients: GradientsParams,
    computing: Duration,
}

impl<M: Trainable> Run<'_, M> {
    /// Takes a step on this rank's part of a batch.
    pub(super) fn step(
        mut self,
        batch: &measure::Parts<M::Batch>,
        seed: u64,
        rate: f64,
    ) -> Result<(Self, Stepped), Failure> {
        rekindle::sweep();
        let before = memory::live().unwrap_or_default();
        memory::reset_peak();
        let began = Instant::now();
        let examples = batch.examples() as u64;
        let overlap = match self.overlaps() {
            true => Some(self.optimizer.overlap(examples)?),
            false => None,
        };
        let take = overlap.as_ref().map(Overlap::take);
        let Computed { loss, gradients, computing } = self.gradients(batch, seed, take)?;
        let most = memory::peak().unwrap_or_default();
        let peak = most.saturating_sub(before);
        self.taken.most = self.taken.most.max(most);
        memory::reset_peak();
        self.model = match overlap {
            Some(overlap) => {
                let sum = overlap.finish(self.optimizer.parallel(), &self.model, gradients)?;
                self.optimizer.step_with(rate, self.model, sum)?
            }
            None => self.optimizer.step(rate, self.model, gradients, examples)?,
        };
        let most = memory::peak().unwrap_or_default();
        // With the sums and the update: there, too, ranks wait for each other.
        self.taken.note((peak, most.saturating_sub(before), most), computing, began.elapsed());
        // All parts of the last layers have made the same loss.
        let share = vec![
            loss.filter(|_| self.grid.peer == 0).map_or(0.0, |loss| loss / self.grid.shape.replicas as f32),
        ];
        let loss = self.world.all_reduce(share, Reduction::Ordered)?.first().copied().unwrap_or(f32::NAN);
        Ok((self, Stepped { loss, peak, computing, took: began.elapsed() }))
    }

    fn gradients(
        &mut self,
        batch: &measure::Parts<M::Batch>,
        seed: u64,
        take: Option<Take>,
    ) -> Result<Computed, Failure> {
        let (model, grid) = (&self.model, self.grid);
        let first_part = grid.replica * self.size.micro_batches;
        match &mut self.way {
            Way::All(ready) => {
                let began = Instant::now();
                let recipe = Recipe { seed, first_part, scale: LossScale::none().scale(), clip: None };
                let done = match take {
                    Some(take) => step_handing_over(model, batch, ready, recipe, take)?,
                    None => step(model, batch, ready, recipe)?,
                };
                let loss = Some(done.loss.into_scalar::<f32>());
                Ok(Computed { loss, gradients: done.gradients, computing: began.elapsed() })
            }
            Way::Some(section) => {
                let (parts, pipeline) = (batch.parts(), grid.pipeline.as_ref());
                let forward = |part: usize, input: Option<Carried>| {
                    rekindle::seed(part_seed(seed, first_part + part));
                    let (region, own) = Cut::Blocks.of(model).stages(&parts[part]);
                    let input = input.unwrap_or_else(|| Carried::of(own));
                    let region = region.section(section.stages.clone())?;
                    let output = section.under_plan(region, &input)?.forward(input)?;
                    let last = grid.stage + 1 == grid.shape.stages;
                    Ok(if last { Made::Loss(output.into_tree()?) } else { Made::Boundary(output) })
                };
                let made = train_step(pipeline, model, parts.len(), self.device, forward)?;
                Ok(Computed { loss: made.loss, gradients: made.gradients, computing: made.busy })
            }
        }
    }

    /// Goes on from what all ranks knew.
    pub(super) fn resume(mut self, known: Whole) -> Result<Self, Failure> {
        let (sections, of_replica) = (&self.parts.sections, self.grid.of_replica.as_ref());
        let own =
            |whole: &[f32]| if whole.is_empty() { Vec::new() } else { sections.part(of_replica, whole) };
        self.model = Layout::new(&self.model)?.to_model(self.model, &own(&known.weights))?;
        let mut moments = known.moments;
        (moments.first, moments.second) = (own(&moments.first), own(&moments.second));
        self.optimizer.resume(&self.model, moments)?;
        self.model = self.parts.statistics.put(self.model, &known.statistics);
        Ok(self)
    }

    /// Everything that all ranks know, on the first of them.
    pub(super) fn whole(&self) -> Result<Option<Whole>, Failure> {
        let moments = self.optimizer.moments()?;
        // All replicas have the same; their running statistics are each one's own, and the first's are kept.
        if self.grid.replica > 0 {
            return Ok(None);
        }
        let Parts { sections, statistics, .. } = &self.parts;
        let pipeline = self.grid.pipeline.as_ref();
        let weights = Layout::new(&self.model)?.weights(&self.model)?;
        let known = sections.gather_all(self.grid.of_replica.as_ref(), &weights, &moments)?;
        let statistics = statistics.gather(pipeline, &statistics.of(&self.model))?;
        Ok(known.zip(statistics).map(|((weights, moments), statistics)| Whole {
            weights,
            moments,
            statistics,
        }))
    }

    /// Writes the weights of all ranks to a file, on the first of them.
    pub(super) fn save<K: Kind<Model = M>>(&self, kind: &K, path: &Path) -> Result<(), Failure> {
        let Parts { sections, statistics, .. } = &self.parts;
        let pipeline = self.grid.pipeline.as_ref();
        let own = Layout::new(&self.model)?.weights(&self.model)?;
        let weights = sections.gather_weights(self.grid.of_replica.as_ref(), &own)?;
        let not_trained = statistics.gather(pipeline, &statistics.of(&self.model))?;
        if let (Some(weights), Some(not_trained), 0) = (weights, not_trained, self.world.rank()) {
            let all = build(kind, self.device, self.size.seed)?;
            let all = Layout::new(&all)?.to_model(all, &weights)?;
            kind.save(path, &statistics.put(all, &not_trained))?;
            tell!("wrote {}", path.display());
        }
        Ok(())
    }

    /// What this rank has to say in the end.
    pub(super) fn summary(&self, beside: Beside) -> Result<RankSummary, Failure> {
        let (in_flight, predicted_bytes, budget_bytes) = match &self.way {
            Way::Some(section) => (section.in_flight, Some(section.predicted), section.budget),
            Way::All(Ready::Planned(planned, _)) => {
                (1, Some(beside.peak(planned)?), planned.budget_bytes().map(|bytes| beside.with(bytes)))
            }
            Way::All(_) => (1, None, None),
        };
        let stages = &self.parts.stages[self.grid.stage];
        Ok(RankSummary {
            rank: self.world.rank(),
            replica: self.grid.replica,
            first_stage: stages.start + 1,
            last_stage: stages.end,
            part: self.grid.peer,
            in_flight,
            partitioned: self.partitioned(),
            peak_bytes: self.taken.peak,
            predicted_bytes,
            budget_bytes,
            update_bytes: self.taken.update,
            weights_bytes: parameter_bytes(&self.model),
            optimizer_bytes: Bytes::new(2 * self.optimizer.shard_bytes().get()),
            most_bytes: self.taken.most,
            busy: self.taken.busy(),
        })
    }
}

impl<M> Run<'_, M> {
    /// Whether gradients are added up while the backward goes on. A pipeline's ranks have other things to say to each other then.
    fn overlaps(&self) -> bool {
        self.grid.overlaps()
    }

    /// How many boundaries the plan keeps in parts.
    fn partitioned(&self) -> usize {
        let Way::All(Ready::Planned(planned, _)) = &self.way else { return 0 };
        let in_parts = planned.plan().actions.iter().filter_map(|action| match action {
            Action::Compress { boundary, codec, .. } if codec.as_str() == Partitioned::NAME => Some(boundary),
            _ => None,
        });
        in_parts.collect::<BTreeSet<_>>().len()
    }
}

impl Taken {
    fn note(&mut self, (peak, update, most): (Bytes, Bytes, Bytes), computing: Duration, took: Duration) {
        self.peak = self.peak.max(peak);
        self.update = self.update.max(update);
        self.most = self.most.max(most);
        self.computing += computing;
        self.all += took;
    }

    /// The part of the time that this rank computed.
    fn busy(&self) -> f64 {
        self.computing.as_secs_f64() / self.all.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}
