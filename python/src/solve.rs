//! From a profile and a budget to a plan.

use pyo3::prelude::*;
use rekindle_plan::solvers::{ParseSolverError, Solver, optimal};
use rekindle_plan::{Gap, Policy, Request};

use crate::arguments::{self, Budget};
use crate::errors::{Refusal, unsolved};
use crate::interruptible::interruptible;
use crate::plan::PyPlan;
use crate::profile::PyProfile;

/// The textbook rules, which are solvers by their names too.
const RULES: [(&str, &str); 4] = [
    ("store-all", "keep every tape: nothing runs twice"),
    ("full", "keep the input only: the least memory, the most forwards"),
    ("every-K", "keep every K-th boundary, such as every-4"),
    ("sqrt", "every-K with the square root of the number of stages"),
];

/// The solvers there are, each with a line on it.
///
/// Returns
/// -------
/// dict of str to str
///     What :func:`plan` takes as ``solver``, and what each finds.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> list(rekindle.solvers())[:3]
/// ['optimal', 'revolve', 'mixed']
/// >>> rekindle.solvers()["store-all"]
/// 'keep every tape: nothing runs twice'
#[pyfunction]
pub(crate) fn solvers(py: Python<'_>) -> PyResult<Bound<'_, pyo3::types::PyDict>> {
    let found = pyo3::types::PyDict::new(py);
    for (solver, line) in Solver::ALL {
        found.set_item(solver.to_string(), line)?;
    }
    for (rule, line) in RULES {
        found.set_item(rule, line)?;
    }
    Ok(found)
}

/// A solver by its name.
fn solver(name: &str) -> Result<Solver, Refusal> {
    name.parse().map_err(|error: ParseSolverError| {
        let named = Solver::ALL.map(|(solver, _)| solver.to_string());
        let known: Vec<String> = named.into_iter().chain(RULES.map(|(rule, _)| rule.to_owned())).collect();
        let refusal = Refusal::new("UnknownName", &error);
        refusal.meaning(&error.found, known)
    })
}

impl Refusal {
    /// A name that nobody knows, with the one that was probably meant.
    pub(crate) fn meaning(self, found: &str, known: Vec<String>) -> Self {
        // As alike as clap asks for before it suggests a flag.
        let enough = 0.7;
        let alike = known.iter().map(|name| (strsim::jaro(found, name), name));
        let best = alike.max_by(|(one, _), (other, _)| one.total_cmp(other));
        let nearest = best.filter(|(likeness, _)| *likeness > enough).map(|(_, name)| name.clone());
        let hint = match &nearest {
            Some(name) => format!("did you mean \"{name}\"?"),
            None => format!("expected one of {}", known.join(", ")),
        };
        self.hint(hint).part("found", found).part("nearest", nearest).part("known", known)
    }
}

/// The plan for a budget: by default the fastest, with a proof.
///
/// Other threads run while it looks, and Ctrl-C is answered.
///
/// Parameters
/// ----------
/// profile : Profile
///     The model.
/// budget : int or str, optional
///     The most bytes the plan may take at its worst moment: ``"2GiB"``, a number of bytes, ``"40%"`` of what keeping
///     every tape takes, or ``"smallest"``.
/// solver : str, default "optimal"
///     Who finds it; :func:`solvers` lists them.
/// slots : int, optional
///     How many boundaries may be kept at once, for solvers that count slots.
/// margin : float or str, default 0
///     Leave room for everything to be this much larger than the profile says: ``0.05`` or ``"5%"``.
/// gap : float or str, default 0.01
///     Stop when the plan is proven to be this close to the fastest.
/// time_limit : float, default 10
///     Stop looking for a better plan after so many seconds.
/// policy : str, optional
///     Take what this policy says instead of a solver, such as ``"selective"`` or ``"recompute-all, keep block.*.attention"``.
///
/// Returns
/// -------
/// Plan
///     A plan that the simulator has judged: legal, and within the budget.
///
/// Raises
/// ------
/// BudgetTooSmall
///     If no plan fits, with the smallest budget that has one as ``smallest_bytes``.
/// UnknownName
///     If there is no such solver, with the nearest name there is.
/// PlanError
///     If the solver has no plan for another reason; see its subclasses.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> stages = [rekindle.StageProfile(f"block.{i}", "1MiB", "32MiB", 1_000_000, 2_000_000) for i in range(24)]
/// >>> profile = rekindle.Profile("gpt", "cpu", "1MiB", stages)
/// >>> plan = rekindle.plan(profile, budget="400MiB")
/// >>> plan.predicted.forwards  # twelve blocks are taped the first time; twelve run twice
/// 36
/// >>> rekindle.plan(profile, budget="30MiB")
/// Traceback (most recent call last):
/// rekindle.errors.BudgetTooSmall: `optimal` has no plan within 30.0 MiB (31457280 bytes); the smallest budget it can meet is 35.0 MiB (36700160 bytes)
/// hint: give budget=36700160 or more
#[pyfunction]
#[pyo3(signature = (
    profile, budget=None, *, solver=None, slots=None, margin=None, gap=None, time_limit=None, policy=None
), text_signature = "(profile, budget=None, *, solver=\"optimal\", slots=None, margin=0.0, gap=0.01, time_limit=10.0, \
    policy=None)")]
#[allow(clippy::too_many_arguments, reason = "Python names them")]
pub(crate) fn plan(
    py: Python<'_>,
    profile: &Bound<'_, PyProfile>,
    budget: Option<&Bound<'_, PyAny>>,
    solver: Option<&str>,
    slots: Option<&Bound<'_, PyAny>>,
    margin: Option<&Bound<'_, PyAny>>,
    gap: Option<&Bound<'_, PyAny>>,
    time_limit: Option<&Bound<'_, PyAny>>,
    policy: Option<&str>,
) -> PyResult<PyPlan> {
    let profile = profile.get();
    let budget = budget.map(Budget::new).transpose()?;
    if let Some(policy) = policy {
        let others =
            [solver.is_some(), slots.is_some(), margin.is_some(), gap.is_some(), time_limit.is_some()];
        if others.contains(&true) {
            let words = "`policy` is given together with what a solver is asked for; expected one of them";
            return Err(Refusal::new("ArgumentError", words)
                .hint("leave solver, slots, margin, gap and time_limit out")
                .part("argument", "policy")
                .into());
        }
        return under_policy(profile, budget, policy);
    }
    let solver = self::solver(solver.unwrap_or("optimal"))?;
    if matches!(solver, Solver::Optimal | Solver::Eager | Solver::Rule(_)) && slots.is_some() {
        return Err(Refusal::new(
            "ArgumentError",
            format!("`slots` is given, but `{solver}` counts no slots"),
        )
        .hint("give a budget instead, or a solver that counts slots, such as revolve")
        .part("argument", "slots")
        .into());
    }
    let mut request = Request::default();
    if let Some(slots) = slots {
        let slots = arguments::count("slots", slots)?;
        // More slots than that are as good as any number.
        request.slots = Some(u32::try_from(slots).unwrap_or(u32::MAX));
    }
    if let Some(margin) = margin {
        request.margin = arguments::fraction("margin", margin)?;
    }
    if let Some(gap) = gap {
        request.gap = Gap::new(arguments::fraction("gap", gap)?).unwrap_or(request.gap);
    }
    if let Some(limit) = time_limit {
        request.time_limit = arguments::seconds("time_limit", limit)?;
    }
    let of = profile.inner.clone();
    let margin = request.margin;
    let found = interruptible(py, move || {
        request.budget_bytes = budget.map(|budget| budget.bytes(&of)).transpose()?;
        solver.solve(&of, &request).map_err(|error| unsolved(error, margin))
    })?;
    Ok(PyPlan::of(found?, profile))
}

/// The plan that a policy says.
fn under_policy(profile: &PyProfile, budget: Option<Budget>, policy: &str) -> PyResult<PyPlan> {
    let policy: Policy = policy.parse().map_err(|error: rekindle_plan::ParsePolicyError| {
        Refusal::new("PolicyError", error).hint("docs/policies.md says what a policy can say")
    })?;
    let plan = match budget.map(|budget| budget.bytes(&profile.inner)).transpose()? {
        Some(budget) => policy.plan_within(&profile.inner, budget),
        None => policy.plan(&profile.inner),
    };
    Ok(PyPlan::of(plan.map_err(Refusal::from)?, profile))
}

/// The smallest budget there is a plan for, to the byte.
///
/// Parameters
/// ----------
/// profile : Profile
///     The model.
///
/// Returns
/// -------
/// int
///     Bytes. One byte less is refused by :func:`plan`.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> stages = [rekindle.StageProfile(f"block.{i}", 1, 8, 1, 2) for i in range(4)]
/// >>> rekindle.smallest_budget(rekindle.Profile("four", "cpu", 1, stages))
/// 11
#[pyfunction]
pub(crate) fn smallest_budget(py: Python<'_>, profile: &Bound<'_, PyProfile>) -> PyResult<u64> {
    let of = profile.get().inner.clone();
    let found = interruptible(py, move || optimal::smallest_budget(&of))?;
    Ok(found.map_err(|error| unsolved(error, 0.0))?.get())
}
