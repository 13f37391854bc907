//! Layers that several processes have a part of each: what such a layer asks of the others.
//!
//! ```text
//!             ┌ x · W[.., first half] ─▶ gelu ─▶ · V[first half, ..] ┐
//!  x ─ given ─┤                                                      ├─ summed ─▶ the same y on all
//!             └ x · W[.., other half] ─▶ gelu ─▶ · V[other half, ..] ┘
//! ```
//!
//! Columns of the first matrix and rows of the second: what lies between them no process has whole, and they talk once in each
//! direction. A recomputation talks again, so all peers have to run the same plan.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{Tensor, TensorData, try_read_sync};

use crate::Error;
use crate::backward::raise;
use crate::dropout::has_no_values;
use crate::node::{Found, GraphBackend, Operation, apply_one, elements, made, unmade};

/// Processes that have a part of the same layers each.
///
/// `rekindle_dist::TensorParallel` is ranks of an MPI run; one that is alone is the smallest there is:
///
/// ```
/// use std::sync::Arc;
///
/// use burn::tensor::{Device, Tensor};
/// use rekindle::peers::{Peers, given, summed};
///
/// #[derive(Debug)]
/// struct Alone;
///
/// impl Peers for Alone {
///     fn rank(&self) -> usize {
///         0
///     }
///     fn size(&self) -> usize {
///         1
///     }
///     fn sum(&self, values: Vec<f32>) -> Result<Vec<f32>, String> {
///         Ok(values)
///     }
/// }
///
/// let peers: Arc<dyn Peers> = Arc::new(Alone);
/// let x = Tensor::<2>::ones([2, 3], &Device::flex().autodiff()).require_grad();
/// let y = summed(given(x.clone(), &peers) * 2.0, &peers)?;
/// let gradient = x.grad(&rekindle::backward(&y.sum())?).unwrap();
/// assert_eq!(gradient.into_data().iter::<f32>().sum::<f32>(), 12.0);
/// # Ok::<(), rekindle::Error>(())
/// ```
pub trait Peers: Debug + Send + Sync {
    /// Which of them this is, from 0 on.
    fn rank(&self) -> usize;

    /// How many they are.
    fn size(&self) -> usize;

    /// The sum of what all have, the same on each of them, bit for bit.
    ///
    /// # Errors
    /// With the reason, when they are not in step or cannot reach each other.
    fn sum(&self, values: Vec<f32>) -> Result<Vec<f32>, String>;
}

/// What all peers have the same of, to be read by layers that each has a part of: its gradient is the sum over all peers of
/// what their parts ask for.
pub fn given<const D: usize>(x: Tensor<D>, peers: &Arc<dyn Peers>) -> Tensor<D> {
    // Without autodiff there is no gradient to add up.
    apply_one(Given(Arc::clone(peers)), x).unwrap_or_else(|x| x)
}

/// The sum over all peers of what each has made with its part. The gradient of each is that of the sum.
///
/// # Errors
/// When the peers are not in step or cannot reach each other.
pub fn summed<const D: usize>(x: Tensor<D>, peers: &Arc<dyn Peers>) -> Result<Tensor<D>, Error> {
    let failed = Arc::new(Mutex::new(None));
    let summed = apply_one(Summed { peers: Arc::clone(peers), failed: Arc::clone(&failed) }, x);
    let failed = failed.lock().unwrap_or_else(PoisonError::into_inner).take();
    match (failed, summed) {
        (Some(error), _) => Err(error),
        (None, Ok(sum)) => Ok(sum),
        (None, Err(x)) => without_node(x, peers.as_ref()),
    }
}

/// Without autodiff, or on a backend that we have no nodes on.
fn without_node<const D: usize>(x: Tensor<D>, peers: &dyn Peers) -> Result<Tensor<D>, Error> {
    let (shape, dtype, device) = (x.shape(), x.dtype(), x.device());
    if has_no_values(&device) {
        return Ok(x);
    }
    if x.is_autodiff() && x.is_tracked() {
        return Err(failure(peers, "no sum over peers is recorded on this device".to_owned()));
    }
    let values = x.into_data().iter::<f32>().collect();
    let sum = peers.sum(values).map_err(|reason| failure(peers, reason))?;
    Ok(Tensor::from_data(TensorData::new(sum, shape), (&device, dtype)))
}

fn failure(peers: &dyn Peers, reason: String) -> Error {
    Error::Peers { rank: peers.rank(), size: peers.size(), reason }
}

/// The sum over all peers of a tensor's values.
fn sum<B: GraphBackend>(peers: &dyn Peers, tensor: FloatTensor<B>) -> Result<FloatTensor<B>, Error> {
    #[cfg(feature = "capture")]
    if crate::node::is_capture::<B>() {
        return Ok(tensor);
    }
    let values = match elements::<B>(&tensor) {
        Some(elements) => elements.to_vec(),
        None => match try_read_sync(B::float_into_data(tensor.clone())) {
            Some(Ok(data)) => data.iter::<f32>().collect(),
            _ => return Err(failure(peers, "the device does not give its values".to_owned())),
        },
    };
    let count = values.len();
    let sum = peers.sum(values).map_err(|reason| failure(peers, reason))?;
    match sum.len() == count {
        true => Ok(made::<B>(sum, tensor.shape().as_slice(), &tensor)),
        false => Err(failure(peers, format!("a sum of {} values, expected {count}", sum.len()))),
    }
}

/// Hands on in the forward, adds up in the backward.
#[derive(Clone, Debug)]
struct Given(Arc<dyn Peers>);

impl Operation<1> for Given {
    const READS: [bool; 1] = [false];
    const CHEAP: bool = true;

    fn forward<B: GraphBackend>(self, [input]: [FloatTensor<B>; 1]) -> FloatTensor<B> {
        input
    }

    fn backward<B: GraphBackend>(self, found: Found<B, 1>) -> [Option<FloatTensor<B>>; 1] {
        let sum = sum::<B>(self.0.as_ref(), found.gradient);
        [Some(sum.unwrap_or_else(|error| raise(error)))]
    }
}

/// Adds up in the forward, hands on in the backward.
#[derive(Clone, Debug)]
struct Summed {
    peers: Arc<dyn Peers>,
    /// An operation gives a tensor and nothing else.
    failed: Arc<Mutex<Option<Error>>>,
}

impl Operation<1> for Summed {
    const READS: [bool; 1] = [false];
    // To run it again is to talk again.
    const CHEAP: bool = false;

    fn forward<B: GraphBackend>(self, [input]: [FloatTensor<B>; 1]) -> FloatTensor<B> {
        let instead = unmade::<B>([0], &input);
        sum::<B>(self.peers.as_ref(), input).unwrap_or_else(|error| {
            *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            instead
        })
    }

    /// In the tail of a stage that is run again nobody reads the sum, and the peers, who run the same plan, do not wait for it.
    fn unmade<B: GraphBackend>(&self, [input]: &[FloatTensor<B>; 1]) -> Option<FloatTensor<B>> {
        Some(unmade::<B>(input.shape(), input))
    }

    fn backward<B: GraphBackend>(self, found: Found<B, 1>) -> [Option<FloatTensor<B>>; 1] {
        [Some(found.gradient)]
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use std::sync::Barrier;

    use burn::tensor::{DType, Device, FloatDType};

    use super::*;

    /// Peers that are threads.
    #[derive(Debug)]
    struct Threads {
        rank: usize,
        given: Arc<[Mutex<Vec<f32>>; 2]>,
        barrier: Arc<Barrier>,
    }

    impl Threads {
        fn pair() -> [Arc<dyn Peers>; 2] {
            let (given, barrier) = (Arc::default(), Arc::new(Barrier::new(2)));
            [0, 1].map(|rank| {
                let (given, barrier) = (Arc::clone(&given), Arc::clone(&barrier));
                Arc::new(Self { rank, given, barrier }) as Arc<dyn Peers>
            })
        }
    }

    impl Peers for Threads {
        fn rank(&self) -> usize {
            self.rank
        }

        fn size(&self) -> usize {
            2
        }

        fn sum(&self, values: Vec<f32>) -> Result<Vec<f32>, String> {
            let given = |rank: usize| self.given[rank].lock().unwrap_or_else(PoisonError::into_inner);
            *given(self.rank) = values;
            self.barrier.wait();
            let [first, second] = [0, 1].map(|rank: usize| given(rank).clone());
            // Nobody writes the next before both have read this one.
            self.barrier.wait();
            Ok(first.iter().zip(&second).map(|(a, b)| a + b).collect())
        }
    }

    /// Never answers.
    #[derive(Debug)]
    struct Gone;

    impl Peers for Gone {
        fn rank(&self) -> usize {
            1
        }

        fn size(&self) -> usize {
            4
        }

        fn sum(&self, _: Vec<f32>) -> Result<Vec<f32>, String> {
            Err("the cable is cut".to_owned())
        }
    }

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().iter::<f32>().collect()
    }

    #[test]
    fn both_directions_add_up_where_they_should() {
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            let found = Threads::pair().map(|peers| {
                std::thread::spawn(move || {
                    let device = Device::flex().autodiff();
                    let x = Tensor::<1>::from_data([1.0, 2.0, 3.0], &device).cast(dtype).require_grad();
                    let by = peers.rank() as f32 + 1.0;
                    let y = summed(given(x.clone(), &peers) * by, &peers).unwrap();
                    assert_eq!(y.dtype(), DType::from(dtype));
                    let gradients = crate::backward(&y.clone().powi_scalar(2).sum()).unwrap();
                    (values(y), values(x.grad(&gradients).unwrap()))
                })
            });
            for found in found {
                let (y, gradient) = found.join().unwrap();
                assert_eq!(y, [3.0, 6.0, 9.0]);
                // Of the square of three x.
                assert_eq!(gradient, [18.0, 36.0, 54.0]);
            }
        }
    }

    #[test]
    fn evaluation_adds_up_as_well() {
        let found = Threads::pair().map(|peers| {
            std::thread::spawn(move || {
                let x = Tensor::<2>::ones([2, 2], &Device::flex());
                values(summed(given(x, &peers), &peers).unwrap())
            })
        });
        for found in found {
            assert_eq!(found.join().unwrap(), [2.0; 4]);
        }
    }

    #[test]
    fn a_peer_that_is_gone_is_an_error_in_both_directions() {
        let peers: Arc<dyn Peers> = Arc::new(Gone);
        let x = Tensor::<1>::ones([3], &Device::flex().autodiff()).require_grad();
        let expected = "rank 1 of 4 could not add up a tensor with its peers: the cable is cut";
        assert_eq!(summed(x.clone(), &peers).unwrap_err().to_string(), expected);
        let error = crate::backward(&given(x, &peers).sum()).err().unwrap();
        assert_eq!(error.to_string(), expected);
        let x = Tensor::<1>::ones([3], &Device::flex());
        assert_eq!(summed(x, &peers).unwrap_err().to_string(), expected);
    }
}
