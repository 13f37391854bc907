//! The executor as Python has it: one step of a region.

use std::sync::{Mutex, MutexGuard, TryLockError};

use pyo3::prelude::*;
use rekindle_plan::{Action, Profile};
use rekindle_run::{Kept, RunError, Stores, Trace};

use super::engine::{Handle, HeldEngine, PythonEngine};
use super::storage::Storage;
use crate::errors::Refusal;

/// An action that ran: its text, start and end in nanoseconds, live and peak bytes where the engine tells.
type Ran = (String, u64, u64, Option<u64>, Option<u64>);

/// Actions that the simulator has judged for a chain: made once for each plan, run at every step.
#[pyclass(frozen, module = "rekindle._core")]
pub(crate) struct Schedule {
    inner: rekindle_plan::Schedule,
    #[pyo3(get)]
    peak_bytes: u64,
    /// What is held when the forward half is over.
    #[pyo3(get)]
    turn_bytes: u64,
}

#[pymethods]
impl Schedule {
    /// Judges the actions, each a line of a plan, for the profile, which is JSON.
    #[new]
    fn new(profile: &str, actions: Vec<String>) -> PyResult<Self> {
        let profile = Profile::from_json(profile).map_err(Refusal::from)?;
        let actions = actions.iter().map(|action| action.parse::<Action>());
        let actions = actions.collect::<Result<Vec<_>, _>>().map_err(Refusal::from)?;
        let judged = rekindle_plan::Schedule::judge(&profile, &actions).map_err(Refusal::from)?;
        let (inner, simulation) = judged;
        let turn = inner.forward_half().len();
        let turn = turn.checked_sub(1).and_then(|last| simulation.moments.get(last));
        let turn_bytes = turn.map_or(0, |moment| moment.after.get());
        Ok(Self { inner, peak_bytes: simulation.peak_bytes.get(), turn_bytes })
    }

    /// The stages of which the forward half keeps the tape, from 1.
    fn taped_at_once(&self) -> Vec<u32> {
        let taped = self.inner.forward_half().iter().filter_map(|action| match action {
            Action::Tape { stage, .. } => Some(stage.number()),
            _ => None,
        });
        taped.collect()
    }
}

/// One step of a region: the forward half, then the backward of each stage, last to first.
#[pyclass(frozen, module = "rekindle._core")]
pub(crate) struct Executor {
    inner: Mutex<rekindle_run::Executor<HeldEngine>>,
}

#[pymethods]
impl Executor {
    #[new]
    #[pyo3(signature = (schedule, storage=None, traced=false))]
    fn new(schedule: &Schedule, storage: Option<&Storage>, traced: bool) -> PyResult<Self> {
        let stores = storage.map_or_else(|| Ok(Stores::new()), Storage::stores)?;
        let inner = rekindle_run::Executor::new(schedule.inner.clone(), stores);
        Ok(Self { inner: Mutex::new(if traced { inner.traced() } else { inner }) })
    }

    /// Runs the forward half: from the region's input to its output.
    fn forward(&self, engine: Bound<'_, PyAny>, input: Py<PyAny>) -> PyResult<Py<PyAny>> {
        let py = engine.py();
        let mut engine = PythonEngine(engine).hold();
        let output = self.lock()?.forward(&mut engine, Handle::new(input)).map_err(raise)?;
        Ok(output.into_object(py))
    }

    /// Runs the backward half as far as the next stage has gone back: from the gradient of its output to that of its
    /// input.
    fn backward(&self, engine: Bound<'_, PyAny>, gradient: Py<PyAny>) -> PyResult<Py<PyAny>> {
        let mut engine = PythonEngine(engine).hold();
        self.lock()?.backward_next(&mut engine, gradient).map_err(raise)
    }

    /// What went wrong in the stores so far, as text. The gradients are right all the same.
    fn faults(&self) -> PyResult<Vec<String>> {
        let inner = self.lock()?;
        let faults = inner.faults().iter();
        Ok(faults.map(|fault| format!("{} in `{}`: {}", fault.boundary, fault.place, fault.error)).collect())
    }

    /// The stages of which a tape is held now, from 1, and the boundaries that are kept.
    fn kept(&self) -> PyResult<(Vec<u32>, Vec<u32>)> {
        let inner = self.lock()?;
        let (mut tapes, mut boundaries) = (Vec::new(), Vec::new());
        for kept in inner.kept() {
            match kept {
                Kept::Tape(stage) => tapes.push(stage.number()),
                Kept::Boundary(boundary, _) => boundaries.push(boundary.number()),
            }
        }
        Ok((tapes, boundaries))
    }

    /// Of each action that ran: what it was, start and end in nanoseconds, live and peak bytes where the engine tells.
    fn trace(&self) -> PyResult<Vec<Ran>> {
        let inner = self.lock()?;
        let events = inner.trace().map(Trace::events).unwrap_or_default().iter();
        let rows = events.map(|event| {
            let (live, peak) = (event.live_bytes.map(|b| b.get()), event.peak_bytes.map(|b| b.get()));
            (event.action.to_string(), event.start.get(), event.end.get(), live, peak)
        });
        Ok(rows.collect())
    }
}

impl Executor {
    /// Never waits: whoever has it runs Python, which a waiting thread would keep from going on.
    fn lock(&self) -> PyResult<MutexGuard<'_, rekindle_run::Executor<HeldEngine>>> {
        match self.inner.try_lock() {
            Ok(inner) => Ok(inner),
            Err(TryLockError::Poisoned(inner)) => Ok(inner.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Refusal::new(
                "RunError",
                "the region is running already: a stage must not start the step it is part of again",
            )
            .into()),
        }
    }
}

/// The engine's own exception as it was raised; everything else in the words of Rust's error.
fn raise(error: RunError<PyErr>) -> PyErr {
    match error {
        RunError::Engine { source, .. } => source,
        other => Refusal::new("RunError", other).into(),
    }
}
