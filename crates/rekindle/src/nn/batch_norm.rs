//! Batch norm that keeps its input and nothing else, alone or with a rectifier behind it.

use std::any::Any;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use burn::backend::autodiff::Autodiff;
use burn::backend::tensor::FloatTensor;
use burn::backend::{AutodiffBackend, TensorMetadata};
use burn::module::RunningState;
use burn::nn::BatchNorm;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};

use crate::dropout::has_no_values;
use crate::kernel::{Kernel, vectorised};
use crate::node::{
    AnyTensor, Found, GraphBackend, Operation, TapeStrategy, apply_widened, elements, is_narrow, laid_out,
    made, rewrite, rewrite_from,
};
use crate::rows::{PLACES, distance, halved, sum};

/// What Burn's `BatchNorm` runs, whose parameters and running statistics these are: of inputs `[batch, channels, ..]`.
///
/// In training it normalises by the statistics of the batch and moves the running ones, once for each forward, as Burn's
/// does; without autodiff, or where the module is frozen, it is Burn's own and goes by the running ones. The backward reads
/// the input and the parameters, and a [balanced tape](crate::Nodes) keeps nothing else: the output is computed again from
/// the statistics that were found.
///
/// ```
/// use burn::nn::BatchNormConfig;
/// use burn::tensor::{Device, Tensor};
/// use rekindle::nn::batch_norm;
///
/// let device = Device::flex().autodiff();
/// let norm = BatchNormConfig::new(1).with_epsilon(1e-12).init(&device);
/// let y = batch_norm(Tensor::<3>::from_data([[[1.0, 3.0]]], &device), &norm);
/// assert_eq!(y.into_data().try_to_vec::<f32>()?, [-1.0, 1.0]);
/// assert_eq!(norm.running_mean.value_sync().into_data().try_to_vec::<f32>()?, [0.2]);
/// # Ok::<(), burn::tensor::DataError>(())
/// ```
///
/// # Panics
/// As Burn's: when the second dimension of the input is not as many channels as the norm has.
pub fn batch_norm<const D: usize>(input: Tensor<D>, norm: &BatchNorm) -> Tensor<D> {
    run(input, norm, false)
}

/// [`batch_norm`] and a rectifier as one node: of what lies between them nothing is kept, nor made.
///
/// # Panics
/// As [`batch_norm`].
pub fn batch_norm_relu<const D: usize>(input: Tensor<D>, norm: &BatchNorm) -> Tensor<D> {
    run(input, norm, true)
}

fn run<const D: usize>(input: Tensor<D>, norm: &BatchNorm, rectified: bool) -> Tensor<D> {
    let dtype = input.dtype();
    let (gamma, beta) = (norm.gamma.val(), norm.beta.val());
    let wide = gamma.dtype();
    let plain = |input: Tensor<D>| {
        let output = norm.forward(input.cast(wide)).cast(dtype);
        if rectified { relu(output) } else { output }
    };
    let device = input.device();
    let trains = device.is_autodiff() && norm.training.is_enabled();
    if !trains || !fits(&input, &gamma, &beta) {
        return plain(input);
    }
    let statistics = Statistics::default();
    let operation = Normalise { epsilon: norm.epsilon, rectified, statistics: statistics.clone() };
    let input = AnyTensor::from(input);
    let strategy = input.strategy();
    match apply_widened(operation, [input, gamma.into(), beta.into()], dtype) {
        Ok(output) => {
            if let Some([mean, variance]) = statistics.taken(strategy) {
                move_running(&norm.running_mean, mean, norm.momentum, &device);
                move_running(&norm.running_var, variance, norm.momentum, &device);
            }
            Tensor::from_dispatch(output.0)
        }
        Err([input, ..]) => plain(Tensor::from_dispatch(input.0)),
    }
}

fn fits<const D: usize>(input: &Tensor<D>, gamma: &Tensor<1>, beta: &Tensor<1>) -> bool {
    let channels = gamma.dims();
    let sizes = D >= 2 && input.dims()[1] == channels[0] && beta.dims() == channels;
    let types = is_narrow(input.dtype()) || gamma.dtype() == input.dtype();
    sizes && types && input.shape().num_elements() > 0
}

/// What Burn's module does with a running statistic, and under the strategy of the input: one that waits to be taken over has
/// that of the step before, and Burn mixes no two.
///
/// Nothing of it is on a graph: each operation there would leave a node of a kibibyte behind until the next backward, which was 7% of what
/// training a narrow residual network of 1,001 layers took at its peak.
fn move_running(running: &RunningState<Tensor<1>>, found: Tensor<1>, momentum: f64, device: &Device) {
    if has_no_values(device) {
        return;
    }
    let strategy = found.gradient_checkpointing_strategy().unwrap_or_default();
    let was = running.value_sync().to_device(device).without_autodiff();
    let found = found.without_autodiff().cast(was.dtype()).mul_scalar(momentum);
    let moved = was.mul_scalar(1.0 - momentum).add(found).autodiff();
    running.update(moved.with_gradient_checkpointing_strategy(strategy));
}

/// Mean and biased variance of each channel, from the first run of an operation on: none that follows looks for them again.
///
/// They are no inputs: one that nobody tracks makes a balanced tape keep the output.
#[derive(Clone, Debug, Default)]
struct Statistics {
    /// Tensors of whichever backend the operation ran on.
    found: Arc<OnceLock<Box<dyn Any + Send + Sync>>>,
    /// The same for the running ones, until those have moved.
    fresh: Arc<Mutex<Option<[AnyTensor; 2]>>>,
}

impl Statistics {
    fn get<B: GraphBackend>(&self) -> Option<[FloatTensor<B>; 2]> {
        self.found.get()?.downcast_ref::<[FloatTensor<B>; 2]>().cloned()
    }

    fn note<B: GraphBackend>(&self, found: [FloatTensor<B>; 2]) {
        let fresh = found.clone().map(|tensor| {
            let untracked = <Autodiff<B> as AutodiffBackend>::from_inner(tensor);
            AnyTensor::from_tracked::<B>(untracked, TapeStrategy::default())
        });
        *self.fresh.lock().unwrap_or_else(PoisonError::into_inner) = Some(fresh);
        // There is only one forward that finds none.
        let _ = self.found.set(Box::new(found));
    }

    /// What the forward found, under the strategy of the input: Burn mixes no two.
    fn taken(&self, strategy: Option<TapeStrategy>) -> Option<[Tensor<1>; 2]> {
        let fresh = self.fresh.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(fresh.map(|mut tensor| {
            tensor.set_strategy(strategy.unwrap_or_default());
            Tensor::from_dispatch(tensor.0)
        }))
    }
}

#[derive(Clone, Debug)]
struct Normalise {
    epsilon: f64,
    /// Whether a rectifier follows.
    rectified: bool,
    statistics: Statistics,
}

impl Normalise {
    /// What is less becomes that: nothing does where no rectifier follows.
    fn floor(&self) -> f32 {
        if self.rectified { 0.0 } else { f32::NEG_INFINITY }
    }

    /// What elements of each channel are computed with, where they are within reach.
    fn channels<B: GraphBackend>(&self, inputs: [&FloatTensor<B>; 3]) -> Option<Vec<Channel>> {
        let [input, gamma, beta] = inputs.map(elements::<B>);
        let (input_at, gamma, beta) = (input?, gamma?, beta?);
        let found = self.statistics.get::<B>().unwrap_or_else(|| {
            let [input, ..] = inputs;
            let lie = Lie::of::<B>(input);
            let moments = lie.by_channel(|channel| vectorised(Moments { lie, elements: input_at, channel }));
            let [mean, variance] =
                [0, 1].map(|which| moments.iter().map(|moments| moments[which]).collect::<Vec<_>>());
            let found = [mean, variance].map(|of| made::<B>(of, [lie.channels], input));
            self.statistics.note::<B>(found.clone());
            found
        });
        let [mean, variance] = found.each_ref().map(elements::<B>);
        let channels = mean?.iter().zip(variance?).zip(gamma).zip(beta);
        let channel = |(((mean, variance), gamma), beta): (((&f32, &f32), &f32), &f32)| Channel {
            mean: *mean,
            scale: 1.0 / (variance + self.epsilon as f32).sqrt(),
            gamma: *gamma,
            beta: *beta,
        };
        Some(channels.map(channel).collect())
    }
}

impl Operation<3> for Normalise {
    const READS: [bool; 3] = [true; 3];
    const CHEAP: bool = true;

    fn forward<B: GraphBackend>(self, [input, gamma, beta]: [FloatTensor<B>; 3]) -> FloatTensor<B> {
        let input = laid_out::<B>(input);
        let Some(channels) = self.channels::<B>([&input, &gamma, &beta]) else {
            let output = match self.statistics.get::<B>() {
                Some([mean, variance]) => B::batch_norm(input, gamma, beta, mean, variance, self.epsilon),
                None => {
                    let made = B::batch_norm_train(input, gamma, beta, self.epsilon);
                    self.statistics.note::<B>([made.mean, made.variance]);
                    made.output
                }
            };
            return if self.rectified { B::relu(output) } else { output };
        };
        let pixels = Lie::of::<B>(&input).pixels;
        let (channels, floor) = (&channels[..], self.floor());
        let make = |input: &[f32]| {
            let mut output = vec![0.0; input.len()];
            Forward { input: Some(input), channels, pixels, floor }.over(&mut output, pixels);
            output
        };
        let update =
            |elements: &mut [f32]| Forward { input: None, channels, pixels, floor }.over(elements, pixels);
        // All of them are within reach.
        rewrite::<B>(input, update, make).unwrap_or_else(|same| same)
    }

    fn backward<B: GraphBackend>(self, found: Found<B, 3>) -> [Option<FloatTensor<B>>; 3] {
        let [Some(input), Some(gamma), Some(beta)] = found.inputs else { return [None, None, None] };
        let (input, gradient) = (laid_out::<B>(input), laid_out::<B>(found.gradient));
        let channels = self.channels::<B>([&input, &gamma, &beta]);
        let lying = elements::<B>(&input).zip(elements::<B>(&gradient));
        let (Some(channels), Some((input_at, gradient_at))) = (channels, lying) else {
            return self.backward_by_operations::<B>([input, gamma, beta], gradient);
        };
        let (lie, floor) = (Lie::of::<B>(&input), self.floor());
        let sums = lie.by_channel(|index| {
            let channel = channels[index];
            vectorised(Sums { lie, input: input_at, gradient: gradient_at, index, channel, floor })
        });
        let [of_beta, of_gamma] = [0, 1].map(|which| sums.iter().map(|sums| sums[which]).collect::<Vec<_>>());
        let count = lie.count() as f32;
        let means: Vec<_> = sums.into_iter().map(|sums| sums.map(|sum| sum / count)).collect();
        let of_input = found.wanted[0].then(|| {
            let kernel = |input: &[f32], gradient: &mut [f32]| {
                let kernel = OfInput { input, channels: &channels, means: &means, pixels: lie.pixels, floor };
                kernel.over(gradient, lie.pixels);
            };
            rewrite_from::<B>(gradient, &input, kernel).unwrap_or_else(|same| same)
        });
        let of = |of: Vec<f32>| Some(made::<B>(of, [lie.channels], &input));
        [of_input, of(of_gamma), of(of_beta)]
    }
}

impl Normalise {
    fn backward_by_operations<B: GraphBackend>(
        self,
        [input, gamma, beta]: [FloatTensor<B>; 3],
        gradient: FloatTensor<B>,
    ) -> [Option<FloatTensor<B>>; 3] {
        // The forward came before.
        let Some([mean, variance]) = self.statistics.get::<B>() else { return [None, None, None] };
        let gradient = match self.rectified {
            true => {
                let output = B::batch_norm(
                    input.clone(),
                    gamma.clone(),
                    beta,
                    mean.clone(),
                    variance.clone(),
                    self.epsilon,
                );
                B::relu_backward(B::relu(output), gradient)
            }
            false => gradient,
        };
        let made = B::batch_norm_train_backward(input, gamma, mean, variance, self.epsilon, gradient);
        [Some(made.x_grad), Some(made.gamma_grad), Some(made.beta_grad)]
    }
}

/// How elements lie: the pixels of one channel of one image are a run.
#[derive(Clone, Copy, Debug)]
struct Lie {
    images: usize,
    channels: usize,
    pixels: usize,
}

impl Lie {
    fn of<B: GraphBackend>(tensor: &FloatTensor<B>) -> Self {
        let shape = tensor.shape();
        Self { images: shape[0], channels: shape[1], pixels: shape.as_slice().iter().skip(2).product() }
    }

    /// The elements of a channel.
    #[inline(always)]
    fn count(self) -> usize {
        self.images * self.pixels
    }

    /// The runs of a channel, from the first image to the last.
    #[inline(always)]
    fn runs(self, elements: &[f32], channel: usize) -> impl Iterator<Item = &[f32]> {
        elements.chunks_exact(self.pixels).skip(channel).step_by(self.channels)
    }

    /// Does something for each channel, on all threads. What is added up is added up by one of them.
    fn by_channel<T: Send>(self, make: impl Fn(usize) -> T + Sync + Send) -> Vec<T> {
        let channels = (0..self.channels).into_par_iter();
        channels.with_min_len(SHARE.div_ceil(self.count())).map(make).collect()
    }
}

/// Elements a thread takes at a time, at least.
const SHARE: usize = 8 * 1024;

/// What the elements of a channel are computed with.
#[derive(Clone, Copy, Debug)]
struct Channel {
    mean: f32,
    /// One over the deviation.
    scale: f32,
    gamma: f32,
    beta: f32,
}

impl Channel {
    #[inline(always)]
    fn normal(self, x: f32) -> f32 {
        (x - self.mean) * self.scale
    }

    /// The output for a normalised element. Both directions ask here: what one cuts off, the other does.
    #[inline(always)]
    fn output(self, normal: f32) -> f32 {
        normal * self.gamma + self.beta
    }

    /// What comes back to the norm itself: nothing where the rectifier cut off. What is not a number passes, as Burn's does.
    #[inline(always)]
    fn passed(self, normal: f32, gradient: f32, floor: f32) -> f32 {
        if self.output(normal) <= floor { 0.0 } else { gradient }
    }
}

/// Mean and variance of a channel.
struct Moments<'a> {
    lie: Lie,
    elements: &'a [f32],
    channel: usize,
}

impl pulp::NullaryFnOnce for Moments<'_> {
    type Output = [f32; 2];

    #[inline(always)]
    fn call(self) -> [f32; 2] {
        let Self { lie, elements, channel } = self;
        let count = lie.count() as f32;
        let mut total = 0.0;
        for run in lie.runs(elements, channel) {
            total += sum(run);
        }
        let mean = total / count;
        let mut squares = 0.0;
        for run in lie.runs(elements, channel) {
            squares += distance(run, mean);
        }
        [mean, squares / count]
    }
}

/// Writes the output.
struct Forward<'a> {
    /// Where it is not what is written over.
    input: Option<&'a [f32]>,
    channels: &'a [Channel],
    pixels: usize,
    floor: f32,
}

impl Kernel for Forward<'_> {
    #[inline(always)]
    fn run(&self, first: usize, elements: &mut [f32]) {
        let Self { input, channels, pixels, floor } = *self;
        for (index, run) in elements.chunks_exact_mut(pixels).enumerate() {
            let at = first / pixels + index;
            let channel = channels[at % channels.len()];
            let output = |x: f32| {
                let y = channel.output(channel.normal(x));
                if y <= floor { floor } else { y }
            };
            match input {
                Some(input) => {
                    for (y, x) in run.iter_mut().zip(&input[at * pixels..]) {
                        *y = output(*x);
                    }
                }
                None => {
                    for x in run {
                        *x = output(*x);
                    }
                }
            }
        }
    }
}

/// The sums of a channel's gradients, and of those times what was normalised.
struct Sums<'a> {
    lie: Lie,
    input: &'a [f32],
    gradient: &'a [f32],
    index: usize,
    channel: Channel,
    floor: f32,
}

impl pulp::NullaryFnOnce for Sums<'_> {
    type Output = [f32; 2];

    #[inline(always)]
    fn call(self) -> [f32; 2] {
        let Self { lie, input, gradient, index, channel, floor } = self;
        let mut totals = [0.0; 2];
        for (input, gradient) in lie.runs(input, index).zip(lie.runs(gradient, index)) {
            let (inputs, input_rest) = input.as_chunks::<PLACES>();
            let (gradients, gradient_rest) = gradient.as_chunks::<PLACES>();
            let [mut plain, mut along] = [[0.0; PLACES]; 2];
            for (inputs, gradients) in inputs.iter().zip(gradients) {
                for place in 0..PLACES {
                    let normal = channel.normal(inputs[place]);
                    let passed = channel.passed(normal, gradients[place], floor);
                    plain[place] += passed;
                    along[place] += passed * normal;
                }
            }
            let [mut plain, mut along] = [plain, along].map(|sums| halved(sums, |a, b| a + b));
            for (x, gradient) in input_rest.iter().zip(gradient_rest) {
                let normal = channel.normal(*x);
                let passed = channel.passed(normal, *gradient, floor);
                plain += passed;
                along += passed * normal;
            }
            totals[0] += plain;
            totals[1] += along;
        }
        totals
    }
}

/// Turns the gradient of the output into that of the input.
struct OfInput<'a> {
    input: &'a [f32],
    channels: &'a [Channel],
    /// Of each channel's gradients, and of those times what was normalised.
    means: &'a [[f32; 2]],
    pixels: usize,
    floor: f32,
}

impl Kernel for OfInput<'_> {
    #[inline(always)]
    fn run(&self, first: usize, elements: &mut [f32]) {
        let Self { input, channels, means, pixels, floor } = *self;
        for (index, run) in elements.chunks_exact_mut(pixels).enumerate() {
            let at = first / pixels + index;
            let (channel, [mean, along]) = (channels[at % channels.len()], means[at % channels.len()]);
            let scale = channel.gamma * channel.scale;
            for (gradient, x) in run.iter_mut().zip(&input[at * pixels..]) {
                let normal = channel.normal(*x);
                let passed = channel.passed(normal, *gradient, floor);
                *gradient = (passed - mean - normal * along) * scale;
            }
        }
    }
}
