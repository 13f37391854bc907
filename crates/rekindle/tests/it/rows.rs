//! Tapes that are one graph: large tensors between stages, kept one right behind the other.

use burn::module::Module;
use burn::nn::{Dropout, LayerNorm, Linear};
use burn::tensor::Tensor;
use rekindle::{Region, Rule, what_is_kept};

use crate::common::*;

/// Rows enough that each tensor of width 8 takes 128 KiB, from which on tapes are joined.
const ROWS: usize = 4096;

/// The first half of a block.
#[derive(Module, Debug)]
struct Up {
    norm: LayerNorm,
    linear: Linear,
}

/// The second half.
#[derive(Module, Debug)]
struct Down {
    linear: Linear,
    dropout: Dropout,
}

/// Blocks cut in two, with the residual passed on. Burn's norm reads its input several times, so that a gradient is a sum
/// of more than two: its order tells.
fn halves(blocks: &[Block]) -> Region<Tensor<2>, Tensor<2>> {
    blocks.iter().enumerate().fold(
        Region::new().stage("in", &rekindle::NoModule, |_, x| x),
        |region, (index, block)| {
            let up = Up { norm: block.norm.clone(), linear: block.up.clone() };
            let down = Down { linear: block.down.clone(), dropout: block.dropout.clone() };
            region
                .stage(format!("{index}.up"), &up, |up: &Up, x: Tensor<2>| {
                    (x.clone(), up.linear.forward(up.norm.forward(x)).tanh())
                })
                .stage(format!("{index}.down"), &down, |down: &Down, (x, hidden): (Tensor<2>, Tensor<2>)| {
                    x + down.dropout.forward(down.linear.forward(hidden))
                })
        },
    )
}

#[test]
fn gradients_of_tapes_in_a_row_are_those_of_plain_training() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(4, &device);
    let x = random([ROWS, 8], &device).require_grad();
    for rule in ["store-all", "every-2", "every-3", "every-5", "full", "sqrt"] {
        let rule: Rule = rule.parse().unwrap();
        for cut in [true, false] {
            same(&format!("{rule}, in halves: {cut}"), || {
                let region = match cut {
                    true => halves(&blocks).rule(rule),
                    false => Region::new().stages("block", &blocks, block).rule(rule),
                };
                let y = region.forward(x.clone() * 2.0)?;
                let mut grads = y.powf_scalar(2.0).mean().backward();
                let input = bytes(&x.grad_remove(&mut grads).unwrap());
                Ok((input, gradients(&blocks, grads)))
            });
        }
    }
}

#[test]
fn a_parameter_that_stages_of_a_row_share_is_added_up_as_burn_does() {
    let _alone = alone();
    let device = device();
    let block_once = blocks(1, &device);
    let tied: Vec<Block> = (0..5).map(|_| block_once[0].clone()).collect();
    let x = random([ROWS, 8], &device);
    same("tied", || {
        let y = Region::new().stages("block", &tied, block).rule(Rule::StoreAll).forward(x.clone())?;
        Ok(gradients(&block_once, y.powf_scalar(2.0).mean().backward()))
    });
}

#[test]
fn each_stage_of_a_row_is_listed() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(4, &device);
    let x = random([ROWS, 8], &device);
    let region = Region::new().stages("block", &blocks, block).rule(Rule::StoreAll);
    let (y, kept) = what_is_kept(|| region.forward(x));
    assert_eq!(y.unwrap().dims(), [ROWS, 8]);
    let tapes: Vec<&str> = kept.rows().iter().map(|row| row.what.as_str()).collect();
    assert_eq!(tapes, ["tape 1", "tape 2", "tape 3", "tape 4"]);
}
