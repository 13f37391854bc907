//! `rekindle train`: the main job.

use std::time::Instant;

use burn::optim::AdamConfig;
use burn::tensor::Device;
use rekindle::{Bytes, Nanos};
use rekindle_models::Gpt;
use serde::Serialize;

use crate::arguments::TrainArguments;
use crate::corpus::{Batch, Corpus};
use crate::failure::Failure;
use crate::measure::{Comparison, build, compare, measured, median, step};
use crate::progress::{self, Progress};
use crate::report;
use crate::strategy::Strategy;
use crate::view::Limit;

/// How often training is compared with plain training at the end.
const ROUNDS: usize = 3;

#[derive(Serialize)]
struct Summary {
    model: String,
    strategy: String,
    steps: u32,
    first_loss: f32,
    last_loss: f32,
    tokens_per_second: f64,
    peak_bytes: Bytes,
    plain_peak_bytes: Bytes,
    step_ns: Nanos,
    plain_step_ns: Nanos,
    overhead: f64,
    gradients: Comparison,
}

/// Runs the command.
pub(crate) fn run(arguments: &TrainArguments) -> Result<(), Failure> {
    progress::check(arguments)?;
    let size = &arguments.size;
    let config = size.config(&[arguments.strategy])?;
    let rate = arguments.learning_rate;
    if !(rate.is_finite() && rate > 0.0) {
        return Err(Failure::request(
            anyhow::anyhow!("--learning-rate is {rate}, expected a number above 0"),
            "0.001 is a good start",
        ));
    }
    let mut corpus = Corpus::open(arguments.data.as_deref(), size.sequence, size.seed)?;
    let device = Device::flex().autodiff();
    let mut model = build(&config, &device, size.seed)?;
    let mut optimizer = AdamConfig::new().init();

    eprintln!("training {} with `{}`", size.describe(), arguments.strategy);
    let progress = Progress::start(arguments, arguments.strategy.to_string(), || {
        // From a batch of its own: the run must not notice that it is watched.
        let batch = Corpus::open(arguments.data.as_deref(), size.sequence, size.seed)?.batch(size, &device);
        let bytes = measured(&model, &batch, Strategy::Plain, size.seed)?.peak;
        Ok(Limit { name: "plain's peak", bytes })
    })?;
    let start = Instant::now();
    let mut losses = Vec::with_capacity(arguments.steps as usize);
    for number in 0..arguments.steps {
        progress.begin();
        let batch = corpus.batch(size, &device);
        // A seed for each step: dropout must not repeat itself, and a run must be repeatable.
        let seed = size.seed.wrapping_add(u64::from(number));
        let done = step(&model, &batch, arguments.strategy, seed)?;
        let loss = done.loss.into_scalar::<f32>();
        if !loss.is_finite() {
            progress.end(true);
            return Err(Failure::failed(
                anyhow::anyhow!("the loss is {loss} after {} steps", number + 1),
                format!("try a smaller --learning-rate than {rate}"),
            ));
        }
        losses.push(loss);
        let go_on = progress.ran(loss);
        model = optimizer.step(rate, model, done.gradients);
        if !go_on {
            break;
        }
    }
    progress.end(false);
    let seconds = start.elapsed().as_secs_f64();
    let steps = losses.len() as u32;
    if steps < arguments.steps {
        eprintln!("ended after {steps} of {} steps", arguments.steps);
    }
    let tokens = f64::from(steps) * (size.batch * size.sequence) as f64;

    let batch = corpus.batch(size, &device);
    let against = against_plain(&model, &batch, arguments.strategy, size.seed)?;
    let summary = Summary {
        model: size.describe(),
        strategy: arguments.strategy.to_string(),
        steps,
        first_loss: losses.first().copied().unwrap_or_default(),
        last_loss: median(&losses[losses.len().saturating_sub(5)..]).unwrap_or_default(),
        tokens_per_second: tokens / seconds,
        peak_bytes: against.ours.0,
        plain_peak_bytes: against.plain.0,
        step_ns: against.ours.1,
        plain_step_ns: against.plain.1,
        overhead: against.overhead,
        gradients: against.gradients,
    };
    match arguments.json {
        true => report::show_json(&summary)?,
        false => show(&summary)?,
    }
    Ok(())
}

/// Peak and median time of both, and how their gradients compare.
struct AgainstPlain {
    ours: (Bytes, Nanos),
    plain: (Bytes, Nanos),
    overhead: f64,
    gradients: Comparison,
}

/// Takes steps of the trained model in turns with plain training, from the same weights, batch and seed.
fn against_plain(model: &Gpt, batch: &Batch, strategy: Strategy, seed: u64) -> Result<AgainstPlain, Failure> {
    let bar = report::bar(2 * ROUNDS as u64, "comparing with plain training");
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    let (mut our_peak, mut plain_peak) = (Bytes::ZERO, Bytes::ZERO);
    let mut gradients = Comparison::default();
    for _ in 0..ROUNDS {
        let expected = measured(model, batch, Strategy::Plain, seed)?;
        bar.inc(1);
        let found = measured(model, batch, strategy, seed)?;
        bar.inc(1);
        gradients = compare(model, &expected.step, &found.step);
        plain.push(expected.time);
        ours.push(found.time);
        plain_peak = plain_peak.max(expected.peak);
        our_peak = our_peak.max(found.peak);
    }
    bar.finish_and_clear();
    let ratios: Vec<f64> = ours.iter().zip(&plain).map(|(ours, plain)| ours.ratio(*plain)).collect();
    Ok(AgainstPlain {
        ours: (our_peak, median(&ours).unwrap_or_default()),
        plain: (plain_peak, median(&plain).unwrap_or_default()),
        overhead: median(&ratios).unwrap_or(1.0) - 1.0,
        gradients,
    })
}

fn show(summary: &Summary) -> Result<(), Failure> {
    report::show(&format!(
        "trained {} steps of {}\nloss {:.3} -> {:.3}, {:.0} tokens/s\n",
        summary.steps, summary.model, summary.first_loss, summary.last_loss, summary.tokens_per_second
    ))?;
    let Comparison { identical, tensors, .. } = summary.gradients;
    let plain = [
        "plain".to_owned(),
        summary.plain_peak_bytes.to_string(),
        summary.plain_step_ns.to_string(),
        String::new(),
        String::new(),
    ];
    let ours = [
        summary.strategy.clone(),
        summary.peak_bytes.to_string(),
        summary.step_ns.to_string(),
        report::signed_percent(summary.overhead),
        report::yes_or(identical, tensors),
    ];
    let header = ["strategy", "peak", "step", "overhead", "gradients identical"];
    if summary.strategy == Strategy::Plain.to_string() {
        return report::show(&report::table(header, [plain]));
    }
    report::show(&report::table(header, [plain, ours]))?;
    let saved = summary.plain_peak_bytes.saturating_sub(summary.peak_bytes);
    report::show(&format!(
        "\nsaved {saved} of {} ({}) at the peak of a step\n\
         step: median of {ROUNDS}; overhead: median of {ROUNDS} pairs of steps, run in turns",
        summary.plain_peak_bytes,
        report::percent_of(saved, summary.plain_peak_bytes)
    ))
}
