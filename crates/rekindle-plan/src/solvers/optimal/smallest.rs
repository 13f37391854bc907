//! The least room each cell can do with, to the byte.
//!
//! The recurrence of [`super`] with `max` in place of `+`: what matters is the worst moment, not the time. It says which
//! budgets are possible at all, and lets every later choice be one that can still be finished.

use super::cells::Cells;
use super::chain::{Chain, NEVER};
use super::sweeps::Sweeps;

/// The least room of each cell, by its number; [`NEVER`] for cells that cannot run.
pub(super) fn rooms(chain: &Chain, cells: &Cells, sweeps: &Sweeps) -> Vec<u64> {
    let mut rooms = vec![NEVER; cells.count()];
    for (first, end) in cells.parts_first() {
        if chain.may_run(first, end) {
            rooms[cells.number(first, end)] = least(chain, cells, sweeps, &rooms, first, end);
        }
    }
    rooms
}

fn least(chain: &Chain, cells: &Cells, sweeps: &Sweeps, rooms: &[u64], first: usize, end: usize) -> u64 {
    let mut least = NEVER;
    let rest = if first + 1 < end { rooms[cells.number(first + 1, end)] } else { 0 };
    for tape in &chain.tapes[first] {
        least = least.min(tape.bytes.saturating_add(rest).max(chain.tape_need(tape, end)));
    }
    let row = cells.row(first);
    let needs = &sweeps.needs(first)[..end - first - 1];
    let value = |index: usize, sweep: u64| {
        let middle = first + 1 + index;
        let after = rooms[cells.number(middle, end)].saturating_add(chain.boundary[middle]);
        sweep.max(rooms[row[index] as usize]).max(after)
    };
    let sweeps = needs.iter().map(|need| need.saturating_add(chain.waiting(end))).enumerate();
    // Without its first stage a cell never needs more. Most long cells need no more with it, and the last sweep shows it.
    if let Some((index, sweep)) = sweeps.clone().next_back() {
        least = least.min(value(index, sweep));
    }
    for (index, sweep) in sweeps {
        if sweep >= least || least == rest {
            break;
        }
        least = least.min(value(index, sweep));
    }
    least
}
