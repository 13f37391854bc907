//! One step under any strategy: its gradients, its peak, its time.

use std::time::Instant;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use rekindle::{Bytes, Error, Nanos, Rule, Staged, TraceHandle, Under, memory, without_checkpointing};
use rekindle_models::{ConfigError, Gpt, GptBatch, GptConfig};

use crate::cut::Cut;
use crate::strategy::Ready;

/// A model drawn from `seed`.
///
/// Burn draws a parameter's values when it is first looked at; looking at all of them at once makes the weights the same
/// for every strategy, whatever it looks at first.
pub(crate) fn build(config: &GptConfig, device: &Device, seed: u64) -> Result<Gpt, ConfigError> {
    struct Look;
    impl ModuleVisitor for Look {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let _ = param.val();
        }
    }
    device.seed(seed);
    let model = config.init(device)?;
    model.visit(&mut Look);
    Ok(model)
}

/// What a step came to.
pub(crate) struct Step {
    pub(crate) loss: Tensor<1>,
    pub(crate) gradients: GradientsParams,
}

/// A step and what it took.
pub(crate) struct Measured {
    pub(crate) step: Step,
    /// The most bytes above those before the step: activations and gradients.
    pub(crate) peak: Bytes,
    pub(crate) time: Nanos,
}

/// Runs one step from `seed`, which all strategies draw the same numbers from.
pub(crate) fn step(model: &Gpt, batch: &GptBatch, how: &Ready, seed: u64) -> Result<Step, Error> {
    step_traced(model, batch, how, seed, None)
}

/// The same, writing down what a region does.
pub(crate) fn step_traced(
    model: &Gpt,
    batch: &GptBatch,
    how: &Ready,
    seed: u64,
    trace: Option<&TraceHandle>,
) -> Result<Step, Error> {
    rekindle::seed(seed);
    let plain = |model: &Gpt, batch: &GptBatch| {
        without_checkpointing(|| {
            let loss = model.loss(batch, Rule::StoreAll)?;
            let gradients = rekindle::backward(&loss)?;
            Ok::<_, Error>((loss, gradients))
        })
    };
    let under = |under: Under<'_>, cut: Cut| {
        let (region, tokens) = cut.of(model).stages(batch);
        let region = region.under(under);
        let region = match trace {
            Some(trace) => region.trace(trace),
            None => region,
        };
        let loss = region.forward(tokens)?;
        let gradients = rekindle::backward(&loss)?;
        Ok::<_, Error>((loss, gradients, model.clone()))
    };
    let (loss, gradients, model) = match how {
        Ready::Plain => {
            let (loss, gradients) = plain(model, batch)?;
            (loss, gradients, model.clone())
        }
        Ready::Balanced => {
            let device = Device::flex().autodiff().gradient_checkpointing();
            let model = model.clone().map(&mut WithStrategyOf(&device));
            let batch = GptBatch {
                tokens: Tensor::from_data(batch.tokens.to_data(), &device),
                targets: Tensor::from_data(batch.targets.to_data(), &device),
            };
            let (loss, gradients) = plain(&model, &batch)?;
            (loss, gradients, model)
        }
        Ready::Rule(rule) => under((*rule).into(), Cut::Blocks)?,
        Ready::Planned(planned, cut) => under(planned.into(), *cut)?,
    };
    Ok(Step { loss: loss.without_autodiff(), gradients: GradientsParams::from_grads(gradients, &model) })
}

/// Gives every parameter the checkpointing strategy of a device.
struct WithStrategyOf<'a>(&'a Device);

impl ModuleMapper for WithStrategyOf<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| match self.0.gradient_checkpointing_strategy() {
            Some(strategy) => tensor.detach().with_gradient_checkpointing_strategy(strategy).require_grad(),
            None => tensor,
        })
    }
}

/// Runs one step and measures it. What earlier steps left behind is swept out first.
pub(crate) fn measured(model: &Gpt, batch: &GptBatch, how: &Ready, seed: u64) -> Result<Measured, Error> {
    rekindle::sweep();
    let before = memory::live().unwrap_or_default();
    memory::reset_peak();
    let start = Instant::now();
    let step = step(model, batch, how, seed)?;
    let time = start.elapsed().into();
    let peak = memory::peak().unwrap_or_default().saturating_sub(before);
    Ok(Measured { step, peak, time })
}

/// How the gradients of two steps compare.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(crate) struct Comparison {
    /// Parameters that have a gradient in either.
    pub(crate) tensors: usize,
    /// Those whose gradients have the same bytes.
    pub(crate) identical: usize,
    /// Whether the losses have the same bytes.
    pub(crate) loss_identical: bool,
    /// The largest difference of two elements.
    pub(crate) largest_difference: f64,
    /// The length of the difference of all gradients, over theirs.
    pub(crate) relative_error: f64,
    /// The largest, over the parameters, of the same for one of them. Those whose gradient is next to nothing are left
    /// out, such as the bias of keys, which attention does not see.
    pub(crate) largest_relative_error: f64,
}

/// Squares of a parameter's gradient and of its difference, added up.
struct Squares {
    elements: usize,
    gradient: f64,
    difference: f64,
}

impl Comparison {
    /// Works the relative errors out.
    fn with_errors(mut self, squares: &[Squares]) -> Self {
        let gradient: f64 = squares.iter().map(|of| of.gradient).sum();
        let difference: f64 = squares.iter().map(|of| of.difference).sum();
        let elements: usize = squares.iter().map(|of| of.elements).sum();
        let ratio = |difference: f64, gradient: f64| match difference > 0.0 {
            true => (difference / gradient.max(f64::MIN_POSITIVE)).sqrt(),
            false => 0.0,
        };
        self.relative_error = ratio(difference, gradient);
        let usual = gradient / elements.max(1) as f64;
        let telling = squares.iter().filter(|of| of.gradient / of.elements.max(1) as f64 > 1e-6 * usual);
        self.largest_relative_error = telling.map(|of| ratio(of.difference, of.gradient)).fold(0.0, f64::max);
        self
    }
}

impl Comparison {
    pub(crate) fn all_identical(&self) -> bool {
        self.loss_identical && self.identical == self.tensors
    }
}

/// Compares the gradients of all parameters of `model`, and the losses.
pub(crate) fn compare(model: &Gpt, expected: &Step, found: &Step) -> Comparison {
    struct Compare<'a> {
        expected: &'a GradientsParams,
        found: &'a GradientsParams,
        result: Comparison,
        squares: Vec<Squares>,
    }
    impl ModuleVisitor for Compare<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let pair = (self.expected.get::<D>(param.id), self.found.get::<D>(param.id));
            if matches!(pair, (None, None)) {
                return;
            }
            self.result.tensors += 1;
            let (Some(expected), Some(found)) = pair else {
                self.result.largest_difference = f64::INFINITY;
                let (elements, gradient, difference) = (param.shape().num_elements(), 1.0, f64::INFINITY);
                self.squares.push(Squares { elements, gradient, difference });
                return;
            };
            let squares = |x: Tensor<D>| f64::from((x.clone() * x).sum().into_scalar::<f32>());
            let mut of = Squares {
                elements: expected.shape().num_elements(),
                gradient: squares(expected.clone()),
                difference: 0.0,
            };
            if same_bytes(&expected, &found) {
                self.result.identical += 1;
            } else {
                let difference = expected - found;
                of.difference = squares(difference.clone());
                let largest = f64::from(difference.abs().max().into_scalar::<f32>());
                self.result.largest_difference = self.result.largest_difference.max(largest);
            }
            self.squares.push(of);
        }
    }
    let mut compare = Compare {
        expected: &expected.gradients,
        found: &found.gradients,
        result: Comparison {
            loss_identical: same_bytes(&expected.loss, &found.loss),
            ..Comparison::default()
        },
        squares: Vec::new(),
    };
    model.visit(&mut compare);
    compare.result.with_errors(&compare.squares)
}

fn same_bytes<const D: usize>(expected: &Tensor<D>, found: &Tensor<D>) -> bool {
    let (expected, found) = (expected.to_data(), found.to_data());
    expected.shape() == found.shape() && expected.as_bytes() == found.as_bytes()
}

/// The one in the middle of an odd number, the lower of the two otherwise.
pub(crate) fn median<T: PartialOrd + Copy>(values: &[T]) -> Option<T> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}
