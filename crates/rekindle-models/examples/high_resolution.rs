//! Images of twice the side: four times the tokens of a Vision Transformer, in the memory of plain training on the small ones.
//!
//! ```text
//! cargo run --release -p rekindle-models --example high_resolution
//! cargo run --release -p rekindle-models --example high_resolution -- 32 4 64 8 8 1
//! ```
//!
//! The numbers are the side of the small images, how many there are, the width, the blocks, the side of a patch, and how often each step is run: 112, 8,
//! 192, 12, 16 and 3 if nobody says otherwise, which is ViT-Ti/16 on images of 112 and of 224 pixels along a side.

#![allow(clippy::print_stdout, reason = "it is a program to read the output of")]

use std::error::Error;
use std::time::{Duration, Instant};

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use rekindle::memory::{self, CountingAllocator};
use rekindle::{Budget, Bytes, Measuring, Planner, Rule, Staged, Under, without_checkpointing};
use rekindle_models::data::{Shapes, Source};
use rekindle_models::{ImageBatch, Trainable, Vit, VitConfig};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::system();

/// A step's gradients, the most bytes above those before it, and how long it took.
type Step = (Vec<Vec<u8>>, Bytes, Duration);

fn main() -> Result<(), Box<dyn Error>> {
    let _ = memory::keep_freed();
    let numbers = std::env::args().skip(1).map(|number| number.parse::<usize>());
    let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
    let number = |place: usize, usual: usize| numbers.get(place).copied().unwrap_or(usual);
    let (side, images, width) = (number(0, 112), number(1, 8), number(2, 192));
    let (layers, patch, rounds) = (number(3, 12), number(4, 16), number(5, 3).max(1));
    let small = VitConfig::new(side, patch, width, (width / 64).max(1), layers, 5);
    let large = VitConfig { side: 2 * side, ..small.clone() };

    println!("{images} images, {layers} blocks of {width}, patches of {patch} by {patch} pixels");
    println!("tokens  strategy                      peak        of small  step       gradients");
    let (model, batch) = made(&small, images)?;
    let run = |_| step(&model, &model, &batch, None);
    let steps = (0..=rounds).map(run).collect::<Result<Vec<_>, _>>()?;
    let of_small = steps[1..].iter().map(|step| step.1).max().unwrap_or_default();
    row(small.tokens(), "plain", of_small, &steps[0].0, &steps[1..]);
    drop((model, batch, steps));

    let (model, batch) = made(&large, images)?;
    let fine = model.fine();
    let run = |_| step(&model, &model, &batch, None);
    let steps = (0..=rounds).map(run).collect::<Result<Vec<_>, _>>()?;
    let expected = &steps[0].0;
    row(large.tokens(), "plain", of_small, expected, &steps[1..]);
    let run = |_| step(&model, &model, &batch, Some(Rule::EVERY_ONE.into()));
    let steps_of_rule = (0..rounds).map(run).collect::<Result<Vec<_>, _>>()?;
    row(large.tokens(), "every-1", of_small, expected, &steps_of_rule);
    let fits = [
        planned("blocks, budget of small", &model, &model, &batch, Budget::bytes(of_small), rounds)?,
        planned("parts, budget of small", &model, &fine, &batch, Budget::bytes(of_small), rounds)?,
        planned("blocks, smallest", &model, &model, &batch, Budget::smallest(), rounds)?,
        planned("parts, smallest", &model, &fine, &batch, Budget::smallest(), rounds)?,
    ];
    let mut least = None;
    for (name, found) in fits {
        match found {
            Ok(steps) => {
                let peak = row(large.tokens(), name, of_small, expected, &steps);
                least = Some(least.map_or(peak, |least: Bytes| least.min(peak)));
            }
            Err(refused) => println!("{:6}  {name:28}  {refused}", large.tokens()),
        }
    }
    let under = least.is_some_and(|least| least <= of_small);
    println!(
        "\n{} tokens under the peak of plain on {}: {}",
        large.tokens(),
        small.tokens(),
        if under { "yes" } else { "no" }
    );
    Ok(())
}

/// A model, and images of its size.
fn made(config: &VitConfig, images: usize) -> Result<(Vit, ImageBatch), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let shapes = Shapes::new(config.side)?;
    Ok((config.init(&device)?, shapes.draw(images, &mut fastrand::Rng::with_seed(1), &device)))
}

/// Steps under the optimal plan for a budget, or why there is none.
fn planned<'a, S: Staged<Batch = ImageBatch, Output = Tensor<1>>>(
    name: &'a str,
    model: &Vit,
    cut: &S,
    batch: &ImageBatch,
    budget: Budget,
    rounds: usize,
) -> Result<(&'a str, Result<Vec<Step>, rekindle::Error>), rekindle::Error> {
    let measuring = Measuring { runs: 2, ..Measuring::default() };
    let measured = rekindle::measure(cut, batch, measuring, &mut |_, _| {})?;
    let noise = measured.noise();
    let profile = measured.into_profile(cut.name(), "flex")?;
    let found = match Planner::new(budget).profile(profile, noise).plan(cut, batch) {
        Ok(planned) => {
            // The first step of a plan looks at each stage once more.
            step(model, cut, batch, Some((&planned).into()))?;
            (0..rounds).map(|_| step(model, cut, batch, Some((&planned).into()))).collect()
        }
        Err(refused) => Err(refused),
    };
    Ok((name, found))
}

/// Prints a line of the table, and gives the peak.
fn row(tokens: usize, name: &str, of_small: Bytes, expected: &[Vec<u8>], steps: &[Step]) -> Bytes {
    let mut times: Vec<Duration> = steps.iter().map(|step| step.2).collect();
    times.sort_unstable();
    let time = times.get(times.len() / 2).copied().unwrap_or_default();
    let peak = steps.iter().map(|step| step.1).max().unwrap_or_default();
    println!(
        "{tokens:6}  {name:28}  {:10}  {:7.0}%  {:9.2?}  {}",
        peak.to_string(),
        100.0 * peak.get() as f64 / of_small.get() as f64,
        time,
        if steps.iter().all(|step| step.0 == expected) { "identical" } else { "DIFFER" }
    );
    peak
}

fn step<S: Staged<Batch = ImageBatch, Output = Tensor<1>>>(
    model: &Vit,
    cut: &S,
    batch: &ImageBatch,
    under: Option<Under<'_>>,
) -> Result<Step, rekindle::Error> {
    rekindle::seed(1);
    rekindle::sweep();
    let before = memory::live().unwrap_or_default();
    memory::reset_peak();
    let start = Instant::now();
    let (region, images) = cut.stages(batch);
    let loss = match under {
        None => without_checkpointing(|| region.forward(images))?,
        Some(under) => region.under(under).forward(images)?,
    };
    let found = GradientsParams::from_grads(rekindle::backward(&loss)?, model);
    let time = start.elapsed();
    let peak = memory::peak().unwrap_or_default().saturating_sub(before);
    struct Collect<'a>(&'a GradientsParams, Vec<Vec<u8>>);
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = self.0.get::<D>(param.id).map(|gradient| gradient.into_data().as_bytes().to_vec());
            self.1.push(gradient.unwrap_or_default());
        }
    }
    let mut collect = Collect(&found, Vec::new());
    model.visit(&mut collect);
    Ok((collect.1, peak, time))
}
