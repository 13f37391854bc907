//! `rekindle plan`: from a profile and a budget to a plan.

use std::path::Path;
use std::time::Duration;

use rekindle_plan::solvers::Solver;
use rekindle_plan::{Bytes, Gap, Plan, PlanError, Policy, Profile, Request, Simulation, SolveError};

use crate::arguments::{Named, PlanArguments};
use crate::failure::Failure;
use crate::files::Model;
use crate::{files, graph, pipeline, planning, report};

/// Runs the command.
pub(crate) fn run(arguments: &PlanArguments) -> Result<(), Failure> {
    if let Named::List = arguments.solver {
        return list();
    }
    if let Some(path) = &arguments.output {
        files::check_writable(path)?;
    }
    let Some(path) = &arguments.profile else {
        let error = anyhow::anyhow!("no profile is given");
        return Err(Failure::request(error, "rekindle plan PROFILE --budget 2GiB"));
    };
    let profile = match files::model(path)? {
        Model::Graph(graph) => return graph::plan(arguments, &graph),
        Model::Chain(profile) => profile,
    };
    if let Some(ranks) = arguments.pipeline {
        return pipeline::run(arguments, &profile, ranks as usize);
    }
    if let Some(policy) = &arguments.policy {
        return under_policy(policy, &profile, arguments);
    }
    let Named::Solver(solver) = arguments.solver else {
        let error =
            anyhow::anyhow!("this solver plans graphs, but `{}` is a chain of stages", path.display());
        return Err(Failure::request(error, "`rekindle plan --solver` lists the solvers"));
    };
    if matches!(solver, Solver::Optimal | Solver::Eager | Solver::Rule(_)) && arguments.slots.is_some() {
        let error = anyhow::anyhow!("--slots is given, but `{solver}` counts no slots");
        return Err(Failure::request(
            error,
            "give --budget instead, or a solver that counts slots, such as revolve",
        ));
    }
    let mut request = request(arguments);
    if let Some(budget) = arguments.budget {
        request.budget_bytes = Some(budget.bytes(&profile).map_err(|error| refused(error.into(), 0.0))?);
    }
    let waiting = report::spinner(&format!("planning {} stages", profile.stages().len()));
    let plan = solver.solve(&profile, &request);
    waiting.finish_and_clear();
    let plan = plan.map_err(|error| match error {
        SolveError::BudgetTooSmall { smallest_bytes, .. } => {
            too_small(&error, smallest_bytes, solver, &profile, &request)
        }
        other => refused(other, request.margin),
    })?;
    finish(&profile, &plan, arguments.output.as_deref(), arguments.json)
}

/// Says what takes so much in the smallest plan, and what would lower it.
fn too_small(
    error: &SolveError,
    smallest: Bytes,
    solver: Solver,
    profile: &Profile,
    request: &Request,
) -> Failure {
    // It is only to be told what takes so much: not as long again.
    let time_limit = request.time_limit / 4;
    let least = Request { budget_bytes: Some(smallest), margin: 0.0, time_limit, ..request.clone() };
    let plan = solver.solve(profile, &least).ok();
    let set_by = plan.and_then(|plan| {
        let (_, simulation) = plan.judge(profile).ok()?;
        Some(report::set_by(profile, &plan, &simulation))
    });
    let why = match set_by {
        Some(stage) => format!(
            ", which {stage} needs. A smaller batch or shorter sequence, or cutting that stage in two, would lower all of it but gradients of parameters"
        ),
        None => ". A smaller batch or shorter sequence would lower it".to_owned(),
    };
    Failure::request(
        anyhow::anyhow!("{error}{why}"),
        format!("give --budget {} or more", with_margin(smallest, request.margin)),
    )
}

/// The plan that a policy says.
fn under_policy(policy: &Policy, profile: &Profile, arguments: &PlanArguments) -> Result<(), Failure> {
    let budget = arguments.budget.map(|budget| budget.bytes(profile)).transpose();
    let plan = match budget.map_err(|error| refused(error.into(), 0.0))? {
        Some(budget) => policy.plan_within(profile, budget),
        None => policy.plan(profile),
    };
    let plan = plan.map_err(|error| {
        let hint = planning::policy_hint(&error);
        Failure::request(error, hint)
    })?;
    for clause in policy.idle(profile).unwrap_or_default() {
        tell!("`{clause}` changes nothing");
    }
    finish(profile, &plan, arguments.output.as_deref(), arguments.json)
}

/// Writes and shows a plan.
pub(crate) fn finish(
    profile: &Profile,
    plan: &Plan,
    output: Option<&Path>,
    json: bool,
) -> Result<(), Failure> {
    let (_, simulation) = plan.judge(profile).map_err(|error| refused(error.into(), 0.0))?;
    if let Some(path) = output {
        files::write(path, &format!("{}\n", plan.to_json()))?;
        tell!("wrote {}", path.display());
    }
    match json {
        true => report::show(&plan.to_json()),
        false => show(profile, plan, &simulation),
    }
}

/// What exists.
fn list() -> Result<(), Failure> {
    let solvers = Solver::ALL.map(|(solver, line)| [solver.to_string(), line.to_owned()]);
    let rules = [
        ["store-all", "keep every tape: nothing runs twice"],
        ["full", "keep the input only: the least memory, the most forwards"],
        ["every-K", "keep every K-th boundary, such as every-4"],
        ["sqrt", "every-K with the square root of the number of stages"],
        ["min-cut", "for graphs: the least bytes kept between forward and backward, as torch.compile does"],
        ["knapsack", "for graphs: the least recomputation for a budget of kept bytes"],
    ];
    let rules = rules.map(|row| row.map(str::to_owned));
    report::show(&report::words(["solver", "finds"], solvers.into_iter().chain(rules)))
}

/// What was asked, but for the budget, which may be a part of what the model takes.
pub(crate) fn request(arguments: &PlanArguments) -> Request {
    Request {
        budget_bytes: None,
        slots: arguments.slots,
        margin: arguments.margin.0,
        gap: Gap::new(arguments.gap.0).unwrap_or(Gap::ONE_PERCENT),
        time_limit: Duration::from_secs(u64::from(arguments.time_limit)),
    }
}

/// The least budget that leaves `bytes` when the margin is taken off.
pub(crate) fn with_margin(bytes: Bytes, margin: f64) -> u64 {
    match margin > 0.0 {
        // A few bytes more than the product: it is rounded, and the margin is never too small.
        true => (bytes.get() as f64 * (1.0 + margin) * (1.0 + 1e-9)) as u64 + 2,
        false => bytes.get(),
    }
}

/// What to try when a solver has no plan.
pub(crate) fn refused(error: SolveError, margin: f64) -> Failure {
    let hint = match &error {
        SolveError::BudgetTooSmall { smallest_bytes, .. } => {
            format!("give --budget {} or more", with_margin(*smallest_bytes, margin))
        }
        SolveError::TooFewSlots { least, .. } => format!("give --slots {least} or more"),
        SolveError::NothingToMeet { .. } => "give --budget, such as --budget 2GiB".to_owned(),
        SolveError::Refused(PlanError::OverBudget { .. }) => {
            "give a larger --budget, or let `--solver optimal` find a plan for this one".to_owned()
        }
        SolveError::NoTier { .. } => "docs/formats.md describes the profile's tiers".to_owned(),
        SolveError::Refused(PlanError::Rule(_)) | SolveError::TooLong { .. } => {
            "give more room (--budget or --slots), or group stages into fewer".to_owned()
        }
        _ => "`rekindle plan --solver` lists the solvers".to_owned(),
    };
    Failure::request(error, hint)
}

fn show(profile: &Profile, plan: &Plan, simulation: &Simulation) -> Result<(), Failure> {
    let predicted = plan.predicted;
    let stages = profile.stages().len();
    let budget = plan.budget_bytes.map_or_else(|| "none".to_owned(), |budget| budget.to_string());
    let of_budget = plan.budget_bytes.map(|budget| report::percent_of(predicted.peak_bytes, budget));
    let of_budget = of_budget.map(|percent| format!(", {percent} of the budget")).unwrap_or_default();
    let over = predicted.step_ns.ratio(profile.lower_bound()) - 1.0;
    let action = plan.actions.get(simulation.peak_action).map(ToString::to_string).unwrap_or_default();
    let rows = [
        ["status", &plan.status.to_string()],
        ["budget", &budget],
        ["peak", &format!("{}{of_budget}", predicted.peak_bytes)],
        ["reached at", &format!("action {} (`{action}`)", simulation.peak_action)],
        ["step", &format!("{} ({} over store-all)", predicted.step_ns, report::signed_percent(over))],
        ["of it recomputing", &predicted.recompute_ns.to_string()],
        ["of it waiting for transfers", &simulation.wait_ns.to_string()],
        ["no such plan is faster than", &predicted.lower_bound_ns.to_string()],
        ["stage forwards", &format!("{} for {stages} stages", predicted.forwards)],
        ["actions", &plan.actions.len().to_string()],
    ];
    let rows = rows.map(|row| row.map(str::to_owned));
    let title = format!("`{}` for {}", plan.solver, profile.model());
    report::show(&report::table([&title, ""], rows))?;
    report::show_alive(simulation)
}
