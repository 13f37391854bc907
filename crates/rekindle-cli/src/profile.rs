//! `rekindle profile`: what the stages of a model take.

use std::time::Instant;

use burn::tensor::Device;
use clap::ValueEnum;
use rekindle::{DeviceModel, Measuring, Nanos, Profile, Spread, Staged, trace_model};
use rekindle_plan::StageProfile;
use serde::Serialize;

use crate::arguments::ProfileArguments;
use crate::failure::Failure;
use crate::measure::build;
use crate::models::{DataArguments, Job, Kind, with_model};
use crate::size::{For, Size};
use crate::{device, files, planning, report};

/// Runs the command.
pub(crate) fn run(arguments: &ProfileArguments) -> Result<(), Failure> {
    if let Some(path) = &arguments.output {
        files::check_writable(path)?;
    }
    let size = &arguments.size.size(For::Training)?;
    // A trace learns nothing.
    let data = if arguments.trace { DataArguments::unread() } else { DataArguments::default() };
    let Profiled { profile, noise, how, model } = with_model(size, &data, Profiling { arguments, size })?;
    let places = arguments.places.open()?;
    let profile = match places.is_empty() {
        true => profile,
        false => places.measure(profile).map_err(planning::refused)?,
    };
    if let Some(path) = &arguments.output {
        files::write(path, &format!("{}\n", profile.to_json()))?;
        tell!("wrote {}", path.display());
    }
    match arguments.json {
        true => report::show(&with_noise(&profile, noise.as_ref())),
        false => show(&profile, noise.as_ref(), &model, &how),
    }
}

/// How far apart the times of each stage lay.
#[derive(Serialize)]
struct Noise {
    runs: usize,
    /// The largest of them.
    noise: f64,
    /// Those of each stage, first to last: the slowest run less the fastest, as a part of the median.
    spreads: Vec<StageNoise>,
}

#[derive(Serialize)]
struct StageNoise {
    forward: f64,
    backward: f64,
}

impl From<&Spread> for StageNoise {
    fn from(spread: &Spread) -> Self {
        // Digits beyond a tenth of a percent are noise of the noise.
        let round = |part: f64| (part * 1e3).round() / 1e3;
        Self { forward: round(spread.forward), backward: round(spread.backward) }
    }
}

impl StageNoise {
    fn most(&self) -> f64 {
        self.forward.max(self.backward)
    }
}

/// The profile, and beside it under [`files::MEASURED`] what is not its own: files of profiles have what plans are made
/// from, and nothing else.
fn with_noise(profile: &Profile, noise: Option<&Noise>) -> String {
    let text = profile.to_json();
    let noise = noise.and_then(|noise| serde_json::to_value(noise).ok());
    match (noise, serde_json::from_str(&text)) {
        (Some(noise), Ok(serde_json::Value::Object(mut keys))) => {
            keys.insert(files::MEASURED.to_owned(), noise);
            serde_json::to_string_pretty(&keys).unwrap_or(text)
        }
        _ => text,
    }
}

struct Profiling<'a> {
    arguments: &'a ProfileArguments,
    size: &'a Size,
}

struct Profiled {
    profile: Profile,
    /// None of a trace.
    noise: Option<Noise>,
    /// How that went.
    how: String,
    /// What it is of.
    model: String,
}

impl Job for Profiling<'_> {
    type Made = Profiled;

    fn run<K: Kind>(self, kind: &K) -> Result<Profiled, Failure> {
        let (arguments, size) = (self.arguments, self.size);
        let (profile, noise, how) = match arguments.trace {
            true => traced(arguments, size, kind).map(|(profile, how)| (profile, None, how))?,
            false => {
                measured(arguments, size, kind).map(|(profile, noise, how)| (profile, Some(noise), how))?
            }
        };
        Ok(Profiled { profile, noise, how, model: size.describe(kind) })
    }
}

/// The stages, run here, how far their times lay apart, and how that went.
fn measured<K: Kind>(
    arguments: &ProfileArguments,
    size: &Size,
    kind: &K,
) -> Result<(Profile, Noise, String), Failure> {
    Size::check_room(kind, &[])?;
    let device = device::cpu();
    let model = build(kind, &device, size.seed)?;
    let batch = kind.data().seeded(size.seed).batch(size, &device);
    let measuring = Measuring { runs: usize::from(arguments.runs), ..Measuring::steady() };
    let (model, batch) = (arguments.cut.of(&model), batch.part());
    let start = Instant::now();
    let (found, description) = planning::measure_shown(&model, batch, measuring)?;
    let spreads: Vec<StageNoise> = found.spreads.iter().map(Into::into).collect();
    let (noise, kinds, runs) = (found.noise(), found.kinds, found.runs);
    let how = format!(
        "measured in {}: {}, {} of each; their times lay up to {:.0}% apart",
        Nanos::from(start.elapsed()),
        report::counted(kinds, "different stage"),
        report::counted(runs, "run"),
        noise * 100.0
    );
    let profile = found.into_profile(model.name(), description.device);
    let profile =
        profile.map_err(|error| Failure::failed(error, "give the model fewer or smaller stages"))?;
    let noise = spreads.iter().map(StageNoise::most).fold(0.0, f64::max);
    Ok((profile, Noise { runs, noise, spreads }, how))
}

/// The stages, from what their operations would do. Nothing is run, and the model is never built.
fn traced<K: Kind>(
    arguments: &ProfileArguments,
    size: &Size,
    kind: &K,
) -> Result<(Profile, String), Failure> {
    let start = Instant::now();
    let waiting = report::spinner("tracing the stages");
    let here = DeviceModel::measure(&Device::flex());
    let name = size.model.to_possible_value().map(|value| value.get_name().to_owned());
    let found = trace_model(&name.unwrap_or_default(), &here, |device| {
        let model = kind.build(device)?;
        let batch = kind.blank(size.batch / size.micro_batches, device);
        Ok::<_, Failure>(arguments.cut.of(&model).stages(&batch))
    });
    waiting.finish_and_clear();
    let found = found?;
    let gigas = |rate: u64| rate as f64 / 1e9;
    let how = format!(
        "traced in {}: {} different stages, nothing run; times for {:.0} GFLOP/s in matrix products and {:.1} GB/s, as \
         measured here",
        Nanos::from(start.elapsed()),
        found.distinct_stages(),
        gigas(here.matmul_flops_per_second),
        gigas(here.memory_bytes_per_second)
    );
    Ok((found.into_profile(), how))
}

fn show(profile: &Profile, noise: Option<&Noise>, model: &str, how: &str) -> Result<(), Failure> {
    report::show(&format!("{model}\n"))?;
    let apart = |stage: usize| {
        let spread = noise.and_then(|noise| noise.spreads.get(stage));
        spread.map_or_else(|| "-".to_owned(), |spread| format!("{:.0}%", spread.most() * 100.0))
    };
    let rows = kinds(profile.stages()).into_iter().map(|(first, count)| {
        let stage = &profile.stages()[first];
        let under = |name: &str| {
            let option = stage.options.iter().find(|option| option.name.as_str() == name);
            option.map_or_else(|| "-".to_owned(), |option| option.tape_bytes.to_string())
        };
        [
            stage.name.clone(),
            count.to_string(),
            stage.forward_ns.to_string(),
            stage.backward_ns.to_string(),
            apart(first),
            stage.output_bytes.to_string(),
            stage.tape_bytes.to_string(),
            under("balanced"),
            under("again"),
            stage.forward_extra_bytes.to_string(),
            stage.backward_extra_bytes.to_string(),
            stage.parameter_gradient_bytes.to_string(),
        ]
    });
    let header = [
        "stage",
        "alike",
        "forward",
        "backward",
        "apart",
        "output",
        "tape",
        "balanced",
        "again",
        "forward's",
        "backward's",
        "gradients",
    ];
    report::show(&report::table(header, rows))?;
    report::show(&format!(
        "\nalike: stages that differ in name only; apart: the slowest run less the fastest, of the median; forward's, backward's: what is needed only while it runs; gradients: of its parameters\n{how}"
    ))
}

/// Stages that differ in name only: the first of them, and how many there are.
fn kinds(stages: &[StageProfile]) -> Vec<(usize, usize)> {
    let mut kinds: Vec<(usize, usize)> = Vec::new();
    let like = |stage: &StageProfile| StageProfile { name: String::new(), ..stage.clone() };
    for (index, stage) in stages.iter().enumerate() {
        match kinds.iter_mut().find(|(first, _)| like(&stages[*first]) == like(stage)) {
            Some((_, count)) => *count += 1,
            None => kinds.push((index, 1)),
        }
    }
    kinds
}
