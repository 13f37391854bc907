//! Why a policy gives no plan.

use super::clause::Clause;
use super::ready::ReadyMade;
use crate::{Boundary, PlanError, Stage};

/// Why a policy gives no plan for a profile.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// Nothing has this name.
    #[error("`{clause}`: no {} of the profile is called that{}", kind(clause), meant(nearest.as_deref()))]
    NoMatch {
        /// The clause with the pattern.
        clause: Clause,
        /// The name most like the pattern, if one is like it.
        nearest: Option<String>,
    },
    /// The profile has no such tier or codec.
    #[error("`{clause}`: the profile has no {kind} `{found}`, expected one of: {known}")]
    UnknownPlace {
        /// The clause that names it.
        clause: Clause,
        /// Tier or codec.
        kind: &'static str,
        /// The name found.
        found: String,
        /// The names there are.
        known: String,
    },
    /// A stage cannot keep its tape under this option.
    #[error("`{clause}`: stage {stage} (`{name}`) has no tape option `{found}`, expected one of: {known}")]
    UnknownOption {
        /// The clause that names it.
        clause: Clause,
        /// The stage.
        stage: Stage,
        /// Its name.
        name: String,
        /// The option found.
        found: String,
        /// The options there are.
        known: String,
    },
    /// No stage can keep its tape under the option that a ready-made policy is about.
    #[error("`{policy}` needs the tape option `{option}`, which no stage of the profile has")]
    NoOption {
        /// The policy.
        policy: ReadyMade,
        /// The option.
        option: &'static str,
    },
    /// A ready-made policy moves boundaries, and the profile has nowhere to move them.
    #[error("`{policy}` needs a tier to move boundaries to, and the profile has none")]
    NoTier {
        /// The policy.
        policy: ReadyMade,
    },
    /// Two clauses say different things of one stage.
    #[error("`{one}` and `{other}` contradict each other on stage {stage} (`{name}`); leave one of them out")]
    StageContradiction {
        /// The stage.
        stage: Stage,
        /// Its name.
        name: String,
        /// The clause that came first.
        one: Clause,
        /// The clause that says something else.
        other: Clause,
    },
    /// Two clauses say different things of one boundary.
    #[error("`{one}` and `{other}` contradict each other on {boundary} (`{name}`); leave one of them out")]
    BoundaryContradiction {
        /// The boundary.
        boundary: Boundary,
        /// Its name.
        name: String,
        /// The clause that came first.
        one: Clause,
        /// The clause that says something else.
        other: Clause,
    },
    /// A stage that must run once only would be run again.
    #[error(
        "the policy would run stage {stage} (`{name}`) again, which is pinned in the profile; pin it in the policy too"
    )]
    Pinned {
        /// The stage.
        stage: Stage,
        /// Its name.
        name: String,
    },
    /// The simulator refuses the plan: it takes more than the budget, or a tier is full.
    #[error(transparent)]
    Refused(#[from] PlanError),
}

const fn kind(clause: &Clause) -> &'static str {
    match clause.is_of_boundaries() {
        true => "boundary",
        false => "stage",
    }
}

pub(super) fn meant(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; the nearest name is `{name}`"))
}
