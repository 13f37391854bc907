//! What the simulator finds wrong with a plan.

use crate::{Action, Boundary, Bytes, Name, Stage};

/// A plan that cannot be run, with the first action that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("action {index} (`{action}`) cannot run: {reason}", action = action.as_ref().map_or_else(|| "end".to_owned(), ToString::to_string))]
pub struct Illegal {
    /// The index of the action, from 0; the number of actions when the plan ends wrongly.
    pub index: usize,
    /// The action, or `None` when the plan ends wrongly.
    pub action: Option<Action>,
    /// What is wrong with it.
    pub reason: Reason,
}

/// What is wrong with an action.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The stage is not in the chain.
    #[error("there is no stage {stage}, expected 1 to {stages}")]
    NoStage {
        /// The stage named.
        stage: Stage,
        /// How many there are.
        stages: usize,
    },
    /// The boundary is not in the chain.
    #[error("there is no boundary {boundary}, expected x0 to x{stages}")]
    NoBoundary {
        /// The boundary named.
        boundary: Boundary,
        /// How many stages there are.
        stages: usize,
    },
    /// The boundary is not on the device.
    #[error("{boundary} is not on the device; run the stage before it, fetch it or keep it earlier")]
    NotOnDevice {
        /// The boundary needed.
        boundary: Boundary,
    },
    /// The boundary is on the device already.
    #[error("{boundary} is on the device already; drop it first or use what is there")]
    AlreadyOnDevice {
        /// The boundary made again.
        boundary: Boundary,
    },
    /// A tape that read the boundary still holds it.
    #[error(
        "{boundary} is still held by tape {stage}, and would exist twice; keep it instead of making it again"
    )]
    HeldByTape {
        /// The boundary made again.
        boundary: Boundary,
        /// The stage whose tape holds it.
        stage: Stage,
    },
    /// There is no copy of the boundary there.
    #[error("there is no copy of {boundary} in `{place}`")]
    NotThere {
        /// The boundary named.
        boundary: Boundary,
        /// The place named.
        place: Name,
    },
    /// There is a copy of the boundary there already.
    #[error("a copy of {boundary} is in `{place}` already")]
    AlreadyThere {
        /// The boundary named.
        boundary: Boundary,
        /// The place named.
        place: Name,
    },
    /// The profile has no such tier, codec or option.
    #[error("the profile has no {kind} `{name}`, expected one of: {known}")]
    Unknown {
        /// Tier, codec, place or option.
        kind: &'static str,
        /// The name found.
        name: Name,
        /// The names there are.
        known: String,
    },
    /// The tier cannot hold it.
    #[error("`{tier}` would hold {needed}, but its capacity is {capacity}")]
    TierFull {
        /// The tier.
        tier: Name,
        /// What it would hold.
        needed: Bytes,
        /// What it can hold.
        capacity: Bytes,
    },
    /// The stage has a tape already.
    #[error("stage {stage} has a tape already; run its backward before taping it again")]
    AlreadyTaped {
        /// The stage.
        stage: Stage,
    },
    /// The stage has no tape to go back through.
    #[error("stage {stage} has no tape; tape it first")]
    NoTape {
        /// The stage.
        stage: Stage,
    },
    /// The gradient is somewhere else.
    #[error("stage {stage} needs the gradient of {needed}, but {at}", needed = stage.output(), at = found.map_or_else(|| "the forward half is not over".to_owned(), |boundary| format!("the gradient is at {boundary}")))]
    NoGradient {
        /// The stage to go back through.
        stage: Stage,
        /// Where the gradient is, once the forward half is over.
        found: Option<Boundary>,
    },
    /// A pinned stage would run again.
    #[error("stage {stage} (`{name}`) is pinned and would run twice; tape it the first time it runs")]
    Pinned {
        /// The stage.
        stage: Stage,
        /// Its name.
        name: String,
    },
    /// A stage has gone back already and is run again for nothing.
    #[error("stage {stage} went back already; nothing can need it again")]
    Over {
        /// The stage.
        stage: Stage,
    },
    /// The plan ends before the backward is through.
    #[error("the plan ends with stage {stage} not gone back through")]
    Unfinished {
        /// The stage that would be next.
        stage: Stage,
    },
    /// Something is left at the end.
    #[error("{what} is left at the end; drop it")]
    Left {
        /// What is left.
        what: String,
    },
    /// The plan's time does not fit into 64 bits.
    #[error("the plan takes longer than 2^64 ns")]
    TooLong,
    /// What is alive does not fit into 64 bits.
    #[error("more than 2^64 bytes are alive")]
    TooLarge,
}
