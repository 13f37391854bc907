//! The loss by panels of classes, on elements that lie in this process.
//!
//! The classes are cut into lanes, and a lane into panels. A lane goes through its panels one after the other and never
//! holds the logits of more than one; lanes run on all threads, and what they come to is put together in their order.

use std::ops::Range;

use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, IntoParallelRefIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

use super::Loss;
use super::class::Class;
use crate::kernel::vectorised;
use crate::matrix::{Into, Matrix, Shape, multiply};
use crate::node::Strided;
use crate::rows::{exp, larger, largest, sum};

/// Lanes: a number of their own, so that sums do not depend on the threads there are.
const LANES: usize = 8;
/// Classes of a panel.
const CLASSES: usize = 256;

/// What the logits are made of.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    /// Row after row.
    pub(super) input: &'a [f32],
    /// Features and classes.
    pub(super) weight: Strided<'a, 2>,
    pub(super) bias: &'a [f32],
}

impl<'a> Head<'a> {
    fn features(&self) -> usize {
        self.weight.sizes[0]
    }

    fn rows(&self, rows: &Range<usize>) -> Matrix<'a> {
        let features = self.features();
        Matrix::new(&self.input[rows.start * features..rows.end * features], rows.len(), features)
    }

    fn weights(&self, classes: &Range<usize>) -> Matrix<'a> {
        let [features, step] = self.weight.steps;
        let elements = self.weight.elements.get(classes.start * step..).unwrap_or_default();
        let shape =
            Shape { rows: self.features(), columns: classes.len(), row_step: features, column_step: step };
        Matrix { elements, shape }
    }

    /// Writes the logits of some rows and a panel, rows of as many as the panel has.
    fn logits(&self, rows: &Range<usize>, classes: &Range<usize>, logits: &mut [f32]) {
        let bias = &self.bias[classes.clone()];
        for row in logits.chunks_exact_mut(classes.len()).take(rows.len()) {
            row.copy_from_slice(bias);
        }
        let shape = Shape::by_rows(rows.len(), classes.len(), classes.len());
        multiply(logits, shape, Into::Sum, 1.0, [self.rows(rows), self.weights(classes)]);
    }
}

/// The classes of each lane, whole panels of them.
fn lanes(classes: usize) -> Vec<Range<usize>> {
    let length = classes.div_ceil(LANES).next_multiple_of(CLASSES);
    (0..classes).step_by(length.max(1)).map(|start| start..(start + length).min(classes)).collect()
}

fn panels(lane: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = lane.end;
    lane.clone().step_by(CLASSES).map(move |start| start..(start + CLASSES).min(end))
}

fn chunks(loss: &Loss) -> impl Iterator<Item = Range<usize>> {
    let (rows, chunk) = (loss.targets.len(), loss.chunk.max(1));
    (0..rows).step_by(chunk).map(move |start| start..(start + chunk).min(rows))
}

/// What is known of a row's logits so far.
#[derive(Clone, Copy)]
struct Known {
    largest: f32,
    /// The sum of their exponentials, below the largest.
    total: f32,
    /// Their sum.
    sum: f32,
    /// That of the target.
    target: f32,
}

impl Known {
    const NOTHING: Self = Self { largest: f32::NEG_INFINITY, total: 0.0, sum: 0.0, target: 0.0 };

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        let top = larger(self.largest, other.largest);
        let shrunk = |of: Self| if of.largest == top { of.total } else { of.total * exp(of.largest - top) };
        Self {
            largest: top,
            total: shrunk(self) + shrunk(other),
            sum: self.sum + other.sum,
            target: self.target + other.target,
        }
    }
}

/// The loss, and of each row the logarithm of the sum of exponentials.
pub(super) fn forward(loss: &Loss, head: Head<'_>) -> (f32, Vec<f32>) {
    let mut sums = Vec::with_capacity(loss.targets.len());
    let mut total = 0.0;
    for rows in chunks(loss) {
        let of_lane = |lane: Range<usize>| {
            let mut known = vec![Known::NOTHING; rows.len()];
            let mut logits = vec![0.0; rows.len() * CLASSES];
            for classes in panels(&lane) {
                head.logits(&rows, &classes, &mut logits);
                let targets = &loss.targets[rows.clone()];
                vectorised(Look { logits: &logits, classes: &classes, targets, known: &mut known });
            }
            known
        };
        let lanes: Vec<Vec<Known>> = lanes(loss.classes).into_par_iter().map(of_lane).collect();
        for row in 0..rows.len() {
            let known = lanes.iter().fold(Known::NOTHING, |known, lane| known.and(lane[row]));
            let log_sum = known.largest + known.total.ln();
            sums.push(log_sum);
            if loss.targets[rows.start + row] != Class::IGNORED {
                let [target, sum] = [known.target, known.sum].map(f64::from);
                let expected = (1.0 - loss.smoothing) * target + loss.everywhere() * sum;
                total += f64::from(log_sum) - expected;
            }
        }
    }
    ((total * loss.weight) as f32, sums)
}

/// Looks at the logits of a panel.
struct Look<'a> {
    logits: &'a [f32],
    classes: &'a Range<usize>,
    targets: &'a [Class],
    known: &'a mut [Known],
}

impl pulp::NullaryFnOnce for Look<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { logits, classes, targets, known } = self;
        let mut powers = [0.0; CLASSES];
        for ((row, target), known) in logits.chunks_exact(classes.len()).zip(targets).zip(known) {
            let top = largest(row);
            let powers = &mut powers[..row.len()];
            for (power, logit) in powers.iter_mut().zip(row) {
                *power = exp(*logit - top);
            }
            let target = target.get().filter(|target| classes.contains(target));
            let seen = Known {
                largest: top,
                total: sum(powers),
                sum: sum(row),
                target: target.map_or(0.0, |target| row[target - classes.start]),
            };
            *known = known.and(seen);
        }
    }
}

/// The gradients; that of the weights of classes and features.
pub(super) struct Gradients {
    pub(super) input: Vec<f32>,
    pub(super) weight: Vec<f32>,
    pub(super) bias: Vec<f32>,
}

pub(super) fn backward(loss: &Loss, head: Head<'_>, sums: &[f32], gradient: f32) -> Gradients {
    let features = head.features();
    let mut made = Gradients {
        input: vec![0.0; head.input.len()],
        weight: vec![0.0; loss.classes * features],
        bias: vec![0.0; loss.classes],
    };
    let scale = gradient * loss.weight as f32;
    let lanes = lanes(loss.classes);
    let length = lanes.first().map_or(1, ExactSizeIterator::len);
    for rows in chunks(loss) {
        let of_weight = made.weight.par_chunks_mut((length * features).max(1));
        let of_bias = made.bias.par_chunks_mut(length);
        let tasks = lanes.par_iter().zip(of_weight).zip(of_bias);
        let parts: Vec<Vec<f32>> = tasks
            .map(|((lane, of_weight), of_bias)| {
                let mut of_input = vec![0.0; rows.len() * features];
                let mut logits = vec![0.0; rows.len() * CLASSES];
                for classes in panels(lane) {
                    head.logits(&rows, &classes, &mut logits);
                    let logits = &mut logits[..rows.len() * classes.len()];
                    let within = classes.start - lane.start..classes.end - lane.start;
                    vectorised(Differ {
                        loss,
                        scale,
                        rows: &rows,
                        classes: &classes,
                        sums,
                        logits,
                        of_bias: &mut of_bias[within.clone()],
                    });
                    let of_logits = Matrix::new(logits, rows.len(), classes.len());
                    let weights = head.weights(&classes).transposed();
                    let shape = Shape::by_rows(rows.len(), features, features);
                    multiply(&mut of_input, shape, Into::Sum, 1.0, [of_logits, weights]);
                    let of_weight = &mut of_weight[within.start * features..within.end * features];
                    let shape = Shape::by_rows(classes.len(), features, features);
                    multiply(of_weight, shape, Into::Sum, 1.0, [of_logits.transposed(), head.rows(&rows)]);
                }
                of_input
            })
            .collect();
        let of_input = &mut made.input[rows.start * features..rows.end * features];
        for part in parts {
            for (sum, part) in of_input.iter_mut().zip(part) {
                *sum += part;
            }
        }
    }
    made
}

/// Turns the logits of a panel into their gradients, and adds up those of the bias.
struct Differ<'a> {
    loss: &'a Loss,
    scale: f32,
    rows: &'a Range<usize>,
    classes: &'a Range<usize>,
    sums: &'a [f32],
    logits: &'a mut [f32],
    of_bias: &'a mut [f32],
}

impl pulp::NullaryFnOnce for Differ<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { loss, scale, rows, classes, sums, logits, of_bias } = self;
        let everywhere = loss.everywhere() as f32 * scale;
        let of_target = (1.0 - loss.smoothing) as f32 * scale;
        for (row, logits) in logits.chunks_exact_mut(classes.len()).enumerate() {
            let row = rows.start + row;
            let Some(target) = loss.targets[row].get() else {
                logits.fill(0.0);
                continue;
            };
            let log_sum = sums[row];
            for logit in &mut *logits {
                // Rounding may lift the largest above the sum.
                let below = *logit - log_sum;
                *logit = exp(if below > 0.0 { 0.0 } else { below }) * scale - everywhere;
            }
            if classes.contains(&target) {
                logits[target - classes.start] -= of_target;
            }
            for (sum, logit) in of_bias.iter_mut().zip(&*logits) {
                *sum += logit;
            }
        }
    }
}
