//! A region piece by piece: stages that are plain training run on the user's own graph, and each run of others between
//! them is a node of it.
//!
//! A stage whose tape the plan keeps from the first run on is never run again, so a node of ours could only do what Burn
//! does anyway, on a graph of its own: with new leaves for every parameter, and one more backward, after which Burn looks
//! at every node there is.

use std::collections::HashSet;

use burn::tensor::Device;
use rekindle_plan::{Bytes, Name, Piece, Schedule};

use crate::boundary::Parts;
use crate::checks::Checks;
use crate::kept::{self, KeptRow};
use crate::node::{self, Job, Keeping, Setup, TapeStrategy};
use crate::seeds::Draws;
use crate::stage::{AnyStage, Mode, Parameters};
use crate::{Error, again, seeds, tail};

/// What Burn keeps for a node until the whole graph's backward is through. In a graph of the stage's own it goes with the
/// stage, and that is what profiles say.
const LEFT_BEHIND: u64 = 256;

/// A region about to run in pieces.
pub(crate) struct InPieces {
    pub(crate) stages: Vec<Box<dyn AnyStage>>,
    pub(crate) parameters: Vec<Parameters>,
    pub(crate) draws: Draws,
    pub(crate) device: Device,
    pub(crate) checks: Checks,
    /// How the user's graph keeps tapes.
    pub(crate) strategy: TapeStrategy,
    /// What the plan is to take, if anybody counts on it.
    pub(crate) promised: Option<Bytes>,
    /// Somebody wants to be told of each stage while it is run, and back: all of it is one node.
    pub(crate) told: bool,
}

impl InPieces {
    /// Runs the forward half of `job`, and leaves the rest to the user's graph.
    pub(crate) fn run(self, job: Job, input: Parts) -> Result<Parts, Error> {
        let pieces = self.pieces(&job.schedule, &input)?;
        let whole = job.schedule.clone();
        let mut job = Some(job);
        let mut left = self.promised.map(|peak| peak.get() / 128 / LEFT_BEHIND);
        let nested = seeds::nested();
        // Two that go back at the same time do as in plain training, as long as neither needs more than what it kept.
        let again = pieces
            .iter()
            .any(|piece| matches!(piece, Piece::Planned { .. } | Piece::Plain { option: Some(_), .. }));
        let mut run = Running {
            stages: self.stages.into_iter(),
            parameters: self.parameters.into_iter(),
            draws: self.draws,
            device: self.device,
            checks: self.checks,
            strategy: self.strategy,
            done: 0,
            closes: true,
            boundary: input,
        };
        for piece in pieces {
            let (first, schedule) = match piece {
                Piece::Plain { option, .. } if left != Some(0) => {
                    let made = run.plain(option.as_ref())?;
                    if again {
                        run.boundary = node::in_order(std::mem::take(&mut run.boundary))?;
                    }
                    left = left.map(|left| left.saturating_sub(made));
                    continue;
                }
                // So many nodes would tell. What is left is one piece.
                Piece::Plain { stage, .. } => (stage, whole.from_piece(stage)),
                Piece::Planned { first, schedule } => (first, Some(schedule)),
                _ => continue,
            };
            let Some(schedule) = schedule.filter(|_| first.index() == run.done) else { break };
            // Places are for the first piece alone.
            run.planned(match job.take() {
                Some(job) => Job { schedule, ..job },
                None => Job::without_places(schedule),
            })?;
        }
        if run.stages.len() > 0 {
            let (done, left) = (run.done, run.stages.len());
            return Err(Error::Run {
                reason: format!("{done} stages ran, and {left} are in no piece; this is a bug in rekindle"),
            });
        }
        run.device.seed(seeds::next());
        match run.closes && !nested {
            // Nothing runs again: whatever of the region goes back first may seed what follows.
            true => Ok(node::reseed_after_backward(run.boundary, &run.device)),
            false => Ok(run.boundary),
        }
    }

    fn pieces(&self, schedule: &Schedule, input: &Parts) -> Result<Vec<Piece>, Error> {
        if self.told {
            return Ok(schedule.pieces(|_, _| false));
        }
        let ids = node::parameter_nodes(&self.stages, &self.parameters, input)?;
        // Where something is wrong with a stage, its node says what.
        let fits = |index: usize, option: Option<&Name>| {
            let keeping = Keeping::of(option, self.strategy);
            let can_be_kept =
                |keeping: Keeping| self.stages[index].can_be_kept(keeping.strategy, self.strategy);
            ids[index].is_some() && keeping.is_some_and(can_be_kept)
        };
        let without = |shared: &HashSet<_>| {
            schedule.pieces(|stage, option| {
                let index = stage.index();
                let shares = ids[index].iter().flatten().any(|id| shared.contains(id));
                !shares && fits(index, option)
            })
        };
        // What several stages use is added up in Burn's order only where all of them, or none, are on the user's graph.
        let (mut seen, mut shared) = (HashSet::new(), HashSet::new());
        for of_stage in ids.iter().flatten() {
            let of_stage: HashSet<_> = of_stage.iter().copied().collect();
            shared.extend(of_stage.into_iter().filter(|id| !seen.insert(*id)));
        }
        let all = without(&HashSet::new());
        let is_plain = all.iter().all(|piece| matches!(piece, Piece::Plain { .. }));
        Ok(if is_plain || shared.is_empty() { all } else { without(&shared) })
    }
}

/// A region while its forward half runs.
struct Running {
    stages: std::vec::IntoIter<Box<dyn AnyStage>>,
    parameters: std::vec::IntoIter<Parameters>,
    draws: Draws,
    device: Device,
    checks: Checks,
    strategy: TapeStrategy,
    /// How many stages have run.
    done: usize,
    /// Nothing of the region is a node yet: the first that is will be the last to go back.
    closes: bool,
    boundary: Parts,
}

impl Running {
    /// Runs the next stage on the user's graph. Gives how many nodes that made.
    fn plain(&mut self, option: Option<&Name>) -> Result<u64, Error> {
        let (Some(stage), Some(_)) = (self.stages.next(), self.parameters.next()) else { return Ok(0) };
        let keeping = Keeping::of(option, self.strategy).unwrap_or(Keeping::under(self.strategy));
        let number = self.done + 1;
        let mut draws = self.draws.take(1);
        let device = &self.device;
        let mut call = |mode: Mode, keeping: Keeping, input: Parts| {
            // Whoever is around reads what it makes.
            let run = || tail::run(false, || stage.run(mode, keeping.strategy, input)).0;
            let run = || again::run(keeping.again, run).0;
            draws.run(device, 0, run).map(|ran| ran.output)
        };
        if stage.is_due() {
            // Here its gradient would not be lost; under the next plan it would.
            let input = self.boundary.detached();
            let probed = node::leaving_nodes(|| call(Mode::Probe, Keeping::under(self.strategy), input))?;
            if probed.is_tracked() {
                return Err(Error::TrackedCapture { stage: number, name: stage.name().to_owned() });
            }
            drop(probed);
            // The first step looks at every stage, and what that leaves would add up over all of them.
            node::sweep_when(64);
        }
        stage.count_run();
        let tape = kept::tape_of(stage.as_ref(), &self.boundary, keeping);
        let before = node::nodes_made();
        let input = std::mem::take(&mut self.boundary);
        self.boundary = call(Mode::Kept, keeping, input)?;
        self.boundary.set_strategy(self.strategy);
        if keeping.strategy != self.strategy {
            self.boundary = node::anchored(std::mem::take(&mut self.boundary))?;
        }
        self.draws.go_on_from(draws.stopped());
        self.done = number;
        kept::note(|| vec![KeptRow::tape(stage.name(), number, tape)]);
        Ok(node::nodes_made().saturating_sub(before))
    }

    /// Runs the next stages as a node of the user's graph.
    fn planned(&mut self, job: Job) -> Result<(), Error> {
        let length = job.schedule.stages();
        let parameters: Vec<Parameters> = self.parameters.by_ref().take(length).collect();
        let stages: Vec<_> = self.stages.by_ref().take(length).collect();
        let mut draws = self.draws.take(length);
        let input = std::mem::take(&mut self.boundary);
        let is_trained =
            input.is_tracked() || parameters.iter().any(|parameters| !parameters.tracked.is_empty());
        if is_trained {
            let setup = Setup {
                stages,
                parameter_ids: parameters.iter().map(|parameters| parameters.ids.clone()).collect(),
                parameters: parameters.into_iter().map(|parameters| parameters.tracked).collect(),
                input,
                device: self.device.clone(),
                draws,
                first: self.done,
                checks: self.checks,
                closes: self.closes,
            };
            let made = node::run(setup, job)?;
            self.closes &= !made.output.is_tracked();
            self.boundary = made.output;
            self.draws.go_on_from(made.stopped);
        } else {
            // There is nothing to go back to.
            self.boundary = input;
            for (index, stage) in stages.into_iter().enumerate() {
                let input = std::mem::take(&mut self.boundary);
                let run = || stage.run(Mode::Kept, self.strategy, input);
                self.boundary = draws.run(&self.device, index, run)?.output;
            }
            self.draws.go_on_from(draws.stopped());
        }
        self.done += length;
        Ok(())
    }
}
