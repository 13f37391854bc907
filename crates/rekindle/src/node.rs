//! A region, or a piece of one, as one node of the user's autodiff graph. With `traced/capture.rs`, the only part that makes nodes with
//! Burn's extension API.
//!
//! ```text
//!  inputs, parameters ──▶ join ──▶ hub ──▶ fan ──▶ output node, one for each float output
//!                                   │                   its backward parks the output's gradient
//!                                   └─ its backward runs the executor's second half and hands every gradient on
//! ```
//!
//! Inside the hub's backward each stage is recorded on a graph of its own, run back and dropped. Such a nested graph
//! must have no node in common with the user's: Burn holds that graph's lock while the hub runs.
//!
//! Gradients come out bit for bit as Burn's own. Additions of floats depend on their order, so what the outer graph
//! has already added up for an input or a parameter is carried into the nested graph, which goes on adding there.

mod abandoned;
mod boundary;
mod elements;
mod engine;
mod graph;
mod measured;
mod operation;
mod order;
mod outer;
mod reseed;
mod run;
mod sweep;
mod tensor;
mod travel;
mod widened;

use burn::backend::autodiff::Autodiff;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, BackendTensor, DispatchKindConversion, DispatchTensor};
use rekindle_plan::Name;

pub(crate) use burn::backend::GradientCheckpointingStrategy as TapeStrategy;
pub(crate) use elements::{
    Strided, elements, elements_mut, laid_out, made, ordered, rewrite, rewrite_from, strided,
};
#[cfg(feature = "capture")]
pub(crate) use graph::{Join, Start, join, node, token};
pub(crate) use operation::{Found, Operation, apply, apply_one, unmade};
pub(crate) use reseed::reseed_after_backward;
pub(crate) use run::{Job, Setup, anchored, in_order, measure, parameter_nodes, run, start_from};
pub use sweep::sweep;
pub(crate) use sweep::{leaving_nodes, nodes_made, sweep_when};
pub(crate) use tensor::AnyTensor;
pub(crate) use widened::{apply_widened, converted, is_narrow, widened};

/// What Burn's strategy of that name keeps.
pub(crate) const BALANCED: &str = "balanced";
/// Less by what stages [mark](crate::again).
pub(crate) const AGAIN: &str = "again";

/// The ways to keep a tape beside the whole of it.
pub(crate) fn options() -> Vec<Name> {
    [BALANCED, AGAIN].iter().filter_map(|option| option.parse().ok()).collect()
}

/// A way to keep a tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keeping {
    pub(crate) strategy: TapeStrategy,
    /// What the stage marks is run again.
    pub(crate) again: bool,
}

impl Keeping {
    /// The tape that Burn keeps under a strategy.
    pub(crate) const fn under(strategy: TapeStrategy) -> Self {
        Self { strategy, again: false }
    }

    /// The tape under an option, where the user's graph has its `own` strategy. `None` for an option that there is not.
    pub(crate) fn of(option: Option<&Name>, own: TapeStrategy) -> Option<Self> {
        match option.map(Name::as_str) {
            None => Some(Self::under(own)),
            Some(BALANCED) => Some(Self::under(TapeStrategy::Balanced)),
            Some(AGAIN) => Some(Self { strategy: TapeStrategy::Balanced, again: true }),
            Some(_) => None,
        }
    }
}

/// A tensor of the backend with autodiff.
pub(crate) type Tracked<B> = FloatTensor<Autodiff<B>>;

/// A backend whose tensors can be told from those of the others.
pub(crate) trait GraphBackend: Backend {
    fn wrap(tensor: Tracked<Self>) -> DispatchTensor;
    fn unwrap(tensor: DispatchTensor) -> Option<Tracked<Self>>;
}

impl<B: Backend> GraphBackend for B
where
    DispatchTensor: DispatchKindConversion<Autodiff<B>>,
{
    fn wrap(tensor: Tracked<B>) -> DispatchTensor {
        let tensor = BackendTensor::<Autodiff<B>>::Float(tensor);
        <DispatchTensor as DispatchKindConversion<Autodiff<B>>>::from_backend(tensor)
    }

    fn unwrap(tensor: DispatchTensor) -> Option<Tracked<B>> {
        match <DispatchTensor as DispatchKindConversion<Autodiff<B>>>::try_into_backend(tensor) {
            Ok(BackendTensor::Float(tensor)) => Some(tensor),
            _ => None,
        }
    }
}

/// Whether each operation on tensors of this backend is a launch on a device of its own, where few large ones are better than many.
pub(crate) fn is_far<B: GraphBackend>() -> bool {
    #[cfg(feature = "cuda")]
    let is_far = std::any::TypeId::of::<B>() == std::any::TypeId::of::<burn::backend::Cube>();
    #[cfg(not(feature = "cuda"))]
    let is_far = false;
    is_far
}

/// Whether tensors of this backend have shapes and no values.
#[cfg(feature = "capture")]
pub(crate) fn is_capture<B: GraphBackend>() -> bool {
    std::any::TypeId::of::<B>() == std::any::TypeId::of::<burn::backend::Capture>()
}
