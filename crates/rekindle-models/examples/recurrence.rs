//! A recurrence over ten thousand steps: what checkpoints save, by which schedule, and what they cost.
//!
//! ```text
//! cargo run --release -p rekindle-models --example recurrence               10,000 steps, a width of 32
//! cargo run --release -p rekindle-models --example recurrence -- 200 1 16   200 steps, one round, a width of 16
//! ```
//!
//! Then how peaks grow with the length, and what a truncated backward does not learn.

#![allow(clippy::print_stdout, reason = "it is a program to read the output of")]

mod step;

use std::error::Error;
use std::time::Instant;

use burn::module::Module;
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Tensor};
use rekindle::memory::{self, CountingAllocator};
use rekindle::{Budget, Bytes, Measuring, Planned, Planner, Rule, Staged, Under, without_checkpointing};
use rekindle_models::data::{Recall, Source};
use rekindle_models::{Batch, Recurrent, RecurrentConfig, SequenceBatch, Trainable};
use rekindle_plan::solvers::Solver;
use step::{Step, watched};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::system();

/// Steps of a fine stage: the same at every length, so that what one stage takes does not grow.
const FINE: usize = 10;
const CLASSES: usize = 4;
const EXAMPLES: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let _ = memory::keep_freed();
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<usize>());
    let steps = numbers.next().transpose()?.unwrap_or(10_000).max(16);
    let rounds = numbers.next().transpose()?.unwrap_or(2).max(1);
    let width = numbers.next().transpose()?.unwrap_or(32);
    strategies(steps, rounds, width)?;
    growth(steps, width)?;
    learning()
}

fn net(steps: usize, width: usize) -> Result<Recurrent, Box<dyn Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    // It remembers the whole sequence from the beginning: gradients do not vanish on the way.
    let config = RecurrentConfig::new(CLASSES, width, CLASSES);
    Ok(config.with_memory(Some(steps)).with_fine_steps(Some(FINE)).init(&device)?)
}

fn batch(steps: usize, examples: usize, seed: u64) -> Result<SequenceBatch, Box<dyn Error>> {
    let device = Device::flex().autodiff();
    Ok(Recall::new(CLASSES, steps)?.draw(examples, &mut fastrand::Rng::with_seed(seed), &device))
}

/// As many slots as the logarithm of the stages.
fn slots(steps: usize) -> u32 {
    (steps.div_ceil(FINE) + 1).ilog2() + 1
}

/// The plan of a solver that counts slots, in fine stages.
fn by_slots(net: &Recurrent, batch: &SequenceBatch, solver: Solver) -> Result<Planned, rekindle::Error> {
    let steps = batch.sequences.dims()[1];
    let planner =
        Planner::new(Budget::free()).measuring(Measuring { runs: 1, options: false, ..Measuring::default() });
    planner.solver(solver).slots(slots(steps)).plan(&net.fine(), batch)
}

/// Every strategy at one length.
fn strategies(steps: usize, rounds: usize, width: usize) -> Result<(), Box<dyn Error>> {
    let (net, batch) = (net(steps, width)?, batch(steps, EXAMPLES, 1)?);
    let root = steps.isqrt();
    let plain_step = || step(&net, || without_checkpointing(|| net.loss(&batch, Rule::StoreAll)));
    let first = plain_step()?;
    let plain = plain_step()?.peak;

    let start = Instant::now();
    let measured = rekindle::measure(
        &net,
        &batch,
        Measuring { runs: 3, options: false, ..Measuring::default() },
        &mut |_, _| {},
    )?;
    let noise = measured.noise();
    let profile = measured.into_profile(net.name(), "flex")?;
    let budget = Budget::bytes(Bytes::new(plain.get() / 10));
    let optimal = Planner::new(budget).profile(profile, noise).plan(&net, &batch);
    let revolve = by_slots(&net, &batch, Solver::Revolve)?;
    let online = by_slots(&net, &batch, Solver::Online)?;
    println!(
        "{steps} steps, {EXAMPLES} sequences, a width of {width}; {} fine stages, planned in {:.1?}\n",
        steps.div_ceil(FINE) + 1,
        start.elapsed()
    );

    let slots = slots(steps);
    let store_all = || step(&net, || net.loss(&batch, Rule::StoreAll));
    let truncated = || step(&net, || net.loss_truncated(&batch, root));
    let square_root = || step(&net, || net.loss(&batch, Rule::EVERY_ONE));
    let by_revolve = || fine(&net, &batch, (&revolve).into());
    let by_online = || fine(&net, &batch, (&online).into());
    let mut rows: Vec<(String, Run<'_>)> = vec![
        ("plain".to_owned(), Box::new(plain_step)),
        ("all kept, by stage".to_owned(), Box::new(store_all)),
        (format!("truncated, last {root}"), Box::new(truncated)),
        ("square root".to_owned(), Box::new(square_root)),
    ];
    match &optimal {
        Ok(planned) => {
            let (net, batch) = (&net, &batch);
            let run = move || step(net, || net.loss(batch, planned));
            rows.push(("optimal, 10% of plain".to_owned(), Box::new(run)));
        }
        Err(refused) => println!("optimal, 10% of plain: {refused}\n"),
    }
    rows.push((format!("revolve, {slots} slots"), Box::new(by_revolve)));
    rows.push((format!("online, {slots} slots"), Box::new(by_online)));

    // In turns, so that a busy machine is busy for all of them.
    let mut runs: Vec<Vec<Step>> = rows.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for ((_, run), steps) in rows.iter().zip(&mut runs) {
            steps.push(run()?);
        }
    }
    let fastest = |steps: &[Step]| steps.iter().map(|step| step.time).min().unwrap_or_default();
    // Burn's backward takes longer than in proportion to the length of a tape. That is no merit of a plan's: what runs
    // nothing twice is the measure, in whichever way it is faster.
    let base = fastest(&runs[0]).min(fastest(&runs[1]));
    println!("strategy                peak         of plain  step       overhead  gradients");
    for ((name, _), steps) in rows.iter().zip(&runs) {
        let time = fastest(steps);
        let peak = steps.iter().map(|step| step.peak).max().unwrap_or_default();
        println!(
            "{name:22}  {:11}  {:7.1}%  {:9.2?}  {:+7.1}%  {}",
            peak.to_string(),
            100.0 * peak.get() as f64 / plain.get() as f64,
            time,
            100.0 * (time.as_secs_f64() / base.as_secs_f64() - 1.0),
            match steps.iter().all(|step| step.is_same_as(&first)) {
                true => "identical".to_owned(),
                false => format!("{:.0}% off", 100.0 * off(&steps[0].gradients, &first.gradients)),
            }
        );
    }
    Ok(())
}

/// A way to run a step.
type Run<'a> = Box<dyn Fn() -> Result<Step, rekindle::Error> + 'a>;

/// How much more four times the length takes.
fn growth(longest: usize, width: usize) -> Result<(), Box<dyn Error>> {
    println!("\nsteps     square root: peak  revolve: slots  predicted    peak");
    for steps in [longest / 16, longest / 4, longest] {
        let (net, batch) = (net(steps, width)?, batch(steps, EXAMPLES, 1)?);
        let root = step(&net, || net.loss(&batch, Rule::EVERY_ONE))?.peak;
        let planned = by_slots(&net, &batch, Solver::Revolve)?;
        let revolve = fine(&net, &batch, (&planned).into())?.peak;
        println!(
            "{steps:<8}  {:17}  {:<14}  {:11}  {revolve}",
            root.to_string(),
            slots(steps),
            planned.plan().predicted.peak_bytes.to_string()
        );
    }
    Ok(())
}

/// What is learned of a symbol in the first three of fifty steps.
fn learning() -> Result<(), Box<dyn Error>> {
    const LENGTH: usize = 50;
    println!("\nto remember over {LENGTH} steps    first loss  last loss  right of what was not seen");
    let truncated = |net: &Recurrent, batch: &SequenceBatch| net.loss_truncated(batch, 10);
    let exact = |net: &Recurrent, batch: &SequenceBatch| net.loss(batch, Rule::EVERY_ONE);
    type Loss<'a> = &'a dyn Fn(&Recurrent, &SequenceBatch) -> Result<Tensor<1>, rekindle::Error>;
    let ways: [(&str, Loss<'_>); 2] = [("square root", &exact), ("truncated, last 10", &truncated)];
    for (name, loss) in ways {
        let device = Device::flex().autodiff();
        device.seed(3);
        let mut net = RecurrentConfig::new(CLASSES, 16, CLASSES).with_memory(Some(LENGTH)).init(&device)?;
        let mut optimizer = AdamConfig::new().init();
        let mut losses = Vec::new();
        for number in 0..120 {
            let loss = loss(&net, &batch(LENGTH, 16, 100 + number)?)?;
            let found = GradientsParams::from_grads(rekindle::backward(&loss)?, &net);
            net = optimizer.step(1e-2, net, found);
            losses.push(loss.into_scalar::<f32>());
        }
        let unseen = batch(LENGTH, 256, 7)?.to_device(&Device::flex());
        println!(
            "{name:28}  {:10.2}  {:9.2}  {:.0}%",
            losses.first().copied().unwrap_or_default(),
            losses.last().copied().unwrap_or_default(),
            100.0 * net.valid().accuracy(&unseen)?
        );
    }
    Ok(())
}

fn fine(net: &Recurrent, batch: &SequenceBatch, under: Under<'_>) -> Result<Step, rekindle::Error> {
    step(net, || {
        let (region, state) = net.fine().stages(batch);
        region.under(under).forward(state)
    })
}

fn step(
    net: &Recurrent,
    loss: impl FnOnce() -> Result<Tensor<1>, rekindle::Error>,
) -> Result<Step, rekindle::Error> {
    watched(net, || Ok(GradientsParams::from_grads(rekindle::backward(&loss()?)?, net)))
}

/// How far gradients are off, as a part of the right ones.
fn off(found: &[Vec<f32>], right: &[Vec<f32>]) -> f64 {
    let pairs = || found.iter().flatten().zip(right.iter().flatten());
    let squares = |of: &dyn Fn(f32, f32) -> f32| -> f64 {
        pairs().map(|(found, right)| f64::from(of(*found, *right)).powi(2)).sum::<f64>().sqrt()
    };
    squares(&|found, right| found - right) / squares(&|_, right| right)
}
