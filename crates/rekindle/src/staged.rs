//! Models that say once how they are cut into stages.

use rekindle_plan::Rule;

use crate::boundary::Boundary;
use crate::{Planned, Region};

/// A model that offers its stages, so that it can be measured, planned and run under a plan. For a module whose fields are
/// its stages, [`derive@Stages`](crate::Stages) writes it.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use rekindle::{Budget, Region, Staged};
/// # use rekindle::memory::CountingAllocator;
/// # #[global_allocator]
/// # static ALLOCATOR: CountingAllocator = CountingAllocator::system();
///
/// #[derive(Module, Debug)]
/// struct Mlp {
///     layers: Vec<Linear>,
/// }
///
/// impl Staged for Mlp {
///     type Batch = Tensor<2>;
///     type Input = Tensor<2>;
///     type Output = Tensor<2>;
///
///     fn stages(&self, batch: &Tensor<2>) -> (Region<Tensor<2>, Tensor<2>>, Tensor<2>) {
///         let region = Region::new().stages("layer", &self.layers, |layer: &Linear, x| layer.forward(x).tanh());
///         (region, batch.clone())
///     }
/// }
///
/// let device = Device::flex().autodiff();
/// let model = Mlp { layers: (0..8).map(|_| LinearConfig::new(64, 64).init(&device)).collect() };
/// let batch = Tensor::<2>::ones([2048, 64], &device);
/// let plan = rekindle::plan(&model, &batch, Budget::of_plain(0.8)?)?;
/// let loss = plan.forward(&model, &batch)?.mean();
/// let gradients = loss.backward();
/// # let _ = gradients;
/// # Ok::<(), rekindle::Error>(())
/// ```
pub trait Staged {
    /// What a step is given.
    type Batch;
    /// What the first stage reads.
    type Input: Boundary + Clone;
    /// What the last stage makes; best the loss, so that everything is in the plan.
    type Output: Boundary;

    /// The stages for a batch, and what the first of them reads.
    fn stages(&self, batch: &Self::Batch) -> (Region<Self::Input, Self::Output>, Self::Input);

    /// What people call the model.
    fn name(&self) -> String {
        let name = std::any::type_name::<Self>();
        let end = name.find('<').unwrap_or(name.len());
        name[..end].rsplit("::").next().unwrap_or(name).to_lowercase()
    }
}

/// What to run a region under.
#[derive(Clone, Copy, Debug)]
pub enum Under<'a> {
    /// A textbook rule.
    Rule(Rule),
    /// A plan made for the model.
    Planned(&'a Planned),
}

impl From<Rule> for Under<'_> {
    fn from(rule: Rule) -> Self {
        Self::Rule(rule)
    }
}

impl<'a> From<&'a Planned> for Under<'a> {
    fn from(planned: &'a Planned) -> Self {
        Self::Planned(planned)
    }
}
