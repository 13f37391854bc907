//! An engine in Python: what the executor asks for is asked of an object's methods.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use pyo3::{PyTypeInfo, intern};
use rekindle_plan::{Bytes, Name, Stage};
use rekindle_run::{Engine, Measurable, PackedTensor, Parcel};

/// A boundary of the engine's. Cheap to clone, also where no interpreter is at hand.
#[derive(Clone)]
pub(crate) struct Handle(Arc<Py<PyAny>>);

impl Handle {
    pub(crate) fn new(object: Py<PyAny>) -> Self {
        Self(Arc::new(object))
    }

    pub(crate) fn into_object(self, py: Python<'_>) -> Py<PyAny> {
        self.0.clone_ref(py)
    }
}

/// The engine, for as long as one call lasts.
///
/// | method | gives |
/// |---|---|
/// | `forward(stage, boundary)` | the next boundary |
/// | `tape(stage, option, boundary)` | a tape and the next boundary |
/// | `backward(stage, tape, gradient)` | the gradient of the stage's input |
/// | `boundary_bytes(boundary)` | its size |
/// | `export(boundary)` | a number, or a number and a list of `(dtype, shape, bytes)` |
/// | `restore(number, list of bytes)` | the boundary that was exported under the number |
/// | `live_bytes()`, `peak_bytes()` | what the device has in use and had since the last call; `None` when nobody knows |
///
/// An exception of the engine's is what the caller gets, with the name of the stage as a note.
pub(crate) struct PythonEngine<'py>(pub(crate) Bound<'py, PyAny>);

/// The same without a lifetime, as the executor's type wants it.
pub(crate) struct HeldEngine(Py<PyAny>);

impl PythonEngine<'_> {
    pub(crate) fn hold(self) -> HeldEngine {
        HeldEngine(self.0.unbind())
    }
}

impl HeldEngine {
    /// Calls with the engine; everything here runs with the interpreter at hand, so this takes nanoseconds.
    fn ask<T>(&self, ask: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> PyResult<T> {
        Python::attach(|py| ask(self.0.bind(py)))
    }

    fn of_stage<T>(&self, stage: Stage, ask: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> PyResult<T> {
        self.ask(|engine| ask(engine).inspect_err(|error| note(engine, stage, error)))
    }

    fn size(&self, method: &str) -> Option<Bytes> {
        let size = self.ask(|engine| engine.call_method0(method)?.extract::<Option<u64>>());
        size.ok().flatten().map(Bytes::new)
    }
}

/// Says in which stage the user's own exception was raised, where Python has notes (from 3.11).
fn note(engine: &Bound<'_, PyAny>, stage: Stage, error: &PyErr) {
    let py = engine.py();
    let name = engine.call_method1(intern!(py, "stage_name"), (stage.number(),));
    let Ok(name) = name.and_then(|name| name.extract::<String>()) else { return };
    let words = format!("in stage {stage} (`{name}`) of a checkpointed region");
    // A note is a courtesy: an exception that takes none is raised as it is.
    let _ = error.value(py).call_method1(intern!(py, "add_note"), (words,));
}

impl Engine for HeldEngine {
    type Boundary = Handle;
    type Tape = Py<PyAny>;
    type Gradient = Py<PyAny>;
    type Error = PyErr;

    fn forward(&mut self, stage: Stage, input: Handle) -> PyResult<Handle> {
        self.of_stage(stage, |engine| {
            let py = engine.py();
            let made = engine.call_method1(intern!(py, "forward"), (stage.number(), input.0.bind(py)))?;
            Ok(Handle::new(made.unbind()))
        })
    }

    fn tape(&mut self, stage: Stage, option: Option<&Name>, input: Handle) -> PyResult<(Py<PyAny>, Handle)> {
        self.of_stage(stage, |engine| {
            let py = engine.py();
            let option = option.map(Name::as_str);
            let arguments = (stage.number(), option, input.0.bind(py));
            let made = engine.call_method1(intern!(py, "tape"), arguments)?;
            let (tape, output) = made.extract::<(Py<PyAny>, Py<PyAny>)>()?;
            Ok((tape, Handle::new(output)))
        })
    }

    fn backward(&mut self, stage: Stage, tape: Py<PyAny>, gradient: Py<PyAny>) -> PyResult<Py<PyAny>> {
        self.of_stage(stage, |engine| {
            let py = engine.py();
            let arguments = (stage.number(), tape.bind(py), gradient.bind(py));
            Ok(engine.call_method1(intern!(py, "backward"), arguments)?.unbind())
        })
    }

    fn boundary_bytes(&self, boundary: &Handle) -> Bytes {
        let size = self.ask(|engine| {
            let py = engine.py();
            engine.call_method1(intern!(py, "boundary_bytes"), (boundary.0.bind(py),))?.extract::<u64>()
        });
        size.map_or(Bytes::ZERO, Bytes::new)
    }

    fn export(&mut self, boundary: &Handle) -> PyResult<Parcel> {
        self.ask(|engine| {
            let py = engine.py();
            let exported = engine.call_method1(intern!(py, "export"), (boundary.0.bind(py),))?;
            if !PyTuple::is_type_of(&exported) {
                return Ok(Parcel { tensors: Vec::new(), structure: vec![exported.extract()?] });
            }
            type Exported = (u64, Vec<(String, Vec<usize>, Vec<u8>)>);
            let (number, tensors): Exported = exported.extract()?;
            let packed = tensors.into_iter();
            let packed =
                packed.map(|(dtype, shape, bytes)| PackedTensor { dtype, shape, bytes: bytes.into() });
            Ok(Parcel { tensors: packed.collect(), structure: vec![number] })
        })
    }

    fn import(&mut self, parcel: Parcel) -> PyResult<Handle> {
        self.ask(|engine| {
            let py = engine.py();
            let bytes = parcel.tensors.iter().map(|tensor| PyBytes::new(py, tensor.bytes.as_slice()));
            let bytes = PyList::new(py, bytes)?;
            let number = parcel.structure.first().copied().unwrap_or_default();
            Ok(Handle::new(engine.call_method1(intern!(py, "restore"), (number, bytes))?.unbind()))
        })
    }

    fn live_bytes(&self) -> Option<Bytes> {
        self.size("live_bytes")
    }

    fn peak_bytes(&mut self) -> Option<Bytes> {
        self.size("peak_bytes")
    }
}

/// Beyond running stages: `stages()`, `stage_name(stage)`, `kind(stage, boundary)`, `options(stage)`,
/// `parameter_gradient_bytes(stage)`, `some_gradient(boundary)`, `forget_gradients()` and `finish()`.
impl Measurable for HeldEngine {
    fn stages(&self) -> usize {
        self.ask(|engine| engine.call_method0("stages")?.extract()).unwrap_or(0)
    }

    fn stage_name(&self, stage: Stage) -> String {
        let name = self.ask(|engine| engine.call_method1("stage_name", (stage.number(),))?.extract());
        name.unwrap_or_else(|_| format!("stage.{stage}"))
    }

    fn kind(&self, stage: Stage, input: &Handle) -> u64 {
        let kind = self.ask(|engine| {
            let arguments = (stage.number(), input.0.bind(engine.py()));
            engine.call_method1("kind", arguments)?.extract()
        });
        // A stage that nobody can describe is like no other.
        kind.unwrap_or_else(|_| u64::MAX - u64::from(stage.number()))
    }

    fn options(&self, stage: Stage) -> Vec<Name> {
        let names: PyResult<Vec<String>> =
            self.ask(|engine| engine.call_method1("options", (stage.number(),))?.extract());
        names.unwrap_or_default().iter().filter_map(|name| name.parse().ok()).collect()
    }

    fn parameter_gradient_bytes(&self, stage: Stage) -> Bytes {
        let size =
            self.ask(|engine| engine.call_method1("parameter_gradient_bytes", (stage.number(),))?.extract());
        size.map_or(Bytes::ZERO, Bytes::new)
    }

    fn some_gradient(&mut self, output: &Handle) -> PyResult<Py<PyAny>> {
        self.ask(|engine| {
            let py = engine.py();
            Ok(engine.call_method1("some_gradient", (output.0.bind(py),))?.unbind())
        })
    }

    fn forget_gradients(&mut self) {
        // What cannot be forgotten counts as workspace of what is measured next; nothing breaks.
        let _ = self.ask(|engine| engine.call_method0("forget_gradients").map(|_| ()));
    }

    fn finish(&mut self) {
        let _ = self.ask(|engine| engine.call_method0("finish").map(|_| ()));
    }
}
