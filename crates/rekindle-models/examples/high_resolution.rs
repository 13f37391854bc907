//! Images of twice the side: four times the tokens of a Vision Transformer, in the memory of plain training on the small ones.
//!
//! ```text
//! cargo run --release -p rekindle-models --example high_resolution
//! cargo run --release -p rekindle-models --example high_resolution -- 32 8 32 8 4 1
//! ```
//!
//! The numbers are the side of the small images, how many there are, the width, the blocks, the side of a patch, and how often
//! each step is run, the quickest of which counts: 112, 8, 192, 12, 16 and 2 if nobody says otherwise, which is ViT-Ti/16 on
//! images of 112 and of 224 pixels along a side.

#![allow(clippy::print_stdout, reason = "it is a program to read the output of")]

mod step;

use std::error::Error;

use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use rekindle::memory::{self, CountingAllocator};
use rekindle::{Budget, Bytes, Measuring, Planner, Rule, Staged, Under, without_checkpointing};
use rekindle_models::data::{Shapes, Source};
use rekindle_models::{ImageBatch, Trainable, Vit, VitConfig};
use step::{Step, watched};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::system();

fn main() -> Result<(), Box<dyn Error>> {
    let _ = memory::keep_freed();
    let numbers = std::env::args().skip(1).map(|number| number.parse::<usize>());
    let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
    let number = |place: usize, usual: usize| numbers.get(place).copied().unwrap_or(usual);
    let (side, images, width) = (number(0, 112), number(1, 8), number(2, 192));
    let (layers, patch, rounds) = (number(3, 12), number(4, 16), number(5, 2).max(1));
    let small = VitConfig::new(side, patch, width, (width / 64).max(1), layers, 5);
    let large = VitConfig { side: 2 * side, ..small.clone() };

    println!("{images} images, {layers} blocks of {width}, patches of {patch} by {patch} pixels");
    println!("tokens  strategy                 peak       of small  step      gradients");
    let (model, batch) = made(&small, images)?;
    let plain = steps(&model, &model, &batch, None, rounds + 1)?;
    let of_small = plain[1..].iter().map(|step| step.peak).max().unwrap_or_default();
    let table = Table { tokens: small.tokens(), of_small, expected: &plain[0] };
    table.row("plain", &plain[1..]);

    let (model, batch) = made(&large, images)?;
    // The first step makes the weights.
    let plain = steps(&model, &model, &batch, None, rounds + 1)?;
    let table = Table { tokens: large.tokens(), of_small, expected: &plain[0] };
    table.row("plain", &plain[1..]);
    table.row("every-1", &steps(&model, &model, &batch, Some(Rule::EVERY_ONE.into()), rounds)?);
    let blocks = table.plans("blocks", &model, &model, &batch, rounds)?;
    let parts = table.plans("parts", &model, &model.fine(), &batch, rounds)?;
    let least = blocks.into_iter().chain(parts).min();
    let answer = if least.is_some_and(|least| least <= of_small) { "yes" } else { "no" };
    println!("\n{} tokens under the peak of plain on {}: {answer}", large.tokens(), small.tokens());
    Ok(())
}

/// A model, and images of its size.
fn made(config: &VitConfig, images: usize) -> Result<(Vit, ImageBatch), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let shapes = Shapes::new(config.side)?;
    Ok((config.init(&device)?, shapes.draw(images, &mut fastrand::Rng::with_seed(1), &device)))
}

/// What steps on images of one size are compared with.
struct Table<'a> {
    tokens: usize,
    /// The peak of plain training on the small images.
    of_small: Bytes,
    expected: &'a Step,
}

impl Table<'_> {
    /// Measures a cut and runs its optimal plans, for the memory of the small images and for the least there is: their peaks.
    fn plans<S: Staged<Batch = ImageBatch, Output = Tensor<1>>>(
        &self,
        name: &str,
        model: &Vit,
        cut: &S,
        batch: &ImageBatch,
        rounds: usize,
    ) -> Result<Vec<Bytes>, rekindle::Error> {
        let measuring = Measuring { runs: 2, ..Measuring::default() };
        let measured = rekindle::measure(cut, batch, measuring, &mut |_, _| {})?;
        let noise = measured.noise();
        let profile = measured.into_profile(cut.name(), "flex")?;
        let mut peaks = Vec::new();
        let budgets = [("budget of small", Budget::bytes(self.of_small)), ("smallest", Budget::smallest())];
        for (kind, budget) in budgets {
            let name = format!("{name}, {kind}");
            match Planner::new(budget).profile(profile.clone(), noise).plan(cut, batch) {
                Ok(planned) => {
                    let steps = steps(model, cut, batch, Some((&planned).into()), rounds)?;
                    peaks.push(self.row(&name, &steps));
                }
                Err(refused) => println!("{:6}  {name:23}  {refused}", self.tokens),
            }
        }
        Ok(peaks)
    }

    /// Prints a line, and gives the peak.
    fn row(&self, name: &str, steps: &[Step]) -> Bytes {
        let time = steps.iter().map(|step| step.time).min().unwrap_or_default();
        let peak = steps.iter().map(|step| step.peak).max().unwrap_or_default();
        println!(
            "{:6}  {name:23}  {:9}  {:7.0}%  {time:8.2?}  {}",
            self.tokens,
            peak.to_string(),
            100.0 * peak.get() as f64 / self.of_small.get() as f64,
            if steps.iter().all(|step| step.is_same_as(self.expected)) { "identical" } else { "DIFFER" }
        );
        peak
    }
}

fn steps<S: Staged<Batch = ImageBatch, Output = Tensor<1>>>(
    model: &Vit,
    cut: &S,
    batch: &ImageBatch,
    under: Option<Under<'_>>,
    count: usize,
) -> Result<Vec<Step>, rekindle::Error> {
    (0..count).map(|_| step(model, cut, batch, under)).collect()
}

fn step<S: Staged<Batch = ImageBatch, Output = Tensor<1>>>(
    model: &Vit,
    cut: &S,
    batch: &ImageBatch,
    under: Option<Under<'_>>,
) -> Result<Step, rekindle::Error> {
    watched(model, || {
        let (region, images) = cut.stages(batch);
        let loss = match under {
            None => without_checkpointing(|| region.forward(images))?,
            Some(under) => region.under(under).forward(images)?,
        };
        Ok(GradientsParams::from_grads(rekindle::backward(&loss)?, model))
    })
}
