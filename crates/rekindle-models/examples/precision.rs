//! Fewer digits and smaller parts: what mixed precision and accumulation save, by themselves and under a checkpoint around every block.
//!
//! ```text
//! cargo run --release -p rekindle-models --example precision             12 blocks of width 128, 16 sequences of 128 tokens
//! cargo run --release -p rekindle-models --example precision -- 2 32 16  2 blocks of width 32, sequences of 16
//! ```

#![allow(clippy::print_stdout, reason = "it is a program to read the output of")]

mod step;

use std::error::Error;

use burn::optim::GradientsParams;
use burn::tensor::Device;
use rekindle::memory::{self, CountingAllocator};
use rekindle::training::{Accumulation, LossScale, Precision};
use rekindle::{Rule, without_checkpointing};
use rekindle_models::data::{Source, Text};
use rekindle_models::{Batch, Gpt, GptBatch, GptConfig};
use step::{Step, watched};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::system();

/// The sequences of a batch.
const EXAMPLES: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let _ = memory::keep_freed();
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<usize>());
    let layers = numbers.next().transpose()?.unwrap_or(12);
    let width = numbers.next().transpose()?.unwrap_or(128);
    let sequence = numbers.next().transpose()?.unwrap_or(128);
    let device = Device::flex().autodiff();
    let text = Text::new(include_str!("../src/lib.rs").repeat(20).into_bytes(), sequence)?;
    let batch = text.draw(EXAMPLES, &mut fastrand::Rng::with_seed(1), &device);

    println!("{EXAMPLES} sequences of {sequence} tokens, {layers} blocks of width {width}");
    println!(
        "digits  parts  plain        step       every-1      step       gradients  off from f32 at once"
    );
    let mut exact: Option<Step> = None;
    for digits in ["f32", "bf16", "f16"] {
        let precision: Precision = digits.parse()?;
        precision.check(&device)?;
        device.seed(1);
        // Each part would drop other elements, and gradients of one batch in other parts could not be compared.
        let config = GptConfig::new(Text::VOCABULARY, width, 4, layers, sequence).with_dropout(0.0);
        let model = config.with_precision(precision).init(&device)?;
        for parts in [1, 4] {
            let step = |plain: bool| match plain {
                true => watched(&model, || without_checkpointing(|| gradients(&model, &batch, parts))),
                false => watched(&model, || gradients(&model, &batch, parts)),
            };
            // The first step makes what every later one has.
            step(true)?;
            let (plain, checkpointed) = (step(true)?, step(false)?);
            let same = if checkpointed.is_same_as(&plain) { "identical" } else { "DIFFER" };
            let off = exact.as_ref().map_or(0.0, |exact| off(&plain, exact));
            let columns = [&plain, &checkpointed]
                .map(|step| format!("{:11}  {:9.2?}", step.peak.to_string(), step.time));
            println!("{digits:6}  {parts:5}  {}  {same:9}  {off:.1e}", columns.join("  "));
            exact.get_or_insert(plain);
        }
    }
    Ok(())
}

/// The gradients of a batch in parts. A scale at which they do not fit their type is halved, and the step done again.
fn gradients(model: &Gpt, batch: &GptBatch, parts: usize) -> Result<GradientsParams, rekindle::Error> {
    let mut scale = LossScale::dynamic();
    let rows = batch.examples().div_ceil(parts);
    loop {
        rekindle::seed(1);
        let mut sum = Accumulation::new();
        for part in 0..parts {
            let part = batch.slice(part * rows..batch.examples().min((part + 1) * rows));
            let share = part.examples() as f64 / batch.examples() as f64;
            sum.add(model, scale.up(model.loss(&part, Rule::EVERY_ONE)?), share)?;
        }
        if let Ok(gradients) = scale.down(model, sum.finish()?.gradients)? {
            return Ok(gradients);
        }
    }
}

/// The length of the difference of two gradients, of the length of the right one.
fn off(found: &Step, right: &Step) -> f64 {
    let (mut error, mut length) = (0.0, 0.0);
    for (found, right) in found.gradients.iter().flatten().zip(right.gradients.iter().flatten()) {
        error += f64::from(found - right).powi(2);
        length += f64::from(*right).powi(2);
    }
    (error / length).sqrt()
}
