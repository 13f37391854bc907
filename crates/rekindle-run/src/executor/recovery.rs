//! What happens when a store loses a boundary: it is computed again, or it stays where it is.
//!
//! A step goes on as long as its gradient is the right one. A copy that could not be written, or that came back damaged,
//! is replaced by another copy, or computed again from the nearest boundary before it. A boundary for which the plan will
//! have nothing to compute it from is not let go of in the first place.

use std::fmt;

use rekindle_plan::{Action, Boundary, Bytes, Name, Stage};

use super::places::State;
use super::{Executor, RunError};
use crate::{Engine, StoreError};

/// Something that went wrong in a store, without stopping the run. [`Recovery`] has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The boundary that was lost.
    pub boundary: Boundary,
    /// The store.
    pub place: Name,
    /// How large the boundary is.
    pub bytes: Bytes,
    /// What the store said.
    pub error: StoreError,
    /// How the boundary was had all the same, as far as that is known: one that is refused is decided about when the plan lets go of
    /// it, and nothing is needed for one that nobody asks for again.
    pub remedy: Option<Remedy>,
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} was lost in `{}`: {}", self.boundary, self.place, self.error)?;
        match &self.remedy {
            None => Ok(()),
            Some(Remedy::Kept) => {
                write!(formatter, "; it is kept on the device, {} over the plan", self.bytes)
            }
            Some(Remedy::Copy(place)) => write!(formatter, "; its copy in `{place}` was taken"),
            Some(Remedy::Recomputed(from)) if *from == self.boundary => {
                formatter.write_str("; it was still on the device")
            }
            Some(Remedy::Recomputed(from)) => write!(formatter, "; it was computed again from {from}"),
        }
    }
}

/// How a boundary that a store has lost was had all the same.
///
/// ```
/// use rekindle_plan::{Action, Boundary, Bytes, Profile, Schedule, StageProfile, Tier};
/// use rekindle_run::counted::CountedEngine;
/// use rekindle_run::{Executor, HostStore, Remedy, Store, Stores};
///
/// let stages = (0..2).map(|i| StageProfile {
///     name: format!("layer.{i}"),
///     output_bytes: Bytes::new(10),
///     tape_bytes: Bytes::new(100),
///     ..StageProfile::default()
/// });
/// let (name, capacity_bytes) = ("host".parse()?, Bytes::new(10));
/// let tier = Tier { name, capacity_bytes, write_bytes_per_second: 1, read_bytes_per_second: 1 };
/// let profile = Profile::new("mlp", "none", Bytes::new(10), stages.collect())?.with_places(vec![tier], vec![])?;
/// let plan = "keep x0/forward 1/offload x0 host/drop x0/tape 2/backward 2/fetch x0 host/drop x0 host/tape 1/backward 1";
/// let actions: Vec<Action> = plan.split('/').map(str::parse).collect::<Result<_, _>>()?;
/// let (schedule, _) = Schedule::judge(&profile, &actions)?;
///
/// // The plan counts on 10 bytes, but the store has less.
/// let store: Box<dyn Store> = Box::new(HostStore::new(Bytes::new(9)));
/// let mut executor = Executor::new(schedule, Stores::from([("host".parse()?, store)]));
/// let mut engine = CountedEngine::new(profile);
/// let input = engine.input();
/// drop(executor.forward(&mut engine, input)?);
/// let gradient = engine.output_gradient();
/// executor.backward(&mut engine, gradient)?;
/// assert_eq!(executor.faults()[0].boundary, Boundary::new(0));
/// assert_eq!(executor.recoveries()[0].remedy, Remedy::Kept); // there is nothing before x0
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// The boundary.
    pub boundary: Boundary,
    /// How it was had.
    pub remedy: Remedy,
}

/// A way to have a boundary that was lost. [`Recovery`] has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// It stayed on the device, beyond what the plan says: there is nothing it could be computed from.
    Kept,
    /// Its copy in another store was taken.
    Copy(Name),
    /// It was computed again from this one.
    Recomputed(Boundary),
}

impl<E: Engine> Executor<E> {
    /// A boundary that was lost: its copy elsewhere, or computed from the nearest boundary that is still there.
    pub(super) fn recover(
        &mut self,
        engine: &mut E,
        action: &Action,
        boundary: Boundary,
        error: StoreError,
    ) -> Result<E::Boundary, RunError<E::Error>> {
        for number in (0..=boundary.number()).rev() {
            let from = Boundary::new(number);
            let mut place = None;
            let mut found = self.on_device(from).cloned();
            if found.is_none()
                && let Some((parcel, at)) = self.take_any(action, from)?
            {
                found = Some(self.import(engine, action, parcel)?);
                place = Some(at);
            }
            if let Some(mut value) = found {
                for stage in number + 1..=boundary.number() {
                    let run = engine.forward(Stage::new(stage), value);
                    value = run.map_err(|source| RunError::Engine { action: action.clone(), source })?;
                }
                let remedy = match place {
                    Some(place) if from == boundary => Remedy::Copy(place),
                    _ => Remedy::Recomputed(from),
                };
                self.note_recovery(boundary, remedy);
                return Ok(value);
            }
            if self.schedule.is_pinned(Stage::new(number)) {
                break;
            }
        }
        Err(RunError::Lost { action: action.clone(), boundary, source: error })
    }

    /// The first copy of a boundary that comes back as it was.
    fn take_any(
        &mut self,
        action: &Action,
        boundary: Boundary,
    ) -> Result<Option<(crate::Parcel, Name)>, RunError<E::Error>> {
        self.settle(action, boundary)?;
        let copies = self.copies.get(&boundary).into_iter().flatten();
        let there = copies.filter(|copy| copy.state == State::There).map(|copy| copy.place.clone());
        for place in there.collect::<Vec<_>>() {
            match self.with_store(action, &place, |store| store.take(boundary))? {
                Ok(parcel) => return Ok(Some((parcel, place))),
                Err(error) => self.lose(boundary, &place, &error),
            }
        }
        Ok(None)
    }

    /// Whether the plan will fetch a copy of the boundary that was lost, with nothing there to replace it by then.
    pub(super) fn must_stay(&self, boundary: Boundary) -> bool {
        let Some(copies) = self.copies.get(&boundary) else { return false };
        let lost = copies.iter().filter(|copy| matches!(copy.state, State::Lost(_)));
        let ahead = self.schedule.actions().get(self.at + 1..).unwrap_or_default();
        lost.into_iter().any(|copy| {
            let next = ahead.iter().position(|action| match action {
                Action::Fetch { boundary: of, place } => (*of, place) == (boundary, &copy.place),
                Action::Drop { boundary: of, place } => {
                    (*of, place.as_ref()) == (boundary, Some(&copy.place))
                }
                _ => false,
            });
            next.is_some_and(|next| {
                let (before, after) = ahead.split_at(next);
                matches!(ahead[next], Action::Fetch { .. }) && !self.replaceable(boundary, before, after)
            })
        })
    }

    /// Whether a boundary can be had between these actions: what they keep and copy is known beforehand.
    fn replaceable(&self, boundary: Boundary, before: &[Action], after: &[Action]) -> bool {
        let count = boundary.index() + 1;
        let held = self.boundaries[..count].iter();
        let mut kept: Vec<bool> = held.map(|held| held.as_ref().is_some_and(|held| held.kept)).collect();
        // What is about to be released does not count.
        kept[boundary.index()] = false;
        let numbers = (0..).map(Boundary::new).take(count);
        let good = numbers.map(|number| {
            let copies = self.copies.get(&number).into_iter().flatten();
            let good = copies.filter(|copy| !matches!(copy.state, State::Lost(_)));
            good.map(|copy| &copy.place).collect::<Vec<_>>()
        });
        let mut copies: Vec<Vec<&Name>> = good.collect();
        for action in before {
            match action {
                Action::Keep { boundary } if boundary.index() < count => kept[boundary.index()] = true,
                Action::Drop { boundary, place } if boundary.index() < count => match place {
                    None => kept[boundary.index()] = false,
                    Some(place) => copies[boundary.index()].retain(|copy| *copy != place),
                },
                Action::Offload { boundary, tier: place } | Action::Compress { boundary, codec: place }
                    if boundary.index() < count =>
                {
                    copies[boundary.index()].push(place);
                }
                _ => {}
            }
        }
        // The output that a tape includes is at hand as long as something will read it.
        let in_tape = |number: usize| {
            let taped = number.checked_sub(1).and_then(|index| self.tapes[index].as_ref());
            let reads = |action: &Action| match action {
                Action::Forward { stage } | Action::Tape { stage, .. } => stage.input().index() == number,
                _ => false,
            };
            let over = Action::backward(Stage::new(u32::try_from(number).unwrap_or(0)));
            let still = after.iter().take_while(|action| **action != over).any(reads);
            still && !before.contains(&over) && taped.is_some_and(|taped| taped.output.is_some())
        };
        for number in (0..count).rev() {
            if (number + 1 < count && in_tape(number)) || kept[number] || !copies[number].is_empty() {
                return true;
            }
            // The stage of this number makes this boundary.
            if self.schedule.is_pinned(Stage::new(u32::try_from(number).unwrap_or(0))) {
                return false;
            }
        }
        false
    }

    /// A copy is no longer to be counted on.
    pub(super) fn lose(&mut self, boundary: Boundary, place: &Name, error: &StoreError) {
        self.note_fault(boundary, place, error);
        self.set_state(boundary, place, State::Lost(error.clone()));
    }

    pub(super) fn note_fault_of(
        &mut self,
        boundary: Boundary,
        place: &Name,
        bytes: Bytes,
        error: &StoreError,
    ) {
        let (place, error) = (place.clone(), error.clone());
        self.faults.push(Fault { boundary, place, bytes, error, remedy: None });
    }

    fn note_fault(&mut self, boundary: Boundary, place: &Name, error: &StoreError) {
        let bytes = self.copy(boundary, place).map(|copy| copy.bytes).unwrap_or_default();
        self.note_fault_of(boundary, place, bytes, error);
    }

    pub(super) fn note_kept(&mut self, boundary: Boundary) {
        self.note_recovery(boundary, Remedy::Kept);
    }

    fn note_recovery(&mut self, boundary: Boundary, remedy: Remedy) {
        let undecided = |fault: &&mut Fault| fault.boundary == boundary && fault.remedy.is_none();
        for fault in self.faults.iter_mut().filter(undecided) {
            fault.remedy = Some(remedy.clone());
        }
        self.recoveries.push(Recovery { boundary, remedy });
    }
}
