//! A thousand layers: what checkpoints save of a residual network, and what they cost.
//!
//! ```text
//! cargo run --release -p rekindle-models --example very_deep             1,001 layers, four pictures of 32 by 32
//! cargo run --release -p rekindle-models --example very_deep -- 101 2 3  101 layers, two pictures, three rounds
//! ```
//!
//! Chen and others 2016 trained this network in 7 GB instead of 48, for 30% more time.

#![allow(clippy::print_stdout, reason = "it is a program to read the output of")]

mod step;

use std::error::Error;
use std::time::{Duration, Instant};

use burn::optim::GradientsParams;
use burn::tensor::{Device, Distribution, Int, Tensor};
use rekindle::memory::{self, CountingAllocator};
use rekindle::{Budget, Bytes, Measuring, Planner, Rule, Staged, Under, without_checkpointing};
use rekindle_models::{ImageBatch, ResNet, ResNetConfig, Trainable};
use step::{Step, watched};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::system();

fn main() -> Result<(), Box<dyn Error>> {
    let _ = memory::keep_freed();
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<usize>());
    let layers = numbers.next().transpose()?.unwrap_or(1_001);
    let batch = numbers.next().transpose()?.unwrap_or(4);
    let rounds = numbers.next().transpose()?.unwrap_or(3).max(1);
    let config = ResNetConfig::new(vec![layers.saturating_sub(2) / 9; 3], 10);
    let device = Device::flex().autodiff();
    device.seed(1);
    let net = config.init(&device)?;
    let images = Tensor::<4>::random([batch, 3, 32, 32], Distribution::Normal(0.0, 1.0), &device);
    let batch = ImageBatch { images, classes: Tensor::<1, Int>::zeros([batch], &device) };

    let expected = step(&net, &net, &batch, None)?;
    let plain = step(&net, &net, &batch, None)?.peak;
    let start = Instant::now();
    let measured = rekindle::measure(
        &net.fine(),
        &batch,
        Measuring { runs: 3, options: false, ..Measuring::default() },
        &mut |_, _| {},
    )?;
    let noise = measured.noise();
    let profile = measured.into_profile(net.name(), "flex")?;
    let plan =
        |budget: Budget| Planner::new(budget).profile(profile.clone(), noise).plan(&net.fine(), &batch);
    let part = |part: f64| Bytes::new((plain.get() as f64 * part) as u64);
    let plans = [
        ("optimal-50%", plan(Budget::bytes(part(0.5)))),
        ("optimal-25%", plan(Budget::bytes(part(0.25)))),
        ("optimal-15%", plan(Budget::bytes(part(0.15)))),
    ];
    println!("{} of {} layers, planned in {:.1?}", net.name(), config.depth(), start.elapsed());
    println!("strategy        peak         of plain  step       overhead  gradients");
    let rules = ["every-1", "every-4", "sqrt"];
    let mut runs: Vec<(&str, Box<Run<'_>>)> = vec![("plain", Box::new(|| step(&net, &net, &batch, None)))];
    for name in rules {
        let rule = name.parse::<Rule>()?;
        let (net, batch) = (&net, &batch);
        runs.push((name, Box::new(move || step(net, net, batch, Some(rule.into())))));
    }
    for (name, planned) in &plans {
        match planned {
            Ok(planned) => {
                runs.push((name, Box::new(|| step(&net, &net.fine(), &batch, Some(planned.into())))));
            }
            Err(refused) => println!("{name:14}  {refused}"),
        }
    }
    // In turns, so that a machine that slows down slows all of them down.
    let mut rows: Vec<Row> = runs.iter().map(|_| Row { same: true, ..Row::default() }).collect();
    for _ in 0..rounds {
        for ((_, run), row) in runs.iter().zip(&mut rows) {
            let step = run()?;
            row.times.push(step.time.as_secs_f64());
            row.peak = row.peak.max(step.peak);
            row.same &= step.is_same_as(&expected);
        }
    }
    for ((name, _), row) in runs.iter().zip(&rows) {
        let ratios = row.times.iter().zip(&rows[0].times).map(|(time, plain)| time / plain);
        println!(
            "{name:14}  {:11}  {:7.1}%  {:9.2?}  {:+7.1}%  {}",
            row.peak.to_string(),
            100.0 * row.peak.get() as f64 / plain.get() as f64,
            Duration::from_secs_f64(median(row.times.iter().copied())),
            100.0 * (median(ratios) - 1.0),
            if row.same { "identical" } else { "DIFFER" }
        );
    }
    Ok(())
}

/// What the steps of a strategy came to.
#[derive(Default)]
struct Row {
    /// In seconds, a round after the other.
    times: Vec<f64>,
    peak: Bytes,
    same: bool,
}

/// A step under some strategy.
type Run<'a> = dyn Fn() -> Result<Step, rekindle::Error> + 'a;

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn step<S: Staged<Batch = ImageBatch, Output = Tensor<1>>>(
    net: &ResNet,
    cut: &S,
    batch: &ImageBatch,
    under: Option<Under<'_>>,
) -> Result<Step, rekindle::Error> {
    watched(net, || {
        let (region, images) = cut.stages(batch);
        let loss = match under {
            None => without_checkpointing(|| region.forward(images))?,
            Some(under) => region.under(under).forward(images)?,
        };
        Ok(GradientsParams::from_grads(rekindle::backward(&loss)?, net))
    })
}
