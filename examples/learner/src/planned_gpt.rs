//! The model and its plan as one module.

use burn::backend::ExecutionError;
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn_train::metric::{Adaptor, LossInput};
use burn_train::{InferenceStep, ItemLazy, TrainOutput, TrainStep};
use rekindle::{Bytes, Planned, Rule, memory};
use rekindle_models::{Gpt, GptBatch};

/// A GPT that trains under a plan.
#[derive(Module, Debug)]
pub struct PlannedGpt {
    gpt: Gpt,
    // Nothing to train, to move to a device or to save. The `Learner` clones the model in every step; a clone of the
    // plan is one more reference to it.
    #[module(skip)]
    plan: Planned,
}

impl PlannedGpt {
    /// Puts a model under a plan that was made for it.
    pub fn new(gpt: Gpt, plan: Planned) -> Self {
        Self { gpt, plan }
    }
}

impl TrainStep for PlannedGpt {
    type Input = GptBatch;
    type Output = StepOutput;

    fn step(&self, batch: GptBatch) -> TrainOutput<StepOutput> {
        let before = memory::live();
        memory::reset_peak();
        // The one line that differs from plain training: there it is `self.gpt.loss(&batch, Rule::StoreAll)`.
        let loss = or_panic(self.plan.forward(&self.gpt, &batch));
        let gradients = or_panic(rekindle::backward(&loss));
        // The gradients are handed out under the parameters' ids, which the wrapper shares with the model inside.
        let grads = GradientsParams::from_grads(gradients, self);
        let peak = memory::peak().zip(before).map(|(peak, before)| peak.saturating_sub(before));
        // The metrics' thread reads the loss while the next step runs. Without autodiff it holds on to no graph.
        TrainOutput { grads, item: StepOutput { loss: loss.without_autodiff(), peak } }
    }
}

impl InferenceStep for PlannedGpt {
    type Input = GptBatch;
    type Output = StepOutput;

    // The `Learner` validates on the device without autodiff. No backward follows, so there is nothing to keep or to
    // recompute: the stages are simply called. A rule instead of the plan, because a plan refuses batches of any
    // shape but the sample's, and the last batch of a validation may be a smaller one.
    fn step(&self, batch: GptBatch) -> StepOutput {
        StepOutput { loss: or_panic(self.gpt.loss(&batch, Rule::StoreAll)), peak: None }
    }
}

/// A step cannot return an error in burn-train; a panic is what its strategies for several devices catch and report.
fn or_panic<T>(result: Result<T, rekindle::Error>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// What a step leaves to the metrics.
#[derive(Clone, Debug)]
pub struct StepOutput {
    /// The mean cross entropy.
    pub loss: Tensor<1>,
    /// The most bytes above those before the step; `None` in validation, and where nobody counts.
    pub peak: Option<Bytes>,
}

impl ItemLazy for StepOutput {
    fn sync(self) -> Result<Self, ExecutionError> {
        self.loss.device().flush()?;
        Ok(self)
    }
}

impl Adaptor<LossInput> for StepOutput {
    fn adapt(&self) -> LossInput {
        LossInput::new(self.loss.clone())
    }
}

impl Adaptor<Option<Bytes>> for StepOutput {
    fn adapt(&self) -> Option<Bytes> {
        self.peak
    }
}
