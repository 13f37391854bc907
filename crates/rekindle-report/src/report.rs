//! What goes into a report, and what can come out.

use std::fmt;

use rekindle_plan::{Plan, PlanError, Profile};

use crate::figures::{Look, frontier, memory, timeline, totals};
use crate::page;
use crate::step::Step;
use crate::{Measured, Point, Totals};

/// A plan for a profile, and what else is known of it.
///
/// ```
/// use rekindle_plan::{Bytes, Nanos, Profile, Request, StageProfile, solvers::optimal};
/// use rekindle_report::{Figure, Report};
///
/// let block = |i: usize| StageProfile {
///     name: format!("block.{i}"),
///     output_bytes: Bytes::mebibytes(1),
///     tape_bytes: Bytes::mebibytes(8),
///     forward_ns: Nanos::new(1_000_000),
///     backward_ns: Nanos::new(2_000_000),
///     ..StageProfile::default()
/// };
/// let profile = Profile::new("four", "none", Bytes::mebibytes(1), (0..4).map(block).collect())?;
/// let frontier = optimal::frontier(&profile, &Request::default())?;
/// let plan = frontier.plan(&profile, Bytes::mebibytes(20))?;
///
/// let mut report = Report::new(&profile, &plan);
/// report.frontier = frontier.points().iter().map(Into::into).collect();
/// assert!(report.html()?.starts_with("<!DOCTYPE html>"));
/// assert!(report.svg(Figure::Timeline)?.starts_with("<svg"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// The model.
    pub profile: &'a Profile,
    /// What is done with it.
    pub plan: &'a Plan,
    /// The cheapest time for every budget, smallest budget first; empty when nobody asked.
    pub frontier: Vec<Point>,
    /// What was run, in words: a model's size, its batch, and what a whole step of it took where the plan is for a part.
    pub recipe: Option<String>,
    /// What a run took.
    pub measured: Option<Measured>,
    /// What takes memory beside the activations.
    pub totals: Option<Totals>,
}

/// A picture of a report, for a paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Figure {
    /// Memory over the step, predicted and measured, with the budget.
    Memory,
    /// What runs when, for every stage.
    Timeline,
    /// The cheapest time for every budget, with the plan's place.
    Frontier,
    /// Weights, gradients, optimizer state, activations and workspace.
    Totals,
}

impl Figure {
    /// Every figure there is.
    pub const ALL: [Self; 4] = [Self::Memory, Self::Timeline, Self::Frontier, Self::Totals];
}

impl fmt::Display for Figure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Memory => "memory",
            Self::Timeline => "timeline",
            Self::Frontier => "frontier",
            Self::Totals => "totals",
        })
    }
}

/// The cheapest time for every budget as an SVG of its own, without a plan; `None` when there are no points.
///
/// ```
/// use rekindle_plan::{Bytes, Nanos, Profile, Request, StageProfile, solvers::optimal};
/// use rekindle_report::{Point, frontier_svg};
///
/// let block = |i: usize| StageProfile {
///     name: format!("block.{i}"),
///     output_bytes: Bytes::mebibytes(1),
///     tape_bytes: Bytes::mebibytes(8),
///     forward_ns: Nanos::new(1_000_000),
///     backward_ns: Nanos::new(2_000_000),
///     ..StageProfile::default()
/// };
/// let profile = Profile::new("four", "none", Bytes::mebibytes(1), (0..4).map(block).collect())?;
/// let frontier = optimal::frontier(&profile, &Request::default())?;
/// let points: Vec<Point> = frontier.points().iter().map(Into::into).collect();
/// let svg = frontier_svg(&profile, &points).unwrap();
/// assert!(svg.starts_with("<svg") && !svg.contains("this plan"));
/// assert_eq!(frontier_svg(&profile, &[]), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn frontier_svg(profile: &Profile, points: &[Point]) -> Option<String> {
    frontier::draw(profile, None, points, None, Look::Paper).map(|drawing| drawing.svg)
}

/// Why there is no report.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The plan is not one for the profile.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The trace is of another plan.
    #[error(
        "event {event} ran action {action}, but the plan has {actions} actions; give the trace of this plan"
    )]
    NoAction {
        /// Which event.
        event: usize,
        /// The action it says.
        action: usize,
        /// How many there are.
        actions: usize,
    },
    /// An event is over before it starts.
    #[error(
        "event {event} ends at {end} ns, before it starts at {start} ns; expected a start that is not later"
    )]
    Backwards {
        /// Which event.
        event: usize,
        /// When it starts.
        start: u64,
        /// When it ends.
        end: u64,
    },
    /// A figure was asked for whose values were not given.
    #[error("there is nothing to draw in the figure `{figure}`; give the report {needed}")]
    NothingToDraw {
        /// The figure.
        figure: Figure,
        /// What it needs.
        needed: &'static str,
    },
}

impl<'a> Report<'a> {
    /// A report of a plan, with nothing measured.
    pub fn new(profile: &'a Profile, plan: &'a Plan) -> Self {
        Self { profile, plan, frontier: Vec::new(), recipe: None, measured: None, totals: None }
    }

    /// The page: one file that needs no other, and no network.
    ///
    /// # Errors
    /// When the plan does not fit the profile, or the trace the plan.
    pub fn html(&self) -> Result<String, ReportError> {
        Ok(page::write(self, &self.judged()?))
    }

    /// One figure as an SVG of its own, in light colours.
    ///
    /// # Errors
    /// As for the page, and when what the figure shows was not given.
    pub fn svg(&self, figure: Figure) -> Result<String, ReportError> {
        let step = self.judged()?;
        let nothing = |needed| ReportError::NothingToDraw { figure, needed };
        let drawing = match figure {
            Figure::Memory => memory::draw(&step, self.measured.as_ref(), Look::Paper),
            Figure::Timeline => timeline::draw(&step, Look::Paper),
            Figure::Frontier => {
                let measured = self.measured.as_ref();
                let drawing =
                    frontier::draw(self.profile, Some(&step), &self.frontier, measured, Look::Paper);
                drawing.ok_or_else(|| nothing("the points of the frontier"))?
            }
            Figure::Totals => {
                let totals = self.totals.as_ref().ok_or_else(|| nothing("the totals"))?;
                totals::draw(totals, Look::Paper)
            }
        };
        Ok(drawing.svg)
    }

    /// The judge's word on the plan, once for everything that is shown.
    fn judged(&self) -> Result<Step<'a>, ReportError> {
        let (_, simulation) = self.plan.judge(self.profile)?;
        let actions = self.plan.actions.len();
        for (event, found) in self.measured.iter().flat_map(|measured| measured.events.iter().enumerate()) {
            if found.action >= actions {
                return Err(ReportError::NoAction { event, action: found.action, actions });
            }
            if found.end < found.start {
                let (start, end) = (found.start.get(), found.end.get());
                return Err(ReportError::Backwards { event, start, end });
            }
        }
        Ok(Step::new(self.profile, self.plan, simulation))
    }
}
