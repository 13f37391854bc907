//! `rekindle train`: the main job.

use std::path::Path;
use std::time::Instant;

use burn::optim::AdamConfig;
use burn::tensor::Device;
use rekindle::training::{LossScale, Precision, clip_by_norm};
use rekindle::{Bytes, Fault, Measuring, Nanos, Plan, Planned};
use rekindle_models::data::Source;
use rekindle_models::{Batch, Trainable};
use serde::Serialize;

use crate::adaptive::Adaptive;
use crate::amount::Target;
use crate::arguments::{Scaling, TrainArguments};
use crate::cut::Cut;
use crate::data::Data;
use crate::failure::{self, Failure};
use crate::measure::{Beside, Comparison, Parts, Recipe, build, compare, measured, median, step};
use crate::models::{Job, Kind, with_model};
use crate::planning::{self, Knowledge, Known, Planning};
use crate::progress::{self, Progress, Rate};
use crate::saving::{Identity, Saving};
use crate::size::{For, Size};
use crate::strategy::{Ready, Strategy};
use crate::totals::{Totals, held_by_training, parameter_bytes};
use crate::transfers::Transfers;
use crate::view::Limit;
use crate::{files, meter, ranks, report, timeline};

/// How often training is compared with plain training at the end.
const ROUNDS: usize = 3;

#[derive(Serialize)]
struct Summary {
    model: String,
    strategy: String,
    steps: u32,
    first_loss: f32,
    last_loss: f32,
    examples_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_per_second: Option<f64>,
    /// What people read of it: what is counted, such as tokens, and how many in a second.
    #[serde(skip)]
    units: &'static str,
    #[serde(skip)]
    pace: f64,
    /// What was learned, told by examples that were held out.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_out: Option<Learned>,
    peak_bytes: Bytes,
    /// The highest peak of those that [`peak_bytes`](Self::peak_bytes) is the median of. A budget is held against this one.
    most_bytes: Bytes,
    plain_peak_bytes: Bytes,
    step_ns: Nanos,
    plain_step_ns: Nanos,
    overhead: f64,
    gradients: Comparison,
    /// What the plan may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    budget_bytes: Option<Bytes>,
    /// What the simulator said before the first step.
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted: Option<Prediction>,
    /// How long measuring the stages and planning took.
    #[serde(skip_serializing_if = "Option::is_none")]
    planning_ns: Option<Nanos>,
    /// How often the plan changed while training, when it may.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan_changes: Option<u32>,
    /// What a step moved, for a plan that uses places.
    #[serde(skip_serializing_if = "Option::is_none")]
    transfers: Option<Transfers>,
    precision: Precision,
    /// How many parts a batch was taken in.
    micro_batches: usize,
    /// How the loss was scaled at the end, and what was left out, where that could happen.
    #[serde(skip_serializing_if = "Option::is_none")]
    scaling: Option<Scaled>,
    /// What clipping did, when it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    clipping: Option<Clipping>,
    totals: Totals,
}

/// What became of the loss scale.
#[derive(Serialize)]
struct Scaled {
    scale: f32,
    /// Steps that were left out, because a gradient was too large for its type.
    skipped_steps: u64,
}

/// What became of the gradients.
#[derive(Serialize)]
struct Clipping {
    most: f64,
    /// How long those of the last step were before.
    last_norm: f64,
    clipped_steps: u32,
}

/// How much of the examples that no batch had is right, from 0 to 1.
#[derive(Serialize)]
struct Learned {
    examples: usize,
    before: f64,
    after: f64,
}

/// Examples that no batch has.
struct HeldOut<B> {
    batch: B,
}

impl<B: Batch> HeldOut<B> {
    /// As many as four batches have, if some are held out.
    fn look<S: Source<Batch = B>>(data: &Data<S>, size: &Size, device: &Device) -> Option<Self> {
        let batch = data.held_out(size.batch.saturating_mul(4), &device.clone().inner())?;
        Some(Self { batch })
    }

    /// What a model makes of them, a batch at a time.
    fn accuracy<M: Trainable<Batch = B>>(&self, model: &M) -> Result<f64, Failure> {
        let parts = self.batch.split(4);
        let mut right = 0.0;
        for part in &parts {
            right += model.valid().accuracy(part)? * part.examples() as f64;
        }
        Ok(right / self.batch.examples().max(1) as f64)
    }
}

/// What the simulator says of a step.
#[derive(Serialize)]
struct Prediction {
    peak_bytes: Bytes,
    step_ns: Nanos,
    /// What is alive at the peak, the largest first.
    set_by: Vec<String>,
}

/// How a run was asked for.
pub(crate) fn strategy(arguments: &TrainArguments) -> Strategy {
    let target = arguments.budget.or(arguments.memory).map(Strategy::Optimal);
    let policy = arguments.policy.clone().map(Strategy::Policy);
    target.or(policy).or(arguments.strategy.clone()).unwrap_or(Strategy::QUARTER)
}

pub(crate) fn asked_for_nothing(arguments: &TrainArguments) -> bool {
    let given = [
        arguments.budget.is_some(),
        arguments.memory.is_some(),
        arguments.strategy.is_some(),
        arguments.policy.is_some(),
    ];
    !given.contains(&true)
}

/// How far each step goes.
pub(crate) fn learning_rate(arguments: &TrainArguments, size: &Size) -> Result<f64, Failure> {
    let rate = arguments.learning_rate.unwrap_or(size.model.usual_learning_rate());
    match rate.is_finite() && rate > 0.0 {
        true => Ok(rate),
        false => Err(Failure::request(
            anyhow::anyhow!("--learning-rate is {rate}, expected a number above 0"),
            "0.001 is a good start",
        )),
    }
}

/// What must be the same for a run to go on from a snapshot.
pub(crate) fn identity(
    arguments: &TrainArguments,
    model: &str,
    seed: u64,
    learning_rate: f64,
    data: &str,
) -> Identity {
    let mut identity = vec![
        ("model", model.to_owned()),
        ("seed", seed.to_string()),
        ("learning rate", learning_rate.to_string()),
        ("text", data.to_owned()),
    ];
    if let Some(path) = &arguments.weights {
        identity.push(("weights", path.display().to_string()));
    }
    if let Scaling::Fixed(scale) = &arguments.loss_scale {
        identity.push(("loss scale", scale.scale().to_string()));
    }
    identity
}

/// Runs the command.
pub(crate) fn run(arguments: &TrainArguments) -> Result<(), Failure> {
    progress::check(arguments)?;
    let size = &arguments.size.size(For::Training)?;
    let on = arguments.on;
    let alone = "leave one of the two out: a plan for the GPU is made before the first step";
    on.refuse_with("--adaptive", arguments.adaptive, alone)?;
    if arguments.ranks.asked()? {
        on.refuse_with("a run over ranks", true, "leave --device out: ranks train on processors")?;
        return ranks::train(arguments, size);
    }
    with_model(size, &arguments.data, Training { arguments, size })
}

struct Training<'a> {
    arguments: &'a TrainArguments,
    size: &'a Size,
}

impl Job for Training<'_> {
    type Made = ();

    fn run<K: Kind>(self, kind: &K) -> Result<(), Failure> {
        train(self.arguments, self.size, kind)
    }
}

/// Refuses a file that is no plan, or that none can be kept in, before anything is measured.
fn check_cache(path: &Path) -> Result<(), Failure> {
    match path.exists() {
        true => Planned::load(path).map(drop).map_err(planning::refused),
        false => files::check_writable(path),
    }
}

fn train<K: Kind>(arguments: &TrainArguments, size: &Size, kind: &K) -> Result<(), Failure> {
    let mut strategy = strategy(arguments);
    let device = arguments.on.open()?;
    Size::check_room(kind, std::slice::from_ref(&strategy))?;
    let described = size.describe(kind);
    let cut = size.cutting(arguments.cut)?;
    let rate = learning_rate(arguments, size)?;
    let all_steps = arguments.steps.unwrap_or(size.model.usual_steps());
    let places = arguments.places.open()?;
    let mut data = kind.data().seeded(size.seed);
    let empty = meter::live();
    meter::make_scratch();
    if let Some(path) = &arguments.save {
        files::check_writable(path)?;
    }
    if let Some(path) = &arguments.trace {
        timeline::check(path, &strategy)?;
    }
    for path in [&arguments.plan, &arguments.cache, &arguments.weights].into_iter().flatten() {
        failure::refuse_device(path)?;
    }
    if let Some(path) = &arguments.cache {
        check_cache(path)?;
    }
    let mut model = build(kind, &device, size.seed)?;
    if let Some(path) = &arguments.weights {
        model = kind.load(path, model, &device)?;
    }
    let mut optimizer = AdamConfig::new().init();
    let mut scale = arguments.loss_scale.of(size.precision);
    // Where nothing can overflow and nothing is asked for, gradients go to the optimizer as they are.
    let watched = size.precision != Precision::F32 || scale != LossScale::none();

    let sample = data.clone().batch(size, &device);
    let mut saving =
        Saving::open(&arguments.saving, identity(arguments, &described, size.seed, rate, data.checksum()))?;
    let mut first = 0;
    if let (Some(saving), true) = (&mut saving, arguments.saving.resume) {
        let resumed = saving.resume(model, optimizer, data, scale)?;
        (first, model, optimizer, data) = (resumed.steps, resumed.model, resumed.optimizer, resumed.data);
        scale = resumed.scale;
        if first >= all_steps {
            return Err(Failure::request(
                anyhow::anyhow!("the run is through: {first} of {all_steps} steps are done"),
                format!("give more --steps than {first}"),
            ));
        }
        tell!("going on after step {first}");
    }
    // Before anybody asks what training holds: these examples are there the whole time.
    let held_out = HeldOut::look(&data, size, &device);
    let beside = sample.beside(&model)?;
    let mut known = Knowledge::default();
    let mut adaptive = match arguments.adaptive {
        true => {
            let (margin, most) = (arguments.margin, arguments.budget);
            Some(Adaptive::start(&model, cut, (sample.part(), beside), margin, &places, most)?)
        }
        false => None,
    };
    let mut ready = match (&arguments.plan, &mut adaptive) {
        (_, Some(adaptive)) => {
            let (ready, told) = adaptive.next()?;
            told.iter().for_each(|told| tell!("{told}"));
            ready
        }
        (Some(path), None) => {
            planning::from_file(path, arguments.profile.as_deref(), &model, sample.part(), &places)?
        }
        (None, None) => {
            let held = match arguments.memory {
                Some(target) => held_by_training(target, &model, &sample, size.recipe(), empty)?,
                None => Bytes::ZERO,
            };
            let held = Bytes::new(held.get() + beside.held.get());
            let cache = arguments.cache.as_deref();
            let flag = if arguments.memory.is_some() { "--memory " } else { "--budget " };
            let planning = Planning {
                margin: arguments.margin,
                plain: None,
                held,
                alone: beside.alone,
                cache,
                places: &places,
                flag,
            };
            match planning::ready(&strategy, &model, cut, sample.part(), &mut known, planning) {
                // Nobody asked for a quarter: a model that is too small for it takes what it needs.
                Err(failure) if asked_for_nothing(arguments) && failure.is_budget_too_small() => {
                    tell!(
                        "no plan takes a quarter of what plain training takes; planning for the smallest budget"
                    );
                    strategy = Strategy::Optimal(Target::Smallest);
                    planning::ready(&strategy, &model, cut, sample.part(), &mut known, planning)?
                }
                ready => ready?,
            }
        }
    };
    let name = match &arguments.plan {
        _ if adaptive.is_some() => "adaptive".to_owned(),
        Some(path) => format!("{}", path.display()),
        None => match arguments.memory {
            Some(target) => format!("memory-{target}"),
            None => strategy.to_string(),
        },
    };
    tell!("training {described} with `{name}`");
    if let Ready::Planned(planned, _) = &ready {
        let predicted = planned.plan().predicted;
        let over = predicted.step_ns.ratio(planned.profile().lower_bound()) - 1.0;
        let budget = planned.budget_bytes().map(|bytes| beside.with(bytes));
        let budget = budget.map(|budget| format!(" of {budget}")).unwrap_or_default();
        tell!(
            "planned ({}): {}{budget} at the peak, {} step time",
            planned.plan().status,
            beside.with(Ready::expected_peak(&predicted, planned.profile())),
            report::signed_percent(over)
        );
    }
    let accuracy_before = held_out.as_ref().map(|held_out| held_out.accuracy(&model)).transpose()?;
    let pace = Rate { units: K::UNITS, per_step: size.batch * kind.units() };
    let limit = || match ready.budget_bytes().map(|bytes| beside.with(bytes)) {
        Some(bytes) => Ok(Limit { name: "the budget", bytes }),
        None => {
            let bytes = measured(&model, &sample, &Ready::Plain, size.recipe())?.peak;
            Ok(Limit { name: "plain's peak", bytes })
        }
    };
    let mut progress =
        Progress::start(arguments.tui, all_steps, described.clone(), pace, name.clone(), limit)?;
    // Each step has a batch of its own, in the place of this one.
    drop(sample);
    let start = Instant::now();
    let mut losses = Vec::with_capacity(all_steps as usize);
    let (mut last_norm, mut clips) = (None, 0);
    meter::rest();
    meter::look_now_and_then();
    for number in first..all_steps {
        if let Some(adaptive) = adaptive.as_mut().filter(|_| number > first) {
            let (next, told) = match adaptive.next() {
                Ok(next) => next,
                Err(failure) => {
                    // Nothing that was learnt is lost: the run can go on when there is memory again.
                    if let Some(saving) = &mut saving {
                        saving.write(number, &model, &optimizer, &data, &scale)?;
                    }
                    return Err(failure);
                }
            };
            told.iter().for_each(|told| progress.tell(told));
            ready = next;
        }
        progress.begin();
        let batch = data.batch(size, &device);
        // A seed for each step: dropout must not repeat itself, and a run must be repeatable.
        let seed = size.seed.wrapping_add(u64::from(number));
        let recipe = Recipe { seed, first_part: 0, scale: scale.scale(), clip: None };
        let done = step(&model, &batch, &ready, recipe)?;
        for Fault { boundary, place, error } in places.take_faults() {
            progress.tell(&format!("step {}: {boundary} was lost in `{place}`: {error}", number + 1));
        }
        let loss = done.loss.into_scalar::<f32>();
        if !loss.is_finite() {
            progress.end(true);
            return Err(Failure::failed(
                anyhow::anyhow!("the loss is {loss} after {} steps", number + 1),
                match size.precision {
                    Precision::F16 => "f16 ends at 65504: try --precision bf16".to_owned(),
                    Precision::F32 | Precision::Bf16 => format!("try a smaller --learning-rate than {rate}"),
                },
            ));
        }
        losses.push(loss);
        let go_on = progress.ran(loss);
        let gradients = match watched {
            true => scale.down(&model, done.gradients)?,
            false => Ok(done.gradients),
        };
        match gradients {
            Ok(mut gradients) => {
                if let Some(most) = size.clip_norm {
                    let clipped = clip_by_norm(&model, gradients, most)?;
                    gradients = clipped.gradients;
                    last_norm = Some(clipped.norm);
                    clips += u32::from(clipped.norm > most);
                }
                model = optimizer.step(rate, model, gradients);
            }
            // Weights stay as they are, and never become something that is no number.
            Err(overflow) if overflow.next < overflow.scale => {
                progress.tell(&format!(
                    "step {} is left out: {overflow}; the next ones are at {}",
                    number + 1,
                    overflow.next
                ));
            }
            Err(overflow) => {
                progress.end(true);
                return Err(Failure::failed(
                    anyhow::anyhow!("{overflow}, after {} steps", number + 1),
                    format!("try a smaller --learning-rate than {rate}, or --precision f32"),
                ));
            }
        }
        let last = !go_on || number + 1 == all_steps;
        if let Some(saving) = saving.as_mut().filter(|saving| saving.is_due(number + 1, last)) {
            match saving.write(number + 1, &model, &optimizer, &data, &scale) {
                // A full disk may have room again at the next one; the older ones are there.
                Err(failure) if !last => progress.tell(&failure.to_string()),
                written => written?,
            }
        }
        if !go_on {
            break;
        }
    }
    let training_peak = progress.peak();
    meter::rest();
    progress.end(false);
    if let Some(path) = &arguments.save {
        kind.save(path, &model)?;
        tell!("wrote {}", path.display());
    }
    let seconds = start.elapsed().as_secs_f64();
    let steps = losses.len() as u32;
    if first + steps < all_steps {
        tell!("ended after {} of {all_steps} steps", first + steps);
    }
    let training_peak = training_peak.saturating_sub(empty);
    // What is gone with the optimizer was its own.
    let held = meter::live();
    drop(optimizer);
    let optimizer_state = held.saturating_sub(meter::live());

    let held_out = match held_out.zip(accuracy_before) {
        Some((held_out, before)) => {
            Some(Learned { examples: held_out.batch.examples(), before, after: held_out.accuracy(&model)? })
        }
        None => None,
    };
    let batch = data.batch(size, &device);
    let against = against_plain(&model, &batch, &ready, size.recipe())?;
    if matches!(ready, Ready::Rule(_)) {
        known.blocks = Some(planning::measure(Cut::Blocks.of(&model), batch.part(), Measuring::default())?);
    }
    if let Some(path) = &arguments.trace {
        let stages = known.blocks.as_ref().map(|known| &known.profile);
        timeline::write(path, &model, &batch.first(), &ready, size.recipe(), stages)?;
    }
    let weights = parameter_bytes(&model);
    let summary = Summary {
        model: described,
        strategy: name,
        steps,
        first_loss: losses.first().copied().unwrap_or_default(),
        last_loss: median(&losses[losses.len().saturating_sub(5)..]).unwrap_or_default(),
        units: K::UNITS,
        examples_per_second: f64::from(steps) * size.batch as f64 / seconds,
        tokens_per_second: (K::UNITS == "tokens").then(|| pace.after(u64::from(steps), seconds)),
        pace: pace.after(u64::from(steps), seconds),
        held_out,
        peak_bytes: against.ours.0,
        most_bytes: against.most,
        plain_peak_bytes: against.plain.0,
        step_ns: against.ours.1,
        plain_step_ns: against.plain.1,
        overhead: against.overhead,
        gradients: against.gradients,
        budget_bytes: ready.budget_bytes().map(|bytes| beside.with(bytes)),
        predicted: prediction(&ready, known.blocks.as_ref(), batch.count() as u64, beside),
        planning_ns: Some(known.took).filter(|took| *took > Nanos::ZERO),
        transfers: Transfers::measure(&model, &batch, &ready, size.recipe())?,
        precision: size.precision,
        micro_batches: size.micro_batches,
        scaling: watched.then(|| Scaled { scale: scale.scale(), skipped_steps: scale.skipped() }),
        clipping: size.clip_norm.zip(last_norm).map(|(most, last_norm)| Clipping {
            most,
            last_norm,
            clipped_steps: clips,
        }),
        plan_changes: adaptive.as_ref().map(|adaptive| adaptive.changes),
        totals: Totals {
            weights,
            optimizer_state,
            gradients: weights,
            step: against.ours.0,
            other: [weights, optimizer_state, against.ours.0]
                .into_iter()
                .fold(training_peak, Bytes::saturating_sub),
            all: training_peak,
        },
    };
    match arguments.json {
        true => report::show_json(&summary)?,
        false => show(&summary)?,
    }
    over_budget(&summary, arguments.memory)
}

/// A budget is never exceeded: where it was, that is no success.
fn over_budget(summary: &Summary, memory: Option<Target>) -> Result<(), Failure> {
    if let Some(Target::Bytes(memory)) = memory
        && summary.totals.all > memory
    {
        return Err(Failure::failed(
            anyhow::anyhow!("training took {} at its peak, but --memory is {memory}", summary.totals.all),
            "give a larger --margin",
        ));
    }
    match summary.budget_bytes {
        Some(budget) if summary.most_bytes > budget => Err(Failure::failed(
            anyhow::anyhow!("a step took {} at its peak, but the budget is {budget}", summary.most_bytes),
            "measure again with nothing else running, or give a larger --margin",
        )),
        _ => Ok(()),
    }
}

/// What the simulator says of a step in so many parts, with a sum of gradients beside them.
fn prediction(ready: &Ready, known: Option<&Known>, parts: u64, beside: Beside) -> Option<Prediction> {
    let (profile, plan) = match ready {
        Ready::Planned(planned, _) => (planned.profile(), planned.plan().clone()),
        Ready::Rule(rule) => {
            let profile = &known?.profile;
            (profile, Plan::by_rule(profile, *rule, None).ok()?)
        }
        Ready::Plain | Ready::Balanced => return None,
    };
    let (_, simulation) = plan.judge(profile).ok()?;
    let most = simulation.peak_tensors.iter().take(3).map(|live| format!("{} ({})", live.what, live.bytes));
    Some(Prediction {
        peak_bytes: beside.with(Ready::expected_peak(&plan.predicted, profile)),
        step_ns: Nanos::new(plan.predicted.step_ns.get().saturating_mul(parts)),
        set_by: most.collect(),
    })
}

/// Peak and median time of both, and how their gradients compare.
struct AgainstPlain {
    ours: (Bytes, Nanos),
    /// The highest of our peaks.
    most: Bytes,
    plain: (Bytes, Nanos),
    overhead: f64,
    gradients: Comparison,
}

/// Takes steps of the trained model in turns with plain training, from the same weights, batch and seed.
fn against_plain<M: Trainable>(
    model: &M,
    batch: &Parts<M::Batch>,
    how: &Ready,
    recipe: Recipe,
) -> Result<AgainstPlain, Failure> {
    let bar = report::bar(2 * ROUNDS as u64, "comparing with plain training");
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    let (mut our_peaks, mut plain_peaks) = (Vec::new(), Vec::new());
    let mut gradients = Comparison::default();
    for _ in 0..ROUNDS {
        let expected = measured(model, batch, &Ready::Plain, recipe)?;
        bar.inc(1);
        let found = measured(model, batch, how, recipe)?;
        bar.inc(1);
        gradients = compare(model, &expected.step, &found.step);
        plain.push(expected.time);
        ours.push(found.time);
        plain_peaks.push(expected.peak);
        our_peaks.push(found.peak);
    }
    bar.finish_and_clear();
    let ratios: Vec<f64> = ours.iter().zip(&plain).map(|(ours, plain)| ours.ratio(*plain)).collect();
    Ok(AgainstPlain {
        ours: (median(&our_peaks).unwrap_or_default(), median(&ours).unwrap_or_default()),
        most: our_peaks.iter().copied().max().unwrap_or_default(),
        plain: (median(&plain_peaks).unwrap_or_default(), median(&plain).unwrap_or_default()),
        overhead: median(&ratios).unwrap_or(1.0) - 1.0,
        gradients,
    })
}

fn show(summary: &Summary) -> Result<(), Failure> {
    let learned = summary.held_out.as_ref().map(|Learned { examples, before, after }| {
        let percent = |part: f64| part * 100.0;
        let (before, after) = (percent(*before), percent(*after));
        format!("{before:.1}% -> {after:.1}% right on {examples} examples that were held out\n")
    });
    report::show(&format!(
        "trained {} of {}\nloss {:.3} -> {:.3}, {:.0} {}/s\n{}",
        counted_steps(u64::from(summary.steps)),
        summary.model,
        summary.first_loss,
        summary.last_loss,
        summary.pace,
        summary.units,
        learned.unwrap_or_default()
    ))?;
    if let Some(Scaled { scale, skipped_steps }) = &summary.scaling {
        report::show(&format!(
            "loss scale {scale} at the end, {} left out\n",
            counted_steps(*skipped_steps)
        ))?;
    }
    if let Some(Clipping { most, last_norm, clipped_steps }) = &summary.clipping {
        report::show(&format!(
            "{} clipped to {most}; the last gradients were {last_norm:.3} long\n",
            counted_steps(u64::from(*clipped_steps))
        ))?;
    }
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
         peak and step: medians of {ROUNDS}; overhead: median of {ROUNDS} pairs of steps, run in turns",
        summary.plain_peak_bytes,
        report::percent_of(saved, summary.plain_peak_bytes)
    ))?;
    show_prediction(summary)?;
    if let Some(transfers) = &summary.transfers {
        report::show(&transfers.to_string())?;
    }
    show_totals(&summary.totals)
}

fn counted_steps(count: u64) -> String {
    report::counted(usize::try_from(count).unwrap_or(usize::MAX), "step")
}

fn show_prediction(summary: &Summary) -> Result<(), Failure> {
    let Some(predicted) = &summary.predicted else { return Ok(()) };
    let off = |found: f64, said: f64| match said > 0.0 {
        true => report::signed_percent(found / said - 1.0),
        false => String::new(),
    };
    let bytes = |bytes: Bytes| bytes.get() as f64;
    let rows = [
        [
            "peak".to_owned(),
            summary.budget_bytes.map_or_else(String::new, |budget| budget.to_string()),
            predicted.peak_bytes.to_string(),
            summary.peak_bytes.to_string(),
            off(bytes(summary.peak_bytes), bytes(predicted.peak_bytes)),
        ],
        [
            "step".to_owned(),
            String::new(),
            predicted.step_ns.to_string(),
            summary.step_ns.to_string(),
            off(summary.step_ns.ratio(predicted.step_ns), 1.0),
        ],
    ];
    report::show(&format!("\n{}", report::table(["", "budget", "predicted", "measured", "off by"], rows)))?;
    report::show(&format!("the peak is set by {}", predicted.set_by.join(", ")))
}

fn show_totals(totals: &Totals) -> Result<(), Failure> {
    let rows = [
        ["weights", &totals.weights.to_string()],
        ["optimizer state", &totals.optimizer_state.to_string()],
        ["activations and gradients of a step, at their peak", &totals.step.to_string()],
        ["scratch memory of threads, and the rest", &totals.other.to_string()],
        ["all of training, at its peak", &totals.all.to_string()],
    ];
    let rows = rows.map(|row| row.map(str::to_owned));
    report::show(&format!("\n{}", report::table(["memory", ""], rows)))
}
