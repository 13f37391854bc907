//! What can go wrong between ranks.

use rekindle::Bytes;

/// Why ranks could not do something together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DistError {
    /// MPI runs already, or ran, in this process.
    #[error("MPI was started before in this process; it can be started once")]
    Started,
    /// A thread could not be started.
    #[error("the thread that speaks with other ranks cannot be started: {source}")]
    Thread {
        /// What the system said.
        source: std::io::Error,
    },
    /// The thread that speaks MPI is gone.
    #[error("rank {rank}: MPI has ended already, and `{what}` was asked for")]
    Ended {
        /// Which rank.
        rank: usize,
        /// What was asked for.
        what: &'static str,
    },
    /// Ranks called different things.
    #[error(
        "rank {rank} asks for {own}, but rank {other} for {found}: all ranks have to do the same, in the same order"
    )]
    OutOfStep {
        /// Which rank.
        rank: usize,
        /// What it asked for.
        own: String,
        /// The first that asked for something else.
        other: usize,
        /// What that asked for.
        found: String,
    },
    /// There is no such rank.
    #[error("there is no rank {found}; ranks are 0 to {last}", last = size - 1)]
    NoRank {
        /// Which was asked for.
        found: usize,
        /// How many there are.
        size: usize,
    },
    /// A vector cannot be cut into equal parts.
    #[error("{found} values cannot be shared out evenly among {size} ranks; pad them to a multiple")]
    Uneven {
        /// How many values.
        found: usize,
        /// How many ranks.
        size: usize,
    },
    /// Gradients of a model cannot be laid out in one vector.
    #[error("parameter {parameter} is of {found}, and only f32 is reduced over ranks")]
    Type {
        /// Which, in the order of the model's fields, from 1 on.
        parameter: usize,
        /// Its type.
        found: String,
    },
    /// A vector is not of the model.
    #[error("{found} values, but the model has {expected}")]
    Length {
        /// How many values there are.
        found: usize,
        /// How many there should be.
        expected: usize,
    },
    /// No rank had an example.
    #[error("no rank has an example: there is nothing to take the mean of")]
    NoExamples,
    /// A gradient came in parts.
    #[error(
        "a parameter that is used outside of its region, or in two of them, has its gradient handed over in parts; reduce the gradients after the backward instead"
    )]
    HandedOverTwice,
    /// Ranks handed over their gradients in different orders.
    #[error(
        "rank {other} has handed over its gradients in another order than rank {rank}, from number {number} on, as it does where a parameter is used on one of them alone; reduce the gradients after the backward instead"
    )]
    OtherOrder {
        /// The first that had examples.
        rank: usize,
        /// The first whose order is another.
        other: usize,
        /// Which gradient is the first that differs, from 1 on.
        number: usize,
    },
    /// Plans or models differ.
    #[error("{what} of rank {other} is not that of rank {rank}: {found}, expected {expected}")]
    Differs {
        /// What was compared.
        what: String,
        /// This rank.
        rank: usize,
        /// The first that has another.
        other: usize,
        /// Its value.
        found: String,
        /// This rank's.
        expected: String,
    },
    /// A message is not what was expected.
    #[error("a message of {found} came from rank {from}, expected {expected}")]
    Message {
        /// Who sent it.
        from: usize,
        /// Its size.
        found: Bytes,
        /// What it should have been.
        expected: String,
    },
    /// A pipeline was asked for something it cannot do.
    #[error("{reason}")]
    Pipeline {
        /// What.
        reason: String,
    },
    /// Training itself failed.
    #[error(transparent)]
    Training(#[from] rekindle::Error),
}
