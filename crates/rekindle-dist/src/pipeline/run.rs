//! A step of a pipeline.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{Device, Tensor, TensorData};
use rekindle::Bytes;

use super::{Work, one_forward_one_backward};
use crate::{Collective, DistError};

/// What a rank's stages make of a micro-batch.
#[derive(Clone, Debug)]
pub enum Made<const D: usize> {
    /// What the next rank goes on with.
    Boundary(Tensor<D>),
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

/// A micro-batch between its forward and its backward.
struct InFlight<const D: usize> {
    input: Option<Tensor<D>>,
    made: Made<D>,
}

/// Takes the gradients of a step whose stages lie on the ranks of a group, in their order.
///
/// `forward` runs this rank's stages on what the rank before has made, or, on the first, on nothing; it is told the number of the
/// micro-batch. Under a region, what a micro-batch keeps until its backward is what the rank's plan says. Numbers that stages
/// draw are a rank's own: [`rekindle::seed`] them by micro-batch, and by rank where ranks should not draw the same.
///
/// Boundaries are f32 tensors on `device`, which has autodiff. The gradients of micro-batches are added up from the first to the
/// last, each with the same share: the bits are those of one process that does so.
///
/// # Errors
/// When a rank but the last gives a loss, or the last none, a boundary is not of f32, or a stage fails. A rank that fails
/// leaves the others waiting: end the run with [`Collective::abort`].
pub fn train_step<M: Module, const D: usize>(
    ranks: &dyn Collective,
    module: &M,
    micro_batches: usize,
    device: &Device,
    mut forward: impl FnMut(usize, Option<Tensor<D>>) -> Result<Made<D>, rekindle::Error>,
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
        let received = from.zip(received).map(|(from, data)| unpack::<D>(&data, from, device)).transpose()?;
        let began = Instant::now();
        match work {
            Work::Forward(number) => {
                let input = received.map(Tensor::require_grad);
                let made = forward(number, input.clone())?;
                match (&made, behind) {
                    (Made::Boundary(output), Some(next)) => to_send = Some((next, pack(output, rank)?)),
                    (Made::Loss(found), None) => {
                        let found = found.clone().into_scalar::<f32>() / micro_batches as f32;
                        loss = Some(loss.map_or(found, |loss| loss + found));
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
                }
                held.push_back(InFlight { input, made });
            }
            Work::Backward(_) => {
                let Some(InFlight { input, made }) = held.pop_front() else {
                    return Err(DistError::Pipeline {
                        reason: "nothing is in flight to go back through".into(),
                    });
                };
                let root = match (made, received) {
                    // To multiply by a gradient and add up gives just that gradient.
                    (Made::Boundary(output), Some(gradient)) => (output * gradient).sum(),
                    (Made::Boundary(output), None) => output.sum(),
                    (Made::Loss(loss), _) if micro_batches == 1 => loss,
                    (Made::Loss(loss), _) => loss.mul_scalar(1.0 / micro_batches as f64),
                };
                let gradients = rekindle::backward(&root)?;
                drop(root);
                if let (Some(before), Some(input)) = (before, input) {
                    let gradient = input.grad(&gradients);
                    let gradient = gradient.unwrap_or_else(|| input.without_autodiff().zeros_like());
                    to_send = Some((before, pack(&gradient, rank)?));
                }
                sum.accumulate(module, GradientsParams::from_grads(gradients, module));
            }
        }
        busy += began.elapsed();
    }
    ranks.exchange(to_send, None)?;
    Ok(Step { loss, gradients: sum.grads(), busy, took: start.elapsed() })
}

/// A tensor as it travels: its shape, then its values.
fn pack<const D: usize>(tensor: &Tensor<D>, rank: usize) -> Result<Vec<u8>, DistError> {
    let found = tensor.dtype();
    let shape = tensor.dims();
    let values = tensor.to_data().try_to_vec::<f32>().map_err(|_| DistError::Pipeline {
        reason: format!("rank {rank} hands on a boundary of {found:?}, and only f32 travels"),
    })?;
    let shape = shape.iter().flat_map(|length| (*length as u64).to_le_bytes());
    Ok(shape.chain(values.iter().flat_map(|value| value.to_le_bytes())).collect())
}

fn unpack<const D: usize>(data: &[u8], from: usize, device: &Device) -> Result<Tensor<D>, DistError> {
    let refuse = || DistError::Message {
        from,
        found: Bytes::new(data.len() as u64),
        expected: format!("a tensor of f32 with {D} dimensions"),
    };
    let (shape, values) = data.split_at_checked(8 * D).ok_or_else(refuse)?;
    let (shape, _) = shape.as_chunks::<8>();
    let shape = shape.iter().map(|length| usize::try_from(u64::from_le_bytes(*length)));
    let shape = shape.collect::<Result<Vec<usize>, _>>().map_err(|_| refuse())?;
    let (values, rest) = values.as_chunks::<4>();
    let count = shape.iter().try_fold(1_usize, |count, length| count.checked_mul(*length));
    if count != Some(values.len()) || !rest.is_empty() {
        return Err(refuse());
    }
    let values: Vec<f32> = values.iter().copied().map(f32::from_le_bytes).collect();
    Ok(Tensor::from_data(TensorData::new(values, shape), device))
}
