//! `rekindle train`: the main job.

mod against_plain;
mod held_out;
mod summary;

use std::path::Path;
use std::time::Instant;

use burn::optim::AdamConfig;
use rekindle::training::{LossScale, Precision, clip_by_norm};
use rekindle::{Bytes, Measuring, Nanos, Planned};

use against_plain::against_plain;
use held_out::HeldOut;
use summary::{Clipping, Learned, Scaled, Summary, over_budget, prediction, show};

use crate::adaptive::Adaptive;
use crate::amount::Target;
use crate::arguments::{Scaling, TrainArguments};
use crate::cut::Cut;
use crate::failure::{self, Failure};
use crate::measure::{Recipe, build, measured, median, step};
use crate::models::{Job, Kind, with_model};
use crate::planning::{self, Knowledge, Planning};
use crate::progress::{self, Progress, Rate};
use crate::saving::{Identity, Saving};
use crate::size::{For, Size};
use crate::strategy::{Ready, Strategy};
use crate::totals::{Totals, held_by_training, parameter_bytes};
use crate::transfers::Transfers;
use crate::view::Limit;
use crate::{files, meter, ranks, report, timeline};

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
    let places = arguments.places.open_for(&strategy)?;
    let mut data = kind.data().seeded(size.seed);
    let empty = meter::live();
    meter::make_scratch();
    for (flag, path) in
        [("--save", &arguments.save), ("--trace", &arguments.trace), ("--cache", &arguments.cache)]
    {
        if let Some(path) = path {
            files::check_apart(flag, path, arguments.data.data.as_deref())?;
        }
    }
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
                Err(failure) if asked_for_nothing(arguments) && failure.smallest_budget().is_some() => {
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
            beside.with(ready.expected_peak(&predicted, None)),
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
    let mut earlier_peak = Bytes::ZERO;
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
        let before = adaptive.is_some().then(|| {
            // What the last step left to be swept is not this one's.
            rekindle::sweep();
            earlier_peak = progress.peak().max(earlier_peak);
            meter::reset_peak();
            meter::live()
        });
        let done = step(&model, &batch, &ready, recipe)?;
        if let Some((adaptive, before)) = adaptive.as_mut().zip(before) {
            adaptive.ran(number + 1, meter::peak().saturating_sub(before));
        }
        for fault in places.take_faults() {
            progress.tell(&format!("step {}: {fault}", number + 1));
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
    let training_peak = progress.peak().max(earlier_peak);
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
            Some(Learned { examples: held_out.examples(), before, after: held_out.accuracy(&model)? })
        }
        None => None,
    };
    let batch = data.batch(size, &device);
    let against = against_plain(&model, &batch, &ready, size.recipe())?;
    if matches!(ready, Ready::Rule(_)) {
        known.blocks = Some(planning::measure(Cut::Blocks.of(&model), batch.part(), Measuring::steady())?);
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
        governed: adaptive.as_ref().map(|adaptive| adaptive.governed.clone()).unwrap_or_default(),
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
