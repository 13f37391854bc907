//! `rekindle simulate`: the judge, from a profile and a plan.

use rekindle_plan::{Bytes, Nanos, Plan, PlanError, Profile, Simulation};
use serde::Serialize;

use crate::arguments::SimulateArguments;
use crate::failure::Failure;
use crate::files::Model;
use crate::{files, graph, report};

/// What programs read of a judged plan: its figures, or why it is refused.
#[derive(Serialize)]
pub(crate) struct Judgement<F: Serialize> {
    legal: bool,
    solver: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(flatten)]
    figures: Option<F>,
}

impl<F: Serialize> Judgement<F> {
    /// A judgement by its outcome.
    pub(crate) fn new(solver: &str, outcome: Result<F, String>) -> Self {
        let legal = outcome.is_ok();
        let (figures, reason) = match outcome {
            Ok(figures) => (Some(figures), None),
            Err(reason) => (None, Some(reason)),
        };
        Self { legal, solver: solver.to_owned(), reason, figures }
    }
}

#[derive(Serialize)]
struct Figures {
    budget_bytes: Option<Bytes>,
    peak_bytes: Bytes,
    /// The action that reaches the peak first, from 0.
    peak_action: usize,
    peak_tensors: Vec<PeakTensor>,
    step_ns: Nanos,
    recompute_ns: Nanos,
    wait_ns: Nanos,
    lower_bound_ns: Nanos,
    forwards: u64,
    actions: usize,
    /// The peak while each action runs.
    peaks: Vec<Bytes>,
}

/// A tensor that is alive at the peak.
#[derive(Serialize)]
pub(crate) struct PeakTensor {
    what: String,
    bytes: Bytes,
}

/// What is alive at the peak, the largest first.
pub(crate) fn peak_tensors(simulation: &Simulation) -> Vec<PeakTensor> {
    let tensors = simulation.peak_tensors.iter();
    tensors.map(|live| PeakTensor { what: live.what.to_string(), bytes: live.bytes }).collect()
}

/// Runs the command.
pub(crate) fn run(arguments: &SimulateArguments) -> Result<(), Failure> {
    let profile = match files::model(&arguments.profile)? {
        Model::Graph(graph) => return graph::simulate(arguments, &graph),
        Model::Chain(profile) => profile,
    };
    let plan = files::plan(&arguments.plan)?;
    match plan.judge(&profile) {
        Ok((_, simulation)) if arguments.json => {
            report::show_json(&Judgement::new(&plan.solver, Ok(figures(&profile, &plan, &simulation))))
        }
        Ok((_, simulation)) => show(&profile, &plan, &simulation),
        Err(error) => {
            if arguments.json {
                report::show_json(&Judgement::<Figures>::new(&plan.solver, Err(error.to_string())))?;
            }
            Err(refused(error))
        }
    }
}

/// What to try when a plan is refused.
pub(crate) fn refused(error: PlanError) -> Failure {
    let hint = match &error {
        PlanError::OtherModel { .. } => "plan this profile anew: sizes, stages, options or device differ",
        PlanError::OverBudget { .. } => "plan with a larger budget, or with a solver that needs less",
        _ => "docs/formats.md describes what an action needs",
    };
    Failure::failed(error, hint)
}

fn figures(profile: &Profile, plan: &Plan, simulation: &Simulation) -> Figures {
    Figures {
        budget_bytes: plan.budget_bytes,
        peak_bytes: simulation.peak_bytes,
        peak_action: simulation.peak_action,
        peak_tensors: peak_tensors(simulation),
        step_ns: simulation.step_ns,
        recompute_ns: simulation.recompute_ns,
        wait_ns: simulation.wait_ns,
        lower_bound_ns: profile.lower_bound(),
        forwards: simulation.forwards,
        actions: plan.actions.len(),
        peaks: simulation.moments.iter().map(|moment| moment.peak).collect(),
    }
}

fn show(profile: &Profile, plan: &Plan, simulation: &Simulation) -> Result<(), Failure> {
    let stages = profile.stages().len();
    let at = simulation.peak_action;
    let action = plan.actions.get(at).map(ToString::to_string).unwrap_or_default();
    let budget = plan.budget_bytes.map_or_else(|| "none".to_owned(), |budget| budget.to_string());
    let rows = [
        ["status", &plan.status.to_string()],
        ["budget", &budget],
        ["peak", &format!("{} at action {at} (`{action}`)", simulation.peak_bytes)],
        ["step", &simulation.step_ns.to_string()],
        ["of it recomputing", &simulation.recompute_ns.to_string()],
        ["of it waiting for transfers", &simulation.wait_ns.to_string()],
        ["every stage once takes", &profile.lower_bound().to_string()],
        ["stage forwards", &format!("{} for {stages} stages", simulation.forwards)],
    ];
    let rows = rows.map(|row| row.map(str::to_owned));
    let title = format!("`{}` for {}: legal", plan.solver, profile.model());
    report::show(&report::table([&title, ""], rows))?;
    report::show_alive(simulation)
}
