//! A model that does not fit, trained in the memory there is.
//!
//! ```text
//! cargo run --release -p rekindle-models --example fit            24 blocks in a quarter of what they take
//! cargo run --release -p rekindle-models --example fit -- 8 64 30 8 blocks of width 64, in 30% of it
//! ```

#![allow(clippy::print_stdout, reason = "it is a program to read the output of")]

use std::error::Error;

use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::Device;
use rekindle::memory::{self, CountingAllocator};
use rekindle::{Budget, Bytes, Planner, Rule, without_checkpointing};
use rekindle_models::data::{Source, Text};
use rekindle_models::{Gpt, GptConfig, Trainable};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::system();

fn main() -> Result<(), Box<dyn Error>> {
    let _ = memory::keep_freed();
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<usize>());
    let layers = numbers.next().transpose()?.unwrap_or(24);
    let width = numbers.next().transpose()?.unwrap_or(128);
    let percent = numbers.next().transpose()?.unwrap_or(25);
    let device = Device::flex().autodiff();
    device.seed(1);
    let mut model = GptConfig::new(Text::VOCABULARY, width, 4, layers, 128).init(&device)?;
    let text = Text::new(include_str!("../src/lib.rs").repeat(20).into_bytes(), 128)?;
    let mut random = fastrand::Rng::with_seed(1);
    let sample = text.draw(4, &mut random, &device);

    // What plain training takes. Where it really does not fit, `Budget::of_plain` predicts it from single stages.
    let plain = peak(|| without_checkpointing(|| step(&model, || model.loss(&sample, Rule::StoreAll))))?;
    let budget = Bytes::new(plain.get() * percent as u64 / 100);
    println!("plain training takes {plain}; there are {budget}");

    // Measures the stages one by one, plans them, and refuses a budget that no plan keeps, naming the smallest.
    let model_in_parts = model.fine();
    let planned = Planner::new(Budget::bytes(budget)).plan(&model_in_parts, &sample)?;
    let predicted = planned.plan().predicted;
    println!(
        "planned ({}): {} at the peak, {:+.1}% step time",
        planned.plan().status,
        predicted.peak_bytes,
        100.0 * (predicted.step_ns.ratio(planned.profile().lower_bound()) - 1.0)
    );

    let mut optimizer = AdamConfig::new().init();
    for number in 1..=10 {
        let batch = text.draw(4, &mut random, &device);
        let mut loss = None;
        let taken = peak(|| {
            step(&model, || planned.forward(&model.fine(), &batch)).map(|(value, gradients)| {
                loss = Some((value, gradients));
            })
        })?;
        let Some((value, gradients)) = loss else { continue };
        println!("step {number:2}: loss {value:.3}, {taken} at the peak");
        if taken > budget {
            return Err(format!("{taken} is more than {budget}").into());
        }
        model = optimizer.step(1e-3, model, gradients);
    }
    Ok(())
}

/// The loss and the gradients.
fn step(
    model: &Gpt,
    loss: impl FnOnce() -> Result<burn::tensor::Tensor<1>, rekindle::Error>,
) -> Result<(f32, GradientsParams), rekindle::Error> {
    let loss = loss()?;
    let gradients = GradientsParams::from_grads(rekindle::backward(&loss)?, model);
    Ok((loss.into_scalar::<f32>(), gradients))
}

/// The most bytes above those before.
fn peak<T>(run: impl FnOnce() -> Result<T, rekindle::Error>) -> Result<Bytes, rekindle::Error> {
    rekindle::sweep();
    let before = memory::live().unwrap_or_default();
    memory::reset_peak();
    let made = run()?;
    let peak = memory::peak().unwrap_or_default().saturating_sub(before);
    drop(made);
    Ok(peak)
}
