//! `rekindle plan` and `rekindle simulate` for graphs.

use std::ops::ControlFlow;

use rekindle_plan::graph::{
    self, Graph, GraphPlan, GraphPlanError, GraphSimulation, GraphSolveError, knapsack_selection, min_cut,
};
use rekindle_plan::solvers::Solver;
use rekindle_plan::{Bytes, Nanos, Request, Rule};
use serde::Serialize;

use crate::amount::Budget;
use crate::arguments::{Named, PlanArguments, SimulateArguments};
use crate::failure::Failure;
use crate::simulate::Judgement;
use crate::{files, plan, report};

/// Plans a graph.
pub(crate) fn plan(arguments: &PlanArguments, graph: &Graph) -> Result<(), Failure> {
    if arguments.slots.is_some() {
        let error = anyhow::anyhow!("--slots is given for a graph, which has no boundaries to count");
        return Err(Failure::request(error, "give --budget instead"));
    }
    let mut request = plan::request(arguments);
    request.budget_bytes = match arguments.budget {
        Some(Budget::Bytes(bytes)) => Some(bytes),
        Some(Budget::Part(part)) => {
            let all = GraphPlan::store_all(graph, None).map_err(refused)?.predicted.peak_bytes;
            Some(Bytes::new((all.get() as f64 * part.0) as u64))
        }
        None => None,
    };
    let plan = solve(arguments.solver, graph, &request)?;
    let simulation = plan.judge(graph).map_err(refused)?;
    if let Some(path) = &arguments.output {
        files::write(path, &format!("{}\n", plan.to_json()))?;
        tell!("wrote {}", path.display());
    }
    match arguments.json {
        true => report::show(&plan.to_json()),
        false => show(graph, &plan, &simulation),
    }
}

fn solve(solver: Named, graph: &Graph, request: &Request) -> Result<GraphPlan, Failure> {
    let usable = request.budget_bytes.map(|_| request.usable_bytes());
    let within = |plan: Result<GraphPlan, GraphPlanError>| {
        let mut plan = plan.map_err(|error| match error {
            // What was asked for cannot be; a plan in a file that says so is wrong.
            GraphPlanError::OverBudget { .. } => Failure::request(error, OVER_BUDGET),
            other => refused(other),
        })?;
        plan.budget_bytes = request.budget_bytes;
        Ok(plan)
    };
    match solver {
        Named::Solver(Solver::Optimal) | Named::Graph => {
            let waiting = report::spinner(&format!("planning {} nodes", graph.nodes().len()));
            let plan = graph::solve_watched(graph, request, &mut |progress| {
                if let Some(gap) = progress.gap() {
                    waiting.set_message(format!(
                        "planning {} nodes, gap {:.2}%",
                        graph.nodes().len(),
                        gap * 100.0
                    ));
                }
                ControlFlow::Continue(())
            });
            waiting.finish_and_clear();
            plan.map_err(|error| unsolved(error, request.margin))
        }
        Named::Solver(Solver::Rule(Rule::StoreAll)) => within(GraphPlan::store_all(graph, usable)),
        Named::MinCut => within(min_cut(graph).plan(graph, usable)),
        Named::Knapsack => {
            let Some(budget) = usable else {
                let error = anyhow::anyhow!("`knapsack` needs a budget");
                return Err(Failure::request(error, "give --budget, such as --budget 2GiB"));
            };
            // The budget is for what stays between forward and backward, as in `torch.compile`; the peak is what it is.
            let selection = knapsack_selection(graph, budget).map_err(|error| match error {
                GraphSolveError::BudgetTooSmall { smallest_bytes, .. } => Failure::request(
                    anyhow::anyhow!(
                        "`knapsack` cannot keep less than {smallest_bytes} between forward and backward, but {budget} is given"
                    ),
                    format!("give --budget {} or more", plan::with_margin(smallest_bytes, request.margin)),
                ),
                other => unsolved(other, request.margin),
            })?;
            let plan = selection.plan(graph, None).map_err(refused)?;
            let peak = plan.predicted.peak_bytes;
            if peak > budget {
                tell!(
                    "`knapsack` plans what stays between forward and backward within {budget}: its peak, {peak}, is over it"
                );
            }
            Ok(plan)
        }
        Named::Solver(solver) => {
            let error = anyhow::anyhow!("`{solver}` plans chains, but this is a graph (rekindle.graph/1)");
            Err(Failure::request(error, "--solver optimal, store-all, min-cut or knapsack plan graphs"))
        }
        // Shown before a graph is read.
        Named::List => {
            Err(Failure::request(anyhow::anyhow!("no solver is named"), "rekindle plan GRAPH --budget 2GiB"))
        }
    }
}

const OVER_BUDGET: &str = "give a larger --budget, or let `--solver optimal` find a plan for this one";

fn unsolved(error: GraphSolveError, margin: f64) -> Failure {
    let hint = match &error {
        GraphSolveError::BudgetTooSmall { smallest_bytes, .. } => {
            format!("give --budget {} or more", plan::with_margin(*smallest_bytes, margin))
        }
        _ => "docs/solvers/graph.md says what graphs can be planned".to_owned(),
    };
    Failure::request(error, hint)
}

fn refused(error: GraphPlanError) -> Failure {
    let hint = match &error {
        GraphPlanError::OtherGraph { .. } => "plan this graph anew: nodes, sizes, edges or device differ",
        GraphPlanError::OverBudget { .. } => OVER_BUDGET,
        _ => "docs/formats.md describes plans of graphs (rekindle.graph-plan/1)",
    };
    Failure::failed(error, hint)
}

#[derive(Serialize)]
struct Figures {
    budget_bytes: Option<Bytes>,
    peak_bytes: Bytes,
    peak_action: Option<usize>,
    step_ns: Nanos,
    recompute_ns: Nanos,
    lower_bound_ns: Nanos,
    computes: u64,
    actions: usize,
    peaks: Vec<Bytes>,
}

/// Judges a plan of a graph.
pub(crate) fn simulate(arguments: &SimulateArguments, graph: &Graph) -> Result<(), Failure> {
    let plan = files::graph_plan(&arguments.plan)?;
    match plan.judge(graph) {
        Ok(simulation) if arguments.json => {
            let figures = Figures {
                budget_bytes: plan.budget_bytes,
                peak_bytes: simulation.peak_bytes,
                peak_action: simulation.peak_action,
                step_ns: simulation.step_ns,
                recompute_ns: simulation.recompute_ns,
                lower_bound_ns: graph.lower_bound(),
                computes: simulation.computes,
                actions: plan.actions.len(),
                peaks: simulation.moments.iter().map(|moment| moment.peak).collect(),
            };
            report::show_json(&Judgement::new(&plan.solver, Ok(figures)))
        }
        Ok(simulation) => show(graph, &plan, &simulation),
        Err(error) => {
            if arguments.json {
                report::show_json(&Judgement::<Figures>::new(&plan.solver, Err(error.to_string())))?;
            }
            Err(refused(error))
        }
    }
}

fn show(graph: &Graph, plan: &GraphPlan, simulation: &GraphSimulation) -> Result<(), Failure> {
    let predicted = plan.predicted;
    let budget = plan.budget_bytes.map_or_else(|| "none".to_owned(), |budget| budget.to_string());
    let action = simulation.peak_action.and_then(|at| Some((at, plan.actions.get(at)?)));
    let reached = match action {
        Some((at, action)) => format!("action {at} (`{action}`)"),
        None => "the inputs alone".to_owned(),
    };
    let over = predicted.step_ns.ratio(graph.lower_bound()) - 1.0;
    let rows = [
        ["status", &plan.status.to_string()],
        ["budget", &budget],
        ["peak", &predicted.peak_bytes.to_string()],
        ["reached at", &reached],
        ["step", &format!("{} ({} over store-all)", predicted.step_ns, report::signed_percent(over))],
        ["of it recomputing", &predicted.recompute_ns.to_string()],
        ["no plan is faster than", &predicted.lower_bound_ns.to_string()],
        ["nodes computed", &format!("{} for {} nodes", predicted.computes, graph.nodes().len())],
        ["actions", &plan.actions.len().to_string()],
    ];
    let rows = rows.map(|row| row.map(str::to_owned));
    report::show(&report::table([&format!("`{}` for {}", plan.solver, graph.model()), ""], rows))?;
    let most = 8;
    let rows = simulation.peak_values.iter().take(most).map(|live| {
        let what = if live.workspace { format!("workspace of {}", live.node) } else { live.node.to_string() };
        [what, live.bytes.to_string()]
    });
    report::show(&format!("\n{}", report::table(["alive at the peak", "bytes"], rows)))?;
    match simulation.peak_values.len().saturating_sub(most) {
        0 => Ok(()),
        more => report::show(&format!(" and {more} more")),
    }
}
