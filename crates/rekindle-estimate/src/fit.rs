//! What fits into a memory.

use rekindle_plan::Bytes;
use serde::Serialize;

use crate::{Architecture, Asked, EstimateError, Setting, count};

/// The most that fits; `None` where not even the least does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Fit {
    /// The largest batch of the length asked for.
    pub largest_batch: Option<u64>,
    /// The longest sequence, or the largest picture, of the batch asked for.
    pub longest: Option<u64>,
}

/// No search goes further.
const MOST: u64 = 1 << 24;

/// What fits into `room` under a strategy.
pub(crate) fn fit(asked: &Asked, strategy: &str, room: Bytes) -> Result<Fit, EstimateError> {
    let state = asked.state();
    let fits = |setting: Setting| {
        let Some(left) = room.checked_sub(state.total()) else { return Ok(false) };
        // Numbers that do not fit into 64 bits do not fit into a memory either.
        match count::bytes(asked, &setting, strategy) {
            Ok(taken) => Ok(taken.is_some_and(|taken| taken <= left)),
            Err(EstimateError::Profile { .. }) => Ok(false),
            Err(other) => Err(other),
        }
    };
    let largest_batch = most(MOST, |batch| fits(Setting { batch, ..asked.setting }))?;
    // Patches divide a picture, and learned positions end.
    let (step, longest) = match &asked.architecture {
        Architecture::Transformer(model) if model.patch > 0 => (model.patch, MOST),
        Architecture::Transformer(model) if model.positions > 0 => (1, model.positions),
        Architecture::Transformer(_) => (1, MOST),
        Architecture::ResNet(_) => (32, MOST),
    };
    let longest =
        most(longest / step, |steps| fits(Setting { length: steps.saturating_mul(step), ..asked.setting }))?;
    Ok(Fit { largest_batch, longest: longest.map(|steps| steps * step) })
}

/// The largest number up to `most` of which this holds, if it holds of all smaller ones.
fn most(
    most: u64,
    mut holds: impl FnMut(u64) -> Result<bool, EstimateError>,
) -> Result<Option<u64>, EstimateError> {
    let mut fails = 1;
    while fails <= most && holds(fails)? {
        fails = fails.saturating_mul(2);
    }
    let mut held = fails / 2;
    if held == 0 {
        return Ok(None);
    }
    let mut fails = fails.min(most + 1);
    while fails - held > 1 {
        let middle = held + (fails - held) / 2;
        match holds(middle)? {
            true => held = middle,
            false => fails = middle,
        }
    }
    Ok(Some(held))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_most_is_found() {
        for limit in [0, 1, 2, 3, 7, 8, 9, 100, 1_000] {
            let expected = (limit > 0).then_some(limit.min(500));
            assert_eq!(most(500, |number| Ok(number <= limit)).unwrap(), expected, "{limit}");
        }
    }
}
