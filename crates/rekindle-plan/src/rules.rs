//! The textbook rules: what to keep without knowing a single size.
//!
//! Each gives the actions for a chain of a given length; [`Rule`] names them for people. None looks at a budget: a
//! rule's peak is what it is, and [`Plan::by_rule`](crate::Plan::by_rule) refuses it when it is over.

mod every_k;
mod full;
mod store_all;

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

pub use every_k::{every_k, square_root};
pub use full::full;
pub use store_all::store_all;

use crate::{Action, Name};

/// A textbook rule by name: `store-all`, `full`, `every-K` or `sqrt`.
///
/// ```
/// use rekindle_plan::Rule;
///
/// let rule: Rule = "every-4".parse()?;
/// assert_eq!(rule.to_string(), "every-4");
/// assert_eq!(Rule::StoreAll.actions(1)?.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Keep every tape: nothing is run twice.
    StoreAll,
    /// Keep the region's input only, and run every stage from there: the least memory, a quadratic number of forwards.
    Full,
    /// Keep the boundary before every `k`-th stage and tape a segment at a time.
    EveryK(NonZeroUsize),
    /// [`Rule::EveryK`] with the square root of the number of stages.
    SquareRoot,
}

/// How many actions a rule may ask for: beyond it the plan itself would be the memory problem.
pub const MOST_ACTIONS: usize = 1 << 24;

/// Why a rule gives no plan for a chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// There is nothing to run.
    #[error("a chain of 0 stages has no plan, expected at least one stage")]
    NoStages,
    /// The plan would be too long to hold.
    #[error(
        "`{rule}` needs up to {needed} actions for {stages} stages, more than {MOST_ACTIONS}; try `sqrt`"
    )]
    TooLong {
        /// The rule.
        rule: Rule,
        /// How many stages the chain has.
        stages: usize,
        /// How many actions it would take.
        needed: u128,
    },
}

impl Rule {
    /// Every block by itself: [`Rule::EveryK`] of 1.
    pub const EVERY_ONE: Self = Self::EveryK(NonZeroUsize::MIN);

    /// The rule's name, such as `every-4`.
    pub fn name(self) -> Name {
        Name::of_rule(self)
    }

    /// The rule's actions for a chain of `stages`.
    ///
    /// # Errors
    /// When there is no stage, or the plan would be too long to hold.
    pub fn actions(self, stages: usize) -> Result<Vec<Action>, RuleError> {
        if stages == 0 {
            return Err(RuleError::NoStages);
        }
        let count = stages as u128;
        let needed = match self {
            Self::Full => count.saturating_mul(count + 5) / 2 + 2,
            // At most a forward, a tape, a backward, a keep and a drop for each stage.
            _ => count * 5,
        };
        if needed > MOST_ACTIONS as u128 {
            return Err(RuleError::TooLong { rule: self, stages, needed });
        }
        Ok(match self {
            Self::StoreAll => store_all(stages),
            Self::Full => full(stages),
            Self::EveryK(k) => every_k(stages, k),
            Self::SquareRoot => square_root(stages),
        })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StoreAll => formatter.pad("store-all"),
            Self::Full => formatter.pad("full"),
            Self::EveryK(k) => formatter.pad(&format!("every-{k}")),
            Self::SquareRoot => formatter.pad("sqrt"),
        }
    }
}

/// The text names no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is not a rule: expected store-all, full, sqrt or every-K with K from 1, such as every-4")]
pub struct ParseRuleError {
    /// The text that was found.
    pub found: String,
}

impl FromStr for Rule {
    type Err = ParseRuleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseRuleError { found: text.to_owned() };
        match text {
            "store-all" => Ok(Self::StoreAll),
            "full" => Ok(Self::Full),
            "sqrt" => Ok(Self::SquareRoot),
            _ => {
                let k = text.strip_prefix("every-").ok_or_else(error)?;
                let digits = k.bytes().all(|byte| byte.is_ascii_digit());
                let k = k.parse().ok().filter(|_| digits).ok_or_else(error)?;
                Ok(Self::EveryK(k))
            }
        }
    }
}
