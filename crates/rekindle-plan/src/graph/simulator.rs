//! The only judge of a plan of a graph: is it legal, what does it hold at every action, how long does it take.
//!
//! The rules it applies:
//!
//! - Inputs are there at the start and are never computed.
//! - A node is computed when everything it reads is there and its own value is not. While it runs, everything that is
//!   there, its value and its workspace are alive at once.
//! - A pinned node is computed once.
//! - At the end the outputs are there, and nothing else.

use std::collections::HashMap;

use crate::graph::{Graph, GraphAction, Kind};
use crate::{Bytes, Moment, Name, Nanos};

/// What the simulator found in a legal plan of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraphSimulation {
    /// The most bytes alive at once.
    pub peak_bytes: Bytes,
    /// The index of the action that reaches them first; `None` when the inputs alone, before any action, are the peak.
    pub peak_action: Option<usize>,
    /// What was alive then, largest first.
    pub peak_values: Vec<GraphLive>,
    /// The bytes at every action.
    pub moments: Vec<Moment>,
    /// How long the step takes.
    pub step_ns: Nanos,
    /// How much of it goes to nodes that were computed before.
    pub recompute_ns: Nanos,
    /// How many nodes the step computes, again and again included.
    pub computes: u64,
}

/// Something that is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphLive {
    /// The node it belongs to.
    pub node: Name,
    /// Whether it is the node's workspace, not its value.
    pub workspace: bool,
    /// Its size.
    pub bytes: Bytes,
}

/// A plan of a graph that cannot be run, with the first action that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("action {index} (`{action}`) cannot run: {reason}", action = action.as_ref().map_or_else(|| "end".to_owned(), ToString::to_string))]
pub struct GraphIllegal {
    /// The index of the action, from 0; the number of actions when the plan ends wrongly.
    pub index: usize,
    /// The action, or `None` when the plan ends wrongly.
    pub action: Option<GraphAction>,
    /// What is wrong with it.
    pub reason: GraphReason,
}

/// What is wrong with an action on a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphReason {
    /// The graph has no such node.
    #[error("the graph has no node `{node}`")]
    NoNode {
        /// The name found.
        node: Name,
    },
    /// A node that is read is not there.
    #[error("`{node}` reads `{missing}`, which is not there; compute it first, or free it later")]
    Missing {
        /// The node to compute.
        node: Name,
        /// What it reads.
        missing: Name,
    },
    /// The value is there already.
    #[error("`{node}` is there already; free it first or use what is there")]
    Present {
        /// The node.
        node: Name,
    },
    /// The value to free is not there.
    #[error("`{node}` is not there, and cannot be freed")]
    Absent {
        /// The node.
        node: Name,
    },
    /// A pinned node would be computed again.
    #[error("`{node}` is pinned and would be computed twice; free it later")]
    Pinned {
        /// The node.
        node: Name,
    },
    /// An input would be computed.
    #[error("`{node}` is an input and cannot be computed; free it later")]
    Input {
        /// The node.
        node: Name,
    },
    /// An output is not there at the end.
    #[error("the output `{node}` is not there at the end")]
    OutputMissing {
        /// The output.
        node: Name,
    },
    /// Something else than outputs is there at the end.
    #[error("`{node}` is left at the end; free it")]
    Left {
        /// What is left.
        node: Name,
    },
    /// The plan's time does not fit into 64 bits.
    #[error("the plan takes longer than 2^64 ns")]
    TooLong,
}

/// Judges `actions` for `graph`.
///
/// ```
/// use rekindle_plan::graph::{Graph, GraphAction, simulate};
/// use rekindle_plan::Bytes;
///
/// let graph = Graph::from_json(r#"{"format": "rekindle.graph/1", "model": "two", "device": "none",
///   "nodes": [{"name": "a", "kind": "forward", "time_ns": 1, "bytes": 3},
///             {"name": "b", "kind": "forward", "time_ns": 1, "bytes": 4}],
///   "edges": [["a", "b"]]}"#)?;
/// let actions: Vec<GraphAction> =
///     ["compute a", "compute b", "free a"].iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
/// let simulation = simulate(&graph, &actions)?;
/// assert_eq!(simulation.peak_bytes, Bytes::new(7));
/// assert_eq!(simulation.peak_action, Some(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// With the first action that cannot run, and why.
pub fn simulate(graph: &Graph, actions: &[GraphAction]) -> Result<GraphSimulation, GraphIllegal> {
    let mut walk = Walk::new(graph);
    let mut moments = Vec::with_capacity(actions.len());
    let (mut peak_bytes, mut peak_action) = (walk.held, None);
    for (index, action) in actions.iter().enumerate() {
        let moment = walk.run(action).map_err(|reason| GraphIllegal {
            index,
            action: Some(action.clone()),
            reason,
        })?;
        if moment.peak > peak_bytes {
            (peak_bytes, peak_action) = (moment.peak, Some(index));
        }
        moments.push(moment);
    }
    walk.finish().map_err(|reason| GraphIllegal { index: actions.len(), action: None, reason })?;
    Ok(GraphSimulation {
        peak_bytes,
        peak_action,
        peak_values: alive_at(graph, actions, peak_action),
        moments,
        step_ns: walk.step,
        recompute_ns: walk.recompute,
        computes: walk.computes,
    })
}

/// What is alive while the action at `index` of a legal plan runs, largest first.
fn alive_at(graph: &Graph, actions: &[GraphAction], index: Option<usize>) -> Vec<GraphLive> {
    let mut walk = Walk::new(graph);
    let until = index.map_or(0, |index| index + 1);
    for action in actions.iter().take(until) {
        // The plan was judged legal: this repeats what ran.
        let _ = walk.run(action);
    }
    let value = |(node, _): (usize, _)| {
        let node = &graph.nodes()[node];
        GraphLive { node: node.name.clone(), workspace: false, bytes: node.bytes }
    };
    let present = walk.present.iter().enumerate().filter(|(_, present)| **present);
    let mut live: Vec<GraphLive> = present.map(value).collect();
    let computing = index.and_then(|index| match actions.get(index)? {
        GraphAction::Compute { node } => walk.index.get(node).map(|&node| &graph.nodes()[node]),
        GraphAction::Free { .. } => None,
    });
    if let Some(node) = computing.filter(|node| node.workspace_bytes > Bytes::ZERO) {
        live.push(GraphLive { node: node.name.clone(), workspace: true, bytes: node.workspace_bytes });
    }
    live.sort_by_key(|live| std::cmp::Reverse(live.bytes));
    live
}

struct Walk<'a> {
    graph: &'a Graph,
    index: HashMap<&'a Name, usize>,
    present: Vec<bool>,
    computed: Vec<bool>,
    held: Bytes,
    step: Nanos,
    recompute: Nanos,
    computes: u64,
}

impl<'a> Walk<'a> {
    fn new(graph: &'a Graph) -> Self {
        let nodes = graph.nodes();
        let inputs: Vec<bool> = nodes.iter().map(|node| node.kind == Kind::Input).collect();
        // Sums of sizes fit: the graph has been checked.
        let held = nodes.iter().filter(|node| node.kind == Kind::Input).map(|node| node.bytes).sum();
        Self {
            graph,
            index: nodes.iter().enumerate().map(|(index, node)| (&node.name, index)).collect(),
            present: inputs,
            computed: vec![false; nodes.len()],
            held,
            step: Nanos::ZERO,
            recompute: Nanos::ZERO,
            computes: 0,
        }
    }

    fn run(&mut self, action: &GraphAction) -> Result<Moment, GraphReason> {
        let name = action.node();
        let graph = self.graph;
        let index = *self.index.get(name).ok_or_else(|| GraphReason::NoNode { node: name.clone() })?;
        let node = &graph.nodes()[index];
        let named = || node.name.clone();
        match action {
            GraphAction::Free { .. } => {
                if !self.present[index] {
                    return Err(GraphReason::Absent { node: named() });
                }
                let peak = self.held;
                self.present[index] = false;
                self.held = self.held.saturating_sub(node.bytes);
                Ok(Moment { peak, after: self.held })
            }
            GraphAction::Compute { .. } => {
                if self.present[index] {
                    return Err(GraphReason::Present { node: named() });
                }
                if node.kind == Kind::Input {
                    return Err(GraphReason::Input { node: named() });
                }
                if node.pinned && self.computed[index] {
                    return Err(GraphReason::Pinned { node: named() });
                }
                if let Some(&missing) = graph.reads(index).iter().find(|&&read| !self.present[read]) {
                    let missing = graph.nodes()[missing].name.clone();
                    return Err(GraphReason::Missing { node: named(), missing });
                }
                self.step = self.step.checked_add(node.time_ns).ok_or(GraphReason::TooLong)?;
                if self.computed[index] {
                    // Part of the step's time, which fits.
                    self.recompute = [self.recompute, node.time_ns].into_iter().sum();
                }
                self.present[index] = true;
                self.computed[index] = true;
                self.computes += 1;
                self.held = [self.held, node.bytes].into_iter().sum();
                let peak = [self.held, node.workspace_bytes].into_iter().sum();
                Ok(Moment { peak, after: self.held })
            }
        }
    }

    fn finish(&self) -> Result<(), GraphReason> {
        let name = |node: usize| self.graph.nodes()[node].name.clone();
        let mut outputs = vec![false; self.present.len()];
        for &output in self.graph.outputs() {
            outputs[output] = true;
            if !self.present[output] {
                return Err(GraphReason::OutputMissing { node: name(output) });
            }
        }
        match (0..outputs.len()).find(|&node| self.present[node] && !outputs[node]) {
            Some(left) => Err(GraphReason::Left { node: name(left) }),
            None => Ok(()),
        }
    }
}
