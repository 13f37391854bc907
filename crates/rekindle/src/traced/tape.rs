//! From operations to bytes: what shares memory, what the backward reads, what is alive when.

use std::collections::{HashMap, HashSet};

use rekindle_plan::Bytes;

use super::layout::Layouts;
use super::operation::{Kind, Operation, Recording};
use crate::kept::TapeTensor;

/// The bytes of a taped run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TapedBytes {
    /// What the backward reads of what the forward made, and the output.
    pub(super) tape: u64,
    pub(super) gradient: u64,
    pub(super) forward_extra: u64,
    pub(super) backward_extra: u64,
}

/// The bytes that a taped run keeps, and those that it needs for a while. `free` is the same stage without a tape.
pub(super) fn taped(recording: &Recording, free: &Recording) -> TapedBytes {
    let memory = Memory::of(recording);
    let (forward, end) = (recording.forward, recording.operations.len());
    let kept: HashSet<usize> = kept(&memory, recording, free).collect();
    let tape = kept.iter().fold(0, |sum: u64, index| sum.saturating_add(memory.blocks[*index].bytes));

    let there = |index: usize| !memory.blocks[index].given && memory.blocks[index].made < forward;
    let in_forward = (0..memory.blocks.len()).filter(|index| there(*index)).map(|index| {
        let block = &memory.blocks[index];
        let last = match kept.contains(&index) {
            true => forward,
            false => block.last_read.unwrap_or(block.made),
        };
        (block.made, last, block.bytes)
    });
    let forward_peak = peak(in_forward, forward);

    // Gradients of parameters are there until the optimizer has read them, whatever the plan: they are no activations.
    let parameters = memory.blocks_of(&recording.parameter_gradients);
    let handed_on = memory.blocks_of(&recording.gradients_out);
    let incoming: HashMap<usize, u64> = recording.gradients_in.iter().copied().collect();
    let starts: HashSet<usize> = memory.blocks_of(&incoming.keys().copied().collect::<Vec<_>>());
    let in_backward =
        (0..memory.blocks.len()).filter(|index| !parameters.contains(index)).filter_map(|index| {
            let block = &memory.blocks[index];
            let until = match handed_on.contains(&index) {
                true => end,
                false => block.last_read.unwrap_or(block.made),
            };
            match block {
                _ if starts.contains(&index) => Some((forward, until, block.bytes)),
                block if block.given => None,
                block if block.made >= forward => Some((block.made, until, block.bytes)),
                _ if kept.contains(&index) => Some((forward, until, block.bytes)),
                _ => None,
            }
        });
    let backward_peak = peak(in_backward.filter(|(_, until, _)| *until >= forward), end);
    let gradient = recording.gradients_in.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
    TapedBytes {
        tape,
        gradient,
        forward_extra: forward_peak.saturating_sub(tape),
        backward_extra: backward_peak.saturating_sub(tape).saturating_sub(gradient),
    }
}

/// The blocks that a tape keeps, in the order in which they are made.
fn kept(memory: &Memory, recording: &Recording, free: &Recording) -> impl Iterator<Item = usize> {
    let forward = recording.forward;
    let outputs = memory.blocks_of(&recording.outputs);
    let held = memory.blocks_of(&held(recording, free));
    let is_kept = move |index: &usize| {
        let block = &memory.blocks[*index];
        let read_back = block.last_read.is_some_and(|last| last >= forward) || held.contains(index);
        !block.given && block.made < forward && (read_back || outputs.contains(index))
    };
    (0..memory.blocks.len()).filter(is_kept)
}

/// The tensors that a tape keeps, in the order in which they are made, each with the operation that wrote it last.
pub(super) fn tensors(recording: &Recording, free: &Recording) -> Vec<TapeTensor> {
    let memory = Memory::of(recording);
    let outputs = memory.blocks_of(&recording.outputs);
    let ahead = &recording.operations[..recording.forward];
    let tensor = |block: usize| {
        let written = ahead.iter().filter(|operation| !matches!(operation.kind, Kind::View(_)));
        let of_block = written.rev().find_map(|operation| {
            let made = operation.makes.iter().find(|made| memory.of.get(&made.id) == Some(&block))?;
            Some((operation, made))
        });
        let (operation, made) = of_block?;
        Some(TapeTensor {
            tensor: format!("{}{:?}", made.elements, made.shape),
            bytes: Bytes::new(memory.blocks[block].bytes),
            made_by: operation.name.to_owned(),
            is_output: outputs.contains(&block),
        })
    };
    kept(&memory, recording, free).filter_map(tensor).collect()
}

/// The tensors that a tape holds without ever reading them.
///
/// Burn's balanced tape takes a copy of whatever it may have to recompute from, needed or not. Such a tensor has no reader
/// in the backward. But its last reader in the forward found somebody else holding it, and does not when there is no tape.
/// What the backward makes again was held for that moment only.
fn held(taped: &Recording, free: &Recording) -> Vec<usize> {
    let ahead = &taped.operations[..taped.forward];
    let alike = |(taped, free): (&Operation, &Operation)| taped.reads.len() == free.reads.len();
    if ahead.len() != free.operations.len() || !ahead.iter().zip(&free.operations).all(alike) {
        return Vec::new();
    }
    let mut last_reads: HashMap<usize, (bool, bool)> = HashMap::new();
    for (taped, free) in ahead.iter().zip(&free.operations) {
        let reads = taped.reads.iter().zip(&free.reads);
        last_reads.extend(reads.map(|(taped, free)| (taped.id, (taped.last, free.last))));
    }
    last_reads.retain(|_, (in_taped, in_free)| !*in_taped && *in_free);
    let again = made_again(taped);
    last_reads.into_keys().filter(|id| !again.contains(id)).collect()
}

/// The tensors of the forward that the backward recomputes: the same kind of operation, on the same tensors or on such as
/// were recomputed themselves.
fn made_again(recording: &Recording) -> HashSet<usize> {
    let (ahead, back) = recording.operations.split_at(recording.forward);
    let mut originals: HashMap<usize, usize> = HashMap::new();
    let read = |operation: &Operation, originals: &HashMap<usize, usize>| -> Vec<usize> {
        operation.reads.iter().map(|read| originals.get(&read.id).copied().unwrap_or(read.id)).collect()
    };
    // What is made from nothing is drawn anew.
    let from_something = |operation: &&Operation| !operation.reads.is_empty();
    let known: HashMap<(&Kind, Vec<usize>), &Operation> = ahead
        .iter()
        .filter(from_something)
        .map(|operation| ((&operation.kind, read(operation, &originals)), operation))
        .collect();
    for operation in back.iter().filter(from_something) {
        if let Some(original) = known.get(&(&operation.kind, read(operation, &originals))) {
            let made = operation.makes.iter().zip(&original.makes);
            originals.extend(made.map(|(again, original)| (again.id, original.id)));
        }
    }
    originals.into_values().collect()
}

/// The most bytes that a run without a tape needs for a while, beyond its output.
pub(super) fn free_extra(recording: &Recording) -> u64 {
    let memory = Memory::of(recording);
    let outputs = memory.blocks_of(&recording.outputs);
    let end = recording.operations.len();
    let made = (0..memory.blocks.len()).filter(|index| !memory.blocks[*index].given).map(|index| {
        let block = &memory.blocks[index];
        let last = match outputs.contains(&index) {
            true => end,
            false => block.last_read.unwrap_or(block.made),
        };
        (block.made, last, block.bytes)
    });
    peak(made, end).saturating_sub(output_bytes(recording))
}

/// What a run makes memory for that its output looks at: not what it passes on.
pub(super) fn output_bytes(recording: &Recording) -> u64 {
    let memory = Memory::of(recording);
    let outputs = memory.blocks_of(&recording.outputs);
    let own = outputs.iter().map(|index| &memory.blocks[*index]).filter(|block| !block.given);
    own.fold(0, |sum: u64, block| sum.saturating_add(block.bytes))
}

/// The most that is alive at once, of blocks that live from one operation up to and including another.
fn peak(blocks: impl Iterator<Item = (usize, usize, u64)>, end: usize) -> u64 {
    let mut changes = vec![0i128; end + 2];
    for (from, to, bytes) in blocks {
        changes[from] += i128::from(bytes);
        changes[to.min(end) + 1] -= i128::from(bytes);
    }
    let mut alive = 0;
    let mut most = 0;
    for change in changes {
        alive += change;
        most = most.max(alive);
    }
    u64::try_from(most).unwrap_or(u64::MAX)
}

/// A piece of memory that one or several tensors look at.
struct Block {
    bytes: u64,
    /// The operation that makes it.
    made: usize,
    last_read: Option<usize>,
    /// There before the stage runs.
    given: bool,
}

struct Memory {
    blocks: Vec<Block>,
    /// The block of each tensor.
    of: HashMap<usize, usize>,
}

impl Memory {
    fn of(recording: &Recording) -> Self {
        let given: HashSet<usize> = recording.given.iter().copied().collect();
        let starts: HashMap<usize, u64> = recording.gradients_in.iter().copied().collect();
        let mut last_uses: HashMap<usize, usize> = HashMap::new();
        for (index, operation) in recording.operations.iter().enumerate() {
            last_uses.extend(operation.reads.iter().map(|value| (value.id, index)));
        }
        last_uses.extend(recording.outputs.iter().map(|id| (*id, usize::MAX)));
        let mut memory = Self { blocks: Vec::new(), of: HashMap::new() };
        let mut layouts = Layouts::default();
        // What looks at each block, so that nothing is written into that somebody still reads.
        let mut lookers: Vec<Vec<usize>> = Vec::new();
        for (index, operation) in recording.operations.iter().enumerate() {
            for value in &operation.reads {
                let block = *memory.of.entry(value.id).or_insert_with(|| {
                    // Not made by any operation here: given, or a gradient that the backward starts from.
                    let bytes = starts.get(&value.id).copied().unwrap_or_else(|| value.bytes());
                    memory.blocks.push(Block { bytes, made: 0, last_read: None, given: true });
                    lookers.push(vec![value.id]);
                    memory.blocks.len() - 1
                });
                memory.blocks[block].last_read = Some(index);
            }
            for value in &operation.makes {
                let shared = match &operation.kind {
                    Kind::View(_) => layouts.seen_by(operation, value),
                    Kind::Elementwise => {
                        let target = operation.reads.iter().find(|read| {
                            let block = memory.of[&read.id];
                            let whole = memory.blocks[block].bytes == value.bytes();
                            let in_order = layouts.in_order(read.id);
                            let others = lookers[block].iter().filter(|id| **id != read.id);
                            let unread = others
                                .into_iter()
                                .all(|id| last_uses.get(id).is_none_or(|last| *last <= index));
                            read.last && whole && in_order && unread && !memory.blocks[block].given
                        });
                        target.map(|read| read.id)
                    }
                    _ => None,
                };
                let block = match shared {
                    Some(id) => memory.of[&id],
                    None => {
                        let given = given.contains(&value.id);
                        memory.blocks.push(Block {
                            bytes: value.bytes(),
                            made: index,
                            last_read: None,
                            given,
                        });
                        lookers.push(Vec::new());
                        memory.blocks.len() - 1
                    }
                };
                lookers[block].push(value.id);
                memory.of.insert(value.id, block);
            }
        }
        memory
    }

    fn blocks_of(&self, ids: &[usize]) -> HashSet<usize> {
        ids.iter().filter_map(|id| self.of.get(id).copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::operation::{Value, View};
    use super::*;

    fn value(id: usize, shape: &[usize]) -> Value {
        Value { id, shape: shape.into(), elements: "f32", element_bytes: 4, last: false }
    }

    fn operation(kind: Kind, reads: Vec<Value>, makes: Vec<Value>) -> Operation {
        Operation { name: "made up", kind, reads, makes }
    }

    /// x -> a -> view of a -> y, where the backward reads the view.
    #[test]
    fn what_a_view_looks_at_is_counted_once_and_what_was_given_not_at_all() {
        let swap = Kind::View(View::Permute(vec![1, 0]));
        let recording = Recording {
            operations: vec![
                operation(Kind::Pass, vec![value(0, &[2, 4])], vec![value(1, &[2, 4])]),
                operation(swap, vec![value(1, &[2, 4])], vec![value(2, &[4, 2])]),
                operation(Kind::Pass, vec![value(2, &[4, 2])], vec![value(3, &[4])]),
                operation(
                    Kind::Pass,
                    vec![value(4, &[4]), value(2, &[4, 2]), value(1, &[2, 4])],
                    vec![value(5, &[2, 4])],
                ),
                operation(Kind::Pass, vec![value(5, &[2, 4]), value(0, &[2, 4])], vec![value(6, &[2, 4])]),
            ],
            forward: 3,
            given: vec![0],
            outputs: vec![3],
            gradients_in: vec![(4, 16)],
            gradients_out: vec![6],
            parameter_gradients: Vec::new(),
        };
        let bytes = taped(&recording, &Recording::default());
        assert_eq!(bytes.tape, 32 + 16, "the memory of 1 and 2, and the output");
        let listed = tensors(&recording, &Recording::default());
        let listed: Vec<_> =
            listed.iter().map(|one| (one.tensor.as_str(), one.bytes.get(), one.is_output)).collect();
        assert_eq!(listed, [("f32[2, 4]", 32, false), ("f32[4]", 16, true)]);
        assert_eq!((bytes.gradient, bytes.forward_extra), (16, 0));
        // At the first operation: 32 of the tape, 16 of the gradient, 32 made. The output is dead by then.
        assert_eq!(bytes.backward_extra, (32 + 16 + 32) - (48 + 16));
    }

    #[test]
    fn what_is_only_passed_on_is_no_memory_of_the_output() {
        let mut recording = Recording {
            operations: vec![operation(Kind::Pass, vec![value(0, &[8])], vec![value(1, &[4])])],
            forward: 1,
            given: vec![0, 2],
            outputs: vec![0, 1, 2],
            ..Recording::default()
        };
        assert_eq!(output_bytes(&recording), 16, "neither what was read nor what nobody looked at");
        let swap = Kind::View(View::Permute(vec![0]));
        recording.operations.push(operation(swap, vec![value(0, &[8])], vec![value(3, &[8])]));
        recording.outputs.push(3);
        assert_eq!(output_bytes(&recording), 16, "nor a view of it");
    }

    #[test]
    fn what_a_tape_holds_in_vain_is_counted_too() {
        let run = |last: bool| Recording {
            operations: vec![
                operation(Kind::Product { flops: 1 }, vec![value(0, &[8])], vec![value(1, &[8])]),
                operation(Kind::Elementwise, vec![Value { last, ..value(1, &[8]) }], vec![value(2, &[8])]),
            ],
            forward: 2,
            given: vec![0],
            outputs: vec![2],
            ..Recording::default()
        };
        assert_eq!(taped(&run(true), &run(true)).tape, 32);
        assert_eq!(taped(&run(false), &run(true)).tape, 64, "somebody holds it who does not without a tape");
        assert_eq!(taped(&run(false), &run(false)).tape, 32, "the stage itself holds it for a while");
        let mut again = run(false);
        again.operations.push(operation(
            Kind::Product { flops: 1 },
            vec![value(0, &[8])],
            vec![value(3, &[8])],
        ));
        assert_eq!(taped(&again, &run(true)).tape, 32, "it is made again");
    }

    #[test]
    fn memory_that_is_read_for_the_last_time_is_written_into() {
        let last = |id: usize| Value { last: true, ..value(id, &[8]) };
        let chain = |last: &dyn Fn(usize) -> Value| Recording {
            operations: vec![
                operation(Kind::Pass, vec![value(0, &[8])], vec![value(1, &[8])]),
                operation(Kind::Elementwise, vec![last(1)], vec![value(2, &[8])]),
                operation(Kind::Elementwise, vec![last(2)], vec![value(3, &[8])]),
            ],
            forward: 3,
            given: vec![0],
            outputs: vec![3],
            ..Recording::default()
        };
        assert_eq!(free_extra(&chain(&last)), 0);
        assert_eq!(free_extra(&chain(&|id| value(id, &[8]))), 32);
    }
}
