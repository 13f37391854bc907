//! `rekindle estimate`: what training takes, before anything is built.

mod arguments;
mod bars;
mod ranks;

pub(crate) use arguments::EstimateArguments;
use rekindle_models::estimate::{Architecture, Asked, EstimateError, Fit, Row, Setting, State, presets};
use rekindle_plan::Bytes;
use serde::Serialize;

use self::ranks::ShownRank;
use crate::failure::Failure;
use crate::report::{self, signed_percent, table};

#[derive(Serialize)]
struct Estimate {
    model: String,
    parameters: u64,
    layers: u64,
    batch: u64,
    length: u64,
    precision: String,
    attention: &'static str,
    keeping: &'static str,
    weights_bytes: Bytes,
    gradients_bytes: Bytes,
    optimizer_bytes: Bytes,
    rows: Vec<Shown>,
    /// Of a pipeline; the first of them is that of the rows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ranks: Vec<ShownRank>,
    rules_of_thumb: Vec<String>,
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    row: Row,
    total_bytes: Bytes,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    fit: Option<Fit>,
}

/// Runs the command.
pub(crate) fn run(arguments: &EstimateArguments) -> Result<(), Failure> {
    if arguments.list {
        return list();
    }
    let asked = arguments.asked()?;
    let Asked { name, architecture, setting, .. } = &asked;
    let state = asked.state();
    let waiting = report::spinner("counting");
    let rows = asked.rows().map_err(refused);
    let shown = rows.and_then(|rows| {
        let shown = rows.into_iter().map(|row| {
            waiting.set_message(format!("counting {}", row.strategy));
            let total_bytes = total(&state, &row);
            let fit = arguments.fit.map(|room| asked.fit(&row.strategy, room)).transpose()?;
            Ok(Shown { row, total_bytes, fit })
        });
        shown.collect::<Result<Vec<_>, EstimateError>>().map_err(refused)
    });
    let ranks = match asked.parallel.pipeline {
        1 => Ok(Vec::new()),
        _ => asked.ranks().map_err(refused),
    };
    waiting.finish_and_clear();
    if asked.parallel.partition_checkpoints && asked.parallel.parts_of_boundaries(setting) == 1 {
        tell!(
            "--partition-checkpoints: no two ranks have the same boundaries here, so there is nothing to share out"
        );
    }
    let estimate = Estimate {
        model: name.clone(),
        parameters: architecture.parameters(),
        layers: architecture.layers(),
        batch: setting.batch,
        length: setting.length,
        precision: setting.precision.to_string(),
        attention: asked.attention(),
        keeping: asked.keeping(),
        weights_bytes: state.weights,
        gradients_bytes: state.gradients,
        optimizer_bytes: state.optimizer,
        rows: shown?,
        ranks: ranks?.into_iter().map(ShownRank::new).collect(),
        rules_of_thumb: asked.rules_of_thumb().map_err(refused)?,
    };
    match arguments.json {
        true => report::show_json(&estimate),
        false => show(&estimate, &state, architecture, setting, arguments.fit),
    }
}

/// What a strategy takes with all that is there whatever the batch.
fn total(state: &State, row: &Row) -> Bytes {
    [state.total(), row.activations_bytes, row.workspace_bytes].into_iter().sum()
}

pub(crate) fn refused(error: EstimateError) -> Failure {
    let hint = match error {
        EstimateError::Zero { .. } => "every size is 1 or more",
        EstimateError::Indivisible { .. } => "give numbers of which the second divides the first",
        _ => "make the model, the batch or the length smaller",
    };
    Failure::request(error, hint)
}

fn list() -> Result<(), Failure> {
    let rows = presets().map(|(name, architecture)| {
        let unit = unit(&architecture);
        [
            name.to_owned(),
            grouped(architecture.parameters()),
            architecture.layers().to_string(),
            format!("{} {unit}", architecture.usual_length()),
        ]
    });
    report::show(&table(["model", "parameters", "layers", "length"], rows))
}

fn show(
    estimate: &Estimate,
    state: &State,
    architecture: &Architecture,
    setting: &Setting,
    room: Option<Bytes>,
) -> Result<(), Failure> {
    let unit = unit(architecture);
    report::show(&format!(
        "{}: {} parameters, {} layers; batch {}, {} {unit}, {}; {}, {}\n\nweights {}, gradients {}, optimizer (Adam) {}: {} whatever the batch\n",
        estimate.model,
        grouped(estimate.parameters),
        estimate.layers,
        setting.batch,
        setting.length,
        estimate.precision,
        estimate.attention,
        estimate.keeping,
        state.weights,
        state.gradients,
        state.optimizer,
        state.total(),
    ))?;
    let cells = |shown: &Shown| {
        [
            shown.row.strategy.clone(),
            shown.row.activations_bytes.to_string(),
            shown.row.workspace_bytes.to_string(),
            shown.total_bytes.to_string(),
            signed_percent(shown.row.overhead),
        ]
    };
    let header = ["strategy", "activations", "workspace", "in all", "more work"];
    match room {
        None => report::show(&table(header, estimate.rows.iter().map(cells)))?,
        Some(room) => {
            let [a, b, c, d, e] = header;
            let (batch, length) = ("batch that fits", format!("{unit} that fit"));
            let rows = estimate.rows.iter().map(|shown| {
                let [a, b, c, d, e] = cells(shown);
                let fits = |number: Option<u64>| number.map_or_else(|| "none".to_owned(), grouped);
                let fit = shown.fit.unwrap_or_default();
                [a, b, c, d, e, fits(fit.largest_batch), fits(fit.longest)]
            });
            report::show(&table([a, b, c, d, e, batch, &length], rows))?;
            report::show(&format!(
                "\nfits {room}: the largest batch of {} {unit}, and the longest sequence or largest picture of a batch of {}",
                setting.length, setting.batch
            ))?;
        }
    }
    if !estimate.ranks.is_empty() {
        ranks::show(&estimate.ranks)?;
    }
    report::show(&format!("\n{}", bars::picture(state, &estimate.rows, room)))?;
    report::show(
        "\nnone keeps every tape; selective runs attention again, or what is cheapest where that keeps no scores; full keeps the \
         input of every layer; optimal-N% is the least work within N% of none, optimal-full within what full takes",
    )?;
    for rule in &estimate.rules_of_thumb {
        report::show(&format!("\n{rule}"))?;
    }
    Ok(())
}

/// What a length is counted in.
fn unit(architecture: &Architecture) -> &'static str {
    match architecture {
        Architecture::Transformer(model) if model.patch == 0 => "tokens",
        _ => "pixels",
    }
}

/// A number as people read it.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
