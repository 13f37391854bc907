//! A small model with dropout, whose stages run under checkpoints.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor};
use rekindle::{Error, Region, Rule};
use rekindle_dist::Reduction;
use rekindle_dist::pipeline::boundaries_wait;

pub(crate) const WIDTH: usize = 9;

#[derive(Module, Debug)]
pub(crate) struct Block {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
    dropout: Dropout,
}

pub(crate) fn device() -> Device {
    Device::flex().autodiff()
}

/// As many blocks, the same on every rank.
pub(crate) fn blocks(count: usize) -> Vec<Block> {
    wide_blocks(count, WIDTH)
}

/// The same of another width.
pub(crate) fn wide_blocks(count: usize, width: usize) -> Vec<Block> {
    let device = device();
    device.seed(11);
    let blocks: Vec<Block> = (0..count)
        .map(|_| Block {
            norm: LayerNormConfig::new(width).init(&device),
            up: LinearConfig::new(width, 2 * width).init(&device),
            down: LinearConfig::new(2 * width, width).init(&device),
            dropout: DropoutConfig::new(0.2).init(),
        })
        .collect();
    // Burn draws weights when they are looked at first.
    let _ = bits(&blocks);
    blocks
}

/// Some blocks under checkpoints. What is dropped depends on the seed alone.
pub(crate) fn forward(blocks: &[Block], input: Tensor<2>, seed: u64) -> Result<Tensor<2>, Error> {
    region(blocks, seed).rule(Rule::EVERY_ONE).forward(input)
}

/// The same, with nothing but boundaries kept until the backward.
pub(crate) fn forward_to_wait(blocks: &[Block], input: Tensor<2>, seed: u64) -> Result<Tensor<2>, Error> {
    let schedule = boundaries_wait(u32::try_from(blocks.len()).unwrap()).unwrap();
    region(blocks, seed).schedule(schedule).forward(input)
}

/// Some blocks as stages.
pub(crate) fn region(blocks: &[Block], seed: u64) -> Region<Tensor<2>, Tensor<2>> {
    rekindle::seed(seed);
    device().seed(seed);
    let block = |block: &Block, x: Tensor<2>| {
        let hidden = block.up.forward(block.norm.forward(x.clone())).tanh();
        x + block.dropout.forward(block.down.forward(hidden))
    };
    Region::new().stages("block", blocks, block)
}

pub(crate) fn loss(output: Tensor<2>) -> Tensor<1> {
    output.powf_scalar(2.0).mean()
}

pub(crate) fn examples(count: usize, seed: u64) -> Tensor<2> {
    device().seed(seed);
    Tensor::random([count, WIDTH], Distribution::Normal(0.0, 1.0), &device())
}

/// All weights, to the bit.
pub(crate) fn bits(module: &impl Module) -> Vec<Vec<u8>> {
    struct Collect(Vec<Vec<u8>>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.val().to_data().as_bytes().to_vec());
        }
    }
    let mut collect = Collect(Vec::new());
    module.visit(&mut collect);
    collect.0
}

/// All weights, as numbers.
pub(crate) fn numbers(module: &impl Module) -> Vec<f32> {
    let bytes = bits(module).concat();
    bytes.as_chunks::<4>().0.iter().copied().map(f32::from_le_bytes).collect()
}

/// How far apart sums in another order may bring weights in ten steps of Adam, each of which moves them by a hundredth.
const CLOSE: f32 = 1e-3;

/// Bit for bit where sums are ordered by rank, and close where they are MPI's own.
pub(crate) fn same(how: Reduction, found: &impl Module, expected: &impl Module, what: &str) {
    match how {
        Reduction::Ordered => assert!(bits(found) == bits(expected), "{what}: bit for bit"),
        Reduction::Native => close(&numbers(found), &numbers(expected), what),
    }
}

pub(crate) fn close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let apart = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    // Not by the largest of them: that of anything and NaN is the other.
    assert!(apart.clone().all(|apart| apart < CLOSE), "{what}: {}", apart.fold(0.0, f32::max));
}
