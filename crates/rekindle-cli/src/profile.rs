//! `rekindle profile`: what the stages of a model take.

use burn::tensor::Device;
use rekindle::{Measuring, Profile};
use rekindle_plan::StageProfile;

use crate::arguments::ProfileArguments;
use crate::corpus::Corpus;
use crate::failure::Failure;
use crate::measure::build;
use crate::{files, planning, report};

/// Runs the command.
pub(crate) fn run(arguments: &ProfileArguments) -> Result<(), Failure> {
    let size = &arguments.size;
    let config = size.config(&[])?;
    let device = Device::flex().autodiff();
    let model = build(&config, &device, size.seed)?;
    let batch = Corpus::open(None, size.sequence, size.seed)?.batch(size, &device);
    let measuring = Measuring { runs: usize::from(arguments.runs), ..Measuring::default() };
    let known = planning::measure(arguments.cut.of(&model), &batch, measuring)?;
    let how = format!(
        "measured in {}: {} different stages, {} runs of each; their times lay up to {:.0}% apart",
        known.took,
        known.kinds,
        arguments.runs,
        known.noise * 100.0
    );
    if let Some(path) = &arguments.output {
        files::write(path, &format!("{}\n", known.profile.to_json()))?;
        eprintln!("wrote {}", path.display());
    }
    match arguments.json {
        true => report::show(&known.profile.to_json()),
        false => show(&known.profile, &size.describe(), &how),
    }
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
        "times",
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
