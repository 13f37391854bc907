//! From Rust's errors to Python's: the same words, the same parts as attributes, and a hint.
//!
//! The classes are Python's own (`rekindle/errors.py`), so that they can be read, caught, subclassed and pickled like any
//! other. Here stands only which error becomes which class.

use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rekindle_plan::graph::{GraphError, GraphPlanError, GraphSolveError};
use rekindle_plan::{
    FormatError, Illegal, ParseActionError, ParseBytesError, ParseNameError, PlanError, PolicyError,
    ProfileError, RuleError, SolveError,
};

/// What a part of an error can be.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    Number(u64),
    Text(String),
    Names(Vec<String>),
    Nothing,
}

impl From<u64> for Part {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<usize> for Part {
    fn from(number: usize) -> Self {
        Self::Number(number as u64)
    }
}

impl From<&str> for Part {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Part {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<String>> for Part {
    fn from(names: Vec<String>) -> Self {
        Self::Names(names)
    }
}

impl<T: Into<Part>> From<Option<T>> for Part {
    fn from(part: Option<T>) -> Self {
        part.map_or(Self::Nothing, Into::into)
    }
}

impl<'py> IntoPyObject<'py> for Part {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        Ok(match self {
            Self::Number(number) => number.into_pyobject(py)?.into_any(),
            Self::Text(text) => text.into_pyobject(py)?.into_any(),
            Self::Names(names) => names.into_pyobject(py)?.into_any(),
            Self::Nothing => py.None().into_bound(py),
        })
    }
}

/// An error on its way to Python: a class of `rekindle.errors`, its words, its parts, and what to do.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    class: &'static str,
    message: String,
    hint: Option<String>,
    parts: Vec<(&'static str, Part)>,
}

impl Refusal {
    /// A refusal in these words.
    pub(crate) fn new(class: &'static str, message: impl ToString) -> Self {
        Self { class, message: message.to_string(), hint: None, parts: Vec::new() }
    }

    /// The same with what to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same with one more attribute.
    pub(crate) fn part(mut self, name: &'static str, part: impl Into<Part>) -> Self {
        self.parts.push((name, part.into()));
        self
    }

    fn raise(self, py: Python<'_>) -> PyResult<PyErr> {
        let class = py.import("rekindle.errors")?.getattr(self.class)?;
        let parts = PyDict::new(py);
        parts.set_item("hint", self.hint)?;
        for (name, part) in self.parts {
            parts.set_item(name, part)?;
        }
        Ok(PyErr::from_value(class.call((self.message,), Some(&parts))?))
    }
}

impl From<Refusal> for PyErr {
    fn from(refusal: Refusal) -> Self {
        let words = refusal.message.clone();
        Python::attach(|py| {
            // A package without its own `errors` is broken; the words are said all the same.
            refusal.raise(py).unwrap_or_else(|error| {
                let raised = PyRuntimeError::new_err(words);
                raised.set_cause(py, Some(error));
                raised
            })
        })
    }
}

impl From<ParseBytesError> for Refusal {
    fn from(error: ParseBytesError) -> Self {
        Self::new("SizeError", &error).part("found", error.found)
    }
}

impl From<ParseNameError> for Refusal {
    fn from(error: ParseNameError) -> Self {
        Self::new("ArgumentError", &error).part("found", error.found)
    }
}

impl From<ProfileError> for Refusal {
    fn from(error: ProfileError) -> Self {
        let refusal = Self::new("ProfileError", &error);
        match error {
            ProfileError::Format(error) => {
                refusal.format(&error).hint("docs/formats.md describes profiles (rekindle.profile/1)")
            }
            ProfileError::NoStages { model } => refusal.kind("no stages").part("model", model),
            ProfileError::Unnamed { stage } => refusal.kind("unnamed").at(stage.number(), None),
            ProfileError::TapeWithoutOutput { stage, name, tape_bytes, output_bytes } => refusal
                .kind("tape without output")
                .at(stage.number(), Some(name))
                .part("tape_bytes", tape_bytes.get())
                .part("output_bytes", output_bytes.get()),
            ProfileError::PassedTooMuch { stage, name, passed_bytes, input_bytes, output_bytes } => refusal
                .kind("passed too much")
                .at(stage.number(), Some(name))
                .part("passed_bytes", passed_bytes.get())
                .part("input_bytes", input_bytes.get())
                .part("output_bytes", output_bytes.get()),
            ProfileError::SavedTooMuch { stage, name, unread_ns, forward_ns } => refusal
                .kind("saved too much")
                .at(stage.number(), Some(name))
                .part("unread_ns", unread_ns.get())
                .part("forward_ns", forward_ns.get()),
            ProfileError::NamedTwice { name, among } => {
                refusal.kind("named twice").part("name", name.to_string()).part("among", among)
            }
            ProfileError::Still { name, speed } => {
                refusal.kind("still").part("name", name.to_string()).part("speed", speed)
            }
            ProfileError::TooLarge { what } => refusal.kind("too large").part("what", what),
            _ => refusal,
        }
    }
}

impl Refusal {
    fn kind(self, kind: &'static str) -> Self {
        self.part("kind", kind)
    }

    fn at(self, stage: u32, name: Option<String>) -> Self {
        self.part("stage", u64::from(stage)).part("name", name)
    }

    fn format(self, error: &FormatError) -> Self {
        match error {
            FormatError::Truncated { line, column, .. } => {
                self.kind("truncated").part("line", *line).part("column", *column)
            }
            FormatError::Invalid { .. } => self.kind("invalid"),
            FormatError::Version { found, expected, .. } => {
                self.kind("version").part("found", found.as_str()).part("expected", *expected)
            }
            _ => self,
        }
    }
}

impl From<Illegal> for Refusal {
    fn from(error: Illegal) -> Self {
        PlanError::Illegal(error).into()
    }
}

impl From<PlanError> for Refusal {
    fn from(error: PlanError) -> Self {
        let message = error.to_string();
        match error {
            PlanError::Format(error) => Self::new("PlanError", message)
                .format(&error)
                .hint("docs/formats.md describes plans (rekindle.plan/1)"),
            PlanError::Illegal(illegal) => Self::new("IllegalPlan", message)
                .hint("docs/formats.md describes what an action needs")
                .part("action_index", illegal.index)
                .part("action", illegal.action.map(|action| action.to_string()))
                .part("reason", illegal.reason.to_string()),
            PlanError::OtherModel { found, expected } => Self::new("OtherModel", message)
                .hint("plan this profile anew: sizes, stages, options or device differ")
                .part("found", found)
                .part("expected", expected),
            PlanError::OverBudget { solver, peak_bytes, budget_bytes } => Self::new("OverBudget", message)
                .hint("give a larger budget, or let solver=\"optimal\" find a plan for this one")
                .part("solver", solver)
                .part("peak_bytes", peak_bytes.get())
                .part("budget_bytes", budget_bytes.get()),
            PlanError::Rule(RuleError::TooLong { .. }) => {
                Self::new("PlanError", message).hint("give more room, or group stages into fewer")
            }
            _ => Self::new("PlanError", message),
        }
    }
}

impl From<ParseActionError> for Refusal {
    fn from(error: ParseActionError) -> Self {
        Self::new("PlanError", &error).hint("docs/formats.md describes the actions")
    }
}

impl From<PolicyError> for Refusal {
    fn from(error: PolicyError) -> Self {
        match error {
            PolicyError::Refused(error) => error.into(),
            other => Self::new("PolicyError", other).hint("docs/policies.md says what a policy can say"),
        }
    }
}

/// Why a solver has no plan. The margin is part of what to give instead.
pub(crate) fn unsolved(error: SolveError, margin: f64) -> Refusal {
    let message = error.to_string();
    match error {
        SolveError::BudgetTooSmall { solver, budget_bytes, smallest_bytes } => {
            let enough = with_margin(smallest_bytes.get(), margin);
            Refusal::new("BudgetTooSmall", message)
                .hint(format!("give budget={enough} or more"))
                .part("solver", solver)
                .part("budget_bytes", budget_bytes.get())
                .part("smallest_bytes", enough)
        }
        SolveError::TooFewSlots { solver, slots, least, stages } => Refusal::new("TooFewSlots", message)
            .hint(format!("give slots={least} or more"))
            .part("solver", solver)
            .part("slots", u64::from(slots))
            .part("least", u64::from(least))
            .part("stages", stages),
        SolveError::NothingToMeet { solver, .. } => Refusal::new("SolveError", message)
            .hint("give a budget, such as budget=\"2GiB\"")
            .kind("nothing to meet")
            .part("solver", solver),
        SolveError::Pinned { solver, stage, name } => Refusal::new("SolveError", message)
            .kind("pinned")
            .part("solver", solver)
            .at(stage.number(), Some(name)),
        SolveError::NoTier { solver, .. } => Refusal::new("SolveError", message)
            .hint("give the profile tiers: profile.with_places(tiers=[...])")
            .kind("no tier")
            .part("solver", solver),
        SolveError::TooLong { solver, .. } => Refusal::new("SolveError", message)
            .hint("give more room (budget or slots), or group stages into fewer")
            .kind("too long")
            .part("solver", solver),
        SolveError::Refused(error) => error.into(),
        _ => Refusal::new("SolveError", message),
    }
}

impl From<GraphError> for Refusal {
    fn from(error: GraphError) -> Self {
        let refusal = Self::new("GraphError", &error);
        match error {
            GraphError::Format(error) => {
                refusal.format(&error).hint("docs/formats.md describes graphs (rekindle.graph/1)")
            }
            GraphError::NoNodes { model } => refusal.kind("no nodes").part("model", model),
            GraphError::NamedTwice { name } => refusal.kind("named twice").part("name", name.to_string()),
            GraphError::UnknownNode { name, .. } => {
                refusal.kind("unknown node").part("name", name.to_string())
            }
            GraphError::EdgeTwice { from, to } => {
                refusal.kind("edge twice").part("names", vec![from.to_string(), to.to_string()])
            }
            GraphError::OutputTwice { name } => refusal.kind("output twice").part("name", name.to_string()),
            GraphError::NoOutputs => refusal.kind("no outputs"),
            GraphError::Cycle { nodes } => refusal
                .kind("cycle")
                .part("names", nodes.iter().map(ToString::to_string).collect::<Vec<String>>()),
            GraphError::BusyInput { name, .. } => refusal.kind("busy input").part("name", name.to_string()),
            GraphError::TooLarge { .. } => refusal.kind("too large"),
            GraphError::TooMany { .. } => refusal.kind("too many"),
            _ => refusal,
        }
    }
}

impl From<GraphPlanError> for Refusal {
    fn from(error: GraphPlanError) -> Self {
        let message = error.to_string();
        match error {
            GraphPlanError::Format(error) => Self::new("PlanError", message)
                .format(&error)
                .hint("docs/formats.md describes plans of graphs (rekindle.graph-plan/1)"),
            GraphPlanError::Illegal(illegal) => Self::new("IllegalPlan", message)
                .hint("docs/formats.md describes what an action needs")
                .part("action_index", illegal.index)
                .part("action", illegal.action.map(|action| action.to_string()))
                .part("reason", illegal.reason.to_string()),
            GraphPlanError::OtherGraph { found, expected } => Self::new("OtherModel", message)
                .hint("plan this graph anew: nodes, sizes, edges or device differ")
                .part("found", found)
                .part("expected", expected),
            GraphPlanError::OverBudget { solver, peak_bytes, budget_bytes } => {
                Self::new("OverBudget", message)
                    .hint("give a larger budget, or let solver=\"optimal\" find a plan for this one")
                    .part("solver", solver)
                    .part("peak_bytes", peak_bytes.get())
                    .part("budget_bytes", budget_bytes.get())
            }
            _ => Self::new("PlanError", message),
        }
    }
}

/// Why there is no plan of a graph. The margin is part of what to give instead.
pub(crate) fn unsolved_graph(error: GraphSolveError, margin: f64) -> Refusal {
    let message = error.to_string();
    match error {
        GraphSolveError::BudgetTooSmall { budget_bytes, smallest_bytes, .. } => {
            let enough = with_margin(smallest_bytes.get(), margin);
            Refusal::new("BudgetTooSmall", message)
                .hint(format!("give budget={enough} or more"))
                .part("solver", "graph")
                .part("budget_bytes", budget_bytes.get())
                .part("smallest_bytes", enough)
        }
        GraphSolveError::Refused(error) => error.into(),
        _ => Refusal::new("SolveError", message),
    }
}

/// The least budget that leaves `bytes` when the margin is taken off.
fn with_margin(bytes: u64, margin: f64) -> u64 {
    match margin > 0.0 {
        // A few bytes more than the product: it is rounded, and the margin is never too small.
        true => (bytes as f64 * (1.0 + margin) * (1.0 + 1e-9)) as u64 + 2,
        false => bytes,
    }
}

/// A file that cannot be read or written, as Python's own `OSError` with the path.
pub(crate) fn file(error: &std::io::Error, what: &str, path: &std::path::Path) -> PyErr {
    let words = format!("cannot {what}: {error}");
    match error.raw_os_error() {
        // With a number, Python makes it a FileNotFoundError, a PermissionError and so on.
        Some(number) => PyOSError::new_err((number, words, path.display().to_string())),
        None => PyOSError::new_err(format!("cannot {what} `{}`: {error}", path.display())),
    }
}
