//! How long the solvers that count slots take, as JSON on standard output: `slots [MEDIAN_OF]`.
//!
//! `benches/peers/slots.py` runs it beside other libraries and prints one table.

use std::hint::black_box;
use std::time::Instant;

use rekindle_plan::Action::{self, Forward, Tape};
use rekindle_plan::SolveError;
use rekindle_plan::solvers::multi_level::{Costs, Level, disk_revolve, h_revolve};
use rekindle_plan::solvers::{mixed, online, revolve};

/// Length and slots: those of the published totals.
const CASES: [(usize, u32); 5] = [(10, 3), (50, 5), (100, 10), (500, 20), (1000, 30)];

/// The median of some runs in seconds, and what the last of them gave.
fn median<T>(runs: usize, solve: impl Fn() -> Result<T, SolveError>) -> Result<(f64, T), SolveError> {
    let mut last = solve()?;
    let mut seconds = Vec::with_capacity(runs);
    for _ in 0..runs {
        let start = Instant::now();
        last = black_box(solve())?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok((seconds[runs / 2], last))
}

#[allow(clippy::print_stdout, reason = "its output is what it is for")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runs: usize = std::env::args().nth(1).map_or(Ok(11), |text| text.parse())?;
    let runs = runs.max(1);
    let mut rows = Vec::new();
    let mut row = |solver: &str, stages: usize, slots: u32, seconds: f64, actions: &[Action]| {
        let forwards = actions.iter().filter(|action| matches!(action, Forward { .. } | Tape { .. })).count();
        rows.push(serde_json::json!({
            "solver": solver, "stages": stages, "slots": slots, "seconds": seconds, "forwards": forwards,
        }));
    };
    for (stages, slots) in CASES {
        for (solver, actions) in [
            ("revolve", revolve::actions as fn(usize, u32) -> _),
            ("mixed", mixed::actions),
            ("online", online::actions),
        ] {
            let (seconds, actions) = median(runs, || actions(black_box(stages), black_box(slots)))?;
            row(solver, stages, slots, seconds, &actions);
        }
        let disk = Level { tier: "disk".parse()?, slots: 3 * slots, write: 5, read: 5 };
        let costs = Costs { forward: 1, backward: 1, slots, levels: vec![disk] };
        let (seconds, found) = median(runs, || h_revolve(black_box(stages), black_box(&costs)))?;
        row("multi-level", stages, slots, seconds, &found.actions);
        let (seconds, found) = median(runs, || disk_revolve(black_box(stages), black_box(&costs)))?;
        row("disk-revolve", stages, slots, seconds, &found.actions);
    }
    println!("{}", serde_json::to_string_pretty(&rows)?);
    Ok(())
}
