//! The loss through Burn's operations, some rows at a time: for any backend.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::activation::log_softmax;
use burn::tensor::{DType, IndexingUpdateOp, Int, Shape, Slice, Tensor, TensorData};

use super::Loss;
use super::class::Class;
use crate::node::GraphBackend;

/// Through Burn's tensors, so many rows at a time.
pub(super) fn plain(
    loss: &Loss,
    [input, weight]: [Tensor<2>; 2],
    bias: Option<Tensor<1>>,
    chunk: usize,
) -> Tensor<1> {
    let (device, dtype) = (input.device(), weight.dtype());
    let all = loss.targets.len();
    let sums = (0..all).step_by(chunk.max(1)).map(|start| {
        let rows = chunk.min(all - start);
        let (targets, weights) = loss.columns(start, rows);
        let x = if rows == all { input.clone() } else { input.clone().narrow(0, start, rows) };
        let logs = log_softmax(burn::tensor::module::linear(x, weight.clone(), bias.clone()), 1);
        let targets = Tensor::<2, Int>::from_data(TensorData::new(targets, [rows, 1]), &device);
        let weights = Tensor::<2>::from_data(TensorData::new(weights, [rows, 1]), (&device, logs.dtype()));
        let expected = logs.clone().gather(1, targets).mul_scalar(1.0 - loss.smoothing)
            + logs.sum_dim(1).mul_scalar(loss.everywhere());
        (expected * weights).sum().neg()
    });
    // Each before the next begins: an iterator makes no logits that nobody has asked for.
    sums.reduce(|total, sum| total + sum).unwrap_or_else(|| Tensor::zeros([1], (&device, dtype)))
}

impl Loss {
    /// Targets and weights of some rows; an ignored one has weight 0.
    fn columns(&self, start: usize, rows: usize) -> (Vec<i64>, Vec<f64>) {
        let targets = &self.targets[start..start + rows];
        let weight = |target: &Class| if *target == Class::IGNORED { 0.0 } else { self.weight };
        let class = |target: &Class| target.get().map_or(0, |class| i64::try_from(class).unwrap_or(0));
        (targets.iter().map(class).collect(), targets.iter().map(weight).collect())
    }
}

/// Some rows.
struct Rows<B: Backend> {
    slices: [Slice; 2],
    targets: IntTensor<B>,
    /// What the loss of each is multiplied by.
    weights: FloatTensor<B>,
}

impl<B: Backend> Rows<B> {
    fn of(&self, tensor: FloatTensor<B>, columns: usize) -> FloatTensor<B> {
        B::float_slice(tensor, &[self.slices[0], Slice::from(0..columns)])
    }
}

fn rows<'a, B: Backend>(loss: &'a Loss, like: &'a FloatTensor<B>) -> impl Iterator<Item = Rows<B>> + 'a {
    let (all, chunk) = (loss.targets.len(), loss.chunk.max(1));
    (0..all).step_by(chunk).map(move |start| {
        let count = chunk.min(all - start);
        let (targets, weights) = loss.columns(start, count);
        let weights = TensorData::new(weights, [count, 1]).convert_dtype(like.dtype());
        let targets = TensorData::new(targets, [count, 1]).convert_dtype(DType::I32);
        Rows {
            slices: [Slice::from(start..start + count), Slice::from(0..1)],
            targets: B::int_from_data(targets, &like.device()),
            weights: B::float_from_data(weights, &like.device()),
        }
    })
}

/// The loss, and of each row the logarithm of the sum of exponentials.
pub(super) fn forward<B: GraphBackend>(
    loss: &Loss,
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let features = weight.shape()[0];
    let (mut total, mut sums) = (None, Vec::new());
    for rows in rows::<B>(loss, &input) {
        let logits = B::linear(rows.of(input.clone(), features), weight.clone(), Some(bias.clone()));
        let top = B::float_max_dim(logits.clone(), 1);
        let powers = B::float_exp(B::float_sub(logits.clone(), top.clone()));
        let log_sum = B::float_add(top, B::float_log(B::float_sum_dim(powers, 1)));
        let target = B::float_gather(1, logits.clone(), rows.targets.clone());
        let target = B::float_mul_scalar(target, (1.0 - loss.smoothing).into());
        let smooth = B::float_mul_scalar(B::float_sum_dim(logits, 1), loss.everywhere().into());
        let each = B::float_sub(log_sum.clone(), B::float_add(target, smooth));
        // Along a dimension: some devices add up all elements in no order.
        let sum = B::float_sum_dim(B::float_mul(each, rows.weights), 0);
        total = Some(match total {
            Some(total) => B::float_add(total, sum),
            None => sum,
        });
        sums.push(log_sum);
    }
    let device = input.device();
    let nothing = |shape: [usize; 2]| B::float_zeros(Shape::new(shape), &device, input.dtype().into());
    let total = total.unwrap_or_else(|| nothing([1, 1]));
    let sums = match sums.is_empty() {
        true => nothing([0, 1]),
        false => B::float_cat(sums, 0),
    };
    (B::float_reshape(total, Shape::new([1])), sums)
}

/// The gradients of input, weight and bias.
pub(super) fn backward<B: GraphBackend>(
    loss: &Loss,
    [input, weight, bias]: [FloatTensor<B>; 3],
    sums: FloatTensor<B>,
    gradient: FloatTensor<B>,
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let features = weight.shape()[0];
    let gradient = B::float_reshape(gradient, Shape::new([1, 1]));
    let mut of_input = Vec::new();
    let (mut of_weight, mut of_bias) = (None, None);
    let add = |sum: Option<FloatTensor<B>>, more: FloatTensor<B>| {
        Some(match sum {
            Some(sum) => B::float_add(sum, more),
            None => more,
        })
    };
    for rows in rows::<B>(loss, &input) {
        let x = rows.of(input.clone(), features);
        let logits = B::linear(x.clone(), weight.clone(), Some(bias.clone()));
        let powers = B::float_exp(B::float_sub(logits, rows.of(sums.clone(), 1)));
        let of_logits = B::float_sub_scalar(powers, loss.everywhere().into());
        let weights = B::float_mul(rows.weights, gradient.clone());
        let of_logits = B::float_mul(of_logits, weights.clone());
        let of_target = B::float_mul_scalar(weights, (loss.smoothing - 1.0).into());
        let of_logits = B::float_scatter(1, of_logits, rows.targets, of_target, IndexingUpdateOp::Add);
        of_weight = add(of_weight, B::linear_weight_backward(x, of_logits.clone()));
        of_bias = add(of_bias, B::linear_bias_backward(of_logits.clone()));
        of_input.push(B::linear_x_backward(weight.clone(), of_logits));
    }
    let device = input.device();
    let nothing = |like: &FloatTensor<B>| B::float_zeros(like.shape(), &device, like.dtype().into());
    let of_input = match of_input.is_empty() {
        true => nothing(&input),
        false => B::float_cat(of_input, 0),
    };
    (of_input, of_weight.unwrap_or_else(|| nothing(&weight)), of_bias.unwrap_or_else(|| nothing(&bias)))
}
