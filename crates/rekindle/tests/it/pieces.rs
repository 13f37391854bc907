//! Regions in pieces: stages whose tapes are kept run on the user's graph, and those between them are nodes of it.

use std::cell::RefCell;

use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Distribution, Tensor};
use rekindle::{
    Dropout, DropoutConfig, Error, NoModule, Profile, Region, Schedule, TraceHandle, backward, what_is_kept,
};
use rekindle_plan::{Action, Piece};

use crate::common::*;

/// Kept, run again, kept in both ways, run again twice, kept.
const MIXED: &str = "tape 1/forward 2/tape 3 balanced/tape 4/forward 5/forward 6/tape 7/backward 7\
    /forward 5/tape 6/backward 6/tape 5/backward 5/backward 4/backward 3/tape 2/backward 2/backward 1";

/// The same with the middle kept and the ends run again.
const INSIDE_OUT: &str = "keep x0/forward 1/forward 2/tape 3/tape 4 balanced/tape 5 balanced/forward 6/forward 7\
    /tape 6/tape 7/backward 7/backward 6/backward 5/backward 4/backward 3/tape 1/tape 2/drop x0/backward 2/backward 1";

fn judged(text: &str) -> Schedule {
    let names = (0..7).map(|index| format!("block.{index}"));
    let profile = Profile::unmeasured(names, &["balanced".parse().unwrap()]).unwrap();
    let actions: Vec<Action> = text.split('/').map(|line| line.trim().parse().unwrap()).collect();
    Schedule::judge(&profile, &actions).unwrap().0
}

fn schedules() -> [Schedule; 2] {
    let schedules = [judged(MIXED), judged(INSIDE_OUT)];
    for schedule in &schedules {
        let pieces = schedule.pieces(|_, _| true);
        assert!(pieces.iter().any(|piece| matches!(piece, Piece::Plain { .. })), "{pieces:?}");
        assert!(pieces.iter().any(|piece| matches!(piece, Piece::Planned { .. })), "{pieces:?}");
    }
    schedules
}

#[test]
fn gradients_are_those_of_plain_training() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(7, &device);
    let x = random([4, 8], &device).require_grad();
    for schedule in schedules() {
        same("pieces", || {
            let region = Region::new().stages("block", &blocks, block).schedule(schedule.clone());
            // Around a residual, and with the output in use twice.
            let y = region.forward(x.clone() * 2.0)? + x.clone();
            let mut grads = (y.clone() * y.sin()).mean().backward();
            let input = bytes(&x.grad_remove(&mut grads).unwrap());
            Ok((input, gradients(&blocks, grads)))
        });
    }
}

#[test]
fn several_steps_draw_what_plain_training_draws() {
    let _alone = alone();
    let device = device();
    let x = random([4, 8], &device);
    for schedule in schedules() {
        same("three steps", || {
            let mut blocks = blocks(7, &device);
            let mut adam = AdamConfig::new().init();
            for _ in 0..3 {
                let region = Region::new().stages("block", &blocks, block).schedule(schedule.clone());
                let loss = region.forward(x.clone())?.powf_scalar(2.0).mean();
                let grads = GradientsParams::from_grads(loss.backward(), &blocks);
                blocks = adam.step(1e-2, blocks, grads);
            }
            // What is drawn after a step, too.
            let after = Tensor::<2>::random([2, 2], Distribution::Default, &device);
            Ok((bytes(&blocks[0].up.weight.val()), bytes(&blocks[6].down.weight.val()), bytes(&after)))
        });
    }
}

#[derive(Module, Debug)]
struct Part {
    linear: Linear,
    dropout: Dropout,
}

fn part(part: &Part, x: Tensor<2>) -> Tensor<2> {
    part.dropout.forward(part.linear.forward(x).tanh())
}

#[test]
fn a_stage_goes_on_drawing_where_another_piece_stopped() {
    let _alone = alone();
    let device = device();
    device.seed(2);
    let one = |_| Part {
        linear: LinearConfig::new(8, 8).init(&device),
        dropout: DropoutConfig::new(0.4).init().unwrap(),
    };
    let parts: Vec<Part> = (0..7).map(one).collect();
    settle(&parts);
    let x = random([4, 8], &device);
    for schedule in schedules() {
        let cut = same("continuing stages", || {
            let mut region = Region::new().stage("part.0", &parts[0], part);
            for (index, one) in parts.iter().enumerate().skip(1) {
                region = region.stage(format!("part.{index}"), one, part).continuing();
            }
            let y = region.schedule(schedule.clone()).forward(x.clone())?;
            Ok(gradients(&parts, y.powf_scalar(2.0).mean().backward()))
        });
        let whole = same("one stage", || {
            let all = |parts: &Vec<Part>, x: Tensor<2>| parts.iter().fold(x, |x, one| part(one, x));
            let y = rekindle::checkpoint(&parts, x.clone(), all)?;
            Ok(gradients(&parts, y.powf_scalar(2.0).mean().backward()))
        });
        assert_eq!(cut, whole);
    }
}

#[derive(Module, Debug)]
struct Normed {
    linear: Linear,
    norm: BatchNorm,
}

#[test]
fn running_statistics_move_once() {
    let _alone = alone();
    let device = device();
    let x = random([16, 8], &device);
    for schedule in schedules() {
        same("statistics", || {
            device.seed(4);
            let layer = |_| Normed {
                linear: LinearConfig::new(8, 8).init(&device),
                norm: BatchNormConfig::new(8).init(&device),
            };
            let layers: Vec<Normed> = (0..7).map(layer).collect();
            let mut seen = Vec::new();
            for _ in 0..2 {
                let forward =
                    |layer: &Normed, x: Tensor<2>| layer.norm.forward(layer.linear.forward(x)).tanh();
                let region = Region::new().stages("layer", &layers, forward).schedule(schedule.clone());
                let loss = region.forward(x.clone())?.powf_scalar(2.0).mean();
                seen.push(gradients(&layers, loss.backward()));
            }
            let statistics = layers.iter().map(|layer| bytes(&layer.norm.running_mean.value_sync()));
            Ok((seen, statistics.collect::<Vec<_>>()))
        });
    }
}

#[test]
fn a_parameter_of_several_pieces_is_added_up_as_burn_does() {
    let _alone = alone();
    let device = device();
    let mut tied = blocks(7, &device);
    // Two, three and seven uses of what stands in kept stages and in others.
    let weight = Param::initialized(tied[0].up.weight.id, tied[0].up.weight.val());
    [1, 3, 5].into_iter().for_each(|index| tied[index].up.weight = weight.clone());
    let norm = tied[0].norm.clone();
    tied.iter_mut().for_each(|block| block.norm = norm.clone());
    tied[6].down = tied[2].down.clone();
    let x = random([4, 8], &device).require_grad();
    for schedule in schedules() {
        same("tied", || {
            let region = Region::new().stages("block", &tied, block).schedule(schedule.clone());
            let y = region.forward(x.clone())?;
            Ok(gradients(&tied, y.powf_scalar(2.0).mean().backward()))
        });
    }
}

#[test]
fn frozen_beginnings_and_ends() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(7, &device);
    for frozen in [0..3, 2..5, 4..7, 0..7] {
        let some = blocks.iter().enumerate().map(|(index, block)| match frozen.contains(&index) {
            true => block.clone().no_grad(),
            false => block.clone(),
        });
        let some: Vec<Block> = some.collect();
        for tracked in [true, false] {
            let x = random([4, 8], &device);
            let x = if tracked { x.require_grad() } else { x };
            if !tracked && frozen.len() == 7 {
                continue;
            }
            for schedule in schedules() {
                same(&format!("{frozen:?} frozen, input tracked: {tracked}"), || {
                    let region = Region::new().stages("block", &some, block).schedule(schedule.clone());
                    let grads = region.forward(x.clone())?.powf_scalar(2.0).mean().backward();
                    Ok((x.grad(&grads).map(|gradient| bytes(&gradient)), gradients(&some, grads)))
                });
            }
        }
    }
}

#[test]
fn several_outputs_pass_by_and_one_is_not_used() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(7, &device);
    let x = random([4, 8], &device).require_grad();
    for schedule in schedules() {
        same("a pair", || {
            let pair = |one: &Block, (a, b): (Tensor<2>, Tensor<2>)| (one.forward(a), b);
            let region = Region::new().stages("block", &blocks, pair).schedule(schedule.clone());
            let (a, b) = region.forward((x.clone() * 2.0, x.clone().sin()))?;
            let used = a.sum();
            drop(b);
            let grads = used.backward();
            Ok((bytes(&x.grad(&grads).unwrap()), gradients(&blocks, grads)))
        });
    }
}

/// Two branches that meet in the end, or of which one is left: on the user's graph the stages of both would go back at the same time.
#[test]
fn two_branches_go_back_one_after_the_other() {
    type Pair = (Tensor<2>, Tensor<2>);
    fn first(layer: &Block, (a, b): Pair) -> Pair {
        (layer.forward(a), b)
    }
    fn second(layer: &Block, (a, b): Pair) -> Pair {
        (a, layer.forward(b))
    }
    let _alone = alone();
    let device = device();
    let blocks = blocks(7, &device);
    // Two, because three uses of one on parallel branches have no order that a region could keep.
    let (x, z) = (random([4, 8], &device).require_grad(), random([4, 8], &device).require_grad());
    for schedule in schedules() {
        for meet in [|(a, b): Pair| (a * b).mean(), |(_, b): Pair| b.powf_scalar(2.0).mean()] {
            same("two branches", || {
                let region = Region::new().stages("first", &blocks[..4], first);
                let region = region.stages("second", &blocks[4..], second).schedule(schedule.clone());
                let loss = meet(region.forward((x.clone(), z.clone() * 2.0))?);
                let grads = loss.backward();
                // Of what reaches the loss: the other has no gradient in plain training, and zeros here.
                let of_input = bytes(&z.grad(&grads).unwrap());
                Ok((of_input, gradients(&blocks[4..].to_vec(), grads)))
            });
        }
    }
}

#[test]
fn a_region_in_pieces_inside_of_a_stage() {
    #[derive(Module, Debug)]
    struct Pack {
        blocks: Vec<Block>,
    }
    fn inner(pack: &Pack, x: Tensor<2>) -> Result<Tensor<2>, Error> {
        Region::new().stages("block", &pack.blocks, block).schedule(judged(MIXED)).forward(x)
    }
    let _alone = alone();
    let blocks = blocks(14, &device());
    let packs: Vec<Pack> = blocks.chunks(7).map(|blocks| Pack { blocks: blocks.to_vec() }).collect();
    let x = random([4, 8], &device());
    for rule in rules() {
        same(&format!("nested in {rule}"), || {
            let y = Region::new().stages("pack", &packs, inner).rule(rule).forward(x.clone())?;
            Ok(gradients(&packs, y.powf_scalar(2.0).mean().backward()))
        });
    }
}

/// Stages are called by their place in the region, whichever piece they are in.
#[test]
fn listings_and_errors_have_the_numbers_of_the_region() {
    thread_local! {
        static SHAPES: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    }
    fn grows(_: &NoModule, x: Tensor<2>) -> Tensor<2> {
        let again = SHAPES.with_borrow_mut(|shapes| {
            shapes.push(0);
            shapes.len() > 1
        });
        if again { Tensor::cat(vec![x.clone(), x], 0) } else { x }
    }
    let _alone = alone();
    let device = device();
    let blocks = blocks(7, &device);
    let x = random([4, 8], &device);
    let region = Region::new().stages("block", &blocks, block).schedule(judged(MIXED));
    let kept = what_is_kept(|| region.forward(x.clone()).unwrap()).1;
    let rows: Vec<&str> = kept.rows().iter().map(|row| row.what.as_str()).collect();
    let input = |number: usize| format!("x{number}, the stage's input");
    assert_eq!(rows, ["tape 1", &input(1), "tape 3", "tape 4", &input(4), "tape 7"]);
    let region = Region::new().stages("block", &blocks[..4], block);
    let region = region.stage("grows", &NoModule, grows).stages("block", &blocks[5..], block);
    let y = region.schedule(judged(MIXED)).forward(x).unwrap();
    let error = backward(&y.sum()).err().unwrap();
    assert!(matches!(&error, Error::StageChanged { stage: 5, name, .. } if name == "grows"), "{error}");
}

#[test]
fn whoever_asks_for_a_trace_is_told_of_the_whole_plan() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(7, &device);
    let x = random([4, 8], &device);
    let trace = TraceHandle::new();
    let region = Region::new().stages("block", &blocks, block).schedule(judged(MIXED)).trace(&trace);
    backward(&region.forward(x).unwrap().sum()).unwrap();
    let trace = trace.get().unwrap();
    let actions: Vec<String> = trace.events().iter().map(|event| event.action.to_string()).collect();
    assert_eq!(actions.join("/"), MIXED.replace("    ", ""));
}
