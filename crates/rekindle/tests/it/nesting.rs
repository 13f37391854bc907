//! Regions inside stages of regions.

use burn::module::Module;
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::Tensor;
use rekindle::{Error, Region, Rule, checkpoint};

use crate::common::*;

#[derive(Module, Debug)]
struct Pack {
    blocks: Vec<Block>,
}

fn packs() -> Vec<Pack> {
    let blocks = blocks(8, &device());
    blocks.chunks(2).map(|blocks| Pack { blocks: blocks.to_vec() }).collect()
}

fn inner_region(pack: &Pack, x: Tensor<2>) -> Result<Tensor<2>, Error> {
    region(&pack.blocks, Rule::EVERY_ONE, x)
}

fn inner_store_all(pack: &Pack, x: Tensor<2>) -> Result<Tensor<2>, Error> {
    region(&pack.blocks, Rule::StoreAll, x)
}

fn inner_checkpoints(pack: &Pack, mut x: Tensor<2>) -> Result<Tensor<2>, Error> {
    for one in &pack.blocks {
        x = checkpoint(one, x, block)?;
    }
    Ok(x)
}

#[test]
fn a_region_in_every_stage_of_a_region() {
    let _alone = alone();
    let packs = packs();
    let x = random([4, 8], &device()).require_grad();
    for (name, inner) in [
        ("region", inner_region as fn(&Pack, Tensor<2>) -> Result<Tensor<2>, Error>),
        ("store-all", inner_store_all),
        ("checkpoints", inner_checkpoints),
    ] {
        for rule in rules() {
            same(&format!("{name} in {rule}"), || {
                let outer = Region::new().stages("pack", &packs, inner).rule(rule);
                let y = outer.forward(x.clone())?;
                let mut grads = y.powf_scalar(2.0).mean().backward();
                let input = bytes(&x.grad_remove(&mut grads).unwrap());
                Ok((input, gradients(&packs, grads)))
            });
        }
    }
}

/// What an inner region seeds when it is through is the outer one's business: otherwise the second step draws other numbers.
#[test]
fn several_steps_draw_what_plain_training_draws() {
    let _alone = alone();
    let x = random([4, 8], &device());
    for rule in rules() {
        same(&format!("three steps under {rule}"), || {
            let mut packs = packs();
            let mut adam = AdamConfig::new().init();
            for _ in 0..3 {
                let y = Region::new().stages("pack", &packs, inner_region).rule(rule).forward(x.clone())?;
                let loss = y.powf_scalar(2.0).mean();
                packs = adam.step(1e-2, packs.clone(), GradientsParams::from_grads(loss.backward(), &packs));
            }
            Ok(packs.iter().map(|pack| bytes(&pack.blocks[0].up.weight.val())).collect::<Vec<_>>())
        });
    }
}

#[test]
fn three_levels() {
    let _alone = alone();
    let packs = packs();
    let x = random([4, 8], &device());
    same("three levels", || {
        let y = checkpoint(&packs, x.clone(), |packs: &Vec<Pack>, x: Tensor<2>| {
            Region::new().stages("pack", packs, inner_checkpoints).forward(x)
        })?;
        Ok(gradients(&packs, y.powf_scalar(2.0).mean().backward()))
    });
}
