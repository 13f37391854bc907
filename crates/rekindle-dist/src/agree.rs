//! Whether all ranks mean the same.

use rekindle_plan::Plan;
use xxhash_rust::xxh3::xxh3_128;

use crate::{Collective, DistError};

/// Fails on every rank unless all have the same `value` of `what`.
pub(crate) fn agree(ranks: &dyn Collective, what: &str, value: String) -> Result<(), DistError> {
    let all = ranks.all_gather(value.clone().into_bytes())?;
    let other = all.iter().position(|other| other != value.as_bytes());
    match other {
        None => Ok(()),
        Some(other) => Err(DistError::Differs {
            what: what.to_owned(),
            rank: ranks.rank(),
            other,
            found: String::from_utf8_lossy(&all[other]).into_owned(),
            expected: value,
        }),
    }
}

/// Fails on every rank unless all have the same plan.
///
/// Ranks whose stages themselves communicate do so again when they recompute: with different plans they would wait for each
/// other for ever. To be called before the first step.
///
/// # Errors
/// When a plan differs: with the first rank that has another, and what a plan of it hashes to.
pub fn agree_on_plan(ranks: &dyn Collective, plan: &Plan) -> Result<(), DistError> {
    let actions: Vec<String> = plan.actions.iter().map(ToString::to_string).collect();
    agree(ranks, "the plan", format!("{:032x}", xxh3_128(actions.join("\n").as_bytes())))
}
