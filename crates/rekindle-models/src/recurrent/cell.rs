//! One step of a recurrence.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor};
use rekindle::nn::{gru, lstm};
use rekindle::{Boundary, Error};

/// What a recurrent network remembers from step to step.
#[derive(Boundary, Clone, Debug)]
pub struct RecurrentState {
    /// What a step tells the next one: batch, width. Beside it, what an LSTM keeps to itself: batch, twice the width.
    pub joined: Tensor<2>,
}

impl RecurrentState {
    /// What a step of this width tells the next one.
    pub fn hidden(&self, width: usize) -> Tensor<2> {
        match self.joined.dims()[1] {
            joined if joined > width => self.joined.clone().narrow(1, 0, width),
            _ => self.joined.clone(),
        }
    }
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
/// A step multiplies its input together with the state, and not the inputs of many steps at once: sums over steps inside of one
/// product would depend on how they are cut. A weight's gradient is added up step by step, from the last to the first.
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
    /// `memory`: how many steps it remembers before it has learned anything; a few, if nothing is said.
    pub(super) fn new(
        kind: RecurrentKind,
        features: usize,
        width: usize,
        memory: Option<usize>,
        device: &Device,
    ) -> Self {
        // As PyTorch begins.
        let bound = 1.0 / (width as f64).sqrt();
        let initializer = Initializer::Uniform { min: -bound, max: bound };
        let layer =
            |to| LinearConfig::new(features + width, to).with_initializer(initializer.clone()).init(device);
        // A gate that stays open for n steps stands at 1 - 1/n, n anything up to the memory: Tallec and Ollivier 2018.
        let open = memory.map(|steps| {
            let longest = (steps.max(3) - 1) as f64;
            Tensor::<1>::random([width], Distribution::Uniform(1.0, longest), device).log()
        });
        match kind {
            RecurrentKind::Lstm => {
                let mut gates: Linear = layer(4 * width);
                match open {
                    Some(open) => {
                        set_bias(&mut gates, 0, open.clone().neg());
                        set_bias(&mut gates, width, open);
                    }
                    // To remember until there is a reason not to: Jozefowicz and others 2015.
                    None => set_bias(&mut gates, width, Tensor::ones([width], device)),
                }
                Self::Lstm(gates)
            }
            RecurrentKind::Gru => {
                let mut gates: Linear = layer(2 * width);
                if let Some(open) = open {
                    set_bias(&mut gates, width, open);
                }
                Self::Gru(GruLayers { gates, new: layer(width) })
            }
        }
    }

    pub(super) fn width(&self) -> usize {
        match self {
            Self::Lstm(gates) => gates.weight.dims()[1] / 4,
            Self::Gru(layers) => layers.new.weight.dims()[1],
        }
    }

    /// Refuses steps of other features than the weights read.
    pub(super) fn check(&self, inputs: &Tensor<3>) -> Result<(), Error> {
        let (Self::Lstm(layer) | Self::Gru(GruLayers { new: layer, .. })) = self;
        let ([examples, steps, found], expected) = (inputs.dims(), layer.weight.dims()[0] - self.width());
        match found == expected {
            true => Ok(()),
            false => Err(Error::InputShape {
                what: "sequences",
                found: inputs.dims().to_vec(),
                expected: vec![examples, steps, expected],
            }),
        }
    }

    /// The state before the first step.
    pub(super) fn start(&self, examples: usize, device: &Device) -> RecurrentState {
        let parts = if matches!(self, Self::Lstm(_)) { 2 } else { 1 };
        RecurrentState { joined: Tensor::zeros([examples, parts * self.width()], device) }
    }

    /// [`forward`](Self::forward), for steps that a user made.
    pub(super) fn checked_forward(
        &self,
        state: RecurrentState,
        inputs: Tensor<3>,
    ) -> Result<RecurrentState, Error> {
        self.check(&inputs)?;
        Ok(self.forward(state, inputs))
    }

    /// Some steps, one after the other: batch, steps, features.
    pub(super) fn forward(
        &self,
        RecurrentState { joined }: RecurrentState,
        inputs: Tensor<3>,
    ) -> RecurrentState {
        let parameters = |layer: &Linear| (layer.weight.val(), layer.bias.as_ref().map(|bias| bias.val()));
        let joined = match self {
            Self::Lstm(layer) => {
                let (weight, bias) = parameters(layer);
                lstm(joined, inputs, weight, bias)
            }
            Self::Gru(layers) => gru(joined, inputs, parameters(&layers.gates), parameters(&layers.new)),
        };
        RecurrentState { joined }
    }
}

/// Sets part of a layer's bias, from a column on.
fn set_bias(layer: &mut Linear, column: usize, values: Tensor<1>) {
    let end = column + values.dims()[0];
    let set = |bias: Tensor<1>| bias.slice_assign(column..end, values).detach().require_grad();
    layer.bias = layer.bias.take().map(|bias| bias.map(set));
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use burn::module::Param;
    use burn::nn::{GateController, GruConfig, LstmConfig};
    use burn::tensor::Tolerance;

    use super::*;

    const FEATURES: usize = 3;
    const WIDTH: usize = 5;

    /// Gives one of Burn's gates the weights of some columns of ours. Its second bias is left at nothing.
    fn give(gate: &mut GateController, layer: &Linear, index: usize) {
        let columns = layer.weight.val().detach().narrow(1, index * WIDTH, WIDTH);
        let bias = layer.bias.as_ref().unwrap().val().detach().narrow(0, index * WIDTH, WIDTH);
        let param = |tensor: Tensor<2>| Param::from_tensor(tensor.detach());
        gate.input_transform.weight = param(columns.clone().narrow(0, 0, FEATURES));
        gate.hidden_transform.weight = param(columns.narrow(0, FEATURES, WIDTH));
        gate.hidden_transform.bias = Some(Param::from_tensor(bias.zeros_like()));
        gate.input_transform.bias = Some(Param::from_tensor(bias.detach()));
    }

    /// The gradient of one of our layers' columns, and that of the gate that has the same weights: input, state, bias.
    fn compare(
        (ours, layer, index): (&burn::tensor::Gradients, &Linear, usize),
        (burns, gate): (&burn::tensor::Gradients, &GateController),
    ) {
        let close = |a: Tensor<2>, b: Tensor<2>| {
            a.into_data().assert_approx_eq::<f32>(&b.into_data(), Tolerance::default());
        };
        let columns = layer.weight.val().grad(ours).unwrap().narrow(1, index * WIDTH, WIDTH);
        let of = |linear: &Linear| linear.weight.val().grad(burns).unwrap();
        close(columns.clone().narrow(0, 0, FEATURES), of(&gate.input_transform));
        close(columns.narrow(0, FEATURES, WIDTH), of(&gate.hidden_transform));
        let bias = layer.bias.as_ref().unwrap().val().grad(ours).unwrap().narrow(0, index * WIDTH, WIDTH);
        let expected = gate.input_transform.bias.as_ref().unwrap().val().grad(burns).unwrap();
        close(bias.unsqueeze(), expected.unsqueeze());
    }

    fn inputs(device: &Device) -> Tensor<3> {
        Tensor::random([2, 7, FEATURES], Distribution::Normal(0.0, 1.0), device)
    }

    fn close(a: &Tensor<2>, b: &Tensor<2>) {
        a.to_data().assert_approx_eq::<f32>(&b.to_data(), Tolerance::default());
    }

    #[test]
    fn an_lstm_is_burns() {
        let device = Device::flex().autodiff();
        let cell = Cell::new(RecurrentKind::Lstm, FEATURES, WIDTH, None, &device);
        let Cell::Lstm(layer) = &cell else { unreachable!() };
        let forget = layer.bias.as_ref().unwrap().val().narrow(0, WIDTH, WIDTH);
        assert!(forget.into_data().iter::<f32>().all(|bias| bias == 1.0));
        let mut burns = LstmConfig::new(FEATURES, WIDTH, true).init(&device);
        give(&mut burns.input_gate, layer, 0);
        give(burns.forget_gate.as_mut().unwrap(), layer, 1);
        give(&mut burns.output_gate, layer, 2);
        give(&mut burns.cell_gate, layer, 3);
        let inputs = inputs(&device);
        let found = cell.forward(cell.start(2, &device), inputs.clone());
        let (_, expected) = burns.forward(inputs, None);
        close(&found.hidden(WIDTH), &expected.hidden);
        close(&found.joined.clone().narrow(1, WIDTH, WIDTH), &expected.cell);
        let ours = found.hidden(WIDTH).powf_scalar(2.0).sum().backward();
        let theirs = expected.hidden.powf_scalar(2.0).sum().backward();
        let forget = burns.forget_gate.as_ref().unwrap();
        let gates = [&burns.input_gate, forget, &burns.output_gate, &burns.cell_gate];
        for (index, gate) in gates.into_iter().enumerate() {
            compare((&ours, layer, index), (&theirs, gate));
        }
    }

    #[test]
    fn a_gru_is_burns() {
        let device = Device::flex().autodiff();
        let cell = Cell::new(RecurrentKind::Gru, FEATURES, WIDTH, Some(20), &device);
        let Cell::Gru(layers) = &cell else { unreachable!() };
        let mut burns = GruConfig::new(FEATURES, WIDTH, true).with_reset_after(false).init(&device);
        give(&mut burns.reset_gate, &layers.gates, 0);
        give(&mut burns.update_gate, &layers.gates, 1);
        give(&mut burns.new_gate, &layers.new, 0);
        let inputs = inputs(&device);
        let found = cell.forward(cell.start(2, &device), inputs.clone()).joined;
        let expected = burns.forward(inputs, None).narrow(1, 6, 1).reshape([2, WIDTH]);
        close(&found, &expected);
        let ours = found.powf_scalar(2.0).sum().backward();
        let theirs = expected.powf_scalar(2.0).sum().backward();
        compare((&ours, &layers.gates, 0), (&theirs, &burns.reset_gate));
        compare((&ours, &layers.gates, 1), (&theirs, &burns.update_gate));
        compare((&ours, &layers.new, 0), (&theirs, &burns.new_gate));
    }
}
