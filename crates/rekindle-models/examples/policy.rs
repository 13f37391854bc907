//! What to keep, by name: policies beside each other, and the fastest plan within the bytes that one of them takes.
//!
//! ```text
//! cargo run --release -p rekindle-models --example policy             12 blocks of width 128, 256 tokens
//! cargo run --release -p rekindle-models --example policy -- 3 64 64  3 blocks of width 64, 64 tokens
//! ```

#![allow(clippy::print_stdout, reason = "it is a program to read the output of")]

mod step;

use std::error::Error;
use std::time::Duration;

use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use rekindle::memory::{self, CountingAllocator};
use rekindle::{Budget, Bytes, Measuring, Planned, Planner, Policy, Rule, Staged, without_checkpointing};
use rekindle_models::data::{Source, Text};
use rekindle_models::{GptConfig, Trainable};
use step::{Step, watched};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::system();

/// How often each step is run. They take turns, and the quickest counts.
const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let _ = memory::keep_freed();
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<usize>());
    let layers = numbers.next().transpose()?.unwrap_or(12);
    let width = numbers.next().transpose()?.unwrap_or(128);
    let sequence = numbers.next().transpose()?.unwrap_or(256);
    let device = Device::flex().autodiff();
    device.seed(1);
    let model = GptConfig::new(Text::VOCABULARY, width, 4, layers, sequence).init(&device)?;
    let text = Text::new(include_str!("../src/lib.rs").repeat(20).into_bytes(), sequence)?;
    let batch = text.draw(2, &mut fastrand::Rng::with_seed(1), &device);
    // Parts of blocks have names of their own: block.3.qkv, block.3.attention, block.3.up.
    let parts = model.fine();

    // Measured once; every policy and plan is of this profile.
    let measured = rekindle::measure(&parts, &batch, Measuring::default(), &mut |_, _| {})?;
    let noise = measured.noise();
    let profile = measured.into_profile(parts.name(), "flex")?;
    let planner = || Planner::new(Budget::smallest()).profile(profile.clone(), noise);
    // The middle of the model keeps what attention made; the last block is never run again.
    let ours = Policy::recompute_all()
        .keep("block.*")
        .keep("block.*.attention")
        .pin(format!("block.{}", layers.saturating_sub(1)));
    let mut rows = Vec::new();
    for policy in [Policy::named("full")?, Policy::named("selective")?, Policy::named("dots-saveable")?, ours]
    {
        let planned = planner().plan_policy(&policy, &parts, &batch)?;
        rows.push((policy.to_string(), planned));
    }
    // No policy knows of bytes. A budget does: the fastest plan there is for what `selective` takes.
    let budget = rows.get(1).map_or(Bytes::ZERO, |(_, planned)| planned.plan().predicted.peak_bytes);
    let within = Planner::new(Budget::bytes(budget)).margin(0.0).profile(profile.clone(), noise);
    match within.plan(&parts, &batch) {
        Ok(planned) => rows.push((format!("optimal, {budget}"), planned)),
        Err(refused) => println!("optimal, {budget}: {refused}"),
    }

    let gradients = |loss: Tensor<1>| Ok(GradientsParams::from_grads(rekindle::backward(&loss)?, &model));
    let plain =
        || watched(&model, || gradients(without_checkpointing(|| model.loss(&batch, Rule::StoreAll))?));
    let run = |planned: &Planned| watched(&model, || gradients(planned.forward(&parts, &batch)?));
    let expected = plain()?;
    let mut steps: Vec<Vec<Step>> = (0..=rows.len()).map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        for (at, steps) in steps.iter_mut().enumerate() {
            steps.push(match at.checked_sub(1).and_then(|at| rows.get(at)) {
                None => plain()?,
                Some((_, planned)) => run(planned)?,
            });
        }
    }

    println!("{layers} blocks of width {width}, 2 sequences of {sequence} tokens, parts of blocks");
    println!("peak         of plain  step       overhead  gradients  policy");
    let most = |steps: &[Step]| steps.iter().map(|step| step.peak).max().unwrap_or_default();
    let quickest = |steps: &[Step]| steps.iter().map(|step| step.time).min().unwrap_or(Duration::MAX);
    let (plain_peak, plain_time) = (most(&steps[0]), quickest(&steps[0]));
    let names = std::iter::once("plain").chain(rows.iter().map(|(name, _)| name.as_str()));
    for (name, steps) in names.zip(&steps) {
        let (peak, time) = (most(steps), quickest(steps));
        println!(
            "{:11}  {:7.1}%  {time:9.2?}  {:+7.1}%  {:9}  {name}",
            peak.to_string(),
            100.0 * peak.get() as f64 / plain_peak.get() as f64,
            100.0 * (time.as_secs_f64() / plain_time.as_secs_f64() - 1.0),
            if steps.iter().all(|step| step.is_same_as(&expected)) { "identical" } else { "DIFFER" },
        );
    }
    Ok(())
}
