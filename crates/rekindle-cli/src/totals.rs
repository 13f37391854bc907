//! What all of training takes: weights, gradients, optimizer state, activations.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::AdamConfig;
use burn::tensor::Tensor;
use rekindle::{Bytes, Rule};
use rekindle_models::Trainable;
use serde::Serialize;

use crate::amount::Target;
use crate::failure::Failure;
use crate::measure::{Parts, Recipe, step};
use crate::strategy::Ready;
use crate::{meter, report};

/// Where the memory of training goes.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Totals {
    pub(crate) weights: Bytes,
    pub(crate) optimizer_state: Bytes,
    /// Part of the step.
    pub(crate) gradients: Bytes,
    /// Activations, gradients and workspace of a step, at their peak.
    pub(crate) step: Bytes,
    /// What is in none of these: scratch memory of threads, text, lists.
    pub(crate) other: Bytes,
    /// Everything at the peak of all steps, the optimizer's own work included.
    pub(crate) all: Bytes,
}

/// The size of a model's parameters.
pub(crate) fn parameter_bytes(model: &impl Module) -> Bytes {
    #[derive(Default)]
    struct Sizes(u64);
    impl ModuleVisitor for Sizes {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            self.0 += (value.shape().num_elements() * value.dtype().size()) as u64;
        }
    }
    let mut sizes = Sizes::default();
    model.visit(&mut sizes);
    Bytes::new(sizes.0)
}

/// What the optimizer takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Optimizer {
    /// What it keeps from step to step.
    pub(crate) state: Bytes,
    /// What training takes at most while it updates the weights.
    pub(crate) updating: Bytes,
}

impl Optimizer {
    /// Takes one step on a copy of the model.
    pub(crate) fn measure<M: Trainable>(
        model: &M,
        batch: &Parts<M::Batch>,
        recipe: Recipe,
    ) -> Result<Self, Failure> {
        let bar = report::spinner("measuring the optimizer");
        // The rule that needs little memory and little time.
        let gradients = step(model, batch, &Ready::Rule(Rule::EVERY_ONE), recipe)?.gradients;
        let mut optimizer = AdamConfig::new().init();
        let before = meter::live();
        meter::reset_peak();
        let updated = optimizer.step(1e-3, model.clone(), gradients);
        let peak = meter::peak().saturating_sub(before);
        drop(updated);
        let weights = parameter_bytes(model);
        // The gradients, as large as the weights, were there before and are gone.
        let after = Bytes::new(meter::live().get() + weights.get());
        bar.finish_and_clear();
        drop(optimizer);
        Ok(Self { state: after.saturating_sub(before), updating: Bytes::new(weights.get() * 2 + peak.get()) })
    }
}

/// What training holds beside its steps: the weights, the optimizer's state, and what else has come since `empty`, such as
/// the scratch memory of threads.
///
/// Refused when the optimizer alone needs more than there is.
pub(crate) fn held_by_training<M: Trainable>(
    target: Target,
    model: &M,
    batch: &Parts<M::Batch>,
    recipe: Recipe,
    empty: Bytes,
) -> Result<Bytes, Failure> {
    let Optimizer { state, updating } = Optimizer::measure(model, batch, recipe)?;
    rekindle::sweep();
    let here = meter::live().saturating_sub(empty);
    let other = here.saturating_sub(parameter_bytes(model));
    let updating = Bytes::new(updating.get() + other.get());
    match target {
        Target::Bytes(all) if all < updating => Err(Failure::request(
            anyhow::anyhow!(
                "--memory is {all}, but weights, gradients and the optimizer's step take {updating}"
            ),
            format!(
                "give more than --memory {}: what a step keeps comes on top, and how much that is at least is told then; or make the model smaller",
                updating.get()
            ),
        )),
        // What is free is free beside the weights, which are there already.
        Target::Free => Ok(state),
        Target::Bytes(_) => Ok(Bytes::new(here.get() + state.get())),
        Target::Part(_) | Target::Smallest => Err(Failure::request(
            anyhow::anyhow!("--memory is `{target}`, expected bytes or auto"),
            "give --memory 1GiB, or --budget 25% for a part of what the steps of plain training take",
        )),
    }
}
