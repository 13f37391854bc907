//! The solvers: each finds a plan for a chain, and says how good it is known to be.
//!
//! One file a solver, named as on the command line. Each gives actions; the simulator judges them, and what it says is
//! what the plan predicts. [`Solver`] names them all, the textbook rules included.
//!
//! | solver | what it needs | what it claims |
//! |---|---|---|
//! | [`optimal`] | sizes and times of every stage, a budget | the fastest persistent plan, with a proven bound |
//! | [`revolve`] | the length, slots | the fewest forwards with so many boundaries |
//! | [`mixed`] | the length, slots | the fewest forwards when a slot holds a boundary or a tape |
//! | [`online`] | slots; stages come one by one | few forwards without knowing the length |
//! | [`multi_level`] | the length, the tiers | the fastest with blocking transfers |
//! | [`eager`] | nothing in advance, a budget | never over the limit |
//!
//! Four of them count *slots*: places for one boundary each (or one tape), whatever it weighs. They know no sizes and
//! no times of single stages, and so are fast on any length; [`Request`] gives them a number of slots, or a budget in
//! bytes, for which they take the number of slots that fits.

pub mod eager;
pub mod mixed;
pub mod multi_level;
pub mod online;
pub mod optimal;
pub mod revolve;
mod slots;

use std::fmt;
use std::str::FromStr;

use crate::{Plan, Profile, Request, Rule, SolveError};

/// A solver by name.
///
/// ```
/// use rekindle_plan::{Bytes, Profile, Request, StageProfile, solvers::Solver};
///
/// let stage = |i: usize| StageProfile {
///     name: format!("block.{i}"),
///     output_bytes: Bytes::new(1),
///     tape_bytes: Bytes::new(4),
///     ..StageProfile::default()
/// };
/// let profile = Profile::new("ten", "none", Bytes::new(1), (0..10).map(stage).collect())?;
/// let solver: Solver = "revolve".parse()?;
/// let plan = solver.solve(&profile, &Request::with_slots(3))?;
/// assert_eq!(plan.predicted.forwards, 25);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Solver {
    /// [`optimal`].
    Optimal,
    /// [`revolve`].
    Revolve,
    /// [`mixed`].
    Mixed,
    /// [`online`].
    Online,
    /// [`multi_level`]: every tier of the profile.
    MultiLevel,
    /// [`multi_level`]: one tier that is never full.
    DiskRevolve,
    /// [`eager`].
    Eager,
    /// A textbook rule, refused when it takes more than the budget.
    Rule(Rule),
}

impl Solver {
    /// The solvers that are not rules, with a line on each.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Optimal, "the fastest plan for a budget, with a proven bound (needs a budget)"),
        (Self::Revolve, "the fewest forwards with so many boundaries kept (slots or a budget)"),
        (Self::Mixed, "the same, where a slot may also hold a tape (slots or a budget)"),
        (Self::Online, "the same, without knowing the length in advance (slots or a budget)"),
        (
            Self::MultiLevel,
            "boundaries in the profile's tiers as well, transfers waited for (slots or a budget)",
        ),
        (Self::DiskRevolve, "the same with one tier that is never full (slots or a budget)"),
        (Self::Eager, "evicts when memory runs out, knowing nothing in advance (needs a budget)"),
    ];

    /// The plan this solver finds.
    ///
    /// # Errors
    /// When it has none for the request.
    pub fn solve(self, profile: &Profile, request: &Request) -> Result<Plan, SolveError> {
        match self {
            Self::Optimal => optimal::solve(profile, request),
            Self::Revolve => revolve::solve(profile, request),
            Self::Mixed => mixed::solve(profile, request),
            Self::Online => online::solve(profile, request),
            Self::MultiLevel => multi_level::solve(profile, request),
            Self::DiskRevolve => multi_level::solve_disk_revolve(profile, request),
            Self::Eager => eager::solve(profile, request),
            Self::Rule(rule) => {
                let usable = request.budget_bytes.map(|_| request.usable_bytes());
                let mut plan = Plan::by_rule(profile, rule, usable)?;
                plan.budget_bytes = request.budget_bytes;
                Ok(plan)
            }
        }
    }
}

impl fmt::Display for Solver {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Optimal => formatter.pad("optimal"),
            Self::Revolve => formatter.pad("revolve"),
            Self::Mixed => formatter.pad("mixed"),
            Self::Online => formatter.pad("online"),
            Self::MultiLevel => formatter.pad("multi-level"),
            Self::DiskRevolve => formatter.pad("disk-revolve"),
            Self::Eager => formatter.pad("eager"),
            Self::Rule(rule) => rule.fmt(formatter),
        }
    }
}

/// The text names no solver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{found}` is not a solver: expected optimal, revolve, mixed, online, multi-level, disk-revolve, eager, or a rule: store-all, full, sqrt or every-K"
)]
pub struct ParseSolverError {
    /// The text that was found.
    pub found: String,
}

impl FromStr for Solver {
    type Err = ParseSolverError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().map(|(solver, _)| solver).find(|solver| solver.to_string() == text);
        let rule = || text.parse().ok().map(Self::Rule);
        named.or_else(rule).ok_or_else(|| ParseSolverError { found: text.to_owned() })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        let rules = ["store-all", "full", "sqrt", "every-3"].map(|rule| Solver::Rule(rule.parse().unwrap()));
        for solver in Solver::ALL.into_iter().map(|(solver, _)| solver).chain(rules) {
            assert_eq!(solver.to_string().parse(), Ok(solver));
            assert!(
                ParseSolverError { found: String::new() }.to_string().contains(&solver.to_string())
                    || solver == rules[3]
            );
        }
        assert!("every-0".parse::<Solver>().is_err());
    }
}
