//! A block beside something that only passes by: what a tower before it has made.

use burn::module::Module;
use burn::tensor::Tensor;
use rekindle::{Boundary, Error, Region, tail};

use super::{Activate, Attention, GptBlock, Output, Projected, Projection, Up, Wide};

impl GptBlock {
    /// One block, which hands on what stands beside its stream.
    pub(crate) fn forward_beside<C: Boundary>(
        &self,
        (beside, x): (C, Tensor<3>),
    ) -> Result<(C, Tensor<3>), Error> {
        Ok((beside, self.forward(x, None)?))
    }

    /// Adds the block to a region as six stages, which hand on what stands beside their stream.
    pub(crate) fn stages_beside<I: Boundary, C: Boundary>(
        &self,
        region: Region<I, (C, Tensor<3>)>,
        name: &str,
    ) -> Region<I, (C, Tensor<3>)> {
        let name = |part: &str| format!("{name}.{part}");
        region
            .stage(name("qkv"), &self.projection, |part: &Projection, (beside, x): (C, Tensor<3>)| {
                Ok::<_, Error>((beside, tail(|| part.forward(x))?))
            })
            .stage(name("attention"), &self.attention, |part: &Attention, (beside, x): (C, Projected)| {
                Ok::<_, Error>((beside, part.forward(x, None)?))
            })
            .continuing()
            .stage(name("projection"), &self.output, ending_with(Output::forward))
            .continuing()
            .stage(name("up"), &self.up, ending_with(|up: &Up, x| Ok(up.forward(x))))
            .continuing()
            .stage(name("activation"), &self.activation, |part: &Activate, (beside, x): (C, Wide)| {
                (beside, part.forward(x))
            })
            .continuing()
            .stage(name("down"), &self.down, ending_with(Output::forward))
            .continuing()
    }
}

/// A part that ends with a linear layer, beside something.
fn ending_with<M: Module, C: Boundary, X: Boundary, Y: Boundary>(
    forward: impl Fn(&M, X) -> Result<Y, Error> + Copy + Send + 'static,
) -> impl Fn(&M, (C, X)) -> Result<(C, Y), Error> + Copy + Send + 'static {
    move |part, (beside, x)| Ok((beside, tail(|| forward(part, x))?))
}
