//! The optimizer's state, and gradients, shared out among ranks.

use std::ops::Range;

use burn::module::Module;
use burn::optim::{Adam, AdamState, AdaptiveMomentumState, GradientsParams, Optimizer};
use burn::tensor::{Tensor, TensorData};
use rekindle::Bytes;

use crate::{DataParallel, DistError, Layout, Overlap, Overlapped};

/// What ranks share out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZeroStage {
    /// Nothing: each rank has all of it.
    Off,
    /// The optimizer's state.
    One,
    /// The gradients as well: no rank has the sum of all. They are added up bucket by bucket, and each is let go of as it goes in.
    Two,
}

/// So many buckets are under way at once while a backward goes on, where a rank keeps its part alone: it hands over a stage's gradients
/// all at once, and their memory is what is saved.
const UNDER_WAY: usize = 2;

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
        let device = Layout::device(model).ok_or(DistError::Length { found: 0, expected: 1 })?;
        let empty = Tensor::from_data(TensorData::new(Vec::<f32>::new(), [0]), &device);
        let mut zero = Self { parallel, stage, optimizer, weights: empty, state: None };
        let weights = zero.parallel.layout().weights(model)?;
        zero.weights = zero.own_part(weights);
        Ok(zero)
    }

    /// How many ranks share the state, and which of them this is.
    fn shares(&self) -> (usize, usize) {
        let ranks = self.parallel.ranks();
        match self.stage {
            ZeroStage::Off => (1, 0),
            ZeroStage::One | ZeroStage::Two => (ranks.size(), ranks.rank()),
        }
    }

    /// This rank's part of a vector of all weights' length, padded.
    fn own_part(&self, mut all: Vec<f32>) -> Tensor<1> {
        let (shares, share) = self.shares();
        let part = self.parallel.layout().part(shares);
        all.resize(part * shares, 0.0);
        let own = all[share * part..][..part].to_vec();
        Tensor::from_data(TensorData::new(own, [part]), &self.weights.device())
    }

    /// All of a vector that ranks have parts of, without what pads it.
    fn whole(&self, part: &Tensor<1>) -> Result<Vec<f32>, DistError> {
        let found = format!("{:?}", part.dtype());
        let own = part.to_data().try_to_vec::<f32>();
        let own = own.map_err(|_| DistError::Type { parameter: 1, found })?;
        let mut all = match self.stage {
            ZeroStage::Off => own,
            ZeroStage::One | ZeroStage::Two => self.parallel.ranks().start_all_gather_parts(own).wait()?,
        };
        all.truncate(self.parallel.layout().len());
        Ok(all)
    }

    /// What a rank's part of a vector of all weights takes. An optimizer has none, one or two such vectors: Adam has two. A copy of
    /// the part of the weights comes on top.
    pub fn shard_bytes(&self) -> Bytes {
        Bytes::new(self.parallel.layout().part(self.shares().0) as u64 * 4)
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
        let (shares, share) = self.shares();
        let part = self.parallel.layout().part(shares);
        let own = match self.stage {
            ZeroStage::Off => {
                let sum = self.parallel.reduced(&model, &gradients, examples)?;
                drop(gradients);
                sum
            }
            ZeroStage::One => {
                let mut values = self.parallel.weighted(&model, &gradients, examples)?;
                drop(gradients);
                values.resize(part * shares, 0.0);
                ranks.all_reduce(values, how)?[share * part..][..part].to_vec()
            }
            // None of them was handed over: they are let go of as they go into buckets.
            ZeroStage::Two => {
                self.overlap_at_once(examples, 1)?.finish(&self.parallel, &model, gradients)?.sum
            }
        };
        self.update(rate, model, own)
    }

    /// Begins to add up each gradient as soon as a backward has it, as [`DataParallel::overlap`] does. With [`ZeroStage::Two`] this rank
    /// keeps its part of each sum, and a gradient that was handed over takes nothing any more; a rank without examples has all sums
    /// in the end, because it learns then where they belong.
    ///
    /// # Errors
    /// When no rank has an example, or ranks are not in step.
    pub fn overlap(&self, examples: u64) -> Result<Overlap, DistError> {
        self.overlap_at_once(examples, UNDER_WAY)
    }

    fn overlap_at_once(&self, examples: u64, at_once: usize) -> Result<Overlap, DistError> {
        let part = (self.stage == ZeroStage::Two).then(|| (self.own_range(), at_once));
        self.parallel.overlap_of(examples, part)
    }

    /// What that takes beside the backward's own memory, at the most.
    pub fn overlapping_bytes(&self) -> Bytes {
        let part = if self.stage == ZeroStage::Two { self.shard_bytes() } else { Bytes::ZERO };
        Bytes::new(self.parallel.overlapping_bytes().get() + part.get())
    }

    /// Which values are this rank's, and some behind the last.
    fn own_range(&self) -> Range<usize> {
        let (shares, share) = self.shares();
        let part = self.parallel.layout().part(shares);
        share * part..(share + 1) * part
    }

    /// Takes a step from gradients that are added up already.
    ///
    /// # Errors
    /// When they are of another model, or ranks are not in step.
    pub fn step_with<M: Module>(&mut self, rate: f64, model: M, sum: Overlapped) -> Result<M, DistError> {
        let (own, mut values, expected) = (self.own_range(), sum.sum, self.parallel.layout().len());
        if sum.part == own && values.len() == own.len() {
            return self.update(rate, model, values);
        }
        if values.len() != expected {
            return Err(DistError::Length { found: values.len(), expected });
        }
        values.resize(own.end.max(expected), 0.0);
        values.truncate(own.end);
        values.drain(..own.start);
        self.update(rate, model, values)
    }

    /// What is shared out.
    pub fn stage(&self) -> ZeroStage {
        self.stage
    }

    /// The ranks that gradients are added up over.
    pub fn parallel(&self) -> &DataParallel<'a> {
        &self.parallel
    }

    /// Updates this rank's part, and hands it around.
    fn update<M: Module>(&mut self, rate: f64, model: M, own: Vec<f32>) -> Result<M, DistError> {
        let part = own.len();
        let own = Tensor::from_data(TensorData::new(own, [part]), &self.weights.device());
        let (weights, state) = self.optimizer.step(rate, self.weights.clone(), own, self.state.take());
        self.weights = weights;
        self.state = state;
        let weights = self.whole(&self.weights)?;
        self.parallel.layout().to_model(model, &weights)
    }
}

/// What Adam knows of all weights, whoever has which part of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moments {
    /// How many steps it has seen.
    pub steps: usize,
    /// The mean of gradients, in the order of the model's fields; nothing before the first step.
    pub first: Vec<f32>,
    /// The mean of their squares.
    pub second: Vec<f32>,
}

impl Zero<'_, Adam> {
    /// What Adam knows, put together from all ranks: for a snapshot that any number of ranks can go on from.
    ///
    /// # Errors
    /// When ranks are not in step.
    pub fn moments(&self) -> Result<Moments, DistError> {
        let Some(AdamState { momentum }) = &self.state else { return Ok(Moments::default()) };
        Ok(Moments {
            steps: momentum.time,
            first: self.whole(&momentum.moment_1)?,
            second: self.whole(&momentum.moment_2)?,
        })
    }

    /// Goes on from what was known, with the weights of `model`.
    ///
    /// # Errors
    /// When the moments are of another model.
    pub fn resume(&mut self, model: &impl Module, moments: Moments) -> Result<(), DistError> {
        let weights = self.parallel.layout().weights(model)?;
        self.weights = self.own_part(weights);
        self.state = None;
        if moments.steps == 0 {
            return Ok(());
        }
        let expected = self.parallel.layout().len();
        if let Some(other) = [&moments.first, &moments.second].into_iter().find(|all| all.len() != expected) {
            return Err(DistError::Length { found: other.len(), expected });
        }
        let (first, second) = (self.own_part(moments.first), self.own_part(moments.second));
        self.state = Some(AdamState::new(AdaptiveMomentumState::new(moments.steps, first, second)));
        Ok(())
    }
}
