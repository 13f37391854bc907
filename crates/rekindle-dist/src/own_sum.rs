//! A rank's part of a sum of gradients, of which no rank has all.

use std::ops::Range;

use crate::collective::Pending;
use crate::{Collective, DistError, Reduction};

/// Adds up gradients bucket by bucket, in the order of the model's fields, and keeps what this rank has of each sum.
///
/// A bucket is added up while the next is filled; there are never more of them.
pub(crate) struct OwnSum<'a> {
    ranks: &'a dyn Collective,
    how: Reduction,
    weight: f32,
    /// How many values a bucket holds.
    most: usize,
    filling: Vec<f32>,
    /// The place of the bucket that is filled.
    start: usize,
    /// The bucket before it, and its place.
    under_way: Option<(usize, Pending<Vec<f32>>)>,
    /// The places that are this rank's.
    range: Range<usize>,
    own: Vec<f32>,
    error: Option<DistError>,
}

impl<'a> OwnSum<'a> {
    /// Of the places in `range`, of gradients that count for `weight`, in buckets of `most` values.
    pub(crate) fn new(
        ranks: &'a dyn Collective,
        how: Reduction,
        weight: f32,
        most: usize,
        range: Range<usize>,
    ) -> Self {
        let own = vec![0.0; range.len()];
        let filling = Vec::new();
        Self {
            ranks,
            how,
            weight,
            most: most.max(1),
            filling,
            start: 0,
            under_way: None,
            range,
            own,
            error: None,
        }
    }

    /// Takes the values that come next.
    pub(crate) fn take(&mut self, mut values: &[f32]) {
        while !values.is_empty() {
            self.filling.reserve_exact(self.most - self.filling.len());
            let (next, rest) = values.split_at(values.len().min(self.most - self.filling.len()));
            self.filling.extend(next.iter().map(|value| value * self.weight));
            values = rest;
            if self.filling.len() == self.most {
                self.begin();
            }
        }
    }

    /// Has the bucket added up, once the one before it is.
    fn begin(&mut self) {
        self.keep();
        let values = std::mem::take(&mut self.filling);
        let (start, length) = (self.start, values.len());
        self.under_way = Some((start, self.ranks.start_all_reduce(values, self.how)));
        self.start += length;
    }

    /// Keeps what is this rank's of the bucket that is under way. A rank that fails goes on asking, as the others do.
    fn keep(&mut self) {
        let Some((start, under_way)) = self.under_way.take() else { return };
        let sum = match under_way.wait() {
            Ok(sum) => sum,
            Err(error) => {
                self.error.get_or_insert(error);
                return;
            }
        };
        let (from, to) = (self.range.start.max(start), self.range.end.min(start + sum.len()));
        if from < to {
            self.own[from - self.range.start..to - self.range.start]
                .copy_from_slice(&sum[from - start..to - start]);
        }
    }

    /// This rank's part; zeros behind the last gradient.
    pub(crate) fn finish(mut self) -> Result<Vec<f32>, DistError> {
        if !self.filling.is_empty() {
            self.begin();
        }
        self.keep();
        self.error.map_or(Ok(self.own), Err)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;
    use crate::Alone;

    #[test]
    fn a_rank_keeps_its_part_wherever_buckets_end() {
        let values: Vec<f32> = (0..23).map(|value| value as f32).collect();
        for most in 1..30 {
            for range in [0..8, 8..16, 16..24, 0..0, 5..6] {
                let mut sum = OwnSum::new(&Alone, Reduction::Ordered, 0.5, most, range.clone());
                let (first, rest) = values.split_at(7);
                sum.take(first);
                sum.take(&[]);
                sum.take(rest);
                let expected: Vec<f32> =
                    range.clone().map(|at| values.get(at).map_or(0.0, |value| value * 0.5)).collect();
                assert_eq!(sum.finish().unwrap(), expected, "{most}, {range:?}");
            }
        }
    }
}
