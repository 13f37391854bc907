//! The graph as flat arrays, for the loops that look at it millions of times.

use crate::graph::{Graph, Kind};

/// What the search reads of a graph. Sums of sizes fit into 64 bits, because the graph was checked; sums of times over
/// repeated nodes saturate.
pub(crate) struct Problem {
    pub(crate) bytes: Vec<u64>,
    pub(crate) workspace: Vec<u64>,
    pub(crate) time: Vec<u64>,
    pub(crate) output: Vec<bool>,
    pub(crate) recomputable: Vec<bool>,
    pub(crate) backward: Vec<bool>,
    pub(crate) required: Vec<bool>,
    /// Ascending: they stand at the front of every word.
    pub(crate) inputs: Vec<u32>,
    pub(crate) inputs_bytes: u64,
    /// The graph's order, required nodes only, inputs left out.
    pub(crate) order: Vec<u32>,
    reads: Vec<u32>,
    reads_from: Vec<u32>,
    readers: Vec<u32>,
    readers_from: Vec<u32>,
}

impl Problem {
    pub(crate) fn new(graph: &Graph) -> Self {
        let nodes = graph.nodes();
        let (reads, reads_from) = flat((0..nodes.len()).map(|node| graph.reads(node)));
        let (readers, readers_from) = flat((0..nodes.len()).map(|node| graph.readers(node)));
        let mut output = vec![false; nodes.len()];
        for &node in graph.outputs() {
            output[node] = true;
        }
        let input = |node: &u32| nodes[*node as usize].kind == Kind::Input;
        let inputs: Vec<u32> = (0..nodes.len() as u32).filter(input).collect();
        let order = graph.order().iter().map(|&node| node as u32);
        Self {
            bytes: nodes.iter().map(|node| node.bytes.get()).collect(),
            workspace: nodes.iter().map(|node| node.workspace_bytes.get()).collect(),
            time: nodes.iter().map(|node| node.time_ns.get()).collect(),
            output,
            recomputable: nodes.iter().map(super::Node::recomputable).collect(),
            backward: nodes.iter().map(|node| node.kind == Kind::Backward).collect(),
            required: (0..nodes.len()).map(|node| graph.required(node)).collect(),
            inputs_bytes: inputs.iter().map(|&node| nodes[node as usize].bytes.get()).sum(),
            inputs,
            order: order.filter(|node| graph.required(*node as usize) && !input(node)).collect(),
            reads,
            reads_from,
            readers,
            readers_from,
        }
    }

    /// How many nodes there are.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn reads(&self, node: usize) -> &[u32] {
        &self.reads[self.reads_from[node] as usize..self.reads_from[node + 1] as usize]
    }

    pub(crate) fn readers(&self, node: usize) -> &[u32] {
        &self.readers[self.readers_from[node] as usize..self.readers_from[node + 1] as usize]
    }

    /// What must fit at the least: a node, its workspace and all it reads; the inputs at the start; the outputs at the
    /// end. No plan has a smaller peak.
    pub(crate) fn least_bytes(&self) -> u64 {
        let computing = self.order.iter().map(|&node| {
            let node = node as usize;
            let reads: u64 = self.reads(node).iter().map(|&read| self.bytes[read as usize]).sum();
            reads + self.bytes[node] + self.workspace[node]
        });
        let outputs = (0..self.len()).filter(|&node| self.output[node]).map(|node| self.bytes[node]).sum();
        computing.chain([self.inputs_bytes, outputs]).max().unwrap_or(0)
    }

    /// Every required node once: the sum of their times.
    pub(crate) fn least_time(&self) -> u64 {
        self.order.iter().map(|&node| self.time[node as usize]).sum()
    }
}

/// All lists after each other, and where each begins.
fn flat<'a>(lists: impl Iterator<Item = &'a [usize]>) -> (Vec<u32>, Vec<u32>) {
    let (mut all, mut from) = (Vec::new(), vec![0]);
    for list in lists {
        all.extend(list.iter().map(|&node| node as u32));
        from.push(all.len() as u32);
    }
    (all, from)
}
