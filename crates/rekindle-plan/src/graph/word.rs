//! A plan as a word: the nodes in the order they are computed, repeated where they are recomputed.
//!
//! The frees need not be written down. A value is best freed after its last reader before it is computed again, so a
//! word alone says what is alive when. Any word in which every node comes after what it reads is a legal plan.

use crate::graph::{Graph, GraphAction, Problem};

/// The nodes in the order they are computed; inputs are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) Vec<u32>);

/// What a word costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    pub(crate) peak: u64,
    pub(crate) time: u64,
}

/// Lists that are used again from one evaluation to the next.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Whether a node's value is read later on. All `false` between uses.
    needed: Vec<bool>,
    touched: Vec<u32>,
}

impl Word {
    /// Every required node of `order` once.
    pub(crate) fn once(graph: &Graph, order: &[usize]) -> Self {
        let computed =
            |node: &&usize| graph.required(**node) && graph.nodes()[**node].kind != super::Kind::Input;
        Self(order.iter().filter(computed).map(|&node| node as u32).collect())
    }

    /// The actions: every free as early as it can be.
    pub(crate) fn actions(&self, graph: &Graph) -> Vec<GraphAction> {
        let problem = Problem::new(graph);
        let name = |node: u32| graph.nodes()[node as usize].name.clone();
        // From the end: who is needed later is not freed now.
        let mut needed = problem.output.clone();
        let mut backwards = Vec::new();
        for &node in self.0.iter().rev() {
            // A value that nobody reads goes at once.
            if !needed[node as usize] {
                backwards.push(GraphAction::free(name(node)));
            }
            for &read in problem.reads(node as usize).iter().rev() {
                if !needed[read as usize] {
                    needed[read as usize] = true;
                    backwards.push(GraphAction::free(name(read)));
                }
            }
            backwards.push(GraphAction::compute(name(node)));
            needed[node as usize] = false;
        }
        for &input in problem.inputs.iter().rev() {
            if !needed[input as usize] {
                backwards.push(GraphAction::free(name(input)));
            }
        }
        backwards.reverse();
        backwards
    }

    /// Peak and time, or `None` as soon as more than `budget` bytes are alive. `at` gets the bytes at every position,
    /// from the last to the first.
    pub(crate) fn cost(
        &self,
        problem: &Problem,
        budget: u64,
        scratch: &mut Scratch,
        mut at: impl FnMut(usize, u64),
    ) -> Option<Cost> {
        let Scratch { needed, touched } = scratch;
        needed.resize(problem.len(), false);
        let mut alive = 0;
        for (node, &output) in problem.output.iter().enumerate() {
            if output {
                needed[node] = true;
                touched.push(node as u32);
                alive += problem.bytes[node];
            }
        }
        let mut peak = alive.max(problem.inputs_bytes);
        let mut time = 0u64;
        for (position, &node) in self.0.iter().enumerate().rev() {
            let node = node as usize;
            if !needed[node] {
                alive += problem.bytes[node];
            }
            for &read in problem.reads(node) {
                let read = read as usize;
                if !needed[read] {
                    needed[read] = true;
                    touched.push(read as u32);
                    alive += problem.bytes[read];
                }
            }
            let now = alive + problem.workspace[node];
            at(position, now);
            peak = peak.max(now);
            if peak > budget {
                break;
            }
            needed[node] = false;
            alive -= problem.bytes[node];
            time = time.saturating_add(problem.time[node]);
        }
        for node in touched.drain(..) {
            needed[node as usize] = false;
        }
        (peak <= budget).then_some(Cost { peak, time })
    }

    /// The time alone.
    pub(crate) fn time(&self, problem: &Problem) -> u64 {
        self.0.iter().fold(0, |sum, &node| sum.saturating_add(problem.time[node as usize]))
    }

    /// Takes out every computation whose value nobody reads.
    pub(crate) fn clean(&mut self, problem: &Problem, scratch: &mut Scratch) {
        let Scratch { needed, touched } = scratch;
        needed.resize(problem.len(), false);
        for (node, &output) in problem.output.iter().enumerate() {
            if output {
                needed[node] = true;
                touched.push(node as u32);
            }
        }
        // Kept nodes are gathered at the end of the list, in order.
        let mut write = self.0.len();
        for position in (0..self.0.len()).rev() {
            let node = self.0[position];
            if !needed[node as usize] {
                continue;
            }
            needed[node as usize] = false;
            for &read in problem.reads(node as usize) {
                if !needed[read as usize] {
                    needed[read as usize] = true;
                    touched.push(read);
                }
            }
            write -= 1;
            self.0[write] = node;
        }
        self.0.drain(..write);
        for node in touched.drain(..) {
            needed[node as usize] = false;
        }
    }
}
