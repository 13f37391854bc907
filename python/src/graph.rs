//! A graph of values: what is planned where a chain of stages says too little.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyString, PyTuple, PyType};
use rekindle_plan::graph::{Graph, GraphPlan, Kind, Node};
use rekindle_plan::{Bytes, Name};

use crate::arguments::{nanos, size, wrong_type};
use crate::errors::Refusal;
use crate::pictures;
use crate::values;

const KINDS: [(&str, Kind); 3] =
    [("input", Kind::Input), ("forward", Kind::Forward), ("backward", Kind::Backward)];

/// The name of a kind, as files have it.
pub(crate) fn kind_name(kind: Kind) -> &'static str {
    KINDS.iter().find(|(_, known)| *known == kind).map_or("forward", |(name, _)| name)
}

/// One value of a graph, and what it takes to make it.
///
/// Parameters
/// ----------
/// name : str
///     The name plans use for it: letters, digits, ``-``, ``_`` and ``.``.
/// kind : "input", "forward" or "backward"
///     An input is there before the step begins and costs no time. The loss is part of the forward pass.
/// time_ns : int, default 0
///     How long it takes to compute, every time.
/// bytes : int or str, default 0
///     What its value takes, from when it is computed until it is freed.
/// workspace_bytes : int or str, default 0
///     What is alive only while it is computed.
/// pinned : bool, default False
///     It must be computed once only: randomness that cannot be replayed, effects outside.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> rekindle.GraphNode("conv.3", "forward", time_ns=1_200_000, bytes="5MiB")
/// GraphNode('conv.3', 'forward', time_ns=1200000, bytes=5242880)
#[pyclass(frozen, eq, module = "rekindle", name = "GraphNode")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PyGraphNode(pub(crate) Node);

#[pymethods]
impl PyGraphNode {
    #[new]
    #[pyo3(signature = (name, kind, time_ns=None, bytes=None, *, workspace_bytes=None, pinned=false),
        text_signature = "(name, kind, time_ns=0, bytes=0, *, workspace_bytes=0, pinned=False)")]
    fn new(
        name: &str,
        kind: &str,
        time_ns: Option<&Bound<'_, PyAny>>,
        bytes: Option<&Bound<'_, PyAny>>,
        workspace_bytes: Option<&Bound<'_, PyAny>>,
        pinned: bool,
    ) -> PyResult<Self> {
        let Some((_, found)) = KINDS.iter().find(|(known, _)| *known == kind) else {
            let known = KINDS.map(|(known, _)| known.to_owned()).to_vec();
            let words = format!("`{kind}` is not a kind of node: expected input, forward or backward");
            return Err(Refusal::new("UnknownName", words)
                .meaning(kind, known)
                .part("argument", "kind")
                .into());
        };
        let zero = || Ok(Bytes::ZERO);
        let mut node = Node::new(
            name.parse().map_err(Refusal::from)?,
            *found,
            time_ns.map_or(Ok(rekindle_plan::Nanos::ZERO), |time| nanos("time_ns", time))?,
            bytes.map_or_else(zero, |bytes| size("bytes", bytes))?,
        );
        node.workspace_bytes = workspace_bytes.map_or_else(zero, |bytes| size("workspace_bytes", bytes))?;
        node.pinned = pinned;
        Ok(Self(node))
    }

    /// The name plans use for it.
    #[getter]
    fn name(&self) -> &str {
        self.0.name.as_str()
    }

    /// What it is: ``"input"``, ``"forward"`` or ``"backward"``.
    #[getter]
    fn kind(&self) -> &'static str {
        kind_name(self.0.kind)
    }

    /// How long it takes to compute, every time.
    #[getter]
    fn time_ns(&self) -> u64 {
        self.0.time_ns.get()
    }

    /// What its value takes.
    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes.get()
    }

    /// What is alive only while it is computed.
    #[getter]
    fn workspace_bytes(&self) -> u64 {
        self.0.workspace_bytes.get()
    }

    /// Whether it must be computed once only.
    #[getter]
    fn pinned(&self) -> bool {
        self.0.pinned
    }

    fn __repr__(&self) -> String {
        let workspace = match self.workspace_bytes() {
            0 => String::new(),
            bytes => format!(", workspace_bytes={bytes}"),
        };
        let pinned = if self.pinned() { ", pinned=True" } else { "" };
        format!(
            "GraphNode({}, {}, time_ns={}, bytes={}{workspace}{pinned})",
            values::quoted(self.name()),
            values::quoted(self.kind()),
            self.time_ns(),
            self.bytes()
        )
    }

    fn __hash__(&self) -> u64 {
        values::hash(&self.__repr__())
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let given = (self.name(), self.kind(), self.time_ns(), self.bytes());
        let named = PyDict::new(py);
        named.set_item("workspace_bytes", self.workspace_bytes())?;
        named.set_item("pinned", self.pinned())?;
        Ok((given.into_pyobject(py)?, named))
    }
}

/// Values, each made from the values of the nodes it reads: residuals across blocks, two towers, single operations.
///
/// A graph is checked when it is made and does not change. It is a sequence of its nodes. A chain of stages is planned better
/// as a :class:`Profile`, which knows tapes, options and tiers.
///
/// Parameters
/// ----------
/// model : str
///     What people call the model.
/// device : str
///     What the nodes were measured on.
/// nodes : iterable of GraphNode
///     The nodes, in any order; at least one.
/// edges : iterable of (str, str), default ()
///     Pairs of names: the second node reads the value of the first.
/// outputs : iterable of str, optional
///     What must be there at the end; without it, all nodes that nobody reads.
///
/// Raises
/// ------
/// GraphError
///     If there is no node, a name that is none or stands twice, or a cycle.
///
/// See Also
/// --------
/// plan_graph : The fastest plan for a budget.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> node = lambda name, kind: rekindle.GraphNode(name, kind, time_ns=1, bytes=1)
/// >>> nodes = [node(name, "forward") for name in "abc"] + [node(name, "backward") for name in "de"]
/// >>> graph = rekindle.Graph("five", "none", nodes, ["ab", "bc", "cd", "bd", "de", "ae"])
/// >>> graph
/// Graph('five', 'none', nodes=5, edges=6, outputs=1, store_all=4 B)
/// >>> graph.reads("d"), graph.outputs
/// (['c', 'b'], ['e'])
/// >>> graph["a"].kind
/// 'forward'
#[pyclass(frozen, eq, sequence, module = "rekindle", name = "Graph")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PyGraph {
    pub(crate) inner: Arc<Graph>,
}

impl From<Graph> for PyGraph {
    fn from(graph: Graph) -> Self {
        Self { inner: Arc::new(graph) }
    }
}

impl PyGraph {
    /// What keeping every value until its last reader takes.
    pub(crate) fn store_all(&self) -> Result<Bytes, Refusal> {
        Ok(GraphPlan::store_all(&self.inner, None)?.predicted.peak_bytes)
    }

    fn names(&self, nodes: &[usize]) -> Vec<String> {
        nodes.iter().map(|&node| self.inner.nodes()[node].name.to_string()).collect()
    }

    fn index(&self, name: &str) -> Result<usize, Refusal> {
        let nodes = self.inner.nodes();
        nodes.iter().position(|node| node.name.as_str() == name).ok_or_else(|| {
            let refusal = Refusal::new("UnknownName", format!("the graph has no node `{name}`"));
            // A graph may have more names than anybody reads.
            match nodes.len() > 32 {
                true => refusal.hint("`nodes` has the names there are").part("found", name),
                false => refusal.meaning(name, nodes.iter().map(|node| node.name.to_string()).collect()),
            }
        })
    }
}

fn name(argument: &'static str, found: &Bound<'_, PyAny>) -> PyResult<Name> {
    let text: String = found.extract().map_err(|_| wrong_type(argument, "the name of a node", found))?;
    Ok(text.parse().map_err(Refusal::from)?)
}

fn edge(found: &Bound<'_, PyAny>) -> PyResult<(Name, Name)> {
    let refused = || wrong_type("edges", "pairs of names such as (\"a\", \"b\")", found);
    let pair = found.try_iter().map_err(|_| refused())?;
    let names: Vec<Bound<'_, PyAny>> = pair.collect::<PyResult<_>>()?;
    match names.as_slice() {
        [from, to] => Ok((name("edges", from)?, name("edges", to)?)),
        _ => Err(refused()),
    }
}

#[pymethods]
impl PyGraph {
    #[new]
    #[pyo3(signature = (model, device, nodes, edges=None, outputs=None),
        text_signature = "(model, device, nodes, edges=(), outputs=None)")]
    fn new(
        model: String,
        device: String,
        nodes: &Bound<'_, PyAny>,
        edges: Option<&Bound<'_, PyAny>>,
        outputs: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let nodes = values::list(nodes, |node| {
            let node = node.cast::<PyGraphNode>().map_err(|_| wrong_type("nodes", "GraphNode", node))?;
            Ok(node.get().0.clone())
        })?;
        let edges = edges.map(|edges| values::list(edges, edge)).transpose()?.unwrap_or_default();
        let outputs =
            outputs.map(|outputs| values::list(outputs, |found| name("outputs", found))).transpose()?;
        Ok(Graph::new(model, device, nodes, edges, outputs).map_err(Refusal::from)?.into())
    }

    /// Read a graph from JSON (``rekindle.graph/1``).
    ///
    /// Raises
    /// ------
    /// GraphError
    ///     If the text is not a graph of this version, or not one that can be planned.
    #[classmethod]
    fn from_json(_class: &Bound<'_, PyType>, text: &str) -> Result<Self, Refusal> {
        Ok(Graph::from_json(text)?.into())
    }

    /// Read a graph from a file.
    #[classmethod]
    fn load(class: &Bound<'_, PyType>, path: PathBuf) -> PyResult<Self> {
        let text = values::read(&path, "GraphError")?;
        Ok(Self::from_json(class, &text)?)
    }

    /// Write the graph to a file. What was there stays until the new text is complete.
    fn save(&self, path: PathBuf) -> PyResult<()> {
        values::write(&path, &format!("{}\n", self.inner.to_json()))
    }

    /// The graph as JSON (``rekindle.graph/1``), as the ``rekindle`` command reads it.
    fn to_json(&self) -> String {
        self.inner.to_json()
    }

    /// What people call the model.
    #[getter]
    fn model(&self) -> &str {
        self.inner.model()
    }

    /// What the nodes were measured on.
    #[getter]
    fn device(&self) -> &str {
        self.inner.device()
    }

    /// The nodes, as given.
    #[getter]
    fn nodes(&self) -> Vec<PyGraphNode> {
        self.inner.nodes().iter().cloned().map(PyGraphNode).collect()
    }

    /// Pairs of names, by the node that reads.
    #[getter]
    fn edges(&self) -> Vec<(String, String)> {
        let nodes = self.inner.nodes();
        let of = |to: usize| {
            let reads = self.inner.reads(to).iter();
            reads.map(move |&from| (nodes[from].name.to_string(), nodes[to].name.to_string()))
        };
        (0..nodes.len()).flat_map(of).collect()
    }

    /// The names of what must be there at the end.
    #[getter]
    fn outputs(&self) -> Vec<String> {
        self.names(self.inner.outputs())
    }

    /// The names of all nodes, each after all that it reads.
    #[getter]
    fn order(&self) -> Vec<String> {
        self.names(self.inner.order())
    }

    /// The names of the nodes that a node reads.
    fn reads(&self, name: &str) -> PyResult<Vec<String>> {
        Ok(self.names(self.inner.reads(self.index(name)?)))
    }

    /// The names of the nodes that read a node.
    fn readers(&self, name: &str) -> PyResult<Vec<String>> {
        Ok(self.names(self.inner.readers(self.index(name)?)))
    }

    /// The time no plan can beat: every node that is needed once.
    #[getter]
    fn lower_bound_ns(&self) -> u64 {
        self.inner.lower_bound().get()
    }

    /// What a plan must match: model, device, and of every node its name, kind, size and what it reads; not its time.
    #[getter]
    fn fingerprint(&self) -> String {
        self.inner.fingerprint()
    }

    fn __len__(&self) -> usize {
        self.inner.nodes().len()
    }

    fn __getitem__(&self, at: &Bound<'_, PyAny>) -> PyResult<PyGraphNode> {
        let nodes = self.inner.nodes();
        if let Ok(name) = at.cast::<PyString>() {
            return Ok(PyGraphNode(nodes[self.index(&name.to_cow()?)?].clone()));
        }
        let index: isize = at.extract().map_err(|_| wrong_type("index", "a number or a name", at))?;
        let node = values::index(index, nodes.len()).map(|index| nodes[index].clone());
        let refused = || PyIndexError::new_err(format!("there is no node {index} among {}", nodes.len()));
        node.map(PyGraphNode).ok_or_else(refused)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.nodes().into_pyobject(py)?.try_iter()
    }

    fn __repr__(&self) -> String {
        let all = self.store_all().map_or_else(|_| "too large".to_owned(), |bytes| bytes.to_string());
        format!(
            "Graph({}, {}, nodes={}, edges={}, outputs={}, store_all={all})",
            values::quoted(self.model()),
            values::quoted(self.device()),
            self.__len__(),
            (0..self.__len__()).map(|node| self.inner.reads(node).len()).sum::<usize>(),
            self.inner.outputs().len(),
        )
    }

    fn _repr_html_(&self) -> String {
        pictures::graph(&self.inner, self.store_all().ok())
    }

    fn __hash__(&self) -> u64 {
        values::hash(&self.inner.to_json())
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        Ok((slf.get_type().getattr("from_json")?, (slf.get().to_json(),)))
    }
}
