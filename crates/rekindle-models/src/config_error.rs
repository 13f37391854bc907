//! Sizes a model cannot have.

/// Why a model was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The heads cannot share the width.
    #[error("{heads} heads do not divide a width of {width}; choose a number of heads that does")]
    Heads {
        /// The width.
        width: usize,
        /// The heads.
        heads: usize,
    },
    /// A dropout with a probability that is none.
    #[error(transparent)]
    Dropout(#[from] rekindle::Error),
}
