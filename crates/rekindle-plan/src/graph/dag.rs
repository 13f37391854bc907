//! What is known of a graph before it is planned: its values, what each costs, and who reads whom.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::format::{self, FormatError};
use crate::{Bytes, Name, Nanos};

/// The version of the graph format.
pub const GRAPH_FORMAT: &str = "rekindle.graph/1";

/// A directed acyclic graph of values: each node makes one value from the values of the nodes it reads.
///
/// A `Graph` is valid by construction: [`Graph::new`] and [`Graph::from_json`] refuse what the planner could not
/// reason about.
///
/// ```
/// use rekindle_plan::{Bytes, Nanos, graph::Graph};
///
/// let graph = Graph::from_json(r#"{
///   "format": "rekindle.graph/1", "model": "tiny", "device": "none",
///   "nodes": [{"name": "x",    "kind": "input",    "bytes": 8},
///             {"name": "h",    "kind": "forward",  "time_ns": 5, "bytes": 16},
///             {"name": "grad", "kind": "backward", "time_ns": 9, "bytes": 8}],
///   "edges": [["x", "h"], ["x", "grad"], ["h", "grad"]]
/// }"#)?;
/// assert_eq!(graph.outputs(), [2]); // nobody reads `grad`, so it is what the graph is for
/// assert_eq!(graph.lower_bound(), Nanos::new(14));
/// assert_eq!(Graph::from_json(&graph.to_json())?, graph);
/// # Ok::<(), rekindle_plan::graph::GraphError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    model: String,
    device: String,
    nodes: Vec<Node>,
    /// The nodes each node reads, in the order of the edges.
    reads: Vec<Vec<usize>>,
    /// The nodes that read each node.
    readers: Vec<Vec<usize>>,
    /// Ascending.
    outputs: Vec<usize>,
    /// A topological order: of all that could come next, the node that stands first in the file.
    order: Vec<usize>,
    /// Whether an output needs the node, itself included.
    required: Vec<bool>,
}

/// One value and what it takes to make it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// The name plans use for it.
    pub name: Name,
    /// What it is.
    pub kind: Kind,
    /// How long it takes to compute, every time.
    #[serde(default, skip_serializing_if = "no_time")]
    pub time_ns: Nanos,
    /// What its value takes, from the moment it is computed until it is freed.
    #[serde(default, skip_serializing_if = "no_bytes")]
    pub bytes: Bytes,
    /// What is alive only while it is computed, beyond what it reads and makes.
    #[serde(default, skip_serializing_if = "no_bytes")]
    pub workspace_bytes: Bytes,
    /// It must be computed once only: randomness that cannot be replayed, effects outside.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pinned: bool,
}

fn no_time(time: &Nanos) -> bool {
    *time == Nanos::ZERO
}

fn no_bytes(bytes: &Bytes) -> bool {
    *bytes == Bytes::ZERO
}

impl Node {
    /// A node that can be computed again, without workspace.
    pub const fn new(name: Name, kind: Kind, time_ns: Nanos, bytes: Bytes) -> Self {
        Self { name, kind, time_ns, bytes, workspace_bytes: Bytes::ZERO, pinned: false }
    }

    /// Whether it can be computed a second time.
    pub fn recomputable(&self) -> bool {
        !self.pinned && self.kind != Kind::Input
    }
}

/// What a node is.
///
/// The judge treats forward and backward nodes alike; the planner and the baselines use the kind to tell the half
/// whose values are worth keeping from the half that reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// There before the first action; it is never computed, and once freed it is gone.
    Input,
    /// Part of the forward pass, the loss included.
    Forward,
    /// Part of the backward pass.
    Backward,
}

/// A graph as a file has it, before it is checked.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GraphFile {
    format: String,
    model: String,
    device: String,
    nodes: Vec<Node>,
    #[serde(default)]
    edges: Vec<(Name, Name)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    outputs: Option<Vec<Name>>,
}

/// Why a graph is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// The text is not a graph of this version.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// There is nothing to plan.
    #[error("the graph of `{model}` has no nodes, expected at least one")]
    NoNodes {
        /// The model it is of.
        model: String,
    },
    /// Two nodes have one name.
    #[error("the name `{name}` stands twice among the nodes")]
    NamedTwice {
        /// The name found twice.
        name: Name,
    },
    /// An edge or an output names no node.
    #[error("{place} names `{name}`, but no node has that name")]
    UnknownNode {
        /// The name found.
        name: Name,
        /// Where it was found.
        place: String,
    },
    /// An edge stands twice.
    #[error("the edge from `{from}` to `{to}` stands twice")]
    EdgeTwice {
        /// The node that is read.
        from: Name,
        /// The node that reads.
        to: Name,
    },
    /// An output stands twice.
    #[error("the output `{name}` stands twice")]
    OutputTwice {
        /// The output.
        name: Name,
    },
    /// Nothing is to be computed.
    #[error(
        "the list of outputs is empty; name at least one, or leave the key out for all nodes nobody reads"
    )]
    NoOutputs,
    /// Nodes read each other in a circle.
    #[error("the graph has a cycle through {}", circle(nodes))]
    Cycle {
        /// The nodes of one cycle, each read by the next and the last by the first.
        nodes: Vec<Name>,
    },
    /// An input is computed, or would have to be.
    #[error("the input `{name}` {found}; an input is there from the start and costs no time")]
    BusyInput {
        /// The input.
        name: Name,
        /// What it has that no input can have.
        found: &'static str,
    },
    /// The sum of all sizes or times does not fit into 64 bits.
    #[error("the {what} of the graph add up to more than 2^64, expected less")]
    TooLarge {
        /// Bytes or times.
        what: &'static str,
    },
    /// There are more nodes or edges than can be numbered.
    #[error("the graph has {found} {what}, expected at most {most}")]
    TooMany {
        /// Nodes or edges.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there may be.
        most: usize,
    },
}

fn circle(nodes: &[Name]) -> String {
    let shown: Vec<String> = nodes.iter().take(8).map(|name| format!("`{name}`")).collect();
    let rest = nodes.len().saturating_sub(8);
    if rest == 0 { shown.join(", ") } else { format!("{} and {rest} more", shown.join(", ")) }
}

/// More than any framework traces; every list of a plan stays well within memory.
const MOST: usize = 1 << 24;

impl Graph {
    /// A graph of these nodes. An edge `(from, to)` says that `to` reads the value of `from`. The outputs must be
    /// there at the end; without a list of them they are all nodes that nobody reads.
    ///
    /// ```
    /// use rekindle_plan::graph::{Graph, Kind, Node};
    /// use rekindle_plan::{Bytes, Nanos};
    ///
    /// let node = |name: &str| Node::new(name.parse().unwrap(), Kind::Forward, Nanos::new(1), Bytes::new(1));
    /// let edges = vec![("a".parse()?, "b".parse()?)];
    /// let graph = Graph::new("two", "none", vec![node("a"), node("b")], edges, None)?;
    /// assert_eq!(graph.reads(1), [0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When there is no node, a name that is none or stands twice, a cycle, or a sum beyond 64 bits.
    pub fn new(
        model: impl Into<String>,
        device: impl Into<String>,
        nodes: Vec<Node>,
        edges: Vec<(Name, Name)>,
        outputs: Option<Vec<Name>>,
    ) -> Result<Self, GraphError> {
        let model = model.into();
        if nodes.is_empty() {
            return Err(GraphError::NoNodes { model });
        }
        for (what, found) in [("nodes", nodes.len()), ("edges", edges.len())] {
            if found > MOST {
                return Err(GraphError::TooMany { what, found, most: MOST });
            }
        }
        let mut index = HashMap::with_capacity(nodes.len());
        for (number, node) in nodes.iter().enumerate() {
            if index.insert(node.name.clone(), number).is_some() {
                return Err(GraphError::NamedTwice { name: node.name.clone() });
            }
        }
        let find = |name: &Name, place: &dyn Fn() -> String| {
            index
                .get(name)
                .copied()
                .ok_or_else(|| GraphError::UnknownNode { name: name.clone(), place: place() })
        };

        let mut reads = vec![Vec::new(); nodes.len()];
        let mut readers = vec![Vec::new(); nodes.len()];
        let mut seen = HashSet::with_capacity(edges.len());
        for (from_name, to_name) in &edges {
            let place = || format!("the edge from `{from_name}` to `{to_name}`");
            let (from, to) = (find(from_name, &place)?, find(to_name, &place)?);
            if !seen.insert((from, to)) {
                return Err(GraphError::EdgeTwice { from: from_name.clone(), to: to_name.clone() });
            }
            reads[to].push(from);
            readers[from].push(to);
        }
        let outputs = match outputs {
            None => (0..nodes.len()).filter(|&node| readers[node].is_empty()).collect(),
            Some(names) => {
                let mut outputs = Vec::with_capacity(names.len());
                for name in &names {
                    outputs.push(find(name, &|| "the list of outputs".to_owned())?);
                }
                outputs.sort_unstable();
                if let Some(pair) = outputs.windows(2).find(|pair| pair[0] == pair[1]) {
                    return Err(GraphError::OutputTwice { name: nodes[pair[0]].name.clone() });
                }
                outputs
            }
        };
        let order = topological(&reads, &readers).map_err(|cycle| GraphError::Cycle {
            nodes: cycle.iter().map(|&n| nodes[n].name.clone()).collect(),
        })?;
        if outputs.is_empty() {
            return Err(GraphError::NoOutputs);
        }
        for (node, reads) in nodes.iter().zip(&reads) {
            let found = match node {
                Node { kind: Kind::Input, time_ns, .. } if *time_ns > Nanos::ZERO => "has a time",
                Node { kind: Kind::Input, workspace_bytes, .. } if *workspace_bytes > Bytes::ZERO => {
                    "has a workspace"
                }
                Node { kind: Kind::Input, .. } if !reads.is_empty() => "reads another node",
                _ => continue,
            };
            return Err(GraphError::BusyInput { name: node.name.clone(), found });
        }
        // Everything alive at once, and everything computed once, must be expressible; the judge then only has to
        // watch what a plan repeats.
        Bytes::checked_sum(nodes.iter().flat_map(|node| [node.bytes, node.workspace_bytes]))
            .ok_or(GraphError::TooLarge { what: "bytes" })?;
        Nanos::checked_sum(nodes.iter().map(|node| node.time_ns))
            .ok_or(GraphError::TooLarge { what: "times" })?;

        let mut required = vec![false; nodes.len()];
        for &output in &outputs {
            required[output] = true;
        }
        for &node in order.iter().rev() {
            if required[node] {
                for &read in &reads[node] {
                    required[read] = true;
                }
            }
        }
        Ok(Self { model, device: device.into(), nodes, reads, readers, outputs, order, required })
    }

    /// Reads a graph.
    ///
    /// # Errors
    /// When the text is not a graph of this version, or not one that can be planned.
    pub fn from_json(text: &str) -> Result<Self, GraphError> {
        let file: GraphFile = format::read("graph", GRAPH_FORMAT, text)?;
        Self::new(file.model, file.device, file.nodes, file.edges, file.outputs)
    }

    /// Writes the graph: edges by the node that reads, outputs by name.
    pub fn to_json(&self) -> String {
        let name = |node: usize| self.nodes[node].name.clone();
        let file = GraphFile {
            format: GRAPH_FORMAT.to_owned(),
            model: self.model.clone(),
            device: self.device.clone(),
            nodes: self.nodes.clone(),
            edges: (self.reads.iter().enumerate())
                .flat_map(|(to, reads)| reads.iter().map(move |&from| (name(from), name(to))))
                .collect(),
            outputs: Some(self.outputs.iter().map(|&output| name(output)).collect()),
        };
        // A graph is strings, numbers and lists: it always serialises.
        serde_json::to_string_pretty(&file).unwrap_or_default()
    }

    /// What people call the model.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// What the nodes were measured on.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The nodes, as given; never empty. Everywhere else a node is its index here.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The nodes that a node reads; empty when there is no such node.
    pub fn reads(&self, node: usize) -> &[usize] {
        self.reads.get(node).map_or(&[], Vec::as_slice)
    }

    /// The nodes that read a node; empty when there is no such node.
    pub fn readers(&self, node: usize) -> &[usize] {
        self.readers.get(node).map_or(&[], Vec::as_slice)
    }

    /// The nodes that must be there at the end, ascending; never empty.
    pub fn outputs(&self) -> &[usize] {
        &self.outputs
    }

    /// Every node after all that it reads; among those that could come next, in the order given.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Whether some output needs the node.
    pub fn required(&self, node: usize) -> bool {
        self.required.get(node).copied().unwrap_or(false)
    }

    /// A time no plan can beat, whatever the budget: every required node once.
    pub fn lower_bound(&self) -> Nanos {
        let required = self.nodes.iter().zip(&self.required).filter(|(_, required)| **required);
        required.map(|(node, _)| node.time_ns).sum()
    }

    /// What a plan must match: model and device, and of every node its name, kind, bytes, whether it is pinned, what
    /// it reads and whether it is an output. Times and workspace are left out, because they change from one
    /// measurement to the next; the simulator judges a plan anew whenever it is used.
    pub fn fingerprint(&self) -> String {
        let mut hash = Xxh3::new();
        let mut text = |text: &str| {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        };
        text(&self.model);
        text(&self.device);
        for (node, reads) in self.nodes.iter().zip(&self.reads) {
            text(node.name.as_str());
            text(&format!("{:?} {} {} {}", node.kind, node.bytes.get(), node.pinned, reads.len()));
            for &read in reads {
                text(self.nodes[read].name.as_str());
            }
        }
        for &output in &self.outputs {
            text(self.nodes[output].name.as_str());
        }
        format!("xxh3-128:{:032x}", hash.digest128())
    }
}

/// Kahn's algorithm with the smallest index first, so that a file in a good order keeps it; or a cycle.
fn topological(reads: &[Vec<usize>], readers: &[Vec<usize>]) -> Result<Vec<usize>, Vec<usize>> {
    let mut missing: Vec<usize> = reads.iter().map(Vec::len).collect();
    let ready = missing.iter().enumerate().filter(|(_, count)| **count == 0);
    let mut ready: std::collections::BinaryHeap<_> = ready.map(|(node, _)| std::cmp::Reverse(node)).collect();
    let mut order = Vec::with_capacity(reads.len());
    while let Some(std::cmp::Reverse(node)) = ready.pop() {
        order.push(node);
        for &reader in &readers[node] {
            missing[reader] -= 1;
            if missing[reader] == 0 {
                ready.push(std::cmp::Reverse(reader));
            }
        }
    }
    let Some(mut node) = (0..reads.len()).find(|&node| missing[node] > 0) else { return Ok(order) };
    // Whoever is left reads someone who is left: walking back meets a node twice.
    let mut walked = Vec::new();
    let mut at = vec![usize::MAX; reads.len()];
    while at[node] == usize::MAX {
        at[node] = walked.len();
        walked.push(node);
        match reads[node].iter().find(|&&read| missing[read] > 0) {
            Some(&read) => node = read,
            None => break,
        }
    }
    let mut cycle = walked.split_off(at[node].min(walked.len()));
    cycle.reverse();
    Err(cycle)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"format": "rekindle.graph/1", "model": "m", "device": "d",
 "nodes": [{"name": "x", "kind": "input", "bytes": 8},
           {"name": "f", "kind": "forward", "time_ns": 5, "bytes": 16, "workspace_bytes": 3, "pinned": true},
           {"name": "b", "kind": "backward", "time_ns": 9, "bytes": 7}],
 "edges": [["x", "f"], ["f", "b"]], "outputs": ["b"]}"#;

    #[test]
    fn the_documented_example_reads_and_writes_back() {
        let graph = Graph::from_json(GOOD).unwrap();
        assert_eq!(graph.order(), [0, 1, 2]);
        assert_eq!(graph.reads(2), [1]);
        assert_eq!(graph.readers(0), [1]);
        assert!(graph.reads(99).is_empty() && !graph.required(99));
        assert_eq!(Graph::from_json(&graph.to_json()), Ok(graph));
    }

    #[test]
    fn bad_files_are_told_apart() {
        let bad = |from: &str, to: &str| {
            assert!(GOOD.contains(from), "{from}");
            Graph::from_json(&GOOD.replace(from, to)).unwrap_err()
        };
        let message = |from: &str, to: &str| bad(from, to).to_string();
        for end in 0..GOOD.len() {
            let error = Graph::from_json(&GOOD[..end]).unwrap_err();
            assert!(matches!(error, GraphError::Format(FormatError::Truncated { .. })), "{end}: {error}");
        }
        assert!(message("graph/1", "graph/2").contains(r#"expected "rekindle.graph/1""#));
        assert!(message("\"model\"", "\"modell\"").contains("unknown field `modell`"));
        assert!(message("\"time_ns\": 5", "\"time_ns\": -5").contains("integer `-5`"));
        assert!(message("\"forward\"", "\"sideways\"").contains("unknown variant `sideways`"));
        assert!(message("\"name\": \"f\"", "\"name\": \"two words\"").contains("is not a name"));
        assert_eq!(
            message("\"name\": \"f\"", "\"name\": \"b\""),
            "the name `b` stands twice among the nodes"
        );
        assert_eq!(
            message("[\"f\", \"b\"]", "[\"f\", \"c\"]"),
            "the edge from `f` to `c` names `c`, but no node has that name"
        );
        assert_eq!(message("[\"f\", \"b\"]", "[\"x\", \"f\"]"), "the edge from `x` to `f` stands twice");
        assert_eq!(message("[\"x\", \"f\"]", "[\"b\", \"f\"]"), "the graph has a cycle through `b`, `f`");
        assert_eq!(message("[\"f\", \"b\"]", "[\"b\", \"b\"]"), "the graph has a cycle through `b`");
        assert_eq!(message("[\"b\"]", "[\"b\", \"b\"]"), "the output `b` stands twice");
        assert_eq!(bad("\"outputs\": [\"b\"]", "\"outputs\": []"), GraphError::NoOutputs);
        assert!(message("[\"x\", \"f\"]", "[\"f\", \"x\"]").contains("`x` reads another node"));
        assert!(message("16", "18446744073709551615").contains("more than 2^64"));
        assert!(message("\"time_ns\": 5", "\"time_ns\": 18446744073709551615").contains("more than 2^64"));
        let error = Graph::new("m", "d", vec![], vec![], None).unwrap_err();
        assert_eq!(error.to_string(), "the graph of `m` has no nodes, expected at least one");
    }

    #[test]
    fn the_fingerprint_is_of_structure_and_sizes_not_of_times() {
        let of = |text: &str| Graph::from_json(text).unwrap().fingerprint();
        assert_eq!(of(GOOD), of(&GOOD.replace("\"time_ns\": 5", "\"time_ns\": 6")));
        assert_eq!(of(GOOD), of(&GOOD.replace("\"workspace_bytes\": 3", "\"workspace_bytes\": 4")));
        for (from, to) in [("16", "17"), ("true", "false"), ("[\"x\", \"f\"], ", ""), ("\"m\"", "\"n\"")] {
            assert_ne!(of(GOOD), of(&GOOD.replace(from, to)), "{from}");
        }
    }
}
