//! Recurrences: one cell, run step by step over long sequences.

mod cell;

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};
use rekindle::nn::{LinearCrossEntropy, linear};
use rekindle::{Error, Region, Staged, Under, has_values};

pub use cell::{RecurrentKind, RecurrentState};

use crate::accuracy::share_right;
use crate::{ConfigError, SequenceBatch, Trainable};
use cell::Cell;

/// The size of a [`Recurrent`] network.
#[derive(Config, Debug)]
pub struct RecurrentConfig {
    /// What each step is given.
    pub features: usize,
    /// What is remembered from step to step.
    pub width: usize,
    /// How many classes to tell apart.
    pub classes: usize,
    /// What a step does.
    #[config(default = "RecurrentKind::Lstm")]
    pub kind: RecurrentKind,
    /// How many steps it remembers before it has learned anything; a few, unless set. For dependencies over long times it
    /// must be about as long as they are, or gradients vanish on the way, whatever they are computed by.
    pub memory: Option<usize>,
    /// The steps of a coarse stage; the square root of a sequence's steps, unless set.
    pub steps: Option<usize>,
    /// The steps of a fine stage; the square root of a coarse one's, unless set.
    pub fine_steps: Option<usize>,
}

impl RecurrentConfig {
    /// A network of this size.
    ///
    /// # Errors
    /// When a size is 0.
    pub fn init(&self, device: &Device) -> Result<Recurrent, ConfigError> {
        let sizes = [
            ("features", self.features),
            ("width", self.width),
            ("classes", self.classes),
            ("steps", self.steps.unwrap_or(1)),
            ("fine steps", self.fine_steps.unwrap_or(1)),
        ];
        if let Some((what, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(ConfigError::Empty { what });
        }
        Ok(Recurrent {
            cell: Cell::new(self.kind, self.features, self.width, self.memory, device),
            head: RecurrentHead { linear: LinearConfig::new(self.width, self.classes).init(device) },
            steps: self.steps,
            fine_steps: self.fine_steps,
        })
    }
}

/// An LSTM or a GRU, and a linear head over its last state.
#[derive(Module, Debug)]
pub struct Recurrent {
    cell: Cell,
    head: RecurrentHead,
    #[module(skip)]
    steps: Option<usize>,
    #[module(skip)]
    fine_steps: Option<usize>,
}

/// From the last state to classes.
#[derive(Module, Debug)]
struct RecurrentHead {
    linear: Linear,
}

impl RecurrentHead {
    fn logits(&self, state: RecurrentState) -> Tensor<2> {
        let Linear { weight, bias, .. } = &self.linear;
        linear(state.hidden(weight.dims()[0]), weight.val(), bias.as_ref().map(|bias| bias.val()))
    }

    fn loss(&self, state: RecurrentState, classes: Tensor<1, Int>) -> Result<Tensor<1>, Error> {
        let Linear { weight, bias, .. } = &self.linear;
        let bias = bias.as_ref().map(|bias| bias.val());
        LinearCrossEntropy::new().forward(state.hidden(weight.dims()[0]), weight.val(), bias, classes)
    }
}

impl Recurrent {
    /// The steps of a coarse stage, for sequences of so many.
    fn coarse_steps(&self, steps: usize) -> usize {
        self.steps.unwrap_or_else(|| square_root(steps))
    }

    /// Stages of so many steps each, the last of as many as are left, and the head.
    fn cut(
        &self,
        batch: &SequenceBatch,
        steps: usize,
    ) -> (Region<RecurrentState, Tensor<1>>, RecurrentState) {
        let [examples, all, _] = batch.sequences.dims();
        let mut region = Region::new();
        for start in (0..all).step_by(steps.max(1)) {
            let count = steps.min(all - start);
            let inputs = part(&batch.sequences, start, count);
            region = region.stage_with(format!("step.{start}"), &self.cell, inputs, Cell::checked_forward);
        }
        let region = region.stage_with("head", &self.head, batch.classes.clone(), RecurrentHead::loss);
        (region, self.cell.start(examples, &batch.sequences.device()))
    }

    /// The mean loss of a batch in coarse stages, under a rule or a plan made for this model.
    ///
    /// # Errors
    /// When steps have other features than the network was made for, a class is none of its classes, or the region cannot run.
    pub fn loss<'a>(&self, batch: &SequenceBatch, under: impl Into<Under<'a>>) -> Result<Tensor<1>, Error> {
        let (region, state) = self.stages(batch);
        region.under(under).forward(state)
    }

    /// The mean loss of a batch, whose backward goes through the last `steps` steps and no further: back-propagation
    /// through time, truncated. The loss is exact. **The gradient is not**: what happened before is not learned from.
    ///
    /// # Errors
    /// When steps have other features than the network was made for, or a class is none of its classes.
    pub fn loss_truncated(&self, batch: &SequenceBatch, steps: usize) -> Result<Tensor<1>, Error> {
        self.cell.check(&batch.sequences)?;
        let [examples, all, _] = batch.sequences.dims();
        let inputs = |range: std::ops::Range<usize>| batch.sequences.clone().slice_dim(1, range);
        let untracked = self.cell.clone().no_grad();
        let cut = all.saturating_sub(steps);
        let mut state = self.cell.start(examples, &batch.sequences.device());
        for start in (0..cut).step_by(SWEPT) {
            state = untracked.forward(state, inputs(start..cut.min(start + SWEPT)));
            // Burn notes operations that nobody goes back through, too.
            rekindle::sweep();
        }
        if cut < all {
            state = self.cell.forward(state, inputs(cut..all));
        }
        self.head.loss(state, batch.classes.clone())
    }

    /// The logits of sequences, for evaluation.
    ///
    /// # Errors
    /// When steps have other features than the network was made for.
    pub fn forward(&self, sequences: Tensor<3>) -> Result<Tensor<2>, Error> {
        let [examples, _, _] = sequences.dims();
        let state = self.cell.start(examples, &sequences.device());
        Ok(self.head.logits(self.cell.checked_forward(state, sequences)?))
    }
}

/// Some of the steps: part of the tensor that is there, nothing is copied before a step reads it. Made below autodiff, which
/// would note an operation for every stage and keep it as long as the region, more than a small state takes.
fn part(sequences: &Tensor<3>, start: usize, count: usize) -> Tensor<3> {
    match sequences.gradient_checkpointing_strategy() {
        Some(strategy) if !sequences.is_tracked() && has_values(&sequences.device()) => {
            let part = sequences.clone().inner().narrow(1, start, count);
            Tensor::from_inner(part).with_gradient_checkpointing_strategy(strategy)
        }
        // A tracked one is refused by the region, by name.
        _ => sequences.clone().narrow(1, start, count),
    }
}

/// Steps without a tape between two sweeps.
const SWEPT: usize = 16;

/// Rounded up, and at least 1.
fn square_root(steps: usize) -> usize {
    let root = steps.isqrt();
    (root + usize::from(root * root < steps)).max(1)
}

/// The stages are slices of time, and what lies between them is the state.
impl Staged for Recurrent {
    type Batch = SequenceBatch;
    type Input = RecurrentState;
    type Output = Tensor<1>;

    fn name(&self) -> String {
        match self.cell {
            Cell::Lstm(_) => "lstm".to_owned(),
            Cell::Gru(_) => "gru".to_owned(),
        }
    }

    fn stages(&self, batch: &SequenceBatch) -> (Region<RecurrentState, Tensor<1>>, RecurrentState) {
        self.cut(batch, self.coarse_steps(batch.sequences.dims()[1]))
    }
}

impl Trainable for Recurrent {
    /// Stages of a few steps.
    fn fine_stages(&self, batch: &SequenceBatch) -> (Region<RecurrentState, Tensor<1>>, RecurrentState) {
        let coarse = self.coarse_steps(batch.sequences.dims()[1]);
        self.cut(batch, self.fine_steps.unwrap_or_else(|| square_root(coarse)))
    }

    fn accuracy(&self, batch: &SequenceBatch) -> Result<f64, Error> {
        Ok(share_right(self.forward(batch.sequences.clone())?, batch.classes.clone()))
    }
}
