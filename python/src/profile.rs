//! What is known of a model before it is planned.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyType};
use rekindle_plan::{Bytes, Plan, Profile, Rule};

use crate::arguments::{size, wrong_type};
use crate::errors::Refusal;
use crate::pictures;
use crate::places::{PyCodec, PyTier};
use crate::stage::PyStageProfile;
use crate::values;

/// A chain of stages with their sizes and times, and the places where boundaries can go.
///
/// A profile is checked when it is made and does not change. It is a sequence of its stages.
///
/// Parameters
/// ----------
/// model : str
///     What people call the model.
/// device : str
///     What the stages were measured on.
/// input_bytes : int or str
///     The size of the region's input.
/// stages : iterable of StageProfile
///     The stages, first to last; at least one.
/// tiers : iterable of Tier, default ()
///     Where boundaries can be offloaded to.
/// codecs : iterable of Codec, default ()
///     What boundaries can be compressed with.
///
/// Raises
/// ------
/// ProfileError
///     If there is no stage, or one that cannot be planned.
///
/// See Also
/// --------
/// plan : The fastest plan for a budget.
/// estimate : Profiles of known architectures, counted before anything is built.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> block = rekindle.StageProfile("block", "1MiB", "32MiB", 1_000_000, 2_000_000)
/// >>> profile = rekindle.Profile("gpt", "cpu", "1MiB", [block.replace(name=f"block.{i}") for i in range(24)])
/// >>> profile
/// Profile('gpt', 'cpu', stages=24, input=1.0 MiB, store_all=770.0 MiB)
/// >>> len(profile), profile[-1].name
/// (24, 'block.23')
#[pyclass(frozen, eq, sequence, module = "rekindle", name = "Profile")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PyProfile {
    pub(crate) inner: Arc<Profile>,
}

impl From<Profile> for PyProfile {
    fn from(profile: Profile) -> Self {
        Self { inner: Arc::new(profile) }
    }
}

impl PyProfile {
    /// What keeping every tape takes; `None` where that cannot be written down.
    fn store_all(&self) -> Option<Bytes> {
        Plan::by_rule(&self.inner, Rule::StoreAll, None).ok().map(|plan| plan.predicted.peak_bytes)
    }
}

fn stage(found: &Bound<'_, PyAny>) -> PyResult<rekindle_plan::StageProfile> {
    let stage = found.cast::<PyStageProfile>().map_err(|_| wrong_type("stages", "StageProfile", found))?;
    Ok(stage.get().0.clone())
}

fn tiers(found: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<rekindle_plan::Tier>> {
    let Some(found) = found else { return Ok(Vec::new()) };
    values::list(found, |tier| {
        let tier = tier.cast::<PyTier>().map_err(|_| wrong_type("tiers", "Tier", tier))?;
        Ok(tier.get().0.clone())
    })
}

fn codecs(found: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<rekindle_plan::Codec>> {
    let Some(found) = found else { return Ok(Vec::new()) };
    values::list(found, |codec| {
        let codec = codec.cast::<PyCodec>().map_err(|_| wrong_type("codecs", "Codec", codec))?;
        Ok(codec.get().0.clone())
    })
}

#[pymethods]
impl PyProfile {
    #[new]
    #[pyo3(signature = (model, device, input_bytes, stages, tiers=None, codecs=None),
        text_signature = "(model, device, input_bytes, stages, tiers=(), codecs=())")]
    fn new(
        model: String,
        device: String,
        input_bytes: &Bound<'_, PyAny>,
        stages: &Bound<'_, PyAny>,
        tiers: Option<&Bound<'_, PyAny>>,
        codecs: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let profile =
            Profile::new(model, device, size("input_bytes", input_bytes)?, values::list(stages, stage)?)
                .map_err(Refusal::from)?;
        let profile = profile.with_places(self::tiers(tiers)?, self::codecs(codecs)?);
        Ok(profile.map_err(Refusal::from)?.into())
    }

    /// Read a profile from JSON (``rekindle.profile/1``).
    ///
    /// Raises
    /// ------
    /// ProfileError
    ///     If the text is not a profile of this version, or not one that can be planned.
    #[classmethod]
    fn from_json(_class: &Bound<'_, PyType>, text: &str) -> Result<Self, Refusal> {
        Ok(Profile::from_json(text)?.into())
    }

    /// Read a profile from a file.
    ///
    /// Raises
    /// ------
    /// OSError
    ///     If the file cannot be read.
    /// ProfileError
    ///     If it is not a profile.
    #[classmethod]
    fn load(class: &Bound<'_, PyType>, path: PathBuf) -> PyResult<Self> {
        let text = values::read(&path, "ProfileError")?;
        Ok(Self::from_json(class, &text)?)
    }

    /// Write the profile to a file. What was there stays until the new text is complete.
    fn save(&self, path: PathBuf) -> PyResult<()> {
        values::write(&path, &format!("{}\n", self.inner.to_json()))
    }

    /// The profile as JSON (``rekindle.profile/1``), as the ``rekindle`` command reads it.
    fn to_json(&self) -> String {
        self.inner.to_json()
    }

    /// What people call the model.
    #[getter]
    fn model(&self) -> &str {
        self.inner.model()
    }

    /// What the stages were measured on.
    #[getter]
    fn device(&self) -> &str {
        self.inner.device()
    }

    /// The size of the region's input.
    #[getter]
    fn input_bytes(&self) -> u64 {
        self.inner.input_bytes().get()
    }

    /// The stages, first to last.
    #[getter]
    fn stages(&self) -> Vec<PyStageProfile> {
        self.inner.stages().iter().cloned().map(PyStageProfile).collect()
    }

    /// Where boundaries can be offloaded to.
    #[getter]
    fn tiers(&self) -> Vec<PyTier> {
        self.inner.tiers().iter().cloned().map(PyTier).collect()
    }

    /// What boundaries can be compressed with.
    #[getter]
    fn codecs(&self) -> Vec<PyCodec> {
        self.inner.codecs().iter().cloned().map(PyCodec).collect()
    }

    /// What a plan must match: model, device, and of every stage its name and sizes; not its times.
    #[getter]
    fn fingerprint(&self) -> String {
        self.inner.fingerprint()
    }

    /// The time no plan can beat: every stage once forward and once back.
    #[getter]
    fn lower_bound_ns(&self) -> u64 {
        self.inner.lower_bound().get()
    }

    /// The same profile with these places for boundaries, instead of those it has.
    ///
    /// Examples
    /// --------
    /// >>> import rekindle
    /// >>> stage = rekindle.StageProfile("a", 1, 8)
    /// >>> profile = rekindle.Profile("one", "cpu", 1, [stage])
    /// >>> profile.with_places(tiers=[rekindle.Tier("host", "1GiB", "12GB", "12GB")]).tiers[0].name
    /// 'host'
    #[pyo3(signature = (tiers=None, codecs=None), text_signature = "($self, tiers=(), codecs=())")]
    fn with_places(
        &self,
        tiers: Option<&Bound<'_, PyAny>>,
        codecs: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let profile = (*self.inner).clone().with_places(self::tiers(tiers)?, self::codecs(codecs)?);
        Ok(profile.map_err(Refusal::from)?.into())
    }

    /// The same profile with these stages, instead of those it has.
    fn with_stages(&self, stages: &Bound<'_, PyAny>) -> PyResult<Self> {
        let own = &self.inner;
        let profile =
            Profile::new(own.model(), own.device(), own.input_bytes(), values::list(stages, stage)?);
        let profile =
            profile.and_then(|profile| profile.with_places(own.tiers().to_vec(), own.codecs().to_vec()));
        Ok(profile.map_err(Refusal::from)?.into())
    }

    fn __len__(&self) -> usize {
        self.inner.stages().len()
    }

    fn __getitem__(&self, index: isize) -> PyResult<PyStageProfile> {
        let stages = self.inner.stages();
        let stage = values::index(index, stages.len()).map(|index| stages[index].clone());
        stage
            .map(PyStageProfile)
            .ok_or_else(|| PyIndexError::new_err(format!("there is no stage {index} among {}", stages.len())))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.stages().into_pyobject(py)?.try_iter()
    }

    fn __repr__(&self) -> String {
        let all = self.store_all().map_or_else(|| "too large".to_owned(), |bytes| bytes.to_string());
        format!(
            "Profile({}, {}, stages={}, input={}, store_all={all})",
            values::quoted(self.model()),
            values::quoted(self.device()),
            self.__len__(),
            self.inner.input_bytes(),
        )
    }

    fn _repr_html_(&self) -> String {
        pictures::profile(&self.inner, self.store_all())
    }

    fn __hash__(&self) -> u64 {
        values::hash(&self.inner.to_json())
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        Ok((slf.get_type().getattr("from_json")?, (slf.get().to_json(),)))
    }
}
