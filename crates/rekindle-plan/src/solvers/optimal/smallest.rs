//! The least room each cell can do with, to the byte.
//!
//! The recurrence of [`super`] with `max` in place of `+`: what matters is the worst moment, not the time. It says which
//! budgets are possible at all, and lets every later choice be one that can still be finished.

use super::cells::Cells;
use super::chain::{Chain, NEVER};

/// The least room of each cell, by its number; [`NEVER`] for cells that cannot run.
pub(super) fn rooms(chain: &Chain, cells: &Cells) -> Vec<u64> {
    let mut rooms = vec![NEVER; cells.count()];
    for (first, end) in cells.parts_first() {
        if chain.may_run(first, end) {
            rooms[cells.number(first, end)] = least(chain, cells, &rooms, first, end);
        }
    }
    rooms
}

fn least(chain: &Chain, cells: &Cells, rooms: &[u64], first: usize, end: usize) -> u64 {
    let mut least = NEVER;
    let rest = if first + 1 < end { rooms[cells.number(first + 1, end)] } else { 0 };
    for tape in &chain.tapes[first] {
        least = least.min(tape.bytes.saturating_add(rest).max(chain.tape_need(tape, end)));
    }
    let row = cells.row(first);
    for (middle, sweep) in chain.sweeps(first, end) {
        if sweep >= least {
            break;
        }
        let before = rooms[row[middle - first - 1] as usize];
        let after = rooms[cells.number(middle, end)].saturating_add(chain.boundary[middle]);
        least = least.min(sweep.max(before).max(after));
    }
    least
}
