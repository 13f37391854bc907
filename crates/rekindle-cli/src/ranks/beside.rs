//! What a rank holds beside what its plan says of one micro-batch, and what a step comes to with it.

use rekindle::{Bytes, Error, Planned, Profile, Schedule};
use rekindle_dist::{DataParallel, Layout, ZeroStage};
use rekindle_models::Trainable;
use rekindle_plan::{Action, StageProfile};

use super::RankArguments;
use super::grid::Grid;
use crate::failure::Failure;
use crate::totals::parameter_bytes;

/// What is held beside a micro-batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beside {
    /// By sums over ranks while the backward goes on, at the most.
    under_way: Bytes,
    /// What one of these sums is of; nothing where they are made after the backward.
    bucket: Bytes,
    /// What is kept of all sums, where that is a part.
    part: Option<Bytes>,
    /// By the sum over micro-batches.
    summed: Bytes,
    micro_batches: usize,
}

impl Beside {
    /// What a rank holds that has all stages. One of a pipeline has a plan for all it holds.
    pub(super) fn new(
        grid: &Grid,
        arguments: &RankArguments,
        micro_batches: usize,
        model: &impl Trainable,
    ) -> Result<Self, Failure> {
        let (mut under_way, mut bucket, mut part) = (Bytes::ZERO, Bytes::ZERO, None);
        if grid.overlaps() {
            let parallel = DataParallel::new(grid.same_stages.as_ref(), model)?;
            (under_way, bucket) = (parallel.overlapping_bytes(), parallel.overlapping_bucket());
            if arguments.stage() == ZeroStage::Two {
                let own = Bytes::new(4 * Layout::new(model)?.part(grid.shape.replicas) as u64);
                under_way = Bytes::new(under_way.get() + own.get());
                part = Some(own);
            }
        }
        let summed = if micro_batches > 1 { parameter_bytes(model) } else { Bytes::ZERO };
        Ok(Self { under_way, bucket, part, summed, micro_batches })
    }

    /// What a plan leaves room for, whatever it is.
    pub(super) fn held(&self) -> Bytes {
        Bytes::new(self.under_way.get() + self.summed.get())
    }

    /// The budget of a step, from that of a micro-batch.
    pub(super) fn with(&self, bytes: Bytes) -> Bytes {
        Bytes::new(bytes.get() + self.held().get())
    }

    /// What a step takes at its peak under a plan. No moment has all that is held at its most: sums over ranks are under way in the last
    /// micro-batch alone, once there are gradients for them; and each of these goes into its sum over micro-batches at once, so that
    /// they are never all there beside each other.
    pub(super) fn peak(&self, planned: &Planned) -> Result<Bytes, Failure> {
        let alone = planned.plan().predicted.peak_bytes;
        if self.bucket == Bytes::ZERO {
            return Ok(self.with(alone));
        }
        let (profile, actions) = (planned.profile(), &planned.plan().actions);
        let (_, simulated) = Schedule::judge(profile, actions).map_err(Error::from)?;
        // What a plan says beyond what the simulator finds: what regions list.
        let listed = alone.saturating_sub(simulated.peak_bytes);
        let last = match self.micro_batches {
            1 => simulated,
            _ => Schedule::judge(&handing_over(profile)?, actions).map_err(Error::from)?.1,
        };
        let mut handed_over = 0;
        let moments = last.moments.iter().zip(actions).map(|(moment, action)| {
            let taken =
                (moment.peak.get() + self.adding_up(handed_over)).saturating_sub(self.let_go(handed_over));
            if let Action::Backward { stage } = action {
                let stage = (stage.number() as usize).checked_sub(1).and_then(|at| profile.stages().get(at));
                handed_over += stage.map_or(0, |stage| stage.parameter_gradient_bytes.get());
            }
            taken
        });
        let part = self.part.unwrap_or_default().get();
        let last = moments.max().unwrap_or_default() + listed.get() + self.summed.get() + part;
        let before = match self.micro_batches {
            1 => 0,
            // The first has no sum beside it.
            2 => alone.get() + part,
            _ => alone.get() + self.summed.get() + part,
        };
        Ok(Bytes::new(before.max(last)))
    }

    /// What is no longer there of the gradients that were handed over, where a part of their sums is kept: all but the bucket that is being
    /// filled and one that is added up.
    fn let_go(&self, handed_over: u64) -> u64 {
        let bucket = self.bucket.get();
        match self.part {
            Some(_) if handed_over > bucket => handed_over - handed_over % bucket - bucket,
            _ => 0,
        }
    }

    /// What sums over ranks take beside the gradients in them, once so many bytes of these were handed over: the rest of a bucket that
    /// is being filled, and what comes from other ranks of one that is full.
    fn adding_up(&self, handed_over: u64) -> u64 {
        let bucket = self.bucket.get();
        match handed_over {
            0 => 0,
            some if some < bucket => bucket - some,
            more => bucket - more % bucket + bucket,
        }
    }
}

/// The stages with gradients of parameters that are there only while their stage goes back.
fn handing_over(profile: &Profile) -> Result<Profile, Failure> {
    let with =
        |bytes: Bytes, stage: &StageProfile| Bytes::new(bytes.get() + stage.parameter_gradient_bytes.get());
    let stages = profile.stages().iter().map(|stage| {
        let mut own = stage.clone();
        own.backward_extra_bytes = with(own.backward_extra_bytes, stage);
        for option in &mut own.options {
            option.backward_extra_bytes = option.backward_extra_bytes.map(|bytes| with(bytes, stage));
        }
        own.parameter_gradient_bytes = Bytes::ZERO;
        own
    });
    let made = Profile::new(profile.model(), profile.device(), profile.input_bytes(), stages.collect())
        .and_then(|made| made.with_places(profile.tiers().to_vec(), profile.codecs().to_vec()));
    made.map_err(|error| Failure::failed(error, "give the model fewer or smaller stages"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_take_nothing_before_there_are_gradients_and_two_buckets_at_the_most() {
        let beside = Beside { bucket: Bytes::new(100), ..Beside::default() };
        assert_eq!(
            [0, 1, 99, 100, 150, 199, 200].map(|handed| beside.adding_up(handed)),
            [0, 99, 1, 200, 150, 101, 200]
        );
        assert_eq!([0, 99, 100, 199, 200, 250, 999].map(|handed| beside.let_go(handed)), [0; 7]);
        let in_part = Beside { part: Some(Bytes::new(500)), ..beside };
        assert_eq!(
            [0, 99, 100, 199, 200, 250, 999].map(|handed| in_part.let_go(handed)),
            [0, 0, 0, 0, 100, 100, 800]
        );
    }
}
