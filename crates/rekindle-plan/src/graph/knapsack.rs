//! The exact 0/1 knapsack, and the baseline it makes: which values to keep within so many bytes.

use std::collections::BTreeMap;

use crate::divisor::greatest_common_divisor;
use crate::graph::selection::{Half, Selection};
use crate::graph::{Graph, GraphSolveError};
use crate::{Bytes, Nanos};

/// Something that can be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// What it takes.
    pub bytes: Bytes,
    /// What it saves.
    pub saves: Nanos,
}

/// What to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// The items to keep, ascending.
    pub items: Vec<usize>,
    /// Whether no other choice saves more; otherwise the list of choices grew too long, and this is the best found.
    pub optimal: bool,
}

/// Choices that are followed at once. Some hundred megabytes; only sizes made to be hard come near it.
const MOST_CHOICES: usize = 1 << 22;

struct Choice {
    bytes: u128,
    saves: u128,
    /// The choice it came from and the part that was added, in a list of all.
    trace: u32,
}

/// Items of one size that save the same.
struct Kind {
    each: Item,
    items: Vec<usize>,
}

impl Kind {
    fn bytes(&self) -> u128 {
        u128::from(self.each.bytes.get())
    }

    fn saves(&self) -> u128 {
        u128::from(self.each.saves.get())
    }

    /// So many of the items, evenly spread. Which ones does not matter to the sum; but between values that are kept far
    /// apart less has to be there at once.
    fn spread(&self, count: usize) -> impl Iterator<Item = usize> {
        let all = self.items.len();
        (0..count).map(move |index| self.items[(2 * index + 1) * all / (2 * count)])
    }
}

/// So many items of a kind, taken together or not at all. The parts of a kind add up to every number of its items.
struct Part {
    kind: usize,
    count: usize,
    bytes: u128,
    saves: u128,
}

/// The items that save the most and take at most `room` together: exact in bytes, never over.
///
/// Nemhauser and Ullmann's lists: after each item, only choices that no other beats in both bytes and time, and none
/// whose best continuation, with the last item cut to fit, falls short of what is known (Dantzig's bound). Items that are
/// alike are counted, not told apart.
///
/// ```
/// use rekindle_plan::graph::{Item, knapsack};
/// use rekindle_plan::{Bytes, Nanos};
///
/// let item = |bytes, saves| Item { bytes: Bytes::new(bytes), saves: Nanos::new(saves) };
/// let items = [item(6, 7), item(5, 5), item(5, 5)];
/// assert_eq!(knapsack(&items, Bytes::new(10)).items, [1, 2]);
/// ```
pub fn knapsack(items: &[Item], room: Bytes) -> Packing {
    let room = u128::from(room.get());
    // Free items are always taken, worthless ones and those that never fit never.
    let mut kept: Vec<usize> = (0..items.len()).filter(|&item| items[item].bytes == Bytes::ZERO).collect();
    let kinds = kinds(items, room);
    let parts: Vec<Part> = kinds.iter().enumerate().flat_map(|(kind, of)| parts(kind, of)).collect();
    // Sums of sizes are multiples of what divides them all, and so are sums of what is saved.
    let sizes = kinds.iter().map(|kind| kind.each.bytes.get());
    let room = room - room % u128::from(sizes.fold(0, greatest_common_divisor).max(1));
    let times = kinds.iter().map(|kind| kind.each.saves.get());
    let unit = u128::from(times.fold(0, greatest_common_divisor).max(1));
    let mut bytes_before = vec![0u128];
    let mut saves_before = vec![0u128];
    for part in &parts {
        bytes_before.push(bytes_before[bytes_before.len() - 1] + part.bytes);
        saves_before.push(saves_before[saves_before.len() - 1] + part.saves);
    }
    // The most that a choice can still come to with the parts from `next` on.
    let most = |choice: &Choice, next: usize| {
        let left = room - choice.bytes;
        let end = bytes_before.partition_point(|&sum| sum <= bytes_before[next] + left).max(next + 1) - 1;
        let whole = choice.saves + saves_before[end] - saves_before[next];
        let spare = left - (bytes_before[end] - bytes_before[next]);
        let cut = |part: &Part| kinds[part.kind].saves() * spare / kinds[part.kind].bytes();
        let most = whole + parts.get(end).map_or(0, cut);
        most - most % unit
    };
    // Greedy, for a first value to beat.
    let mut greedy = Vec::with_capacity(kinds.len());
    let (mut left, mut known) = (room, 0);
    for kind in &kinds {
        let count = usize::try_from(left / kind.bytes()).unwrap_or(usize::MAX).min(kind.items.len());
        left -= kind.bytes() * count as u128;
        known += kind.saves() * count as u128;
        greedy.push(count);
    }
    let mut trace: Vec<(u32, u32)> = Vec::new();
    const START: u32 = u32::MAX;
    let mut choices = vec![Choice { bytes: 0, saves: 0, trace: START }];
    // The end of the choice that saves what is known; greed's, while there is no better one.
    let mut incumbent: Option<u32> = None;
    let mut optimal = true;
    for (next, part) in parts.iter().enumerate() {
        // What was found since may be more than some can still come to.
        choices.retain(|choice| most(choice, next) > known);
        if choices.is_empty() {
            break;
        }
        let mut merged: Vec<Choice> = Vec::with_capacity(choices.len() * 2);
        let (mut without, mut with) = (0, 0);
        let mut best = None;
        // Both lists ascend in bytes and in what is saved; merged, whoever saves no more than a lighter one goes.
        loop {
            let added = choices.get(with).map(|choice| choice.bytes + part.bytes).filter(|&sum| sum <= room);
            let choice = match (choices.get(without), added) {
                (None, None) => break,
                (Some(plain), Some(added))
                    if plain.bytes < added
                        || plain.bytes == added && plain.saves >= choices[with].saves + part.saves =>
                {
                    without += 1;
                    Choice { bytes: plain.bytes, saves: plain.saves, trace: plain.trace }
                }
                (Some(plain), None) => {
                    without += 1;
                    Choice { bytes: plain.bytes, saves: plain.saves, trace: plain.trace }
                }
                (_, Some(added)) => {
                    with += 1;
                    let from = &choices[with - 1];
                    let choice = Choice { bytes: added, saves: from.saves + part.saves, trace: from.trace };
                    if best.is_some_and(|best| choice.saves <= best) || most(&choice, next + 1) <= known {
                        continue;
                    }
                    trace.push((choice.trace, next as u32));
                    best = Some(choice.saves);
                    if choice.saves > known {
                        (known, incumbent) = (choice.saves, Some((trace.len() - 1) as u32));
                    }
                    merged.push(Choice { trace: (trace.len() - 1) as u32, ..choice });
                    continue;
                }
            };
            if best.is_some_and(|best| choice.saves <= best) || most(&choice, next + 1) <= known {
                continue;
            }
            best = Some(choice.saves);
            merged.push(choice);
        }
        choices = merged;
        if choices.len() > MOST_CHOICES || trace.len() > 8 * MOST_CHOICES {
            optimal = false;
            // The most promising go on.
            choices.sort_by_key(|choice| std::cmp::Reverse(most(choice, next + 1)));
            choices.truncate(MOST_CHOICES / 64);
            choices.sort_by_key(|choice| choice.bytes);
            if trace.len() > 8 * MOST_CHOICES {
                break;
            }
        }
    }
    let mut counts = if incumbent.is_some() { vec![0; kinds.len()] } else { greedy };
    let mut at = incumbent.unwrap_or(START);
    while at != START {
        let (before, part) = trace[at as usize];
        let part = &parts[part as usize];
        counts[part.kind] += part.count;
        at = before;
    }
    kept.extend(kinds.iter().zip(counts).flat_map(|(kind, count)| kind.spread(count)));
    kept.sort_unstable();
    Packing { items: kept, optimal }
}

/// The kinds of the items that are worth something and fit, those that save the most for a byte first.
fn kinds(items: &[Item], room: u128) -> Vec<Kind> {
    let mut kinds: BTreeMap<(Bytes, Nanos), Vec<usize>> = BTreeMap::new();
    for (index, item) in items.iter().enumerate() {
        let fits = item.bytes > Bytes::ZERO && u128::from(item.bytes.get()) <= room;
        if fits && item.saves > Nanos::ZERO {
            kinds.entry((item.bytes, item.saves)).or_default().push(index);
        }
    }
    let kinds = kinds.into_iter().map(|((bytes, saves), items)| Kind { each: Item { bytes, saves }, items });
    let mut kinds: Vec<Kind> = kinds.collect();
    // Compared as products, so that nothing is rounded.
    kinds.sort_by(|one, other| {
        let gain = (other.saves() * one.bytes()).cmp(&(one.saves() * other.bytes()));
        gain.then(one.items[0].cmp(&other.items[0]))
    });
    kinds
}

/// One, two, four, … items of a kind and what is left over, most first.
fn parts(kind: usize, of: &Kind) -> Vec<Part> {
    let mut left = of.items.len();
    let mut counts = Vec::new();
    let mut count = 1;
    while left > 0 {
        counts.push(count.min(left));
        left -= count.min(left);
        count *= 2;
    }
    counts.sort_unstable();
    let part = |count: usize| Part {
        kind,
        count,
        bytes: of.bytes() * count as u128,
        saves: of.saves() * count as u128,
    };
    counts.into_iter().rev().map(part).collect()
}

/// What `torch.compile` does under an activation budget: of the forward values the backward reads, keep those that
/// save the most time and take at most `budget` bytes together. Exact, and never over the budget, where the original
/// compares floating-point solutions with 1 and rounds sizes.
///
/// Like the original, it takes a value to save its own time, though not keeping it may cost that of others, and it
/// knows no peak.
///
/// # Errors
/// When values that cannot be computed again take more than the budget.
pub fn knapsack_selection(graph: &Graph, budget_bytes: Bytes) -> Result<Selection, GraphSolveError> {
    let half = Half::new(graph);
    let problem = &half.problem;
    let mut keep = vec![false; problem.len()];
    // What is computed again must be had from somewhere: whoever cannot be computed again is kept if anything needs
    // it at all.
    let all_again = half.select("knapsack", &keep, true);
    let least = all_again.kept_bytes;
    let Some(room) = budget_bytes.checked_sub(least) else {
        return Err(GraphSolveError::BudgetTooSmall {
            budget_bytes,
            smallest_bytes: least,
            proven: true,
            least_bytes: least,
        });
    };
    let nodes: Vec<usize> = (half.nodes.iter().map(|&node| node as usize))
        .filter(|&node| half.needed[node] && problem.recomputable[node])
        .collect();
    let item = |&node: &usize| Item {
        bytes: Bytes::new(problem.bytes[node]),
        saves: Nanos::new(problem.time[node]),
    };
    let items: Vec<Item> = nodes.iter().map(item).collect();
    let packing = knapsack(&items, room);
    for item in packing.items {
        keep[nodes[item]] = true;
    }
    Ok(half.select("knapsack", &keep, packing.optimal))
}
