//! Plans of graphs: made, read, judged.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyString, PyType};
use rekindle_plan::graph::{
    GraphAction, GraphPlan, GraphPlanError, GraphPredicted, GraphSimulation, knapsack_selection, min_cut,
    solve_watched,
};
use rekindle_plan::solvers::Solver;
use rekindle_plan::{Bytes, Gap, Nanos, Request, Rule, Status};

use crate::arguments::{self, Budget, wrong_type};
use crate::errors::{Refusal, unsolved_graph};
use crate::graph::PyGraph;
use crate::interruptible::interruptible;
use crate::pictures;
use crate::values;

/// What the simulator said of a plan of a graph.
///
/// Attributes
/// ----------
/// peak_bytes : int
///     The most bytes alive at once.
/// step_ns : int
///     How long the step takes.
/// recompute_ns : int
///     How much of it goes to nodes that were computed before.
/// lower_bound_ns : int
///     A time that no plan within the budget can beat.
/// computes : int
///     How many nodes the step computes, again and again included.
#[pyclass(frozen, eq, module = "rekindle", name = "GraphPredicted")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PyGraphPredicted(GraphPredicted);

#[pymethods]
impl PyGraphPredicted {
    /// The most bytes alive at once.
    #[getter]
    fn peak_bytes(&self) -> u64 {
        self.0.peak_bytes.get()
    }

    /// How long the step takes.
    #[getter]
    fn step_ns(&self) -> u64 {
        self.0.step_ns.get()
    }

    /// How much of it goes to nodes that were computed before.
    #[getter]
    fn recompute_ns(&self) -> u64 {
        self.0.recompute_ns.get()
    }

    /// A time that no plan within the budget can beat.
    #[getter]
    fn lower_bound_ns(&self) -> u64 {
        self.0.lower_bound_ns.get()
    }

    /// How many nodes the step computes, again and again included.
    #[getter]
    fn computes(&self) -> u64 {
        self.0.computes
    }

    fn __repr__(&self) -> String {
        format!(
            "GraphPredicted(peak_bytes={}, step_ns={}, recompute_ns={}, lower_bound_ns={}, computes={})",
            self.peak_bytes(),
            self.step_ns(),
            self.recompute_ns(),
            self.lower_bound_ns(),
            self.computes()
        )
    }

    fn __hash__(&self) -> u64 {
        values::hash(&self.__repr__())
    }
}

/// What to compute and to free in one step of a graph, and what that is predicted to cost.
///
/// It is a sequence of its actions: ``"compute conv.3"``, ``"free conv.3"``.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> nodes = [rekindle.GraphNode(name, "forward", 1, 4) for name in "ab"]
/// >>> graph = rekindle.Graph("two", "none", nodes, ["ab"])
/// >>> plan = rekindle.plan_graph(graph, budget=8)
/// >>> plan
/// GraphPlan('graph', status='optimal', budget=8 B, peak=8 B, step=2 ns, recompute=0 ns, actions=3)
/// >>> list(plan)
/// ['compute a', 'compute b', 'free a']
#[pyclass(frozen, sequence, module = "rekindle", name = "GraphPlan")]
#[derive(Clone, Debug)]
pub(crate) struct PyGraphPlan {
    pub(crate) inner: Arc<GraphPlan>,
}

impl From<GraphPlan> for PyGraphPlan {
    fn from(plan: GraphPlan) -> Self {
        Self { inner: Arc::new(plan) }
    }
}

/// A plan, or actions of somebody's own.
fn given(graph: &PyGraph, found: &Bound<'_, PyAny>) -> PyResult<PyGraphPlan> {
    if let Ok(plan) = found.cast::<PyGraphPlan>() {
        return Ok(plan.get().clone());
    }
    // Text is an iterable of letters.
    if found.is_instance_of::<PyString>() || found.try_iter().is_err() {
        return Err(wrong_type("plan", "GraphPlan, or a list of actions such as [\"compute a\"]", found));
    }
    let actions = values::list(found, |action| {
        let text: String =
            action.extract().map_err(|_| wrong_type("actions", "text such as \"compute a\"", action))?;
        let refused = |error| Refusal::new("PlanError", error).hint("docs/formats.md describes the actions");
        Ok(text.parse::<GraphAction>().map_err(refused)?)
    })?;
    // It follows a rule of the user's own, and claims nothing.
    let status = Status::Rule("custom".parse().map_err(Refusal::from)?);
    let plan = GraphPlan::judged(&graph.inner, "custom".to_owned(), status, None, Nanos::ZERO, actions);
    Ok(plan.map_err(Refusal::from)?.into())
}

#[pymethods]
impl PyGraphPlan {
    /// Read a plan from JSON (``rekindle.graph-plan/1``). It is not judged before :func:`simulate_graph`.
    ///
    /// Raises
    /// ------
    /// PlanError
    ///     If the text is not a plan of this version.
    #[classmethod]
    fn from_json(_class: &Bound<'_, PyType>, text: &str) -> Result<Self, Refusal> {
        Ok(GraphPlan::from_json(text)?.into())
    }

    /// Read a plan from a file. It is not judged before :func:`simulate_graph`.
    #[classmethod]
    fn load(class: &Bound<'_, PyType>, path: PathBuf) -> PyResult<Self> {
        let text = values::read(&path, "PlanError")?;
        Ok(Self::from_json(class, &text)?)
    }

    /// Write the plan to a file. What was there stays until the new text is complete.
    fn save(&self, path: PathBuf) -> PyResult<()> {
        values::write(&path, &format!("{}\n", self.inner.to_json()))
    }

    /// The plan as JSON (``rekindle.graph-plan/1``), as the ``rekindle`` command reads it.
    fn to_json(&self) -> String {
        self.inner.to_json()
    }

    /// What to do, one text each.
    #[getter]
    fn actions(&self) -> Vec<String> {
        self.inner.actions.iter().map(ToString::to_string).collect()
    }

    /// Who made it.
    #[getter]
    fn solver(&self) -> &str {
        &self.inner.solver
    }

    /// How good it is known to be: ``optimal``, ``feasible``, or the name of a rule, which claims nothing.
    #[getter]
    fn status(&self) -> String {
        match &self.inner.status {
            Status::Optimal => "optimal".to_owned(),
            Status::Feasible(_) => "feasible".to_owned(),
            other => other.to_string(),
        }
    }

    /// The most that may be left to gain, as a fraction of its time: from the proven lower bound.
    #[getter]
    fn gap(&self) -> f64 {
        self.inner.gap()
    }

    /// The budget it was made for, if there was one.
    #[getter]
    fn budget_bytes(&self) -> Option<u64> {
        self.inner.budget_bytes.map(Bytes::get)
    }

    /// The fingerprint of the graph it is for.
    #[getter]
    fn fingerprint(&self) -> &str {
        &self.inner.fingerprint
    }

    /// What the simulator said of it.
    #[getter]
    fn predicted(&self) -> PyGraphPredicted {
        PyGraphPredicted(self.inner.predicted)
    }

    fn __len__(&self) -> usize {
        self.inner.actions.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        // A list knows indices and slices, and says what is wrong with them.
        self.actions().into_pyobject(py)?.get_item(index)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.actions().into_pyobject(py)?.try_iter()
    }

    fn __repr__(&self) -> String {
        let plan = &self.inner;
        let budget = plan.budget_bytes.map(|bytes| format!(", budget={bytes}")).unwrap_or_default();
        format!(
            "GraphPlan({}, status={}{budget}, peak={}, step={}, recompute={}, actions={})",
            values::quoted(&plan.solver),
            values::quoted(&plan.status.to_string()),
            plan.predicted.peak_bytes,
            plan.predicted.step_ns,
            plan.predicted.recompute_ns,
            plan.actions.len()
        )
    }

    fn _repr_html_(&self) -> String {
        pictures::graph_plan(&self.inner)
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| other.get().inner == self.inner)
    }

    fn __hash__(&self) -> u64 {
        values::hash(&self.inner.to_json())
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        Ok((slf.get_type().getattr("from_json")?, (slf.get().to_json(),)))
    }
}

/// What the simulator found in a legal plan of a graph.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> nodes = [rekindle.GraphNode("a", "forward", 1, 3), rekindle.GraphNode("b", "forward", 1, 4, workspace_bytes=2)]
/// >>> graph = rekindle.Graph("two", "none", nodes, ["ab"])
/// >>> simulation = rekindle.simulate_graph(graph, ["compute a", "compute b", "free a"])
/// >>> simulation
/// GraphSimulation(peak=9 B at action 1 ('compute b'), step=2 ns, recompute=0 ns, computes=2)
/// >>> simulation.peak_values
/// [('b', 4), ('a', 3), ('workspace of b', 2)]
/// >>> simulation.memory
/// [(3, 3), (9, 7), (7, 4)]
#[pyclass(frozen, module = "rekindle", name = "GraphSimulation")]
#[derive(Clone, Debug)]
pub(crate) struct PyGraphSimulation {
    plan: PyGraphPlan,
    graph: PyGraph,
    inner: Arc<GraphSimulation>,
}

#[pymethods]
impl PyGraphSimulation {
    /// The plan that was judged.
    #[getter]
    fn plan(&self) -> PyGraphPlan {
        self.plan.clone()
    }

    /// The graph it was judged for.
    #[getter]
    fn graph(&self) -> PyGraph {
        self.graph.clone()
    }

    /// The most bytes alive at once.
    #[getter]
    fn peak_bytes(&self) -> u64 {
        self.inner.peak_bytes.get()
    }

    /// The index of the action that reaches them first, from 0; ``None`` when the inputs alone are the peak.
    #[getter]
    fn peak_action(&self) -> Option<usize> {
        self.inner.peak_action
    }

    /// What was alive then, largest first: what it is, and its bytes.
    #[getter]
    fn peak_values(&self) -> Vec<(String, u64)> {
        let words = |live: &rekindle_plan::graph::GraphLive| match live.workspace {
            true => format!("workspace of {}", live.node),
            false => live.node.to_string(),
        };
        self.inner.peak_values.iter().map(|live| (words(live), live.bytes.get())).collect()
    }

    /// How long the step takes.
    #[getter]
    fn step_ns(&self) -> u64 {
        self.inner.step_ns.get()
    }

    /// How much of it goes to nodes that were computed before.
    #[getter]
    fn recompute_ns(&self) -> u64 {
        self.inner.recompute_ns.get()
    }

    /// How many nodes the step computes, again and again included.
    #[getter]
    fn computes(&self) -> u64 {
        self.inner.computes
    }

    /// Memory over the step: for every action the most bytes alive while it runs, and what is left when it is over.
    #[getter]
    fn memory(&self) -> Vec<(u64, u64)> {
        self.inner.moments.iter().map(|moment| (moment.peak.get(), moment.after.get())).collect()
    }

    fn __repr__(&self) -> String {
        let found = &self.inner;
        let action = found.peak_action.and_then(|at| Some((at, self.plan.inner.actions.get(at)?)));
        let at = match action {
            Some((at, action)) => format!("action {at} ({})", values::quoted(&action.to_string())),
            None => "the start".to_owned(),
        };
        format!(
            "GraphSimulation(peak={} at {at}, step={}, recompute={}, computes={})",
            found.peak_bytes, found.step_ns, found.recompute_ns, found.computes
        )
    }

    fn _repr_html_(&self) -> String {
        pictures::graph_simulation(&self.__repr__(), &self.peak_values())
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| {
            let other = other.get();
            other.plan.inner == self.plan.inner && other.graph == self.graph
        })
    }

    fn __hash__(&self) -> u64 {
        values::hash(&self.plan.inner.to_json())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (PyGraph, PyGraphPlan))> {
        Ok((py.import("rekindle")?.getattr("simulate_graph")?, (self.graph.clone(), self.plan.clone())))
    }
}

/// Who plans graphs.
#[derive(Clone, Copy)]
enum Planner {
    Optimal,
    StoreAll,
    MinCut,
    Knapsack,
}

fn planner(name: &str) -> Result<Planner, Refusal> {
    let known = || ["optimal", "store-all", "min-cut", "knapsack"].map(str::to_owned).to_vec();
    match (name, name.parse::<Solver>()) {
        ("graph", _) | (_, Ok(Solver::Optimal)) => Ok(Planner::Optimal),
        (_, Ok(Solver::Rule(Rule::StoreAll))) => Ok(Planner::StoreAll),
        ("min-cut", _) => Ok(Planner::MinCut),
        ("knapsack", _) => Ok(Planner::Knapsack),
        (_, Ok(solver)) => {
            let words = format!("`{solver}` plans chains, but this is a graph (rekindle.graph/1)");
            Err(Refusal::new("UnknownName", words).meaning(name, known()).part("argument", "solver"))
        }
        (_, Err(_)) => {
            let words = format!("`{name}` is not a solver of graphs: expected {}", known().join(", "));
            Err(Refusal::new("UnknownName", words).meaning(name, known()).part("argument", "solver"))
        }
    }
}

/// Says that nobody waits any more when it goes.
struct Stops(Arc<AtomicBool>);

impl Drop for Stops {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The plan of a graph for a budget: by default the fastest there is over all plans, with a proven lower bound.
///
/// Other threads run while it looks, and Ctrl-C stops it.
///
/// Parameters
/// ----------
/// graph : Graph
///     The graph.
/// budget : int or str, optional
///     The most bytes the plan may take at its worst moment: ``"2GiB"``, a number of bytes, or ``"40%"`` of what computing
///     every node once takes. Without one nothing is computed twice.
/// solver : str, default "optimal"
///     ``"optimal"``; ``"store-all"`` (nothing twice); ``"min-cut"`` (the least bytes between forward and backward, whatever that
///     costs); or ``"knapsack"`` (the fastest for a budget between forward and backward, as ``torch.compile`` counts).
/// margin : float or str, default 0
///     Leave room for everything to be this much larger than the graph says: ``0.05`` or ``"5%"``.
/// gap : float or str, default 0.01
///     Stop when the plan is proven to be this close to the fastest.
/// time_limit : float, default 10
///     Stop looking for a better plan after so many seconds.
///
/// Returns
/// -------
/// GraphPlan
///     A plan that the simulator has judged: legal and, but for ``"knapsack"``, within the budget.
///
/// Raises
/// ------
/// BudgetTooSmall
///     If no plan is found that fits, with the smallest budget that has one as ``smallest_bytes``.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> node = lambda name, kind: rekindle.GraphNode(name, kind, time_ns=1, bytes=1)
/// >>> nodes = [node(name, "forward") for name in "abc"] + [node(name, "backward") for name in "de"]
/// >>> graph = rekindle.Graph("five", "none", nodes, ["ab", "bc", "cd", "bd", "de", "ae"])
/// >>> rekindle.plan_graph(graph, budget=3).predicted.step_ns  # one of five nodes is computed twice
/// 6
/// >>> rekindle.plan_graph(graph, budget=2)
/// Traceback (most recent call last):
/// rekindle.errors.BudgetTooSmall: `graph` has no plan within 2 B (2 bytes); the smallest budget any plan can meet is 3 B (3 bytes)
/// hint: give budget=3 or more
#[pyfunction]
#[pyo3(signature = (graph, budget=None, *, solver=None, margin=None, gap=None, time_limit=None),
    text_signature = "(graph, budget=None, *, solver=\"optimal\", margin=0.0, gap=0.01, time_limit=10.0)")]
pub(crate) fn plan_graph(
    py: Python<'_>,
    graph: &Bound<'_, PyGraph>,
    budget: Option<&Bound<'_, PyAny>>,
    solver: Option<&str>,
    margin: Option<&Bound<'_, PyAny>>,
    gap: Option<&Bound<'_, PyAny>>,
    time_limit: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyGraphPlan> {
    let graph = graph.get();
    let planner = planner(solver.unwrap_or("optimal"))?;
    let budget_bytes = match budget.map(Budget::new).transpose()? {
        None => None,
        Some(Budget::Bytes(bytes)) => Some(bytes),
        Some(Budget::Part(part)) => Some(Bytes::new((graph.store_all()?.get() as f64 * part) as u64)),
        Some(Budget::Smallest) => {
            let words = "`smallest` is given as the budget of a graph, whose smallest is not always known";
            return Err(Refusal::new("SizeError", words)
                .hint("BudgetTooSmall.smallest_bytes says the smallest that was found, as of budget=0")
                .part("found", "smallest")
                .part("argument", "budget")
                .into());
        }
    };
    let mut request = Request { budget_bytes, ..Request::default() };
    if let Some(margin) = margin {
        request.margin = arguments::fraction("margin", margin)?;
    }
    if let Some(gap) = gap {
        request.gap = Gap::new(arguments::fraction("gap", gap)?).unwrap_or(request.gap);
    }
    if let Some(limit) = time_limit {
        request.time_limit = arguments::seconds("time_limit", limit)?;
    }
    let usable = request.budget_bytes.map(|_| request.usable_bytes());
    let of = graph.inner.clone();
    let stops = Stops(Arc::new(AtomicBool::new(false)));
    let stopped = stops.0.clone();
    let found = interruptible(py, move || -> Result<GraphPlan, Refusal> {
        let within = |plan: Result<GraphPlan, GraphPlanError>| {
            let mut plan = plan?;
            plan.budget_bytes = request.budget_bytes;
            Ok(plan)
        };
        let unsolved = |error| unsolved_graph(error, request.margin);
        match planner {
            Planner::Optimal => {
                solve_watched(&of, &request, &mut |_| match stopped.load(Ordering::Relaxed) {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                })
                .map_err(unsolved)
            }
            Planner::StoreAll => within(GraphPlan::store_all(&of, usable)),
            Planner::MinCut => within(min_cut(&of).plan(&of, usable)),
            Planner::Knapsack => {
                let Some(budget) = usable else {
                    return Err(Refusal::new("SolveError", "`knapsack` needs a budget")
                        .hint("give a budget, such as budget=\"2GiB\"")
                        .part("kind", "nothing to meet")
                        .part("solver", "knapsack"));
                };
                // The budget is for what stays between forward and backward; the peak is what it is.
                let selection = knapsack_selection(&of, budget).map_err(unsolved)?;
                Ok(selection.plan(&of, None)?)
            }
        }
    })?;
    drop(stops);
    Ok(found?.into())
}

/// Judge a plan of a graph: is it legal, what does it hold at every action, how long does it take.
///
/// Parameters
/// ----------
/// graph : Graph
///     The graph.
/// plan : GraphPlan or iterable of str
///     A plan, or actions of your own such as ``["compute a", "free a"]``.
///
/// Returns
/// -------
/// GraphSimulation
///     Peak, times, and memory over the step.
///
/// Raises
/// ------
/// IllegalPlan
///     With the first action that cannot run, and why.
/// OtherModel
///     If the plan was made for another graph.
/// OverBudget
///     If the plan takes more than its budget.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> graph = rekindle.Graph("one", "none", [rekindle.GraphNode("a", "forward", 1, 3)])
/// >>> rekindle.simulate_graph(graph, ["free a"])
/// Traceback (most recent call last):
/// rekindle.errors.IllegalPlan: the plan is not legal: action 0 (`free a`) cannot run: `a` is not there, and cannot be freed
/// hint: docs/formats.md describes what an action needs
#[pyfunction]
pub(crate) fn simulate_graph(
    py: Python<'_>,
    graph: &Bound<'_, PyGraph>,
    plan: &Bound<'_, PyAny>,
) -> PyResult<PyGraphSimulation> {
    let graph = graph.get().clone();
    let plan = given(&graph, plan)?;
    let (of, judged) = (graph.inner.clone(), plan.inner.clone());
    let simulation = py.detach(move || judged.judge(&of)).map_err(Refusal::from)?;
    Ok(PyGraphSimulation { plan, graph, inner: Arc::new(simulation) })
}
