//! Graphs to plan, for tests, benches and the example: linear, two towers, U-Net, residual, random.

// Every user takes what it needs of these.
#![allow(dead_code)]

use rekindle_plan::graph::{Graph, Kind, Node};
use rekindle_plan::{Bytes, Name, Nanos};

/// Nodes and edges before they become a graph.
#[derive(Default)]
pub(crate) struct Sketch {
    pub(crate) nodes: Vec<(String, Kind, u64, u64)>,
    pub(crate) edges: Vec<(usize, usize)>,
}

fn name(text: &str) -> Name {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

impl Sketch {
    pub(crate) fn node(&mut self, name: String, kind: Kind, time: u64, bytes: u64, reads: &[usize]) -> usize {
        let node = self.nodes.len();
        self.nodes.push((name, kind, time, bytes));
        let mut reads = reads.to_vec();
        reads.sort_unstable();
        reads.dedup();
        self.edges.extend(reads.into_iter().map(|read| (read, node)));
        node
    }

    pub(crate) fn forward(&mut self, time: u64, bytes: u64, reads: &[usize]) -> usize {
        let number = self.nodes.len();
        self.node(format!("f{number}"), Kind::Forward, time, bytes, reads)
    }

    /// The backward of all there is so far: the gradient of a value reads, for each of its readers, the reader's
    /// gradient and all that the reader reads. The last node is the loss, and needs no gradient of its own.
    pub(crate) fn differentiate(mut self) -> Self {
        let count = self.nodes.len();
        let mut reads = vec![Vec::new(); count];
        let mut readers = vec![Vec::new(); count];
        for &(from, to) in &self.edges {
            reads[to].push(from);
            readers[from].push(to);
        }
        let mut gradient = vec![usize::MAX; count];
        gradient[count - 1] = count - 1;
        for node in (0..count - 1).rev() {
            let mut needs = Vec::new();
            for &reader in &readers[node] {
                needs.push(gradient[reader]);
                needs.extend(&reads[reader]);
            }
            let (_, _, time, bytes) = self.nodes[node];
            gradient[node] = self.node(format!("g{node}"), Kind::Backward, 2 * time, bytes, &needs);
        }
        self
    }

    pub(crate) fn graph(self, model: &str) -> Graph {
        let node = |(text, kind, time, bytes): &(String, Kind, u64, u64)| {
            Node::new(name(text), *kind, Nanos::new(*time), Bytes::new(*bytes))
        };
        let nodes: Vec<Node> = self.nodes.iter().map(node).collect();
        let edge = |&(from, to): &(usize, usize)| (nodes[from].name.clone(), nodes[to].name.clone());
        let edges = self.edges.iter().map(edge).collect();
        Graph::new(model, "none", nodes, edges, None).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Which forward value a backward node of [`unit_linear`] reads, beside the gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// What its own layer read.
    Input,
    /// What its own layer made.
    Output,
}

/// `2n + 1` nodes of one byte and one nanosecond: `n` layers, the loss, and `n` layers back.
pub(crate) fn unit_linear(layers: usize, reads: Reads) -> Graph {
    let mut sketch = Sketch::default();
    for layer in 0..layers {
        let before: Vec<usize> = layer.checked_sub(1).into_iter().collect();
        sketch.forward(1, 1, &before);
    }
    let mut gradient = sketch.node("loss".to_owned(), Kind::Forward, 1, 1, &[layers - 1]);
    for layer in (0..layers).rev() {
        let mut needs = vec![gradient];
        match reads {
            Reads::Output => needs.push(layer),
            Reads::Input => needs.extend(layer.checked_sub(1)),
        }
        gradient = sketch.node(format!("g{layer}"), Kind::Backward, 1, 1, &needs);
    }
    sketch.graph("linear")
}

/// Numbers that look random and are the same everywhere.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end.max(1)
    }
}

/// A chain of layers of different sizes, differentiated.
pub(crate) fn linear(layers: usize, seed: u64) -> Graph {
    let mut dice = Dice::new(seed);
    let mut sketch = Sketch::default();
    let mut last = sketch.forward(1, 1 + dice.below(100), &[]);
    for _ in 1..layers {
        last = sketch.forward(1 + dice.below(50), 1 + dice.below(100), &[last]);
    }
    sketch.forward(1, 1, &[last]);
    sketch.differentiate().graph("linear")
}

/// Two chains that meet in one loss: contrastive learning.
pub(crate) fn two_towers(layers: usize, seed: u64) -> Graph {
    let mut dice = Dice::new(seed);
    let mut sketch = Sketch::default();
    let mut ends = Vec::new();
    for _ in 0..2 {
        let mut last = sketch.forward(1, 1 + dice.below(60), &[]);
        for _ in 1..layers {
            last = sketch.forward(1 + dice.below(30), 20 + dice.below(80), &[last]);
        }
        ends.push(last);
    }
    sketch.forward(2, 1, &ends);
    sketch.differentiate().graph("two-towers")
}

/// Down, with halving sizes, and up again, each level reading the level opposite.
pub(crate) fn u_net(levels: usize, width: usize, seed: u64) -> Graph {
    let mut dice = Dice::new(seed);
    let mut sketch = Sketch::default();
    let mut last = sketch.forward(1, 64 << levels, &[]);
    let mut skips = Vec::new();
    for level in 0..levels {
        let bytes = 64 << (levels - level);
        for _ in 0..width {
            last = sketch.forward(20 + dice.below(20), bytes, &[last]);
        }
        skips.push(last);
        last = sketch.forward(5, bytes / 2, &[last]);
    }
    for level in (0..levels).rev() {
        let bytes = 64 << (levels - level);
        last = sketch.forward(5, bytes, &[last]);
        last = sketch.forward(10, bytes, &[last, skips[level]]);
        for _ in 0..width {
            last = sketch.forward(20 + dice.below(20), bytes, &[last]);
        }
    }
    sketch.forward(1, 1, &[last]);
    sketch.differentiate().graph("u-net")
}

/// Blocks of four operations with a residual around each: a transformer by its operations.
pub(crate) fn residual(blocks: usize, seed: u64) -> Graph {
    let mut dice = Dice::new(seed);
    let mut sketch = Sketch::default();
    let mut last = sketch.forward(1, 64, &[]);
    for _ in 0..blocks {
        let norm = sketch.forward(2, 64, &[last]);
        let wide = sketch.forward(40 + dice.below(10), 256, &[norm]);
        let active = sketch.forward(3, 256, &[wide]);
        let narrow = sketch.forward(40 + dice.below(10), 64, &[active]);
        last = sketch.forward(1, 64, &[last, narrow]);
    }
    sketch.forward(1, 1, &[last]);
    sketch.differentiate().graph("residual")
}

/// Any graph: every node reads the one before and up to two of the last few; differentiated.
pub(crate) fn random(layers: usize, seed: u64) -> Graph {
    let mut dice = Dice::new(seed);
    let mut sketch = Sketch::default();
    sketch.forward(1 + dice.below(20), 1 + dice.below(50), &[]);
    for node in 1..layers {
        let mut reads = vec![node - 1];
        for _ in 0..dice.below(3) {
            reads.push(node - 1 - dice.below(8.min(node as u64)) as usize);
        }
        sketch.forward(1 + dice.below(20), 1 + dice.below(50), &reads);
    }
    sketch.differentiate().graph("random")
}
