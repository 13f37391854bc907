//! Plans some typical graphs at several budgets and prints one JSON object a line: how fast the plan is, what is
//! proven, and how long it took. With the feature `milp`, the MILP's answer stands beside it.
//!
//! ```text
//! cargo run --release -p rekindle-plan --example graph [--features milp] [-- SECONDS [PART-OF-A-NAME]]
//! ```
#![allow(clippy::print_stdout, reason = "an example program prints")]

#[path = "../tests/graphs/mod.rs"]
mod graphs;

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use graphs::{Reads, linear, random, residual, two_towers, u_net, unit_linear};
use rekindle_plan::graph::{Graph, GraphPlan, GraphSolveError, solve_watched};
use rekindle_plan::{Bytes, Gap, Request};
use serde_json::json;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(10), |text| text.parse())?;
    let only = std::env::args().nth(2).unwrap_or_default();
    for (name, graph, budgets) in instances()? {
        for budget in budgets.into_iter().filter(|_| name.contains(&only)) {
            report(&name, &graph, budget, Duration::from_secs(seconds))?;
        }
    }
    Ok(())
}

/// How long HiGHS may take for a graph.
#[cfg(feature = "milp")]
const MILP_LIMIT: Duration = Duration::from_secs(120);

type Instances = Vec<(String, Graph, Vec<Bytes>)>;

fn instances() -> Result<Instances, Box<dyn std::error::Error>> {
    let mut instances: Instances = Vec::new();
    for (layers, budgets) in
        [(4, vec![5, 4]), (8, vec![7, 6]), (12, vec![8, 7]), (16, vec![9, 7]), (24, vec![11, 7])]
    {
        let budgets = budgets.into_iter().map(Bytes::new).collect();
        instances.push((
            format!("unit-linear-{}", 2 * layers + 1),
            unit_linear(layers, Reads::Input),
            budgets,
        ));
    }
    for (name, graph) in [
        ("linear-25", linear(12, 1)),
        ("two-towers-25", two_towers(6, 1)),
        ("u-net-25", u_net(2, 1, 1)),
        ("residual-23", residual(2, 1)),
        ("random-23", random(12, 1)),
        ("linear-49", linear(24, 1)),
        ("two-towers-49", two_towers(12, 1)),
        ("u-net-45", u_net(3, 2, 1)),
        ("residual-53", residual(5, 1)),
        ("linear-1001", linear(500, 2)),
        ("two-towers-1001", two_towers(250, 2)),
        ("u-net-979", u_net(8, 29, 2)),
        ("residual-1003", residual(100, 2)),
        ("random-999", random(500, 2)),
    ] {
        let all = GraphPlan::store_all(&graph, None)?.predicted.peak_bytes.get();
        let budgets = [80, 50, 30].map(|percent| Bytes::new(all * percent / 100));
        instances.push((name.to_owned(), graph, budgets.to_vec()));
    }
    Ok(instances)
}

fn report(
    name: &str,
    graph: &Graph,
    budget: Bytes,
    limit: Duration,
) -> Result<(), Box<dyn std::error::Error>> {
    let request = Request { time_limit: limit, gap: Gap::ZERO, ..Request::new(budget) };
    let start = Instant::now();
    let mut found = (None, 0.0);
    let answer = solve_watched(graph, &request, &mut |progress| {
        if progress.best_ns != found.0 {
            found = (progress.best_ns, progress.elapsed.as_secs_f64());
        }
        ControlFlow::Continue(())
    });
    let seconds = start.elapsed().as_secs_f64();
    let mut line =
        json!({"graph": name, "nodes": graph.nodes().len(), "budget": budget.get(), "seconds": seconds});
    match answer {
        Ok(plan) => {
            line["least"] = json!(graph.lower_bound().get());
            line["cost"] = json!(plan.predicted.step_ns.get());
            line["lower_bound"] = json!(plan.predicted.lower_bound_ns.get());
            line["gap"] = json!(plan.gap());
            line["seconds_to_best"] = json!(found.1);
        }
        Err(GraphSolveError::BudgetTooSmall { smallest_bytes, proven, .. }) => {
            line["smallest"] = json!(smallest_bytes.get());
            line["proven"] = json!(proven);
        }
        Err(error) => return Err(error.into()),
    }
    #[cfg(feature = "milp")]
    if graph.nodes().len() <= 64 {
        let start = Instant::now();
        let staged = rekindle_plan::graph::milp(graph, &Request { time_limit: MILP_LIMIT, ..request });
        line["milp_seconds"] = json!(start.elapsed().as_secs_f64());
        match staged {
            Ok(plan) => {
                line["milp_cost"] = json!(plan.predicted.step_ns.get());
                line["milp_status"] = json!(plan.status.to_string());
            }
            Err(error) => line["milp_status"] = json!(error.to_string()),
        }
    }
    println!("{line}");
    Ok(())
}
