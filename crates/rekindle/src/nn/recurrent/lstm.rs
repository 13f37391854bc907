//! Steps of an LSTM.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;

use super::steps::{
    Inputs, Piece, Rows, Sizes, Steps, added, columns, first_state, for_each, layer, layer_back, layer_of,
    of_step, sigmoid_slope, stacked, tanh_slope, turned, written,
};
use crate::kernel::vectorised;
use crate::matrix::{Into, Matrix, Shape as Lying, multiply};
use crate::node::{Found, GraphBackend, Operation, made, ordered};
use crate::rows::{sigmoid, tanh};

/// From state, inputs, weight and bias to the state behind all steps.
///
/// Kept are the gates, as they came out of sigmoid and hyperbolic tangent: for input, forgetting and output, and what is new. Beside them what
/// comes of these without a product: what each step was told, its cell, and the hyperbolic tangent of the next one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lstm {
    /// Whether that is left out, and made again.
    lean: bool,
}

impl Lstm {
    pub(super) const NEW: Self = Self { lean: false };
}

impl Operation<4> for Lstm {
    const READS: [bool; 4] = [true, true, true, false];
    const CHEAP: bool = false;
    const SUMS: [bool; 4] = [false, false, true, true];

    fn forward<B: GraphBackend>(self, inputs: [FloatTensor<B>; 4]) -> FloatTensor<B> {
        match run::<B>(&inputs, [false, false]) {
            Some((state, _)) => state,
            None => by_operations::<B>(inputs, self.lean).0,
        }
    }

    fn record<B: GraphBackend>(self, inputs: [FloatTensor<B>; 4]) -> (FloatTensor<B>, Vec<FloatTensor<B>>) {
        run::<B>(&inputs, [true, !self.lean]).unwrap_or_else(|| by_operations::<B>(inputs, self.lean))
    }

    fn on_balanced_tape(self) -> Self {
        Self { lean: true }
    }

    fn backward<B: GraphBackend>(self, found: Found<B, 4>) -> [Option<FloatTensor<B>>; 4] {
        let [Some(state), Some(inputs), Some(weight), None] = &found.inputs else {
            return [const { None }; 4];
        };
        let sizes = Sizes::of::<B>(inputs, weight.shape()[1] / 4);
        let lying = (ordered::<B>(state), Inputs::of::<B>(inputs), ordered::<B>(weight));
        let (Some(state_at), Some(inputs_at), Some(weight_at)) = lying else {
            return backward_by_operations::<B>(sizes, found);
        };
        let mut kept = found.kept.into_iter();
        let (Some(gates), Some(gradient)) = (kept.next(), ordered::<B>(&found.gradient)) else {
            return [const { None }; 4];
        };
        let Sizes { features, width, .. } = sizes;
        let kept = <&[_; 3]>::try_from(kept.as_slice());
        let kept = kept.ok().map(|kept| kept.each_ref().map(|kept| ordered::<B>(kept).unwrap_or_default()));
        let mut cells = vec![0.0; if kept.is_some() { 0 } else { sizes.each(width) }];
        let [_, of_inputs_wanted, of_weight_wanted, of_bias_wanted] = found.wanted;
        let mut of_state = gradient.into_owned();
        let mut of_inputs = vec![0.0; if of_inputs_wanted { sizes.each(features) } else { 0 }];
        let back = Back {
            sizes,
            state: &state_at,
            kept: kept.as_ref().map(|[_, cells, bents]| [&**cells, &**bents]),
            to_hidden: turned(&weight_at, 4 * width, features, width),
            to_inputs: match of_inputs_wanted {
                true => turned(&weight_at, 4 * width, 0, features),
                false => Vec::new(),
            },
        };
        let gates = written::<B>(gates, |gates| {
            let mut cells = sizes.cut(&mut cells, sizes.steps * width);
            let mut of_inputs = sizes.cut(&mut of_inputs, sizes.steps * features);
            let parts = sizes.cut(gates, sizes.steps * 4 * width).zip(sizes.cut(&mut of_state, 2 * width));
            let parts = parts.map(|(gates, state)| (gates, state, cells.next(), of_inputs.next()));
            for_each(sizes, parts, |piece, (gates, state, cells, of_inputs)| {
                back.run(piece, gates, state, cells, of_inputs.unwrap_or_default());
            });
        });
        let gradients = ordered::<B>(&gates).unwrap_or_default();
        let steps = Steps {
            sizes,
            inputs: &inputs_at,
            states: kept.as_ref().map_or(&cells, |[told, ..]| told),
            gradients: &gradients,
            row: 4 * width,
            first: 0,
            columns: 4 * width,
        };
        let [_, _, sum, sum_of_bias] = found.sums;
        let of_weight =
            of_weight_wanted.then(|| added::<B>(sum, || weight.shape(), weight, |sum| steps.add_weight(sum)));
        let of_bias = of_bias_wanted
            .then(|| added::<B>(sum_of_bias, || [4 * width].into(), weight, |sum| steps.add_bias(sum)));
        [
            Some(made::<B>(of_state, state.shape().as_slice(), state)),
            of_inputs_wanted.then(|| made::<B>(of_inputs, inputs.shape().as_slice(), inputs)),
            of_weight,
            of_bias,
        ]
    }
}

/// The state behind all steps, and what is to be kept: gates, states.
fn run<B: GraphBackend>(
    [state, inputs, weight, bias]: &[FloatTensor<B>; 4],
    [keep_gates, keep_states]: [bool; 2],
) -> Option<(FloatTensor<B>, Vec<FloatTensor<B>>)> {
    let sizes = Sizes::of::<B>(inputs, weight.shape()[1] / 4);
    let Sizes { width, .. } = sizes;
    let (inputs_at, weight_at, bias_at) =
        (Inputs::of::<B>(inputs)?, ordered::<B>(weight)?, ordered::<B>(bias)?);
    let mut made_state = ordered::<B>(state)?.into_owned();
    let mut gates = vec![0.0; if keep_gates { sizes.each(4 * width) } else { 0 }];
    let mut states = [(); 3].map(|()| vec![0.0; if keep_states { sizes.each(width) } else { 0 }]);
    let mut kept = sizes.cut(&mut gates, sizes.steps * 4 * width);
    let mut kept_states = states.each_mut().map(|states| sizes.cut(states, sizes.steps * width));
    let parts = sizes.cut(&mut made_state, 2 * width);
    let parts = parts.map(|state| {
        (state, kept.next(), kept_states.each_mut().map(|kept| kept.next().unwrap_or_default()))
    });
    for_each(sizes, parts, |piece, (state, mut kept, states)| {
        let size = piece.count * 4 * width;
        let mut own = vec![0.0; if kept.is_none() { size } else { 0 }];
        let mut rolling = Rolling::new(sizes, piece, state, states);
        for step in 0..sizes.steps {
            let gates = match &mut kept {
                Some(kept) => &mut kept[step * size..][..size],
                None => &mut own[..],
            };
            let mut target = Rows { elements: &mut *gates, row: 4 * width, first: 0 };
            let hidden = Matrix::new(&rolling.hidden, piece.count, width);
            layer(&mut target, [inputs_at.rows(sizes, piece, step), hidden], &weight_at, &bias_at);
            vectorised(Gate { gates: &mut *gates, width });
            rolling.on(step, gates);
        }
        rolling.write(state);
    });
    let mut kept = Vec::new();
    let sized = |width: usize| [sizes.steps, sizes.examples, width];
    if keep_gates {
        kept.push(made::<B>(gates, sized(4 * width), inputs));
    }
    if keep_states {
        kept.extend(states.map(|states| made::<B>(states, sized(width), inputs)));
    }
    Some((made::<B>(made_state, state.shape().as_slice(), inputs), kept))
}

/// The state as it goes from step to step, and what is to be kept of it, if there is room.
struct Rolling<'a> {
    width: usize,
    hidden: Vec<f32>,
    cell: Vec<f32>,
    bent: Vec<f32>,
    kept: [&'a mut [f32]; 3],
}

impl<'a> Rolling<'a> {
    fn new(sizes: Sizes, piece: Piece, state: &[f32], kept: [&'a mut [f32]; 3]) -> Self {
        let width = sizes.width;
        let [mut hidden, mut cell] = [(); 2].map(|()| Vec::with_capacity(piece.count * width));
        for state in state.chunks_exact(2 * width).take(piece.count) {
            hidden.extend_from_slice(&state[..width]);
            cell.extend_from_slice(&state[width..]);
        }
        Self { width, bent: vec![0.0; hidden.len()], hidden, cell, kept }
    }

    fn on(&mut self, step: usize, gates: &[f32]) {
        let Self { width, hidden, cell, bent, kept } = self;
        let [hiddens, cells, bents] = kept;
        let own = step * cell.len()..(step + 1) * cell.len();
        for (kept, own) in [(hiddens.get_mut(own.clone()), &*hidden), (cells.get_mut(own.clone()), &*cell)] {
            if let Some(kept) = kept {
                kept.copy_from_slice(own);
            }
        }
        let bent = bents.get_mut(own).unwrap_or(bent);
        vectorised(Move { width: *width, gates, cell, hidden, bent });
    }

    fn write(&self, state: &mut [f32]) {
        let rows = self.hidden.chunks_exact(self.width).zip(self.cell.chunks_exact(self.width));
        for (state, (hidden, cell)) in state.chunks_exact_mut(2 * self.width).zip(rows) {
            let (hidden_at, cell_at) = state.split_at_mut(self.width);
            hidden_at.copy_from_slice(hidden);
            cell_at.copy_from_slice(cell);
        }
    }
}

/// What came of a layer to gates.
struct Gate<'a> {
    gates: &'a mut [f32],
    width: usize,
}

impl pulp::NullaryFnOnce for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for gates in self.gates.chunks_exact_mut(4 * self.width) {
            let (gates, new) = gates.split_at_mut(3 * self.width);
            for x in gates {
                *x = sigmoid(*x);
            }
            for x in new {
                *x = tanh(*x);
            }
        }
    }
}

/// The four parts of a row of gates.
#[inline(always)]
fn parts(gates: &[f32], width: usize) -> [&[f32]; 4] {
    let (input, gates) = gates.split_at(width);
    let (forget, gates) = gates.split_at(width);
    let (output, new) = gates.split_at(width);
    [input, forget, output, &new[..width]]
}

/// Goes on with the state by a step's gates.
struct Move<'a> {
    width: usize,
    gates: &'a [f32],
    cell: &'a mut [f32],
    hidden: &'a mut [f32],
    /// The hyperbolic tangent of the cell.
    bent: &'a mut [f32],
}

impl pulp::NullaryFnOnce for Move<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { width, gates, cell, hidden, bent } = self;
        let states = cell.chunks_exact_mut(width).zip(bent.chunks_exact_mut(width));
        let rows = gates.chunks_exact(4 * width).zip(hidden.chunks_exact_mut(width));
        for ((gates, hidden), (cell, bent)) in rows.zip(states) {
            let [input, forget, output, new] = parts(gates, width);
            for place in 0..width {
                let moved = forget[place] * cell[place] + input[place] * new[place];
                cell[place] = moved;
                let moved = tanh(moved);
                bent[place] = moved;
                hidden[place] = output[place] * moved;
            }
        }
    }
}

/// Goes on with the cell alone.
struct Go<'a> {
    width: usize,
    gates: &'a [f32],
    before: &'a [f32],
    behind: &'a mut [f32],
}

impl pulp::NullaryFnOnce for Go<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { width, gates, before, behind } = self;
        let cells = before.chunks_exact(width).zip(behind.chunks_exact_mut(width));
        for (gates, (before, behind)) in gates.chunks_exact(4 * width).zip(cells) {
            let [input, forget, _, new] = parts(gates, width);
            for place in 0..width {
                behind[place] = forget[place] * before[place] + input[place] * new[place];
            }
        }
    }
}

/// The hyperbolic tangent of the cell behind a step, and over that cell: what the next step is told.
struct Bend<'a> {
    width: usize,
    gates: &'a [f32],
    cell: &'a mut [f32],
    bent: &'a mut [f32],
}

impl pulp::NullaryFnOnce for Bend<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { width, gates, cell, bent } = self;
        let states = cell.chunks_exact_mut(width).zip(bent.chunks_exact_mut(width));
        for (gates, (cell, bent)) in gates.chunks_exact(4 * width).zip(states) {
            let [_, _, output, _] = parts(gates, width);
            for place in 0..width {
                bent[place] = tanh(cell[place]);
                cell[place] = output[place] * bent[place];
            }
        }
    }
}

/// The cells of a piece, where they were not kept: made again from the gates, with one array for all steps. A cell's place is that of what its
/// step was told as soon as it was gone back by.
struct Again<'a> {
    width: usize,
    /// Before each step.
    cells: &'a mut [f32],
    /// Behind the last one.
    last: Vec<f32>,
    bent: Vec<f32>,
}

impl<'a> Again<'a> {
    fn new(width: usize, state: &[f32], gates: &[f32], cells: &'a mut [f32]) -> Self {
        let mut last: Vec<_> =
            state.chunks_exact(2 * width).flat_map(|state| &state[width..]).copied().collect();
        let size = last.len();
        for (cells, gates) in cells.chunks_exact_mut(size).zip(gates.chunks_exact(4 * size)) {
            cells.copy_from_slice(&last);
            vectorised(Go { width, gates, before: cells, behind: &mut last });
        }
        Self { width, cells, bent: vec![0.0; size], last }
    }

    /// The cell before a step, and the hyperbolic tangent of the one behind it.
    fn before(&mut self, step: usize, gates: &[f32]) -> [&[f32]; 2] {
        let size = self.last.len();
        let (cells, behind) = self.cells.split_at_mut((step + 1) * size);
        let cell = behind.get_mut(..size).unwrap_or(&mut self.last);
        vectorised(Bend { width: self.width, gates, cell, bent: &mut self.bent });
        [&cells[step * size..], &self.bent]
    }

    /// What the first step was told, behind all others.
    fn end(self, state: &[f32]) {
        let told = self.cells.chunks_exact_mut(self.width);
        for (told, state) in told.zip(state.chunks_exact(2 * self.width)) {
            told.copy_from_slice(&state[..self.width]);
        }
    }
}

/// Back through all steps of a piece.
struct Back<'a> {
    sizes: Sizes,
    /// Before the first step.
    state: &'a [f32],
    /// The cell before each step, and the hyperbolic tangent of the one behind it.
    kept: Option<[&'a [f32]; 2]>,
    /// The weight's rows as columns.
    to_hidden: Vec<f32>,
    to_inputs: Vec<f32>,
}

impl Back<'_> {
    /// Writes their gradients over gates and state, what each step was told into the cells where none were kept, and the gradients of the
    /// inputs if there is room.
    fn run(
        &self,
        piece: Piece,
        gates: &mut [f32],
        of_state: &mut [f32],
        cells: Option<&mut [f32]>,
        of_inputs: &mut [f32],
    ) {
        let Sizes { steps, features, width, .. } = self.sizes;
        let size = piece.count * width;
        let state = &self.state[piece.first * 2 * width..][..2 * size];
        let mut again = cells.map(|cells| Again::new(width, state, gates, cells));
        let kept = self.kept.map(|kept| kept.map(|states| &states[piece.first * steps * width..]));
        let mut rolling = Rolling::new(self.sizes, piece, of_state, [(); 3].map(|()| Default::default()));
        for step in (0..steps).rev() {
            let gates = &mut gates[step * 4 * size..][..4 * size];
            let [cell, bent] = match &mut again {
                Some(again) => again.before(step, gates),
                None => kept.unwrap_or_default().map(|states| &states[step * size..][..size]),
            };
            vectorised(Turn {
                width,
                gates: &mut *gates,
                cell,
                bent,
                of_hidden: &rolling.hidden,
                of_cell: &mut rolling.cell,
            });
            let gates = Matrix::new(gates, piece.count, 4 * width);
            let to = |weight, columns| [gates, Matrix::new(weight, 4 * width, columns)];
            let shape = Lying::by_rows(piece.count, width, width);
            multiply(&mut rolling.hidden, shape, Into::Over, 1.0, to(&self.to_hidden, width));
            if !of_inputs.is_empty() {
                let shape = Lying::by_rows(piece.count, features, steps * features);
                let target = &mut of_inputs[step * features..];
                multiply(target, shape, Into::Over, 1.0, to(&self.to_inputs, features));
            }
        }
        rolling.write(of_state);
        if let Some(again) = again {
            again.end(state);
        }
    }
}

/// Writes the gradients of what came of the layer over the gates, and that of the cell before the step over that of the one behind it.
struct Turn<'a> {
    width: usize,
    gates: &'a mut [f32],
    /// Before the step.
    cell: &'a [f32],
    /// Behind it.
    bent: &'a [f32],
    of_hidden: &'a [f32],
    of_cell: &'a mut [f32],
}

impl pulp::NullaryFnOnce for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { width, gates, cell, bent, of_hidden, of_cell } = self;
        let states = cell.chunks_exact(width).zip(bent.chunks_exact(width));
        let gradients = of_hidden.chunks_exact(width).zip(of_cell.chunks_exact_mut(width));
        let rows = gates.chunks_exact_mut(4 * width).zip(states).zip(gradients);
        for ((gates, (cell, bent)), (of_hidden, of_cell)) in rows {
            let (input, gates) = gates.split_at_mut(width);
            let (forget, gates) = gates.split_at_mut(width);
            let (output, new) = gates.split_at_mut(width);
            let new = &mut new[..width];
            for place in 0..width {
                let [i, f, o, g] = [input[place], forget[place], output[place], new[place]];
                let (bent, of_hidden) = (bent[place], of_hidden[place]);
                let of_moved = of_cell[place] + of_hidden * o * (1.0 - bent * bent);
                input[place] = of_moved * g * (i * (1.0 - i));
                forget[place] = of_moved * cell[place] * (f * (1.0 - f));
                output[place] = of_hidden * bent * (o * (1.0 - o));
                new[place] = of_moved * i * (1.0 - g * g);
                of_cell[place] = of_moved * f;
            }
        }
    }
}

/// The state, and what is kept of each step.
fn by_operations<B: GraphBackend>(
    [state, inputs, weight, bias]: [FloatTensor<B>; 4],
    lean: bool,
) -> (FloatTensor<B>, Vec<FloatTensor<B>>) {
    let width = weight.shape()[1] / 4;
    let sizes = Sizes::of::<B>(&inputs, width);
    let [mut hidden, mut cell] = [0, width].map(|first| first_state::<B>(columns::<B>(&state, first, width)));
    let mut kept = Vec::with_capacity(sizes.steps);
    for step in 0..sizes.steps {
        let rows = B::float_cat(vec![of_step::<B>(&inputs, sizes, step), hidden.clone()], 1);
        let made = layer_of::<B>(rows, &weight, &bias);
        let gates = B::sigmoid(columns::<B>(&made, 0, 3 * width));
        let gates = B::float_cat(vec![gates, B::float_tanh(columns::<B>(&made, 3 * width, width))], 1);
        let moved = moved::<B>(&gates, cell.clone(), width);
        let bent = B::float_tanh(moved.clone());
        let told = B::float_mul(columns::<B>(&gates, 2 * width, width), bent.clone());
        kept.push(gates);
        if !lean {
            kept.extend([hidden, cell, bent]);
        }
        (hidden, cell) = (told, moved);
    }
    (B::float_cat(vec![hidden, cell], 1), kept)
}

/// The cell behind a step.
fn moved<B: GraphBackend>(gates: &FloatTensor<B>, cell: FloatTensor<B>, width: usize) -> FloatTensor<B> {
    let part = |index: usize| columns::<B>(gates, index * width, width);
    B::float_add(B::float_mul(part(1), cell), B::float_mul(part(0), part(3)))
}

fn backward_by_operations<B: GraphBackend>(sizes: Sizes, found: Found<B, 4>) -> [Option<FloatTensor<B>>; 4] {
    let [Some(state), Some(inputs), Some(weight), _] = found.inputs else { return [None, None, None, None] };
    let Sizes { features, width, .. } = sizes;
    let mut before = Vec::with_capacity(sizes.steps);
    let (first, mut cell) = (columns::<B>(&state, 0, width), columns::<B>(&state, width, width));
    let each = (found.kept.len() / sizes.steps).max(1);
    for kept in found.kept.chunks(each) {
        before.push(match kept {
            [gates, hidden, cell, bent] => {
                (gates.clone(), cell.clone(), Some((hidden.clone(), bent.clone())))
            }
            [gates, ..] => {
                let behind = moved::<B>(gates, cell.clone(), width);
                (gates.clone(), std::mem::replace(&mut cell, behind), None)
            }
            [] => continue,
        });
    }
    drop(found.kept);
    // Behind the last step.
    let mut bent = B::float_tanh(cell);
    let mut of_hidden = columns::<B>(&found.gradient, 0, width);
    let mut of_cell = columns::<B>(&found.gradient, width, width);
    let [_, _, mut of_weight, mut of_bias] = found.sums;
    let mut of_inputs = Vec::new();
    while let Some((gates, cell, kept)) = before.pop() {
        let step = before.len();
        let (hidden, bent) = match (kept, before.last()) {
            (Some(kept), _) => kept,
            (None, Some((gates, ..))) => {
                let bent_before = B::float_tanh(cell.clone());
                let told = B::float_mul(columns::<B>(gates, 2 * width, width), bent_before.clone());
                (told, std::mem::replace(&mut bent, bent_before))
            }
            (None, None) => (first.clone(), bent.clone()),
        };
        let part = |index: usize| columns::<B>(&gates, index * width, width);
        let slope = B::float_mul(part(2), tanh_slope::<B>(bent.clone()));
        let of_moved = B::float_add(of_cell, B::float_mul(of_hidden.clone(), slope));
        let gradient = B::float_cat(
            vec![
                B::float_mul(B::float_mul(of_moved.clone(), part(3)), sigmoid_slope::<B>(part(0))),
                B::float_mul(B::float_mul(of_moved.clone(), cell), sigmoid_slope::<B>(part(1))),
                B::float_mul(B::float_mul(of_hidden, bent), sigmoid_slope::<B>(part(2))),
                B::float_mul(B::float_mul(of_moved.clone(), part(0)), tanh_slope::<B>(part(3))),
            ],
            1,
        );
        of_cell = B::float_mul(of_moved, part(1));
        let rows = B::float_cat(vec![of_step::<B>(&inputs, sizes, step), hidden], 1);
        let of_rows = layer_back::<B>(rows, &weight, gradient, [&mut of_weight, &mut of_bias]);
        of_hidden = columns::<B>(&of_rows, features, width);
        if found.wanted[1] {
            of_inputs.push(columns::<B>(&of_rows, 0, features));
        }
    }
    let of_inputs = found.wanted[1].then(|| stacked::<B>(of_inputs));
    [Some(B::float_cat(vec![of_hidden, of_cell], 1)), of_inputs, of_weight, of_bias]
}
