//! One stage of a profile, and the ways to keep its tape.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rekindle_plan::{Bytes, Nanos, StageProfile, TapeOption};

use crate::arguments::{nanos, size, wrong_type};
use crate::errors::Refusal;
use crate::values;

/// Another way to keep a stage's tape.
///
/// Parameters
/// ----------
/// name : str
///     The name plans use for it: letters, digits, ``-``, ``_`` and ``.``.
/// tape_bytes : int or str
///     What a taped forward keeps under it, the output included.
/// forward_ns, backward_ns : int
///     How long the forward and the backward take under it.
/// backward_extra_bytes : int or str, optional
///     What is alive only while its backward runs, when that is not what the stage says.
/// taped_extra_bytes : int or str, optional
///     What is alive only while its forward runs, beyond input and tape, when that is not what the stage says.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> rekindle.TapeOption("balanced", "5MiB", forward_ns=1_200_000, backward_ns=2_900_000)
/// TapeOption('balanced', tape_bytes=5242880, forward_ns=1200000, backward_ns=2900000)
#[pyclass(frozen, eq, module = "rekindle", name = "TapeOption")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PyTapeOption(pub(crate) TapeOption);

#[pymethods]
impl PyTapeOption {
    #[new]
    #[pyo3(signature = (
        name, tape_bytes, forward_ns, backward_ns, *, backward_extra_bytes=None, taped_extra_bytes=None
    ))]
    fn new(
        name: &str,
        tape_bytes: &Bound<'_, PyAny>,
        forward_ns: &Bound<'_, PyAny>,
        backward_ns: &Bound<'_, PyAny>,
        backward_extra_bytes: Option<&Bound<'_, PyAny>>,
        taped_extra_bytes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        Ok(Self(TapeOption {
            name: name.parse().map_err(Refusal::from)?,
            tape_bytes: size("tape_bytes", tape_bytes)?,
            forward_ns: nanos("forward_ns", forward_ns)?,
            backward_ns: nanos("backward_ns", backward_ns)?,
            taped_extra_bytes: taped_extra_bytes.map(|bytes| size("taped_extra_bytes", bytes)).transpose()?,
            backward_extra_bytes: backward_extra_bytes
                .map(|bytes| size("backward_extra_bytes", bytes))
                .transpose()?,
        }))
    }

    /// The name plans use for it.
    #[getter]
    fn name(&self) -> &str {
        self.0.name.as_str()
    }

    /// What a taped forward keeps under it, the output included.
    #[getter]
    fn tape_bytes(&self) -> u64 {
        self.0.tape_bytes.get()
    }

    /// How long the forward takes under it.
    #[getter]
    fn forward_ns(&self) -> u64 {
        self.0.forward_ns.get()
    }

    /// How long the backward takes under it.
    #[getter]
    fn backward_ns(&self) -> u64 {
        self.0.backward_ns.get()
    }

    /// What is alive only while its backward runs, when that is not what the stage says.
    #[getter]
    fn backward_extra_bytes(&self) -> Option<u64> {
        self.0.backward_extra_bytes.map(Bytes::get)
    }

    /// What is alive only while its forward runs, beyond input and tape, when that is not what the stage says.
    #[getter]
    fn taped_extra_bytes(&self) -> Option<u64> {
        self.0.taped_extra_bytes.map(Bytes::get)
    }

    fn __repr__(&self) -> String {
        let extra = self.backward_extra_bytes().map(|bytes| format!(", backward_extra_bytes={bytes}"));
        let taped = self.taped_extra_bytes().map(|bytes| format!(", taped_extra_bytes={bytes}"));
        format!(
            "TapeOption({}, tape_bytes={}, forward_ns={}, backward_ns={}{}{})",
            values::quoted(self.name()),
            self.tape_bytes(),
            self.forward_ns(),
            self.backward_ns(),
            extra.unwrap_or_default(),
            taped.unwrap_or_default()
        )
    }

    fn __hash__(&self) -> u64 {
        values::hash(&self.__repr__())
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let given = (self.name(), self.tape_bytes(), self.forward_ns(), self.backward_ns());
        let named = PyDict::new(py);
        named.set_item("backward_extra_bytes", self.backward_extra_bytes())?;
        named.set_item("taped_extra_bytes", self.taped_extra_bytes())?;
        Ok((given.into_pyobject(py)?, named))
    }
}

/// The sizes and times of one stage.
///
/// Sizes are whole numbers of bytes, or text such as ``"64MiB"``; they read back as ``int``. Times are whole nanoseconds.
///
/// Parameters
/// ----------
/// name : str
///     What people call it, such as ``block.3``.
/// output_bytes : int or str
///     The size of the boundary it makes.
/// tape_bytes : int or str
///     What a taped forward keeps, the output included.
/// forward_ns, backward_ns : int, default 0
///     How long its forward and its backward take.
/// passed_bytes : int or str, default 0
///     What of the output is memory of the input that the stage only passes on, such as a residual.
/// unread_ns : int, default 0
///     What a taped forward saves when nobody reads its output.
/// forward_extra_bytes, backward_extra_bytes : int or str, default 0
///     What is alive only while its forward, or its backward, runs.
/// taped_extra_bytes : int or str, optional
///     The same of a taped forward, when that is not as much.
/// gradient_bytes : int or str, optional
///     The size of the gradient of the boundary it makes, when that is not the boundary's own.
/// parameter_gradient_bytes : int or str, default 0
///     The gradients of its parameters: its backward leaves them.
/// pinned : bool, default False
///     It must run once only.
/// options : iterable of TapeOption, default ()
///     Other ways to keep its tape.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> stage = rekindle.StageProfile("block.0", "1MiB", "32MiB", 1_000_000, 2_000_000)
/// >>> stage
/// StageProfile('block.0', output_bytes=1048576, tape_bytes=33554432, forward_ns=1000000, backward_ns=2000000)
/// >>> stage.replace(pinned=True).pinned
/// True
#[pyclass(frozen, eq, module = "rekindle", name = "StageProfile")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PyStageProfile(pub(crate) StageProfile);

#[pymethods]
impl PyStageProfile {
    #[new]
    #[pyo3(signature = (
        name, output_bytes, tape_bytes, forward_ns=None, backward_ns=None, *, passed_bytes=None, unread_ns=None,
        forward_extra_bytes=None, backward_extra_bytes=None, gradient_bytes=None, parameter_gradient_bytes=None,
        pinned=false, options=None, taped_extra_bytes=None
    ), text_signature = "(name, output_bytes, tape_bytes, forward_ns=0, backward_ns=0, *, passed_bytes=0, unread_ns=0, \
        forward_extra_bytes=0, backward_extra_bytes=0, gradient_bytes=None, parameter_gradient_bytes=0, pinned=False, \
        options=(), taped_extra_bytes=None)")]
    #[allow(clippy::too_many_arguments, reason = "they are the fields, and Python names them")]
    fn new(
        name: String,
        output_bytes: &Bound<'_, PyAny>,
        tape_bytes: &Bound<'_, PyAny>,
        forward_ns: Option<&Bound<'_, PyAny>>,
        backward_ns: Option<&Bound<'_, PyAny>>,
        passed_bytes: Option<&Bound<'_, PyAny>>,
        unread_ns: Option<&Bound<'_, PyAny>>,
        forward_extra_bytes: Option<&Bound<'_, PyAny>>,
        backward_extra_bytes: Option<&Bound<'_, PyAny>>,
        gradient_bytes: Option<&Bound<'_, PyAny>>,
        parameter_gradient_bytes: Option<&Bound<'_, PyAny>>,
        pinned: bool,
        options: Option<&Bound<'_, PyAny>>,
        taped_extra_bytes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let bytes = |argument, found: Option<&Bound<'_, PyAny>>| {
            found.map_or(Ok(Bytes::ZERO), |found| size(argument, found))
        };
        let time = |argument, found: Option<&Bound<'_, PyAny>>| {
            found.map_or(Ok(Nanos::ZERO), |found| nanos(argument, found))
        };
        Ok(Self(StageProfile {
            name,
            output_bytes: size("output_bytes", output_bytes)?,
            tape_bytes: size("tape_bytes", tape_bytes)?,
            passed_bytes: bytes("passed_bytes", passed_bytes)?,
            forward_ns: time("forward_ns", forward_ns)?,
            backward_ns: time("backward_ns", backward_ns)?,
            unread_ns: time("unread_ns", unread_ns)?,
            forward_extra_bytes: bytes("forward_extra_bytes", forward_extra_bytes)?,
            taped_extra_bytes: taped_extra_bytes.map(|found| size("taped_extra_bytes", found)).transpose()?,
            backward_extra_bytes: bytes("backward_extra_bytes", backward_extra_bytes)?,
            gradient_bytes: gradient_bytes.map(|found| size("gradient_bytes", found)).transpose()?,
            parameter_gradient_bytes: bytes("parameter_gradient_bytes", parameter_gradient_bytes)?,
            pinned,
            options: match options {
                Some(options) => values::list(options, |option| match option.cast::<PyTapeOption>() {
                    Ok(option) => Ok(option.get().0.clone()),
                    Err(_) => Err(wrong_type("options", "TapeOption", option)),
                })?,
                None => Vec::new(),
            },
        }))
    }

    /// What people call it.
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// The size of the boundary it makes.
    #[getter]
    fn output_bytes(&self) -> u64 {
        self.0.output_bytes.get()
    }

    /// What a taped forward keeps, the output included.
    #[getter]
    fn tape_bytes(&self) -> u64 {
        self.0.tape_bytes.get()
    }

    /// How long its forward takes.
    #[getter]
    fn forward_ns(&self) -> u64 {
        self.0.forward_ns.get()
    }

    /// How long its backward takes.
    #[getter]
    fn backward_ns(&self) -> u64 {
        self.0.backward_ns.get()
    }

    /// What of the output is memory of the input that the stage only passes on.
    #[getter]
    fn passed_bytes(&self) -> u64 {
        self.0.passed_bytes.get()
    }

    /// What a taped forward saves when nobody reads its output.
    #[getter]
    fn unread_ns(&self) -> u64 {
        self.0.unread_ns.get()
    }

    /// What is alive only while its forward runs.
    #[getter]
    fn forward_extra_bytes(&self) -> u64 {
        self.0.forward_extra_bytes.get()
    }

    /// What is alive only while its taped forward runs, when that is not as much.
    #[getter]
    fn taped_extra_bytes(&self) -> Option<u64> {
        self.0.taped_extra_bytes.map(Bytes::get)
    }

    /// What is alive only while its backward runs.
    #[getter]
    fn backward_extra_bytes(&self) -> u64 {
        self.0.backward_extra_bytes.get()
    }

    /// The size of the gradient of the boundary it makes, when that is not the boundary's own.
    #[getter]
    fn gradient_bytes(&self) -> Option<u64> {
        self.0.gradient_bytes.map(Bytes::get)
    }

    /// The gradients of its parameters.
    #[getter]
    fn parameter_gradient_bytes(&self) -> u64 {
        self.0.parameter_gradient_bytes.get()
    }

    /// It must run once only.
    #[getter]
    fn pinned(&self) -> bool {
        self.0.pinned
    }

    /// Other ways to keep its tape.
    #[getter]
    fn options(&self) -> Vec<PyTapeOption> {
        self.0.options.iter().cloned().map(PyTapeOption).collect()
    }

    /// The same stage with some of its fields changed, by their names.
    ///
    /// Examples
    /// --------
    /// >>> import rekindle
    /// >>> stage = rekindle.StageProfile("block.0", "1MiB", "32MiB")
    /// >>> stage.replace(name="block.1", tape_bytes="16MiB").tape_bytes
    /// 16777216
    #[pyo3(signature = (**changes))]
    fn replace<'py>(
        slf: &Bound<'py, Self>,
        changes: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (_, fields) = slf.get().__getnewargs_ex__(slf.py())?;
        if let Some(changes) = changes {
            fields.update(changes.as_mapping())?;
        }
        slf.get_type().call((), Some(&fields))
    }

    fn __repr__(&self) -> String {
        let mut text = format!(
            "StageProfile({}, output_bytes={}, tape_bytes={}, forward_ns={}, backward_ns={}",
            values::quoted(&self.0.name),
            self.output_bytes(),
            self.tape_bytes(),
            self.forward_ns(),
            self.backward_ns()
        );
        let numbers = [
            ("passed_bytes", self.passed_bytes()),
            ("unread_ns", self.unread_ns()),
            ("forward_extra_bytes", self.forward_extra_bytes()),
            ("backward_extra_bytes", self.backward_extra_bytes()),
            ("parameter_gradient_bytes", self.parameter_gradient_bytes()),
        ];
        for (name, number) in numbers.into_iter().filter(|(_, number)| *number > 0) {
            text.push_str(&format!(", {name}={number}"));
        }
        if let Some(bytes) = self.gradient_bytes() {
            text.push_str(&format!(", gradient_bytes={bytes}"));
        }
        if let Some(bytes) = self.taped_extra_bytes() {
            text.push_str(&format!(", taped_extra_bytes={bytes}"));
        }
        if self.0.pinned {
            text.push_str(", pinned=True");
        }
        if !self.0.options.is_empty() {
            let options: Vec<String> = self.options().iter().map(PyTapeOption::__repr__).collect();
            text.push_str(&format!(", options=[{}]", options.join(", ")));
        }
        text.push(')');
        text
    }

    fn __hash__(&self) -> u64 {
        values::hash(&self.__repr__())
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let fields = PyDict::new(py);
        fields.set_item("name", self.name())?;
        fields.set_item("output_bytes", self.output_bytes())?;
        fields.set_item("tape_bytes", self.tape_bytes())?;
        fields.set_item("forward_ns", self.forward_ns())?;
        fields.set_item("backward_ns", self.backward_ns())?;
        fields.set_item("passed_bytes", self.passed_bytes())?;
        fields.set_item("unread_ns", self.unread_ns())?;
        fields.set_item("forward_extra_bytes", self.forward_extra_bytes())?;
        fields.set_item("backward_extra_bytes", self.backward_extra_bytes())?;
        fields.set_item("gradient_bytes", self.gradient_bytes())?;
        fields.set_item("parameter_gradient_bytes", self.parameter_gradient_bytes())?;
        fields.set_item("pinned", self.pinned())?;
        fields.set_item("options", self.options())?;
        fields.set_item("taped_extra_bytes", self.taped_extra_bytes())?;
        Ok((PyTuple::empty(py), fields))
    }
}
