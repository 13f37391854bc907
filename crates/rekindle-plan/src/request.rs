//! What a solver is asked for, and why it may have no answer.

use std::time::Duration;

use crate::{Bytes, Gap, PlanError, Stage};

/// What a solver is asked for.
///
/// ```
/// use rekindle_plan::{Bytes, Request};
///
/// let request = Request::new(Bytes::mebibytes(64)).margin(0.05);
/// assert_eq!(request.usable_bytes(), Bytes::new(63_913_203));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The most bytes the plan may take at its worst moment; `None` for solvers that count slots instead.
    pub budget_bytes: Option<Bytes>,
    /// How many boundaries may be kept at once, for solvers that count slots; `None` lets the budget decide.
    pub slots: Option<u32>,
    /// How much larger than the profile says everything may turn out to be, as a fraction.
    pub margin: f64,
    /// When to stop looking for a better plan.
    pub gap: Gap,
    /// How long to look for one.
    pub time_limit: Duration,
}

impl Request {
    /// The fastest plan within `budget_bytes`, to within 1%, found in at most ten seconds.
    pub fn new(budget_bytes: Bytes) -> Self {
        Self { budget_bytes: Some(budget_bytes), ..Self::default() }
    }

    /// A plan with this many slots for boundaries, whatever they weigh.
    pub fn with_slots(slots: u32) -> Self {
        Self { slots: Some(slots), ..Self::default() }
    }

    /// Leaves room for tensors that turn out larger than the profile says, by this fraction.
    #[must_use]
    pub fn margin(mut self, fraction: f64) -> Self {
        self.margin = fraction;
        self
    }

    /// The budget less the margin; everything when there is no budget.
    pub fn usable_bytes(&self) -> Bytes {
        let Some(budget) = self.budget_bytes else { return Bytes::MAX };
        if self.margin.is_nan() || self.margin <= 0.0 {
            return budget;
        }
        // In parts of 2^32, so that the product fits: a margin need not be exact, only never too small.
        let scale = 1u128 << 32;
        let parts = (self.margin.min(1e6) * scale as f64).ceil() as u128;
        Bytes::new((u128::from(budget.get()) * scale / (scale + parts)) as u64)
    }
}

impl Default for Request {
    fn default() -> Self {
        Self {
            budget_bytes: None,
            slots: None,
            margin: 0.0,
            gap: Gap::ONE_PERCENT,
            time_limit: Duration::from_secs(10),
        }
    }
}

/// Why a solver has no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SolveError {
    /// No plan of the solver's class fits.
    #[error("`{solver}` has no plan within {} ({} bytes); the smallest budget it can meet is {} ({} bytes)",
        budget_bytes, budget_bytes.get(), smallest_bytes, smallest_bytes.get())]
    BudgetTooSmall {
        /// The solver.
        solver: &'static str,
        /// The budget it was given, less the margin.
        budget_bytes: Bytes,
        /// The smallest it has a plan for, before the margin is added.
        smallest_bytes: Bytes,
    },
    /// The solver works with slots, and needs more of them.
    #[error("`{solver}` needs at least {least} slots for {stages} stages, but got {slots}")]
    TooFewSlots {
        /// The solver.
        solver: &'static str,
        /// The slots it was given.
        slots: u32,
        /// The fewest it can work with.
        least: u32,
        /// How many stages the chain has.
        stages: usize,
    },
    /// Neither a budget nor slots were given.
    #[error("`{solver}` needs {needed}")]
    NothingToMeet {
        /// The solver.
        solver: &'static str,
        /// What it needs: a budget, slots, or one of them.
        needed: &'static str,
    },
    /// The solver would run a stage twice that must run once.
    #[error(
        "`{solver}` would run stage {stage} (`{name}`) again, which is pinned; `optimal` keeps pinned stages"
    )]
    Pinned {
        /// The solver.
        solver: &'static str,
        /// The pinned stage.
        stage: Stage,
        /// Its name.
        name: String,
    },
    /// The solver moves boundaries, and the profile has nowhere to move them.
    #[error("`{solver}` needs {needed} in the profile, which has {found}")]
    NoTier {
        /// The solver.
        solver: &'static str,
        /// What it needs.
        needed: &'static str,
        /// What the profile has.
        found: String,
    },
    /// The chain is too long for the solver, or the plan too long to hold.
    #[error("`{solver}` cannot plan {stages} stages: {why}")]
    TooLong {
        /// The solver.
        solver: &'static str,
        /// How many stages the chain has.
        stages: usize,
        /// What grows too large.
        why: String,
    },
    /// The simulator refuses the plan.
    #[error(transparent)]
    Refused(#[from] PlanError),
}
