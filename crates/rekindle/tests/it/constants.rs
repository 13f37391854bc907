//! Tensors in a module that are no parameters: tables of positions, masks, numbers of rows. Burn's mappers do not see them, and those of
//! integers and booleans hardly anybody maps.

use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, PositionalEncoding, PositionalEncodingConfig};
use burn::tensor::{Bool, Device, Distribution, Int, Tensor};
use rekindle::{Error, Measuring, NoModule, Profile, Region, Schedule};

use crate::common::*;

#[derive(Module, Debug)]
struct Posed {
    positions: PositionalEncoding,
    mask: Tensor<2, Bool>,
    rows: Param<Tensor<1, Int>>,
    norm: BatchNorm,
    block: Block,
}

fn posed(device: &Device) -> Vec<Posed> {
    let make = |block: Block| Posed {
        positions: PositionalEncodingConfig::new(8).init(device),
        mask: Tensor::from_data([[true, false, false, true], [false; 4], [true; 4], [false; 4]], device)
            .repeat_dim(1, 2),
        rows: Param::initialized(burn::module::ParamId::new(), Tensor::from_data([3, 1, 0, 2], device)),
        norm: BatchNormConfig::new(8).init(device),
        block,
    };
    let all: Vec<Posed> = blocks(3, device).into_iter().map(make).collect();
    settle(&all);
    all
}

fn pose(posed: &Posed, x: Tensor<2>) -> Tensor<2> {
    let x = posed.positions.forward(x.unsqueeze::<3>()).squeeze_dim::<2>(0);
    let x = x.mask_fill(posed.mask.clone(), 0.5).select(0, posed.rows.val());
    posed.block.forward(posed.norm.forward(x))
}

/// On a device with balanced checkpointing a recomputation once panicked: what it ran on was of the default strategy.
#[test]
fn constants_are_of_the_strategy_of_the_device_when_a_stage_is_run_again() {
    let _alone = alone();
    for device in [device(), device().gradient_checkpointing()] {
        device.seed(7);
        let x = Tensor::<2>::random([4, 8], Distribution::Default, &device);
        for rule in rules() {
            same(&rule.to_string(), || {
                let mut all = posed(&device);
                all[1].block = all[1].block.clone().no_grad();
                let mut found = Vec::new();
                for _ in 0..2 {
                    let y = Region::new().stages("posed", &all, pose).rule(rule).forward(x.clone())?;
                    found.extend(gradients(&all, y.powf_scalar(2.0).mean().backward()));
                    let statistics = all
                        .valid()
                        .iter()
                        .map(|one| bytes(&one.norm.running_mean.value()))
                        .collect::<Vec<_>>();
                    found.extend(statistics.into_iter().map(Some));
                }
                Ok(found)
            });
        }
    }
}

/// A stage that has nothing but constants has no parameter that tells its strategy.
#[test]
fn a_stage_of_constants_alone() {
    let _alone = alone();
    for device in [device(), device().gradient_checkpointing()] {
        let positions: Vec<PositionalEncoding> =
            (0..3).map(|_| PositionalEncodingConfig::new(8).init(&device)).collect();
        let x = random([4, 8], &device).require_grad();
        for rule in rules() {
            same(&rule.to_string(), || {
                let add = |positions: &PositionalEncoding, x: Tensor<2>| {
                    positions.forward(x.unsqueeze::<3>()).squeeze_dim::<2>(0).tanh()
                };
                let y = Region::new().stages("positions", &positions, add).rule(rule).forward(x.clone())?;
                Ok(x.grad(&y.powf_scalar(2.0).sum().backward()).map(|gradient| bytes(&gradient)))
            });
        }
    }
}

fn judged(text: &str) -> Schedule {
    let profile = Profile::unmeasured((0..3).map(|i| i.to_string()), &["balanced".parse().unwrap()]).unwrap();
    let actions: Vec<_> = text.split('/').map(|line| line.parse().unwrap()).collect();
    Schedule::judge(&profile, &actions).unwrap().0
}

/// Nobody can give a constant another strategy than that of its device, so such a stage has no balanced tape beside plain ones. The
/// planner once failed on it, and plans panicked.
#[test]
fn a_stage_with_constants_has_no_balanced_tape_on_a_device_without() {
    let _alone = alone();
    let device = device();
    let all = posed(&device);
    let x = random([4, 8], &device);
    let region = || Region::new().stages("posed", &all, pose);
    for (text, stage) in [
        ("tape 1/tape 2/tape 3 balanced/backward 3/backward 2/backward 1", 3),
        ("keep x0/forward 1/tape 2 balanced/tape 3/backward 3/backward 2/tape 1/drop x0/backward 1", 2),
    ] {
        let error = region().schedule(judged(text)).forward(x.clone()).unwrap_err();
        assert!(
            matches!(&error, Error::ConstantOption { stage: found, .. } if *found == stage),
            "{text}: {error}"
        );
    }
    // In the backward, too.
    let later = "keep x0/forward 1/tape 2/tape 3/backward 3/backward 2/tape 1 balanced/drop x0/backward 1";
    let y = region().schedule(judged(later)).forward(x.clone()).unwrap();
    let error = rekindle::backward(&y.sum()).err().unwrap();
    assert!(matches!(error, Error::ConstantOption { stage: 1, .. }), "{error}");
    // Others have one, and a planner is told of no other.
    let mixed = region().stage("tanh", &NoModule, |_: &NoModule, x: Tensor<2>| x.tanh());
    let found = mixed.measure(x, Measuring { runs: 1, ..Measuring::default() }, &mut |_, _| {}).unwrap();
    let options: Vec<usize> = found.stages.iter().map(|stage| stage.options.len()).collect();
    assert_eq!(options, [0, 0, 0, 1]);
}
