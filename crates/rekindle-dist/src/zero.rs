//! The optimizer's state, and gradients, shared out among ranks.

use burn::module::Module;
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::{Tensor, TensorData};
use rekindle::Bytes;

use crate::{DataParallel, DistError, Layout};

/// What ranks share out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZeroStage {
    /// The optimizer's state.
    One,
    /// The gradients as well: no rank has the sum of all.
    Two,
}

/// Data parallel, with the optimizer's state shared out: each rank updates its part of the weights, and gets the other parts from
/// the others.
///
/// All weights are one vector, padded with zeros to a multiple of the ranks. The bits are those of an optimizer of
/// everything, if it treats every value by itself: SGD, Adam and AdamW do; one that looks at a whole layer, such as LARS or Muon,
/// would look at a part of the vector instead.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::optim::{AdamConfig, GradientsParams};
/// use burn::tensor::{Device, Tensor};
/// use rekindle_dist::{Alone, DataParallel, Zero, ZeroStage};
///
/// let ranks = Alone; // or `Mpi::start(None)?`
/// let device = Device::flex().autodiff();
/// let mut model = LinearConfig::new(4, 1).init(&device);
/// let parallel = DataParallel::new(&ranks, &model)?;
/// let mut zero = Zero::new(parallel, ZeroStage::Two, AdamConfig::new().build(), &model)?;
///
/// let loss = model.forward(Tensor::<2>::ones([2, 4], &device)).mean();
/// let gradients = GradientsParams::from_grads(rekindle::backward(&loss)?, &model);
/// model = zero.step(1e-3, model, gradients, 2)?;
/// # Ok::<(), rekindle_dist::DistError>(())
/// ```
pub struct Zero<'a, O: Optimizer> {
    parallel: DataParallel<'a>,
    stage: ZeroStage,
    optimizer: O,
    /// This rank's part of the weights, and of what the optimizer knows of them.
    weights: Tensor<1>,
    state: Option<O::State<1>>,
}

impl<O: Optimizer> std::fmt::Debug for Zero<'_, O> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Zero").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl<'a, O: Optimizer> Zero<'a, O> {
    /// Shares out the state of an optimizer, which is that of a parameter: `AdamConfig::new().build()`.
    ///
    /// # Errors
    /// When the model is not that of `parallel`, or has nothing to train.
    pub fn new(
        parallel: DataParallel<'a>,
        stage: ZeroStage,
        optimizer: O,
        model: &impl Module,
    ) -> Result<Self, DistError> {
        let ranks = parallel.ranks();
        let layout = parallel.layout();
        let part = layout.part(ranks.size());
        let mut weights = layout.weights(model)?;
        weights.resize(part * ranks.size(), 0.0);
        let own = weights[ranks.rank() * part..][..part].to_vec();
        let device = Layout::device(model).ok_or(DistError::Length { found: 0, expected: 1 })?;
        let weights = Tensor::from_data(TensorData::new(own, [part]), &device);
        Ok(Self { parallel, stage, optimizer, weights, state: None })
    }

    /// What a rank's part of a vector of all weights takes. An optimizer has none, one or two such vectors: Adam has two. A copy of
    /// the part of the weights comes on top.
    pub fn shard_bytes(&self) -> Bytes {
        Bytes::new(self.parallel.layout().part(self.parallel.ranks().size()) as u64 * 4)
    }

    /// Takes a step from each rank's gradients of the mean over its own examples.
    ///
    /// # Errors
    /// When no rank has an example, or ranks are not in step.
    pub fn step<M: Module>(
        &mut self,
        rate: f64,
        model: M,
        gradients: GradientsParams,
        examples: u64,
    ) -> Result<M, DistError> {
        let (ranks, how) = (self.parallel.ranks(), self.parallel.how());
        let part = self.parallel.layout().part(ranks.size());
        let mut values = self.parallel.weighted(&model, &gradients, examples)?;
        drop(gradients);
        values.resize(part * ranks.size(), 0.0);
        let own = match self.stage {
            ZeroStage::One => ranks.all_reduce(values, how)?[ranks.rank() * part..][..part].to_vec(),
            ZeroStage::Two => ranks.reduce_scatter(values, how)?,
        };
        let own = Tensor::from_data(TensorData::new(own, [part]), &self.weights.device());
        let (weights, state) = self.optimizer.step(rate, self.weights.clone(), own, self.state.take());
        self.weights = weights;
        self.state = state;
        let own = self.weights.to_data().try_to_vec::<f32>();
        let own =
            own.map_err(|_| DistError::Type { parameter: 1, found: format!("{:?}", self.weights.dtype()) })?;
        let weights = ranks.start_all_gather_parts(own).wait()?;
        self.parallel.layout().to_model(model, &weights)
    }
}
