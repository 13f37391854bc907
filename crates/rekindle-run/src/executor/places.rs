//! Boundaries on their way to stores and back.

use std::time::{Duration, Instant};

use rekindle_plan::{Action, Boundary, Bytes, Name};

use super::{Executor, Held, RunError, Value, store_failed};
use crate::{Engine, Parcel, Store, StoreError};

/// A copy of a boundary in a store.
pub(super) struct StoredCopy {
    pub(super) place: Name,
    pub(super) state: State,
    pub(super) bytes: Bytes,
}

impl StoredCopy {
    pub(super) fn is_there(&self) -> bool {
        self.state == State::There
    }
}

/// How far a copy has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Put, and not waited for yet: the device's memory may still be read.
    Going,
    There,
    Lost(StoreError),
}

impl<E: Engine> Executor<E> {
    /// Starts to copy a boundary to a store. A store that refuses it has lost it: what that means is decided when the
    /// boundary is released.
    pub(super) fn put(
        &mut self,
        engine: &mut E,
        action: &Action,
        boundary: Boundary,
        place: &Name,
    ) -> Result<(), RunError<E::Error>> {
        self.land(engine, action, boundary)?;
        let value = self.look(action, boundary)?;
        let bytes = engine.boundary_bytes(value);
        let failed = |source| RunError::Engine { action: action.clone(), source };
        let start = Instant::now();
        let parcel = engine.export(value).map_err(failed)?;
        self.note_handed(start.elapsed());
        self.count_read(boundary);
        let put = self.with_store(action, place, |store| store.put(boundary, parcel))?;
        let state = match put {
            Ok(()) => State::Going,
            Err(error) => {
                self.note_fault_of(boundary, place, bytes, &error);
                State::Lost(error)
            }
        };
        self.copies.entry(boundary).or_default().push(StoredCopy { place: place.clone(), state, bytes });
        Ok(())
    }

    /// Asks a store for a boundary; whoever reads it first imports it.
    pub(super) fn fetch(
        &mut self,
        engine: &mut E,
        action: &Action,
        boundary: Boundary,
        place: &Name,
    ) -> Result<(), RunError<E::Error>> {
        if let Some(held) = &mut self.boundaries[boundary.index()] {
            // It never left.
            (held.stranded, held.kept) = (false, false);
            return Ok(());
        }
        let copy = self.copy(boundary, place).map(|copy| (copy.state.clone(), copy.bytes));
        let (state, bytes) = copy.unwrap_or((State::There, Bytes::ZERO));
        let asked = match state {
            State::Lost(error) => Err(error),
            State::Going | State::There => {
                let asked = self.with_store(action, place, |store| store.prefetch(boundary))?;
                asked.inspect_err(|error| self.lose(boundary, place, error))
            }
        };
        match asked {
            Ok(()) => {
                let value = Value::Coming { place: place.clone(), room: engine.set_aside(bytes) };
                self.boundaries[boundary.index()] = Some(Held { value, kept: false, stranded: false });
            }
            Err(error) => {
                let value = self.recover(engine, action, boundary, error)?;
                self.hold(boundary, value);
            }
        }
        Ok(())
    }

    /// Imports a boundary that is on its way back, or computes it again when it comes back damaged.
    pub(super) fn land(
        &mut self,
        engine: &mut E,
        action: &Action,
        boundary: Boundary,
    ) -> Result<(), RunError<E::Error>> {
        let slot = &mut self.boundaries[boundary.index()];
        let (place, room, kept) = match slot.take() {
            Some(Held { value: Value::Coming { place, room }, kept, .. }) => (place, room, kept),
            other => {
                *slot = other;
                return Ok(());
            }
        };
        let taken = self.with_store(action, &place, |store| store.take(boundary))?;
        // What is computed again, or imported, takes the room.
        drop(room);
        let value = match taken {
            Ok(parcel) => self.import(engine, action, parcel)?,
            Err(error) => {
                self.lose(boundary, &place, &error);
                self.recover(engine, action, boundary, error)?
            }
        };
        self.boundaries[boundary.index()] = Some(Held { kept, ..Held::here(value) });
        Ok(())
    }

    /// Has the engine take a boundary back, and counts the time.
    pub(super) fn import(
        &mut self,
        engine: &mut E,
        action: &Action,
        parcel: Parcel,
    ) -> Result<E::Boundary, RunError<E::Error>> {
        let start = Instant::now();
        let imported = engine.import(parcel);
        self.note_handed(start.elapsed());
        imported.map_err(|source| RunError::Engine { action: action.clone(), source })
    }

    /// Boundaries that the engine copies out or in are on the way, and computing stands still meanwhile.
    fn note_handed(&mut self, took: Duration) {
        self.waited += took;
        if let Some(trace) = &mut self.trace {
            trace.handed(took.into());
        }
    }

    /// Lets go of a copy, once nothing on the way there or back needs it.
    pub(super) fn forget(
        &mut self,
        engine: &mut E,
        action: &Action,
        boundary: Boundary,
        place: &Name,
    ) -> Result<(), RunError<E::Error>> {
        let coming = self.boundaries[boundary.index()].as_ref();
        if coming
            .is_some_and(|held| matches!(&held.value, Value::Coming { place: from, .. } if from == place))
        {
            self.land(engine, action, boundary)?;
        }
        self.settle(action, boundary)?;
        let lost = self.copy(boundary, place).is_some_and(|copy| matches!(copy.state, State::Lost(_)));
        if let Some(copies) = self.copies.get_mut(&boundary) {
            copies.retain(|copy| copy.place != *place);
            if copies.is_empty() {
                self.copies.remove(&boundary);
            }
        }
        let forgotten = self.with_store(action, place, |store| store.forget(boundary))?;
        // A store need not have what it has lost.
        if !lost {
            forgotten.map_err(|source| store_failed(action, source))?;
        }
        if self.boundaries[boundary.index()].as_ref().is_some_and(|held| held.stranded) {
            self.release(action, boundary)?;
        }
        Ok(())
    }

    /// Waits until no transfer reads the boundary any more.
    pub(super) fn settle(&mut self, action: &Action, boundary: Boundary) -> Result<(), RunError<E::Error>> {
        let copies = self.copies.get(&boundary).into_iter().flatten();
        let going = copies.filter(|copy| copy.state == State::Going).map(|copy| copy.place.clone());
        for place in going.collect::<Vec<_>>() {
            match self.with_store(action, &place, |store| store.wait(boundary))? {
                Ok(()) => self.set_state(boundary, &place, State::There),
                Err(error) => self.lose(boundary, &place, &error),
            }
        }
        Ok(())
    }

    /// Releases a boundary from the device, unless a copy the plan counts on was lost and nothing could replace it.
    pub(super) fn release(&mut self, action: &Action, boundary: Boundary) -> Result<(), RunError<E::Error>> {
        self.settle(action, boundary)?;
        let strand = self.must_stay(boundary);
        let slot = &mut self.boundaries[boundary.index()];
        match slot {
            Some(held) if strand && held.value().is_some() => {
                let news = !std::mem::replace(&mut held.stranded, true);
                held.kept = false;
                if news {
                    self.note_kept(boundary);
                }
            }
            _ => *slot = None,
        }
        Ok(())
    }

    /// Releases a boundary that a stage has read, if nothing keeps it.
    pub(super) fn release_read(
        &mut self,
        action: &Action,
        boundary: Boundary,
    ) -> Result<(), RunError<E::Error>> {
        match &self.boundaries[boundary.index()] {
            Some(held) if !held.kept => self.release(action, boundary),
            _ => Ok(()),
        }
    }

    pub(super) fn copy(&self, boundary: Boundary, place: &Name) -> Option<&StoredCopy> {
        self.copies.get(&boundary)?.iter().find(|copy| copy.place == *place)
    }

    pub(super) fn set_state(&mut self, boundary: Boundary, place: &Name, state: State) {
        let copies = self.copies.get_mut(&boundary).into_iter().flatten();
        for copy in copies.filter(|copy| copy.place == *place) {
            copy.state = state.clone();
        }
    }

    /// Does something with a store, and counts the time.
    pub(super) fn with_store<T>(
        &mut self,
        action: &Action,
        place: &Name,
        work: impl FnOnce(&mut dyn Store) -> Result<T, StoreError>,
    ) -> Result<Result<T, StoreError>, RunError<E::Error>> {
        let start = Instant::now();
        let Some(store) = self.stores.get_mut(place) else {
            let names: Vec<&str> = self.stores.keys().map(Name::as_str).collect();
            return Err(RunError::NoStore {
                action: action.clone(),
                place: place.clone(),
                known: match names.is_empty() {
                    true => "(none)".to_owned(),
                    false => names.join(", "),
                },
            });
        };
        let done = work(store.as_mut());
        self.waited += start.elapsed();
        Ok(done)
    }

    pub(super) fn note_transfers(&mut self) {
        if let Some(trace) = &mut self.trace {
            for (place, store) in &mut self.stores {
                trace.moved(place, store.transfers());
            }
        }
    }
}
