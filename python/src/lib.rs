//! rekindle for Python: the planner and the executor, without a framework. `rekindle.torch` stands on it.

use pyo3::prelude::*;

#[pymodule]
mod _core {
    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
