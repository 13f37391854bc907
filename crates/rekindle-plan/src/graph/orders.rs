//! Orders in which a graph can be computed: the order alone decides how much must be alive at once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::graph::Problem;

/// The graph's own order, depth first from the outputs, and whatever frees the most next.
pub(crate) fn orders(problem: &Problem) -> Vec<Vec<u32>> {
    let mut orders = vec![problem.order.clone()];
    for order in [depth_first(problem), frugal(problem)] {
        if !orders.contains(&order) {
            orders.push(order);
        }
    }
    orders
}

/// Each output in turn, with all that it needs just before it.
fn depth_first(problem: &Problem) -> Vec<u32> {
    let mut order = Vec::with_capacity(problem.order.len());
    let mut seen = vec![false; problem.len()];
    for &input in &problem.inputs {
        seen[input as usize] = true;
    }
    for output in (0..problem.len()).filter(|&node| problem.output[node]) {
        let mut stack = vec![(output as u32, 0usize)];
        if std::mem::replace(&mut seen[output], true) {
            continue;
        }
        while let Some((node, next)) = stack.last_mut() {
            match problem.reads(*node as usize).get(*next) {
                Some(&read) => {
                    *next += 1;
                    if !std::mem::replace(&mut seen[read as usize], true) {
                        stack.push((read, 0));
                    }
                }
                None => {
                    order.push(*node);
                    stack.pop();
                }
            }
        }
    }
    order
}

/// Of all nodes that can be computed, the one after which the fewest bytes are alive, counted when it becomes ready.
fn frugal(problem: &Problem) -> Vec<u32> {
    let mut missing = vec![0u32; problem.len()];
    let mut unread = vec![0u32; problem.len()];
    let input = |node: u32| problem.inputs.binary_search(&node).is_ok();
    for &node in &problem.order {
        for &read in problem.reads(node as usize) {
            unread[read as usize] += 1;
            missing[node as usize] += u32::from(!input(read));
        }
    }
    let weight = |node: usize, unread: &[u32]| {
        let frees = problem.reads(node).iter().filter(|&&read| unread[read as usize] == 1);
        let freed: i128 = frees.map(|&read| i128::from(problem.bytes[read as usize])).sum();
        i128::from(problem.bytes[node]) - freed
    };
    let ready = problem.order.iter().filter(|&&node| missing[node as usize] == 0);
    let mut ready: BinaryHeap<_> =
        ready.map(|&node| Reverse((weight(node as usize, &unread), node))).collect();
    let mut order = Vec::with_capacity(problem.order.len());
    while let Some(Reverse((was, node))) = ready.pop() {
        // Others may have been read since; what got lighter is found when it comes up.
        let now = weight(node as usize, &unread);
        if now != was {
            ready.push(Reverse((now, node)));
            continue;
        }
        order.push(node);
        for &read in problem.reads(node as usize) {
            unread[read as usize] -= 1;
        }
        for &reader in problem.readers(node as usize) {
            if problem.required[reader as usize] {
                missing[reader as usize] -= 1;
                if missing[reader as usize] == 0 {
                    ready.push(Reverse((weight(reader as usize, &unread), reader)));
                }
            }
        }
    }
    order
}
