//! A plan of a graph: what to compute and free, what it is predicted to cost, and the graph it is for.

use serde::{Deserialize, Serialize};

use crate::format::{self, FormatError};
use crate::graph::{Graph, GraphAction, GraphIllegal, GraphSimulation, simulate};
use crate::{Bytes, Nanos, Status};

/// The version of the format for plans of graphs.
pub const GRAPH_PLAN_FORMAT: &str = "rekindle.graph-plan/1";

/// The ordered actions for one step of a graph.
///
/// ```
/// use rekindle_plan::graph::{Graph, GraphPlan};
/// use rekindle_plan::{Bytes, Status};
///
/// let graph = Graph::from_json(r#"{"format": "rekindle.graph/1", "model": "two", "device": "none",
///   "nodes": [{"name": "a", "kind": "forward", "time_ns": 1, "bytes": 3},
///             {"name": "b", "kind": "forward", "time_ns": 1, "bytes": 4}],
///   "edges": [["a", "b"]]}"#)?;
/// let plan = GraphPlan::store_all(&graph, None)?;
/// assert_eq!(plan.predicted.peak_bytes, Bytes::new(7));
/// assert_eq!(GraphPlan::from_json(&plan.to_json())?, plan);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GraphPlan {
    format: String,
    /// Who made it.
    pub solver: String,
    /// How good it is known to be.
    pub status: Status,
    /// The budget it was made for, if there was one.
    pub budget_bytes: Option<Bytes>,
    /// The fingerprint of the graph it is for.
    pub fingerprint: String,
    /// What the simulator said of it, and what the solver proved.
    pub predicted: GraphPredicted,
    /// What to do.
    pub actions: Vec<GraphAction>,
}

/// A plan as a file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GraphPlanFile {
    format: String,
    solver: String,
    status: Status,
    budget_bytes: Option<Bytes>,
    fingerprint: String,
    predicted: GraphPredicted,
    actions: Vec<GraphAction>,
}

/// What the simulator said of a plan of a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphPredicted {
    /// The most bytes alive at once.
    pub peak_bytes: Bytes,
    /// How long the step takes.
    pub step_ns: Nanos,
    /// How much of it goes to nodes that were computed before.
    pub recompute_ns: Nanos,
    /// A time that no plan within the budget can beat.
    pub lower_bound_ns: Nanos,
    /// How many nodes the step computes, again and again included.
    pub computes: u64,
}

/// Why a plan of a graph is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphPlanError {
    /// The text is not a plan of this version.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The plan cannot be run.
    #[error("the plan is not legal: {0}")]
    Illegal(#[from] GraphIllegal),
    /// The plan is for another graph.
    #[error("the plan was made for a graph with the fingerprint {found}, but this one has {expected}")]
    OtherGraph {
        /// The plan's fingerprint.
        found: String,
        /// The graph's fingerprint.
        expected: String,
    },
    /// The plan takes more than the budget.
    #[error("`{solver}` takes {peak_bytes} at its peak ({} bytes), but the budget is {budget_bytes} ({} bytes)", peak_bytes.get(), budget_bytes.get())]
    OverBudget {
        /// Who made the plan.
        solver: String,
        /// What it takes.
        peak_bytes: Bytes,
        /// What it may take.
        budget_bytes: Bytes,
    },
}

impl GraphPlan {
    /// Every required node once, in the graph's order, each value freed after its last reader: no recomputation.
    ///
    /// # Errors
    /// When this takes more than the budget.
    pub fn store_all(graph: &Graph, budget_bytes: Option<Bytes>) -> Result<Self, GraphPlanError> {
        let word = super::word::Word::once(graph, graph.order());
        // A word: rules are named by letters and dashes, so this always parses.
        let status = "store-all".parse().map_or(Status::Optimal, Status::Rule);
        Self::judged(graph, "store-all".to_owned(), status, budget_bytes, Nanos::ZERO, word.actions(graph))
    }

    /// A plan of any solver's actions, with what the simulator says of them. `proven_ns` is a time the solver has
    /// proven that no plan within the budget can beat; zero when it has proven nothing.
    ///
    /// # Errors
    /// When the simulator refuses the actions, or they take more than the budget.
    pub fn judged(
        graph: &Graph,
        solver: String,
        status: Status,
        budget_bytes: Option<Bytes>,
        proven_ns: Nanos,
        actions: Vec<GraphAction>,
    ) -> Result<Self, GraphPlanError> {
        let simulation = simulate(graph, &actions)?;
        let plan = Self {
            format: GRAPH_PLAN_FORMAT.to_owned(),
            solver,
            status,
            budget_bytes,
            fingerprint: graph.fingerprint(),
            predicted: GraphPredicted {
                peak_bytes: simulation.peak_bytes,
                step_ns: simulation.step_ns,
                recompute_ns: simulation.recompute_ns,
                lower_bound_ns: graph.lower_bound().max(proven_ns),
                computes: simulation.computes,
            },
            actions,
        };
        plan.check_budget(&simulation)?;
        Ok(plan)
    }

    /// Judges the plan for `graph`: the right graph, legal, within its budget.
    ///
    /// # Errors
    /// When it is none of these.
    pub fn judge(&self, graph: &Graph) -> Result<GraphSimulation, GraphPlanError> {
        let expected = graph.fingerprint();
        if self.fingerprint != expected {
            return Err(GraphPlanError::OtherGraph { found: self.fingerprint.clone(), expected });
        }
        let simulation = simulate(graph, &self.actions)?;
        self.check_budget(&simulation)?;
        Ok(simulation)
    }

    fn check_budget(&self, simulation: &GraphSimulation) -> Result<(), GraphPlanError> {
        match self.budget_bytes {
            Some(budget_bytes) if simulation.peak_bytes > budget_bytes => Err(GraphPlanError::OverBudget {
                solver: self.solver.clone(),
                peak_bytes: simulation.peak_bytes,
                budget_bytes,
            }),
            _ => Ok(()),
        }
    }

    /// How much the fastest plan may be faster, as a fraction of this plan's time: from the proven lower bound.
    pub fn gap(&self) -> f64 {
        super::gap(self.predicted.step_ns, self.predicted.lower_bound_ns)
    }

    /// Reads a plan. It is not judged before [`GraphPlan::judge`].
    ///
    /// # Errors
    /// When the text is not a plan of this version.
    pub fn from_json(text: &str) -> Result<Self, GraphPlanError> {
        let file: GraphPlanFile = format::read("graph plan", GRAPH_PLAN_FORMAT, text)?;
        Ok(Self {
            format: file.format,
            solver: file.solver,
            status: file.status,
            budget_bytes: file.budget_bytes,
            fingerprint: file.fingerprint,
            predicted: file.predicted,
            actions: file.actions,
        })
    }

    /// Writes the plan.
    pub fn to_json(&self) -> String {
        // A plan is strings, finite numbers and lists: it always serialises.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}
