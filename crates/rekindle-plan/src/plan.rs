//! A plan: the actions of one step, what they are predicted to cost, and the model they are for.

use serde::{Deserialize, Serialize};

use crate::format::{self, FormatError};
use crate::{Action, Bytes, Gap, Illegal, Nanos, Profile, Rule, RuleError, Schedule, Simulation, Status};

/// The version of the plan format.
pub const PLAN_FORMAT: &str = "rekindle.plan/1";

/// The ordered actions for one step of a region.
///
/// ```
/// use rekindle_plan::{Bytes, Plan, Profile, Rule, StageProfile};
///
/// let stages = (0..9).map(|i| StageProfile {
///     name: format!("block.{i}"),
///     output_bytes: Bytes::new(1),
///     tape_bytes: Bytes::new(8),
///     ..StageProfile::default()
/// });
/// let profile = Profile::new("nine", "none", Bytes::new(1), stages.collect())?;
/// let plan = Plan::by_rule(&profile, Rule::SquareRoot, None)?;
/// assert_eq!(plan.predicted.peak_bytes, Bytes::new(28));
/// assert_eq!(Plan::from_json(&plan.to_json())?, plan);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    format: String,
    /// Who made it.
    pub solver: String,
    /// How good it is known to be.
    pub status: Status,
    /// The budget it was made for, if there was one.
    pub budget_bytes: Option<Bytes>,
    /// The fingerprint of the profile it is for.
    pub fingerprint: String,
    /// What the simulator said of it.
    pub predicted: Predicted,
    /// What to do.
    pub actions: Vec<Action>,
}

/// A plan as a file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    format: String,
    solver: String,
    status: Status,
    budget_bytes: Option<Bytes>,
    fingerprint: String,
    predicted: Predicted,
    actions: Vec<Action>,
}

/// What the simulator said of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predicted {
    /// The most bytes alive at once.
    pub peak_bytes: Bytes,
    /// How long the step takes.
    pub step_ns: Nanos,
    /// How much of it goes to forwards that ran before.
    pub recompute_ns: Nanos,
    /// A time that no plan of the solver's class within the budget can beat.
    pub lower_bound_ns: Nanos,
    /// How many stage forwards the step runs, taped ones included; 0 in a file that does not say.
    #[serde(default)]
    pub forwards: u64,
}

/// Why there is no plan, or the plan is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The text is not a plan of this version.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The plan cannot be run.
    #[error("the plan is not legal: {0}")]
    Illegal(#[from] Illegal),
    /// The rule gives no plan.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// The plan is for another model, other shapes or another device.
    #[error("the plan was made for a profile with the fingerprint {found}, but this one has {expected}")]
    OtherModel {
        /// The plan's fingerprint.
        found: String,
        /// The profile's fingerprint.
        expected: String,
    },
    /// The plan takes more than the budget.
    #[error("`{solver}` takes {peak_bytes} at its peak ({} bytes), but the budget is {budget_bytes} ({} bytes)", peak_bytes.get(), budget_bytes.get())]
    OverBudget {
        /// Who made the plan.
        solver: String,
        /// What it takes.
        peak_bytes: Bytes,
        /// What it may take.
        budget_bytes: Bytes,
    },
}

impl Plan {
    /// The plan a textbook rule gives, refused when it takes more than the budget.
    ///
    /// # Errors
    /// When the rule gives no legal plan for the chain, or one over the budget.
    pub fn by_rule(profile: &Profile, rule: Rule, budget_bytes: Option<Bytes>) -> Result<Self, PlanError> {
        let actions = rule.actions(profile.stages().len())?;
        let status = Status::Rule(rule.name());
        Self::judged(profile, rule.to_string(), status, budget_bytes, actions)
    }

    /// A plan of any solver's actions, with what the simulator says of them.
    ///
    /// # Errors
    /// When the simulator refuses the actions, or they take more than the budget.
    pub fn judged(
        profile: &Profile,
        solver: String,
        status: Status,
        budget_bytes: Option<Bytes>,
        actions: Vec<Action>,
    ) -> Result<Self, PlanError> {
        let (_, simulation) = Schedule::judge(profile, &actions)?;
        let plan = Self {
            format: PLAN_FORMAT.to_owned(),
            solver,
            status,
            budget_bytes,
            fingerprint: profile.fingerprint(),
            predicted: Predicted {
                peak_bytes: simulation.peak_bytes,
                step_ns: simulation.step_ns,
                recompute_ns: simulation.recompute_ns,
                lower_bound_ns: profile.lower_bound(),
                forwards: simulation.forwards,
            },
            actions,
        };
        plan.check_budget(&simulation)?;
        Ok(plan)
    }

    /// The same plan, with what a solver proved about its class: no plan of it takes less than `bound`.
    ///
    /// The status follows: optimal when the plan takes no longer, within a gap otherwise.
    #[must_use]
    pub fn proven(mut self, bound: Nanos) -> Self {
        let bound = bound.min(self.predicted.step_ns).max(self.predicted.lower_bound_ns);
        self.predicted.lower_bound_ns = bound;
        self.status = match Gap::between(bound, self.predicted.step_ns) {
            Gap::ZERO => Status::Optimal,
            gap => Status::Feasible(gap),
        };
        self
    }

    /// Judges the plan for `profile`: the right model, legal, within its budget.
    ///
    /// # Errors
    /// When it is none of these.
    pub fn judge(&self, profile: &Profile) -> Result<(Schedule, Simulation), PlanError> {
        let expected = profile.fingerprint();
        if self.fingerprint != expected {
            return Err(PlanError::OtherModel { found: self.fingerprint.clone(), expected });
        }
        let (schedule, simulation) = Schedule::judge(profile, &self.actions)?;
        self.check_budget(&simulation)?;
        Ok((schedule, simulation))
    }

    fn check_budget(&self, simulation: &Simulation) -> Result<(), PlanError> {
        match self.budget_bytes {
            Some(budget_bytes) if simulation.peak_bytes > budget_bytes => Err(PlanError::OverBudget {
                solver: self.solver.clone(),
                peak_bytes: simulation.peak_bytes,
                budget_bytes,
            }),
            _ => Ok(()),
        }
    }

    /// Reads a plan. It is not judged before [`Plan::judge`].
    ///
    /// # Errors
    /// When the text is not a plan of this version.
    pub fn from_json(text: &str) -> Result<Self, PlanError> {
        let file: PlanFile = format::read("plan", PLAN_FORMAT, text)?;
        Ok(Self {
            format: file.format,
            solver: file.solver,
            status: file.status,
            budget_bytes: file.budget_bytes,
            fingerprint: file.fingerprint,
            predicted: file.predicted,
            actions: file.actions,
        })
    }

    /// Writes the plan.
    pub fn to_json(&self) -> String {
        // A plan is strings, finite numbers and lists: it always serialises.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}
