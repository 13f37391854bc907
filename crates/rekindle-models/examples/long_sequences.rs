//! Long sequences: what a step takes as they grow, with Burn's attention, with ours, and under a plan.
//!
//! ```text
//! cargo run --release -p rekindle-models --example long_sequences               256 to 2,048 tokens, 6 blocks
//! cargo run --release -p rekindle-models --example long_sequences -- 32 128 2   32 to 128 tokens, 2 blocks
//! ```

#![allow(clippy::print_stdout, reason = "it is a program to read the output of")]

use std::error::Error;

use burn::optim::GradientsParams;
use burn::tensor::{Device, Int, Tensor};
use rekindle::memory::{self, CountingAllocator};
use rekindle::{Budget, Bytes, Planner, Rule, Under, without_checkpointing};
use rekindle_models::{Gpt, GptBatch, GptConfig, Trainable};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::system();

fn main() -> Result<(), Box<dyn Error>> {
    let _ = memory::keep_freed();
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<usize>());
    let shortest = numbers.next().transpose()?.unwrap_or(256).max(1);
    let longest = numbers.next().transpose()?.unwrap_or(2_048);
    let layers = numbers.next().transpose()?.unwrap_or(6);
    let device = Device::flex().autodiff();
    println!("tokens  Burn's plain  our plain     every-1       smallest");
    let mut tokens = shortest;
    while tokens <= longest {
        let config = GptConfig::new(256, 128, 4, layers, tokens).with_dropout(0.0);
        let batch = {
            let tokens = Tensor::<2, Int>::ones([1, tokens], &device);
            GptBatch { tokens: tokens.clone(), targets: tokens }
        };
        let burns = config.clone().with_burn(true).init(&device)?;
        let of_burn = peak(&burns, &batch, None)?;
        let model = config.init(&device)?;
        let plain = peak(&model, &batch, None)?;
        let every = peak(&model, &batch, Some(Rule::EVERY_ONE.into()))?;
        let planned = Planner::new(Budget::smallest()).plan(&model.fine(), &batch)?;
        let smallest = {
            let run = || rekindle::backward(&planned.forward(&model.fine(), &batch)?);
            taken(&model, run)?
        };
        let columns = [of_burn, plain, every, smallest].map(|bytes| format!("{:12}", bytes.to_string()));
        println!("{tokens:6}  {}", columns.join("  "));
        tokens *= 2;
    }
    Ok(())
}

fn peak(model: &Gpt, batch: &GptBatch, under: Option<Under<'_>>) -> Result<Bytes, rekindle::Error> {
    taken(model, || {
        let loss = match under {
            Some(under) => model.loss(batch, under)?,
            None => without_checkpointing(|| model.loss(batch, Rule::StoreAll))?,
        };
        rekindle::backward(&loss)
    })
}

/// The most bytes above those before a step, the second of two: the first one warms up.
fn taken(
    model: &Gpt,
    run: impl Fn() -> Result<burn::tensor::Gradients, rekindle::Error>,
) -> Result<Bytes, rekindle::Error> {
    let mut peak = Bytes::ZERO;
    for _ in 0..2 {
        rekindle::seed(1);
        rekindle::sweep();
        let before = memory::live().unwrap_or_default();
        memory::reset_peak();
        let gradients = GradientsParams::from_grads(run()?, model);
        peak = memory::peak().unwrap_or_default().saturating_sub(before);
        drop(gradients);
    }
    Ok(peak)
}
