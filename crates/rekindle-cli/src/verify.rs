//! `rekindle verify`: are the gradients the same?

use burn::optim::AdamConfig;
use burn::tensor::Device;
use rekindle_models::Trainable;
use rekindle_models::data::Source;
use serde::Serialize;

use crate::arguments::VerifyArguments;
use crate::data::Data;
use crate::failure::Failure;
use crate::measure::{Beside, Comparison, Recipe, build, compare, measured, median, step};
use crate::models::{DataArguments, Job, Kind, with_model};
use crate::places::{suffix, tell_faults};
use crate::planning::{self, Knowledge, Planning};
use crate::report;
use crate::size::{For, Size};
use crate::strategy::{Ready, Strategy};

#[derive(Serialize)]
struct Verdict {
    model: String,
    strategy: String,
    seed: u64,
    /// The codecs of its plan that lose digits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lossy: Vec<String>,
    #[serde(flatten)]
    comparison: Comparison,
    /// What training comes to, when it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    training: Option<Training>,
}

/// Losses after so many steps from the same weights, on the same batches: the median of the last five.
#[derive(Serialize)]
struct Training {
    steps: u32,
    plain_loss: f32,
    loss: f32,
    /// How far it is from plain's, as a part of it.
    difference: f32,
}

/// Runs the command.
pub(crate) fn run(arguments: &VerifyArguments) -> Result<(), Failure> {
    let size = &arguments.size.size(For::Figures)?;
    with_model(size, &DataArguments::default(), Verify { arguments, size })
}

struct Verify<'a> {
    arguments: &'a VerifyArguments,
    size: &'a Size,
}

impl Job for Verify<'_> {
    type Made = ();

    fn run<K: Kind>(self, kind: &K) -> Result<(), Failure> {
        verify(self.arguments, self.size, kind)
    }
}

fn verify<K: Kind>(arguments: &VerifyArguments, size: &Size, kind: &K) -> Result<(), Failure> {
    let strategy = &match &arguments.policy {
        Some(policy) => Strategy::Policy(policy.clone()),
        None => arguments.strategy.clone(),
    };
    let device = arguments.on.open()?;
    Size::check_room(kind, std::slice::from_ref(strategy))?;
    let cut = size.cutting(arguments.cut)?;
    let model = build(kind, &device, size.seed)?;
    let data = kind.data().seeded(size.seed);
    let batch = data.clone().batch(size, &device);
    let bar = report::bar(2, "verifying");
    let expected = step(&model, &batch, &Ready::Plain, size.recipe())?;
    bar.inc(1);
    let places = arguments.places.open_for(strategy)?;
    let Beside { held, alone } = batch.beside(&model)?;
    let planning = Planning {
        places: &places,
        margin: arguments.margin,
        plain: None,
        held,
        alone,
        cache: None,
        flag: "--strategy optimal-",
    };
    let ready = planning::ready(strategy, &model, cut, batch.part(), &mut Knowledge::default(), planning)?;
    let found = step(&model, &batch, &ready, size.recipe())?;
    bar.finish_and_clear();
    let comparison = compare(&model, &expected, &found);
    drop((expected, found));
    let training = match arguments.steps {
        0 => None,
        steps => {
            let plain_loss = loss_after(steps, model.clone(), data.clone(), size, &device, &Ready::Plain)?;
            let loss = loss_after(steps, model, data, size, &device, &ready)?;
            Some(Training { steps, plain_loss, loss, difference: loss / plain_loss - 1.0 })
        }
    };
    tell_faults(&places);
    let verdict = Verdict {
        model: size.describe(kind),
        strategy: if strategy.may_move() {
            format!("{strategy}{}", suffix(&places))
        } else {
            strategy.to_string()
        },
        seed: size.seed,
        lossy: ready.lossy_codecs(),
        comparison,
        training,
    };
    match arguments.json {
        true => report::show_json(&verdict)?,
        false => show(&verdict)?,
    }
    // Digits that somebody chose to lose are reported, and no failure.
    match verdict.comparison.all_identical() || !verdict.lossy.is_empty() {
        true => Ok(()),
        false => Err(Failure::failed(
            match verdict.comparison.different.first() {
                None => anyhow::anyhow!(
                    "the loss differs from that of plain training; all gradients are the same"
                ),
                Some(name) => anyhow::anyhow!(
                    "{} of {} gradients differ from plain training, by up to {:e}, such as that of `{name}`",
                    verdict.comparison.different.len(),
                    verdict.comparison.tensors,
                    verdict.comparison.largest_difference
                ),
            },
            match arguments.on.is_apart() {
                false => "this is a bug in rekindle, or another thread drew random numbers meanwhile",
                true => {
                    "`--strategy plain` tells whether plain training differs from itself there: docs/cuda.md says why it may"
                }
            },
        )),
    }
}

/// Trains a model for some steps.
fn loss_after<M: Trainable, S: Source<Batch = M::Batch>>(
    steps: u32,
    mut model: M,
    mut data: Data<S>,
    size: &Size,
    device: &Device,
    how: &Ready,
) -> Result<f32, Failure> {
    let mut optimizer = AdamConfig::new().init();
    let mut losses = Vec::with_capacity(steps as usize);
    let bar = report::bar(u64::from(steps), "training");
    for number in 0..steps {
        let batch = data.batch(size, device);
        let recipe = Recipe { seed: size.seed.wrapping_add(u64::from(number)), ..size.recipe() };
        let done = measured(&model, &batch, how, recipe)?.step;
        losses.push(done.loss.into_scalar::<f32>());
        // Adam divides by the gradients' size: a scale that stays the same changes next to nothing.
        model = optimizer.step(1e-3, model, done.gradients);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(median(&losses[losses.len().saturating_sub(5)..]).unwrap_or_default())
}

fn show(verdict: &Verdict) -> Result<(), Failure> {
    let Comparison { tensors, identical, loss_identical, .. } = verdict.comparison;
    let loss = match loss_identical {
        true => "identical",
        false => "different",
    };
    let mut rows = vec![
        ["strategy".to_owned(), verdict.strategy.clone()],
        ["gradients with the same bytes".to_owned(), report::yes_or(identical, tensors)],
        ["loss".to_owned(), loss.to_owned()],
    ];
    if !verdict.lossy.is_empty() {
        rows.push(["codecs that lose digits".to_owned(), verdict.lossy.join(", ")]);
        let percent = |error: f64| format!("{:.3}%", error * 100.0);
        rows.push(["relative error of all gradients".to_owned(), percent(verdict.comparison.relative_error)]);
        rows.push(["a parameter's largest".to_owned(), percent(verdict.comparison.largest_relative_error)]);
        let worst = verdict.comparison.worst.iter();
        rows.extend(worst.map(|(name, error)| [format!("of `{name}`"), percent(*error)]));
    }
    if let Some(Training { steps, plain_loss, loss, difference }) = &verdict.training {
        rows.push([
            format!("loss after {steps} steps, plain and so"),
            format!("{plain_loss:.4} and {loss:.4} ({})", report::signed_percent(f64::from(*difference))),
        ]);
    }
    report::show(&report::table([verdict.model.as_str(), ""], rows))
}
