//! Keep a value or compute it again: the choice that min-cut makes, shared by the baseline and the bound.

use crate::graph::Problem;
use crate::graph::flow::{ENDLESS, Network};

/// What becomes of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nobody needs it.
    Unneeded,
    /// It is kept.
    Kept,
    /// It is computed again, from values that are needed in turn.
    Again,
}

/// The cheapest fates for `nodes` (ascending, with all that they read), when a kept value costs `keep` and one that is
/// computed again costs `again`. Among equals, the fewest are computed again.
pub(crate) fn cheapest(
    problem: &Problem,
    nodes: &[u32],
    needed: &[bool],
    keep: impl Fn(usize) -> u128,
    again: impl Fn(usize) -> u128,
) -> (u128, Vec<Fate>) {
    // Each node is two points: needed, and computed again. The arc between them is cut when the value is kept.
    let (source, sink) = (2 * nodes.len(), 2 * nodes.len() + 1);
    let mut network = Network::new(sink + 1);
    let place = |node: u32| nodes.binary_search(&node).unwrap_or(0);
    for (index, &node) in nodes.iter().enumerate() {
        let node = node as usize;
        if needed[node] {
            network.arc(source, 2 * index, ENDLESS);
        }
        network.arc(2 * index, 2 * index + 1, keep(node));
        network.arc(2 * index + 1, sink, if problem.recomputable[node] { again(node) } else { ENDLESS });
        if problem.recomputable[node] {
            for &read in problem.reads(node) {
                network.arc(2 * index + 1, 2 * place(read), ENDLESS);
            }
        }
    }
    let cost = network.flow(source, sink);
    let side = network.source_side(source);
    let fate = |index: usize| match (side[2 * index], side[2 * index + 1]) {
        (false, _) => Fate::Unneeded,
        (true, false) => Fate::Kept,
        (true, true) => Fate::Again,
    };
    (cost, (0..nodes.len()).map(fate).collect())
}
