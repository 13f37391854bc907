//! Attention through Burn's operations: for any backend.
//!
//! A block of queries at a time against all keys, so that what is held grows with the keys alone.

use burn::backend::tensor::{BoolTensor, FloatTensor};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{Bool, BoolDType, Distribution, IntDType, Shape, Slice, Tensor, TensorData};

use super::{Attend, Sizes};
use crate::dropout::forward_without_node;
use crate::node::{GraphBackend, is_capture, is_far};

/// Scores of a block, all heads together, and the queries it has at least.
const SCORES: usize = 32 * 1024;
/// The scores of one where each operation is a launch.
const FAR: usize = 8 << 20;
const QUERIES: usize = 16;
/// The most blocks of a trace, which notes every operation of each: a million tokens would take gigabytes of notes.
#[cfg(feature = "capture")]
const CAPTURED: usize = 1024;

/// Without a node of ours, all scores at once: on tensors without autodiff, and of a backend we have no nodes on.
pub(super) fn plain(attend: &Attend, query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Tensor<4> {
    let Sizes { batch, heads, groups, queries, keys, .. } = attend.sizes;
    let shared = attend.sizes.shared();
    let spread = |x: Tensor<4>| {
        let [_, _, rows, depth] = x.dims();
        match shared {
            1 => x,
            _ => x
                .reshape([batch, groups, 1, rows * depth])
                .expand([batch, groups, shared, rows * depth])
                .reshape([batch, heads, rows, depth]),
        }
    };
    let device = query.device();
    let visible = (0..batch).flat_map(|batch| (0..queries).map(move |query| (batch, query)));
    let mut looks = Vec::with_capacity(batch * queries);
    let mut hidden = Vec::with_capacity(batch * queries * keys);
    for (batch, query) in visible {
        let row = attend.hidden_row(batch, query);
        let start = hidden.len();
        hidden.extend(row);
        looks.push(hidden[start..].iter().any(|hidden| !hidden));
    }
    let hidden = Tensor::<4, Bool>::from_data(TensorData::new(hidden, [batch, 1, queries, keys]), &device);
    let blind: Vec<bool> = looks.into_iter().map(|looks| !looks).collect();
    let blind = Tensor::<4, Bool>::from_data(TensorData::new(blind, [batch, 1, queries, 1]), &device);
    let scores = query.matmul(spread(key).transpose()).mul_scalar(attend.scale);
    let scores = scores.mask_fill(hidden.expand([batch, heads, queries, keys]), f32::NEG_INFINITY);
    let weights = burn::tensor::activation::softmax(scores, 3);
    let weights = weights.mask_fill(blind.expand([batch, heads, queries, keys]), 0.0);
    let weights = match attend.dropped {
        Some(mask) => forward_without_node(mask, weights),
        None => weights,
    };
    weights.matmul(spread(value))
}

impl Attend {
    /// Which keys a query must not look at.
    fn hidden_row(&self, batch: usize, query: usize) -> impl Iterator<Item = bool> {
        let visible = self.visible(query);
        let hidden = self.hidden_of(batch);
        (0..self.sizes.keys).map(move |key| key >= visible || hidden.is_some_and(|hidden| hidden[key]))
    }
}

/// A block of queries of all heads.
struct Rows<'a> {
    attend: &'a Attend,
    start: usize,
    count: usize,
}

impl Rows<'_> {
    fn of<B: Backend>(&self, tensor: FloatTensor<B>) -> FloatTensor<B> {
        let shape = tensor.shape();
        let mut slices: Vec<Slice> = shape.as_slice().iter().map(|size| Slice::from(0..*size)).collect();
        slices[2] = Slice::from(self.start..self.start + self.count);
        B::float_slice(tensor, &slices)
    }

    /// Which keys must not be looked at; nothing, when all may be.
    fn hidden<B: GraphBackend>(&self, like: &FloatTensor<B>) -> Option<BoolTensor<B>> {
        let Sizes { batch, heads, queries, keys, .. } = self.attend.sizes;
        if !self.attend.causal && self.attend.hidden.is_none() {
            return None;
        }
        #[cfg(feature = "capture")]
        if is_capture::<B>() {
            // There are no values to find in it.
            let shape = Shape::new([batch, heads, self.count, keys]);
            return Some(B::bool_zeros(shape, &like.device(), BoolDType::Native));
        }
        let device = like.device();
        // Not every device has a type of one bit's worth.
        let stored = if is_far::<B>() { BoolDType::U8 } else { BoolDType::Native };
        let of_all = |hidden| B::bool_expand(hidden, Shape::new([batch, heads, self.count, keys]));
        // Made where it is used: there are as many as scores.
        let ahead = self.attend.causal.then(|| {
            let numbers = |from: usize, shape: [usize; 4]| {
                let count = shape.iter().product::<usize>();
                let numbers = from as i64..(from + count) as i64;
                let numbers = B::int_arange(numbers, &device, IntDType::I32);
                B::int_expand(
                    B::int_reshape(numbers, Shape::new(shape)),
                    Shape::new([1, 1, self.count, keys]),
                )
            };
            // The last query and the last key belong together.
            let (queries, of_keys) =
                (numbers(self.start + keys, [1, 1, self.count, 1]), numbers(queries, [1, 1, 1, keys]));
            of_all(B::int_greater(of_keys, queries, stored))
        });
        let hidden = self.attend.hidden.as_deref().map(|hidden| {
            let hidden = TensorData::new(hidden.to_vec(), [batch, 1, 1, keys]);
            of_all(B::bool_from_data(hidden.convert_dtype(stored.into()), &device))
        });
        match (ahead, hidden) {
            (Some(ahead), Some(hidden)) => Some(B::bool_or(ahead, hidden)),
            (ahead, hidden) => ahead.or(hidden),
        }
    }

    /// What the probabilities are multiplied by.
    fn factors<B: GraphBackend>(&self, like: &FloatTensor<B>) -> Option<FloatTensor<B>> {
        let mask = self.attend.dropped.as_ref()?;
        let Sizes { batch, heads, keys, .. } = self.attend.sizes;
        #[cfg(feature = "capture")]
        if is_capture::<B>() {
            let shape = Shape::new([batch, heads, self.count, keys]);
            return Some(B::float_random(shape, Distribution::Default, &like.device(), like.dtype().into()));
        }
        let mut factors = vec![1.0; batch * heads * self.count * keys];
        for (index, factors) in factors.chunks_mut((self.count * keys).max(1)).enumerate() {
            mask.apply_at(self.attend.position(index / heads, index % heads, self.start), factors);
        }
        let factors = TensorData::new(factors, [batch, heads, self.count, keys]);
        Some(B::float_from_data(factors.convert_dtype(like.dtype()), &like.device()))
    }

    fn scores<B: Backend>(&self, query: &FloatTensor<B>, key: &FloatTensor<B>) -> FloatTensor<B> {
        let query = self.of::<B>(query.clone());
        let scores = B::float_matmul(query, B::float_swap_dims(key.clone(), 2, 3));
        B::float_mul_scalar(scores, self.attend.scale.into())
    }
}

/// Hides by a number that no score comes near, so that no infinity meets another.
fn hide<B: Backend>(scores: FloatTensor<B>, hidden: &Option<BoolTensor<B>>, value: f32) -> FloatTensor<B> {
    match hidden {
        Some(hidden) => B::float_mask_fill(scores, hidden.clone(), value.into()),
        None => scores,
    }
}

/// Lower than scores are, and far from the lowest number.
const LOW: f32 = -1e30;
/// What a sum of exponentials is at least: one of nothing is not divided by zero.
const LITTLE: f32 = 1e-30;

fn blocks<B: GraphBackend>(attend: &Attend) -> impl Iterator<Item = Rows<'_>> {
    let Sizes { batch, heads, queries, keys, .. } = attend.sizes;
    let scores = if is_far::<B>() { FAR } else { SCORES };
    let each = scores.checked_div(batch * heads * keys).unwrap_or(queries).max(QUERIES);
    #[cfg(feature = "capture")]
    let each = if is_capture::<B>() { each.max(queries.div_ceil(CAPTURED)) } else { each };
    (0..queries).step_by(each).map(move |start| Rows { attend, start, count: each.min(queries - start) })
}

/// Keys or values for every head.
fn spread<B: Backend>(attend: &Attend, tensor: FloatTensor<B>) -> FloatTensor<B> {
    let Sizes { batch, heads, groups, keys, .. } = attend.sizes;
    let depth = tensor.shape()[3];
    match attend.sizes.shared() {
        1 => tensor,
        shared => {
            let tensor = B::float_reshape(tensor, Shape::new([batch, groups, 1, keys * depth]));
            let tensor = B::float_expand(tensor, Shape::new([batch, groups, shared, keys * depth]));
            B::float_reshape(tensor, Shape::new([batch, heads, keys, depth]))
        }
    }
}

/// The sum over the heads that share keys or values.
fn gathered<B: Backend>(attend: &Attend, gradient: FloatTensor<B>) -> FloatTensor<B> {
    let Sizes { batch, groups, keys, .. } = attend.sizes;
    let depth = gradient.shape()[3];
    match attend.sizes.shared() {
        1 => gradient,
        shared => {
            let gradient = B::float_reshape(gradient, Shape::new([batch, groups, shared, keys * depth]));
            let sum = B::float_sum_dim(gradient, 2);
            B::float_reshape(sum, Shape::new([batch, groups, keys, depth]))
        }
    }
}

/// The output, and of batch, heads, queries and 1 the logarithm of the sum of exponentials.
pub(super) fn forward<B: GraphBackend>(
    attend: &Attend,
    query: FloatTensor<B>,
    key: FloatTensor<B>,
    value: FloatTensor<B>,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let (key, value) = (spread::<B>(attend, key), spread::<B>(attend, value));
    let (mut outputs, mut sums) = (Vec::new(), Vec::new());
    for rows in blocks::<B>(attend) {
        let hidden = rows.hidden::<B>(&query);
        let scores = hide::<B>(rows.scores::<B>(&query, &key), &hidden, LOW);
        let top = B::float_max_dim(scores.clone(), 3);
        let weights = hide::<B>(B::float_exp(B::float_sub(scores, top.clone())), &hidden, 0.0);
        let total = B::float_clamp_min(B::float_sum_dim(weights.clone(), 3), LITTLE.into());
        let weights = match rows.factors::<B>(&query) {
            Some(factors) => B::float_mul(weights, factors),
            None => weights,
        };
        let output = B::float_div(B::float_matmul(weights, value.clone()), total.clone());
        // Heads lie side by side, as what comes next wants them.
        outputs.push(B::float_swap_dims(output, 1, 2));
        sums.push(B::float_add(top, B::float_log(total)));
    }
    (B::float_swap_dims(B::float_cat(outputs, 1), 1, 2), B::float_cat(sums, 2))
}

/// The gradients of queries, keys and values.
pub(super) fn backward<B: GraphBackend>(
    attend: &Attend,
    [query, key, value]: [FloatTensor<B>; 3],
    [output, sums]: [FloatTensor<B>; 2],
    gradient: FloatTensor<B>,
) -> [FloatTensor<B>; 3] {
    let (key, value) = (spread::<B>(attend, key), spread::<B>(attend, value));
    let mut of_query = Vec::new();
    let (mut of_key, mut of_value) = (None, None);
    let add = |sum: Option<FloatTensor<B>>, more: FloatTensor<B>| {
        Some(match sum {
            Some(sum) => B::float_add(sum, more),
            None => more,
        })
    };
    for rows in blocks::<B>(attend) {
        let hidden = rows.hidden::<B>(&query);
        let scores = hide::<B>(rows.scores::<B>(&query, &key), &hidden, LOW);
        let weights = B::float_exp(B::float_sub(scores, rows.of::<B>(sums.clone())));
        let weights = hide::<B>(weights, &hidden, 0.0);
        let gradient = rows.of::<B>(gradient.clone());
        let product = B::float_mul(gradient.clone(), rows.of::<B>(output.clone()));
        let product = B::float_sum_dim(product, 3);
        let of_weights = B::float_matmul(gradient.clone(), B::float_swap_dims(value.clone(), 2, 3));
        let (of_weights, dropped) = match rows.factors::<B>(&query) {
            Some(factors) => {
                (B::float_mul(of_weights, factors.clone()), B::float_mul(weights.clone(), factors))
            }
            None => (of_weights, weights.clone()),
        };
        let of_scores = B::float_mul(weights, B::float_sub(of_weights, product));
        let of_scores = B::float_mul_scalar(of_scores, attend.scale.into());
        of_value = add(of_value, B::float_matmul(B::float_swap_dims(dropped, 2, 3), gradient));
        of_query.push(B::float_matmul(of_scores.clone(), key.clone()));
        let block = rows.of::<B>(query.clone());
        of_key = add(of_key, B::float_matmul(B::float_swap_dims(of_scores, 2, 3), block));
    }
    let device = query.device();
    let nothing = |like: &FloatTensor<B>| B::float_zeros(like.shape(), &device, like.dtype().into());
    let of_key = of_key.unwrap_or_else(|| nothing(&key));
    let of_value = of_value.unwrap_or_else(|| nothing(&value));
    let of_query = match of_query.is_empty() {
        true => nothing(&query),
        false => B::float_cat(of_query, 2),
    };
    [of_query, gathered::<B>(attend, of_key), gathered::<B>(attend, of_value)]
}
