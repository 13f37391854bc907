//! Ways to train one model, by name.

use std::fmt;
use std::str::FromStr;

use rekindle::{Bytes, Plan, Planned, Policy, Profile, Rule};
use rekindle_plan::Predicted;
use rekindle_plan::solvers::Solver;

use crate::amount::{Fraction, Target};
use crate::cut::Cut;
use crate::planning::Known;

/// How to train: as Burn does, with Burn's own checkpointing, under a rule, or under the best plan for a budget.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Strategy {
    /// Every activation is kept, in one graph.
    Plain,
    /// The same for the model made of Burn's modules alone: another model, whose bits differ.
    Burn,
    /// Burn's `gradient_checkpointing()`: cheap operations are recomputed one by one.
    Balanced,
    /// A region under a textbook rule.
    Rule(Rule),
    /// A region under the fastest plan within a budget.
    Optimal(Target),
    /// A region under the plan of a solver that counts how many boundaries are kept at once.
    Slots(Solver, u32),
    /// A region under a plan that names what is kept, moved and recomputed.
    Policy(Policy),
}

impl Strategy {
    /// A quarter of what plain training takes.
    pub(crate) const QUARTER: Self = Self::Optimal(Target::Part(Fraction(0.25)));

    /// Whether its plans know places beside the device.
    pub(crate) fn may_move(&self) -> bool {
        matches!(self, Self::Optimal(_) | Self::Policy(_))
    }

    /// The solvers that count slots, and no places beside the device.
    const OF_SLOTS: [Solver; 3] = [Solver::Revolve, Solver::Mixed, Solver::Online];

    /// `revolve-10`, say; nothing where no such solver is named.
    fn of_slots(text: &str) -> Option<Result<Self, String>> {
        Self::OF_SLOTS.into_iter().find_map(|solver| {
            let slots = text.strip_prefix(&format!("{solver}-"))?;
            let slots = slots.parse::<u32>().ok().filter(|slots| *slots > 0);
            let slots =
                slots.ok_or_else(|| format!("expected a number of slots from 1, such as {solver}-10"));
            Some(slots.map(|slots| Self::Slots(solver, slots)))
        })
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => formatter.pad("plain"),
            Self::Burn => formatter.pad("burn"),
            Self::Balanced => formatter.pad("balanced"),
            Self::Rule(rule) => rule.fmt(formatter),
            Self::Optimal(target) => write!(formatter, "optimal-{target}"),
            Self::Slots(solver, slots) => write!(formatter, "{solver}-{slots}"),
            Self::Policy(policy) => write!(formatter, "policy-{policy}"),
        }
    }
}

impl FromStr for Strategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(target) = text.strip_prefix("optimal-") {
            return target.parse().map(Self::Optimal).map_err(|error| format!("{error}"));
        }
        if let Some(policy) = text.strip_prefix("policy-") {
            return policy.parse().map(Self::Policy).map_err(|error| format!("{error}"));
        }
        if let Some(slots) = Self::of_slots(text) {
            return slots;
        }
        match text {
            "plain" => Ok(Self::Plain),
            "burn" => Ok(Self::Burn),
            "balanced" => Ok(Self::Balanced),
            _ => text.parse().map(Self::Rule).map_err(|_| {
                "expected plain, balanced, store-all, full, sqrt, every-K with K from 1, such as every-1, optimal-B \
                 with a budget B, such as optimal-25% or optimal-64MiB, revolve-N, mixed-N or online-N with so many slots \
                 N for boundaries, such as revolve-10, or policy-P, such as policy-selective"
                    .to_owned()
            }),
        }
    }
}

/// A strategy that is ready to run: its plan is made.
#[derive(Clone, Debug)]
pub(crate) enum Ready {
    Plain,
    Balanced,
    Rule(Rule),
    Planned(Planned, Cut),
}

impl Ready {
    /// What the simulator says of it, for the model of `profile` cut into blocks.
    pub(crate) fn predicted(&self, profile: &Profile) -> Option<Predicted> {
        match self {
            Self::Plain | Self::Balanced => None,
            Self::Rule(rule) => Some(Plan::by_rule(profile, *rule, None).ok()?.predicted),
            Self::Planned(planned, _) => Some(planned.plan().predicted),
        }
    }

    /// The most bytes that a step is expected to take: what the simulator says, and what a region lists of its stages. `known`: the
    /// stages of a rule.
    pub(crate) fn expected_peak(&self, predicted: &Predicted, known: Option<&Known>) -> Bytes {
        let listed = match self {
            Self::Planned(planned, _) => planned.description().usual_bookkeeping(),
            _ => known.map_or(Bytes::ZERO, |known| known.listed),
        };
        [predicted.peak_bytes, listed].into_iter().sum()
    }

    /// What a part of a batch keeps from its forward to its backward, as the simulator says.
    pub(crate) fn kept_bytes(&self, profile: &Profile) -> Option<Bytes> {
        let by_rule;
        let simulation = match self {
            Self::Plain | Self::Balanced => return None,
            Self::Rule(rule) => {
                by_rule = Plan::by_rule(profile, *rule, None).ok()?.judge(profile).ok()?.1;
                &by_rule
            }
            Self::Planned(planned, _) => planned.simulation(),
        };
        let last = simulation.turn.checked_sub(1)?;
        Some(simulation.moments.get(last)?.after)
    }

    /// The codecs of its plan that lose digits.
    pub(crate) fn lossy_codecs(&self) -> Vec<String> {
        match self {
            Self::Planned(planned, _) => planned.lossy_codecs().iter().map(ToString::to_string).collect(),
            _ => Vec::new(),
        }
    }

    /// What it may take, if it has a budget.
    pub(crate) fn budget_bytes(&self) -> Option<Bytes> {
        match self {
            Self::Planned(planned, _) => planned.budget_bytes(),
            _ => None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn what_it_is_called_is_what_it_is_read_from() {
        for name in [
            "plain",
            "balanced",
            "every-3",
            "sqrt",
            "optimal-25%",
            "optimal-smallest",
            "revolve-10",
            "mixed-1",
            "online-4294967295",
            "policy-selective",
        ] {
            assert_eq!(name.parse::<Strategy>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn slots_are_a_number_from_1() {
        for text in ["revolve-0", "revolve-", "revolve--1", "revolve-10%", "revolve-4294967296"] {
            let error = text.parse::<Strategy>().unwrap_err();
            assert_eq!(error, "expected a number of slots from 1, such as revolve-10", "{text}");
        }
        // Solvers that count none, or need places.
        for text in ["revolve", "eager-3", "multi-level-3", "disk-revolve-3"] {
            assert!(text.parse::<Strategy>().unwrap_err().contains("revolve-N"), "{text}");
        }
    }
}
