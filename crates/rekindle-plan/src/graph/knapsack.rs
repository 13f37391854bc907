//! The exact 0/1 knapsack, and the baseline it makes: which values to keep within so many bytes.

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
    /// The choice it came from and the item that was added, in a list of all.
    trace: u32,
}

/// The items that save the most and take at most `room` together: exact in bytes, never over.
///
/// Nemhauser and Ullmann's lists: after each item, only choices that no other beats in both bytes and time, and none
/// whose best continuation, with the last item cut to fit, falls short of what is known (Dantzig's bound).
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
    let bytes = |item: usize| u128::from(items[item].bytes.get());
    let saves = |item: usize| u128::from(items[item].saves.get());
    // Free items are always taken, worthless ones and those that never fit never.
    let mut kept: Vec<usize> = (0..items.len()).filter(|&item| bytes(item) == 0).collect();
    let fits = |&item: &usize| bytes(item) > 0 && bytes(item) <= room && saves(item) > 0;
    let mut order: Vec<usize> = (0..items.len()).filter(fits).collect();
    // The most saved for a byte first: saves/bytes compared as products, so that nothing is rounded.
    order.sort_by(|&one, &other| {
        (saves(other) * bytes(one)).cmp(&(saves(one) * bytes(other))).then(one.cmp(&other))
    });
    let mut bytes_before = vec![0u128];
    let mut saves_before = vec![0u128];
    for &item in &order {
        bytes_before.push(bytes_before[bytes_before.len() - 1] + bytes(item));
        saves_before.push(saves_before[saves_before.len() - 1] + saves(item));
    }
    // The most that a choice can still come to with the items from `next` on, rounded up.
    let most = |choice: &Choice, next: usize| {
        let left = room - choice.bytes;
        let end = bytes_before.partition_point(|&sum| sum <= bytes_before[next] + left).max(next + 1) - 1;
        let whole = choice.saves + saves_before[end] - saves_before[next];
        let spare = left - (bytes_before[end] - bytes_before[next]);
        whole + order.get(end).map_or(0, |&item| (saves(item) * spare).div_ceil(bytes(item)))
    };
    // Greedy, for a first value to beat.
    let (mut greedy_bytes, mut known) = (0, 0);
    for &item in &order {
        if greedy_bytes + bytes(item) <= room {
            greedy_bytes += bytes(item);
            known += saves(item);
        }
    }
    let mut trace: Vec<(u32, u32)> = Vec::new();
    const START: u32 = u32::MAX;
    let mut choices = vec![Choice { bytes: 0, saves: 0, trace: START }];
    // The end of the choice that saves what is known; greed's, while there is no better one.
    let mut incumbent: Option<u32> = None;
    let mut optimal = true;
    for (next, &item) in order.iter().enumerate() {
        // Nothing that is left comes to more: of items that are alike, greed's choice is as good as any.
        choices.retain(|choice| most(choice, next) > known);
        if choices.is_empty() {
            break;
        }
        let mut merged: Vec<Choice> = Vec::with_capacity(choices.len() * 2);
        let (mut without, mut with) = (0, 0);
        let mut best = None;
        // Both lists ascend in bytes and in what is saved; merged, whoever saves no more than a lighter one goes.
        loop {
            let added = choices.get(with).map(|choice| choice.bytes + bytes(item)).filter(|&sum| sum <= room);
            let choice = match (choices.get(without), added) {
                (None, None) => break,
                (Some(plain), Some(added))
                    if plain.bytes < added
                        || plain.bytes == added && plain.saves >= choices[with].saves + saves(item) =>
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
                    let choice = Choice { bytes: added, saves: from.saves + saves(item), trace: from.trace };
                    if best.is_some_and(|best| choice.saves <= best) || most(&choice, next + 1) <= known {
                        continue;
                    }
                    trace.push((choice.trace, item as u32));
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
            // The most promising half goes on.
            choices.sort_by_key(|choice| std::cmp::Reverse(most(choice, next + 1)));
            choices.truncate(MOST_CHOICES / 64);
            choices.sort_by_key(|choice| choice.bytes);
            if trace.len() > 8 * MOST_CHOICES {
                break;
            }
        }
    }
    let mut chosen = Vec::new();
    match incumbent {
        Some(mut at) => {
            while at != START {
                let (before, item) = trace[at as usize];
                chosen.push(item as usize);
                at = before;
            }
        }
        None => {
            let mut taken = 0;
            for &item in &order {
                if taken + bytes(item) <= room {
                    taken += bytes(item);
                    chosen.push(item);
                }
            }
        }
    }
    kept.extend(chosen);
    kept.sort_unstable();
    Packing { items: kept, optimal }
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
