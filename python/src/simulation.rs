//! The judge, from Python: is a plan legal, what does it hold at every action, how long does it take.

use std::sync::Arc;

use pyo3::prelude::*;
use rekindle_plan::{Bytes, Simulation};

use crate::errors::Refusal;
use crate::pictures;
use crate::plan::PyPlan;
use crate::profile::PyProfile;
use crate::values;

/// One action of a step: when it runs, and the bytes alive.
///
/// Attributes
/// ----------
/// action : str
///     The action.
/// reached_ns : int
///     When the plan gets to it; its bytes count from here until the plan gets to the next.
/// start_ns, end_ns : int
///     When its work begins and ends. Transfers work beside the computation.
/// peak_bytes : int
///     The most bytes alive while it runs.
/// after_bytes : int
///     What is left when it is over.
#[pyclass(frozen, eq, get_all, module = "rekindle", name = "Moment")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PyMoment {
    action: String,
    reached_ns: u64,
    start_ns: u64,
    end_ns: u64,
    peak_bytes: u64,
    after_bytes: u64,
}

#[pymethods]
impl PyMoment {
    fn __repr__(&self) -> String {
        format!(
            "Moment({}, reached_ns={}, start_ns={}, end_ns={}, peak_bytes={}, after_bytes={})",
            values::quoted(&self.action),
            self.reached_ns,
            self.start_ns,
            self.end_ns,
            self.peak_bytes,
            self.after_bytes
        )
    }

    fn __hash__(&self) -> u64 {
        values::hash(&self.__repr__())
    }
}

/// What the simulator found in a legal plan.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> stages = [rekindle.StageProfile(name, 1, 8, 10, 20) for name in "ab"]
/// >>> profile = rekindle.Profile("two", "cpu", 1, stages)
/// >>> simulation = rekindle.simulate(profile, ["tape 1", "tape 2", "backward 2", "backward 1"])
/// >>> simulation
/// Simulation(peak=18 B at action 2 ('backward 2'), step=60 ns, recompute=0 ns, wait=0 ns, forwards=2)
/// >>> simulation.peak_tensors
/// [('tape 1', 8), ('tape 2', 8), ('x0', 1), ('gradient of x2', 1)]
/// >>> [moment.peak_bytes for moment in simulation.memory]
/// [9, 17, 18, 10]
#[pyclass(frozen, module = "rekindle", name = "Simulation")]
#[derive(Clone, Debug)]
pub(crate) struct PySimulation {
    pub(crate) plan: PyPlan,
    pub(crate) profile: PyProfile,
    pub(crate) inner: Arc<Simulation>,
}

#[pymethods]
impl PySimulation {
    /// The plan that was judged.
    #[getter]
    fn plan(&self) -> PyPlan {
        self.plan.clone()
    }

    /// The profile it was judged for.
    #[getter]
    fn profile(&self) -> PyProfile {
        self.profile.clone()
    }

    /// The budget of the plan, if it has one.
    #[getter]
    fn budget_bytes(&self) -> Option<u64> {
        self.plan.inner.budget_bytes.map(Bytes::get)
    }

    /// The most bytes alive on the device at once.
    #[getter]
    fn peak_bytes(&self) -> u64 {
        self.inner.peak_bytes.get()
    }

    /// The index of the action that reaches them first, from 0.
    #[getter]
    fn peak_action(&self) -> usize {
        self.inner.peak_action
    }

    /// What was alive then, largest first: what it is, and its bytes.
    #[getter]
    fn peak_tensors(&self) -> Vec<(String, u64)> {
        self.inner.peak_tensors.iter().map(|live| (live.what.to_string(), live.bytes.get())).collect()
    }

    /// How long the step takes.
    #[getter]
    fn step_ns(&self) -> u64 {
        self.inner.step_ns.get()
    }

    /// How much of it goes to forwards that ran before.
    #[getter]
    fn recompute_ns(&self) -> u64 {
        self.inner.recompute_ns.get()
    }

    /// How much of it is spent waiting for transfers.
    #[getter]
    fn wait_ns(&self) -> u64 {
        self.inner.wait_ns.get()
    }

    /// The time no plan can beat: every stage once forward and once back.
    #[getter]
    fn lower_bound_ns(&self) -> u64 {
        self.profile.inner.lower_bound().get()
    }

    /// Time beyond the lower bound, as a fraction of it.
    #[getter]
    fn overhead(&self) -> f64 {
        self.inner.step_ns.ratio(self.profile.inner.lower_bound()) - 1.0
    }

    /// How many stage forwards the step runs, taped ones included.
    #[getter]
    fn forwards(&self) -> u64 {
        self.inner.forwards
    }

    /// How many actions make up the forward half.
    #[getter]
    fn turn(&self) -> usize {
        self.inner.turn
    }

    /// Memory over the step: one :class:`Moment` for every action.
    #[getter]
    fn memory(&self) -> Vec<PyMoment> {
        let actions = self.plan.inner.actions.iter();
        let rows = actions.zip(&self.inner.moments).zip(&self.inner.spans);
        rows.map(|((action, moment), span)| PyMoment {
            action: action.to_string(),
            reached_ns: span.reached.get(),
            start_ns: span.start.get(),
            end_ns: span.end.get(),
            peak_bytes: moment.peak.get(),
            after_bytes: moment.after.get(),
        })
        .collect()
    }

    fn __repr__(&self) -> String {
        let found = &self.inner;
        let action = self.plan.inner.actions.get(found.peak_action).map(ToString::to_string);
        format!(
            "Simulation(peak={} at action {} ({}), step={}, recompute={}, wait={}, forwards={})",
            found.peak_bytes,
            found.peak_action,
            values::quoted(&action.unwrap_or_default()),
            found.step_ns,
            found.recompute_ns,
            found.wait_ns,
            found.forwards
        )
    }

    fn _repr_html_(&self) -> String {
        pictures::simulation(self)
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| {
            let other = other.get();
            other.plan.inner == self.plan.inner && other.profile == self.profile
        })
    }

    fn __hash__(&self) -> u64 {
        values::hash(&self.plan.inner.to_json())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (PyProfile, PyPlan))> {
        Ok((py.import("rekindle")?.getattr("simulate")?, (self.profile.clone(), self.plan.clone())))
    }
}

/// Judge a plan: is it legal, what does it hold at every action, how long does it take.
///
/// Parameters
/// ----------
/// profile : Profile
///     The model.
/// plan : Plan or iterable of str
///     A plan, or actions of your own such as ``["tape 1", "backward 1"]``.
///
/// Returns
/// -------
/// Simulation
///     Peak, times, and memory over the step.
///
/// Raises
/// ------
/// IllegalPlan
///     With the first action that cannot run, and why.
/// OtherModel
///     If the plan was made for another profile.
/// OverBudget
///     If the plan takes more than its budget.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> profile = rekindle.Profile("one", "cpu", 1, [rekindle.StageProfile("a", 1, 8)])
/// >>> rekindle.simulate(profile, ["backward 1"])
/// Traceback (most recent call last):
/// rekindle.errors.IllegalPlan: the plan is not legal: action 0 (`backward 1`) cannot run: stage 1 needs the gradient of x1, but the forward half is not over
/// hint: docs/formats.md describes what an action needs
#[pyfunction]
pub(crate) fn simulate(
    py: Python<'_>,
    profile: &Bound<'_, PyProfile>,
    plan: &Bound<'_, PyAny>,
) -> PyResult<PySimulation> {
    let profile = profile.get().clone();
    let plan = PyPlan::given(&profile, plan)?;
    let (of, judged) = (profile.inner.clone(), plan.inner.clone());
    let found = py.detach(move || judged.judge(&of));
    let (_, simulation) = found.map_err(Refusal::from)?;
    Ok(PySimulation {
        plan: PyPlan { profile: Some(profile.clone()), ..plan },
        profile,
        inner: Arc::new(simulation),
    })
}
