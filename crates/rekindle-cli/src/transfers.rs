//! What a step moved to other places and back, as it was measured.

use std::fmt;

use rekindle::{Bytes, Error, Nanos, Trace, TraceHandle};
use rekindle_models::Trainable;
use rekindle_plan::Action;
use serde::Serialize;

use crate::measure::{Parts, Recipe, step_traced};
use crate::report::counted;
use crate::strategy::Ready;

/// The transfers of a step.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Transfers {
    count: usize,
    bytes: Bytes,
    /// How long they took, all of them together.
    time_ns: Nanos,
    /// How long computing stood still for them.
    waited_ns: Nanos,
    /// How long the plan says that it does.
    predicted_wait_ns: Nanos,
    /// The part of their time that nobody waited for.
    hidden: f64,
}

impl Transfers {
    /// Those of a trace of a planned step; `None` when nothing was moved.
    pub(crate) fn of(trace: &Trace, how: &Ready) -> Option<Self> {
        let Ready::Planned(planned, _) = how else { return None };
        Self::beside(trace, planned.simulation().wait_ns)
    }

    fn beside(trace: &Trace, predicted_wait_ns: Nanos) -> Option<Self> {
        Some(Self {
            count: trace.transfers().len(),
            bytes: trace.transfers().iter().map(|moved| moved.bytes).sum(),
            time_ns: trace.transfer_time(),
            waited_ns: trace.waited(),
            predicted_wait_ns,
            hidden: trace.hidden()?,
        })
    }

    /// Takes a step and looks; `None` for a strategy that moves nothing.
    pub(crate) fn measure<M: Trainable>(
        model: &M,
        batch: &Parts<M::Batch>,
        how: &Ready,
        recipe: Recipe,
    ) -> Result<Option<Self>, Error> {
        let Ready::Planned(planned, _) = how else { return Ok(None) };
        let moves = |action: &Action| matches!(action, Action::Offload { .. } | Action::Compress { .. });
        if !planned.plan().actions.iter().any(moves) {
            return Ok(None);
        }
        let trace = TraceHandle::new();
        step_traced(model, &batch.first(), how, recipe, Some(&trace))?;
        Ok(trace.get().and_then(|trace| Self::of(&trace, how)))
    }
}

impl fmt::Display for Transfers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} of {} took {}, {:.0}% of it hidden behind computing; {} waited for, {} predicted",
            counted(self.count, "transfer"),
            self.bytes,
            self.time_ns,
            self.hidden * 100.0,
            self.waited_ns,
            self.predicted_wait_ns
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_without_transfers_has_none() {
        assert!(Transfers::beside(&Trace::start(), Nanos::ZERO).is_none());
    }

    #[test]
    fn it_is_told_in_one_line() {
        let transfers = Transfers {
            count: 2,
            bytes: Bytes::mebibytes(3),
            time_ns: Nanos::new(4_000_000),
            waited_ns: Nanos::new(1_000_000),
            predicted_wait_ns: Nanos::new(2_000),
            hidden: 0.75,
        };
        let words = "2 transfers of 3.0 MiB took 4.00 ms, 75% of it hidden behind computing; 1.00 ms waited for, 2.00 us predicted";
        assert_eq!(transfers.to_string(), words);
    }
}
