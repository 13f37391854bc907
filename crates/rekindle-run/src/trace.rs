//! What happened while a plan ran.

use std::time::Instant;

use rekindle_plan::{Action, Bytes, Nanos};

/// Every action of a run, in the order they ran.
#[derive(Clone, Debug)]
pub struct Trace {
    origin: Instant,
    events: Vec<Event>,
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
}

impl Trace {
    /// An empty trace that begins now.
    pub fn start() -> Self {
        Self { origin: Instant::now(), events: Vec::new() }
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

    /// The time since the trace began.
    pub(crate) fn now(&self) -> Nanos {
        self.origin.elapsed().into()
    }

    pub(crate) fn push(
        &mut self,
        action: Action,
        start: Nanos,
        live_bytes: Option<Bytes>,
        peak_bytes: Option<Bytes>,
    ) {
        let end = self.now();
        self.events.push(Event { action, start, end, live_bytes, peak_bytes });
    }
}
