//! Small models, and a way to hold two runs against each other.

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Distribution, Gradients, Tensor};
use rekindle::{Error, Region, Rule, without_checkpointing};

/// One test at a time.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn device() -> Device {
    Device::flex().autodiff()
}

/// A pre-norm residual block with dropout: its input is used twice, as in a transformer.
#[derive(Module, Debug)]
pub(crate) struct Block {
    pub(crate) norm: LayerNorm,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
    pub(crate) dropout: Dropout,
}

impl Block {
    pub(crate) fn new(width: usize, device: &Device) -> Self {
        Self {
            norm: LayerNormConfig::new(width).init(device),
            up: LinearConfig::new(width, 2 * width).init(device),
            down: LinearConfig::new(2 * width, width).init(device),
            dropout: DropoutConfig::new(0.3).init(),
        }
    }

    pub(crate) fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let hidden = self.up.forward(self.norm.forward(x.clone())).tanh();
        x + self.dropout.forward(self.down.forward(hidden))
    }
}

pub(crate) fn block(block: &Block, x: Tensor<2>) -> Tensor<2> {
    block.forward(x)
}

pub(crate) fn blocks(count: usize, device: &Device) -> Vec<Block> {
    device.seed(11);
    let blocks: Vec<Block> = (0..count).map(|_| Block::new(8, device)).collect();
    settle(&blocks);
    blocks
}

/// Initialises the parameters, which draws random numbers.
pub(crate) fn settle(module: &impl Module) {
    struct Touch;
    impl ModuleVisitor for Touch {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let _ = param.val();
        }
    }
    module.visit(&mut Touch);
}

pub(crate) fn random(shape: [usize; 2], device: &Device) -> Tensor<2> {
    device.seed(5);
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
}

pub(crate) fn bytes<const D: usize>(tensor: &Tensor<D>) -> Vec<u8> {
    tensor.to_data().as_bytes().to_vec()
}

/// Every parameter's gradient, `None` where Burn has none.
pub(crate) fn gradients(module: &impl Module, gradients: Gradients) -> Vec<Option<Vec<u8>>> {
    struct Collect(GradientsParams, Vec<Option<Vec<u8>>>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1.push(self.0.get::<D>(param.id).map(|gradient| bytes(&gradient)));
        }
    }
    let mut collect = Collect(GradientsParams::from_grads(gradients, module), Vec::new());
    module.visit(&mut collect);
    collect.1
}

/// Runs `step` checkpointed and plain, from the same seed, and wants the same result.
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(what: &str, step: impl Fn() -> Result<T, Error>) -> T {
    rekindle::seed(3);
    device().seed(17);
    let plain = without_checkpointing(&step).unwrap();
    rekindle::seed(3);
    device().seed(17);
    let checkpointed = step().unwrap();
    assert!(plain == checkpointed, "{what} differs from plain training");
    plain
}

/// The rules a region is tried under.
pub(crate) fn rules() -> Vec<Rule> {
    let every = |k: usize| format!("every-{k}").parse().unwrap();
    vec![Rule::StoreAll, Rule::Full, every(1), every(2), every(3), Rule::SquareRoot]
}

pub(crate) fn region(blocks: &[Block], rule: Rule, x: Tensor<2>) -> Result<Tensor<2>, Error> {
    Region::new().stages("block", blocks, block).rule(rule).forward(x)
}
