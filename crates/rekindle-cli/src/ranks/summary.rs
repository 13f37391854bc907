//! What came of a run over ranks.

use rekindle::Bytes;
use rekindle_dist::Collective;
use serde::{Deserialize, Serialize};

use super::plans::Foretold;
use crate::failure::Failure;
use crate::report;

/// What one rank has to say.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RankSummary {
    pub(super) rank: usize,
    pub(super) replica: usize,
    /// Which stages it has, from 1 on.
    pub(super) first_stage: usize,
    pub(super) last_stage: usize,
    /// Which part of every layer it has, from 0 on.
    pub(super) part: usize,
    /// How many micro-batches it holds at most.
    pub(super) in_flight: usize,
    /// How many boundaries it keeps a part of, the other parts being other ranks'.
    pub(super) partitioned: usize,
    /// What a step's activations and gradients took at their peak.
    pub(super) peak_bytes: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) predicted_bytes: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) budget_bytes: Option<Bytes>,
    /// What a step took at its most behind the backward, while gradients were added up and weights updated. That is no part of a budget.
    pub(super) update_bytes: Bytes,
    pub(super) weights_bytes: Bytes,
    /// This rank's part of what the optimizer knows.
    pub(super) optimizer_bytes: Bytes,
    /// The most of all memory that was in use.
    pub(super) most_bytes: Bytes,
    /// The part of the time of its steps that it computed, without adding up gradients and without the update.
    pub(super) busy: f64,
}

impl RankSummary {
    /// What each rank has to say, on all of them.
    pub(super) fn of_all(world: &dyn Collective, own: &Self) -> Result<Vec<Self>, Failure> {
        let all = world.all_gather(serde_json::to_vec(own).unwrap_or_default())?;
        let all: Result<Vec<Self>, _> = all.iter().map(|own| serde_json::from_slice(own)).collect();
        all.map_err(|error| Failure::failed(error, "use the same build on all ranks"))
    }
}

/// What all of them came to.
#[derive(Serialize)]
pub(super) struct Summary {
    pub(super) model: String,
    pub(super) strategy: String,
    pub(super) steps: u32,
    pub(super) first_loss: f32,
    pub(super) last_loss: f32,
    pub(super) examples_per_second: f64,
    pub(super) data_parallel: usize,
    pub(super) pipeline: usize,
    pub(super) tensor_parallel: usize,
    pub(super) micro_batches: usize,
    pub(super) zero: u8,
    pub(super) reduction: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) foretold: Option<Foretold>,
    pub(super) ranks: Vec<RankSummary>,
    #[serde(skip)]
    pub(super) pace: f64,
    #[serde(skip)]
    pub(super) units: &'static str,
    /// Whether boundaries may be kept in parts.
    #[serde(skip)]
    pub(super) in_parts: bool,
}

impl Summary {
    /// For people.
    pub(super) fn show(&self) -> Result<(), Failure> {
        report::show(&format!(
            "trained {} of {} on {}\nloss {:.3} -> {:.3}, {:.0} {}/s\n",
            report::counted(self.steps as usize, "step"),
            self.model,
            report::counted(self.ranks.len(), "rank"),
            self.first_loss,
            self.last_loss,
            self.pace,
            self.units
        ))?;
        let or_nothing = |bytes: Option<Bytes>| bytes.map(|bytes| bytes.to_string()).unwrap_or_default();
        let rows = self.ranks.iter().map(|rank| {
            [
                rank.rank.to_string(),
                rank.replica.to_string(),
                match self.tensor_parallel {
                    1 => format!("{}-{}", rank.first_stage, rank.last_stage),
                    parts => {
                        format!("{}-{}, part {} of {parts}", rank.first_stage, rank.last_stage, rank.part + 1)
                    }
                },
                rank.in_flight.to_string(),
                or_nothing(rank.budget_bytes),
                or_nothing(rank.predicted_bytes),
                rank.peak_bytes.to_string(),
                rank.weights_bytes.to_string(),
                rank.optimizer_bytes.to_string(),
                format!("{:.0}%", 100.0 * (1.0 - rank.busy)),
            ]
        });
        let header = [
            "rank",
            "replica",
            "stages",
            "in flight",
            "budget",
            "predicted",
            "peak",
            "weights",
            "optimizer",
            "waited",
        ];
        report::show(&report::table(header, rows))?;
        if let Some(rank) = self.ranks.first().filter(|_| self.in_parts) {
            let on_each = format!("kept in parts, one on each of {} ranks", self.tensor_parallel);
            report::show(&match rank.partitioned {
                0 => format!("no boundary is {on_each}: this budget has room for those that are kept\n"),
                1 => format!("1 boundary is {on_each}\n"),
                many => format!("{many} boundaries are {on_each}\n"),
            })?;
        }
        let sums = match self.reduction.as_str() {
            "ordered" if self.tensor_parallel > 1 => {
                "gradients and parts of layers are added up in the order of ranks: the bits are those of as many parts, under every plan"
            }
            "ordered" => {
                "gradients are added up in the order of ranks: the bits are those of one process that does so"
            }
            _ => "gradients are added up as MPI does: rounded otherwise than in one process",
        };
        let waited = match self.tensor_parallel {
            1 => "for other ranks, sums and update included",
            _ => {
                "for other ranks, sums and update included, but for sums over parts of layers, which are in the time of their stages"
            }
        };
        report::show(&format!("peak: activations and gradients of a step; waited: {waited}\n{sums}"))
    }

    /// A budget is never exceeded: where it was, that is no success.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let over = self.ranks.iter().find_map(|rank| {
            let budget = rank.budget_bytes?;
            (rank.peak_bytes > budget).then_some((rank, budget))
        });
        match over {
            None => Ok(()),
            Some((rank, budget)) => Err(Failure::failed(
                anyhow::anyhow!(
                    "rank {} took {} at its peak, but the budget is {budget}",
                    rank.rank,
                    rank.peak_bytes
                ),
                "measure again with nothing else running, or give a larger --margin",
            )),
        }
    }
}
