//! A step of training, watched: what examples that compare steps have in common.

use std::time::{Duration, Instant};

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use rekindle::{Bytes, memory};

/// What a step came to.
pub(crate) struct Step {
    /// The gradient of each parameter; empty where there is none.
    pub(crate) gradients: Vec<Vec<f32>>,
    /// The most bytes above those before it.
    pub(crate) peak: Bytes,
    pub(crate) time: Duration,
}

impl Step {
    /// Whether all gradients are the same, bit for bit.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        bits(&self.gradients).eq(bits(&other.gradients))
            && self.gradients.iter().map(Vec::len).eq(other.gradients.iter().map(Vec::len))
    }
}

fn bits(gradients: &[Vec<f32>]) -> impl Iterator<Item = u32> {
    gradients.iter().flatten().map(|value| value.to_bits())
}

/// Runs a step from the same random numbers every time.
pub(crate) fn watched<M: Module>(
    model: &M,
    run: impl FnOnce() -> Result<GradientsParams, rekindle::Error>,
) -> Result<Step, rekindle::Error> {
    rekindle::seed(1);
    rekindle::sweep();
    let before = memory::live().unwrap_or_default();
    memory::reset_peak();
    let start = Instant::now();
    let found = run()?;
    let (time, peak) = (start.elapsed(), memory::peak().unwrap_or_default().saturating_sub(before));
    struct Collect<'a>(&'a GradientsParams, Vec<Vec<f32>>);
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = self.0.get::<D>(param.id).map(|gradient| gradient.into_data().iter().collect());
            self.1.push(gradient.unwrap_or_default());
        }
    }
    let mut collect = Collect(&found, Vec::new());
    model.visit(&mut collect);
    Ok(Step { gradients: collect.1, peak, time })
}
