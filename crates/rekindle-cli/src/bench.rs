//! `rekindle bench`: every strategy side by side.

use burn::tensor::Device;
use rekindle::{Bytes, Nanos};
use serde::Serialize;

use crate::arguments::BenchArguments;
use crate::corpus::Corpus;
use crate::failure::Failure;
use crate::measure::{Measured, build, compare, measured, median, step};
use crate::report;
use crate::strategy::Strategy;

#[derive(Serialize)]
struct Bench {
    model: String,
    rounds: u32,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    strategy: String,
    /// The most bytes above those before the step.
    peak_bytes: Bytes,
    /// The median.
    step_ns: Nanos,
    /// The median, over the rounds, of the step's time over plain's in the same round, less one.
    overhead: f64,
    /// Whether loss and all gradients have the same bytes as plain's.
    identical: bool,
}

/// What the rounds of one strategy came to.
#[derive(Default)]
struct Rounds {
    times: Vec<Nanos>,
    peak: Bytes,
    identical: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: &BenchArguments) -> Result<(), Failure> {
    let bench = bench(arguments)?;
    match arguments.json {
        true => report::show_json(&bench)?,
        false => show(&bench)?,
    }
    match bench.rows.iter().find(|row| !row.identical) {
        None => Ok(()),
        Some(row) => Err(Failure::failed(
            anyhow::anyhow!("the gradients of `{}` differ from plain training", row.strategy),
            "`rekindle verify` tells by how much",
        )),
    }
}

fn bench(arguments: &BenchArguments) -> Result<Bench, Failure> {
    let size = &arguments.size;
    let config = size.config(&arguments.strategies)?;
    let device = Device::flex().autodiff();
    let model = build(&config, &device, size.seed)?;
    let batch = Corpus::open(None, size.sequence, size.seed)?.batch(size, &device);
    let mut strategies = vec![Strategy::Plain];
    for strategy in &arguments.strategies {
        if !strategies.contains(strategy) {
            strategies.push(*strategy);
        }
    }
    // The first steps warm the machine up.
    let expected = step(&model, &batch, Strategy::Plain, size.seed)?;
    for strategy in &strategies {
        step(&model, &batch, *strategy, size.seed)?;
    }
    let mut rounds: Vec<Rounds> = strategies.iter().map(|_| Rounds::default()).collect();
    let bar = report::bar(u64::from(arguments.rounds) * strategies.len() as u64, "measuring");
    for round in 0..arguments.rounds {
        // In turns, so that a machine that slows down slows all of them down.
        for (strategy, rounds) in strategies.iter().zip(&mut rounds) {
            bar.set_message(strategy.to_string());
            let Measured { step, peak, time } = measured(&model, &batch, *strategy, size.seed)?;
            rounds.times.push(time);
            rounds.peak = rounds.peak.max(peak);
            let identical = compare(&model, &expected, &step).all_identical();
            rounds.identical = identical && (round == 0 || rounds.identical);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let plain = rounds.first().map(|rounds| rounds.times.clone()).unwrap_or_default();
    let rows = strategies.iter().zip(rounds).map(|(strategy, rounds)| {
        let ratios = rounds.times.iter().zip(&plain).map(|(time, plain)| time.ratio(*plain));
        Row {
            strategy: strategy.to_string(),
            peak_bytes: rounds.peak,
            step_ns: median(&rounds.times).unwrap_or_default(),
            overhead: median(&ratios.collect::<Vec<_>>()).unwrap_or(1.0) - 1.0,
            identical: rounds.identical,
        }
    });
    Ok(Bench { model: size.describe(), rounds: arguments.rounds, rows: rows.collect() })
}

fn show(bench: &Bench) -> Result<(), Failure> {
    let plain = bench.rows.first().map(|row| row.peak_bytes).unwrap_or_default();
    let rows = bench.rows.iter().map(|row| {
        [
            row.strategy.clone(),
            row.peak_bytes.to_string(),
            report::percent_of(row.peak_bytes, plain),
            row.step_ns.to_string(),
            report::signed_percent(row.overhead),
            if row.identical { "identical" } else { "DIFFERENT" }.to_owned(),
        ]
    });
    let header = ["strategy", "peak", "of plain", "step", "overhead", "gradients"];
    report::show(&format!("{}\n", bench.model))?;
    report::show(&report::table(header, rows))?;
    report::show(&format!(
        "\npeak: the most bytes above those before the step; step and overhead: medians of {}",
        bench.rounds
    ))
}
