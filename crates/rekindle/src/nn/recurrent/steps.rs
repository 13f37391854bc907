//! What both cells do with steps: sequences go through them on their own, and weights' gradients come of them in one order.

use std::borrow::Cow;
use std::slice::ChunksMut;

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{Shape, Slice};
use rayon::iter::{IntoParallelIterator, ParallelIterator};

use crate::kernel::vectorised;
use crate::matrix::{Into, Matrix, Shape as Lying, multiply};
#[cfg(feature = "capture")]
use crate::node::is_capture;
use crate::node::{GraphBackend, Strided, elements_mut, made, ordered, strided};

/// Sequences that go through all steps together: a number of its own, not one that goes by the threads there are.
const SEQUENCES: usize = 8;
/// Rows of a weight's gradient that one thread adds up.
const ROWS: usize = 64;
/// Products of less than this are not shared out.
const WORTH: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) examples: usize,
    pub(super) steps: usize,
    pub(super) features: usize,
    pub(super) width: usize,
}

/// Some sequences, which lie together in whatever is made for all steps: step after step, row after row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) first: usize,
    pub(super) count: usize,
}

impl Sizes {
    /// Of the tensors that a cell is given.
    pub(super) fn of<B: GraphBackend>(inputs: &FloatTensor<B>, width: usize) -> Self {
        let shape = inputs.shape();
        Self { examples: shape[0], steps: shape[1], features: shape[2], width }
    }

    pub(super) fn pieces(self) -> impl Iterator<Item = Piece> {
        let piece = move |first| Piece { first, count: SEQUENCES.min(self.examples - first) };
        (0..self.examples).step_by(SEQUENCES).map(piece)
    }

    /// As many numbers for each step and sequence.
    pub(super) const fn each(self, row: usize) -> usize {
        self.examples * self.steps * row
    }

    /// Cuts rows of all sequences, as many for each of them, into those of the pieces.
    pub(super) fn cut(self, rows: &mut [f32], row: usize) -> ChunksMut<'_, f32> {
        rows.chunks_mut((SEQUENCES * row).max(1))
    }

    /// The first of the rows of a step.
    const fn row(self, piece: Piece, step: usize) -> usize {
        piece.first * self.steps + step * piece.count
    }
}

/// Runs something for each piece, on all threads.
pub(super) fn for_each<T: Send>(sizes: Sizes, parts: impl Iterator<Item = T>, run: impl Fn(Piece, T) + Sync) {
    let mut pieces: Vec<_> = sizes.pieces().zip(parts).collect();
    match pieces.len() {
        // Nobody to share with: a thread of the pool would have to be woken.
        1 => pieces.drain(..).for_each(|(piece, part)| run(piece, part)),
        _ => pieces.into_par_iter().for_each(|(piece, part)| run(piece, part)),
    }
}

/// Inputs where they lie.
pub(super) struct Inputs<'a> {
    elements: Cow<'a, [f32]>,
    steps: [usize; 3],
}

impl<'a> Inputs<'a> {
    pub(super) fn of<B: GraphBackend>(inputs: &'a FloatTensor<B>) -> Option<Self> {
        if let Some(Strided { elements, steps, .. }) = strided::<B, 3>(inputs) {
            return Some(Self { elements: Cow::Borrowed(elements), steps });
        }
        let shape = inputs.shape();
        Some(Self { elements: ordered::<B>(inputs)?, steps: [shape[1] * shape[2], shape[2], 1] })
    }

    /// Some features of a step.
    fn some(&self, piece: Piece, step: usize, (first, columns): (usize, usize)) -> Matrix<'_> {
        let [of_example, of_step, of_feature] = self.steps;
        let elements = &self.elements[piece.first * of_example + step * of_step + first * of_feature..];
        let shape = Lying { rows: piece.count, columns, row_step: of_example, column_step: of_feature };
        Matrix { elements, shape }
    }

    /// Those of a step.
    pub(super) fn rows(&self, sizes: Sizes, piece: Piece, step: usize) -> Matrix<'_> {
        self.some(piece, step, (0, sizes.features))
    }
}

/// Fills rows with a layer's bias and adds the products of inputs and state and its weight.
pub(super) fn layer(target: &mut Rows<'_>, [inputs, state]: [Matrix<'_>; 2], weight: &[f32], bias: &[f32]) {
    let (count, columns) = (state.shape.rows, bias.len());
    for row in target.elements.chunks_mut(target.row).take(count) {
        row[target.first..][..columns].copy_from_slice(bias);
    }
    let (of_inputs, of_state) = weight.split_at(inputs.shape.columns * columns);
    for (rows, weight) in [(inputs, of_inputs), (state, of_state)] {
        let weight = Matrix::new(weight, rows.shape.columns, columns);
        let shape = Lying::by_rows(count, columns, target.row);
        multiply(&mut target.elements[target.first..], shape, Into::Sum, 1.0, [rows, weight]);
    }
}

/// Columns, from the first on, of rows of this many.
pub(super) struct Rows<'a> {
    pub(super) elements: &'a mut [f32],
    pub(super) row: usize,
    pub(super) first: usize,
}

/// Rows of a weight from one on, as columns: products with it then find it as it lies.
pub(super) fn turned(weight: &[f32], columns: usize, from: usize, rows: usize) -> Vec<f32> {
    const SIDE: usize = 16;
    let mut turned = vec![0.0; rows * columns];
    for row in (0..rows).step_by(SIDE) {
        for column in (0..columns).step_by(SIDE) {
            for column in column..columns.min(column + SIDE) {
                for row in row..rows.min(row + SIDE) {
                    turned[column * rows + row] = weight[(from + row) * columns + column];
                }
            }
        }
    }
    turned
}

/// For each step and sequence: what went into a layer, and the gradient of what came out of it, some columns of longer rows.
#[derive(Clone, Copy)]
pub(super) struct Steps<'a> {
    pub(super) sizes: Sizes,
    pub(super) inputs: &'a Inputs<'a>,
    pub(super) states: &'a [f32],
    pub(super) gradients: &'a [f32],
    pub(super) row: usize,
    pub(super) first: usize,
    pub(super) columns: usize,
}

impl Steps<'_> {
    /// From the last step to the first: the order in which gradients would come one by one.
    fn backwards(self) -> impl Iterator<Item = (usize, Piece)> {
        let steps = (0..self.sizes.steps).rev();
        steps.flat_map(move |step| self.sizes.pieces().map(move |piece| (step, piece)))
    }

    /// Adds the gradient of the weight to what is there. The bits do not depend on the threads, nor on where steps are cut.
    pub(super) fn add_weight(self, sum: &mut [f32]) {
        let Sizes { features, width, .. } = self.sizes;
        let (of_inputs, of_states) = sum.split_at_mut(features * self.columns);
        let add = |(are_inputs, block, target): (bool, usize, &mut [f32])| {
            let (first, rows) = (block * ROWS, target.len() / self.columns);
            let shape = Lying::by_rows(rows, self.columns, self.columns);
            for (step, piece) in self.backwards() {
                let row = self.sizes.row(piece, step);
                let before = match are_inputs {
                    true => self.inputs.some(piece, step, (first, rows)),
                    false => Matrix {
                        elements: &self.states[row * width + first..],
                        shape: Lying::by_rows(piece.count, rows, width),
                    },
                };
                let gradients = Matrix {
                    elements: &self.gradients[row * self.row + self.first..],
                    shape: Lying::by_rows(piece.count, self.columns, self.row),
                };
                multiply(target, shape, Into::Sum, 1.0, [before.transposed(), gradients]);
            }
        };
        let size = ROWS * self.columns;
        let of_inputs = of_inputs.chunks_mut(size).enumerate().map(|(block, target)| (true, block, target));
        let of_states = of_states.chunks_mut(size).enumerate().map(|(block, target)| (false, block, target));
        let mut blocks: Vec<_> = of_inputs.chain(of_states).collect();
        match self.sizes.each((features + width) * self.columns) < WORTH {
            true => blocks.drain(..).for_each(add),
            false => blocks.into_par_iter().for_each(add),
        }
    }

    /// Adds the gradient of the bias to what is there.
    pub(super) fn add_bias(self, sum: &mut [f32]) {
        struct Add<'a, 'b> {
            steps: Steps<'a>,
            sum: &'b mut [f32],
        }

        impl pulp::NullaryFnOnce for Add<'_, '_> {
            type Output = ();

            #[inline(always)]
            fn call(self) {
                let Self { steps, sum } = self;
                for (step, piece) in steps.backwards() {
                    let row = steps.sizes.row(piece, step);
                    for row in steps.gradients[row * steps.row..].chunks(steps.row).take(piece.count) {
                        for (sum, x) in sum.iter_mut().zip(&row[steps.first..]) {
                            *sum += x;
                        }
                    }
                }
            }
        }

        vectorised(Add { steps: self, sum });
    }
}

/// A sum of gradients that is gone on with: minus zero changes no bit of what is added to it.
pub(super) fn added<B: GraphBackend>(
    sum: Option<FloatTensor<B>>,
    parameter: impl FnOnce() -> Shape,
    like: &FloatTensor<B>,
    add: impl FnOnce(&mut [f32]),
) -> FloatTensor<B> {
    match sum {
        Some(sum) => written::<B>(sum, add),
        None => {
            let shape = parameter();
            let mut sum = vec![-0.0; shape.num_elements()];
            add(&mut sum);
            made::<B>(sum, shape.as_slice(), like)
        }
    }
}

/// A tensor after its elements, which must be in reach, were written over.
pub(super) fn written<B: GraphBackend>(
    mut tensor: FloatTensor<B>,
    write: impl FnOnce(&mut [f32]),
) -> FloatTensor<B> {
    if let Some(elements) = elements_mut::<B>(&mut tensor) {
        write(elements);
        return tensor;
    }
    let mut elements = ordered::<B>(&tensor).unwrap_or_default().into_owned();
    write(&mut elements);
    made::<B>(elements, tensor.shape().as_slice(), &tensor)
}

/// Some columns, by an operation.
pub(super) fn columns<B: GraphBackend>(
    tensor: &FloatTensor<B>,
    first: usize,
    count: usize,
) -> FloatTensor<B> {
    let rows = tensor.shape()[0];
    B::float_slice(tensor.clone(), &[Slice::from(0..rows), Slice::from(first..first + count)])
}

/// The state before the first step, by operations. In a trace it has memory of its own: the kernels keep a copy where a view would do.
pub(super) fn first_state<B: GraphBackend>(state: FloatTensor<B>) -> FloatTensor<B> {
    #[cfg(feature = "capture")]
    if is_capture::<B>() {
        return B::float_mul_scalar(state, 1.0.into());
    }
    state
}

/// The inputs of a step, by an operation.
pub(super) fn of_step<B: GraphBackend>(inputs: &FloatTensor<B>, sizes: Sizes, step: usize) -> FloatTensor<B> {
    let Sizes { examples, features, .. } = sizes;
    let slices = [0..examples, step..step + 1, 0..features].map(Slice::from);
    B::float_reshape(B::float_slice(inputs.clone(), &slices), Shape::new([examples, features]))
}

/// A layer, by operations.
pub(super) fn layer_of<B: GraphBackend>(
    rows: FloatTensor<B>,
    weight: &FloatTensor<B>,
    bias: &FloatTensor<B>,
) -> FloatTensor<B> {
    let bias = B::float_reshape(bias.clone(), Shape::new([1, bias.shape()[0]]));
    B::float_add(B::float_matmul(rows, weight.clone()), bias)
}

/// Adds the gradients of a layer's weight and bias at a step, by operations, and gives that of its rows.
pub(super) fn layer_back<B: GraphBackend>(
    rows: FloatTensor<B>,
    weight: &FloatTensor<B>,
    gradient: FloatTensor<B>,
    [of_weight, of_bias]: [&mut Option<FloatTensor<B>>; 2],
) -> FloatTensor<B> {
    let go_on = |sum: &mut Option<FloatTensor<B>>, found: FloatTensor<B>| {
        *sum = Some(match sum.take() {
            Some(sum) => B::float_add(sum, found),
            None => found,
        });
    };
    let columns = gradient.shape()[1];
    let summed = B::float_sum_dim(gradient.clone(), 0);
    go_on(of_bias, B::float_reshape(summed, Shape::new([columns])));
    go_on(of_weight, B::float_matmul(B::float_transpose(rows), gradient.clone()));
    B::float_matmul(gradient, B::float_transpose(weight.clone()))
}

/// One less a tensor.
pub(super) fn rest<B: GraphBackend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    B::float_add_scalar(B::float_neg(tensor), 1.0.into())
}

/// The slope of a sigmoid, from what it gave.
pub(super) fn sigmoid_slope<B: GraphBackend>(made: FloatTensor<B>) -> FloatTensor<B> {
    B::float_mul(made.clone(), rest::<B>(made))
}

/// The slope of a hyperbolic tangent, from what it gave.
pub(super) fn tanh_slope<B: GraphBackend>(made: FloatTensor<B>) -> FloatTensor<B> {
    rest::<B>(B::float_mul(made.clone(), made))
}

/// The gradients of the inputs of all steps, the last first, as one tensor.
pub(super) fn stacked<B: GraphBackend>(steps: Vec<FloatTensor<B>>) -> FloatTensor<B> {
    let one = |step: FloatTensor<B>| {
        let shape = step.shape();
        B::float_reshape(step, Shape::new([shape[0], 1, shape[1]]))
    };
    B::float_cat(steps.into_iter().rev().map(one).collect(), 1)
}
