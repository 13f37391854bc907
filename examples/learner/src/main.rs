//! Trains a small GPT with Burn's `Learner` in half the memory of its activations.

use std::error::Error;
use std::sync::PoisonError;

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::optim::AdamConfig;
use burn::tensor::Device;
use burn_train::metric::LossMetric;
use burn_train::{Learner, SupervisedTraining};
use rekindle::memory::CountingAllocator;
use rekindle::{Budget, Bytes, Plan, Rule};
use rekindle_learner::text::{self, ByteBatcher};
use rekindle_learner::{Lines, PlannedGpt, StepPeak};
use rekindle_models::GptConfig;

// Who plans by measuring needs to know what is allocated. On this backend tensors lie in the process's memory.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::system();

const BATCH: usize = 8;
const SEQUENCE: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    // The `Learner` keeps its logs somewhere.
    let logs = std::env::temp_dir().join("rekindle-learner");
    let device = Device::flex().autodiff();
    device.seed(1);

    // A plan is for batches of the shape it was made on and refuses others. Burn's data loader ends an epoch with a
    // smaller batch when the windows do not come out even: drop those that are left over, or pad them with windows
    // from the start.
    let mut train = text::windows(165, SEQUENCE);
    train.truncate(train.len() / BATCH * BATCH);
    // Validation runs without the plan: two batches, and one of four.
    let valid = text::windows(20, SEQUENCE);

    // Measure each stage on a batch of that shape, and find the fastest plan in half of what plain training takes.
    let gpt = GptConfig::new(256, 64, 4, 6, SEQUENCE).init(&device)?;
    let sample = ByteBatcher.batch(train[..BATCH].to_vec(), &device);
    let plan = rekindle::plan(&gpt, &sample, Budget::of_plain(0.5)?)?;
    let plain = Plan::by_rule(plan.profile(), Rule::StoreAll, None)?.predicted.peak_bytes;
    let predicted = plan.simulation().peak_bytes;

    // From here on it is Burn's own training. Measuring drew random numbers: start from a seed, and every run draws
    // the same.
    rekindle::seed(1);
    let loader = || DataLoaderBuilder::new(ByteBatcher).batch_size(BATCH);
    let train = loader().shuffle(1).build(InMemDataset::new(train));
    let valid = loader().build(InMemDataset::new(valid));
    let lines = Lines::default();
    let history = lines.history();
    let training = SupervisedTraining::new(logs, train, valid)
        .metrics((LossMetric::new(),))
        .metric_train_numeric(StepPeak::default())
        .renderer(Box::new(lines))
        .with_application_logger(None)
        .num_epochs(2);
    // No `.gradient_checkpointing()`: it changes what every operation keeps, and the plan was measured without it.
    let learner = Learner::new(PlannedGpt::new(gpt, plan), AdamConfig::new().init(), 3e-3);
    let result = training.launch(learner);
    if let Some(error) = result.error {
        return Err(error.to_string().into());
    }

    let history = history.lock().unwrap_or_else(PoisonError::into_inner);
    let of = |name: &str| history.get(&("train", name.to_owned())).map_or(&[][..], Vec::as_slice);
    let (losses, peaks) = (of("Loss"), of(StepPeak::NAME));
    let ([first, .., last], Some(peak)) = (losses, peaks.iter().copied().reduce(f64::max)) else {
        return Err("the training took no steps".into());
    };
    println!();
    println!("a step keeping everything: {plain} predicted");
    println!("a step under the plan:     {predicted} predicted, {} measured", Bytes::new(peak as u64));
    println!("loss: {first:.3} in the first step, {last:.3} in the last of {}", losses.len());
    match last < first {
        true => Ok(()),
        false => Err("the loss did not fall".into()),
    }
}
