//! One step under any strategy: its gradients, its peak, its time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use rekindle::training::{Accumulation, clip_by_norm};
use rekindle::{Bytes, Error, Nanos, Rule, Staged, Take, TraceHandle, Under, without_checkpointing};
use rekindle_models::{Batch, Coupled, Trainable};

use crate::cut::Cut;
use crate::failure::Failure;
use crate::meter;
use crate::models::Kind;
use crate::strategy::Ready;
use crate::totals::parameter_bytes;

/// A model drawn from `seed`.
///
/// Burn draws a parameter's values when it is first looked at; looking at all of them at once makes the weights the same
/// for every strategy, whatever it looks at first.
pub(crate) fn build<K: Kind>(kind: &K, device: &Device, seed: u64) -> Result<K::Model, Failure> {
    struct Look;
    impl ModuleVisitor for Look {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let _ = param.val();
        }
    }
    device.seed(seed);
    let model = kind.build(device)?;
    model.visit(&mut Look);
    Ok(model)
}

/// A batch, in parts that run one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Parts<B> {
    parts: Vec<B>,
}

impl<B: Batch> Parts<B> {
    pub(crate) fn new(all: &B, parts: usize) -> Self {
        Self { parts: all.split(parts) }
    }

    /// What a plan is made for: parts are of one size.
    pub(crate) fn part(&self) -> &B {
        &self.parts[0]
    }

    /// The first part as a batch of its own.
    pub(crate) fn first(&self) -> Self {
        Self { parts: self.parts[..1].to_vec() }
    }

    /// Some of the parts: those of one rank.
    #[cfg(feature = "mpi")]
    pub(crate) fn keep(&mut self, first: usize, count: usize) -> Self {
        Self { parts: self.parts[first..first + count].to_vec() }
    }

    /// The parts.
    #[cfg(feature = "mpi")]
    pub(crate) fn parts(&self) -> &[B] {
        &self.parts
    }

    /// How many examples all parts have.
    #[cfg(feature = "mpi")]
    pub(crate) fn examples(&self) -> usize {
        self.parts.iter().map(Batch::examples).sum()
    }

    pub(crate) fn count(&self) -> usize {
        self.parts.len()
    }

    /// What a step takes beside its parts.
    ///
    /// # Errors
    /// When the model cannot run on a part.
    pub(crate) fn beside<M: Trainable<Batch = B>>(&self, model: &M) -> Result<Beside, Error> {
        if self.count() == 1 {
            return Ok(Beside::default());
        }
        // What the first run of an operation makes for good is not the whole's.
        drop(model.couple(&self.parts[..2])?);
        let (mut known, mut alone) = (Bytes::ZERO, Bytes::ZERO);
        let start = Instant::now();
        for run in 0..LOOKS {
            meter::reset_peak();
            let before = meter::live();
            let coupled = model.couple(&self.parts)?;
            let above = |bytes: Bytes| bytes.saturating_sub(before);
            known = above(meter::live()).max(known);
            if coupled.is_none() {
                break;
            }
            alone = Bytes::new(above(meter::peak()).get() + rekindle::bookkeeping(1).get()).max(alone);
            if run > 0 && start.elapsed() > LOOKS_TAKE {
                break;
            }
        }
        Ok(Beside { held: Bytes::new(parameter_bytes(model).get() + known.get()), alone })
    }
}

/// How often to look at what the loss of the whole takes, and for how long: threads that work on it at the same time take more than one
/// after the other, and on a busy machine that does not come in every run. In runs that take long it does.
const LOOKS: usize = 8;
const LOOKS_TAKE: Duration = Duration::from_millis(250);

/// What a step of several parts takes beside them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Beside {
    /// What is there while a part runs: the sum of gradients, and what parts know of the whole.
    pub(crate) held: Bytes,
    /// What the loss of the whole takes before any part runs, where it is not a mean over them.
    pub(crate) alone: Bytes,
}

impl Beside {
    /// What a whole step takes whose parts take `bytes` each.
    pub(crate) fn with(self, bytes: Bytes) -> Bytes {
        Bytes::new(bytes.get() + self.held.get()).max(self.alone)
    }
}

/// How a step is taken, whatever the strategy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recipe {
    /// What all strategies draw the same numbers from.
    pub(crate) seed: u64,
    /// Which the first part of the batch is, where others are on other ranks.
    pub(crate) first_part: usize,
    /// What the loss is multiplied by.
    pub(crate) scale: f32,
    /// How long gradients may be.
    pub(crate) clip: Option<f64>,
}

/// What a part of a batch draws its numbers from, by its number among all parts on all ranks: the same wherever it runs.
pub(crate) fn part_seed(seed: u64, part: usize) -> u64 {
    // The first part's is the step's own. Steps are one apart: parts must not be.
    seed.wrapping_add((part as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// What a step came to.
pub(crate) struct Step {
    /// Not scaled.
    pub(crate) loss: Tensor<1>,
    /// Scaled as the recipe says.
    pub(crate) gradients: GradientsParams,
}

/// A step and what it took.
pub(crate) struct Measured {
    pub(crate) step: Step,
    /// The most bytes above those before the step: activations and gradients.
    pub(crate) peak: Bytes,
    pub(crate) time: Nanos,
    /// What the device's pool took for it, where there is one.
    pub(crate) pool: Option<Pooled>,
}

/// A step as the pool of its device saw it.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Pooled {
    /// The most bytes above those before the step that were seen in use.
    #[serde(skip)]
    peak: Bytes,
    /// All that the pool had taken of the device after the step, weights included: it had given back before what it could.
    pub(crate) reserved_bytes: Bytes,
    /// When it began and ended, in milliseconds since 1970: for who watches the device from outside.
    began_unix_ms: u64,
    ended_unix_ms: u64,
}

/// Runs one step from the recipe's seed.
pub(crate) fn step<M: Trainable>(
    model: &M,
    batch: &Parts<M::Batch>,
    how: &Ready,
    recipe: Recipe,
) -> Result<Step, Error> {
    step_traced(model, batch, how, recipe, None)
}

/// The same, handing over gradients as soon as they are complete. Those that were are not among the step's.
#[cfg(feature = "mpi")]
pub(crate) fn step_handing_over<M: Trainable>(
    model: &M,
    batch: &Parts<M::Batch>,
    how: &Ready,
    recipe: Recipe,
    take: Take,
) -> Result<Step, Error> {
    step_by(model, batch, how, recipe, (None, Some(take)))
}

/// The same, writing down what a region does.
pub(crate) fn step_traced<M: Trainable>(
    model: &M,
    batch: &Parts<M::Batch>,
    how: &Ready,
    recipe: Recipe,
    trace: Option<&TraceHandle>,
) -> Result<Step, Error> {
    step_by(model, batch, how, recipe, (trace, None))
}

fn step_by<M: Trainable>(
    model: &M,
    batch: &Parts<M::Batch>,
    how: &Ready,
    recipe: Recipe,
    (trace, mut take): (Option<&TraceHandle>, Option<Take>),
) -> Result<Step, Error> {
    rekindle::seed(part_seed(recipe.seed, recipe.first_part));
    let balanced = match how {
        Ready::Balanced => {
            let device = device_of(model).without_autodiff().autodiff().gradient_checkpointing();
            Some((model.clone().map(&mut WithStrategyOf(&device)), device))
        }
        _ => None,
    };
    let under = |part: &M::Batch, under: Under<'_>, cut: Cut| {
        let (region, input) = cut.of(model).stages(part);
        let region = region.under(under);
        let region = match trace {
            Some(trace) => region.trace(trace),
            None => region,
        };
        region.forward(input)
    };
    // Where the loss of the whole is not the mean of its parts'.
    let (coupled, whole) = match model.couple(&batch.parts)? {
        Some(Coupled { parts, loss }) => (Some(parts), Some(loss)),
        None => (None, None),
    };
    let parts = coupled.as_ref().unwrap_or(&batch.parts);
    let count = if whole.is_some() { 1 } else { parts.len() };
    // The scale is a power of two: to multiply by both at once changes no digit.
    let share = f64::from(recipe.scale) / count as f64;
    let mut sum = Accumulation::new();
    for (number, part) in parts.iter().enumerate() {
        rekindle::seed(part_seed(recipe.seed, recipe.first_part + number));
        let mut plain = |model: &M, part: &M::Batch| {
            without_checkpointing(|| {
                let (region, input) = model.stages(part);
                sum.add(model, region.rule(Rule::StoreAll).forward(input)?, share)
            })
        };
        // Gradients are complete with the last part.
        let take = take.take_if(|_| number + 1 == parts.len());
        let run = |under: &dyn Fn() -> Result<Tensor<1>, rekindle::Error>| match &take {
            Some(_) => rekindle::expecting_hand_over(under),
            None => under(),
        };
        let loss = match (how, &balanced) {
            (Ready::Balanced, Some((model, device))) => {
                plain(model, &part.to_device(device))?;
                continue;
            }
            (Ready::Plain | Ready::Balanced, _) => {
                plain(model, part)?;
                continue;
            }
            (Ready::Rule(rule), _) => run(&|| under(part, (*rule).into(), Cut::Blocks))?,
            (Ready::Planned(planned, cut), _) => run(&|| under(part, planned.into(), *cut))?,
        };
        match take {
            Some(take) => sum.add_handing_over(model, loss, share, take)?,
            None => sum.add(model, loss, share)?,
        }
    }
    let sum = sum.finish()?;
    let unscaled = if recipe.scale == 1.0 { sum.loss } else { sum.loss.div_scalar(recipe.scale) };
    Ok(Step { loss: whole.unwrap_or(unscaled), gradients: sum.gradients })
}

/// What a model's parameters are on.
fn device_of(model: &impl Module) -> Device {
    model.devices().first().cloned().unwrap_or_else(crate::device::cpu)
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
///
/// To look at a pool takes time of its device: there, one step is looked at and another one timed.
pub(crate) fn measured<M: Trainable>(
    model: &M,
    batch: &Parts<M::Batch>,
    how: &Ready,
    recipe: Recipe,
) -> Result<Measured, Error> {
    let run = || -> Result<Step, Error> {
        let mut step = step(model, batch, how, recipe)?;
        if let Some(most) = recipe.clip {
            // Gradients that are scaled may be as much longer.
            let clipped = clip_by_norm(model, step.gradients, most * f64::from(recipe.scale))?;
            step.gradients = clipped.gradients;
        }
        meter::finish();
        Ok(step)
    };
    let pool = match meter::is_pool() {
        true => Some(looked_at(&run)?),
        false => None,
    };
    rekindle::sweep();
    meter::finish();
    let before = meter::live();
    if pool.is_none() {
        meter::reset_peak();
    }
    let start = Instant::now();
    let step = run()?;
    let time = start.elapsed().into();
    let peak = pool.map_or_else(|| meter::peak().saturating_sub(before), |pool| pool.peak);
    Ok(Measured { step, peak, time, pool })
}

/// Runs a step and looks at the pool meanwhile.
fn looked_at(run: &impl Fn() -> Result<Step, Error>) -> Result<Pooled, Error> {
    rekindle::sweep();
    meter::give_back();
    let before = meter::live();
    meter::rest();
    meter::reset_peak();
    let began_unix_ms = unix_ms();
    let step = run()?;
    let peak = meter::peak().saturating_sub(before);
    let (reserved_bytes, ended_unix_ms) = (meter::reserved().unwrap_or_default(), unix_ms());
    meter::rest();
    drop(step);
    Ok(Pooled { peak, reserved_bytes, began_unix_ms, ended_unix_ms })
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// How the gradients of two steps compare.
#[derive(Clone, Debug, Default, serde::Serialize)]
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
    /// The same for each of them, by name, when any gradient differs. That of a gradient that is next to nothing says little; one
    /// that is missing in either is endless.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) relative_errors: BTreeMap<String, f64>,
    /// The parameters with the largest, the largest first, without those that are next to nothing.
    #[serde(skip)]
    pub(crate) worst: Vec<(String, f64)>,
    /// The parameters whose gradients differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) different: Vec<String>,
}

/// How many parameters are told of whose gradients are off most.
const WORST: usize = 5;

/// Squares of a parameter's gradient and of its difference, added up.
struct Squares {
    name: String,
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
        let error = |of: &Squares| (of.name.clone(), ratio(of.difference, of.gradient));
        self.worst = telling.map(error).filter(|(_, error)| *error > 0.0).collect();
        self.worst.sort_by(|one, other| other.1.total_cmp(&one.1));
        self.worst.truncate(WORST);
        self.largest_relative_error = self.worst.first().map_or(0.0, |(_, error)| *error);
        if !self.different.is_empty() {
            self.relative_errors = squares.iter().map(error).collect();
        }
        self
    }
}

impl Comparison {
    pub(crate) fn all_identical(&self) -> bool {
        self.loss_identical && self.identical == self.tensors
    }
}

/// Compares the gradients of all parameters of `model`, and the losses.
pub(crate) fn compare(model: &impl Module, expected: &Step, found: &Step) -> Comparison {
    struct Compare<'a> {
        expected: &'a GradientsParams,
        found: &'a GradientsParams,
        result: Comparison,
        squares: Vec<Squares>,
        path: Vec<String>,
    }
    impl ModuleVisitor for Compare<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let pair = (self.expected.get::<D>(param.id), self.found.get::<D>(param.id));
            if matches!(pair, (None, None)) {
                return;
            }
            self.result.tensors += 1;
            let (Some(expected), Some(found)) = pair else {
                self.result.largest_difference = f64::INFINITY;
                self.result.different.push(self.path.join("."));
                let (elements, gradient, difference) = (param.shape().num_elements(), 1.0, f64::INFINITY);
                let name = self.path.join(".");
                self.squares.push(Squares { name, elements, gradient, difference });
                return;
            };
            let squares = |x: Tensor<D>| f64::from((x.clone() * x).sum().into_scalar::<f32>());
            let mut of = Squares {
                name: self.path.join("."),
                elements: expected.shape().num_elements(),
                gradient: squares(expected.clone()),
                difference: 0.0,
            };
            if same_bytes(&expected, &found) {
                self.result.identical += 1;
            } else {
                self.result.different.push(self.path.join("."));
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
        path: Vec::new(),
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
