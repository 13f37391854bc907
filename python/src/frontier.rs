//! The cheapest time for every budget.

use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator};
use rekindle_plan::solvers::optimal::{self, Frontier, FrontierPoint};
use rekindle_plan::{Bytes, Gap, Request};

use crate::arguments::{self, Budget};
use crate::errors::unsolved;
use crate::interruptible::interruptible;
use crate::pictures;
use crate::plan::PyPlan;
use crate::profile::PyProfile;
use crate::values;

/// A budget at which the cheapest time falls.
///
/// Attributes
/// ----------
/// budget_bytes : int
///     The budget.
/// step_ns : int
///     The time of the fastest plan found for it.
/// lower_bound_ns : int
///     A time that no plan of the class within the budget can beat.
/// overhead : float
///     Time beyond the fastest, as a fraction of it.
/// gap : float
///     The most that may be left to gain, as a fraction of the time.
#[pyclass(frozen, eq, get_all, module = "rekindle", name = "FrontierPoint")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PyFrontierPoint {
    budget_bytes: u64,
    step_ns: u64,
    lower_bound_ns: u64,
    overhead: f64,
    gap: f64,
}

#[pymethods]
impl PyFrontierPoint {
    fn __repr__(&self) -> String {
        format!(
            "FrontierPoint(budget_bytes={}, step_ns={}, lower_bound_ns={}, overhead={:.4}, gap={:.4})",
            self.budget_bytes, self.step_ns, self.lower_bound_ns, self.overhead, self.gap
        )
    }

    fn __hash__(&self) -> u64 {
        values::hash(&format!("{} {}", self.budget_bytes, self.step_ns))
    }
}

/// The cheapest time for every budget, and the plan at each. A sequence of its points, smallest budget first.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> stages = [rekindle.StageProfile(f"block.{i}", 1, 8, 1, 2) for i in range(4)]
/// >>> frontier = rekindle.frontier(rekindle.Profile("four", "cpu", 1, stages))
/// >>> frontier
/// Frontier('four', points=6, from=18 ns in 11 B, to=12 ns in 34 B)
/// >>> frontier[0].step_ns, frontier[-1].step_ns
/// (18, 12)
/// >>> frontier.plan(20).predicted.peak_bytes <= 20
/// True
#[pyclass(frozen, sequence, module = "rekindle", name = "Frontier")]
pub(crate) struct PyFrontier {
    inner: Arc<Frontier>,
    profile: PyProfile,
}

impl PyFrontier {
    fn point(&self, point: &FrontierPoint) -> PyFrontierPoint {
        PyFrontierPoint {
            budget_bytes: point.budget_bytes.get(),
            step_ns: point.step_ns.get(),
            lower_bound_ns: point.lower_bound_ns.get(),
            overhead: point.step_ns.ratio(self.profile.inner.lower_bound()) - 1.0,
            gap: Gap::between(point.lower_bound_ns, point.step_ns).get(),
        }
    }

    fn ends(&self) -> (Option<&FrontierPoint>, Option<&FrontierPoint>) {
        (self.inner.points().first(), self.inner.points().last())
    }
}

#[pymethods]
impl PyFrontier {
    /// The profile it is of.
    #[getter]
    fn profile(&self) -> PyProfile {
        self.profile.clone()
    }

    /// The budgets at which the time falls, smallest first.
    #[getter]
    fn points(&self) -> Vec<PyFrontierPoint> {
        self.inner.points().iter().map(|point| self.point(point)).collect()
    }

    /// The smallest budget there is a plan for.
    #[getter]
    fn smallest_budget_bytes(&self) -> u64 {
        self.ends().0.map_or(0, |point| point.budget_bytes.get())
    }

    /// The budget from which nothing runs twice.
    #[getter]
    fn store_all_bytes(&self) -> u64 {
        self.ends().1.map_or(0, |point| point.budget_bytes.get())
    }

    /// The time of running every stage once.
    #[getter]
    fn fastest_ns(&self) -> u64 {
        self.profile.inner.lower_bound().get()
    }

    /// Whether everything was looked at that would have been without a time limit. Otherwise there may be faster plans, and plans
    /// in less room than that of the first point. What the points say holds all the same.
    #[getter]
    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    /// The plan at a budget, at least as fast as the last point within it. Nothing is solved again.
    ///
    /// Parameters
    /// ----------
    /// budget : int or str
    ///     Bytes, text such as ``"2GiB"``, ``"40%"`` of what keeping every tape takes, or ``"smallest"``.
    ///
    /// Raises
    /// ------
    /// BudgetTooSmall
    ///     If the budget is below the smallest there is a plan for.
    fn plan(&self, py: Python<'_>, budget: &Bound<'_, PyAny>) -> PyResult<PyPlan> {
        let budget = Budget::new(budget)?;
        let (frontier, profile) = (self.inner.clone(), self.profile.inner.clone());
        let found = interruptible(py, move || {
            let budget = match budget {
                // Of a very long chain that was solved in groups, it is the smallest of those.
                Budget::Smallest => frontier.points().first().map_or(Bytes::ZERO, |point| point.budget_bytes),
                other => other.bytes(&profile)?,
            };
            frontier.plan(&profile, budget).map_err(|error| unsolved(error, 0.0))
        })?;
        Ok(PyPlan::of(found?, &self.profile))
    }

    /// The last point within a budget; ``None`` when the budget is below all of them.
    fn at(&self, budget: &Bound<'_, PyAny>) -> PyResult<Option<PyFrontierPoint>> {
        let budget = Budget::new(budget)?.bytes(&self.profile.inner)?;
        Ok(self.inner.at(budget).map(|point| self.point(point)))
    }

    fn __len__(&self) -> usize {
        self.inner.points().len()
    }

    fn __getitem__(&self, index: isize) -> PyResult<PyFrontierPoint> {
        let points = self.inner.points();
        let point = values::index(index, points.len()).map(|index| self.point(&points[index]));
        point
            .ok_or_else(|| PyIndexError::new_err(format!("there is no point {index} among {}", points.len())))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.points().into_pyobject(py)?.try_iter()
    }

    fn __repr__(&self) -> String {
        let words = |point: Option<&FrontierPoint>| {
            point.map_or_else(String::new, |point| format!("{} in {}", point.step_ns, point.budget_bytes))
        };
        let (first, last) = self.ends();
        format!(
            "Frontier({}, points={}, from={}, to={})",
            values::quoted(self.profile.inner.model()),
            self.__len__(),
            words(first),
            words(last)
        )
    }

    fn _repr_html_(&self) -> String {
        pictures::frontier(&self.profile.inner, self.inner.points())
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| {
            let other = other.get();
            other.inner.points() == self.inner.points() && other.profile == self.profile
        })
    }

    fn __hash__(&self) -> u64 {
        values::hash(&format!("{} {:?}", self.profile.inner.to_json(), self.inner.points()))
    }

    // It never changes.
    fn __copy__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __deepcopy__<'py>(slf: PyRef<'py, Self>, _memo: &Bound<'py, PyAny>) -> PyRef<'py, Self> {
        slf
    }

    /// What the plans are read from is far larger than the profile: it is solved again, for as long as it takes. One that was
    /// stopped half-way would come back as another.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (PyProfile,))> {
        if !self.inner.is_complete() {
            return Err(PyTypeError::new_err(
                "the frontier was stopped by its time limit, and would be another when it is solved again; expected a complete one: give \
                 a longer time_limit",
            ));
        }
        let arguments = PyDict::new(py);
        arguments.set_item("time_limit", f64::INFINITY)?;
        let solve = py.import("rekindle")?.getattr("frontier")?;
        let again = py.import("functools")?.getattr("partial")?.call((solve,), Some(&arguments))?;
        Ok((again, (self.profile.clone(),)))
    }
}

/// The cheapest time for every budget, from the smallest to the one that keeps everything.
///
/// Parameters
/// ----------
/// profile : Profile
///     The model.
/// time_limit : float, default 10
///     Stop looking for better plans after so many seconds.
///
/// Returns
/// -------
/// Frontier
///     Its points, and the plan at any budget.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> stages = [rekindle.StageProfile(f"block.{i}", 1, 8, 1, 2) for i in range(4)]
/// >>> for point in rekindle.frontier(rekindle.Profile("four", "cpu", 1, stages)):
/// ...     print(point.budget_bytes, point.step_ns)
/// 11 18
/// 12 16
/// 13 15
/// 19 14
/// 27 13
/// 34 12
#[pyfunction]
#[pyo3(signature = (profile, *, time_limit=None), text_signature = "(profile, *, time_limit=10.0)")]
pub(crate) fn frontier(
    py: Python<'_>,
    profile: &Bound<'_, PyProfile>,
    time_limit: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyFrontier> {
    let profile = profile.get().clone();
    let mut request = Request::default();
    if let Some(limit) = time_limit {
        request.time_limit = arguments::seconds("time_limit", limit)?;
    }
    let of = profile.inner.clone();
    let found = interruptible(py, move || optimal::frontier(&of, &request))?;
    Ok(PyFrontier { inner: Arc::new(found.map_err(|error| unsolved(error, 0.0))?), profile })
}
