//! A plan: the actions of one step, and what they are predicted to cost.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyString, PyType};
use rekindle_plan::{Action, Bytes, Gap, Plan, Predicted, Status};

use crate::arguments::wrong_type;
use crate::errors::Refusal;
use crate::pictures;
use crate::profile::PyProfile;
use crate::values;

/// What the simulator said of a plan.
///
/// Attributes
/// ----------
/// peak_bytes : int
///     The most bytes alive at once.
/// step_ns : int
///     How long the step takes.
/// recompute_ns : int
///     How much of it goes to forwards that ran before.
/// lower_bound_ns : int
///     A time that no plan of the solver's class within the budget can beat.
/// forwards : int
///     How many stage forwards the step runs, taped ones included.
#[pyclass(frozen, eq, module = "rekindle", name = "Predicted")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PyPredicted(Predicted);

#[pymethods]
impl PyPredicted {
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

    /// How much of it goes to forwards that ran before.
    #[getter]
    fn recompute_ns(&self) -> u64 {
        self.0.recompute_ns.get()
    }

    /// A time that no plan of the solver's class within the budget can beat.
    #[getter]
    fn lower_bound_ns(&self) -> u64 {
        self.0.lower_bound_ns.get()
    }

    /// How many stage forwards the step runs, taped ones included.
    #[getter]
    fn forwards(&self) -> u64 {
        self.0.forwards
    }

    fn __repr__(&self) -> String {
        format!(
            "Predicted(peak_bytes={}, step_ns={}, recompute_ns={}, lower_bound_ns={}, forwards={})",
            self.peak_bytes(),
            self.step_ns(),
            self.recompute_ns(),
            self.lower_bound_ns(),
            self.forwards()
        )
    }

    fn __hash__(&self) -> u64 {
        values::hash(&self.__repr__())
    }
}

/// The ordered actions for one step, with what they are predicted to cost and the model they are for.
///
/// A plan is made by :func:`plan`, read from a file, or given as text to :func:`simulate`. It is a sequence of its
/// actions. A plan that comes from :func:`plan` remembers its profile, so that a notebook can draw it; one that comes from
/// a file is drawn by :func:`simulate`.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> stages = [rekindle.StageProfile(f"block.{i}", 1, 8, 10, 20) for i in range(4)]
/// >>> profile = rekindle.Profile("four", "cpu", 1, stages)
/// >>> plan = rekindle.plan(profile, budget=20)
/// >>> plan
/// Plan('optimal', status='optimal', budget=20 B, peak=20 B, step=140 ns, recompute=20 ns, actions=14)
/// >>> plan[:4]
/// ['tape 1', 'keep x1', 'forward 2', 'keep x2']
/// >>> plan.predicted.peak_bytes <= plan.budget_bytes
/// True
#[pyclass(frozen, sequence, module = "rekindle", name = "Plan")]
#[derive(Clone, Debug)]
pub(crate) struct PyPlan {
    pub(crate) inner: Arc<Plan>,
    /// The profile it was made for, where it was made here.
    pub(crate) profile: Option<PyProfile>,
}

impl PyPlan {
    /// A plan that was made for a profile.
    pub(crate) fn of(plan: Plan, profile: &PyProfile) -> Self {
        Self { inner: Arc::new(plan), profile: Some(profile.clone()) }
    }

    /// A plan, or actions of somebody's own.
    pub(crate) fn given(profile: &PyProfile, found: &Bound<'_, PyAny>) -> PyResult<Self> {
        match found.cast::<Self>() {
            Ok(plan) => Ok(plan.get().clone()),
            Err(_) => judged(profile, actions(found)?, "custom"),
        }
    }
}

/// Actions from their text.
fn actions(found: &Bound<'_, PyAny>) -> PyResult<Vec<Action>> {
    // Text is an iterable of letters, and a plan is none of what else cannot be gone through.
    if found.is_instance_of::<PyString>() || found.try_iter().is_err() {
        return Err(wrong_type("plan", "Plan, or a list of actions such as [\"forward 1\"]", found));
    }
    values::list(found, |action| {
        let text: String =
            action.extract().map_err(|_| wrong_type("actions", "text such as \"forward 1\"", action))?;
        Ok(text.parse::<Action>().map_err(Refusal::from)?)
    })
}

#[pymethods]
impl PyPlan {
    /// Read a plan from JSON (``rekindle.plan/1``). It is not judged before :func:`simulate`.
    ///
    /// Raises
    /// ------
    /// PlanError
    ///     If the text is not a plan of this version.
    #[classmethod]
    fn from_json(_class: &Bound<'_, PyType>, text: &str) -> Result<Self, Refusal> {
        Ok(Self { inner: Arc::new(Plan::from_json(text)?), profile: None })
    }

    /// Read a plan from a file. It is not judged before :func:`simulate`.
    #[classmethod]
    fn load(class: &Bound<'_, PyType>, path: PathBuf) -> PyResult<Self> {
        let text = values::read(&path, "PlanError")?;
        Ok(Self::from_json(class, &text)?)
    }

    /// A plan of your own actions, judged for a profile.
    ///
    /// Parameters
    /// ----------
    /// profile : Profile
    ///     The model it is for.
    /// actions : iterable of str
    ///     What to do, one action a line, such as ``"tape 3"``.
    /// solver : str, default "custom"
    ///     Who made it.
    ///
    /// Raises
    /// ------
    /// IllegalPlan
    ///     With the first action that cannot run, and why.
    ///
    /// Examples
    /// --------
    /// >>> import rekindle
    /// >>> profile = rekindle.Profile("one", "cpu", 1, [rekindle.StageProfile("a", 1, 8)])
    /// >>> rekindle.Plan.of_actions(profile, ["tape 1", "backward 1"]).predicted.peak_bytes
    /// 10
    #[classmethod]
    #[pyo3(signature = (profile, actions, solver="custom"))]
    fn of_actions(
        _class: &Bound<'_, PyType>,
        profile: &Bound<'_, PyProfile>,
        actions: &Bound<'_, PyAny>,
        solver: &str,
    ) -> PyResult<Self> {
        judged(profile.get(), self::actions(actions)?, solver)
    }

    /// Write the plan to a file. What was there stays until the new text is complete.
    fn save(&self, path: PathBuf) -> PyResult<()> {
        values::write(&path, &format!("{}\n", self.inner.to_json()))
    }

    /// The plan as JSON (``rekindle.plan/1``), as the ``rekindle`` command reads it.
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

    /// The most that may be left to gain, as a fraction of its time: 0 when it is optimal, ``None`` when nothing is proven.
    #[getter]
    fn gap(&self) -> Option<f64> {
        match self.inner.status {
            Status::Optimal => Some(0.0),
            Status::Feasible(gap) => Some(Gap::get(gap)),
            _ => None,
        }
    }

    /// The budget it was made for, if there was one.
    #[getter]
    fn budget_bytes(&self) -> Option<u64> {
        self.inner.budget_bytes.map(Bytes::get)
    }

    /// The fingerprint of the profile it is for.
    #[getter]
    fn fingerprint(&self) -> &str {
        &self.inner.fingerprint
    }

    /// What the simulator said of it.
    #[getter]
    fn predicted(&self) -> PyPredicted {
        PyPredicted(self.inner.predicted)
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
            "Plan({}, status={}{budget}, peak={}, step={}, recompute={}, actions={})",
            values::quoted(&plan.solver),
            values::quoted(&plan.status.to_string()),
            plan.predicted.peak_bytes,
            plan.predicted.step_ns,
            plan.predicted.recompute_ns,
            plan.actions.len()
        )
    }

    fn _repr_html_(&self) -> String {
        pictures::plan(self)
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

/// A plan of somebody's own actions.
fn judged(profile: &PyProfile, actions: Vec<Action>, solver: &str) -> PyResult<PyPlan> {
    // It follows a rule of the user's own, and claims nothing.
    let status = Status::Rule("custom".parse().map_err(Refusal::from)?);
    let plan = Plan::judged(&profile.inner, solver.to_owned(), status, None, actions);
    Ok(PyPlan::of(plan.map_err(Refusal::from)?, profile))
}
