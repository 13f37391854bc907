//! Recurrent cells over some steps, as one node.

mod gru;
mod lstm;
mod steps;

use burn::tensor::Tensor;
use burn::tensor::activation::sigmoid;

use super::linear;
use crate::node::{AnyTensor, apply, is_narrow};
use gru::Gru;
use lstm::Lstm;

/// A linear layer of a cell: the weight of input and state features, one below the other, and the bias.
type Layer = (Tensor<2>, Option<Tensor<1>>);

/// Some steps of an LSTM, with a gate to forget by, as one node: the state before them to the state behind them.
///
/// A state is what a step tells the next one and, beside it, what the cell keeps to itself: batch, twice the width. `inputs` are batch, steps,
/// features; `weight` is of features and width to four times the width: the gates for input, forgetting and output, and what is new.
///
/// The backward reads the gates and computes the states again, which takes no product. Where steps are cut makes no difference to any bit: the
/// gradients of the parameters are added up step by step, from the last to the first, to what later steps have left there. On Flex that is
/// for `f32`; anything else goes through Burn's operations, step by step.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use rekindle::nn::lstm;
///
/// let device = Device::flex().autodiff();
/// let (x, start) = (Tensor::<3>::ones([2, 5, 3], &device), Tensor::<2>::zeros([2, 2 * 4], &device));
/// let (weight, bias) = (Tensor::<2>::ones([3 + 4, 4 * 4], &device), Tensor::<1>::ones([4 * 4], &device));
/// let whole = lstm(start.clone(), x.clone(), weight.clone(), Some(bias.clone()));
/// let half = lstm(start, x.clone().narrow(1, 0, 2), weight.clone(), Some(bias.clone()));
/// let both = lstm(half, x.narrow(1, 2, 3), weight, Some(bias));
/// assert_eq!(whole.into_data(), both.into_data());
/// ```
///
/// # Panics
/// As Burn's operations: when the sizes do not go together.
pub fn lstm(state: Tensor<2>, inputs: Tensor<3>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
    let [examples, _, features] = inputs.dims();
    let width = weight.dims()[1] / 4;
    let fits = state.dims() == [examples, 2 * width] && weight.dims() == [features + width, 4 * width];
    match bias {
        Some(bias)
            if fits && bias.dims() == [4 * width] && has_kernels(&state, &inputs, &[&weight], &[&bias]) =>
        {
            let given = [
                AnyTensor::from(state),
                AnyTensor::from(inputs),
                AnyTensor::from(weight),
                AnyTensor::from(bias),
            ];
            apply(Lstm::NEW, given).map(|state| Tensor::from_dispatch(state.0)).unwrap_or_else(
                |[state, inputs, weight, bias]| {
                    let layer = (Tensor::from_dispatch(weight.0), Some(Tensor::from_dispatch(bias.0)));
                    lstm_by_operations(Tensor::from_dispatch(state.0), Tensor::from_dispatch(inputs.0), layer)
                },
            )
        }
        bias => lstm_by_operations(state, inputs, (weight, bias)),
    }
}

/// Some steps of a gated recurrent unit, the state reset before it is multiplied, as one node: the state before them to the state behind
/// them.
///
/// A state is batch, width; `inputs` are batch, steps, features. `gates` is a layer of features and width to twice the width, for reset and
/// update; `new` one of features and what the reset leaves to the width. The update says how much of the old stays.
///
/// What the backward reads, and in which order gradients are added up, is as in [`lstm`].
///
/// # Panics
/// As Burn's operations: when the sizes do not go together.
pub fn gru(state: Tensor<2>, inputs: Tensor<3>, gates: Layer, new: Layer) -> Tensor<2> {
    let [examples, _, features] = inputs.dims();
    let width = new.0.dims()[1];
    let fits = state.dims() == [examples, width]
        && gates.0.dims() == [features + width, 2 * width]
        && new.0.dims() == [features + width, width];
    let biases = match (&gates.1, &new.1) {
        (Some(of_gates), Some(of_new)) if of_gates.dims() == [2 * width] && of_new.dims() == [width] => {
            Some((of_gates.clone(), of_new.clone()))
        }
        _ => None,
    };
    match biases {
        Some((of_gates, of_new))
            if fits && has_kernels(&state, &inputs, &[&gates.0, &new.0], &[&of_gates, &of_new]) =>
        {
            let given = [
                AnyTensor::from(state),
                AnyTensor::from(inputs),
                AnyTensor::from(gates.0),
                AnyTensor::from(of_gates),
                AnyTensor::from(new.0),
                AnyTensor::from(of_new),
            ];
            apply(Gru::NEW, given).map(|state| Tensor::from_dispatch(state.0)).unwrap_or_else(
                |[state, inputs, gates, of_gates, new, of_new]| {
                    let layer = |weight: AnyTensor, bias: AnyTensor| {
                        (Tensor::from_dispatch(weight.0), Some(Tensor::from_dispatch(bias.0)))
                    };
                    let layers = [layer(gates, of_gates), layer(new, of_new)];
                    gru_by_operations(Tensor::from_dispatch(state.0), Tensor::from_dispatch(inputs.0), layers)
                },
            )
        }
        _ => gru_by_operations(state, inputs, [gates, new]),
    }
}

/// Whether there is anything to do, and all of it of one type. Not of 16 bits: a state would be rounded where steps are cut, and nowhere else.
fn has_kernels(state: &Tensor<2>, inputs: &Tensor<3>, weights: &[&Tensor<2>], biases: &[&Tensor<1>]) -> bool {
    let dtype = state.dtype();
    let parameters =
        weights.iter().map(|weight| weight.dtype()).chain(biases.iter().map(|bias| bias.dtype()));
    let same = parameters.chain([inputs.dtype()]).all(|other| other == dtype);
    let some = !state.dims().contains(&0) && !inputs.dims().contains(&0);
    same && some && dtype.is_float() && !is_narrow(dtype)
}

/// The inputs of one step after the other.
fn each(inputs: &Tensor<3>) -> impl Iterator<Item = Tensor<2>> + '_ {
    let [examples, steps, features] = inputs.dims();
    (0..steps).map(move |step| inputs.clone().narrow(1, step, 1).reshape([examples, features]))
}

fn beside(input: Tensor<2>, state: Tensor<2>) -> Tensor<2> {
    Tensor::cat(vec![input, state], 1)
}

fn lstm_by_operations(state: Tensor<2>, inputs: Tensor<3>, (weight, bias): Layer) -> Tensor<2> {
    let width = weight.dims()[1] / 4;
    let part = |of: &Tensor<2>, index: usize| of.clone().narrow(1, index * width, width);
    let (hidden, cell) = (part(&state, 0), part(&state, 1));
    let (hidden, cell) = each(&inputs).fold((hidden, cell), |(hidden, cell), input| {
        let made = linear(beside(input, hidden), weight.clone(), bias.clone());
        let gates = sigmoid(made.clone().narrow(1, 0, 3 * width));
        let cell = part(&gates, 1) * cell + part(&gates, 0) * part(&made, 3).tanh();
        (part(&gates, 2) * cell.clone().tanh(), cell)
    });
    Tensor::cat(vec![hidden, cell], 1)
}

fn gru_by_operations(state: Tensor<2>, inputs: Tensor<3>, [gates, new]: [Layer; 2]) -> Tensor<2> {
    let width = new.0.dims()[1];
    each(&inputs).fold(state, |state, input| {
        let made = sigmoid(linear(beside(input.clone(), state.clone()), gates.0.clone(), gates.1.clone()));
        let (reset, update) = (made.clone().narrow(1, 0, width), made.narrow(1, width, width));
        let new = linear(beside(input, reset * state.clone()), new.0.clone(), new.1.clone()).tanh();
        new.clone() + update * (state - new)
    })
}
