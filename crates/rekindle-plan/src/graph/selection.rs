//! Which forward values stay for the backward: what the operation-level baselines decide, and the plan it makes.

use crate::graph::keep::{Fate, cheapest};
use crate::graph::word::{Scratch, Word};
use crate::graph::{Graph, GraphPlan, GraphPlanError, Problem};
use crate::{Bytes, Nanos, Status};

/// The forward values that stay for the backward; all others that it needs are computed again, once.
///
/// A selection counts the bytes of what stays, as `torch.compile`'s partitioner does, and no peak. Its plan is judged
/// like any other.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Selection {
    /// Who chose.
    pub solver: &'static str,
    /// The values that stay, ascending.
    pub kept: Vec<usize>,
    /// What they take together.
    pub kept_bytes: Bytes,
    /// The forward nodes that are computed again, ascending.
    pub again: Vec<usize>,
    /// How long that takes.
    pub recompute_ns: Nanos,
    /// Whether no other selection is better; otherwise the search grew too large, and it is the best found.
    pub optimal: bool,
}

/// The forward half of a graph, as the baselines see it.
pub(crate) struct Half {
    pub(crate) problem: Problem,
    /// Forward nodes and inputs, ascending.
    pub(crate) nodes: Vec<u32>,
    /// Read by a backward node.
    pub(crate) needed: Vec<bool>,
}

impl Half {
    pub(crate) fn new(graph: &Graph) -> Self {
        let problem = Problem::new(graph);
        let forward = |node: &u32| problem.required[*node as usize] && !problem.backward[*node as usize];
        // A forward node that reads a gradient is part of the backward in all but name.
        let mut late = problem.backward.clone();
        for &node in &problem.order {
            late[node as usize] |= problem.reads(node as usize).iter().any(|&read| late[read as usize]);
        }
        let nodes: Vec<u32> =
            (0..problem.len() as u32).filter(forward).filter(|&node| !late[node as usize]).collect();
        let mut needed = vec![false; problem.len()];
        for &node in &nodes {
            let read_late = |reader: &u32| late[*reader as usize] && problem.required[*reader as usize];
            needed[node as usize] = problem.readers(node as usize).iter().any(read_late);
        }
        Self { problem, nodes, needed }
    }

    /// The selection that keeps what `keep` says, and computes again what is needed and not kept.
    pub(crate) fn select(&self, solver: &'static str, keep: &[bool], optimal: bool) -> Selection {
        let problem = &self.problem;
        // Whoever cannot be computed again is kept when it is needed, whatever was said.
        let cost = |node: usize| u128::from(!keep[node]);
        let mut again = vec![false; problem.len()];
        let mut kept = vec![false; problem.len()];
        let mut stack: Vec<usize> =
            self.nodes.iter().map(|&node| node as usize).filter(|&node| self.needed[node]).collect();
        while let Some(node) = stack.pop() {
            if kept[node] || again[node] {
                continue;
            }
            if cost(node) == 0 || !problem.recomputable[node] {
                kept[node] = true;
            } else {
                again[node] = true;
                stack.extend(problem.reads(node).iter().map(|&read| read as usize));
            }
        }
        let all = |set: &[bool]| (0..set.len()).filter(|&node| set[node]).collect::<Vec<usize>>();
        let (kept, again) = (all(&kept), all(&again));
        Selection {
            solver,
            kept_bytes: kept.iter().map(|&node| Bytes::new(problem.bytes[node])).sum(),
            recompute_ns: again.iter().map(|&node| Nanos::new(problem.time[node])).sum(),
            kept,
            again,
            optimal,
        }
    }
}

impl Selection {
    /// The plan that follows: the forward in its order, then the backward in its, with every missing value computed
    /// again just before its first reader.
    ///
    /// # Errors
    /// When the plan takes more than the budget.
    pub fn plan(&self, graph: &Graph, budget_bytes: Option<Bytes>) -> Result<GraphPlan, GraphPlanError> {
        let problem = Problem::new(graph);
        let mut rank = vec![0usize; problem.len()];
        for (place, &node) in graph.order().iter().enumerate() {
            rank[node] = place;
        }
        // What is not to be had at the next backward node without computing it again.
        let mut missing = vec![false; problem.len()];
        for &node in &self.again {
            if let Some(missing) = missing.get_mut(node) {
                *missing = problem.recomputable[node];
            }
        }
        let early = |node: &&u32| !problem.backward[**node as usize];
        let mut word: Vec<u32> = problem.order.iter().filter(early).copied().collect();
        if word
            .iter()
            .any(|&node| problem.reads(node as usize).iter().any(|&read| problem.backward[read as usize]))
        {
            // Forward and backward are not apart: the graph's own order, and nothing again.
            word.clone_from(&problem.order);
        } else {
            for &node in problem.order.iter().filter(|node| !early(node)) {
                let mut again = Vec::new();
                let mut stack = problem.reads(node as usize).to_vec();
                while let Some(read) = stack.pop() {
                    if std::mem::replace(&mut missing[read as usize], false) {
                        again.push(read);
                        stack.extend(problem.reads(read as usize));
                    }
                }
                again.sort_unstable_by_key(|&node| rank[node as usize]);
                word.extend(again);
                word.push(node);
            }
        }
        let mut word = Word(word);
        word.clean(&problem, &mut Scratch::default());
        let status = self.solver.parse().map_or(Status::Optimal, Status::Rule);
        let actions = word.actions(graph);
        GraphPlan::judged(graph, self.solver.to_owned(), status, budget_bytes, Nanos::ZERO, actions)
    }
}

/// What `torch.compile`'s partitioner does: of the forward values, keep those from which the backward can be had with
/// the fewest bytes kept. A minimum cut between what the backward reads and what cannot be computed again; where
/// several cuts are equally small, the one that computes the least again.
///
/// It knows no budget and no peak, and gladly computes an expensive node again to save one byte.
///
/// ```
/// use rekindle_plan::graph::{Graph, min_cut};
/// use rekindle_plan::{Bytes, Nanos};
///
/// // `wide` is read by the backward, but can be had from the narrow `x`.
/// let graph = Graph::from_json(r#"{"format": "rekindle.graph/1", "model": "m", "device": "none",
///   "nodes": [{"name": "x",    "kind": "input",    "bytes": 1},
///             {"name": "wide", "kind": "forward",  "time_ns": 3, "bytes": 9},
///             {"name": "grad", "kind": "backward", "time_ns": 5, "bytes": 1}],
///   "edges": [["x", "wide"], ["wide", "grad"]]}"#)?;
/// let selection = min_cut(&graph);
/// assert_eq!((selection.kept, selection.kept_bytes), (vec![0], Bytes::new(1)));
/// assert_eq!((selection.again, selection.recompute_ns), (vec![1], Nanos::new(3)));
/// # Ok::<(), rekindle_plan::graph::GraphError>(())
/// ```
pub fn min_cut(graph: &Graph) -> Selection {
    let half = Half::new(graph);
    let problem = &half.problem;
    let total: u64 = half.nodes.iter().map(|&node| problem.time[node as usize]).sum();
    // Bytes first, then time: a byte outweighs all time there is. Where both together would not fit, time is rounded.
    let bytes: u64 = half.nodes.iter().map(|&node| problem.bytes[node as usize]).sum();
    let bits = (64 - total.leading_zeros()) + (64 - bytes.leading_zeros());
    let shift = bits.saturating_sub(120);
    let weight = u128::from(total >> shift) + half.nodes.len() as u128 + 1;
    let keep = |node: usize| u128::from(problem.bytes[node]) * weight;
    let again = |node: usize| u128::from(problem.time[node] >> shift);
    let (_, fates) = cheapest(problem, &half.nodes, &half.needed, keep, again);
    let mut kept = vec![false; problem.len()];
    for (&node, fate) in half.nodes.iter().zip(fates) {
        kept[node as usize] = fate == Fate::Kept;
    }
    half.select("min-cut", &kept, true)
}
