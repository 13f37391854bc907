//! Policies: what to keep, said by the names of stages.
//!
//! A [`Policy`] starts from a choice for all stages, and its clauses say what is otherwise for some. It knows no sizes and
//! looks at no budget: like a textbook rule it gives the plan it gives, and the simulator says what that takes.
//! `docs/policies.md` has the words.

mod cheap;
mod choices;
mod clause;
mod error;
mod names;
mod pattern;
mod ready;
mod schedule;
mod text;

use std::fmt;

pub use clause::Clause;
pub use error::PolicyError;
pub use names::Named;
pub use pattern::Pattern;
pub use ready::ReadyMade;
pub use text::ParsePolicyError;

use crate::{Action, Bytes, Name, Plan, Profile, Stage, Status};
use choices::{Choices, Run};

/// What to keep, said by the names of stages.
///
/// ```
/// use rekindle_plan::{Policy, Profile};
///
/// let parts = (0..12).flat_map(|i| ["qkv", "attention", "up", "down"].map(|part| format!("block.{i}.{part}")));
/// let profile = Profile::unmeasured(parts, &[])?;
///
/// let policy = Policy::recompute_all().keep("block.*.input").pin("block.11");
/// let plan = policy.plan(&profile)?;
/// // Every stage twice, but those of the last block.
/// assert_eq!(plan.predicted.forwards, 48 + 44);
///
/// assert_eq!(policy.to_string(), "recompute-all, keep block.*.input, pin block.11");
/// assert_eq!("recompute-all, keep block.*.input, pin block.11".parse(), Ok(policy));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    start: Start,
    clauses: Vec<Clause>,
}

/// What a policy starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Start {
    /// No stage keeps its tape in the forward.
    RecomputeAll,
    /// Every stage keeps its tape.
    KeepAll,
    /// What a ready-made policy says.
    ReadyMade(ReadyMade),
}

impl Start {
    /// The words a policy may begin with.
    fn names() -> impl Iterator<Item = &'static str> {
        ["recompute-all", "keep-all"].into_iter().chain(ReadyMade::ALL.map(|(ready, _)| ready.name()))
    }

    fn by_name(name: &str) -> Option<Self> {
        match name {
            "recompute-all" => Some(Self::RecomputeAll),
            "keep-all" => Some(Self::KeepAll),
            _ => ReadyMade::by_name(name).map(Self::ReadyMade),
        }
    }
}

impl fmt::Display for Start {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RecomputeAll => formatter.pad("recompute-all"),
            Self::KeepAll => formatter.pad("keep-all"),
            Self::ReadyMade(ready) => ready.fmt(formatter),
        }
    }
}

impl Policy {
    /// No stage keeps its tape in the forward, and no boundary is kept but what clauses name and segments start from.
    pub const fn recompute_all() -> Self {
        Self::starting_from(Start::RecomputeAll)
    }

    /// Every stage keeps its whole tape in the forward.
    pub const fn keep_all() -> Self {
        Self::starting_from(Start::KeepAll)
    }

    /// A ready-made policy. [`ReadyMade::ALL`] lists them; clauses may follow.
    ///
    /// ```
    /// use rekindle_plan::Policy;
    ///
    /// let policy = Policy::named("selective")?.pin("router");
    /// assert_eq!(policy.to_string(), "selective, pin router");
    /// # Ok::<(), rekindle_plan::ParsePolicyError>(())
    /// ```
    ///
    /// # Errors
    /// When none has this name.
    pub fn named(name: &str) -> Result<Self, ParsePolicyError> {
        let expected = "full, selective, dots-saveable or offload-inputs";
        let unknown =
            || ParsePolicyError::new(name, expected).among(ReadyMade::ALL.map(|(ready, _)| ready.name()));
        ReadyMade::by_name(name).map(Self::from).ok_or_else(unknown)
    }

    /// A policy without clauses.
    pub const fn starting_from(start: Start) -> Self {
        Self { start, clauses: Vec::new() }
    }

    /// The same policy with one clause more.
    #[must_use]
    pub fn with(mut self, clause: Clause) -> Self {
        self.clauses.push(clause);
        self
    }

    /// These boundaries stay on the device.
    #[must_use]
    pub fn keep(self, pattern: impl Into<Pattern>) -> Self {
        self.with(Clause::Keep { pattern: pattern.into() })
    }

    /// These boundaries wait in a tier of the profile.
    #[must_use]
    pub fn offload(self, pattern: impl Into<Pattern>, tier: impl Into<String>) -> Self {
        self.with(Clause::Offload { pattern: pattern.into(), tier: tier.into() })
    }

    /// These boundaries wait on the device, compressed by a codec of the profile.
    #[must_use]
    pub fn compress(self, pattern: impl Into<Pattern>, codec: impl Into<String>) -> Self {
        self.with(Clause::Compress { pattern: pattern.into(), codec: codec.into() })
    }

    /// These stages keep their whole tape and are never run again.
    #[must_use]
    pub fn pin(self, pattern: impl Into<Pattern>) -> Self {
        self.with(Clause::Pin { pattern: pattern.into() })
    }

    /// These stages keep their tape under an option that each of them has.
    #[must_use]
    pub fn tape(self, pattern: impl Into<Pattern>, option: impl Into<String>) -> Self {
        self.with(Clause::Tape { pattern: pattern.into(), option: option.into() })
    }

    /// These stages keep no tape, and are run again.
    #[must_use]
    pub fn recompute(self, pattern: impl Into<Pattern>) -> Self {
        self.with(Clause::Recompute { pattern: pattern.into() })
    }

    /// What it starts from.
    pub const fn start(&self) -> Start {
        self.start
    }

    /// What it says beyond that, in order.
    pub fn clauses(&self) -> &[Clause] {
        &self.clauses
    }

    /// The names a policy can use for a profile, in the order of its stages, a whole before its parts.
    ///
    /// ```
    /// use rekindle_plan::{Policy, Profile};
    ///
    /// let stages = ["stem", "block.0.up", "block.0.down"].map(str::to_owned);
    /// let profile = Profile::unmeasured(stages, &[])?;
    /// let names: Vec<_> = Policy::names(&profile).into_iter().map(|named| named.name).collect();
    /// assert_eq!(names, ["stem", "block", "block.0", "block.0.up", "block.0.down"]);
    /// # Ok::<(), rekindle_plan::ProfileError>(())
    /// ```
    pub fn names(profile: &Profile) -> Vec<Named<'_>> {
        names::names(profile)
    }

    /// The policy's actions for a profile.
    ///
    /// # Errors
    /// When a clause does not fit the profile, two contradict each other, or a pinned stage would run again.
    pub fn actions(&self, profile: &Profile) -> Result<Vec<Action>, PolicyError> {
        let mut choices = match self.start {
            Start::RecomputeAll => Choices::new(profile, Run::Recompute),
            Start::KeepAll => Choices::new(profile, Run::Tape(None)),
            Start::ReadyMade(ready) => ready.choices(profile)?,
        };
        for clause in &self.clauses {
            choices.add(clause)?;
        }
        let pieces = schedule::pieces(&choices);
        let mut again =
            pieces.iter().filter(|piece| piece.runs_again()).flat_map(|piece| piece.stages.clone());
        if let Some(index) = again.find(|index| profile.stages()[*index].pinned) {
            let name = profile.stages()[index].name.clone();
            return Err(PolicyError::Pinned { stage: Stage::at(index), name });
        }
        Ok(schedule::actions(&choices, &pieces))
    }

    /// The policy's plan for a profile, with what the simulator says of it.
    ///
    /// # Errors
    /// As [`Policy::actions`], and when a tier cannot hold what goes there.
    pub fn plan(&self, profile: &Profile) -> Result<Plan, PolicyError> {
        self.judged(profile, None)
    }

    /// The same, refused when it takes more than the budget.
    ///
    /// # Errors
    /// As [`Policy::plan`], and when the plan is over the budget.
    pub fn plan_within(&self, profile: &Profile, budget_bytes: Bytes) -> Result<Plan, PolicyError> {
        self.judged(profile, Some(budget_bytes))
    }

    fn judged(&self, profile: &Profile, budget_bytes: Option<Bytes>) -> Result<Plan, PolicyError> {
        let actions = self.actions(profile)?;
        let status = Status::Rule(Name::of_policies());
        Ok(Plan::judged(profile, format!("policy {self}"), status, budget_bytes, actions)?)
    }

    /// The clauses that change nothing for a profile: without any one of them the actions are the same.
    ///
    /// To place a boundary that no segment starts from is no error, because patterns reach far; but who wrote a clause
    /// by hand wants to know.
    ///
    /// ```
    /// use rekindle_plan::{Policy, Profile};
    ///
    /// let profile = Profile::unmeasured((0..3).map(|i| format!("block.{i}")), &[])?;
    /// // `block.0` keeps its tape, and with it what it read.
    /// let policy = Policy::keep_all().recompute("block.1").keep("block.0.input");
    /// let idle: Vec<_> = policy.idle(&profile)?.into_iter().map(ToString::to_string).collect();
    /// assert_eq!(idle, ["keep block.0.input"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Policy::actions`].
    pub fn idle(&self, profile: &Profile) -> Result<Vec<&Clause>, PolicyError> {
        let actions = self.actions(profile)?;
        let without = |index: usize| {
            let mut policy = self.clone();
            policy.clauses.remove(index);
            policy.actions(profile)
        };
        let clauses = self.clauses.iter().enumerate();
        let idle = clauses.filter(|(index, _)| without(*index).as_ref() == Ok(&actions));
        Ok(idle.map(|(_, clause)| clause).collect())
    }
}

impl From<ReadyMade> for Policy {
    fn from(ready: ReadyMade) -> Self {
        Self::starting_from(Start::ReadyMade(ready))
    }
}
