//! A step of a pipeline.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{Device, Tensor};
use rekindle::{Boundary, Carried};

use super::{Work, message, one_forward_one_backward};
use crate::{Collective, DistError};

/// What a rank's stages make of a micro-batch.
#[derive(Clone, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "a tensor's handle is large, and there is one for each micro-batch"
)]
pub enum Made<T> {
    /// What the next rank goes on with.
    Boundary(T),
    /// The loss, a mean over the micro-batch: only the last rank makes one.
    Loss(Tensor<1>),
}

/// What a step came to on this rank.
#[derive(Debug)]
#[non_exhaustive]
pub struct Step {
    /// The mean of the losses of all micro-batches, on the last rank.
    pub loss: Option<f32>,
    /// The gradients of that mean, of this rank's parameters.
    pub gradients: GradientsParams,
    /// How long this rank computed.
    pub busy: Duration,
    /// How long the step took on this rank.
    pub took: Duration,
}

/// What the ranks of a pipeline waited in a step, as a part of its time.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Waiting {
    /// What the slowest waited: the bubble. The others wait for it as well, as they would without a pipeline.
    pub bubble: f64,
    /// What they waited in the mean.
    pub all: f64,
}

impl Step {
    /// What this step's ranks waited; they all have to ask.
    ///
    /// # Errors
    /// When ranks are not in step.
    pub fn waiting(&self, ranks: &dyn Collective) -> Result<Waiting, DistError> {
        let own = [self.busy, self.took].map(|time| time.as_secs_f64() as f32);
        let all = ranks.start_all_gather_parts(own.to_vec()).wait()?;
        let (all, _) = all.as_chunks::<2>();
        let most = |of: usize| f64::from(all.iter().map(|times| times[of]).fold(f32::MIN_POSITIVE, f32::max));
        let busy: f64 = all.iter().map(|times| f64::from(times[0])).sum();
        let took = most(1);
        Ok(Waiting { bubble: 1.0 - most(0) / took, all: 1.0 - busy / (took * all.len() as f64) })
    }
}

/// A micro-batch between its forward and its backward.
struct InFlight {
    input: Option<Carried>,
    made: Made<Carried>,
}

/// Takes the gradients of a step whose stages lie on the ranks of a group, in their order.
///
/// `forward` runs this rank's stages on what the rank before has made, or, on the first, on nothing; it is told the number of the
/// micro-batch. Under a region, what a micro-batch keeps until its backward is what the rank's plan says. Numbers that stages
/// draw are a rank's own: [`rekindle::seed`] them by micro-batch, and by rank where ranks should not draw the same. The
/// [sections](rekindle::Region::section) of one region draw what the whole draws, from one seed.
///
/// A boundary is any tree of tensors on `device`, which has autodiff. The gradients of micro-batches are added up from the first to
/// the last, each with the same share: the bits are those of one process that does so.
///
/// # Errors
/// When a rank but the last gives a loss, or the last none, or a stage fails. A rank that fails
/// leaves the others waiting: end the run with [`Collective::abort`].
pub fn train_step<M: Module, T: Boundary>(
    ranks: &dyn Collective,
    module: &M,
    micro_batches: usize,
    device: &Device,
    mut forward: impl FnMut(usize, Option<T>) -> Result<Made<T>, rekindle::Error>,
) -> Result<Step, DistError> {
    if micro_batches == 0 {
        return Err(DistError::Pipeline { reason: "a step of no micro-batches has no gradient".into() });
    }
    let start = Instant::now();
    let (rank, size) = (ranks.rank(), ranks.size());
    let (before, behind) = (rank.checked_sub(1), Some(rank + 1).filter(|next| *next < size));
    let mut busy = Duration::ZERO;
    let mut held = VecDeque::new();
    let mut sum = GradientsAccumulator::<M>::new();
    let mut loss: Option<f32> = None;
    // What is still to be sent goes out together with what is received next, so that no two ranks wait for each other.
    let mut to_send: Option<(usize, Vec<u8>)> = None;
    for work in one_forward_one_backward(rank, size, micro_batches) {
        let from = match work {
            Work::Forward(_) => before,
            Work::Backward(_) => behind,
        };
        let received = ranks.exchange(to_send.take(), from)?;
        let began = Instant::now();
        let received = from.zip(received).map(|(from, message)| {
            Ok::<_, DistError>(Carried::from_parcel(message::read(&message, from)?, device)?)
        });
        let received = received.transpose()?;
        match work {
            Work::Forward(number) => {
                let input = received.map(Carried::tracked);
                let made = forward(number, input.clone().map(Carried::into_tree).transpose()?)?;
                let made = match (made, behind) {
                    (Made::Boundary(output), Some(next)) => {
                        let output = Carried::of(output);
                        to_send = Some((next, message::write(&output.to_parcel()?)));
                        Made::Boundary(output)
                    }
                    (Made::Loss(found), None) => {
                        let share = found.clone().into_scalar::<f32>() / micro_batches as f32;
                        loss = Some(loss.map_or(share, |loss| loss + share));
                        Made::Loss(found)
                    }
                    (Made::Boundary(_), None) => {
                        return Err(DistError::Pipeline {
                            reason: format!("rank {rank} is the last and gave no loss"),
                        });
                    }
                    (Made::Loss(_), Some(_)) => {
                        return Err(DistError::Pipeline {
                            reason: format!("rank {rank} gave a loss, and is not the last of {size}"),
                        });
                    }
                };
                held.push_back(InFlight { input, made });
            }
            Work::Backward(_) => {
                let Some(InFlight { input, made }) = held.pop_front() else {
                    return Err(DistError::Pipeline {
                        reason: "nothing is in flight to go back through".into(),
                    });
                };
                let gradients = match (made, received) {
                    (Made::Boundary(output), Some(gradients)) => output.backward(gradients)?,
                    (Made::Boundary(_), None) => {
                        return Err(DistError::Pipeline {
                            reason: format!("rank {rank} is the last and gave no loss"),
                        });
                    }
                    (Made::Loss(loss), _) if micro_batches == 1 => rekindle::backward(&loss)?,
                    (Made::Loss(loss), _) => {
                        rekindle::backward(&loss.mul_scalar(1.0 / micro_batches as f64))?
                    }
                };
                if let (Some(before), Some(input)) = (before, input) {
                    let gradient = input.gradients(&gradients)?;
                    to_send = Some((before, message::write(&gradient.to_parcel()?)));
                }
                sum.accumulate(module, GradientsParams::from_grads(gradients, module));
            }
        }
        busy += began.elapsed();
    }
    ranks.exchange(to_send, None)?;
    Ok(Step { loss, gradients: sum.grads(), busy, took: start.elapsed() })
}
