//! `rekindle profile`: what the stages of a model take.

use std::time::Instant;

use burn::tensor::Device;
use clap::ValueEnum;
use rekindle::{DeviceModel, Measuring, Nanos, Profile, Staged, trace_model};
use rekindle_plan::StageProfile;

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
    let Profiled { profile, how, model } =
        with_model(size, &DataArguments::default(), Profiling { arguments, size })?;
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
        true => report::show(&profile.to_json()),
        false => show(&profile, &model, &how),
    }
}

struct Profiling<'a> {
    arguments: &'a ProfileArguments,
    size: &'a Size,
}

struct Profiled {
    profile: Profile,
    /// How that went.
    how: String,
    /// What it is of.
    model: String,
}

impl Job for Profiling<'_> {
    type Made = Profiled;

    fn run<K: Kind>(self, kind: &K) -> Result<Profiled, Failure> {
        let of = if self.arguments.trace { traced } else { measured };
        let (profile, how) = of(self.arguments, self.size, kind)?;
        Ok(Profiled { profile, how, model: self.size.describe(kind) })
    }
}

/// The stages, run here, and how that went.
fn measured<K: Kind>(
    arguments: &ProfileArguments,
    size: &Size,
    kind: &K,
) -> Result<(Profile, String), Failure> {
    Size::check_room(kind, &[])?;
    let device = device::cpu();
    let model = build(kind, &device, size.seed)?;
    let batch = kind.data().seeded(size.seed).batch(size, &device);
    let measuring = Measuring { runs: usize::from(arguments.runs), ..Measuring::default() };
    let known = planning::measure(arguments.cut.of(&model), batch.part(), measuring)?;
    let how = format!(
        "measured in {}: {} different stages, {} runs of each; their times lay up to {:.0}% apart",
        known.took,
        known.kinds,
        arguments.runs,
        known.noise * 100.0
    );
    Ok((known.profile, how))
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

fn show(profile: &Profile, model: &str, how: &str) -> Result<(), Failure> {
    report::show(&format!("{model}\n"))?;
    let rows = kinds(profile.stages()).into_iter().map(|(first, count)| {
        let stage = &profile.stages()[first];
        let option = stage.options.first().map(|option| option.tape_bytes.to_string());
        [
            stage.name.clone(),
            count.to_string(),
            stage.forward_ns.to_string(),
            stage.backward_ns.to_string(),
            stage.output_bytes.to_string(),
            stage.tape_bytes.to_string(),
            option.unwrap_or_default(),
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
        "output",
        "tape",
        "balanced",
        "forward's",
        "backward's",
        "gradients",
    ];
    report::show(&report::table(header, rows))?;
    report::show(&format!(
        "\nalike: stages that differ in name only; forward's, backward's: what is needed only while it runs; gradients: of its parameters\n{how}"
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
