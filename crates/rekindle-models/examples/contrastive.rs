//! A contrastive batch of thousands of pairs, in parts of some: the memory of a part, the gradient of the whole.
//!
//! ```text
//! cargo run --release -p rekindle-models --example contrastive               4,096 pairs in parts of 64
//! cargo run --release -p rekindle-models --example contrastive -- 256 16 32  256 in parts of 16, width 32
//! ```

#![allow(clippy::print_stdout, reason = "it is a program to read the output of")]

mod step;

use std::error::Error;

use burn::optim::GradientsParams;
use burn::tensor::Device;
use rekindle::memory::{self, CountingAllocator};
use rekindle::{Budget, Measuring, Planner, Rule, Staged, without_checkpointing};
use rekindle_models::data::{Captions, Source};
use rekindle_models::{Batch, TwoTowerConfig};
use step::{Step, watched};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::system();

/// The blocks of each tower.
const BLOCKS: usize = 3;
/// How often one part is timed.
const ROUNDS: usize = 9;
/// The most pairs that are compared with the batch at once.
const AT_ONCE: usize = 4_096;

fn main() -> Result<(), Box<dyn Error>> {
    let _ = memory::keep_freed();
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<usize>());
    let pairs = numbers.next().transpose()?.unwrap_or(4_096).max(1);
    let chunk = numbers.next().transpose()?.unwrap_or(64).clamp(1, pairs);
    let width = numbers.next().transpose()?.unwrap_or(64);
    let pairs = pairs - pairs % chunk;
    let device = Device::flex().autodiff();
    device.seed(1);
    let captions = Captions::default();
    let config =
        TwoTowerConfig::new(captions.pixels(), 4, Captions::VOCABULARY, Captions::TOKENS, width, 4, BLOCKS);
    let model = config.init(&device)?;
    let batch = captions.draw(pairs, &mut fastrand::Rng::with_seed(1), &device);
    let part = batch.slice(0..chunk);

    // A plan for half of what a part takes: measured on one part, good for all.
    let measured = rekindle::measure(
        &model,
        &part,
        Measuring { runs: 3, options: false, ..Measuring::default() },
        &mut |_, _| {},
    )?;
    let noise = measured.noise();
    let profile = measured.into_profile(model.name(), "flex")?;
    let planned = Planner::new(Budget::of_plain(0.5)?).profile(profile, noise).plan(&model, &part);

    // One part is through in no time: the median of several.
    let alone = |plain: bool| {
        let run = || model.step(&part, chunk, if plain { Rule::StoreAll } else { Rule::EVERY_ONE });
        let run = || Ok(if plain { without_checkpointing(run)? } else { run()? }.gradients);
        let mut steps = (0..ROUNDS).map(|_| watched(&model, run)).collect::<Result<Vec<_>, _>>()?;
        steps.sort_unstable_by_key(|step| step.time);
        Ok::<_, Box<dyn Error>>(steps.swap_remove(ROUNDS / 2))
    };
    let rule = |rule: Rule| watched(&model, || Ok(model.step(&batch, chunk, rule)?.gradients));
    // What is made when a thread works for the first time is made here.
    alone(false)?;

    println!("{pairs} pairs in parts of {chunk}, two towers of {BLOCKS} blocks of width {width}");
    println!("step                      peak         of plain  a pair     gradients");
    let plain = alone(true)?;
    let row = |name: &str, pairs: usize, found: &Step, expected: Option<&Step>| {
        println!(
            "{name:24}  {:11}  {:7.2}x  {:9.2?}  {}",
            found.peak.to_string(),
            found.peak.get() as f64 / plain.peak.get() as f64,
            found.time / u32::try_from(pairs).unwrap_or(u32::MAX).max(1),
            match expected.map(|expected| found.is_same_as(expected)) {
                None => "",
                Some(true) => "identical",
                Some(false) => "DIFFER",
            }
        );
    };
    row(&format!("{chunk}, plain"), chunk, &plain, None);
    row(&format!("{chunk}, every-1"), chunk, &alone(false)?, Some(&plain));
    let expected = rule(Rule::StoreAll)?;
    row(&format!("{pairs}, store-all"), pairs, &expected, None);
    row(&format!("{pairs}, every-1"), pairs, &rule(Rule::EVERY_ONE)?, Some(&expected));
    match planned {
        Ok(planned) => {
            let run = || Ok(model.step(&batch, chunk, &planned)?.gradients);
            row(&format!("{pairs}, optimal-50%"), pairs, &watched(&model, run)?, Some(&expected));
        }
        Err(refused) => println!("{:24}  {refused}", format!("{pairs}, optimal-50%")),
    }

    let some = batch.slice(0..pairs.min(AT_ONCE));
    let at_once = watched(&model, || {
        let loss = model.loss(&some, Rule::StoreAll)?;
        Ok(GradientsParams::from_grads(rekindle::backward(&loss)?, &model))
    })?;
    row(&format!("{} at once", some.examples()), some.examples(), &at_once, None);
    let in_parts = watched(&model, || Ok(model.step(&some, chunk, Rule::EVERY_ONE)?.gradients))?;
    row(&format!("{} in parts, every-1", some.examples()), some.examples(), &in_parts, None);
    println!(
        "{} in parts of {chunk} against at once: all gradients differ by {:.1e} of their length, the worst parameter by {:.1e}",
        some.examples(),
        relative(in_parts.gradients.iter().flatten(), at_once.gradients.iter().flatten()),
        worst(&in_parts, &at_once),
    );
    Ok(())
}

/// The length of the difference, of the length of what is expected.
fn relative<'a>(found: impl Iterator<Item = &'a f32>, expected: impl Iterator<Item = &'a f32>) -> f64 {
    let (mut error, mut length) = (0.0, 0.0);
    for (found, expected) in found.zip(expected) {
        let [found, expected] = [*found, *expected].map(f64::from);
        error += (found - expected).powi(2);
        length += expected.powi(2);
    }
    (error / length).sqrt()
}

/// That of the parameter which is furthest off. Where the gradient is zero but for rounding, as it is for the bias of keys,
/// there is nothing to compare.
fn worst(found: &Step, expected: &Step) -> f64 {
    let squares = |values: &[f32]| values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
    let whole: f64 = expected.gradients.iter().map(|values| squares(values)).sum();
    let both = found.gradients.iter().zip(&expected.gradients);
    let told = both.filter(|(_, expected)| squares(expected) > 1e-12 * whole);
    told.map(|(found, expected)| relative(found.iter(), expected.iter())).fold(0.0, f64::max)
}
