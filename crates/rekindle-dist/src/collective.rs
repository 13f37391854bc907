//! What ranks do together.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};

use crate::DistError;

/// How values of several ranks are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// From the first rank to the last: the same bits as in one process that adds in this order.
    #[default]
    Ordered,
    /// As MPI likes to: the same on every rank and in every run of as many ranks, but rounded otherwise.
    Native,
}

impl std::fmt::Display for Reduction {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Ordered => "ordered",
            Self::Native => "native",
        })
    }
}

/// Something that is under way.
#[derive(Debug)]
pub struct Pending<T> {
    answer: Receiver<Result<T, DistError>>,
    rank: usize,
    what: &'static str,
}

impl<T> Pending<T> {
    pub(crate) fn new(rank: usize, what: &'static str, answer: Receiver<Result<T, DistError>>) -> Self {
        Self { answer, rank, what }
    }

    /// Something that is done already.
    pub fn done(result: Result<T, DistError>) -> Self {
        let (send, answer) = mpsc::channel();
        // The receiver is here.
        let _ = send.send(result);
        Self::new(0, "done", answer)
    }

    /// Whether it is done: what came of it, or itself again.
    pub(crate) fn ready(self) -> Result<Result<T, DistError>, Self> {
        match self.answer.try_recv() {
            Ok(done) => Ok(done),
            Err(TryRecvError::Empty) => Err(self),
            Err(TryRecvError::Disconnected) => Ok(Err(DistError::Ended { rank: self.rank, what: self.what })),
        }
    }

    /// Waits for it.
    ///
    /// # Errors
    /// When it failed.
    pub fn wait(self) -> Result<T, DistError> {
        let ended = |_| DistError::Ended { rank: self.rank, what: self.what };
        self.answer.recv().map_err(ended)?
    }
}

/// A group of ranks.
///
/// All ranks of a group make the same calls in the same order. What they are asked is compared before anything moves, so that
/// different lengths or different calls are an error on every rank; a rank that makes no call at all is waited for
/// (and ends the run, see [`Mpi::start`](crate::Mpi::start)).
///
/// To write another: [`Alone`](crate::Alone) is the smallest there is.
pub trait Collective: Send + Sync {
    /// Which of them this is, from 0 on.
    fn rank(&self) -> usize;

    /// How many they are.
    fn size(&self) -> usize;

    /// The same group, for somebody who may be there for longer.
    fn shared(&self) -> Arc<dyn Collective>;

    /// Groups of those that say the same `color`, by `key`, then by rank.
    ///
    /// # Errors
    /// When ranks are not in step.
    fn split(&self, color: usize, key: usize) -> Result<Box<dyn Collective>, DistError>;

    /// What `root` has. Of the others `data` is not looked at.
    ///
    /// # Errors
    /// When there is no such rank, or ranks are not in step.
    fn broadcast(&self, root: usize, data: Vec<u8>) -> Result<Vec<u8>, DistError>;

    /// Starts to collect what each rank has, from the first to the last. It may be of different lengths.
    fn start_all_gather(&self, data: Vec<u8>) -> Pending<Vec<Vec<u8>>>;

    /// Starts to add up a vector over all ranks; each of them gets the sum.
    fn start_all_reduce(&self, values: Vec<f32>, how: Reduction) -> Pending<Vec<f32>>;

    /// Starts to add up a vector over all ranks; each of them gets its part of the sum, which are as many as ranks and of one
    /// length.
    fn start_reduce_scatter(&self, values: Vec<f32>, how: Reduction) -> Pending<Vec<f32>>;

    /// Starts to put together the parts of a vector, of one length, by rank.
    fn start_all_gather_parts(&self, part: Vec<f32>) -> Pending<Vec<f32>>;

    /// Sends to one rank and receives from one, or does one of both, whichever of them is ready first.
    ///
    /// # Errors
    /// When there is no such rank.
    fn exchange(
        &self,
        send: Option<(usize, Vec<u8>)>,
        from: Option<usize>,
    ) -> Result<Option<Vec<u8>>, DistError>;

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// When ranks are not in step.
    fn barrier(&self) -> Result<(), DistError>;

    /// Ends the run on all ranks, with a reason and an exit code that is not 0.
    fn abort(&self, reason: &str) -> !;

    /// What each rank has, from the first to the last. It may be of different lengths.
    ///
    /// # Errors
    /// When ranks are not in step.
    fn all_gather(&self, data: Vec<u8>) -> Result<Vec<Vec<u8>>, DistError> {
        self.start_all_gather(data).wait()
    }

    /// Adds up a vector over all ranks; each of them gets the sum.
    ///
    /// # Errors
    /// When ranks are not in step.
    fn all_reduce(&self, values: Vec<f32>, how: Reduction) -> Result<Vec<f32>, DistError> {
        self.start_all_reduce(values, how).wait()
    }

    /// Adds up a vector over all ranks; each of them gets its part of the sum.
    ///
    /// # Errors
    /// When it cannot be cut into as many parts of one length, or ranks are not in step.
    fn reduce_scatter(&self, values: Vec<f32>, how: Reduction) -> Result<Vec<f32>, DistError> {
        self.start_reduce_scatter(values, how).wait()
    }

    /// Sends to one rank. Returns when the other has it, or has room for it.
    ///
    /// # Errors
    /// When there is no such rank.
    fn send(&self, to: usize, data: Vec<u8>) -> Result<(), DistError> {
        self.exchange(Some((to, data)), None).map(drop)
    }

    /// Receives from one rank.
    ///
    /// # Errors
    /// When there is no such rank.
    fn receive(&self, from: usize) -> Result<Vec<u8>, DistError> {
        Ok(self.exchange(None, Some(from))?.unwrap_or_default())
    }
}

/// Fails when there is no rank of this number.
pub(crate) fn check_rank(found: usize, size: usize) -> Result<(), DistError> {
    match found < size {
        true => Ok(()),
        false => Err(DistError::NoRank { found, size }),
    }
}

/// Fails when so many values are not shared out evenly.
pub(crate) fn check_even(found: usize, size: usize) -> Result<(), DistError> {
    match found.is_multiple_of(size) {
        true => Ok(()),
        false => Err(DistError::Uneven { found, size }),
    }
}
