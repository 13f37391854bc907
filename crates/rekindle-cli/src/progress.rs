//! How a run is watched: a line on standard error, or the live view.

use std::time::Instant;

use indicatif::ProgressBar;
use rekindle::Bytes;

use crate::arguments::TrainArguments;
use crate::failure::Failure;
use crate::screen::{self, Screen};
use crate::view::{Limit, View};
use crate::{meter, report};

/// Whoever watches a run.
pub(crate) enum Progress {
    /// A line; nothing where there is no terminal.
    Line { bar: ProgressBar, started: Instant, rate: Rate },
    /// The live view.
    Live(Screen),
}

/// What a step works through.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rate {
    /// Such as tokens.
    pub(crate) units: &'static str,
    pub(crate) per_step: usize,
}

impl Rate {
    /// How many a second, after so many steps.
    pub(crate) fn after(self, steps: u64, seconds: f64) -> f64 {
        steps as f64 * self.per_step as f64 / seconds.max(f64::MIN_POSITIVE)
    }
}

/// Refuses what cannot be shown, before anything is built.
pub(crate) fn check(arguments: &TrainArguments) -> Result<(), Failure> {
    match arguments.tui {
        true => screen::check(),
        false => Ok(()),
    }
}

impl Progress {
    /// Begins to show a run under the strategy or plan of this name. `limit` is asked only when it is shown: it may have
    /// to be measured.
    pub(crate) fn start(
        tui: bool,
        steps: u32,
        model: String,
        rate: Rate,
        strategy: String,
        limit: impl FnOnce() -> Result<Limit, Failure>,
    ) -> Result<Self, Failure> {
        if !tui {
            let bar = report::bar(u64::from(steps), "training");
            return Ok(Self::Line { bar, started: Instant::now(), rate });
        }
        Ok(Self::Live(Screen::open(View {
            model,
            strategy,
            steps,
            rate,
            limit: Some(limit()?),
            ..View::default()
        })?))
    }

    /// A step begins.
    pub(crate) fn begin(&mut self) {
        if let Self::Live(screen) = self {
            screen.begin();
        }
    }

    /// Something to know happened between two steps. The live view has no room for it.
    pub(crate) fn tell(&self, what: &str) {
        if let Self::Line { bar, .. } = self {
            bar.suspend(|| tell!("{what}"));
        }
    }

    /// A step was run; whether to go on.
    pub(crate) fn ran(&self, loss: f32) -> bool {
        match self {
            Self::Live(screen) => screen.ran(loss),
            Self::Line { bar, started, rate } => {
                bar.inc(1);
                bar.set_message(format!(
                    "loss {loss:.3}, {:.0} {}/s, {} live",
                    rate.after(bar.position(), started.elapsed().as_secs_f64()),
                    rate.units,
                    meter::live()
                ));
                true
            }
        }
    }

    /// The most bytes that were alive since the first step began, if nobody else resets the peak.
    pub(crate) fn peak(&self) -> Bytes {
        let earlier = match self {
            Self::Line { .. } => Bytes::ZERO,
            Self::Live(screen) => screen.earlier_peak,
        };
        earlier.max(meter::peak())
    }

    /// The run is over. One that failed leaves its line where it stopped.
    pub(crate) fn end(self, failed: bool) {
        match self {
            Self::Line { bar, .. } if failed => bar.abandon(),
            Self::Line { bar, .. } => bar.finish_and_clear(),
            Self::Live(screen) => drop(screen),
        }
    }
}
