//! Ranks with the same weights and different examples.

use std::ops::Range;

use burn::module::Module;
use burn::optim::GradientsParams;
use rekindle::Bytes;

use crate::agree::agree;
use crate::overlap::{Overlap, Overlapped};
use crate::{Collective, DistError, Layout, Reduction};

/// What a bucket holds unless said otherwise: large enough that the time of a message does not tell, small enough that the
/// first is on its way while the others are laid out.
const BUCKET: Bytes = Bytes::mebibytes(4);

/// Ranks with the same weights and different examples: their gradients are added up, and all of them take the same step.
///
/// Recomputing is each rank's own business and needs nobody else. A gradient is reduced once, after all stages and all
/// micro-batches it comes from, in buckets; while one is on its way the next is laid out.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::optim::{GradientsParams, SgdConfig};
/// use burn::tensor::{Device, Tensor};
/// use rekindle::checkpoint;
/// use rekindle_dist::{Alone, DataParallel};
///
/// let ranks = Alone; // or `Mpi::start(None)?`
/// let device = Device::flex().autodiff();
/// let mut model = LinearConfig::new(4, 1).init(&device);
/// let parallel = DataParallel::new(&ranks, &model)?;
/// let mut optimizer = SgdConfig::new().init();
///
/// let batch = Tensor::<2>::ones([2, 4], &device);
/// let loss = checkpoint(&model, batch, |model, batch| model.forward(batch))?.mean();
/// let gradients = GradientsParams::from_grads(rekindle::backward(&loss)?, &model);
/// // The mean over the two examples here, and those of all other ranks.
/// let gradients = parallel.reduce(&model, &gradients, 2)?;
/// model = optimizer.step(0.1, model, gradients);
/// # Ok::<(), rekindle_dist::DistError>(())
/// ```
pub struct DataParallel<'a> {
    ranks: &'a dyn Collective,
    layout: Layout,
    reduction: Reduction,
    bucket: Bytes,
}

impl std::fmt::Debug for DataParallel<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = self.ranks.size();
        formatter.debug_struct("DataParallel").field("ranks", &size).finish_non_exhaustive()
    }
}

impl<'a> DataParallel<'a> {
    /// For a model that is the same on all ranks.
    ///
    /// # Errors
    /// When a rank's model has other shapes, or a trained parameter is not of f32.
    pub fn new(ranks: &'a dyn Collective, model: &impl Module) -> Result<Self, DistError> {
        let layout = Layout::new(model)?;
        // Not only how many values each has: a matrix of another orientation would be added up without a word.
        let shapes: Vec<String> = layout
            .shapes()
            .map(|(_, shape)| shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x"))
            .collect();
        agree(ranks, "the shape of each parameter", shapes.join(" "))?;
        Ok(Self { ranks, layout, reduction: Reduction::default(), bucket: BUCKET })
    }

    /// How to add up; ordered by rank unless said otherwise.
    #[must_use]
    pub fn reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }

    /// How much is reduced at once.
    #[must_use]
    pub fn bucket(mut self, bytes: Bytes) -> Self {
        self.bucket = bytes;
        self
    }

    /// Gives all ranks the weights of the first.
    ///
    /// # Errors
    /// When ranks are not in step.
    pub fn share<M: Module>(&self, model: M) -> Result<M, DistError> {
        let weights = match self.ranks.rank() {
            0 => self.layout.weights(&model)?.iter().flat_map(|value| value.to_le_bytes()).collect(),
            _ => Vec::new(),
        };
        let weights = self.ranks.broadcast(0, weights)?;
        let (weights, _) = weights.as_chunks::<4>();
        let weights: Vec<f32> = weights.iter().copied().map(f32::from_le_bytes).collect();
        self.layout.to_model(model, &weights)
    }

    /// The gradient of the mean over the examples of all ranks, from that of each rank's mean over its own.
    ///
    /// Ranks may have different numbers of examples, as in the last batch of a data set; one that has none gives gradients
    /// of nothing (`GradientsParams::new()`).
    ///
    /// # Errors
    /// When no rank has an example, or ranks are not in step.
    pub fn reduce<M: Module>(
        &self,
        model: &M,
        gradients: &GradientsParams,
        examples: u64,
    ) -> Result<GradientsParams, DistError> {
        let sum = self.reduced(model, gradients, examples)?;
        self.layout.to_gradients(model, &sum)
    }

    /// The same as one vector.
    pub(crate) fn reduced<M: Module>(
        &self,
        model: &M,
        gradients: &GradientsParams,
        examples: u64,
    ) -> Result<Vec<f32>, DistError> {
        let values = self.weighted(model, gradients, examples)?;
        // The last layers' first, in whole parameters.
        let most = usize::try_from(self.bucket.get() / 4).unwrap_or(usize::MAX).max(1);
        let mut bounds = vec![values.len()];
        let (mut start, mut held) = (values.len(), 0);
        for length in self.layout.lengths().rev() {
            if held > 0 && held + length > most {
                bounds.push(start);
                held = 0;
            }
            start -= length;
            held += length;
        }
        bounds.push(start);
        let started = bounds.windows(2).map(|bounds| {
            let bucket = values[bounds[1]..bounds[0]].to_vec();
            (bounds[1], self.ranks.start_all_reduce(bucket, self.reduction))
        });
        let started: Vec<_> = started.collect();
        let mut sum = values;
        for (start, pending) in started {
            let bucket = pending.wait()?;
            sum[start..][..bucket.len()].copy_from_slice(&bucket);
        }
        Ok(sum)
    }

    /// Begins to reduce each gradient as soon as a backward has it, instead of all of them after it: the sums are under way while
    /// earlier stages go back. To be called before the backward.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::optim::GradientsParams;
    /// use burn::tensor::{Device, Tensor};
    /// use rekindle::{Region, backward_handing_over, expecting_hand_over};
    /// use rekindle_dist::{Alone, DataParallel};
    ///
    /// let ranks = Alone; // or `Mpi::start(None)?`
    /// let device = Device::flex().autodiff();
    /// let layers: Vec<Linear> = (0..3).map(|_| LinearConfig::new(4, 4).init(&device)).collect();
    /// let parallel = DataParallel::new(&ranks, &layers)?;
    /// let region = Region::new().stages("layer", &layers, |layer: &Linear, x: Tensor<2>| layer.forward(x));
    /// let loss = expecting_hand_over(|| region.forward(Tensor::ones([2, 4], &device)))?.mean();
    /// let overlap = parallel.overlap(2)?;
    /// let left = GradientsParams::from_grads(backward_handing_over(&loss, overlap.take())?, &layers);
    /// let done = overlap.finish(&parallel, &layers, left)?;
    /// let gradients = parallel.gradients(&layers, &done)?;
    /// # let _ = gradients;
    /// # Ok::<(), rekindle_dist::DistError>(())
    /// ```
    ///
    /// # Errors
    /// When no rank has an example, or ranks are not in step.
    pub fn overlap(&self, examples: u64) -> Result<Overlap, DistError> {
        self.overlap_of(examples, None)
    }

    /// The same of some values alone, with so many buckets under way at once.
    pub(crate) fn overlap_of(
        &self,
        examples: u64,
        part: Option<(Range<usize>, usize)>,
    ) -> Result<Overlap, DistError> {
        Ok(Overlap::new(self, self.weight(examples)?, self.overlapping_bucket(), part))
    }

    /// What is reduced at once while a backward goes on: a sixteenth of all gradients at the most, and a part for each rank.
    pub fn overlapping_bucket(&self) -> Bytes {
        let most = self.bucket.min(Bytes::new((self.layout.len() as u64 * 4).div_ceil(16)));
        Bytes::new(most.get().next_multiple_of(4 * self.ranks.size() as u64))
    }

    /// What that takes beside the backward's own memory, at the most: the largest gradient once more, as values in a row; a bucket that
    /// is being filled, and what comes from other ranks of one that is added up. Gradients that were handed over take no more as sums
    /// than they did.
    pub fn overlapping_bytes(&self) -> Bytes {
        let largest = self.layout.lengths().max().unwrap_or(0) as u64 * 4;
        Bytes::new(2 * self.overlapping_bucket().get() + largest)
    }

    /// The gradients that were added up, for an optimizer.
    ///
    /// # Errors
    /// When the model is another, or the sum is a part of it.
    pub fn gradients(&self, model: &impl Module, sum: &Overlapped) -> Result<GradientsParams, DistError> {
        self.layout.to_gradients(model, &sum.sum)
    }

    /// What this rank's examples are of those of all.
    fn weight(&self, examples: u64) -> Result<f32, DistError> {
        let all = self.ranks.all_gather(examples.to_le_bytes().to_vec())?;
        let all = all.iter().filter_map(|bytes| Some(u64::from_le_bytes(bytes[..].try_into().ok()?)));
        let total: u64 = all.sum();
        match total {
            0 => Err(DistError::NoExamples),
            total => Ok((examples as f64 / total as f64) as f32),
        }
    }

    /// This rank's share of the mean over all.
    pub(crate) fn weighted<M: Module>(
        &self,
        model: &M,
        gradients: &GradientsParams,
        examples: u64,
    ) -> Result<Vec<f32>, DistError> {
        let weight = self.weight(examples)?;
        let mut values = self.layout.gradients(model, gradients)?;
        for value in &mut values {
            *value *= weight;
        }
        Ok(values)
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn ranks(&self) -> &'a dyn Collective {
        self.ranks
    }

    pub(crate) fn how(&self) -> Reduction {
        self.reduction
    }
}
