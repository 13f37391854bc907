//! What a run was seen to do: plain values that whoever measures fills in.

use rekindle_plan::solvers::optimal::FrontierPoint;
use rekindle_plan::{Bytes, Nanos};

/// What a run of the plan was measured to take.
///
/// Bytes are on the plan's footing: the region's activations, without weights, gradients of weights and the
/// optimizer's state.
///
/// ```
/// use rekindle_plan::{Bytes, Nanos, Plan, Profile, Rule, StageProfile};
/// use rekindle_report::{Measured, MeasuredEvent, Report};
///
/// let stage = StageProfile {
///     name: "only".into(),
///     output_bytes: Bytes::new(1024),
///     tape_bytes: Bytes::new(8192),
///     forward_ns: Nanos::new(1_000),
///     backward_ns: Nanos::new(2_000),
///     ..StageProfile::default()
/// };
/// let profile = Profile::new("one", "none", Bytes::new(1024), vec![stage])?;
/// let plan = Plan::by_rule(&profile, Rule::StoreAll, None)?;
/// let event = |action, start, end, live| MeasuredEvent {
///     action,
///     start: Nanos::new(start),
///     end: Nanos::new(end),
///     live_bytes: Some(Bytes::new(live)),
///     peak_bytes: None,
/// };
/// let mut report = Report::new(&profile, &plan);
/// report.measured = Some(Measured {
///     peak_bytes: Bytes::new(10_752),
///     step_ns: Nanos::new(3_300),
///     events: vec![event(0, 0, 1_100, 9_216), event(1, 1_100, 3_300, 1_024)],
///     set_by: None,
///     transfers: None,
/// });
/// // 10,240 bytes and 3,000 ns were predicted.
/// let html = report.html()?;
/// assert!(html.contains("+5.0%") && html.contains("+10.0%"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// The most bytes alive at once.
    pub peak_bytes: Bytes,
    /// How long the step took.
    pub step_ns: Nanos,
    /// What ran, in the order it ran; empty where no trace was taken.
    pub events: Vec<MeasuredEvent>,
    /// What was seen to set the peak, in words; without them it is the event with the highest peak.
    pub set_by: Option<String>,
    /// What was moved to other places and back, and how much of that was waited for, in words.
    pub transfers: Option<String>,
}

/// One action that ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeasuredEvent {
    /// Its index among the plan's actions.
    pub action: usize,
    /// When it started, since the step began.
    pub start: Nanos,
    /// When it was over.
    pub end: Nanos,
    /// The bytes alive when it was over, where somebody could tell.
    pub live_bytes: Option<Bytes>,
    /// The most bytes alive while it ran, where somebody could tell.
    pub peak_bytes: Option<Bytes>,
}

/// Everything that takes memory while the model trains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The model's parameters.
    pub weights: Bytes,
    /// Their gradients.
    pub gradients: Bytes,
    /// What the optimizer keeps for them.
    pub optimizer_state: Bytes,
    /// What the plan is about: boundaries, tapes, gradients of boundaries.
    pub activations: Bytes,
    /// What operations need only while they run.
    pub workspace: Bytes,
}

impl Totals {
    /// The parts with their names, in the order in which they are drawn.
    pub(crate) fn parts(&self) -> [(&'static str, Bytes); 5] {
        [
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimizer state", self.optimizer_state),
            ("activations", self.activations),
            ("workspace", self.workspace),
        ]
    }
}

/// A point of the frontier: the cheapest time within a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The budget.
    pub budget_bytes: Bytes,
    /// The time of the fastest plan known for it.
    pub step_ns: Nanos,
}

impl From<&FrontierPoint> for Point {
    fn from(point: &FrontierPoint) -> Self {
        Self { budget_bytes: point.budget_bytes, step_ns: point.step_ns }
    }
}
