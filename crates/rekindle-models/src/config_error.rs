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
    /// Queries cannot share keys and values.
    #[error("{key_heads} heads of keys and values do not divide {heads} heads; choose a number that does")]
    KeyHeads {
        /// The heads.
        heads: usize,
        /// Those of keys and values.
        key_heads: usize,
    },
    /// Rotary positions turn pairs of elements.
    #[error("a head has {depth} elements, expected an even number for rotary positions")]
    OddHeads {
        /// The elements of a head.
        depth: usize,
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
    /// A temperature that nothing can be divided by.
    #[error("a temperature of {found}, expected a number above 0; 0.07 is usual")]
    Temperature {
        /// The temperature found.
        found: f64,
    },
    /// Burn's modules do not mix types.
    #[error(
        "activations of {precision} are asked for beside weights of f32, which Burn's modules do not do; expected f32, or the model of our nodes"
    )]
    BurnPrecision {
        /// The precision asked for.
        precision: rekindle::training::Precision,
    },
    /// Peers cannot share something out.
    #[error(
        "{found} {what} cannot be shared out evenly among {peers} ranks; choose a number of ranks that divides them"
    )]
    Split {
        /// What there is to share.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many peers there are.
        peers: usize,
    },
    /// The model has no layers that peers can share.
    #[error(
        "this model has no layers that ranks can have parts of; expected transformer blocks of our nodes"
    )]
    NotSplit,
    /// A dropout that is no probability, or a precision that the device does not have.
    #[error(transparent)]
    Refused(#[from] rekindle::Error),
}
