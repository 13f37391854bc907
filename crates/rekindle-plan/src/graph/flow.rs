//! Maximum flow, and the cheapest cut that it proves: Dinic's algorithm.
//!
//! E. A. Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation", 1970.

/// A network of arcs with capacities.
pub(crate) struct Network {
    /// Arcs in pairs: an arc and its way back.
    arcs: Vec<Arc>,
    first: Vec<u32>,
}

struct Arc {
    to: u32,
    next: u32,
    left: u128,
}

/// More than all finite capacities together can be: sizes and times are 64 bits, and so are their weights, less two.
pub(crate) const ENDLESS: u128 = u128::MAX / 4;

const NONE: u32 = u32::MAX;

impl Network {
    pub(crate) fn new(points: usize) -> Self {
        Self { arcs: Vec::new(), first: vec![NONE; points] }
    }

    pub(crate) fn arc(&mut self, from: usize, to: usize, capacity: u128) {
        for (from, to, left) in [(from, to, capacity), (to, from, 0)] {
            self.arcs.push(Arc { to: to as u32, next: self.first[from], left });
            self.first[from] = (self.arcs.len() - 1) as u32;
        }
    }

    /// Pushes as much as fits from `source` to `sink`.
    pub(crate) fn flow(&mut self, source: usize, sink: usize) -> u128 {
        let mut total = 0u128;
        let mut level = vec![NONE; self.first.len()];
        let mut queue = Vec::new();
        loop {
            level.fill(NONE);
            level[source] = 0;
            queue.clear();
            queue.push(source);
            let mut head = 0;
            while let Some(&point) = queue.get(head) {
                head += 1;
                let mut arc = self.first[point];
                while arc != NONE {
                    let Arc { to, next, left } = self.arcs[arc as usize];
                    if left > 0 && level[to as usize] == NONE {
                        level[to as usize] = level[point] + 1;
                        queue.push(to as usize);
                    }
                    arc = next;
                }
            }
            if level[sink] == NONE {
                return total;
            }
            let mut at = self.first.clone();
            total = total.saturating_add(self.push(source, sink, &level, &mut at));
        }
    }

    /// A blocking flow along the levels, without recursion: graphs are long.
    fn push(&mut self, source: usize, sink: usize, level: &[u32], at: &mut [u32]) -> u128 {
        let mut total = 0u128;
        let mut path: Vec<u32> = Vec::new();
        let mut point = source;
        loop {
            if point == sink {
                let least = path.iter().map(|&arc| self.arcs[arc as usize].left).min().unwrap_or(0);
                total = total.saturating_add(least);
                let mut cut = 0;
                for (step, &arc) in path.iter().enumerate().rev() {
                    self.arcs[arc as usize].left -= least;
                    let back = &mut self.arcs[(arc ^ 1) as usize].left;
                    *back = back.saturating_add(least);
                    if self.arcs[arc as usize].left == 0 {
                        cut = step;
                    }
                }
                path.truncate(cut);
                point = path.last().map_or(source, |&arc| self.arcs[arc as usize].to as usize);
                continue;
            }
            let arc = at[point];
            if arc == NONE {
                let Some(back) = path.pop() else { return total };
                point = self.arcs[(back ^ 1) as usize].to as usize;
                at[point] = self.arcs[at[point] as usize].next;
                continue;
            }
            let Arc { to, next, left } = self.arcs[arc as usize];
            if left > 0 && level[to as usize] == level[point] + 1 {
                path.push(arc);
                point = to as usize;
            } else {
                at[point] = next;
            }
        }
    }

    /// After [`Network::flow`]: the points on the source's side of the cheapest cut, the one nearest to the source.
    pub(crate) fn source_side(&self, source: usize) -> Vec<bool> {
        let mut side = vec![false; self.first.len()];
        side[source] = true;
        let mut stack = vec![source];
        while let Some(point) = stack.pop() {
            let mut arc = self.first[point];
            while arc != NONE {
                let Arc { to, next, left } = self.arcs[arc as usize];
                if left > 0 && !side[to as usize] {
                    side[to as usize] = true;
                    stack.push(to as usize);
                }
                arc = next;
            }
        }
        side
    }
}
