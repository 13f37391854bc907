//! `rekindle sample`: what a trained language model writes.

use std::path::PathBuf;

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use clap::Args;
use rekindle::Rule;
use rekindle_models::data::Text;
use rekindle_models::{Gpt, GptConfig, weights};
use serde::Serialize;

use crate::failure::{self, Failure};
use crate::report;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle train --save model.safetensors
  rekindle sample model.safetensors --prompt \"Once \" --tokens 300
  rekindle sample model.safetensors --temperature 0              the likeliest byte every time")]
pub(crate) struct SampleArguments {
    /// The weights that `rekindle train --save` wrote
    weights: PathBuf,
    /// What the text begins with
    #[arg(long, value_name = "TEXT", default_value = "\n")]
    prompt: String,
    /// How many tokens to write
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    tokens: u32,
    /// How much chance there is in it: 0 takes the likeliest, 1 draws as the model says
    #[arg(long, value_name = "T", default_value_t = 0.8, allow_negative_numbers = true)]
    temperature: f32,
    /// Draw from so many of the likeliest alone; 0 for all
    #[arg(long, value_name = "N", default_value_t = 40)]
    top_k: usize,
    /// What is drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Sample {
    prompt: String,
    /// What comes after it; what is no text is told by a mark.
    text: String,
    tokens: Vec<i64>,
}

/// Runs the command.
pub(crate) fn run(arguments: &SampleArguments) -> Result<(), Failure> {
    let temperature = arguments.temperature;
    if !(temperature.is_finite() && temperature >= 0.0) {
        return Err(Failure::request(
            anyhow::anyhow!("--temperature is {temperature}, expected 0 or more"),
            "0.8 is a good start, 0 takes the likeliest every time",
        ));
    }
    let device = Device::flex();
    failure::refuse_device(&arguments.weights)?;
    let (config, model) = weights::load(&arguments.weights, &device)?;
    if config.vocabulary != Text::VOCABULARY {
        return Err(Failure::request(
            anyhow::anyhow!(
                "`{}` is of a model with {} words, expected the {} bytes",
                arguments.weights.display(),
                config.vocabulary,
                Text::VOCABULARY
            ),
            "give weights that `rekindle train --save` wrote: other models have words of their own",
        ));
    }
    let mut tokens: Vec<i64> = arguments.prompt.bytes().map(i64::from).collect();
    if tokens.is_empty() {
        return Err(Failure::request(
            anyhow::anyhow!("--prompt is empty, expected at least one byte to go on from"),
            "leave it out to begin with a new line",
        ));
    }
    let start = tokens.len();
    let mut random = fastrand::Rng::with_seed(arguments.seed);
    let bar = report::bar(u64::from(arguments.tokens), "writing");
    for _ in 0..arguments.tokens {
        let logits = next(&model.valid(), &config, &tokens, &device)?;
        tokens.push(draw(&logits, temperature, arguments.top_k, &mut random) as i64);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let written: Vec<u8> = tokens[start..].iter().filter_map(|token| u8::try_from(*token).ok()).collect();
    let text = String::from_utf8_lossy(&written).into_owned();
    match arguments.json {
        true => {
            let tokens = tokens[start..].to_vec();
            report::show_json(&Sample { prompt: arguments.prompt.clone(), text, tokens })
        }
        false => report::show(&format!("{}{text}", arguments.prompt)),
    }
}

/// The logits of what comes next. A model sees as much of the end as its sequences are long.
fn next(model: &Gpt, config: &GptConfig, tokens: &[i64], device: &Device) -> Result<Vec<f32>, Failure> {
    let seen = &tokens[tokens.len().saturating_sub(config.sequence)..];
    let data = TensorData::new(seen.to_vec(), [1, seen.len()]);
    let logits = model.forward(Tensor::<2, Int>::from_data(data, device), Rule::StoreAll)?;
    let last = logits.narrow(1, seen.len() - 1, 1);
    Ok(last.into_data().iter::<f32>().collect())
}

/// One of the likeliest, by chance.
fn draw(logits: &[f32], temperature: f32, top_k: usize, random: &mut fastrand::Rng) -> usize {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    let Some(likeliest) = order.first().copied() else { return 0 };
    if temperature == 0.0 {
        return likeliest;
    }
    if top_k > 0 {
        order.truncate(top_k);
    }
    let weight = |index: usize| f64::from((logits[index] - logits[likeliest]) / temperature).exp();
    let all: f64 = order.iter().map(|index| weight(*index)).sum();
    let mut left = random.f64() * all;
    for index in &order {
        left -= weight(*index);
        if left <= 0.0 {
            return *index;
        }
    }
    likeliest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likelier_is_drawn_more_often_and_nothing_below_the_top() {
        let logits = [0.0, 2.0, 1.0, -50.0];
        let mut random = fastrand::Rng::with_seed(1);
        let mut counts = [0; 4];
        for _ in 0..10_000 {
            counts[draw(&logits, 1.0, 2, &mut random)] += 1;
        }
        assert_eq!((counts[0], counts[3]), (0, 0));
        // e : 1
        assert!((7_100..7_500).contains(&counts[1]), "{counts:?}");
        assert_eq!(draw(&logits, 0.0, 0, &mut random), 1);
        assert_eq!(draw(&[f32::NAN, 1.0], 1.0, 0, &mut random), 0);
    }
}
