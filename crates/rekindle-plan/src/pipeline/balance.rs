//! Which stages of a model each rank has.

use std::ops::Range;

use super::PipelineError;
use crate::Profile;

/// Cuts a model into as many parts in a row, so that the slowest takes as little time as it can. No part is empty.
///
/// # Errors
/// When there are more parts than stages, or none.
pub fn balance(profile: &Profile, parts: usize) -> Result<Vec<Range<usize>>, PipelineError> {
    let times: Vec<u128> = profile
        .stages()
        .iter()
        .map(|stage| u128::from(stage.forward_ns.get()) + u128::from(stage.backward_ns.get()))
        .collect();
    if parts == 0 || parts > times.len() {
        return Err(PipelineError::TooFewStages { stages: times.len(), ranks: parts });
    }
    // The least time that everything fits under, found by halving.
    let (mut low, mut high) = (times.iter().copied().max().unwrap_or(0), times.iter().sum::<u128>());
    while low < high {
        let middle = low + (high - low) / 2;
        match cut(&times, parts, middle).len() <= parts {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    Ok(cut(&times, parts, high))
}

/// As many as fit into each part, but for those that later parts need to have one.
fn cut(times: &[u128], parts: usize, most: u128) -> Vec<Range<usize>> {
    let mut ranges = Vec::with_capacity(parts);
    let (mut start, mut held) = (0, 0);
    for (index, time) in times.iter().enumerate() {
        let left = times.len() - index;
        // A part of their own for each of those that are left, if there are no more of them than parts.
        let needed = index > start && left + ranges.len() < parts;
        if index > start && (held + time > most || needed) {
            ranges.push(start..index);
            (start, held) = (index, 0);
        }
        held += time;
    }
    ranges.push(start..times.len());
    ranges
}

#[cfg(test)]
mod tests {
    use crate::{Bytes, Nanos, StageProfile};

    use super::*;

    fn profile(times: &[u64]) -> Profile {
        let stages = times.iter().enumerate().map(|(index, time)| StageProfile {
            name: format!("s{index}"),
            forward_ns: Nanos::new(*time),
            ..StageProfile::default()
        });
        Profile::new("m", "d", Bytes::new(1), stages.collect()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn slowest(times: &[u64], ranges: &[Range<usize>]) -> u64 {
        ranges.iter().map(|range| times[range.clone()].iter().sum()).max().unwrap_or(0)
    }

    /// Every way to cut, for the oracle.
    fn best(times: &[u64], parts: usize) -> u64 {
        match parts {
            1 => times.iter().sum(),
            _ => (1..=times.len() + 1 - parts)
                .map(|first| times[..first].iter().sum::<u64>().max(best(&times[first..], parts - 1)))
                .min()
                .unwrap_or(u64::MAX),
        }
    }

    #[test]
    fn no_cut_has_a_faster_slowest_part() {
        let cases: [&[u64]; 6] = [
            &[1],
            &[5, 1, 1, 1],
            &[1, 1, 1, 9],
            &[3, 3, 3, 3, 3, 3, 3],
            &[0, 0, 7, 0, 0],
            &[8, 1, 2, 6, 2, 9, 4, 4, 1],
        ];
        for times in cases {
            for parts in 1..=times.len() {
                let found = balance(&profile(times), parts).unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(found.len(), parts, "{times:?}");
                assert!(found.iter().all(|range| !range.is_empty()), "{times:?}: {found:?}");
                assert_eq!((found[0].start, found[parts - 1].end), (0, times.len()));
                assert!(found.windows(2).all(|pair| pair[0].end == pair[1].start));
                assert_eq!(slowest(times, &found), best(times, parts), "{times:?} in {parts}");
            }
        }
        assert!(balance(&profile(&[1, 2]), 3).is_err() && balance(&profile(&[1]), 0).is_err());
    }
}
