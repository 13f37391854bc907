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
    let rows = runs_of_equals(profile.stages()).into_iter().map(|(first, count)| {
        let last = profile.stages().get(first + count - 1);
        let stage = &profile.stages()[first];
        let name = match last.filter(|_| count > 1) {
            Some(last) => format!("{} .. {}", stage.name, last.name),
            None => stage.name.clone(),
        };
        let option = stage.options.first().map(|option| option.tape_bytes.to_string());
        [
            name,
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
        "\nforward's, backward's: what is needed only while it runs; gradients: of its parameters\n{how}"
    ))
}

/// Neighbours that differ in name only, as the first of them and how many there are.
fn runs_of_equals(stages: &[StageProfile]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    let like = |stage: &StageProfile| StageProfile { name: String::new(), ..stage.clone() };
    for (index, stage) in stages.iter().enumerate() {
        match runs.last_mut() {
            Some((first, count)) if like(&stages[*first]) == like(stage) => *count += 1,
            _ => runs.push((index, 1)),
        }
    }
    runs
}
