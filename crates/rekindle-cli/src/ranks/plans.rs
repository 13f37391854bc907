//! What each rank runs: planned by the first, told to all.

use std::ops::Range;
use std::time::Duration;

use rekindle::{Bytes, Error, Places, Plan, Planned, Profile, Region, Staged};
use rekindle_dist::{Collective, agree_on_plan};
use rekindle_models::Trainable;
use rekindle_plan::Nanos;
use serde::{Deserialize, Serialize};

use super::beside::Beside;
use super::grid::Grid;
use super::together::{from_first, together};
use crate::amount::Target;
use crate::arguments::TrainArguments;
use crate::cut::{Cut, Cutting};
use crate::failure::Failure;
use crate::pipeline::{plans, simulated};
use crate::planning::{self, Knowledge, Known, Planning};
use crate::size::Size;
use crate::strategy::{Ready, Strategy};
use crate::train::asked_for_nothing;

/// How a rank runs its stages.
pub(super) enum Way {
    /// All of them, as one process would.
    All(Ready),
    /// Some of them, in a pipeline.
    Some(Box<Section>),
}

/// A rank's part of a pipeline.
pub(super) struct Section {
    pub(super) stages: Range<usize>,
    profile: Profile,
    plan: Plan,
    pub(super) in_flight: usize,
    pub(super) predicted: Bytes,
    pub(super) budget: Option<Bytes>,
    /// Made when the first boundary is there: the plan is for boundaries of its shape.
    planned: Option<Planned>,
}

impl Section {
    /// The region of this section, under its plan.
    pub(super) fn under_plan(
        &mut self,
        region: Region<rekindle::Carried, rekindle::Carried>,
        input: &rekindle::Carried,
    ) -> Result<Region<rekindle::Carried, rekindle::Carried>, Error> {
        let planned = match &self.planned {
            Some(planned) => planned,
            None => {
                let description = region.describe(input);
                let planned = Planned::new(description, self.profile.clone(), self.plan.clone(), 0.0)?;
                self.planned.insert(planned)
            }
        };
        Ok(region.under(planned))
    }
}

/// A rank's part, as it is told.
#[derive(Serialize, Deserialize)]
struct Told {
    start: usize,
    end: usize,
    in_flight: usize,
    predicted: Bytes,
    budget: Option<Bytes>,
    profile: String,
    plan: String,
}

/// What the simulator says of the whole pipeline.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Foretold {
    pub(super) step_ns: Nanos,
    /// The part of their time that ranks wait.
    pub(super) waiting: f64,
}

#[derive(Serialize, Deserialize)]
struct Everything {
    ranks: Vec<Told>,
    foretold: Foretold,
}

/// What was decided.
pub(super) struct Decided {
    pub(super) way: Way,
    pub(super) foretold: Option<Foretold>,
}

impl Decided {
    /// How long a step of so many micro-batches is to take, where a plan says so.
    pub(super) fn step_time(&self, micro_batches: usize) -> Option<Duration> {
        let nanos = match (&self.way, self.foretold) {
            (_, Some(foretold)) => foretold.step_ns.get(),
            (Way::All(Ready::Planned(planned, _)), None) => {
                planned.plan().predicted.step_ns.get().saturating_mul(micro_batches as u64)
            }
            (Way::All(_) | Way::Some(_), None) => return None,
        };
        Some(Duration::from_nanos(nanos))
    }
}

/// Has the first rank measure and plan, and tells all what to run. The others wait: two that measure at once slow each other down.
pub(super) fn decide<M: Trainable>(
    world: &dyn Collective,
    grid: &Grid,
    (strategy, arguments, size): (&Strategy, &TrainArguments, &Size),
    (model, beside): (&M, Beside),
    batch: &M::Batch,
    places: &Places,
) -> Result<Decided, Failure> {
    if grid.shape.stages > 1 {
        return in_a_pipeline(world, grid, (strategy, arguments, size), model, batch);
    }
    let cut = together(world, size.cutting(arguments.cut))?;
    let (cut, known) = match grid.shape.peers {
        1 => (cut, Knowledge::default()),
        _ => measured_together(world, cut, strategy, model, batch)?,
    };
    let plan = || {
        let planning = Planning {
            margin: arguments.margin,
            plain: None,
            held: beside.held(),
            // No model whose loss is of a whole batch goes over ranks.
            alone: Bytes::ZERO,
            cache: None,
            places,
            flag: "--budget ",
        };
        let ready = |strategy| planning::ready(strategy, model, cut, batch, &mut known.clone(), planning);
        let ready = match ready(strategy) {
            // Nobody asked for a quarter: a model that is too small for it takes what it needs.
            Err(failure) if asked_for_nothing(arguments) && failure.smallest_budget().is_some() => {
                ready(&Strategy::Optimal(Target::Smallest))?
            }
            ready => ready?,
        };
        Ok(match &ready {
            Ready::Planned(planned, cut) => {
                let cut = if *cut == Cut::Blocks { "b" } else { "p" };
                format!("{cut}{}", planned.to_json())
            }
            Ready::Plain | Ready::Balanced | Ready::Rule(_) => String::new(),
        }
        .into_bytes())
    };
    let told = match grid.shape.peers {
        1 => from_first(world, plan)?,
        // All plan, from what the first has measured, because places are tried by all at once; what the first has planned counts.
        _ => {
            let own = together(world, plan())?;
            world.broadcast(0, own)?
        }
    };
    let told = String::from_utf8_lossy(&told);
    let ready = match (told.split_at_checked(1), strategy) {
        (Some((cut, planned)), _) => {
            let cut = if cut == "b" { Cut::Blocks } else { Cut::Parts };
            let mut planned = Planned::from_json(planned)?;
            if grid.shape.peers == 1 {
                warm_up(world, cut, model, batch)?;
            } else {
                // Parts of one model have parameters of their own.
                let (region, input) = cut.of(model).stages(batch);
                let (profile, plan) = (planned.profile().clone(), planned.plan().clone());
                planned = Planned::new(region.describe(&input), profile, plan, planned.noise())?;
                agree_on_plan(grid.peers.as_ref(), planned.plan())?;
            }
            Ready::Planned(planned.with_places(places.clone()), cut)
        }
        (None, Strategy::Rule(rule)) => Ready::Rule(*rule),
        (None, Strategy::Balanced) => Ready::Balanced,
        (None, _) => Ready::Plain,
    };
    Ok(Decided { way: Way::All(ready), foretold: None })
}

/// Runs every stage once on the ranks that have measured none. What the first run of an operation makes for good, such as scratch
/// memory, is then there before the first step, which has to keep the budget like any other.
fn warm_up<M: Trainable>(
    world: &dyn Collective,
    cut: Cut,
    model: &M,
    batch: &M::Batch,
) -> Result<(), Failure> {
    if world.rank() == 0 {
        return Ok(());
    }
    let once = rekindle::Measuring { runs: 1, options: false, ..rekindle::Measuring::default() };
    rekindle::measure(&cut.of(model), batch, once, &mut |_, _| {})?;
    Ok(())
}

/// Measures the stages of a model that ranks have parts of: all of them at once, because every stage talks, and what one waits for
/// another is part of its time. What the first has found counts.
fn measured_together<M: Trainable>(
    world: &dyn Collective,
    cut: Cutting,
    strategy: &Strategy,
    model: &M,
    batch: &M::Batch,
) -> Result<(Cutting, Knowledge), Failure> {
    // Which cut is the better one each rank would answer for itself.
    let (cutting, cut) = match (cut, strategy) {
        (Cutting::Parts, _) | (Cutting::Auto, Strategy::Policy(_) | Strategy::Slots(..)) => {
            (Cutting::Parts, Cut::Parts)
        }
        (Cutting::Blocks | Cutting::Auto, _) => (Cutting::Blocks, Cut::Blocks),
    };
    let mut known = Knowledge::default();
    if matches!(strategy, Strategy::Optimal(_) | Strategy::Policy(_) | Strategy::Slots(..)) {
        *known.of(cut) = Some(measure_together(world, cut, model, batch)?);
    }
    Ok((cutting, known))
}

fn measure_together<M: Trainable>(
    world: &dyn Collective,
    cut: Cut,
    model: &M,
    batch: &M::Batch,
) -> Result<Known, Failure> {
    // Not until it is steady: all of them must run each stage as often.
    let own = together(world, planning::measure(cut.of(model), batch, rekindle::Measuring::default()))?;
    let first = world.broadcast(0, own.profile.to_json().into_bytes())?;
    let profile = Profile::from_json(&String::from_utf8_lossy(&first)).map_err(|error| damaged(&error))?;
    Ok(Known { profile, ..own })
}

/// What the first rank sent is not what it sent.
fn damaged(error: &dyn std::fmt::Display) -> Failure {
    Failure::failed(
        anyhow::anyhow!("what rank 0 sent cannot be read: {error}"),
        "use the same build on all ranks",
    )
}

fn in_a_pipeline<M: Trainable>(
    world: &dyn Collective,
    grid: &Grid,
    (strategy, arguments, size): (&Strategy, &TrainArguments, &Size),
    model: &M,
    batch: &M::Batch,
) -> Result<Decided, Failure> {
    let measured = match grid.shape.peers {
        1 => None,
        _ => Some(measure_together(world, Cut::Blocks, model, batch)?),
    };
    let told = from_first(world, || {
        let known = match measured {
            Some(known) => known,
            None => planning::measure(Cut::Blocks.of(model), batch, rekindle::Measuring::steady())?,
        };
        let (stages, micro_batches) = (grid.shape.stages, size.micro_batches);
        // Micro-batches in flight have nodes each: about as many as all stages of one.
        let left_free = (arguments.margin.0, rekindle::bookkeeping(known.profile.stages().len()));
        let (plans, budget) = plans(&known.profile, stages, micro_batches, strategy, left_free)?;
        let simulated = simulated(&plans, micro_batches)?;
        let ranks = plans.iter().map(|rank| Told {
            start: rank.stages.start,
            end: rank.stages.end,
            in_flight: rank.in_flight,
            predicted: rank.peak_bytes,
            budget,
            profile: rank.profile.to_json(),
            plan: rank.plan.to_json(),
        });
        let foretold = Foretold { step_ns: simulated.step, waiting: simulated.bubble };
        let everything = Everything { ranks: ranks.collect(), foretold };
        Ok(serde_json::to_vec(&everything).unwrap_or_default())
    })?;
    let mut all: Everything = serde_json::from_slice(&told).map_err(|error| damaged(&error))?;
    if all.ranks.len() != grid.shape.stages {
        return Err(damaged(&format!("it is for {} ranks", all.ranks.len())));
    }
    if grid.shape.peers == 1 {
        warm_up(world, Cut::Blocks, model, batch)?;
    }
    let own = all.ranks.swap_remove(grid.stage);
    let section = Section {
        stages: own.start..own.end,
        profile: Profile::from_json(&own.profile).map_err(|error| damaged(&error))?,
        plan: Plan::from_json(&own.plan).map_err(|error| damaged(&error))?,
        in_flight: own.in_flight,
        predicted: own.predicted,
        budget: own.budget,
        planned: None,
    };
    agree_on_plan(grid.peers.as_ref(), &section.plan)?;
    Ok(Decided { way: Way::Some(Box::new(section)), foretold: Some(all.foretold) })
}
