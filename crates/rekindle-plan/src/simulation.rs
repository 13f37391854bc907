//! What the simulator finds in a legal plan.

use crate::{Boundary, Bytes, Name, Nanos, Stage};

/// What the simulator found in a legal plan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Simulation {
    /// The most bytes alive on the device at once.
    pub peak_bytes: Bytes,
    /// The index of the action that reaches them first.
    pub peak_action: usize,
    /// What was alive then, largest first.
    pub peak_tensors: Vec<Live>,
    /// The bytes at every action.
    pub moments: Vec<Moment>,
    /// When every action runs.
    pub spans: Vec<Span>,
    /// How long the step takes.
    pub step_ns: Nanos,
    /// How much of it goes to forwards that ran before.
    pub recompute_ns: Nanos,
    /// How much of it is spent waiting for transfers.
    pub wait_ns: Nanos,
    /// How many stage forwards the step runs, taped ones included.
    pub forwards: u64,
    /// How many actions make up the forward half.
    pub turn: usize,
}

/// The device's bytes at one action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The most while the action runs.
    pub peak: Bytes,
    /// What is left when it is over.
    pub after: Bytes,
}

/// When one action runs, since the step began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// When the plan gets to it. Its bytes count from here until the plan gets to the next action.
    pub reached: Nanos,
    /// When its work begins: after what it has to wait for.
    pub start: Nanos,
    /// When its work is over. An offload or a fetch works beside the computation, so that the plan can get to the next
    /// action before; `keep` and `drop` take no time.
    pub end: Nanos,
}

/// A tensor, or a group of them, that is alive on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// What it is.
    pub what: LiveKind,
    /// Its size.
    pub bytes: Bytes,
}

/// What is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LiveKind {
    /// A boundary, on the device as it is.
    Boundary(Boundary),
    /// A compressed copy of a boundary.
    Compressed(Boundary, Name),
    /// A stage's tape, its output included.
    Tape(Stage),
    /// The gradient of a boundary.
    Gradient(Boundary),
    /// The gradients of the parameters of all stages behind a boundary.
    ParameterGradients(Boundary),
    /// What a stage needs only while its forward runs.
    ForwardExtra(Stage),
    /// What a stage needs while its backward runs, the gradients of its parameters included.
    BackwardExtra(Stage),
}

impl std::fmt::Display for LiveKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Boundary(boundary) => write!(formatter, "{boundary}"),
            Self::Compressed(boundary, codec) => write!(formatter, "{boundary} as {codec}"),
            Self::Tape(stage) => write!(formatter, "tape {stage}"),
            Self::Gradient(boundary) => write!(formatter, "gradient of {boundary}"),
            Self::ParameterGradients(boundary) => {
                write!(formatter, "gradients of the parameters behind {boundary}")
            }
            Self::ForwardExtra(stage) => write!(formatter, "workspace of forward {stage}"),
            Self::BackwardExtra(stage) => write!(formatter, "workspace of backward {stage}"),
        }
    }
}
