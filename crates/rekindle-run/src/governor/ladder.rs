//! The plans that a governor chooses from.

use rekindle_plan::solvers::optimal::Frontier;
use rekindle_plan::{Bytes, Nanos, Plan, Profile, SolveError};

/// One way to run a step: what it takes, how long, and whatever the caller needs to run it.
///
/// ```
/// use rekindle_plan::{Bytes, Nanos};
/// use rekindle_run::governor::Rung;
///
/// let rung = Rung { budget: Bytes::mebibytes(64), step_time: Nanos::new(1_500_000), plan: "sqrt" };
/// assert_eq!(rung.plan, "sqrt");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rung<P> {
    /// The most bytes its activations take at once.
    pub budget: Bytes,
    /// How long a step takes.
    pub step_time: Nanos,
    /// What to run.
    pub plan: P,
}

/// Rungs from the tightest to the fastest: each takes more memory than the one before it, and less time.
///
/// ```
/// use rekindle_plan::{Bytes, Nanos};
/// use rekindle_run::governor::{Ladder, LadderError, Rung};
///
/// let rung = |budget, time| Rung { budget: Bytes::new(budget), step_time: Nanos::new(time), plan: () };
/// let ladder = Ladder::new(vec![rung(10, 9), rung(20, 5)])?;
/// assert_eq!(ladder.rungs().len(), 2);
///
/// // More memory for nothing: never worth running.
/// let error = Ladder::new(vec![rung(10, 9), rung(20, 9)]);
/// assert_eq!(error, Err(LadderError::NoGain { rung: 1 }));
/// # Ok::<(), LadderError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ladder<P> {
    rungs: Vec<Rung<P>>,
}

/// Why rungs are no ladder.
///
/// ```
/// use rekindle_run::governor::{Ladder, LadderError};
///
/// let error = Ladder::<()>::new(vec![]).unwrap_err();
/// assert_eq!(error, LadderError::Empty);
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LadderError {
    /// There is none.
    #[error("a ladder needs at least one rung")]
    Empty,
    /// A rung does not take more memory than the one before it, or is not faster.
    #[error(
        "rung {rung} must take more memory than the one before it, and less time; `Ladder::best_of` sorts them"
    )]
    NoGain {
        /// Which, counted from 0.
        rung: usize,
    },
    /// A point of the frontier gives no plan.
    #[error(transparent)]
    NoPlan(#[from] SolveError),
}

impl<P> Ladder<P> {
    /// A ladder of rungs that are in order.
    ///
    /// # Errors
    /// When there is none, or one does not take more memory and less time than the one before it.
    ///
    /// ```
    /// use rekindle_plan::{Bytes, Nanos};
    /// use rekindle_run::governor::{Ladder, Rung};
    ///
    /// let only = Rung { budget: Bytes::new(1), step_time: Nanos::new(1), plan: () };
    /// assert!(Ladder::new(vec![only]).is_ok());
    /// ```
    pub fn new(rungs: Vec<Rung<P>>) -> Result<Self, LadderError> {
        if rungs.is_empty() {
            return Err(LadderError::Empty);
        }
        let gains =
            |pair: &[Rung<P>]| pair[1].budget > pair[0].budget && pair[1].step_time < pair[0].step_time;
        match rungs.windows(2).position(|pair| !gains(pair)) {
            Some(before) => Err(LadderError::NoGain { rung: before + 1 }),
            None => Ok(Self { rungs }),
        }
    }

    /// A ladder of any rungs: sorted, without those that another one beats.
    ///
    /// # Errors
    /// When there is none.
    ///
    /// ```
    /// use rekindle_plan::{Bytes, Nanos};
    /// use rekindle_run::governor::{Ladder, Rung};
    ///
    /// let rung = |budget, time| Rung { budget: Bytes::new(budget), step_time: Nanos::new(time), plan: () };
    /// let ladder = Ladder::best_of(vec![rung(30, 5), rung(10, 9), rung(20, 9), rung(30, 4)])?;
    /// assert_eq!(ladder.rungs(), [rung(10, 9), rung(30, 4)]);
    /// # Ok::<(), rekindle_run::governor::LadderError>(())
    /// ```
    pub fn best_of(mut rungs: Vec<Rung<P>>) -> Result<Self, LadderError> {
        rungs.sort_by_key(|rung| (rung.budget, rung.step_time));
        let mut fastest = None;
        rungs.retain(|rung| {
            let gains = fastest.is_none_or(|time| rung.step_time < time);
            fastest = if gains { Some(rung.step_time) } else { fastest };
            gains
        });
        Self::new(rungs)
    }

    /// The rungs, tightest first. There is at least one.
    ///
    /// ```
    /// # use rekindle_plan::{Bytes, Nanos};
    /// # use rekindle_run::governor::{Ladder, Rung};
    /// # let rung = Rung { budget: Bytes::new(1), step_time: Nanos::new(1), plan: () };
    /// let ladder = Ladder::new(vec![rung])?;
    /// assert_eq!(ladder.rungs()[0].budget, Bytes::new(1));
    /// # Ok::<(), rekindle_run::governor::LadderError>(())
    /// ```
    pub fn rungs(&self) -> &[Rung<P>] {
        &self.rungs
    }
}

impl Ladder<Plan> {
    /// At most `most` plans of a frontier, both ends among them. Nothing is solved again.
    ///
    /// A rung's budget is what its plan takes at its peak. Who plans with a margin adds it with [`Ladder::best_of`].
    ///
    /// # Errors
    /// When the frontier has no plan at one of its points.
    ///
    /// ```
    /// use rekindle_plan::{Bytes, Nanos, Profile, Request, StageProfile, solvers::optimal};
    /// use rekindle_run::governor::Ladder;
    ///
    /// let block = |i: usize| StageProfile {
    ///     name: format!("block.{i}"),
    ///     output_bytes: Bytes::new(1),
    ///     tape_bytes: Bytes::new(8),
    ///     forward_ns: Nanos::new(1),
    ///     backward_ns: Nanos::new(2),
    ///     ..StageProfile::default()
    /// };
    /// let profile = Profile::new("twelve", "none", Bytes::new(1), (0..12).map(block).collect())?;
    /// let frontier = optimal::frontier(&profile, &Request::default())?;
    /// let ladder = Ladder::from_frontier(&profile, &frontier, 8)?;
    /// assert_eq!(ladder.rungs().len(), 8);
    /// assert_eq!(ladder.rungs()[7].step_time, profile.lower_bound());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_frontier(profile: &Profile, frontier: &Frontier, most: usize) -> Result<Self, LadderError> {
        let points = frontier.points();
        let count = points.len().min(most.max(1));
        let index = |rung: usize| if count < 2 { 0 } else { rung * (points.len() - 1) / (count - 1) };
        let rungs = (0..count).map(|rung| {
            let plan = frontier.plan(profile, points[index(rung)].budget_bytes)?;
            Ok(Rung { budget: plan.predicted.peak_bytes, step_time: plan.predicted.step_ns, plan })
        });
        Self::best_of(rungs.collect::<Result<_, SolveError>>()?)
    }
}
