//! One step of a recurrence.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::activation::sigmoid;
use burn::tensor::{Device, Tensor};
use rekindle::Boundary;
use rekindle::nn::linear;

/// What a recurrent network remembers from step to step.
#[derive(Boundary, Clone, Debug)]
pub struct RecurrentState {
    /// What a step tells the next one: batch, width.
    pub hidden: Tensor<2>,
    /// What an LSTM keeps to itself; a GRU has none.
    pub cell: Option<Tensor<2>>,
}

/// What a step does.
#[derive(Config, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentKind {
    /// Long short-term memory (Hochreiter and Schmidhuber 1997), with a gate to forget by (Gers and others 1999).
    Lstm,
    /// Gated recurrent unit (Cho and others 2014), the state reset before it is multiplied.
    Gru,
}

/// The weights of a step, which all steps share.
///
/// A step multiplies its input together with the state, and not the inputs of many steps at once. So every use of a weight
/// stands behind the one before it, and its gradient is added up in one order however the steps are cut; products of many
/// inputs would be parallel branches, and sums over steps inside of one product would depend on the cut.
#[derive(Module, Debug)]
pub(super) enum Cell {
    /// Of input beside state: the gates for input, forgetting and output, and what is new.
    Lstm(Linear),
    /// Of input beside state: the gates for reset and update; then, of input beside what the reset leaves: what is new.
    Gru(GruLayers),
}

#[derive(Module, Debug)]
pub(super) struct GruLayers {
    gates: Linear,
    new: Linear,
}

impl Cell {
    pub(super) fn new(kind: RecurrentKind, features: usize, width: usize, device: &Device) -> Self {
        // As PyTorch begins.
        let bound = 1.0 / (width as f64).sqrt();
        let initializer = Initializer::Uniform { min: -bound, max: bound };
        let layer =
            |to| LinearConfig::new(features + width, to).with_initializer(initializer.clone()).init(device);
        match kind {
            RecurrentKind::Lstm => {
                let mut gates: Linear = layer(4 * width);
                // To remember until there is a reason not to: Jozefowicz and others 2015.
                gates.bias = gates.bias.map(|bias| {
                    bias.map(|bias| {
                        let ones = Tensor::ones([width], &bias.device());
                        bias.slice_assign(width..2 * width, ones).detach().require_grad()
                    })
                });
                Self::Lstm(gates)
            }
            RecurrentKind::Gru => Self::Gru(GruLayers { gates: layer(2 * width), new: layer(width) }),
        }
    }

    pub(super) fn width(&self) -> usize {
        match self {
            Self::Lstm(gates) => gates.weight.dims()[1] / 4,
            Self::Gru(layers) => layers.new.weight.dims()[1],
        }
    }

    /// The state before the first step.
    pub(super) fn start(&self, examples: usize, device: &Device) -> RecurrentState {
        let zeros = || Tensor::zeros([examples, self.width()], device);
        let cell = matches!(self, Self::Lstm(_)).then(zeros);
        RecurrentState { hidden: zeros(), cell }
    }

    /// Some steps, one after the other: batch, steps, features.
    pub(super) fn forward(&self, state: RecurrentState, inputs: Tensor<3>) -> RecurrentState {
        let [examples, steps, features] = inputs.dims();
        (0..steps).fold(state, |state, step| {
            let input = inputs.clone().narrow(1, step, 1).reshape([examples, features]);
            self.step(state, input)
        })
    }

    fn step(&self, RecurrentState { hidden, cell }: RecurrentState, input: Tensor<2>) -> RecurrentState {
        let width = self.width();
        let beside = |state: Tensor<2>| Tensor::cat(vec![input.clone(), state], 1);
        let part = |gates: &Tensor<2>, index: usize| gates.clone().narrow(1, index * width, width);
        match self {
            Self::Lstm(layer) => {
                let made = apply(layer, beside(hidden));
                let gates = sigmoid(made.clone().narrow(1, 0, 3 * width));
                let new = part(&made, 3).tanh();
                let written = part(&gates, 0) * new;
                let cell = match cell {
                    Some(cell) => part(&gates, 1) * cell + written,
                    None => written,
                };
                let hidden = part(&gates, 2) * cell.clone().tanh();
                RecurrentState { hidden, cell: Some(cell) }
            }
            Self::Gru(layers) => {
                let gates = sigmoid(apply(&layers.gates, beside(hidden.clone())));
                let new = apply(&layers.new, beside(part(&gates, 0) * hidden.clone())).tanh();
                // The update says how much of the old stays.
                let hidden = new.clone() + part(&gates, 1) * (hidden - new);
                RecurrentState { hidden, cell: None }
            }
        }
    }
}

fn apply(layer: &Linear, x: Tensor<2>) -> Tensor<2> {
    linear(x, layer.weight.val(), layer.bias.as_ref().map(|bias| bias.val()))
}
