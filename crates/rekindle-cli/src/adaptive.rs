//! `rekindle train --adaptive`: a plan for each step, as memory comes and goes.

use rekindle::{Budget, Bytes, Places, Planned, Planner, memory};
use rekindle_models::Trainable;
use rekindle_run::governor::{BackOff, Governing, Governor, Ladder, Rung, SystemMemory};
use serde::Serialize;

use crate::amount::{Fraction, Target};
use crate::cut::{Cut, Cutting};
use crate::failure::Failure;
use crate::measure::Beside;
use crate::planning::refused;
use crate::report;
use crate::strategy::Ready;

/// How many plans are ready to be run.
const RUNGS: usize = 12;
/// Where the system's files are, for containers that have them elsewhere, and for tests.
const ROOT: &str = "REKINDLE_MEMORY_ROOT";

/// Steps in a row under one budget.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Governed {
    pub(crate) from_step: u32,
    pub(crate) to_step: u32,
    pub(crate) budget_bytes: Bytes,
    /// The highest peak of these steps.
    pub(crate) most_bytes: Bytes,
}

/// Plans for many budgets, and who chooses among them.
pub(crate) struct Adaptive {
    governor: Governor<(Planned, Cut)>,
    gauge: SystemMemory,
    /// The highest peak of the steps since memory was last handed back.
    most: Bytes,
    /// How the steps fared.
    pub(crate) governed: Vec<Governed>,
    /// How often the plan changed since the first step.
    pub(crate) changes: u32,
}

impl Adaptive {
    /// Measures the model once, and makes all plans.
    pub(crate) fn start<M: Trainable>(
        model: &M,
        cutting: Cutting,
        (part, beside): (&M::Batch, Beside),
        margin: Fraction,
        places: &Places,
        most: Option<Target>,
    ) -> Result<Self, Failure> {
        let bar = report::spinner("measuring the stages");
        let mut rungs: Vec<Rung<(Planned, Cut)>> = Vec::new();
        for cut in cutting.cuts().iter().copied() {
            let planner = Planner::new(Budget::smallest()).margin(margin.0).places(places.clone());
            let planner = planner.progress(|stage, name| {
                bar.set_message(format!("measuring stage {stage} ({name})"));
            });
            let ladder = planner.ladder(&cut.of(model), part, RUNGS).map_err(|error| {
                bar.finish_and_clear();
                refused(error)
            })?;
            rungs.extend(ladder.rungs().iter().map(|rung| {
                let budget = beside.with(rung.budget);
                Rung { budget, step_time: rung.step_time, plan: (rung.plan.clone(), cut) }
            }));
        }
        bar.finish_and_clear();
        let limit = match most.zip(rungs.first()) {
            None => None,
            Some((most, rung)) => {
                let profile = rung.plan.0.profile();
                let budget = most.budget(None).and_then(|budget| budget.resolve(profile, margin.0));
                Some(budget.map_err(refused)?)
            }
        };
        let ladder = Ladder::best_of(rungs)
            .map_err(|error| Failure::failed(error, "give the model a stage at least"))?;
        let governor =
            Governor::new(ladder, Governing { limit, ..Governing::default() }).map_err(|error| {
                let hint = format!("give --budget {} or more", error.smallest.get());
                Failure::request(error, hint)
            })?;
        let gauge = std::env::var_os(ROOT).map_or_else(SystemMemory::new, SystemMemory::at);
        Ok(Self { governor, gauge, most: Bytes::ZERO, governed: Vec::new(), changes: 0 })
    }

    /// The plan for the next step, and what to tell about it.
    ///
    /// Nothing is run that would not fit: when not even the tightest plan does, it waits for a minute, then gives up.
    pub(crate) fn next(&mut self) -> Result<(Ready, Option<String>), Failure> {
        // What earlier steps freed and the allocator keeps, the next one takes again. What went back to the system is free there, and
        // no more than a step's peak is counted on: the rest may lie in pieces, or have been handed back.
        let held = memory::kept().unwrap_or_default().min(self.most);
        let decision =
            self.governor.next_waiting(&mut self.gauge, held, BackOff::default(), std::thread::sleep);
        if let Some(short) = decision.short {
            return Err(Failure::failed(
                anyhow::anyhow!(
                    "the tightest plan takes {}, but {} of memory can be used",
                    short.needed,
                    short.free
                ),
                "wait for memory to be free and go on with --resume, or make --batch or --sequence smaller",
            ));
        }
        let told = decision.change.as_ref().map(ToString::to_string);
        if let Some(change) = &decision.change
            && let Some(from) = change.from
        {
            self.changes += 1;
            if change.to.budget < from.budget {
                // What the larger plan took is of no use any more, and others are waiting for it.
                memory::give_back();
                self.most = Bytes::ZERO;
            }
        }
        let (planned, cut) = self.governor.rung(decision.rung).plan.clone();
        Ok((Ready::Planned(planned, cut), told))
    }

    /// A step was run, and this was its peak.
    pub(crate) fn ran(&mut self, step: u32, peak: Bytes) {
        self.most = self.most.max(peak);
        let budget = self.governor.current().map(|rung| self.governor.rung(rung).budget).unwrap_or_default();
        match self.governed.last_mut().filter(|last| last.budget_bytes == budget) {
            Some(last) => (last.to_step, last.most_bytes) = (step, last.most_bytes.max(peak)),
            None => self.governed.push(Governed {
                from_step: step,
                to_step: step,
                budget_bytes: budget,
                most_bytes: peak,
            }),
        }
    }
}
