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
    /// There is none of something there must be.
    #[error("the model has no {what}, expected at least 1")]
    Empty {
        /// What there is none of.
        what: &'static str,
    },
    /// Patches do not cover the image.
    #[error(
        "patches of {patch} pixels do not divide an image of {side} pixels along a side; choose a patch that does"
    )]
    Patch {
        /// The pixels along a side of an image.
        side: usize,
        /// The pixels along a side of a patch.
        patch: usize,
    },
    /// Burn's modules do not mix types.
    #[error(
        "activations of {precision} are asked for beside weights of f32, which Burn's modules do not do; expected f32, or the model of our nodes"
    )]
    BurnPrecision {
        /// The precision asked for.
        precision: rekindle::training::Precision,
    },
    /// A dropout that is no probability, or a precision that the device does not have.
    #[error(transparent)]
    Refused(#[from] rekindle::Error),
}
