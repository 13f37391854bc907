//! Runs a schedule on an engine.

use std::any::Any;
use std::collections::BTreeMap;
use std::time::Duration;

use rekindle_plan::{Action, Boundary, Name, Schedule, Stage};

use crate::{Engine, Event, Row, StoreError, Stores, Trace};

mod places;
mod recovery;

use places::StoredCopy;
pub use recovery::{Fault, Recovery, Remedy};

/// One step of a region: the forward half, a pause while the rest of the model runs, the backward half.
///
/// The executor interprets the actions one by one. It holds exactly what the simulator says is held: a boundary that
/// nothing keeps is handed to its reader, so that the engine can free it or write over it.
pub struct Executor<E: Engine> {
    schedule: Schedule,
    /// For each action: whether it tapes a stage as part of a row of tapes that go back in a row.
    joins: Vec<bool>,
    next: usize,
    boundaries: Vec<Option<Held<E::Boundary>>>,
    tapes: Vec<Option<Taped<E>>>,
    stores: Stores,
    copies: BTreeMap<Boundary, Vec<StoredCopy>>,
    faults: Vec<Fault>,
    recoveries: Vec<Recovery>,
    /// With the stores, since the action began.
    waited: Duration,
    /// The action that runs.
    at: usize,
    trace: Option<Trace>,
}

struct Held<B> {
    value: Value<B>,
    kept: bool,
    /// The plan has dropped it, but its copy was lost and nothing else could bring it back.
    stranded: bool,
}

enum Value<B> {
    Here(B),
    /// Asked for, and imported by whoever reads it first.
    Coming {
        place: Name,
        /// The memory it will take.
        room: Option<Box<dyn Any + Send>>,
    },
}

impl<B> Held<B> {
    fn here(value: B) -> Self {
        Self { value: Value::Here(value), kept: false, stranded: false }
    }

    fn value(&self) -> Option<&B> {
        match &self.value {
            Value::Here(value) => Some(value),
            Value::Coming { .. } => None,
        }
    }
}

struct Taped<E: Engine> {
    tape: E::Tape,
    /// The output the tape includes, while an action still has to read it. Handing it on with the last read lets an
    /// engine whose tape does not need the output free it.
    output: Option<E::Boundary>,
    reads_left: usize,
}

/// Why a run stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError<E: std::error::Error + 'static> {
    /// The engine could not do it.
    #[error("{source}")]
    Engine {
        /// What it was told to do.
        action: Action,
        /// What it said.
        source: E,
    },
    /// A store could not do it.
    #[error("`{action}` failed: {source}")]
    Store {
        /// What it was told to do.
        action: Action,
        /// What it said.
        source: StoreError,
    },
    /// A boundary is lost, and nothing it could be computed from is there.
    #[error("`{action}` needs {boundary}, which is lost and cannot be computed again: {source}")]
    Lost {
        /// What was to be done.
        action: Action,
        /// The boundary.
        boundary: Boundary,
        /// What happened to it.
        source: StoreError,
    },
    /// The plan uses a place that this run does not have.
    #[error("`{action}` needs a store named `{place}`, but this run has: {known}")]
    NoStore {
        /// What was to be done.
        action: Action,
        /// The place named.
        place: Name,
        /// The stores there are.
        known: String,
    },
    /// The halves were called in the wrong order, or after a failure.
    #[error("the {half} half cannot run now: {found}")]
    OutOfTurn {
        /// The half that was called.
        half: &'static str,
        /// What the executor has done so far.
        found: String,
    },
    /// The executor and the simulator disagree about what is there.
    #[error("`{action}` found {missing} missing; the simulator accepted it, so this is a bug in rekindle")]
    Missing {
        /// What was to be done.
        action: Action,
        /// What was not there.
        missing: String,
    },
}

/// What a region holds between its halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept<'a, B> {
    /// A boundary, from which stages are run again.
    Boundary(Boundary, &'a B),
    /// The tape of a stage that ran taped in the forward half.
    Tape(Stage),
}

impl<E: Engine> Executor<E> {
    /// An executor at the start of `schedule`.
    pub fn new(schedule: Schedule, stores: Stores) -> Self {
        let stages = schedule.stages();
        Self {
            joins: joins(&schedule),
            schedule,
            next: 0,
            boundaries: (0..=stages).map(|_| None).collect(),
            tapes: (0..stages).map(|_| None).collect(),
            stores,
            copies: BTreeMap::new(),
            faults: Vec::new(),
            recoveries: Vec::new(),
            waited: Duration::ZERO,
            at: 0,
            trace: None,
        }
    }

    /// The same executor, writing down what it does.
    #[must_use]
    pub fn traced(mut self) -> Self {
        self.trace = Some(Trace::start());
        self
    }

    /// What was written down so far, if it was asked for.
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// What went wrong in the stores so far. Training went on, if only more slowly or with more memory.
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// How boundaries that stores lost were had all the same.
    pub fn recoveries(&self) -> &[Recovery] {
        &self.recoveries
    }

    /// The stores, for the next step. What they still hold is dropped with them.
    pub fn into_stores(self) -> Stores {
        self.stores
    }

    /// What is held now, without boundaries that are on their way back.
    pub fn kept(&self) -> impl Iterator<Item = Kept<'_, E::Boundary>> {
        let boundaries = (0..).map(Boundary::new).zip(&self.boundaries);
        let tapes = (1..).map(Stage::new).zip(&self.tapes);
        boundaries
            .filter_map(|(boundary, held)| Some(Kept::Boundary(boundary, held.as_ref()?.value()?)))
            .chain(tapes.filter_map(|(stage, taped)| taped.as_ref().map(|_| Kept::Tape(stage))))
    }

    /// Runs the forward half: the region's input becomes its output.
    ///
    /// # Errors
    /// When the engine or a store fails; the executor is then of no further use.
    pub fn forward(&mut self, engine: &mut E, input: E::Boundary) -> Result<E::Boundary, RunError<E::Error>> {
        if self.next != 0 {
            return Err(self.out_of_turn("forward"));
        }
        self.boundaries[0] = Some(Held::here(input));
        let schedule = self.schedule.clone();
        let mut output = None;
        for action in schedule.forward_half() {
            output = self.step(engine, action, &mut None)?;
        }
        self.note_transfers();
        let last = Stage::new(u32::try_from(schedule.stages()).unwrap_or(u32::MAX));
        output.ok_or_else(|| RunError::Missing {
            action: Action::forward(last),
            missing: last.output().to_string(),
        })
    }

    /// Runs the backward half: the gradient of the output becomes the gradient of the input.
    ///
    /// # Errors
    /// When the engine or a store fails; the executor is then of no further use.
    pub fn backward(
        &mut self,
        engine: &mut E,
        gradient: E::Gradient,
    ) -> Result<E::Gradient, RunError<E::Error>> {
        if self.next != self.schedule.forward_half().len() {
            return Err(self.out_of_turn("backward"));
        }
        let schedule = self.schedule.clone();
        let mut gradient = Some(gradient);
        for action in schedule.backward_half() {
            self.step(engine, action, &mut gradient)?;
        }
        self.note_transfers();
        gradient.ok_or_else(|| RunError::Missing {
            action: Action::backward(Stage::new(1)),
            missing: "the gradient of x0".to_owned(),
        })
    }

    /// Runs the backward half as far as the next stage has gone back: the gradient of that stage's output becomes the
    /// gradient of its input. What follows the first stage's backward runs with it. An outer graph that has a node for
    /// each stage can so take every parameter's gradient as soon as it is there.
    ///
    /// ```
    /// use rekindle_plan::{Bytes, Profile, Rule, Schedule, StageProfile};
    /// use rekindle_run::{Executor, Stores, counted::CountedEngine};
    ///
    /// let stages = ["a", "b", "c"].map(|name| StageProfile { name: name.into(), ..StageProfile::default() });
    /// let profile = Profile::new("three", "none", Bytes::new(10), stages.to_vec())?;
    /// let (schedule, _) = Schedule::judge(&profile, &Rule::Full.actions(3)?)?;
    /// let mut engine = CountedEngine::new(profile);
    /// let mut executor = Executor::new(schedule, Stores::new());
    /// let input = engine.input();
    /// executor.forward(&mut engine, input)?;
    /// let mut gradient = engine.output_gradient();
    /// for _ in 0..3 {
    ///     gradient = executor.backward_next(&mut engine, gradient)?;
    /// }
    /// assert_eq!(executor.kept().count(), 0);
    /// assert!(executor.backward_next(&mut engine, gradient).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the forward half has not run, everything has gone back already, or the engine or a store fails; the
    /// executor is then of no further use.
    pub fn backward_next(
        &mut self,
        engine: &mut E,
        gradient: E::Gradient,
    ) -> Result<E::Gradient, RunError<E::Error>> {
        let schedule = self.schedule.clone();
        let Some(rest) = schedule.actions().get(self.next..).filter(|rest| !rest.is_empty()) else {
            return Err(self.out_of_turn("backward"));
        };
        if self.next < schedule.forward_half().len() {
            return Err(self.out_of_turn("backward"));
        }
        let mut gradient = Some(gradient);
        for action in rest {
            self.step(engine, action, &mut gradient)?;
            if matches!(action, Action::Backward { stage } if stage.index() > 0) {
                break;
            }
        }
        self.note_transfers();
        gradient.ok_or_else(|| missing(&rest[0], "the gradient of a stage's input".to_owned()))
    }

    fn out_of_turn(&self, half: &'static str) -> RunError<E::Error> {
        RunError::OutOfTurn {
            half,
            found: format!(
                "{} of {} actions ran, {} of them are the forward half",
                self.next,
                self.schedule.actions().len(),
                self.schedule.forward_half().len()
            ),
        }
    }

    /// Runs one action. The output of the region's last stage, made for the first time, is handed back.
    fn step(
        &mut self,
        engine: &mut E,
        action: &Action,
        gradient: &mut Option<E::Gradient>,
    ) -> Result<Option<E::Boundary>, RunError<E::Error>> {
        let start = self.trace.as_ref().map(|trace| {
            engine.peak_bytes();
            trace.now()
        });
        let index = self.next;
        // A failed action leaves the executor out of turn, so that nobody goes on from half a state.
        self.next = usize::MAX;
        self.at = index;
        let (faults, recoveries) = (self.faults.len(), self.recoveries.len());
        let failed = |source| RunError::Engine { action: action.clone(), source };
        let hand_out = index + 1 == self.schedule.forward_half().len();
        let mut handed = None;
        match action {
            Action::Forward { stage } => {
                let input = self.read(engine, action, stage.input())?;
                let output = engine.forward(*stage, input).map_err(failed)?;
                self.release_read(action, stage.input())?;
                if hand_out {
                    handed = Some(output);
                } else {
                    self.hold(stage.output(), output);
                }
            }
            Action::Tape { stage, option } => {
                let input = self.read(engine, action, stage.input())?;
                let option = option.as_ref();
                // What is written down is told of each stage.
                if self.trace.is_none() {
                    let ahead = self.joins.get(index + 1).copied().unwrap_or(false);
                    engine.in_row(Row { behind: self.joins[index], ahead });
                }
                let mut reads_left = self.schedule.reads_of_outputs()[index];
                let (tape, mut output) = match reads_left {
                    0 => (engine.tape_unread(*stage, option, input).map_err(failed)?, None),
                    _ => {
                        let (tape, output) = engine.tape(*stage, option, input).map_err(failed)?;
                        (tape, Some(output))
                    }
                };
                self.release_read(action, stage.input())?;
                if hand_out {
                    reads_left -= 1;
                    handed = if reads_left == 0 { output.take() } else { output.clone() };
                }
                self.tapes[stage.index()] = Some(Taped { tape, output, reads_left });
            }
            Action::Backward { stage } => {
                let taped = self.tapes[stage.index()].take();
                let taped = taped.ok_or_else(|| missing(action, format!("tape {stage}")))?;
                let of = || format!("the gradient of {}", stage.output());
                let incoming = gradient.take().ok_or_else(|| missing(action, of()))?;
                let outgoing = engine.backward(*stage, taped.tape, incoming).map_err(failed)?;
                // The tape's output is free when nothing reads it to write it somewhere.
                self.settle(action, stage.output())?;
                *gradient = Some(outgoing);
            }
            Action::Keep { boundary } => {
                if let Some(held) = &mut self.boundaries[boundary.index()] {
                    (held.kept, held.stranded) = (true, false);
                } else {
                    let value = self.read(engine, action, *boundary)?;
                    self.boundaries[boundary.index()] = Some(Held { kept: true, ..Held::here(value) });
                }
            }
            Action::Drop { boundary, place: None } => self.release(action, *boundary)?,
            Action::Drop { boundary, place: Some(place) } => self.forget(engine, action, *boundary, place)?,
            Action::Offload { boundary, tier: place } | Action::Compress { boundary, codec: place } => {
                self.put(engine, action, *boundary, place)?;
            }
            Action::Fetch { boundary, place } => self.fetch(engine, action, *boundary, place)?,
        }
        self.next = index + 1;
        let waited = std::mem::take(&mut self.waited);
        if let (Some(trace), Some(start)) = (&mut self.trace, start) {
            trace.push(Event {
                action: action.clone(),
                start,
                end: trace.now(),
                live_bytes: engine.live_bytes(),
                peak_bytes: engine.peak_bytes(),
                waited: waited.into(),
                faults: self.faults[faults..].to_vec(),
                recoveries: self.recoveries[recoveries..].to_vec(),
            });
        }
        Ok(handed)
    }

    fn hold(&mut self, boundary: Boundary, value: E::Boundary) {
        self.boundaries[boundary.index()] = Some(Held::here(value));
    }

    /// A boundary for a stage that reads it: moved when nothing keeps it, cloned otherwise.
    fn read(
        &mut self,
        engine: &mut E,
        action: &Action,
        boundary: Boundary,
    ) -> Result<E::Boundary, RunError<E::Error>> {
        self.land(engine, action, boundary)?;
        let slot = &mut self.boundaries[boundary.index()];
        // What a transfer still reads, or must stay because one failed, is released once the stage has run.
        let copies = self.copies.get(&boundary);
        let safe = copies.is_none_or(|copies| copies.iter().all(StoredCopy::is_there));
        let moved = slot.take_if(|held| safe && !held.kept);
        let value = match moved.map(|held| held.value) {
            Some(Value::Here(value)) => value,
            _ => self.look(action, boundary)?.clone(),
        };
        self.count_read(boundary);
        Ok(value)
    }

    fn look(&self, action: &Action, boundary: Boundary) -> Result<&E::Boundary, RunError<E::Error>> {
        self.on_device(boundary).ok_or_else(|| missing(action, boundary.to_string()))
    }

    /// A boundary in its own right, or as the output that a tape includes.
    fn on_device(&self, boundary: Boundary) -> Option<&E::Boundary> {
        let held = self.boundaries.get(boundary.index())?.as_ref();
        let taped = boundary.index().checked_sub(1);
        let taped = taped.and_then(|index| self.tapes[index].as_ref());
        held.and_then(Held::value).or_else(|| taped.and_then(|taped| taped.output.as_ref()))
    }

    /// Lets go of a tape's output once nothing will read it again.
    fn count_read(&mut self, boundary: Boundary) {
        let taped = boundary.index().checked_sub(1);
        if let Some(taped) = taped.and_then(|index| self.tapes[index].as_mut()) {
            taped.reads_left = taped.reads_left.saturating_sub(1);
            if taped.reads_left == 0 {
                taped.output = None;
            }
        }
    }
}

/// Of each action, whether it tapes a stage right behind the tape of the stage before, in the same way, nobody else reads
/// what lies between them, and their backwards follow one another just so.
fn joins(schedule: &Schedule) -> Vec<bool> {
    let (actions, reads) = (schedule.actions(), schedule.reads_of_outputs());
    let mut backward = vec![usize::MAX; schedule.stages() + 1];
    let mut joins = vec![false; actions.len()];
    for (index, action) in actions.iter().enumerate().rev() {
        match action {
            Action::Backward { stage } => backward[stage.index()] = index,
            Action::Tape { stage, option } if index > 0 && stage.index() > 0 => {
                let behind = matches!(&actions[index - 1], Action::Tape { stage: before, option: way }
                    if before.index() + 1 == stage.index() && way == option);
                let in_a_row = backward[stage.index()].checked_add(1) == Some(backward[stage.index() - 1]);
                joins[index] = behind && in_a_row && reads[index - 1] == 1;
            }
            _ => {}
        }
    }
    joins
}

fn missing<E: std::error::Error + 'static>(action: &Action, missing: String) -> RunError<E> {
    RunError::Missing { action: action.clone(), missing }
}

fn store_failed<E: std::error::Error + 'static>(action: &Action, source: StoreError) -> RunError<E> {
    RunError::Store { action: action.clone(), source }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use rekindle_plan::Profile;

    use super::*;

    /// Which actions go on from the tape before, as `+`.
    fn rows(stages: usize, text: &str) -> String {
        let names = (0..stages).map(|index| format!("stage.{index}"));
        let profile = Profile::unmeasured(names, &["balanced".parse().unwrap()]).unwrap();
        let actions: Vec<Action> = text.split('/').map(|line| line.trim().parse().unwrap()).collect();
        let (schedule, _) = Schedule::judge(&profile, &actions).unwrap();
        joins(&schedule).into_iter().map(|joined| if joined { '+' } else { '.' }).collect()
    }

    #[test]
    fn tapes_in_a_row_are_joined() {
        assert_eq!(rows(3, "tape 1/tape 2/tape 3/backward 3/backward 2/backward 1"), ".++...");
        let segment =
            "keep x0/forward 1/forward 2/tape 3/backward 3/tape 1/tape 2/backward 2/backward 1/drop x0";
        assert_eq!(rows(3, segment), "......+...");
    }

    #[test]
    fn tapes_of_which_somebody_else_reads_or_goes_back_between_are_not() {
        let options = "tape 1/tape 2 balanced/tape 3 balanced/backward 3/backward 2/backward 1";
        assert_eq!(rows(3, options), "..+...");
        let kept = "tape 1/keep x1/tape 2/tape 3/backward 3/backward 2/backward 1/drop x1";
        assert_eq!(rows(3, kept), "...+....");
        let recomputed = "tape 1/keep x1/forward 2/tape 3/backward 3/tape 2/drop x1/backward 2/backward 1";
        assert_eq!(rows(3, recomputed), ".........");
    }
}
