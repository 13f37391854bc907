//! What training takes, before anything is built.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator};
use rekindle_estimate::{
    Asked, AttentionKind, Changes, EstimateError, Keeping, Parallel, ParsePrecisionError, Precision, Setting,
    State, presets as all_presets,
};
use rekindle_plan::{Bytes, Profile};

use crate::arguments::{self, count};
use crate::errors::Refusal;
use crate::interruptible::interruptible;
use crate::pictures;
use crate::profile::PyProfile;
use crate::values;

/// What one strategy takes.
///
/// Attributes
/// ----------
/// strategy : str
///     ``none`` keeps every tape; ``selective`` runs attention again, or what is cheapest where that keeps no
///     scores; ``full`` keeps the input of every layer; ``every-K`` that of every K-th; ``optimal-N%`` is the least
///     work within N% of none, ``optimal-full`` within what full takes, ``optimal-smallest`` within the least there is.
/// activations_bytes : int
///     What is kept between forward and backward.
/// workspace_bytes : int
///     What comes to that at the worst moment.
/// total_bytes : int
///     All of it, with weights, gradients and the optimizer's state.
/// overhead : float
///     Work beyond that of a step that keeps everything, as a fraction of it.
/// largest_batch, longest : int or None
///     The largest batch, and the longest sequence or largest picture, that fit; ``None`` where not even the least does, or
///     nobody asked.
#[pyclass(frozen, eq, get_all, module = "rekindle", name = "EstimateRow")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PyEstimateRow {
    pub(crate) strategy: String,
    pub(crate) activations_bytes: u64,
    pub(crate) workspace_bytes: u64,
    pub(crate) total_bytes: u64,
    pub(crate) overhead: f64,
    pub(crate) largest_batch: Option<u64>,
    pub(crate) longest: Option<u64>,
}

#[pymethods]
impl PyEstimateRow {
    fn __repr__(&self) -> String {
        let number = |name: &str, number: Option<u64>| {
            number.map(|number| format!(", {name}={number}")).unwrap_or_default()
        };
        format!(
            "EstimateRow({}, activations_bytes={}, workspace_bytes={}, total_bytes={}, overhead={:.4}{}{})",
            values::quoted(&self.strategy),
            self.activations_bytes,
            self.workspace_bytes,
            self.total_bytes,
            self.overhead,
            number("largest_batch", self.largest_batch),
            number("longest", self.longest)
        )
    }

    fn __hash__(&self) -> u64 {
        values::hash(&self.__repr__())
    }
}

/// What training a model takes, counted. A sequence of rows, one for each strategy.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> estimate = rekindle.estimate("gpt2", batch=8)
/// >>> estimate
/// Estimate('gpt2', parameters=124439808, batch=8, length=1024, precision='bf16', state=1.9 GiB, none=13.7 GiB in all)
/// >>> estimate["full"].activations_bytes < estimate["none"].activations_bytes
/// True
/// >>> rekindle.plan(estimate.profile, "50%").status
/// 'optimal'
#[pyclass(frozen, module = "rekindle", name = "Estimate")]
#[derive(Clone, Debug)]
pub(crate) struct PyEstimate {
    asked: Asked,
    state: State,
    pub(crate) rows: Vec<PyEstimateRow>,
    pub(crate) room: Option<Bytes>,
    rules_of_thumb: Vec<String>,
    blocks: PyProfile,
    parts: Option<PyProfile>,
    /// What it was asked for with, by the names that :func:`estimate` has for it.
    given: Vec<(&'static str, Given)>,
}

/// An argument as it was given.
#[derive(Clone, Debug, IntoPyObject)]
enum Given {
    Count(u64),
    Flag(bool),
    Text(String),
}

impl PyEstimate {
    /// The model and what it takes whatever the batch, in words.
    pub(crate) fn words(&self) -> String {
        let Asked { name, architecture, setting, .. } = &self.asked;
        format!(
            "{name}: {} parameters, {} layers; batch {}, length {}, {}; {}, {}; weights {}, gradients {}, optimizer (Adam) {}: {} whatever the batch",
            architecture.parameters(),
            architecture.layers(),
            setting.batch,
            setting.length,
            setting.precision,
            self.asked.attention(),
            self.asked.keeping(),
            self.state.weights,
            self.state.gradients,
            self.state.optimizer,
            self.state.total(),
        )
    }
}

#[pymethods]
impl PyEstimate {
    /// What the model is called.
    #[getter]
    fn model(&self) -> &str {
        &self.asked.name
    }

    /// How many weights it has.
    #[getter]
    fn parameters(&self) -> u64 {
        self.asked.architecture.parameters()
    }

    /// How many layers it has.
    #[getter]
    fn layers(&self) -> u64 {
        self.asked.architecture.layers()
    }

    /// Sequences or pictures in a step, on one rank.
    #[getter]
    fn batch(&self) -> u64 {
        self.asked.setting.batch
    }

    /// Tokens of a sequence, or pixels along a side of a picture.
    #[getter]
    fn length(&self) -> u64 {
        self.asked.setting.length
    }

    /// What activations are made of.
    #[getter]
    fn precision(&self) -> String {
        self.asked.setting.precision.to_string()
    }

    /// How attention runs, in words.
    #[getter]
    fn attention(&self) -> &'static str {
        self.asked.attention()
    }

    /// Whose tapes are counted, in words.
    #[getter]
    fn keeping(&self) -> &'static str {
        self.asked.keeping()
    }

    /// What the model computes with.
    #[getter]
    fn weights_bytes(&self) -> u64 {
        self.state.weights.get()
    }

    /// The gradients of the weights.
    #[getter]
    fn gradients_bytes(&self) -> u64 {
        self.state.gradients.get()
    }

    /// What Adam keeps.
    #[getter]
    fn optimizer_bytes(&self) -> u64 {
        self.state.optimizer.get()
    }

    /// Weights, gradients and what Adam keeps, whatever the batch is.
    #[getter]
    fn state_bytes(&self) -> u64 {
        self.state.total().get()
    }

    /// What every strategy takes.
    #[getter]
    fn rows(&self) -> Vec<PyEstimateRow> {
        self.rows.clone()
    }

    /// What people say of such a model, and what is counted.
    #[getter]
    fn rules_of_thumb(&self) -> Vec<String> {
        self.rules_of_thumb.clone()
    }

    /// A step in stages of whole layers, which :func:`plan` takes. Its times are work on a device of a teraflop a second.
    #[getter]
    fn profile(&self) -> PyProfile {
        self.blocks.clone()
    }

    /// A step in stages of parts of layers; ``None`` where the model has none.
    #[getter]
    fn parts(&self) -> Option<PyProfile> {
        self.parts.clone()
    }

    fn __len__(&self) -> usize {
        self.rows.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match key.extract::<String>() {
            Ok(strategy) => {
                let row = self.rows.iter().find(|row| row.strategy == strategy).cloned();
                let row = row.ok_or_else(|| {
                    let known = self.rows.iter().map(|row| row.strategy.clone()).collect();
                    let words = format!("there is no strategy named `{strategy}`");
                    Refusal::new("UnknownName", words).part("argument", "strategy").meaning(&strategy, known)
                })?;
                Ok(row.into_pyobject(py)?.into_any())
            }
            // A list knows indices and slices, and says what is wrong with them.
            Err(_) => self.rows().into_pyobject(py)?.get_item(key),
        }
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.rows().into_pyobject(py)?.try_iter()
    }

    fn __repr__(&self) -> String {
        let Asked { name, setting, .. } = &self.asked;
        let none =
            self.rows.first().map(|row| format!(", {}={} in all", row.strategy, Bytes::new(row.total_bytes)));
        format!(
            "Estimate({}, parameters={}, batch={}, length={}, precision='{}', state={}{})",
            values::quoted(name),
            self.parameters(),
            setting.batch,
            setting.length,
            setting.precision,
            self.state.total(),
            none.unwrap_or_default()
        )
    }

    fn _repr_html_(&self) -> String {
        pictures::estimate(self)
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| {
            let other = other.get();
            (self.words(), &self.rows, self.room) == (other.words(), &other.rows, other.room)
                && (&self.blocks, &self.parts) == (&other.blocks, &other.parts)
        })
    }

    fn __hash__(&self) -> u64 {
        values::hash(&self.words())
    }

    /// It is counted again.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, ())> {
        let arguments = PyDict::new(py);
        for (name, value) in &self.given {
            arguments.set_item(name, value.clone())?;
        }
        let count = py.import("rekindle")?.getattr("estimate")?;
        Ok((py.import("functools")?.getattr("partial")?.call((count,), Some(&arguments))?, ()))
    }
}

/// The models that :func:`estimate` knows by name, and how many parameters each has.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> rekindle.presets()["llama-7b"]
/// 6738415616
#[pyfunction]
pub(crate) fn presets(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let found = PyDict::new(py);
    for (name, architecture) in all_presets() {
        found.set_item(name, architecture.parameters())?;
    }
    Ok(found)
}

/// Count what training a known architecture takes, before anything is built.
///
/// Parameters
/// ----------
/// model : str, default "gpt2"
///     The model to begin with; :func:`presets` lists them, and the numbers below change it.
/// layers, width, heads, key_value_heads, hidden, vocabulary : int, optional
///     Numbers of a transformer of your own. Heads divide the width.
/// batch : int, default 1
///     Sequences or pictures in a step, on one rank.
/// length : int, optional
///     Tokens of a sequence, or pixels along a side of a picture; as the model is usually trained.
/// precision : {"bf16", "f16", "f32"}
///     What activations are made of.
/// attention : {"stored", "linear"}
///     Whether attention keeps every pair of positions, or runs in linear memory.
/// keeping : {"framework", "nodes"}
///     Whose operations: an ordinary framework's, or rekindle's nodes.
/// dropout : bool, optional
///     Whether there is dropout; as the model is usually trained.
/// every : int, optional
///     Recompute from every so many layers on, as a row; about the root of the layers.
/// zero : {0, 1, 2, 3}
///     What data-parallel ranks divide: 1 the optimizer's state, 2 gradients too, 3 weights too.
/// data_parallel, tensor_parallel, pipeline : int, default 1
///     Ranks: that share a batch, that a layer is split over, that the layers are spread over.
/// sequence_parallel : bool, default False
///     Cut along the sequence what a layer does not split.
/// fit : int or str, optional
///     Say what fits into this memory: the largest batch, the longest sequence.
///
/// Returns
/// -------
/// Estimate
///     A row for each strategy, and the profiles that were counted.
///
/// Raises
/// ------
/// UnknownName
///     If there is no such model or setting, with the nearest name there is.
/// EstimateError
///     If the numbers do not go together.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> estimate = rekindle.estimate("llama-7b", attention="linear")
/// >>> rekindle.format_bytes(estimate.state_bytes)
/// '100.4 GiB'
/// >>> [row.strategy for row in estimate][:3]
/// ['none', 'selective', 'full']
#[pyfunction]
#[pyo3(signature = (
    model="gpt2", *, layers=None, width=None, heads=None, key_value_heads=None, hidden=None, vocabulary=None, batch=None,
    length=None, precision="bf16", attention="stored", keeping="framework", dropout=None, every=None, zero=None,
    data_parallel=None, tensor_parallel=None, pipeline=None, sequence_parallel=false, fit=None
), text_signature = "(model=\"gpt2\", *, layers=None, width=None, heads=None, key_value_heads=None, hidden=None, \
    vocabulary=None, batch=1, length=None, precision=\"bf16\", attention=\"stored\", keeping=\"framework\", dropout=None, \
    every=None, zero=0, data_parallel=1, tensor_parallel=1, pipeline=1, sequence_parallel=False, fit=None)")]
#[allow(clippy::too_many_arguments, reason = "Python names them")]
pub(crate) fn estimate(
    py: Python<'_>,
    model: &str,
    layers: Option<&Bound<'_, PyAny>>,
    width: Option<&Bound<'_, PyAny>>,
    heads: Option<&Bound<'_, PyAny>>,
    key_value_heads: Option<&Bound<'_, PyAny>>,
    hidden: Option<&Bound<'_, PyAny>>,
    vocabulary: Option<&Bound<'_, PyAny>>,
    batch: Option<&Bound<'_, PyAny>>,
    length: Option<&Bound<'_, PyAny>>,
    precision: &str,
    attention: &str,
    keeping: &str,
    dropout: Option<bool>,
    every: Option<&Bound<'_, PyAny>>,
    zero: Option<&Bound<'_, PyAny>>,
    data_parallel: Option<&Bound<'_, PyAny>>,
    tensor_parallel: Option<&Bound<'_, PyAny>>,
    pipeline: Option<&Bound<'_, PyAny>>,
    sequence_parallel: bool,
    fit: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyEstimate> {
    let number =
        |argument, found: Option<&Bound<'_, PyAny>>| found.map(|found| count(argument, found)).transpose();
    // Ranks, and layers to recompute from: none of them is 0.
    let ranks = |argument: &'static str, found: Option<&Bound<'_, PyAny>>| match number(argument, found)? {
        Some(0) => Err(Refusal::new("ArgumentError", format!("`{argument}` is 0, expected at least 1"))
            .part("argument", argument)
            .part("found", "0")
            .into()),
        other => Ok::<_, PyErr>(other),
    };
    let usual = Asked::preset(model).ok_or_else(|| {
        let known = all_presets().map(|(name, _)| name.to_owned()).collect();
        let words = format!("there is no model named `{model}`");
        Refusal::new("UnknownName", words).part("argument", "model").meaning(model, known)
    })?;
    let changes = Changes {
        layers: number("layers", layers)?,
        width: number("width", width)?,
        heads: number("heads", heads)?,
        key_value_heads: number("key_value_heads", key_value_heads)?,
        hidden: number("hidden", hidden)?,
        vocabulary: number("vocabulary", vocabulary)?,
    };
    let usual = usual.with(&changes).map_err(refused)?;
    let mut given = vec![
        ("model", Given::Text(model.to_owned())),
        ("precision", Given::Text(precision.to_owned())),
        ("attention", Given::Text(attention.to_owned())),
        ("keeping", Given::Text(keeping.to_owned())),
        ("sequence_parallel", Given::Flag(sequence_parallel)),
    ];
    given.extend(dropout.map(|dropout| ("dropout", Given::Flag(dropout))));
    for (name, found) in [
        ("layers", layers),
        ("width", width),
        ("heads", heads),
        ("key_value_heads", key_value_heads),
        ("hidden", hidden),
        ("vocabulary", vocabulary),
        ("batch", batch),
        ("length", length),
        ("every", every),
        ("zero", zero),
        ("data_parallel", data_parallel),
        ("tensor_parallel", tensor_parallel),
        ("pipeline", pipeline),
    ] {
        given.extend(number(name, found)?.map(|count| (name, Given::Count(count))));
    }
    let setting = Setting {
        batch: number("batch", batch)?.unwrap_or(1),
        length: number("length", length)?.unwrap_or(usual.setting.length),
        precision: precision.parse::<Precision>().map_err(|error: ParsePrecisionError| {
            let known = ["f32", "bf16", "f16"].map(str::to_owned).to_vec();
            Refusal::new("UnknownName", &error).part("argument", "precision").meaning(&error.found, known)
        })?,
        dropout: dropout.unwrap_or(usual.setting.dropout),
        attention: *one_of(
            "attention",
            attention,
            &[("stored", AttentionKind::Stored), ("linear", AttentionKind::Linear)],
        )?,
        keeping: *one_of(
            "keeping",
            keeping,
            &[("framework", Keeping::Framework), ("nodes", Keeping::Nodes)],
        )?,
        tensor_parallel: ranks("tensor_parallel", tensor_parallel)?.unwrap_or(1),
        sequence_parallel,
    };
    let zero = number("zero", zero)?.unwrap_or(0);
    let parallel = Parallel {
        zero: u8::try_from(zero).ok().filter(|zero| *zero <= 3).ok_or_else(|| {
            Refusal::new("ArgumentError", format!("`zero` is {zero}, expected 0 to 3"))
                .part("argument", "zero")
                .part("found", zero.to_string())
        })?,
        data: ranks("data_parallel", data_parallel)?.unwrap_or(1),
        pipeline: ranks("pipeline", pipeline)?.unwrap_or(1),
        ..Parallel::default()
    };
    let asked = Asked { setting, parallel, every: ranks("every", every)?, ..usual };
    asked.check().map_err(refused)?;
    let room = fit.map(|fit| arguments::size("fit", fit)).transpose()?;
    given.extend(room.map(|room| ("fit", Given::Count(room.get()))));
    let found = interruptible(py, move || counted(asked, room))?;
    Ok(PyEstimate { given, ..found.map_err(refused)? })
}

/// Everything that is counted.
fn counted(asked: Asked, room: Option<Bytes>) -> Result<PyEstimate, EstimateError> {
    let state = asked.state();
    let rows = asked.rows()?.into_iter().map(|row| {
        let fit = room.map(|room| asked.fit(&row.strategy, room)).transpose()?.unwrap_or_default();
        let total: Bytes = [state.total(), row.activations_bytes, row.workspace_bytes].into_iter().sum();
        Ok(PyEstimateRow {
            strategy: row.strategy,
            activations_bytes: row.activations_bytes.get(),
            workspace_bytes: row.workspace_bytes.get(),
            total_bytes: total.get(),
            overhead: row.overhead,
            largest_batch: fit.largest_batch,
            longest: fit.longest,
        })
    });
    let rows = rows.collect::<Result<_, EstimateError>>()?;
    let profile = |profile: Profile| PyProfile { inner: Arc::new(profile) };
    Ok(PyEstimate {
        rows,
        state,
        room,
        rules_of_thumb: asked.rules_of_thumb()?,
        blocks: profile(asked.architecture.blocks(&asked.setting)?),
        parts: asked.architecture.parts(&asked.setting)?.map(profile),
        asked,
        given: Vec::new(),
    })
}

/// A setting by its name.
fn one_of<'a, T>(argument: &'static str, found: &str, known: &'a [(&str, T)]) -> Result<&'a T, Refusal> {
    let named = known.iter().find(|(name, _)| *name == found);
    named.map(|(_, value)| value).ok_or_else(|| {
        let names: Vec<String> = known.iter().map(|(name, _)| (*name).to_owned()).collect();
        let words = format!("`{found}` is no `{argument}`, expected {}", names.join(" or "));
        Refusal::new("UnknownName", words).part("argument", argument).meaning(found, names)
    })
}

fn refused(error: EstimateError) -> Refusal {
    let hint = match &error {
        EstimateError::Zero { .. } => "every size is 1 or more",
        EstimateError::Indivisible { .. } => "give numbers of which the second divides the first",
        EstimateError::NothingToChange { .. } => "leave them out, or begin with a transformer such as gpt2",
        EstimateError::OneRankOnly { .. } => "leave tensor_parallel, pipeline and keeping out",
        EstimateError::MoreRanksThanLayers { .. } => "give pipeline no more ranks than there are layers",
        EstimateError::MoreTokensThanPositions { .. } => {
            "give a shorter length, or a model with rotary positions such as llama-7b"
        }
        _ => "make the model, the batch or the length smaller",
    };
    Refusal::new("EstimateError", &error).hint(hint)
}
