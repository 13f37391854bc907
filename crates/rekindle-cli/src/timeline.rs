//! `rekindle train --trace`: what a step did, for timeline viewers.

use std::path::Path;

use rekindle::{Profile, TraceHandle};
use rekindle_models::Trainable;

use crate::failure::Failure;
use crate::files;
use crate::measure::{Parts, Recipe, step_traced};
use crate::strategy::{Ready, Strategy};

/// What can be refused before the first step.
pub(crate) fn check(path: &Path, strategy: &Strategy) -> Result<(), Failure> {
    if matches!(strategy, Strategy::Plain | Strategy::Burn | Strategy::Balanced) {
        return Err(Failure::request(
            anyhow::anyhow!("`{strategy}` has no actions to trace"),
            "--strategy store-all keeps everything, too, stage by stage",
        ));
    }
    files::check_writable(path)
}

/// Takes a step of a part of a batch, and writes it down. `blocks`: the stages of a rule.
pub(crate) fn write<M: Trainable>(
    path: &Path,
    model: &M,
    batch: &Parts<M::Batch>,
    how: &Ready,
    recipe: Recipe,
    blocks: Option<&Profile>,
) -> Result<(), Failure> {
    // What earlier steps left behind would go in the middle of this one.
    rekindle::sweep();
    let trace = TraceHandle::new();
    step_traced(model, batch, how, recipe, Some(&trace))?;
    let stages = match how {
        Ready::Planned(planned, _) => Some(planned.profile()),
        _ => blocks,
    };
    let names = stages.into_iter().flat_map(|profile| profile.stages()).map(|stage| stage.name.as_str());
    let Some(trace) = trace.get() else { return Ok(()) };
    files::write(path, &trace.timeline(names))?;
    tell!("wrote {}", path.display());
    Ok(())
}
