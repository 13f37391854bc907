//! What to keep of any graph of computations: residuals across blocks, two towers, single operations.
//!
//! ```text
//! Graph ──▶ solve() ──▶ GraphPlan ──▶ simulate()
//!  nodes,    decompose,   compute a      the only judge:
//!  edges,    search,      compute b      legal? peak? time?
//!  outputs   bound        free a …       what sets the peak?
//! ```
//!
//! A chain of stages is planned better by the solvers for chains, which know tapes, options and tiers. A graph knows
//! values only: a node is computed from the values it reads, stays until it is freed, and can be computed again.

mod action;
mod bound;
mod dag;
mod evict;
mod exact;
mod flow;
mod keep;
mod knapsack;
#[cfg(feature = "milp")]
mod milp;
mod orders;
mod plan;
mod problem;
mod search;
mod segments;
mod selection;
mod simulator;
mod solve;
mod word;

pub use action::{GraphAction, ParseGraphActionError};
pub use dag::{GRAPH_FORMAT, Graph, GraphError, Kind, Node};
pub use knapsack::{Item, Packing, knapsack, knapsack_selection};
#[cfg(feature = "milp")]
pub use milp::{MOST_MILP_NODES, MilpError, milp};
pub use plan::{GRAPH_PLAN_FORMAT, GraphPlan, GraphPlanError, GraphPredicted};
pub(crate) use problem::Problem;
pub use selection::{Selection, min_cut};
pub use simulator::{GraphIllegal, GraphLive, GraphReason, GraphSimulation, simulate};
pub use solve::{GraphSolveError, Progress, solve, solve_watched};

use crate::Nanos;

/// How much of `time` a plan at the lower bound would save, as a fraction: 0 when the bound is met.
fn gap(time: Nanos, lower_bound: Nanos) -> f64 {
    let saving = time.saturating_sub(lower_bound).get();
    if saving == 0 { 0.0 } else { saving as f64 / time.get() as f64 }
}
