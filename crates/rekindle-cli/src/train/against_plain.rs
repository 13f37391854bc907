//! Training beside plain training, at the end.

use rekindle::{Bytes, Nanos};
use rekindle_models::Trainable;

use crate::failure::Failure;
use crate::measure::{Comparison, Parts, Recipe, compare, measured, median};
use crate::report;
use crate::strategy::Ready;

/// How often training is compared with plain training at the end.
pub(super) const ROUNDS: usize = 3;

/// Peak and median time of both, and how their gradients compare.
pub(super) struct AgainstPlain {
    pub(super) ours: (Bytes, Nanos),
    /// The highest of our peaks.
    pub(super) most: Bytes,
    pub(super) plain: (Bytes, Nanos),
    pub(super) overhead: f64,
    pub(super) gradients: Comparison,
}

/// Takes steps of the trained model in turns with plain training, from the same weights, batch and seed.
pub(super) fn against_plain<M: Trainable>(
    model: &M,
    batch: &Parts<M::Batch>,
    how: &Ready,
    recipe: Recipe,
) -> Result<AgainstPlain, Failure> {
    let bar = report::bar(2 * ROUNDS as u64, "comparing with plain training");
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    let (mut our_peaks, mut plain_peaks) = (Vec::new(), Vec::new());
    let mut gradients = Comparison::default();
    for _ in 0..ROUNDS {
        let expected = measured(model, batch, &Ready::Plain, recipe)?;
        bar.inc(1);
        let found = measured(model, batch, how, recipe)?;
        bar.inc(1);
        gradients = compare(model, &expected.step, &found.step);
        plain.push(expected.time);
        ours.push(found.time);
        plain_peaks.push(expected.peak);
        our_peaks.push(found.peak);
    }
    bar.finish_and_clear();
    let ratios: Vec<f64> = ours.iter().zip(&plain).map(|(ours, plain)| ours.ratio(*plain)).collect();
    Ok(AgainstPlain {
        ours: (median(&our_peaks).unwrap_or_default(), median(&ours).unwrap_or_default()),
        most: our_peaks.iter().copied().max().unwrap_or_default(),
        plain: (median(&plain_peaks).unwrap_or_default(), median(&plain).unwrap_or_default()),
        overhead: median(&ratios).unwrap_or(1.0) - 1.0,
        gradients,
    })
}
