//! What the ready-made policies really save, and that they change no bit.

use burn::tensor::{Int, Tensor};
use rekindle::{Measuring, Planner, Policy, Rule, Staged};
use rekindle_models::{Activation, Gpt, GptBatch, GptConfig, Positions, Trainable};

use crate::budgets::on_a_steady_clock;
use crate::common::{alone, device};
use crate::step::step;

const SEQUENCE: usize = 256;

fn config() -> GptConfig {
    GptConfig::new(64, 64, 4, 12, SEQUENCE)
}

fn tokens() -> GptBatch {
    let numbers = Tensor::<1, Int>::arange(0..SEQUENCE as i64 + 1, &device()).remainder_scalar(64);
    let window = |start: usize| numbers.clone().narrow(0, start, SEQUENCE).reshape([1, SEQUENCE]);
    GptBatch { tokens: window(0), targets: window(1) }
}

/// What a policy takes of plain's peak; the gradients are the same to the bit.
fn part_of_plain(policy: &str, config: &GptConfig) -> f64 {
    device().seed(3);
    let model: Gpt = config.init(&device()).unwrap();
    let (batch, cut) = (tokens(), model.fine());
    let policy: Policy = policy.parse().unwrap();
    // The first step makes lazy things.
    step(&model, &cut, &batch, Rule::EVERY_ONE.into());
    let (expected, plain) =
        rekindle::without_checkpointing(|| step(&model, &cut, &batch, Rule::StoreAll.into()));
    assert!(expected.iter().all(|gradient| !gradient.is_empty()));
    let found = rekindle::measure(&cut, &batch, Measuring::steady(), &mut |_, _| {}).unwrap();
    let noise = found.noise();
    let profile = on_a_steady_clock(&found.into_profile(cut.name(), "flex").unwrap());
    let planner = Planner::new(rekindle::Budget::smallest()).profile(profile, noise);
    let planned = planner.plan_policy(&policy, &cut, &batch).unwrap();
    let (gradients, peak) = step(&model, &cut, &batch, (&planned).into());
    assert!(gradients == expected, "{policy} of {config}: gradients differ");
    peak.get() as f64 / plain.get() as f64
}

/// With attention that keeps no scores it saved nothing.
#[test]
fn selective_saves_two_fifths_with_every_kind_of_block() {
    alone(|| {
        let gated = config()
            .with_activation(Activation::SwiGlu)
            .with_positions(Positions::Rotary { base: 10_000.0 })
            .with_hidden(Some(176));
        for (name, config) in [("ours", config()), ("gated", gated), ("burn", config().with_burn(true))] {
            let part = part_of_plain("selective", &config);
            assert!(part <= 0.62, "{name}: {part}");
        }
    });
}

/// It took 88%: the products of perceptrons stayed, and what activations made of them as well.
#[test]
fn dots_saveable_keeps_no_more_than_products() {
    alone(|| {
        let part = part_of_plain("dots-saveable", &config());
        assert!(part <= 0.7, "{part}");
    });
}
