//! The end of a region that is plain training: stages whose tapes the plan keeps run on the user's own graph.
//!
//! Nothing of them is ever run again, so a node of ours could only do what Burn does anyway, on a graph of its own: with
//! new leaves for every parameter, and one more backward.

use burn::tensor::Device;
use rekindle_plan::{Bytes, Schedule};

use crate::boundary::Parts;
use crate::kept::{self, KeptRow};
use crate::node::{self, TapeStrategy};
use crate::stage::{AnyStage, Mode, Parameters};
use crate::{Error, seeds, tail};

/// What Burn keeps, for a stage of some twenty operations, until the whole graph's backward is through. In a graph of the
/// stage's own it goes with the stage, and that is what profiles say.
const LEFT_BEHIND: u64 = 8 << 10;

/// How many stages at the end run on the user's graph. `peak`: what the plan is to take, if anybody counts on it.
pub(crate) fn length(
    schedule: &Schedule,
    peak: Option<Bytes>,
    stages: &[Box<dyn AnyStage>],
    parameters: &[Parameters],
    input: &Parts,
) -> Result<usize, Error> {
    let all = stages.len();
    let mut length = schedule.plain_end();
    if let Some(peak) = peak {
        // Of all that is taken, not so much that anybody would tell.
        length = length.min(usize::try_from(peak.get() / 256 / LEFT_BEHIND).unwrap_or(usize::MAX));
    }
    // Where a stage goes on drawing, only whoever ran the one before knows.
    while length > 0 && length < all && stages[all - length].continues() {
        length -= 1;
    }
    // What comes before them is a node of the graph, if there is anything to go back to.
    let head = &parameters[..all - length];
    let is_trained = input.is_tracked() || head.iter().any(|parameters| !parameters.tracked.is_empty());
    if length < all && !is_trained {
        return Ok(0);
    }
    match length > 0 && node::may_share_a_graph(stages, parameters, input, all - length)? {
        true => Ok(length),
        false => Ok(0),
    }
}

/// Runs them. `first` is the number of the first of them, from 0.
pub(crate) fn run(
    stages: Vec<Box<dyn AnyStage>>,
    first: usize,
    mut draws: seeds::Draws,
    device: &Device,
    strategy: TapeStrategy,
    mut boundary: Parts,
) -> Result<Parts, Error> {
    for (index, stage) in stages.into_iter().enumerate() {
        let mut call = |mode: Mode, input: Parts| {
            // Whoever is around reads what it makes.
            let run = || tail::run(false, || stage.run(mode, strategy, input)).0;
            draws.run(device, index, run).map(|ran| ran.output)
        };
        if stage.is_due() {
            // Here its gradient would not be lost; under the next plan it would.
            let probed = call(Mode::Probe, boundary.detached())?;
            if probed.is_tracked() {
                return Err(Error::TrackedCapture {
                    stage: first + index + 1,
                    name: stage.name().to_owned(),
                });
            }
        }
        stage.count_run();
        boundary = call(Mode::Kept, boundary)?;
        kept::note(|| vec![KeptRow::tape(stage.name(), first + index + 1)]);
    }
    Ok(boundary)
}
