//! Steps of a gated recurrent unit.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;

use super::steps::{
    Inputs, Piece, Rows, Sizes, Steps, added, columns, first_state, for_each, layer, layer_back, layer_of,
    of_step, rest, sigmoid_slope, stacked, tanh_slope, turned, written,
};
use crate::kernel::vectorised;
use crate::matrix::{Into, Matrix, Shape as Lying, multiply};
use crate::node::{Found, GraphBackend, Operation, made, ordered};
use crate::rows::{sigmoid, tanh};

/// From state, inputs, weight and bias of the gates, weight and bias of what is new, to the state behind all steps.
///
/// Kept is what came out of sigmoid and hyperbolic tangent: reset, update, and what is new. Beside it what comes of these without a product:
/// the state before each step, and what the reset leaves of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gru {
    /// Whether that is left out, and made again.
    lean: bool,
}

impl Gru {
    pub(super) const NEW: Self = Self { lean: false };
}

impl Operation<6> for Gru {
    const READS: [bool; 6] = [true, true, true, false, true, false];
    const CHEAP: bool = false;
    const SUMS: [bool; 6] = [false, false, true, true, true, true];

    fn forward<B: GraphBackend>(self, inputs: [FloatTensor<B>; 6]) -> FloatTensor<B> {
        match run::<B>(&inputs, [false, false]) {
            Some((state, _)) => state,
            None => by_operations::<B>(inputs, self.lean).0,
        }
    }

    fn record<B: GraphBackend>(self, inputs: [FloatTensor<B>; 6]) -> (FloatTensor<B>, Vec<FloatTensor<B>>) {
        run::<B>(&inputs, [true, !self.lean]).unwrap_or_else(|| by_operations::<B>(inputs, self.lean))
    }

    fn on_balanced_tape(self) -> Self {
        Self { lean: true }
    }

    fn backward<B: GraphBackend>(self, found: Found<B, 6>) -> [Option<FloatTensor<B>>; 6] {
        let [Some(state), Some(inputs), Some(gates), None, Some(new), None] = &found.inputs else {
            return [const { None }; 6];
        };
        let sizes = Sizes::of::<B>(inputs, new.shape()[1]);
        let lying = (ordered::<B>(state), Inputs::of::<B>(inputs), ordered::<B>(gates), ordered::<B>(new));
        let (Some(state_at), Some(inputs_at), Some(gates_at), Some(new_at)) = lying else {
            return backward_by_operations::<B>(sizes, found);
        };
        let mut kept = found.kept.into_iter();
        let (Some(made_at), Some(gradient)) = (kept.next(), ordered::<B>(&found.gradient)) else {
            return [const { None }; 6];
        };
        let Sizes { features, width, .. } = sizes;
        let kept = <&[_; 2]>::try_from(kept.as_slice());
        let kept = kept.ok().map(|kept| kept.each_ref().map(|kept| ordered::<B>(kept).unwrap_or_default()));
        let mut again = [(); 2].map(|()| vec![0.0; if kept.is_some() { 0 } else { sizes.each(width) }]);
        let [_, of_inputs_wanted, ..] = found.wanted;
        let mut of_state = gradient.into_owned();
        let mut of_inputs = vec![0.0; if of_inputs_wanted { sizes.each(features) } else { 0 }];
        let turn = |weight: &[f32], columns: usize| {
            let inputs = if of_inputs_wanted { turned(weight, columns, 0, features) } else { Vec::new() };
            (turned(weight, columns, features, width), inputs)
        };
        let back = Back {
            sizes,
            state: &state_at,
            kept: kept.as_ref().map(|[states, _]| &**states),
            gates: turn(&gates_at, 2 * width),
            new: turn(&new_at, width),
        };
        let made_at = written::<B>(made_at, |made_at| {
            let [states, resets] = &mut again;
            let [states, resets] = [states, resets].map(|states| sizes.cut(states, sizes.steps * width));
            let mut again = states.zip(resets);
            let mut of_inputs = sizes.cut(&mut of_inputs, sizes.steps * features);
            let parts = sizes.cut(made_at, sizes.steps * 3 * width).zip(sizes.cut(&mut of_state, width));
            let parts = parts.map(|(made, state)| (made, state, again.next(), of_inputs.next()));
            for_each(sizes, parts, |piece, (made, state, again, of_inputs)| {
                back.run(piece, made, state, again, of_inputs.unwrap_or_default());
            });
        });
        let gradients = ordered::<B>(&made_at).unwrap_or_default();
        let steps = |states, first, columns| Steps {
            sizes,
            inputs: &inputs_at,
            states,
            gradients: &gradients,
            row: 3 * width,
            first,
            columns,
        };
        let [states, resets] = match &kept {
            Some(kept) => kept.each_ref().map(|kept| &**kept),
            None => again.each_ref().map(|again| &**again),
        };
        let (of_gates, of_new) = (steps(states, 0, 2 * width), steps(resets, 2 * width, width));
        let [_, _, gates_sum, gates_bias, new_sum, new_bias] = found.sums;
        let [_, _, gates_wanted, gates_bias_wanted, new_wanted, new_bias_wanted] = found.wanted;
        [
            Some(made::<B>(of_state, state.shape().as_slice(), state)),
            of_inputs_wanted.then(|| made::<B>(of_inputs, inputs.shape().as_slice(), inputs)),
            gates_wanted
                .then(|| added::<B>(gates_sum, || gates.shape(), state, |sum| of_gates.add_weight(sum))),
            gates_bias_wanted
                .then(|| added::<B>(gates_bias, || [2 * width].into(), state, |sum| of_gates.add_bias(sum))),
            new_wanted.then(|| added::<B>(new_sum, || new.shape(), state, |sum| of_new.add_weight(sum))),
            new_bias_wanted
                .then(|| added::<B>(new_bias, || [width].into(), state, |sum| of_new.add_bias(sum))),
        ]
    }
}

/// The state behind all steps, and what is to be kept: what was made, states.
fn run<B: GraphBackend>(
    [state, inputs, gates, gates_bias, new, new_bias]: &[FloatTensor<B>; 6],
    [keep_made, keep_states]: [bool; 2],
) -> Option<(FloatTensor<B>, Vec<FloatTensor<B>>)> {
    let sizes = Sizes::of::<B>(inputs, new.shape()[1]);
    let Sizes { width, .. } = sizes;
    let inputs_at = Inputs::of::<B>(inputs)?;
    let (gates_at, gates_bias_at) = (ordered::<B>(gates)?, ordered::<B>(gates_bias)?);
    let (new_at, new_bias_at) = (ordered::<B>(new)?, ordered::<B>(new_bias)?);
    let mut made_state = ordered::<B>(state)?.into_owned();
    let mut made_at = vec![0.0; if keep_made { sizes.each(3 * width) } else { 0 }];
    let mut states = [(); 2].map(|()| vec![0.0; if keep_states { sizes.each(width) } else { 0 }]);
    let mut kept = sizes.cut(&mut made_at, sizes.steps * 3 * width);
    let mut kept_states = states.each_mut().map(|states| sizes.cut(states, sizes.steps * width));
    let parts = sizes.cut(&mut made_state, width);
    let parts = parts.map(|state| {
        (state, kept.next(), kept_states.each_mut().map(|kept| kept.next().unwrap_or_default()))
    });
    for_each(sizes, parts, |piece, (state, mut kept, states)| {
        let size = piece.count * 3 * width;
        let mut own = vec![0.0; if kept.is_none() { size } else { 0 }];
        let mut rolling = Rolling::new(width, state, states);
        for step in 0..sizes.steps {
            let made = match &mut kept {
                Some(kept) => &mut kept[step * size..][..size],
                None => &mut own[..],
            };
            let inputs = inputs_at.rows(sizes, piece, step);
            let mut target = Rows { elements: &mut *made, row: 3 * width, first: 0 };
            layer(
                &mut target,
                [inputs, Matrix::new(&rolling.state, piece.count, width)],
                &gates_at,
                &gates_bias_at,
            );
            vectorised(Gate { width, made: &mut *made });
            rolling.reset(step, made);
            let mut target = Rows { elements: &mut *made, row: 3 * width, first: 2 * width };
            layer(
                &mut target,
                [inputs, Matrix::new(&rolling.reset, piece.count, width)],
                &new_at,
                &new_bias_at,
            );
            vectorised(Renew { width, made: &mut *made });
            vectorised(Move { width, made, state: &mut rolling.state });
        }
        state.copy_from_slice(&rolling.state);
    });
    let mut kept = Vec::new();
    let sized = |width: usize| [sizes.steps, sizes.examples, width];
    if keep_made {
        kept.push(made::<B>(made_at, sized(3 * width), inputs));
    }
    if keep_states {
        kept.extend(states.map(|states| made::<B>(states, sized(width), inputs)));
    }
    Some((made::<B>(made_state, state.shape().as_slice(), inputs), kept))
}

/// The state as it goes from step to step, and what is to be kept of it, if there is room.
struct Rolling<'a> {
    width: usize,
    state: Vec<f32>,
    /// What the reset leaves of it.
    reset: Vec<f32>,
    kept: [&'a mut [f32]; 2],
}

impl<'a> Rolling<'a> {
    fn new(width: usize, state: &[f32], kept: [&'a mut [f32]; 2]) -> Self {
        Self { width, state: state.to_vec(), reset: vec![0.0; state.len()], kept }
    }

    fn reset(&mut self, step: usize, made: &[f32]) {
        vectorised(Reset { width: self.width, made, state: &self.state, reset: &mut self.reset });
        let own = step * self.state.len()..(step + 1) * self.state.len();
        for (kept, own_state) in self.kept.iter_mut().zip([&self.state, &self.reset]) {
            if let Some(kept) = kept.get_mut(own.clone()) {
                kept.copy_from_slice(own_state);
            }
        }
    }
}

/// What came of the first layer to gates.
struct Gate<'a> {
    width: usize,
    made: &'a mut [f32],
}

impl pulp::NullaryFnOnce for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for made in self.made.chunks_exact_mut(3 * self.width) {
            for x in &mut made[..2 * self.width] {
                *x = sigmoid(*x);
            }
        }
    }
}

/// What the reset leaves of the state.
struct Reset<'a> {
    width: usize,
    made: &'a [f32],
    state: &'a [f32],
    reset: &'a mut [f32],
}

impl pulp::NullaryFnOnce for Reset<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { width, made, state, reset } = self;
        let rows = state.chunks_exact(width).zip(reset.chunks_exact_mut(width));
        for (made, (state, reset)) in made.chunks_exact(3 * width).zip(rows) {
            for (reset, (state, made)) in reset.iter_mut().zip(state.iter().zip(made)) {
                *reset = made * state;
            }
        }
    }
}

/// What came of the second layer to what is new.
struct Renew<'a> {
    width: usize,
    made: &'a mut [f32],
}

impl pulp::NullaryFnOnce for Renew<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for made in self.made.chunks_exact_mut(3 * self.width) {
            for x in &mut made[2 * self.width..] {
                *x = tanh(*x);
            }
        }
    }
}

/// The state before each step, from what was made.
fn states_again(width: usize, first: &[f32], made: &[f32], states: &mut [f32]) {
    let mut state = first.to_vec();
    for (states, made) in states.chunks_exact_mut(first.len()).zip(made.chunks_exact(3 * first.len())) {
        states.copy_from_slice(&state);
        vectorised(Move { width, made, state: &mut state });
    }
}

/// Goes on with the state.
struct Move<'a> {
    width: usize,
    made: &'a [f32],
    state: &'a mut [f32],
}

impl pulp::NullaryFnOnce for Move<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { width, made, state } = self;
        for (made, state) in made.chunks_exact(3 * width).zip(state.chunks_exact_mut(width)) {
            let rows = made[width..2 * width].iter().zip(&made[2 * width..]);
            for (state, (update, new)) in state.iter_mut().zip(rows) {
                *state = new + update * (*state - new);
            }
        }
    }
}

/// Back through all steps of a piece.
struct Back<'a> {
    sizes: Sizes,
    /// Before the first step.
    state: &'a [f32],
    /// Before each step.
    kept: Option<&'a [f32]>,
    /// Weights' rows as columns: of the state, and of the inputs where somebody asks for their gradient.
    gates: (Vec<f32>, Vec<f32>),
    new: (Vec<f32>, Vec<f32>),
}

impl Back<'_> {
    /// Writes their gradients over what was made and over the state, the state before each step and what the reset leaves of it where they
    /// were not kept, and the gradients of the inputs if there is room.
    fn run(
        &self,
        piece: Piece,
        made: &mut [f32],
        of_state: &mut [f32],
        again: Option<(&mut [f32], &mut [f32])>,
        of_inputs: &mut [f32],
    ) {
        let Sizes { steps, features, width, .. } = self.sizes;
        let size = piece.count * width;
        let (states, mut resets) = match again {
            Some((states, resets)) => {
                states_again(width, &self.state[piece.first * width..][..size], made, states);
                (&*states, Some(resets))
            }
            None => (&self.kept.unwrap_or_default()[piece.first * steps * width..], None),
        };
        let [mut of_reset, mut of_gates] = [(); 2].map(|()| vec![0.0; size]);
        for step in (0..steps).rev() {
            let made = &mut made[step * 3 * size..][..3 * size];
            let state = &states[step * size..][..size];
            vectorised(TurnNew { width, made: &mut *made, state, of_state: &mut *of_state });
            let shape = Lying::by_rows(piece.count, width, width);
            let new = columns_of(made, piece, 3 * width, (2 * width, width));
            let to_new = Matrix::new(&self.new.0, width, width);
            multiply(&mut of_reset, shape, Into::Over, 1.0, [new, to_new]);
            if let Some(resets) = &mut resets {
                vectorised(Reset { width, made, state, reset: &mut resets[step * size..][..size] });
            }
            vectorised(TurnReset {
                width,
                made: &mut *made,
                state,
                of_reset: &of_reset,
                of_state: &mut *of_state,
            });
            let gates = columns_of(made, piece, 3 * width, (0, 2 * width));
            let new = columns_of(made, piece, 3 * width, (2 * width, width));
            let to_gates = Matrix::new(&self.gates.0, 2 * width, width);
            multiply(&mut of_gates, shape, Into::Over, 1.0, [gates, to_gates]);
            for (of_state, of_gates) in of_state.iter_mut().zip(&of_gates) {
                *of_state += of_gates;
            }
            if !of_inputs.is_empty() {
                let target = &mut of_inputs[step * features..];
                let shape = Lying::by_rows(piece.count, features, steps * features);
                let to_gates = Matrix::new(&self.gates.1, 2 * width, features);
                let to_new = Matrix::new(&self.new.1, width, features);
                multiply(target, shape, Into::Over, 1.0, [gates, to_gates]);
                multiply(target, shape, Into::Sum, 1.0, [new, to_new]);
            }
        }
    }
}

/// Some columns, from the first on, of a piece's rows.
fn columns_of(elements: &[f32], piece: Piece, row: usize, (first, columns): (usize, usize)) -> Matrix<'_> {
    Matrix { elements: &elements[first..], shape: Lying::by_rows(piece.count, columns, row) }
}

/// Writes the gradients of what came of the layers over the update and what is new, and over that of the state what of it comes by way of the
/// update.
struct TurnNew<'a> {
    width: usize,
    made: &'a mut [f32],
    /// Before the step.
    state: &'a [f32],
    of_state: &'a mut [f32],
}

impl pulp::NullaryFnOnce for TurnNew<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { width, made, state, of_state } = self;
        let rows = state.chunks_exact(width).zip(of_state.chunks_exact_mut(width));
        for (made, (state, of_state)) in made.chunks_exact_mut(3 * width).zip(rows) {
            let (update, new) = made[width..].split_at_mut(width);
            let new = &mut new[..width];
            for place in 0..width {
                let (z, n, gradient) = (update[place], new[place], of_state[place]);
                update[place] = gradient * (state[place] - n) * (z * (1.0 - z));
                new[place] = gradient * (1.0 - z) * (1.0 - n * n);
                of_state[place] = gradient * z;
            }
        }
    }
}

/// Writes the gradient of what came of the layer over the reset, and adds to that of the state what of it comes by way of the reset.
struct TurnReset<'a> {
    width: usize,
    made: &'a mut [f32],
    /// Before the step.
    state: &'a [f32],
    of_reset: &'a [f32],
    of_state: &'a mut [f32],
}

impl pulp::NullaryFnOnce for TurnReset<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { width, made, state, of_reset, of_state } = self;
        let states = state.chunks_exact(width).zip(of_state.chunks_exact_mut(width));
        let rows = made.chunks_exact_mut(3 * width).zip(of_reset.chunks_exact(width));
        for ((made, of_reset), (state, of_state)) in rows.zip(states) {
            let reset = &mut made[..width];
            for place in 0..width {
                let (r, gradient) = (reset[place], of_reset[place]);
                of_state[place] += gradient * r;
                reset[place] = gradient * state[place] * (r * (1.0 - r));
            }
        }
    }
}

/// The state, and what is kept of each step.
fn by_operations<B: GraphBackend>(
    [state, inputs, gates, gates_bias, new, new_bias]: [FloatTensor<B>; 6],
    lean: bool,
) -> (FloatTensor<B>, Vec<FloatTensor<B>>) {
    let width = new.shape()[1];
    let sizes = Sizes::of::<B>(&inputs, width);
    let mut state = first_state::<B>(state);
    let mut kept = Vec::with_capacity(sizes.steps);
    for step in 0..sizes.steps {
        let input = of_step::<B>(&inputs, sizes, step);
        let rows = B::float_cat(vec![input.clone(), state.clone()], 1);
        let made_gates = B::sigmoid(layer_of::<B>(rows, &gates, &gates_bias));
        let reset = B::float_mul(columns::<B>(&made_gates, 0, width), state.clone());
        let rows = B::float_cat(vec![input, reset.clone()], 1);
        let made_new = B::float_tanh(layer_of::<B>(rows, &new, &new_bias));
        let made = B::float_cat(vec![made_gates, made_new], 1);
        let next = moved::<B>(&made, state.clone(), width);
        let before = std::mem::replace(&mut state, next);
        kept.push(made);
        if !lean {
            kept.extend([before, reset]);
        }
    }
    (state, kept)
}

/// The state behind a step.
fn moved<B: GraphBackend>(made: &FloatTensor<B>, state: FloatTensor<B>, width: usize) -> FloatTensor<B> {
    let (update, new) = (columns::<B>(made, width, width), columns::<B>(made, 2 * width, width));
    B::float_add(new.clone(), B::float_mul(update, B::float_sub(state, new)))
}

fn backward_by_operations<B: GraphBackend>(sizes: Sizes, found: Found<B, 6>) -> [Option<FloatTensor<B>>; 6] {
    let [Some(state), Some(inputs), Some(gates), _, Some(new), _] = found.inputs else {
        return [const { None }; 6];
    };
    let Sizes { features, width, .. } = sizes;
    let mut before = Vec::with_capacity(sizes.steps);
    let mut state = state;
    let each = (found.kept.len() / sizes.steps).max(1);
    for kept in found.kept.chunks(each) {
        before.push(match kept {
            [made, state, reset] => (made.clone(), state.clone(), reset.clone()),
            [made, ..] => {
                let reset = B::float_mul(columns::<B>(made, 0, width), state.clone());
                let next = moved::<B>(made, state.clone(), width);
                (made.clone(), std::mem::replace(&mut state, next), reset)
            }
            [] => continue,
        });
    }
    drop(found.kept);
    let mut of_state = found.gradient;
    let [_, _, mut of_gates, mut of_gates_bias, mut of_new, mut of_new_bias] = found.sums;
    let mut of_inputs = Vec::new();
    for (step, (made, state, reset)) in before.into_iter().enumerate().rev() {
        let part = |index: usize| columns::<B>(&made, index * width, width);
        let input = of_step::<B>(&inputs, sizes, step);
        let of_made_new =
            B::float_mul(B::float_mul(of_state.clone(), rest::<B>(part(1))), tanh_slope::<B>(part(2)));
        let rows = B::float_cat(vec![input.clone(), reset], 1);
        let of_reset_rows = layer_back::<B>(rows, &new, of_made_new, [&mut of_new, &mut of_new_bias]);
        let of_reset = columns::<B>(&of_reset_rows, features, width);
        let of_made = B::float_cat(
            vec![
                B::float_mul(B::float_mul(of_reset.clone(), state.clone()), sigmoid_slope::<B>(part(0))),
                B::float_mul(
                    B::float_mul(of_state.clone(), B::float_sub(state.clone(), part(2))),
                    sigmoid_slope::<B>(part(1)),
                ),
            ],
            1,
        );
        let rows = B::float_cat(vec![input, state], 1);
        let of_rows = layer_back::<B>(rows, &gates, of_made, [&mut of_gates, &mut of_gates_bias]);
        let through = B::float_add(B::float_mul(of_state, part(1)), B::float_mul(of_reset, part(0)));
        of_state = B::float_add(through, columns::<B>(&of_rows, features, width));
        if found.wanted[1] {
            let own = columns::<B>(&of_rows, 0, features);
            of_inputs.push(B::float_add(own, columns::<B>(&of_reset_rows, 0, features)));
        }
    }
    let of_inputs = found.wanted[1].then(|| stacked::<B>(of_inputs));
    [Some(of_state), of_inputs, of_gates, of_gates_bias, of_new, of_new_bias]
}
