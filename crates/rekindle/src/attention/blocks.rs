//! Attention block by block, on elements that lie in this process.
//!
//! The forward goes through the keys once for each block of queries, with the largest score and the sum of exponentials
//! so far; what was added up before is shrunk when a larger score turns up (Milakov and Gimelshein, 2018; Dao et al., 2022).
//! What is left of that is one number for each query, from which the backward makes the same probabilities again.

use std::ops::Range;

use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

use super::{Attend, Sizes};
use crate::kernel::vectorised;
use crate::matrix::{Into, Matrix, Shape, multiply};
use crate::node::Strided;
use crate::rows::{exp, larger, largest, sum};

/// Queries of a block: with causal attention, the fewer they are the fewer scores are made for nothing.
const QUERIES: usize = 64;
/// Keys of a block: two blocks of scores stay in the cache that each core has for itself.
const KEYS: usize = 256;

impl<'a> Strided<'a, 4> {
    /// Some rows of a head.
    fn rows(&self, batch: usize, head: usize, rows: Range<usize>) -> Matrix<'a> {
        let [batches, heads, each, columns] = self.steps;
        let first = batch * batches + head * heads + rows.start * each;
        let shape = Shape { rows: rows.len(), columns: self.sizes[3], row_step: each, column_step: columns };
        Matrix { elements: self.elements.get(first..).unwrap_or_default(), shape }
    }
}

/// The keys that some of a block's queries look at, block by block.
fn key_blocks(attend: &Attend, queries: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = attend.visible(queries.end - 1);
    (0..end).step_by(KEYS).map(move |start| start..(start + KEYS).min(end))
}

fn query_blocks(queries: usize) -> impl Iterator<Item = Range<usize>> {
    (0..queries).step_by(QUERIES).map(move |start| start..(start + QUERIES).min(queries))
}

/// The output, of batch, queries, heads and depth; and of batch, queries and heads the logarithm of the sum of exponentials.
pub(super) fn forward(
    attend: &Attend,
    query: Strided<'_, 4>,
    key: Strided<'_, 4>,
    value: Strided<'_, 4>,
) -> (Vec<f32>, Vec<f32>) {
    let Sizes { batch, heads, queries, value_depth, .. } = attend.sizes;
    let mut output = vec![0.0; batch * queries * heads * value_depth];
    let mut sums = vec![f32::NEG_INFINITY; batch * queries * heads];
    let mut tasks = Vec::new();
    let outputs = output.chunks_mut((queries * heads * value_depth).max(1));
    let of_batches = outputs.zip(sums.chunks_mut((queries * heads).max(1)));
    for (batch, (output, sums)) in of_batches.enumerate() {
        let outputs = output.chunks_mut((QUERIES * heads * value_depth).max(1));
        let of_blocks = outputs.zip(sums.chunks_mut((QUERIES * heads).max(1)));
        tasks.extend(query_blocks(queries).zip(of_blocks).map(|(block, of)| (batch, block, of)));
    }
    tasks.into_par_iter().for_each(|(batch, block, (output, sums))| {
        let mut scratch = Scratch::new(block.len(), attend.sizes.keys.min(KEYS), value_depth);
        for head in 0..heads {
            let queries = query.rows(batch, head, block.clone());
            scratch.start();
            for keys in key_blocks(attend, &block) {
                let group = head / attend.sizes.shared();
                scratch.score(attend, queries, key.rows(batch, group, keys.clone()));
                let tile = Tile { attend, batch, head, queries: &block, keys: &keys };
                vectorised(Softmax { tile, scratch: &mut scratch });
                scratch.add(value.rows(batch, group, keys));
            }
            for (row, (output, sums)) in
                output.chunks_mut(heads * value_depth).zip(sums.chunks_mut(heads)).enumerate()
            {
                let (total, top) = (scratch.totals[row], scratch.tops[row]);
                // Nothing to look at gives zeros, and a sum that makes every probability zero in the backward.
                if total == 0.0 {
                    continue;
                }
                sums[head] = top + total.ln();
                let output = &mut output[head * value_depth..][..value_depth];
                for (output, added) in output.iter_mut().zip(&scratch.added[row * value_depth..]) {
                    *output = added / total;
                }
            }
        }
    });
    (output, sums)
}

/// What a task of the forward writes on.
struct Scratch {
    /// Scores of a block, then what they become; rows of `width`, of which `columns` are used.
    scores: Vec<f32>,
    width: usize,
    rows: usize,
    columns: usize,
    /// Of each query: the largest score so far, the sum of exponentials below it, and the values they were added up to.
    tops: Vec<f32>,
    totals: Vec<f32>,
    added: Vec<f32>,
    depth: usize,
}

impl Scratch {
    fn new(rows: usize, width: usize, depth: usize) -> Self {
        Self {
            scores: vec![0.0; rows * width],
            width,
            rows,
            columns: 0,
            tops: vec![0.0; rows],
            totals: vec![0.0; rows],
            added: vec![0.0; rows * depth],
            depth,
        }
    }

    fn start(&mut self) {
        self.tops.fill(f32::NEG_INFINITY);
        self.totals.fill(0.0);
        self.added.fill(0.0);
    }

    fn score(&mut self, attend: &Attend, queries: Matrix<'_>, keys: Matrix<'_>) {
        self.columns = keys.shape.rows;
        let shape = Shape::by_rows(self.rows, self.columns, self.width);
        let factors = [queries, keys.transposed()];
        multiply(&mut self.scores, shape, Into::Over, attend.scale as f32, factors);
    }

    fn add(&mut self, values: Matrix<'_>) {
        let scores =
            Matrix { elements: &self.scores, shape: Shape::by_rows(self.rows, self.columns, self.width) };
        let shape = Shape::by_rows(self.rows, self.depth, self.depth);
        multiply(&mut self.added, shape, Into::Sum, 1.0, [scores, values]);
    }
}

/// A block of queries and a block of keys.
#[derive(Clone, Copy)]
struct Tile<'a> {
    attend: &'a Attend,
    batch: usize,
    head: usize,
    queries: &'a Range<usize>,
    keys: &'a Range<usize>,
}

impl Tile<'_> {
    /// How many keys of the block a query may look at.
    #[inline(always)]
    fn visible(&self, row: usize) -> usize {
        self.attend.visible(self.queries.start + row).saturating_sub(self.keys.start).min(self.keys.len())
    }

    /// Puts `hidden` where nobody looks.
    #[inline(always)]
    fn hide(&self, seen: &mut [f32], hidden: f32) {
        if let Some(keys) = self.attend.hidden_of(self.batch) {
            for (score, hide) in seen.iter_mut().zip(&keys[self.keys.clone()]) {
                *score = if *hide { hidden } else { *score };
            }
        }
    }

    /// Drops elements of a row.
    #[inline(always)]
    fn drop(&self, row: usize, seen: &mut [f32]) {
        if let Some(mask) = &self.attend.dropped {
            let first = self.attend.position(self.batch, self.head, self.queries.start + row);
            mask.apply_at(first + self.keys.start, seen);
        }
    }
}

/// Turns scores into what values are multiplied by, before it is divided by the total.
struct Softmax<'a> {
    tile: Tile<'a>,
    scratch: &'a mut Scratch,
}

impl pulp::NullaryFnOnce for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { tile, scratch } = self;
        let Scratch { scores, width, rows, columns, tops, totals, added, depth } = scratch;
        for (row, scores) in scores.chunks_exact_mut(*width).take(*rows).enumerate() {
            let (seen, rest) = scores[..*columns].split_at_mut(tile.visible(row));
            rest.fill(0.0);
            tile.hide(seen, f32::NEG_INFINITY);
            let top = larger(tops[row], largest(seen));
            if top == f32::NEG_INFINITY {
                seen.fill(0.0);
                continue;
            }
            for score in &mut *seen {
                *score = exp(*score - top);
            }
            if top != tops[row] {
                let shrink = exp(tops[row] - top);
                totals[row] *= shrink;
                for added in &mut added[row * *depth..][..*depth] {
                    *added *= shrink;
                }
                tops[row] = top;
            }
            totals[row] += sum(seen);
            tile.drop(row, seen);
        }
    }
}

/// What the forward left.
pub(super) struct Kept<'a> {
    pub(super) query: Strided<'a, 4>,
    pub(super) key: Strided<'a, 4>,
    pub(super) value: Strided<'a, 4>,
    pub(super) output: Strided<'a, 4>,
    /// Of batch, queries and heads.
    pub(super) sums: Strided<'a, 3>,
}

/// The gradients of queries, keys and values, heads side by side.
///
/// Those of a head of keys are added up by one task, query block after query block: in one order, whatever the threads.
pub(super) fn backward(attend: &Attend, kept: Kept<'_>, gradient: Strided<'_, 4>) -> [Vec<f32>; 3] {
    let Sizes { batch, heads, groups, queries, keys, depth, value_depth } = attend.sizes;
    let tasks = (0..batch * groups).into_par_iter();
    let parts: Vec<Gradients> = tasks
        .map(|task| Gradients::of_group(attend, &kept, gradient, task / groups, task % groups))
        .collect();
    let shared = attend.sizes.shared();
    let of_query = |batch: usize, head: usize| {
        &parts[batch * groups + head / shared].query[head % shared * queries * depth..]
    };
    [
        interleaved([batch, queries, heads, depth], of_query),
        interleaved([batch, keys, groups, depth], |batch, group| &parts[batch * groups + group].key),
        interleaved([batch, keys, groups, value_depth], |batch, group| &parts[batch * groups + group].value),
    ]
}

/// Heads side by side, from the rows of each.
fn interleaved<'a>(
    [batch, rows, heads, depth]: [usize; 4],
    head_of: impl Fn(usize, usize) -> &'a [f32] + Sync,
) -> Vec<f32> {
    let mut made = vec![0.0; batch * rows * heads * depth];
    made.par_chunks_mut((heads * depth).max(1)).with_min_len(64).enumerate().for_each(|(index, made)| {
        for (head, made) in made.chunks_mut(depth.max(1)).enumerate() {
            made.copy_from_slice(&head_of(index / rows, head)[index % rows * depth..][..depth]);
        }
    });
    made
}

/// The gradients of one head of keys and values, and of the queries that share it, one head after the other.
struct Gradients {
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
}

impl Gradients {
    fn of_group(
        attend: &Attend,
        kept: &Kept<'_>,
        gradient: Strided<'_, 4>,
        batch: usize,
        group: usize,
    ) -> Self {
        let Sizes { queries, keys, depth, value_depth, .. } = attend.sizes;
        let shared = attend.sizes.shared();
        let mut made = Self {
            query: vec![0.0; shared * queries * depth],
            key: vec![0.0; keys * depth],
            value: vec![0.0; keys * value_depth],
        };
        let mut block = Block::new(queries.min(QUERIES), keys.min(KEYS), value_depth);
        for (index, of_query) in made.query.chunks_mut((queries * depth).max(1)).enumerate() {
            let head = group * shared + index;
            for rows in query_blocks(queries) {
                block.read(kept, gradient, batch, head, &rows);
                let query = kept.query.rows(batch, head, rows.clone());
                let of_query = &mut of_query[rows.start * depth..];
                for columns in key_blocks(attend, &rows) {
                    let key = kept.key.rows(batch, group, columns.clone());
                    let value = kept.value.rows(batch, group, columns.clone());
                    let tile = Tile { attend, batch, head, queries: &rows, keys: &columns };
                    block.multiply(tile, [query, key, value]);
                    let shape = Shape::by_rows(rows.len(), columns.len(), block.width);
                    let weights = Matrix { elements: &block.weights, shape };
                    let of_scores = Matrix { elements: &block.of_scores, shape };
                    let of_value = &mut made.value[columns.start * value_depth..];
                    let of_key = &mut made.key[columns.start * depth..];
                    let by_key = |depth| Shape::by_rows(columns.len(), depth, depth);
                    let sum = |target: &mut [f32], shape, factors| {
                        multiply(target, shape, Into::Sum, 1.0, factors);
                    };
                    sum(of_value, by_key(value_depth), [weights.transposed(), block.gradient(rows.len())]);
                    sum(of_query, Shape::by_rows(rows.len(), depth, depth), [of_scores, key]);
                    sum(of_key, by_key(depth), [of_scores.transposed(), query]);
                }
            }
        }
        made
    }
}

/// What a task of the backward writes on.
struct Block {
    /// Scores, then what values were multiplied by; rows of `width`.
    weights: Vec<f32>,
    /// Gradients of that, then of the scores.
    of_scores: Vec<f32>,
    /// What a row was dropped by.
    factors: Vec<f32>,
    /// The gradient of the block's output.
    gradient: Vec<f32>,
    /// Of each query: its logarithm of the sum, and the product of its output and that output's gradient.
    sums: Vec<f32>,
    products: Vec<f32>,
    width: usize,
    depth: usize,
}

impl Block {
    fn new(rows: usize, width: usize, depth: usize) -> Self {
        Self {
            weights: vec![0.0; rows * width],
            of_scores: vec![0.0; rows * width],
            factors: vec![0.0; width],
            gradient: vec![0.0; rows * depth],
            sums: vec![0.0; rows],
            products: vec![0.0; rows],
            width,
            depth,
        }
    }

    fn gradient(&self, rows: usize) -> Matrix<'_> {
        Matrix { elements: &self.gradient, shape: Shape::by_rows(rows, self.depth, self.depth) }
    }

    fn read(
        &mut self,
        kept: &Kept<'_>,
        gradient: Strided<'_, 4>,
        batch: usize,
        head: usize,
        rows: &Range<usize>,
    ) {
        let of_output = gradient.rows(batch, head, rows.clone());
        let output = kept.output.rows(batch, head, rows.clone());
        let [batches, queries, heads] = kept.sums.steps;
        let at = |matrix: Matrix<'_>, row: usize, column: usize| {
            matrix.elements[row * matrix.shape.row_step + column * matrix.shape.column_step]
        };
        for (row, copy) in self.gradient.chunks_exact_mut(self.depth.max(1)).take(rows.len()).enumerate() {
            let mut product = 0.0;
            for (column, copy) in copy.iter_mut().enumerate() {
                *copy = at(of_output, row, column);
                product += *copy * at(output, row, column);
            }
            self.products[row] = product;
            self.sums[row] =
                kept.sums.elements[batch * batches + (rows.start + row) * queries + head * heads];
        }
    }

    /// Makes what values were multiplied by again, and the gradients of the scores.
    fn multiply(&mut self, tile: Tile<'_>, [query, key, value]: [Matrix<'_>; 3]) {
        let (rows, columns) = (tile.queries.len(), tile.keys.len());
        let shape = Shape::by_rows(rows, columns, self.width);
        let scale = tile.attend.scale as f32;
        let over = |target: &mut [f32], scale, factors| {
            multiply(target, shape, Into::Over, scale, factors);
        };
        over(&mut self.weights, scale, [query, key.transposed()]);
        let gradient =
            Matrix { elements: &self.gradient, shape: Shape::by_rows(rows, self.depth, self.depth) };
        over(&mut self.of_scores, 1.0, [gradient, value.transposed()]);
        vectorised(Unsoftmax { tile, rows, columns, block: self });
    }
}

/// Turns scores into what values were multiplied by, and the gradients of that into those of the scores.
struct Unsoftmax<'a> {
    tile: Tile<'a>,
    rows: usize,
    columns: usize,
    block: &'a mut Block,
}

impl pulp::NullaryFnOnce for Unsoftmax<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { tile, rows, columns, block } = self;
        let Block { weights, of_scores, factors, sums, products, width, .. } = block;
        let scale = tile.attend.scale as f32;
        let blocks = weights.chunks_exact_mut(*width).zip(of_scores.chunks_exact_mut(*width));
        for (row, (weights, of_scores)) in blocks.take(rows).enumerate() {
            let visible = tile.visible(row);
            let (weights, rest) = weights[..columns].split_at_mut(visible);
            rest.fill(0.0);
            let (of_scores, rest) = of_scores[..columns].split_at_mut(visible);
            rest.fill(0.0);
            let (sum, product) = (sums[row], products[row]);
            tile.hide(weights, f32::NEG_INFINITY);
            // A query that had nothing to look at.
            if sum == f32::NEG_INFINITY {
                weights.fill(0.0);
                of_scores.fill(0.0);
                continue;
            }
            for weight in &mut *weights {
                // Rounding may lift the largest score above the sum.
                let below = *weight - sum;
                *weight = exp(if below > 0.0 { 0.0 } else { below });
            }
            if tile.attend.dropped.is_none() {
                for (weight, of_score) in weights.iter().zip(of_scores) {
                    *of_score = weight * (*of_score - product) * scale;
                }
                continue;
            }
            let factors = &mut factors[..visible];
            factors.fill(1.0);
            tile.drop(row, factors);
            for ((weight, of_score), factor) in weights.iter_mut().zip(of_scores).zip(&*factors) {
                *of_score = *weight * (*factor * *of_score - product) * scale;
                *weight *= factor;
            }
        }
    }
}
