//! What each strategy takes: plans of a counted profile, judged like any other.

use std::time::Duration;

use rekindle_plan::solvers::optimal;
use rekindle_plan::{Action, Bytes, Plan, Policy, Profile, Request, Rule};
use serde::Serialize;

use crate::transformer::Ends;
use crate::{Architecture, Asked, EstimateError, Setting, State, Transformer};

/// A strategy and what it takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its name: `none`, `selective`, `full`, `every-K`, `optimal-N%`, `optimal-full`, `optimal-smallest`.
    pub strategy: String,
    /// What is kept between forward and backward.
    pub activations_bytes: Bytes,
    /// What comes to that at the worst moment.
    pub workspace_bytes: Bytes,
    /// Work beyond that of a step that keeps everything, as a part of it.
    pub overhead: f64,
}

/// What a rank of a pipeline takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rank {
    /// Which it is, from 0 on.
    pub rank: u64,
    /// How many layers it has.
    pub layers: u64,
    /// How many weights it has, before they are divided among ranks: with its layers the embedding on the first, the head on the last.
    pub parameters: u64,
    /// How many parts of a batch it holds at most.
    pub in_flight: u64,
    /// What it holds whatever the batch is.
    pub state: State,
    /// What every strategy takes on it.
    pub rows: Vec<Row>,
}

/// A step in stages, coarse and fine.
struct Step {
    blocks: Profile,
    parts: Option<Profile>,
    /// Parts of batches whose activations a rank holds at once.
    under_way: u64,
    /// Ranks that have a part each of a boundary that is kept.
    sharing: u64,
}

impl Step {
    /// On the rank that has most layers, which is the first: it waits longest for their gradients. With both ends of the model, so that no
    /// rank takes more.
    fn new(asked: &Asked, setting: &Setting) -> Result<Self, EstimateError> {
        Self::on(asked, setting, 0, Ends::BOTH)
    }

    /// On a rank of a pipeline.
    fn on(asked: &Asked, setting: &Setting, rank: u64, ends: Ends) -> Result<Self, EstimateError> {
        let architecture = match &asked.architecture {
            Architecture::Transformer(model) => {
                let layers = asked.parallel.layers(rank, model.layers);
                Architecture::Transformer(Transformer { layers, ..model.clone() })
            }
            other => other.clone(),
        };
        Ok(Self {
            blocks: architecture.blocks_on(setting, ends)?,
            parts: architecture.parts_on(setting, ends)?,
            under_way: asked.parallel.in_flight(rank),
            sharing: asked.parallel.parts_of_boundaries(setting),
        })
    }

    fn finest(&self) -> &Profile {
        self.parts.as_ref().unwrap_or(&self.blocks)
    }

    fn row(&self, strategy: &str, profile: &Profile, plan: Plan) -> Option<Row> {
        let (schedule, simulation) = plan.judge(profile).ok()?;
        let turn = schedule.forward_half().len().checked_sub(1)?;
        let counted = simulation.moments.get(turn)?.after;
        let kept = counted.saturating_sub(counted_twice(profile, schedule.forward_half()));
        let elsewhere = elsewhere(profile, schedule.forward_half(), self.sharing);
        let kept = kept.saturating_sub(elsewhere.iter().copied().sum());
        // The one that is read is whole, and so is the next, which is put together meanwhile.
        let whole = elsewhere.iter().copied().max().unwrap_or_default().get().saturating_mul(2);
        let workspace = simulation.peak_bytes.saturating_sub(counted);
        Some(Row {
            strategy: strategy.to_owned(),
            activations_bytes: Bytes::new(kept.get().saturating_mul(self.under_way)),
            workspace_bytes: Bytes::new(workspace.get().saturating_add(whole)),
            overhead: simulation.step_ns.ratio(self.blocks.lower_bound()) - 1.0,
        })
    }

    /// What a strategy takes; `None` where the model has no such thing, or no plan.
    fn count(&self, strategy: &str) -> Option<Row> {
        let by_rule = |rule: Rule| {
            let plan = Plan::by_rule(&self.blocks, rule, None).ok()?;
            self.row(strategy, &self.blocks, plan)
        };
        let within = |budget: Bytes| {
            let request = Request { time_limit: Duration::from_secs(20), ..Request::new(budget) };
            self.row(strategy, self.finest(), optimal::solve(self.finest(), &request).ok()?)
        };
        match strategy {
            "none" => by_rule(Rule::StoreAll),
            "full" => by_rule(Rule::EVERY_ONE),
            "selective" => {
                let parts = self.parts.as_ref()?;
                self.row(strategy, parts, Policy::named("selective").ok()?.plan(parts).ok()?)
            }
            "optimal-full" => {
                let full = Plan::by_rule(&self.blocks, Rule::EVERY_ONE, None).ok()?;
                within(full.predicted.peak_bytes)
            }
            "optimal-smallest" => within(optimal::smallest_budget(self.finest()).ok()?),
            other => match other.strip_prefix("optimal-").and_then(|part| part.strip_suffix('%')) {
                Some(percent) => {
                    let percent: u64 = percent.parse().ok()?;
                    let all = Plan::by_rule(&self.blocks, Rule::StoreAll, None).ok()?.predicted.peak_bytes;
                    within(Bytes::new((u128::from(all.get()) * u128::from(percent) / 100) as u64))
                }
                None => by_rule(other.parse().ok()?),
            },
        }
    }
}

/// What a forward pass keeps that the simulator counts twice, to be on the safe side: a residual that a stage without a tape
/// passes on, where the tapes on both of its sides hold it.
fn counted_twice(profile: &Profile, forward: &[Action]) -> Bytes {
    let mut taped = vec![false; profile.stages().len() + 2];
    for action in forward {
        if let Action::Tape { stage, .. } = action {
            taped[stage.number() as usize] = true;
        }
    }
    let between = taped.windows(3).map(|around| around[0] && !around[1] && around[2]);
    profile
        .stages()
        .iter()
        .zip(between)
        .filter(|(_, between)| *between)
        .map(|(stage, _)| stage.passed_bytes)
        .sum()
}

/// What other ranks have of each boundary that a forward pass keeps for a stage that is run again. Numbers of words are not shared out.
fn elsewhere(profile: &Profile, forward: &[Action], sharing: u64) -> Vec<Bytes> {
    let mut kept = vec![false; profile.stages().len() + 1];
    for action in forward {
        match action {
            Action::Keep { boundary } => kept[boundary.number() as usize] = true,
            Action::Drop { boundary, .. } => kept[boundary.number() as usize] = false,
            // A tape holds what it reads.
            Action::Tape { stage, .. } => kept[stage.input().number() as usize] = false,
            _ => {}
        }
    }
    let boundaries = profile.stages().iter().zip(kept.into_iter().skip(1)).filter(|(_, kept)| *kept);
    let elsewhere = boundaries.map(|(stage, _)| {
        let bytes = stage.output_bytes.get();
        Bytes::new(bytes - bytes.div_ceil(sharing.max(1)))
    });
    elsewhere.collect()
}

/// What every strategy takes on each rank of a pipeline.
pub(crate) fn ranks(asked: &Asked) -> Result<Vec<Rank>, EstimateError> {
    let (parallel, all) = (&asked.parallel, asked.architecture.layers());
    // What one part of a batch takes is the same on ranks with as many layers, and the same ends.
    let mut known: Option<((u64, Ends), Vec<Row>)> = None;
    let ranks = (0..parallel.pipeline.max(1)).map(|rank| {
        let (layers, in_flight) = (parallel.layers(rank, all), parallel.in_flight(rank));
        let ends = Ends::of(rank, parallel.pipeline);
        let of_one = match known.take_if(|(of, _)| *of == (layers, ends)) {
            Some((_, rows)) => rows,
            None => of_step(asked, &Step { under_way: 1, ..Step::on(asked, &asked.setting, rank, ends)? }),
        };
        let rows = of_one.iter().map(|row| Row {
            activations_bytes: Bytes::new(row.activations_bytes.get().saturating_mul(in_flight)),
            ..row.clone()
        });
        let rows = rows.collect();
        known = Some(((layers, ends), of_one));
        let parameters = asked.architecture.parameters_on(rank, parallel);
        let state = State::on(&asked.architecture, &asked.setting, parallel, rank);
        Ok(Rank { rank, layers, parameters, in_flight, state, rows })
    });
    ranks.collect()
}

/// What every strategy takes.
pub(crate) fn rows(asked: &Asked, setting: &Setting) -> Result<Vec<Row>, EstimateError> {
    Ok(of_step(asked, &Step::new(asked, setting)?))
}

fn of_step(asked: &Asked, step: &Step) -> Vec<Row> {
    let root = (step.blocks.stages().len() as f64).sqrt().round() as u64;
    let every = format!("every-{}", asked.every.unwrap_or(root).max(1));
    let strategies = [
        "none",
        "selective",
        "full",
        &every,
        "optimal-50%",
        "optimal-25%",
        "optimal-full",
        "optimal-smallest",
    ];
    strategies.iter().filter_map(|strategy| step.count(strategy)).collect()
}

/// What one strategy takes; `None` where there is no such plan.
pub(crate) fn one(asked: &Asked, setting: &Setting, strategy: &str) -> Result<Option<Row>, EstimateError> {
    Ok(Step::new(asked, setting)?.count(strategy))
}

/// What one strategy takes beside the state. A part of what keeping everything takes may be too little for any plan: then
/// it is the least there is.
pub(crate) fn bytes(
    asked: &Asked,
    setting: &Setting,
    strategy: &str,
) -> Result<Option<Bytes>, EstimateError> {
    let step = Step::new(asked, setting)?;
    let optimal = strategy.starts_with("optimal-");
    // The smallest there is needs no plan to be known.
    let row = match strategy {
        "optimal-smallest" if step.under_way == 1 && step.sharing == 1 => None,
        _ => step.count(strategy),
    };
    let taken = row.map(|row| [row.activations_bytes, row.workspace_bytes].into_iter().sum());
    Ok(taken.or_else(|| optimal::smallest_budget(step.finest()).ok().filter(|_| optimal)))
}
