//! rekindle for Python: the planner and the executor, without a framework. `rekindle.torch` stands on it.
//!
//! Each file carries one idea and one or two classes; here they get their place in the module `rekindle._core`. The
//! documentation of what Python sees is Python's own, so that `help()` shows it and its examples run under pytest.

mod arguments;
mod errors;
mod estimate;
mod explanation;
mod frontier;
mod graph;
mod graph_plan;
mod interruptible;
mod pictures;
mod places;
mod plan;
mod profile;
mod run;
mod simulation;
mod sizes;
mod solve;
mod stage;
mod values;

use pyo3::pymodule;

/// What `rekindle` is made of; import it from there.
#[pymodule]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::estimate::{PyEstimate, PyEstimateRow, estimate, presets};
    #[pymodule_export]
    use crate::explanation::{PyExplanation, PyStageStory, PyStay, explain};
    #[pymodule_export]
    use crate::frontier::{PyFrontier, PyFrontierPoint, frontier};
    #[pymodule_export]
    use crate::graph::{PyGraph, PyGraphNode};
    #[pymodule_export]
    use crate::graph_plan::{PyGraphPlan, PyGraphPredicted, PyGraphSimulation, plan_graph, simulate_graph};
    #[pymodule_export]
    use crate::places::{PyCodec, PyTier};
    #[pymodule_export]
    use crate::plan::{PyPlan, PyPredicted};
    #[pymodule_export]
    use crate::profile::PyProfile;
    #[pymodule_export]
    use crate::run::{Executor, Schedule, Storage, measure};
    #[pymodule_export]
    use crate::simulation::{PyMoment, PySimulation, simulate};
    #[pymodule_export]
    use crate::sizes::{format_bytes, parse_bytes};
    #[pymodule_export]
    use crate::solve::{plan, smallest_budget, solvers};
    #[pymodule_export]
    use crate::stage::{PyStageProfile, PyTapeOption};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
