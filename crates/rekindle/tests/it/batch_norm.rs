//! Running statistics move once, whatever the plan does.

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use rekindle::{Plan, Profile, Region, Rule};
use rekindle_plan::{Action, Schedule};

use crate::common::*;

#[derive(Module, Debug)]
struct Normed {
    linear: Linear,
    norm: BatchNorm,
}

fn normed(layer: &Normed, x: Tensor<2>) -> Tensor<2> {
    layer.norm.forward(layer.linear.forward(x)).tanh()
}

fn layers(device: &Device) -> Vec<Normed> {
    device.seed(4);
    let layer = |_| Normed {
        linear: LinearConfig::new(8, 8).init(device),
        norm: BatchNormConfig::new(8).init(device),
    };
    let layers: Vec<Normed> = (0..4).map(layer).collect();
    settle(&layers);
    layers
}

fn statistics(layers: &[Normed]) -> Vec<Vec<u8>> {
    let of = |layer: &Normed| {
        let norm = &layer.norm;
        [bytes(&norm.running_mean.value_sync()), bytes(&norm.running_var.value_sync())]
    };
    layers.iter().flat_map(of).collect()
}

/// Two steps on fresh layers: gradients of both, statistics after each half.
fn steps(device: &Device, schedule: &Schedule) -> Result<Vec<Vec<u8>>, rekindle::Error> {
    let layers = layers(device);
    let mut seen = vec![];
    for step in 1..3 {
        let x = random([16, 8], device) * step as f32 + 1.0;
        let region = Region::new().stages("layer", &layers, normed);
        let y = region.schedule(schedule.clone()).forward(x)?;
        seen.extend(statistics(&layers));
        let grads = gradients(&layers, y.powf_scalar(2.0).mean().backward());
        seen.extend(grads.into_iter().flatten());
        seen.extend(statistics(&layers));
    }
    Ok(seen)
}

fn schedule(text: &str) -> Schedule {
    let options = ["balanced".parse().unwrap()];
    let names = (0..4).map(|index| format!("layer.{index}"));
    let profile = Profile::unmeasured(names, &options).unwrap();
    let actions: Vec<Action> = text.lines().map(|line| line.parse().unwrap()).collect();
    Schedule::judge(&profile, &actions).unwrap().0
}

fn lines(actions: &[Action]) -> String {
    let lines: Vec<String> = actions.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

#[test]
fn statistics_move_once_under_every_rule() {
    let _alone = alone();
    for device in [device(), device().gradient_checkpointing()] {
        for rule in rules() {
            let schedule = schedule(&lines(&rule.actions(4).unwrap()));
            same(&rule.to_string(), || steps(&device, &schedule));
        }
    }
}

/// A stage taped in the forward under another strategy than the user's: its module is a private copy.
#[test]
fn statistics_move_once_under_a_balanced_tape_kept_in_the_forward() {
    let _alone = alone();
    for rule in [Rule::StoreAll, Rule::EVERY_ONE] {
        let text = lines(&rule.actions(4).unwrap());
        let balanced = |line: &str| match line.strip_prefix("tape ") {
            Some(_) => format!("{line} balanced"),
            None => line.to_owned(),
        };
        let text: Vec<String> = text.lines().map(balanced).collect();
        let schedule = schedule(&text.join("\n"));
        same(&rule.to_string(), || steps(&device(), &schedule));
    }
}

#[test]
fn the_comparison_sees_a_second_update() {
    let _alone = alone();
    let device = device();
    let (once, twice) = (layers(&device), layers(&device));
    let x = random([16, 8], &device);
    for layer in &once {
        normed(layer, x.clone());
    }
    for layer in twice.iter().chain(&twice) {
        normed(layer, x.clone());
    }
    assert_ne!(statistics(&once), statistics(&twice));
}

#[test]
fn a_plan_is_judged_for_the_regions_stages() {
    let _alone = alone();
    let device = device();
    let layers = layers(&device);
    let names = (0..4).map(|index| format!("layer.{index}"));
    let profile = Profile::unmeasured(names, &[]).unwrap();
    let plan = Plan::by_rule(&profile, Rule::SquareRoot, None).unwrap();
    let x = random([16, 8], &device);
    let region = Region::new().stages("layer", &layers, normed).plan_for(plan, profile);
    assert!(region.forward(x).unwrap().is_tracked());
}
