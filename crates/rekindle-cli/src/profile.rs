//! `rekindle profile`: what the stages of a model take.

use std::time::Instant;

use burn::tensor::{Device, Int, IntDType, Tensor};
use rekindle::{DeviceModel, Measuring, Nanos, Profile, Staged, trace_model};
use rekindle_models::GptBatch;
use rekindle_plan::StageProfile;

use crate::arguments::ProfileArguments;
use crate::corpus::Corpus;
use crate::failure::Failure;
use crate::measure::build;
use crate::{files, planning, report};

/// Runs the command.
pub(crate) fn run(arguments: &ProfileArguments) -> Result<(), Failure> {
    if let Some(path) = &arguments.output {
        files::check_writable(path)?;
    }
    let (profile, how) = match arguments.trace {
        true => traced(arguments)?,
        false => measured(arguments)?,
    };
    let places = arguments.places.open()?;
    let profile = match places.is_empty() {
        true => profile,
        false => places.measure(profile).map_err(planning::refused)?,
    };
    if let Some(path) = &arguments.output {
        files::write(path, &format!("{}\n", profile.to_json()))?;
        eprintln!("wrote {}", path.display());
    }
    match arguments.json {
        true => report::show(&profile.to_json()),
        false => show(&profile, &arguments.size.describe(), &how),
    }
}

/// The stages, run here, and how that went.
fn measured(arguments: &ProfileArguments) -> Result<(Profile, String), Failure> {
    let size = &arguments.size;
    let config = size.config(&[])?;
    let device = Device::flex().autodiff();
    let model = build(&config, &device, size.seed)?;
    let batch = Corpus::open(None, size.sequence, size.seed)?.batch(size, &device);
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
fn traced(arguments: &ProfileArguments) -> Result<(Profile, String), Failure> {
    let size = &arguments.size;
    let config = size.unbuilt(&[])?;
    let start = Instant::now();
    let waiting = report::spinner("tracing the stages");
    let here = DeviceModel::measure(&Device::flex());
    let found = trace_model("gpt", &here, |device| {
        let model = config.init(device)?;
        // As the tokens of a run are; without a word on it they would be twice as wide.
        let tokens = Tensor::<2, Int>::zeros([size.batch / size.micro_batches, size.sequence], device)
            .cast(IntDType::I32);
        let batch = GptBatch { tokens: tokens.clone(), targets: tokens };
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
