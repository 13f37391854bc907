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
///
/// Where the stages are the fields, by attributes, with a [`Policy`](crate::Policy) of their own:
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use rekindle::{Rule, Stages};
///
/// #[derive(Module, Debug, Stages)]
/// #[stages(Tensor<2> => Tensor<2>)]
/// struct Net {
///     #[stage(name = "layer", keep)]
///     layers: Vec<Linear>,
///     #[stage(pin)]
///     head: Linear,
/// }
///
/// let device = Device::flex().autodiff();
/// let linear = || LinearConfig::new(8, 8).init(&device);
/// let net = Net { layers: (0..4).map(|_| linear()).collect(), head: linear() };
/// let y = net.region().rule(Rule::SquareRoot).forward(Tensor::ones([2, 8], &device))?;
/// assert_eq!(y.dims(), [2, 8]);
/// assert_eq!(Net::policy().to_string(), "recompute-all, keep layer.*, pin head");
/// # Ok::<(), rekindle::Error>(())
/// ```
///
/// A struct that does not say what goes in and out is told so when it is compiled, and so is a word nobody knows:
///
/// ```compile_fail
/// # use burn::module::Module;
/// # use burn::nn::Linear;
/// # use burn::tensor::Tensor;
/// #[derive(Module, Debug, rekindle::Stages)]
/// #[stages(Tensor<2> => Tensor<2>)]
/// struct Net {
///     #[stage(keeep)]
///     head: Linear,
/// }
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
