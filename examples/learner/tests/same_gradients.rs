//! A step of burn-train under the plan is a step of plain training, bit for bit.

use burn::data::dataloader::batcher::Batcher;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Tensor};
use burn_train::{InferenceStep, Learner, TrainStep};
use rekindle::memory::CountingAllocator;
use rekindle::{Budget, Plan, Rule, without_checkpointing};
use rekindle_learner::PlannedGpt;
use rekindle_learner::text::{self, ByteBatcher};
use rekindle_models::{GptBatch, GptConfig};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::system();

fn batch(count: usize, device: &Device) -> GptBatch {
    ByteBatcher.batch(text::windows(count, 32), device)
}

/// The bytes of every gradient, in the order of the parameters; `None` for a parameter that has none.
fn bytes(model: &PlannedGpt, gradients: &GradientsParams) -> Vec<Option<Vec<u8>>> {
    struct Collect<'a>(&'a GradientsParams, Vec<Option<Vec<u8>>>);
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = self.0.get::<D>(param.id);
            self.1.push(gradient.map(|gradient| gradient.to_data().as_bytes().to_vec()));
        }
    }
    let mut collect = Collect(gradients, Vec::new());
    model.visit(&mut collect);
    collect.1
}

// One test, because Burn's random state and the count of bytes are one per process.
#[test]
fn a_step_under_the_plan_has_the_loss_and_gradients_of_plain_training() {
    let device = Device::flex().autodiff();
    device.seed(3);
    // With dropout: its masks have to be drawn again in the recomputation.
    let gpt = GptConfig::new(256, 32, 2, 4, 32).with_dropout(0.2).init(&device).unwrap();
    let plan = rekindle::plan(&gpt, &batch(4, &device), Budget::of_plain(0.5).unwrap()).unwrap();
    // Not a comparison of plain training with itself.
    let all = Plan::by_rule(plan.profile(), Rule::StoreAll, None).unwrap();
    assert!(plan.simulation().peak_bytes < all.predicted.peak_bytes, "the plan recomputes nothing");
    let model = PlannedGpt::new(gpt, plan);
    let learner = Learner::new(model, AdamConfig::new().init(), 1e-3);

    let step = |seed: u64| {
        rekindle::seed(seed);
        let output = learner.train_step(batch(4, &device));
        let loss = output.item.loss.to_data().as_bytes().to_vec();
        (loss, bytes(&learner.model(), &output.grads), output.item.peak.unwrap())
    };
    let (loss, gradients, peak) = step(9);
    let (plain_loss, plain_gradients, plain_peak) = without_checkpointing(|| step(9));
    assert!(gradients.len() > 40 && gradients.iter().all(Option::is_some));
    assert!(loss == plain_loss, "the losses differ");
    assert!(gradients == plain_gradients, "the gradients differ");
    assert!(peak < plain_peak, "the plan saves nothing: {peak} against {plain_peak}");
    // The comparison could fail: other masks, other gradients.
    assert!(step(10).1 != gradients);

    // As the `Learner` validates: without autodiff, in a batch of any size, without a plan and without dropout.
    let valid = learner.model().valid();
    for count in [4, 3] {
        let run = || InferenceStep::step(&valid, batch(count, &device.clone().inner())).loss.to_data();
        assert!(run() == run());
    }
    // A training batch of another shape is refused by name.
    let other = || TrainStep::step(&learner.model(), batch(3, &device));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(other)).err().unwrap();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.contains("the input"), "{message}");
}
