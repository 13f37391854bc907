//! `rekindle bench`: every strategy side by side.

use std::time::Instant;

use rekindle::{Bytes, Measuring, Nanos, Places};
use serde::Serialize;

use crate::arguments::BenchArguments;
use crate::cut::Cut;
use crate::failure::Failure;
use crate::measure::{Beside, Measured, Pooled, Step, build, compare, measured, median, step};
use crate::models::{DataArguments, Job, Kind, with_model};
use crate::nodes;
use crate::places::{suffix, tell_faults};
use crate::planning::{self, Knowledge, Planning};
use crate::report;
use crate::size::{For, Size};
use crate::strategy::{Ready, Strategy};
use crate::transfers::Transfers;

#[derive(Serialize)]
struct Bench {
    model: String,
    rounds: u32,
    /// How long measuring the stages and making all plans took, before anything ran under one.
    planning_ns: Nanos,
    /// How far the runs of a stage lay apart while it was measured, as a part of its time.
    noise: f64,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    strategy: String,
    /// The most bytes above those before the step, in the median.
    peak_bytes: Bytes,
    /// The same of the round that took most. A budget is held against this one.
    most_bytes: Bytes,
    /// The steps that were looked at, where the device has a pool of its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pool: Vec<Pooled>,
    /// The median.
    step_ns: Nanos,
    /// The median, over the rounds, of the step's time over plain's in the same round, less one.
    overhead: f64,
    /// The fastest step over plain's fastest, less one: what is left of the overhead on a machine that others use, too,
    /// once there were rounds enough to find it idle.
    overhead_of_fastest: f64,
    /// Whether loss and all gradients have the same bytes as plain's; for `burn`, as its own of another step.
    identical: bool,
    /// The codecs of its plan that lose digits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lossy: Vec<String>,
    /// The length of the difference of all gradients from plain's, over theirs.
    relative_error: f64,
    /// What a step moved, for plans that use places.
    #[serde(skip_serializing_if = "Option::is_none")]
    transfers: Option<Transfers>,
    /// What the plan may take, for strategies with a budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    budget_bytes: Option<Bytes>,
    /// What the simulator says the peak is, for strategies that run a plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted_peak_bytes: Option<Bytes>,
    /// What a part of the batch keeps from its forward to its backward, for strategies that run a plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_bytes: Option<Bytes>,
    /// What the simulator says the step takes longer than all blocks once forth and back, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted_overhead: Option<f64>,
}

impl Row {
    /// What the pool of the device had taken after a step, in the median.
    fn reserved(&self) -> Option<Bytes> {
        median(&self.pool.iter().map(|pool| pool.reserved_bytes).collect::<Vec<_>>())
    }
}

/// What is run in every round.
struct Run<M> {
    name: String,
    ready: Ready,
    /// A model of its own, and what its step is to come to.
    other: Option<(M, Step)>,
}

/// What the rounds of one strategy came to.
#[derive(Default)]
struct Rounds {
    times: Vec<Nanos>,
    peaks: Vec<Bytes>,
    pool: Vec<Pooled>,
    identical: bool,
    error: f64,
}

/// Runs the command.
pub(crate) fn run(arguments: &BenchArguments) -> Result<(), Failure> {
    if arguments.nodes {
        arguments.on.refuse_with(
            "--nodes",
            true,
            "leave one of the two out: our nodes have kernels for the processor",
        )?;
        return nodes::run(arguments);
    }
    let size = &arguments.size.size(For::Figures)?;
    let bench = with_model(size, &DataArguments::default(), Benchmark { arguments, size })?;
    match arguments.json {
        true => report::show_json(&bench)?,
        false => show(&bench)?,
    }
    if let Some(row) = bench.rows.iter().find(|row| !row.identical && row.lossy.is_empty()) {
        return Err(Failure::failed(
            anyhow::anyhow!("the gradients of `{}` differ from plain training", row.strategy),
            "`rekindle verify` tells by how much",
        ));
    }
    // A budget is never exceeded: where it was, that is no success.
    match bench
        .rows
        .iter()
        .find_map(|row| Some((row, row.budget_bytes.filter(|budget| row.most_bytes > *budget)?)))
    {
        None => Ok(()),
        Some((row, budget)) => Err(Failure::failed(
            anyhow::anyhow!(
                "a step of `{}` took {} at its peak, but the budget is {budget}",
                row.strategy,
                row.most_bytes
            ),
            "measure again with nothing else running, or give a larger --margin",
        )),
    }
}

struct Benchmark<'a> {
    arguments: &'a BenchArguments,
    size: &'a Size,
}

impl Job for Benchmark<'_> {
    type Made = Bench;

    fn run<K: Kind>(self, kind: &K) -> Result<Bench, Failure> {
        bench(self.arguments, self.size, kind)
    }
}

fn bench<K: Kind>(arguments: &BenchArguments, size: &Size, kind: &K) -> Result<Bench, Failure> {
    let device = arguments.on.open()?;
    Size::check_room(kind, &arguments.strategies)?;
    let cut = size.cutting(arguments.cut)?;
    let model = build(kind, &device, size.seed)?;
    let batch = kind.data().seeded(size.seed).batch(size, &device);
    let places = arguments.places.open()?;
    let mut strategies = vec![Strategy::Plain];
    let policies = arguments.policy.iter().cloned().map(Strategy::Policy).collect::<Vec<_>>();
    for strategy in arguments.strategies.iter().chain(&policies) {
        // With Burn's modules alone, plain is what `burn` would be.
        let again = size.burn && *strategy == Strategy::Burn;
        if !strategies.contains(strategy) && !again {
            strategies.push(strategy.clone());
        }
    }
    crate::meter::make_scratch();
    // The first steps warm the machine up.
    step(&model, &batch, &Ready::Plain, size.recipe())?;
    let Measured { step: expected, peak, .. } = measured(&model, &batch, &Ready::Plain, size.recipe())?;
    let mut of_burn = None;
    // Of models that are made of Burn's modules anyway there is no other.
    let burns = kind.of_burns_modules();
    strategies.retain(|strategy| *strategy != Strategy::Burn || burns.is_some());
    if let Some(burns) = burns.filter(|_| strategies.contains(&Strategy::Burn)) {
        let model = build(&burns, &device, size.seed)?;
        let expected = measured(&model, &batch, &Ready::Plain, size.recipe())?.step;
        of_burn = Some((model, expected));
    }
    let beside = batch.beside(&model)?;
    let Beside { held, alone } = beside;
    let with_held = |bytes: Bytes| beside.with(bytes);
    let start = Instant::now();
    let nowhere = Places::new();
    let planning = Planning {
        margin: arguments.margin,
        plain: Some(peak),
        held,
        alone,
        cache: None,
        places: &nowhere,
        flag: "optimal-",
    };
    let mut known = Knowledge::default();
    if strategies.iter().any(|strategy| matches!(strategy, Strategy::Rule(_))) {
        known.blocks = Some(planning::measure(Cut::Blocks.of(&model), batch.part(), Measuring::steady())?);
    }
    let mut runs = Vec::with_capacity(strategies.len());
    let mut without_plan = Vec::new();
    for strategy in &strategies {
        if *strategy == Strategy::Burn {
            runs.push(Run { name: strategy.to_string(), ready: Ready::Plain, other: of_burn.take() });
            continue;
        }
        let mut add = |name: String, planning| {
            match planning::ready(strategy, &model, cut, batch.part(), &mut known, planning) {
                Ok(ready) => runs.push(Run { name, ready, other: None }),
                // A model that is too small for one budget is no reason not to measure the others.
                Err(failure) if failure.smallest_budget().is_some() => without_plan.push((name, failure)),
                Err(failure) => return Err(failure),
            }
            Ok::<_, Failure>(())
        };
        // A policy says itself what goes where.
        let named = matches!(strategy, Strategy::Policy(_));
        add(strategy.to_string(), Planning { places: if named { &places } else { &nowhere }, ..planning })?;
        // Beside the plan that recomputes alone, to compare with.
        if matches!(strategy, Strategy::Optimal(_)) && !places.is_empty() {
            add(format!("{strategy}{}", suffix(&places)), Planning { places: &places, ..planning })?;
        }
    }
    for (name, failure) in without_plan {
        if runs.len() == 1 {
            // There is plain training alone to measure, which nobody asked for.
            return Err(failure);
        }
        tell!("`{name}` is left out: {failure}");
    }
    let planning_ns = start.elapsed().into();
    for Run { ready, other, .. } in &runs {
        step(other.as_ref().map_or(&model, |other| &other.0), &batch, ready, size.recipe())?;
    }
    let mut rounds: Vec<Rounds> = runs.iter().map(|_| Rounds::default()).collect();
    let bar = report::bar(u64::from(arguments.rounds) * runs.len() as u64, "measuring");
    for round in 0..arguments.rounds {
        // In turns, so that a machine that slows down slows all of them down.
        for (run, rounds) in runs.iter().zip(&mut rounds) {
            bar.set_message(run.name.clone());
            let (model, expected) =
                run.other.as_ref().map_or((&model, &expected), |(model, expected)| (model, expected));
            let Measured { step, peak, time, pool } = measured(model, &batch, &run.ready, size.recipe())?;
            rounds.times.push(time);
            rounds.peaks.push(peak);
            rounds.pool.extend(pool);
            let comparison = compare(model, expected, &step);
            rounds.identical = comparison.all_identical() && (round == 0 || rounds.identical);
            rounds.error = rounds.error.max(comparison.relative_error);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let plain = rounds.first().map(|rounds| rounds.times.clone()).unwrap_or_default();
    let mut transfers = Vec::with_capacity(runs.len());
    for Run { ready, .. } in &runs {
        transfers.push(Transfers::measure(&model, &batch, ready, size.recipe())?);
    }
    tell_faults(&places);
    let rows =
        runs.iter().zip(rounds).zip(transfers).map(|((Run { name, ready, .. }, rounds), transfers)| {
            let profile = match ready {
                Ready::Planned(planned, _) => Some(planned.profile()),
                _ => known.blocks.as_ref().map(|known| &known.profile),
            };
            let predicted = profile.and_then(|profile| ready.predicted(profile));
            let ratios = rounds.times.iter().zip(&plain).map(|(time, plain)| time.ratio(*plain));
            Row {
                strategy: name.clone(),
                transfers,
                lossy: ready.lossy_codecs(),
                relative_error: rounds.error,
                peak_bytes: median(&rounds.peaks).unwrap_or_default(),
                most_bytes: rounds.peaks.iter().copied().max().unwrap_or_default(),
                pool: rounds.pool,
                step_ns: median(&rounds.times).unwrap_or_default(),
                overhead: median(&ratios.collect::<Vec<_>>()).unwrap_or(1.0) - 1.0,
                overhead_of_fastest: match rounds.times.iter().min().zip(plain.iter().min()) {
                    Some((fastest, plain)) => fastest.ratio(*plain) - 1.0,
                    None => 0.0,
                },
                identical: rounds.identical,
                budget_bytes: ready.budget_bytes().map(with_held),
                predicted_peak_bytes: predicted
                    .map(|predicted| with_held(ready.expected_peak(&predicted, known.blocks.as_ref()))),
                kept_bytes: profile.and_then(|profile| ready.kept_bytes(profile)),
                predicted_overhead: predicted
                    .zip(known.blocks.as_ref().map(|known| &known.profile).or(profile))
                    .map(|(predicted, profile)| predicted.step_ns.ratio(profile.lower_bound()) - 1.0),
            }
        });
    Ok(Bench {
        model: size.describe(kind),
        rounds: arguments.rounds,
        planning_ns,
        noise: known.iter().map(|known| known.noise).fold(0.0, f64::max),
        rows: rows.collect(),
    })
}

fn show(bench: &Bench) -> Result<(), Failure> {
    let plain = bench.rows.first().map(|row| row.peak_bytes).unwrap_or_default();
    let rows = bench.rows.iter().map(|row| {
        [
            row.strategy.clone(),
            row.budget_bytes.map_or_else(String::new, |budget| budget.to_string()),
            row.peak_bytes.to_string(),
            report::percent_of(row.peak_bytes, plain),
            row.predicted_peak_bytes.map_or_else(String::new, |peak| {
                report::signed_percent(row.peak_bytes.get() as f64 / peak.get().max(1) as f64 - 1.0)
            }),
            row.step_ns.to_string(),
            report::signed_percent(row.overhead),
            match (row.identical, row.lossy.is_empty()) {
                (true, _) => "identical".to_owned(),
                (false, true) => "DIFFERENT".to_owned(),
                (false, false) => format!("off by {:.2}%", row.relative_error * 100.0),
            },
        ]
    });
    let header = ["strategy", "budget", "peak", "of plain", "off by", "step", "overhead", "gradients"];
    report::show(&format!("{}\n", bench.model))?;
    report::show(&report::table(header, rows))?;
    report::show(&format!(
        "\npeak: the most bytes above those before the step; off by: how far from what was predicted; all of them medians \
         of {}\nmeasuring the stages and planning took {}, {:.1} plain steps; the times of a stage lay up to \
         {:.0}% apart",
        bench.rounds,
        bench.planning_ns,
        bench.planning_ns.ratio(bench.rows.first().map(|row| row.step_ns).unwrap_or_default()),
        bench.noise * 100.0
    ))?;
    if let Some(plain) = bench.rows.first().and_then(Row::reserved) {
        let rows = bench.rows.iter().map(|row| {
            let reserved = row.reserved().unwrap_or_default();
            [row.strategy.clone(), reserved.to_string(), report::percent_of(reserved, plain)]
        });
        report::show(&format!("\n{}", report::table(["strategy", "reserved", "of plain"], rows)))?;
        report::show(
            "\nreserved: all that the device's pool had taken after a step, weights included; the peaks above are the most \
             bytes of it that were seen in use, a lower bound",
        )?;
    }
    for row in &bench.rows {
        if let Some(transfers) = &row.transfers {
            report::show(&format!("{}: {transfers}", row.strategy))?;
        }
    }
    Ok(())
}
