//! What each rank of a pipeline takes.

use rekindle_models::estimate::{Rank, Row, State};
use rekindle_plan::Bytes;
use serde::Serialize;

use super::total;
use crate::failure::Failure;
use crate::report;

/// How many ranks people are shown.
const SHOWN: usize = 16;
/// Of which strategies.
const STRATEGIES: [&str; 3] = ["none", "full", "optimal-smallest"];

/// A rank, as programs read it.
#[derive(Serialize)]
pub(super) struct ShownRank {
    rank: u64,
    layers: u64,
    parameters: u64,
    in_flight: u64,
    #[serde(flatten)]
    state: ShownState,
    rows: Vec<ShownRow>,
}

/// What it holds whatever the batch is.
#[derive(Serialize)]
struct ShownState {
    weights_bytes: Bytes,
    gradients_bytes: Bytes,
    optimizer_bytes: Bytes,
}

#[derive(Serialize)]
struct ShownRow {
    #[serde(flatten)]
    row: Row,
    total_bytes: Bytes,
}

impl ShownRank {
    pub(super) fn new(rank: Rank) -> Self {
        let Rank { rank, layers, parameters, in_flight, state, rows } = rank;
        let rows = rows.into_iter().map(|row| ShownRow { total_bytes: total(&state, &row), row });
        let State { weights, gradients, optimizer } = state;
        let state =
            ShownState { weights_bytes: weights, gradients_bytes: gradients, optimizer_bytes: optimizer };
        Self { rank, layers, parameters, in_flight, state, rows: rows.collect() }
    }

    fn total(&self, strategy: &str) -> String {
        let row = self.rows.iter().find(|row| row.row.strategy == strategy);
        row.map(|row| row.total_bytes.to_string()).unwrap_or_default()
    }
}

/// For people.
pub(super) fn show(ranks: &[ShownRank]) -> Result<(), Failure> {
    let rows = ranks.iter().take(SHOWN).map(|rank| {
        let [none, full, smallest] = STRATEGIES.map(|strategy| rank.total(strategy));
        let [number, layers, in_flight] = [rank.rank, rank.layers, rank.in_flight].map(|n| n.to_string());
        [number, layers, in_flight, none, full, smallest]
    });
    let [none, full, smallest] = STRATEGIES;
    report::show(&format!(
        "\n{}",
        report::table(["rank", "layers", "in flight", none, full, smallest], rows)
    ))?;
    match ranks.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => report::show(&format!("{more} more ranks are not shown; --json has all")),
    }
}
