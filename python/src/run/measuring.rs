//! Measures the stages of an engine in Python.

use pyo3::prelude::*;
use rekindle_run::{MeasureError, Measuring};

use super::engine::{Handle, PythonEngine};
use crate::errors::Refusal;

/// Runs each kind of stage a few times, forth and back. Gives a profile as JSON, whether the engine could tell how much
/// memory is in use, the noise of the times, and how many kinds of stages there are.
#[pyfunction]
#[pyo3(signature = (engine, input, model, device, runs, options, progress=None))]
pub(crate) fn measure(
    engine: Bound<'_, PyAny>,
    input: Py<PyAny>,
    model: String,
    device: String,
    runs: usize,
    options: bool,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<(String, bool, f64, usize)> {
    let mut engine = PythonEngine(engine).hold();
    let mut told = Ok(());
    let mut tell = |stage: rekindle_plan::Stage, name: &str| {
        if let Some(progress) = &progress
            && told.is_ok()
        {
            told = progress.call1((stage.number(), name)).map(|_| ());
        }
    };
    let measuring = Measuring { runs, options, ..Measuring::steady() };
    let found = rekindle_run::measure(&mut engine, Handle::new(input), measuring, &mut tell);
    told?;
    let found = found.map_err(|error| match error {
        MeasureError::Stage { source, .. } => source,
        other => Refusal::new("RunError", other).into(),
    })?;
    let (sized, noise, kinds) = (found.sized, found.noise(), found.kinds);
    let profile = found.into_profile(model, device).map_err(Refusal::from)?;
    Ok((profile.to_json(), sized, noise, kinds))
}
