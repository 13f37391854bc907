//! What a plan keeps, where, why, and what sets its peak.

use pyo3::prelude::*;
use rekindle_plan::Bytes;
use rekindle_report::kept;

use crate::errors::Refusal;
use crate::pictures;
use crate::plan::PyPlan;
use crate::profile::PyProfile;
use crate::values;

/// How a stage fares under a plan.
///
/// Attributes
/// ----------
/// stage : int
///     Its number, from 1.
/// name : str
///     Its name.
/// forwards : int
///     How often it runs forward, taped runs included.
/// taped_first : bool
///     Its tape is kept from the first run on.
/// option : str or None
///     The option its tape is kept under; ``None`` for its own.
/// tape_bytes : int
///     What that tape takes beside the input it holds on to.
#[pyclass(frozen, eq, get_all, module = "rekindle", name = "StageStory")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PyStageStory {
    stage: usize,
    name: String,
    forwards: u64,
    taped_first: bool,
    option: Option<String>,
    tape_bytes: u64,
}

#[pymethods]
impl PyStageStory {
    fn __repr__(&self) -> String {
        let option = self.option.as_ref().map(|option| format!(", option={}", values::quoted(option)));
        format!(
            "StageStory({}, {}, forwards={}, taped_first={}{}, tape_bytes={})",
            self.stage,
            values::quoted(&self.name),
            self.forwards,
            if self.taped_first { "True" } else { "False" },
            option.unwrap_or_default(),
            self.tape_bytes
        )
    }

    fn __hash__(&self) -> u64 {
        values::hash(&self.__repr__())
    }
}

/// A boundary that stays somewhere longer than it must.
///
/// Attributes
/// ----------
/// boundary : str
///     The boundary, such as ``x3``.
/// bytes : int
///     What it takes there.
/// place : str
///     ``device``, or the name of a tier or codec.
/// from_action, to_action : int
///     The actions between which it lies there.
/// runs_again : tuple of int or None
///     The first and the last stage that run again from it; ``None`` when it only comes back to the device.
#[pyclass(frozen, eq, get_all, module = "rekindle", name = "Stay")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PyStay {
    boundary: String,
    bytes: u64,
    place: String,
    from_action: usize,
    to_action: usize,
    runs_again: Option<(usize, usize)>,
}

impl PyStay {
    /// What it stays for.
    pub(crate) fn why(&self) -> String {
        match self.runs_again {
            Some((from, to)) if from == to => format!("run stage {from} again"),
            Some((from, to)) => format!("run stages {from} to {to} again"),
            None => "bring it back to the device".to_owned(),
        }
    }

    /// Where and how long, as cells of a table.
    pub(crate) fn cells(&self) -> [String; 5] {
        [
            self.boundary.clone(),
            Bytes::new(self.bytes).to_string(),
            self.place.clone(),
            format!("actions {} to {}", self.from_action, self.to_action),
            self.why(),
        ]
    }
}

#[pymethods]
impl PyStay {
    fn __repr__(&self) -> String {
        let again = self.runs_again.map_or_else(|| "None".to_owned(), |(from, to)| format!("({from}, {to})"));
        format!(
            "Stay({}, bytes={}, place={}, from_action={}, to_action={}, runs_again={again})",
            values::quoted(&self.boundary),
            self.bytes,
            values::quoted(&self.place),
            self.from_action,
            self.to_action
        )
    }

    fn __hash__(&self) -> u64 {
        values::hash(&self.__repr__())
    }
}

/// What a plan keeps, where, why, and what sets its peak. ``print`` shows it as a text.
///
/// Attributes
/// ----------
/// summary : str
///     The plan in one sentence.
/// stages : list of StageStory
///     How every stage fares.
/// kept : list of Stay
///     Every boundary that stays somewhere, in the order in which the stays begin.
/// peak_bytes, peak_action : int
///     The peak, and the action that reaches it first.
/// peak_tensors : list of tuple of str and int
///     What was alive then, largest first.
#[pyclass(frozen, get_all, module = "rekindle", name = "Explanation")]
#[derive(Clone, Debug)]
pub(crate) struct PyExplanation {
    pub(crate) summary: String,
    pub(crate) stages: Vec<PyStageStory>,
    pub(crate) kept: Vec<PyStay>,
    pub(crate) peak_bytes: u64,
    pub(crate) peak_action: usize,
    pub(crate) peak_tensors: Vec<(String, u64)>,
    /// The words for the peak.
    pub(crate) peak: String,
}

impl PyExplanation {
    /// One row for neighbours that fare alike.
    pub(crate) fn stage_rows(&self) -> Vec<[String; 4]> {
        let alike = |left: &PyStageStory, right: &PyStageStory| {
            (left.forwards, left.taped_first, &left.option)
                == (right.forwards, right.taped_first, &right.option)
        };
        let rows = self.stages.chunk_by(alike).filter_map(|group| {
            let (first, last) = (group.first()?, group.last()?);
            let names = match group.len() {
                1 => format!("{} ({})", first.stage, first.name),
                _ => format!("{} to {} ({} to {})", first.stage, last.stage, first.name, last.name),
            };
            let times =
                if first.forwards == 1 { "once".to_owned() } else { format!("{} times", first.forwards) };
            let tape =
                if first.taped_first { "kept from the first run" } else { "made again for the backward" };
            let option = first.option.clone().unwrap_or_else(|| "-".to_owned());
            Some([names, times, tape.to_owned(), option])
        });
        rows.collect()
    }
}

#[pymethods]
impl PyExplanation {
    fn __repr__(&self) -> String {
        format!("Explanation({})", values::quoted(&self.summary))
    }

    fn __str__(&self) -> String {
        let mut text = format!("{}\n\n", self.summary);
        for [names, times, tape, option] in self.stage_rows() {
            let option = if option == "-" { String::new() } else { format!(" as {option}") };
            text.push_str(&format!("  {names}: run {times}, tape {tape}{option}\n"));
        }
        if !self.kept.is_empty() {
            text.push('\n');
        }
        for stay in &self.kept {
            let [boundary, bytes, place, during, why] = stay.cells();
            text.push_str(&format!("  {boundary} ({bytes}) stays on {place} during {during}, to {why}\n"));
        }
        text.push_str(&format!("\n{}\n", self.peak));
        for (what, bytes) in &self.peak_tensors {
            text.push_str(&format!("  {} {what}\n", Bytes::new(*bytes)));
        }
        text.truncate(text.trim_end().len());
        text
    }

    fn _repr_html_(&self) -> String {
        pictures::explanation(self)
    }
}

/// Say what a plan keeps, where, why, and what sets its peak.
///
/// Parameters
/// ----------
/// profile : Profile
///     The model.
/// plan : Plan or iterable of str
///     A plan, or actions of your own.
///
/// Returns
/// -------
/// Explanation
///     The story of every stage and of every boundary that stays.
///
/// Raises
/// ------
/// PlanError
///     If the plan is not legal, for another model or over its budget; see its subclasses.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> stages = [rekindle.StageProfile(f"block.{i}", 1, 8, 1, 2) for i in range(4)]
/// >>> profile = rekindle.Profile("four", "cpu", 1, stages)
/// >>> print(rekindle.explain(profile, rekindle.plan(profile, solver="sqrt")))
/// `sqrt` (sqrt) for four: 2 of 4 stages keep their tape from the first run (16 B), 2 run again, at most 2 times in all
/// <BLANKLINE>
///   1 to 2 (block.0 to block.1): run 2 times, tape made again for the backward
///   3 to 4 (block.2 to block.3): run once, tape kept from the first run
/// <BLANKLINE>
///   x0 (1 B) stays on device during actions 0 to 9, to run stages 1 to 2 again
/// <BLANKLINE>
/// the peak is 19 B, at action 5 (`backward 4`)
///   8 B tape 3
///   8 B tape 4
///   1 B x0
///   1 B x2
///   1 B gradient of x4
#[pyfunction]
pub(crate) fn explain(profile: &Bound<'_, PyProfile>, plan: &Bound<'_, PyAny>) -> PyResult<PyExplanation> {
    let profile = profile.get();
    let plan = PyPlan::given(profile, plan)?.inner;
    let (_, simulation) = plan.judge(&profile.inner).map_err(Refusal::from)?;
    let stories = kept::stages(&profile.inner, &plan);
    let first = stories.iter().filter(|story| story.taped_first);
    let held: Bytes = first.clone().map(|story| story.tape_bytes).sum();
    let (count, first) = (stories.len(), first.count());
    let most = stories.iter().map(|story| story.forwards).max().unwrap_or(0);
    let summary = format!(
        "`{}` ({}) for {}: {first} of {count} stages keep their tape from the first run ({held}), {} run again, at most {most} times in all",
        plan.solver,
        plan.status,
        profile.inner.model(),
        count - first,
    );
    let stages = stories.into_iter().zip(profile.inner.stages()).zip(1..);
    let stages = stages.map(|((story, stage), number)| PyStageStory {
        stage: number,
        name: stage.name.clone(),
        forwards: story.forwards,
        taped_first: story.taped_first,
        option: story.option.map(|option| option.to_string()),
        tape_bytes: story.tape_bytes.get(),
    });
    let kept = kept::stays(&profile.inner, &plan).into_iter().map(|stay| {
        let reader = stay.boundary.index() + 1;
        PyStay {
            boundary: stay.boundary.to_string(),
            bytes: stay.bytes.get(),
            place: stay.place.map_or_else(|| "device".to_owned(), |place| place.to_string()),
            from_action: stay.from,
            to_action: stay.to,
            runs_again: stay.runs_again.checked_sub(1).map(|more| (reader, reader + more)),
        }
    });
    let action = plan.actions.get(simulation.peak_action).map(ToString::to_string).unwrap_or_default();
    let peak =
        format!("the peak is {}, at action {} (`{action}`)", simulation.peak_bytes, simulation.peak_action);
    Ok(PyExplanation {
        summary,
        stages: stages.collect(),
        kept: kept.collect(),
        peak_bytes: simulation.peak_bytes.get(),
        peak_action: simulation.peak_action,
        peak_tensors: simulation
            .peak_tensors
            .iter()
            .map(|live| (live.what.to_string(), live.bytes.get()))
            .collect(),
        peak,
    })
}
