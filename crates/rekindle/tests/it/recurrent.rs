//! Recurrent cells as nodes, against Burn's operations, and however their steps are cut.

use burn::tensor::activation::sigmoid;
use burn::tensor::{DType, Device, Distribution, Tensor, TensorData, Tolerance};
use proptest::prelude::*;
use rekindle::nn::{gru, lstm};

use crate::common::*;

/// What a cell is made of: state, inputs and parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Lstm,
    Gru,
}

const KINDS: [Kind; 2] = [Kind::Lstm, Kind::Gru];

#[derive(Clone, Copy, Debug)]
struct Sizes {
    examples: usize,
    steps: usize,
    features: usize,
    width: usize,
}

/// A state, the inputs of all steps, and one or two layers.
#[derive(Clone)]
struct Case {
    kind: Kind,
    state: Tensor<2>,
    inputs: Tensor<3>,
    layers: Vec<(Tensor<2>, Tensor<1>)>,
}

impl Case {
    fn new(
        kind: Kind,
        Sizes { examples, steps, features, width }: Sizes,
        dtype: DType,
        device: &Device,
    ) -> Self {
        device.seed(9);
        let normal = |deviation| Distribution::Normal(0.0, deviation);
        let matrix = |shape: [usize; 2], by| Tensor::<2>::random(shape, normal(by), device).cast(dtype);
        let columns = match kind {
            Kind::Lstm => vec![4 * width],
            Kind::Gru => vec![2 * width, width],
        };
        let layer = |columns: usize| {
            let bias = matrix([1, columns], 0.5).reshape([columns]);
            (matrix([features + width, columns], 0.5), bias)
        };
        let layers = columns.into_iter().map(layer).collect();
        let state = matrix([examples, if kind == Kind::Lstm { 2 * width } else { width }], 1.0);
        let inputs = Tensor::<3>::random([examples, steps, features], normal(1.0), device).cast(dtype);
        Self { kind, state, inputs, layers }
    }

    /// The same values, as leaves.
    fn leaves(&self) -> Self {
        let layer = |(weight, bias): &(Tensor<2>, Tensor<1>)| {
            (weight.clone().detach().require_grad(), bias.clone().detach().require_grad())
        };
        Self {
            kind: self.kind,
            state: self.state.clone().detach().require_grad(),
            inputs: self.inputs.clone().detach().require_grad(),
            layers: self.layers.iter().map(layer).collect(),
        }
    }

    fn ours(&self, state: Tensor<2>, inputs: Tensor<3>) -> Tensor<2> {
        let mut layers = self.layers.iter().cloned().map(|(weight, bias)| (weight, Some(bias)));
        let (weight, bias) = layers.next().unwrap();
        match self.kind {
            Kind::Lstm => lstm(state, inputs, weight, bias),
            Kind::Gru => gru(state, inputs, (weight, bias), layers.next().unwrap()),
        }
    }

    /// One step by Burn's operations.
    fn step(&self, state: Tensor<2>, input: Tensor<2>) -> Tensor<2> {
        let layer = |index: usize, rows: Vec<Tensor<2>>| {
            let (weight, bias) = self.layers[index].clone();
            Tensor::cat(rows, 1).matmul(weight) + bias.unsqueeze()
        };
        match self.kind {
            Kind::Lstm => {
                let width = state.dims()[1] / 2;
                let part = |of: &Tensor<2>, index: usize| of.clone().narrow(1, index * width, width);
                let made = layer(0, vec![input, part(&state, 0)]);
                let gate = |index| sigmoid(part(&made, index));
                let cell = gate(1) * part(&state, 1) + gate(0) * part(&made, 3).tanh();
                Tensor::cat(vec![gate(2) * cell.clone().tanh(), cell], 1)
            }
            Kind::Gru => {
                let width = state.dims()[1];
                let made = sigmoid(layer(0, vec![input.clone(), state.clone()]));
                let (reset, update) = (made.clone().narrow(1, 0, width), made.narrow(1, width, width));
                let new = layer(1, vec![input, reset * state.clone()]).tanh();
                (-update.clone() + 1.0) * new + update * state
            }
        }
    }

    fn burns(&self) -> Tensor<2> {
        let [examples, steps, features] = self.inputs.dims();
        (0..steps).fold(self.state.clone(), |state, step| {
            self.step(state, self.inputs.clone().narrow(1, step, 1).reshape([examples, features]))
        })
    }

    /// The value, and the gradients of all there is.
    fn results(&self, run: impl Fn(&Self) -> Tensor<2>) -> Vec<TensorData> {
        let leaves = self.leaves();
        let output = run(&leaves);
        let gradients = weighted(output.clone()).backward();
        let of_layers = leaves.layers.iter().flat_map(|(weight, bias)| {
            [weight.grad(&gradients).unwrap().into_data(), bias.grad(&gradients).unwrap().into_data()]
        });
        [output.into_data(), leaves.state.grad(&gradients).unwrap().into_data()]
            .into_iter()
            .chain([leaves.inputs.grad(&gradients).unwrap().into_data()])
            .chain(of_layers)
            .collect()
    }

    fn whole(&self) -> Tensor<2> {
        self.ours(self.state.clone(), self.inputs.clone())
    }

    /// Cut into so many steps at a time.
    fn cut(&self, at_once: usize) -> Tensor<2> {
        let steps = self.inputs.dims()[1];
        (0..steps).step_by(at_once).fold(self.state.clone(), |state, start| {
            self.ours(state, self.inputs.clone().narrow(1, start, at_once.min(steps - start)))
        })
    }
}

/// Every element counts differently, and none for nothing: the sign of a zero depends on how many zeros it is the sum of.
fn weighted(output: Tensor<2>) -> Tensor<1> {
    let [rows, columns] = output.dims();
    let weights = Tensor::<1, burn::tensor::Int>::arange(0..(rows * columns) as i64, &output.device());
    (output.clone() * weights.float().add_scalar(1.0).sin().cast(output.dtype()).reshape([rows, columns]))
        .sum()
}

fn agree(found: &[TensorData], expected: &[TensorData]) {
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!((found.dtype(), found.shape()), (expected.dtype(), expected.shape()));
        match found.dtype() {
            DType::F64 => found.assert_approx_eq::<f64>(expected, Tolerance::absolute(1e-9)),
            _ => found.assert_approx_eq::<f32>(expected, Tolerance::rel_abs(1e-4, 3e-5)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_cell_of_any_size_agrees_with_burns_operations_and_is_the_same_wherever_it_is_cut(
        (examples, steps, features, width) in (1..20_usize, 1..7_usize, 1..6_usize, 1..40_usize),
        at_once in 1..7_usize,
    ) {
        let _alone = alone();
        for kind in KINDS {
            let case = Case::new(kind, Sizes { examples, steps, features, width }, DType::F32, &device());
            let found = case.results(Case::whole);
            agree(&found, &case.results(Case::burns));
            assert!(found == case.results(|case| case.cut(at_once)), "{kind:?}");
        }
    }
}

const SIZES: Sizes = Sizes { examples: 19, steps: 5, features: 3, width: 33 };

#[test]
fn a_cell_of_one_is_one_too() {
    let _alone = alone();
    for kind in KINDS {
        for (steps, features) in [(1, 1), (5, 5)] {
            let sizes = Sizes { examples: 1, steps, features, width: 1 };
            let case = Case::new(kind, sizes, DType::F32, &device());
            let found = case.results(Case::whole);
            agree(&found, &case.results(Case::burns));
            assert!(found == case.results(|case| case.cut(1)), "{kind:?}");
        }
    }
}

#[test]
fn twice_the_digits_agree_as_well() {
    let _alone = alone();
    for kind in KINDS {
        let case = Case::new(kind, SIZES, DType::F64, &device());
        let found = case.results(Case::whole);
        agree(&found, &case.results(Case::burns));
        assert!(found == case.results(|case| case.cut(2)), "{kind:?}");
    }
}

#[test]
fn a_cell_of_sixteen_bits_is_burns_operations_step_by_step() {
    let _alone = alone();
    for kind in KINDS {
        let case = Case::new(kind, SIZES, DType::BF16, &device());
        let found = case.results(Case::whole);
        assert!(found.iter().all(|data| data.dtype() == DType::BF16));
        assert!(found == case.results(|case| case.cut(2)), "{kind:?}");
    }
}

#[test]
fn it_is_the_same_on_any_number_of_threads_and_on_a_balanced_tape() {
    let _alone = alone();
    for kind in KINDS {
        // Large enough that gradients of weights are shared out, too.
        let sizes = Sizes { width: 90, ..SIZES };
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| Case::new(kind, sizes, DType::F32, &device()).results(Case::whole))
        };
        let found = on(1);
        assert!(on(2) == found && on(5) == found, "{kind:?}");
        let balanced = device().gradient_checkpointing();
        assert!(Case::new(kind, sizes, DType::F32, &balanced).results(Case::whole) == found, "{kind:?}");
    }
}

#[test]
fn inputs_and_weights_may_lie_in_any_way() {
    let _alone = alone();
    for kind in KINDS {
        let mut case = Case::new(kind, SIZES, DType::F32, &device());
        let expected = case.results(Case::whole);
        let lie = |case: &Case| {
            let mut case = case.clone();
            case.inputs = case.inputs.clone().swap_dims(0, 2).flip([1]).swap_dims(0, 2);
            case.whole()
        };
        case.inputs = case.inputs.flip([1]);
        let found = case.results(lie);
        assert!(found[0] == expected[0] && found[3..] == expected[3..], "{kind:?}");
        let turned = |case: &Case| {
            let mut case = case.clone();
            for (weight, _) in &mut case.layers {
                *weight = weight.clone().transpose();
            }
            case.whole()
        };
        let mut case = Case::new(kind, SIZES, DType::F32, &device());
        for (weight, _) in &mut case.layers {
            *weight = weight.clone().transpose();
        }
        assert!(case.results(turned)[..3] == expected[..3], "{kind:?}");
    }
}

#[test]
fn a_weight_that_is_used_elsewhere_has_all_of_its_gradient() {
    let _alone = alone();
    for kind in KINDS {
        let case = Case::new(kind, SIZES, DType::F32, &device());
        // Before the cell, behind it, in a second cell, and where its states are held and read.
        let with = |cell: fn(&Case) -> Tensor<2>| {
            move |case: &Case| {
                let (weight, bias) = case.layers[0].clone();
                let before = weight.clone().mean() + bias.clone().powf_scalar(2.0).mean();
                let first = Case { state: case.state.clone() * before.clone().unsqueeze(), ..case.clone() };
                let held = cell(&first);
                let second = Case { state: held.clone(), ..case.clone() };
                let made = cell(&second) + held;
                made * (weight.powf_scalar(2.0).mean() + bias.mean()).unsqueeze()
            }
        };
        agree(&case.results(with(Case::whole)), &case.results(with(Case::burns)));
    }
}

#[test]
fn what_is_not_trained_has_no_gradient_and_changes_none() {
    let _alone = alone();
    for kind in KINDS {
        let case = Case::new(kind, SIZES, DType::F32, &device());
        let expected = case.results(Case::whole);
        let leaves = case.leaves();
        let mut frozen = leaves.clone();
        frozen.inputs = case.inputs.clone();
        frozen.layers[0].0 = case.layers[0].0.clone();
        let gradients = weighted(frozen.whole()).backward();
        assert!(frozen.layers[0].0.grad(&gradients).is_none() && frozen.inputs.grad(&gradients).is_none());
        let of_bias = leaves.layers[0].1.grad(&gradients).unwrap().into_data();
        assert!(of_bias == expected[4], "{kind:?}");
    }
}
