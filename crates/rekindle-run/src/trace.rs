//! What happened while a plan ran.

mod timeline;

use std::time::Instant;

use rekindle_plan::{Action, Boundary, Bytes, Name, Nanos};

use crate::{Fault, Recovery, Transfer, Way};

/// Every action of a run, in the order they ran.
///
/// ```
/// use rekindle_plan::{Bytes, Nanos, Profile, Rule, Schedule, StageProfile};
/// use rekindle_run::{Executor, Stores, counted::CountedEngine};
///
/// let stage = StageProfile { name: "only".into(), ..StageProfile::default() };
/// let profile = Profile::new("one", "none", Bytes::new(10), vec![stage])?;
/// let (schedule, _) = Schedule::judge(&profile, &Rule::StoreAll.actions(1)?)?;
/// let mut engine = CountedEngine::new(profile);
/// let mut executor = Executor::new(schedule, Stores::new()).traced();
/// let input = engine.input();
/// executor.forward(&mut engine, input)?;
/// let trace = executor.trace().ok_or("not traced")?;
/// assert_eq!(trace.events()[0].action.to_string(), "tape 1");
/// assert_eq!((trace.waited(), trace.hidden()), (Nanos::ZERO, None)); // nothing was moved
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Trace {
    origin: Instant,
    events: Vec<Event>,
    transfers: Vec<Moved>,
    /// What the engine took to hand boundaries out and to take them in.
    handing: Nanos,
}

/// One action that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What was done.
    pub action: Action,
    /// When it started, since the trace began.
    pub start: Nanos,
    /// When it was over.
    pub end: Nanos,
    /// The bytes alive on the device when it was over, where the engine can tell.
    pub live_bytes: Option<Bytes>,
    /// The most bytes alive on the device while it ran, where the engine can tell.
    pub peak_bytes: Option<Bytes>,
    /// How long it was with the stores: waiting for transfers, doing those that a store does at once, or handing boundaries out of
    /// the engine and into it.
    pub waited: Nanos,
    /// What went wrong in the stores meanwhile.
    pub faults: Vec<Fault>,
    /// How boundaries were had all the same.
    pub recoveries: Vec<Recovery>,
}

/// A transfer that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Which store it was to or from.
    pub place: Name,
    /// What was moved.
    pub boundary: Boundary,
    /// Which way.
    pub way: Way,
    /// How many bytes.
    pub bytes: Bytes,
    /// When it started, since the trace began.
    pub start: Nanos,
    /// When it was over.
    pub end: Nanos,
}

impl Trace {
    /// An empty trace that begins now.
    pub fn start() -> Self {
        Self { origin: Instant::now(), events: Vec::new(), transfers: Vec::new(), handing: Nanos::ZERO }
    }

    /// The actions that ran.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The most bytes alive at once, where the engine can tell.
    pub fn peak_bytes(&self) -> Option<Bytes> {
        self.events.iter().filter_map(|event| event.peak_bytes.max(event.live_bytes)).max()
    }

    /// The time from the first action to the last, without what ran between the two halves.
    pub fn busy(&self) -> Nanos {
        self.events.iter().map(|event| event.end.saturating_sub(event.start)).sum()
    }

    /// The transfers that stores made beside the actions, or within them.
    pub fn transfers(&self) -> &[Moved] {
        &self.transfers
    }

    /// How long the actions were with the stores.
    pub fn waited(&self) -> Nanos {
        self.events.iter().map(|event| event.waited).sum()
    }

    /// How long transfers took, all of them together, with what the engine took to hand boundaries out and to take them in.
    pub fn transfer_time(&self) -> Nanos {
        let moved = self.transfers.iter().map(|moved| moved.end.saturating_sub(moved.start));
        moved.chain([self.handing]).sum()
    }

    /// The part of the transfers' time that nobody waited for, from 0 to 1; `None` without transfers.
    pub fn hidden(&self) -> Option<f64> {
        let moving = self.transfer_time();
        let seen = || self.waited().get() as f64 / moving.get() as f64;
        (moving > Nanos::ZERO).then(|| (1.0 - seen()).max(0.0))
    }

    /// What went wrong in the stores, in the order it was found.
    pub fn faults(&self) -> impl Iterator<Item = &Fault> {
        self.events.iter().flat_map(|event| &event.faults)
    }

    /// The time since the trace began.
    pub(crate) fn now(&self) -> Nanos {
        self.origin.elapsed().into()
    }

    /// The engine handed a boundary out, or took one in.
    pub(crate) fn handed(&mut self, took: Nanos) {
        self.handing = [self.handing, took].into_iter().sum();
    }

    pub(crate) fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    pub(crate) fn moved(&mut self, place: &Name, transfers: Vec<Transfer>) {
        let since = |moment: Instant| moment.saturating_duration_since(self.origin).into();
        self.transfers.extend(transfers.into_iter().map(|transfer| Moved {
            place: place.clone(),
            boundary: transfer.boundary,
            way: transfer.way,
            bytes: transfer.bytes,
            start: since(transfer.start),
            end: since(transfer.end),
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_nobody_waited_for_is_hidden() {
        let mut trace = Trace::start();
        assert_eq!(trace.hidden(), None);
        let start = trace.origin + Duration::from_millis(1);
        let end = start + Duration::from_millis(8);
        let (boundary, bytes) = (Boundary::new(1), Bytes::new(5));
        let place: Name = "disk".parse().unwrap();
        trace.moved(&place, vec![Transfer { boundary, way: Way::Out, bytes, start, end }]);
        assert_eq!((trace.hidden(), trace.transfer_time()), (Some(1.0), Nanos::new(8_000_000)));
        assert_eq!(trace.transfers()[0].start, Nanos::new(1_000_000));
        trace.push(Event {
            action: Action::drop(boundary),
            start: Nanos::ZERO,
            end: Nanos::ZERO,
            live_bytes: None,
            peak_bytes: None,
            waited: Nanos::new(2_000_000),
            faults: vec![],
            recoveries: vec![],
        });
        assert_eq!((trace.hidden(), trace.waited()), (Some(0.75), Nanos::new(2_000_000)));
    }
}
