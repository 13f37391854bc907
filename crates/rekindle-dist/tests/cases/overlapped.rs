//! Sums that are under way while the backward goes on.

use burn::optim::{AdamConfig, GradientsParams};
use rekindle::memory;
use rekindle::training::Accumulation;
use rekindle_dist::{Collective, DataParallel, DistError, Mpi, Reduction, Zero, ZeroStage};
use rekindle_plan::Bytes;

use super::model::{Block, blocks, examples, forward, loss, same};

const STEPS: u64 = 10;
const RATE: f64 = 1e-2;
const BLOCKS: usize = 4;

/// The losses of a rank's two micro-batches; of one, on the last rank.
fn losses(model: &[Block], step: u64, rank: usize, ranks: usize) -> Vec<burn::tensor::Tensor<1>> {
    let count = if rank + 1 == ranks { 1 } else { 2 };
    let of = |number: u64| {
        let seed = 1000 * step + 10 * rank as u64 + number;
        loss(forward(model, examples(3, seed), seed).unwrap())
    };
    (0..count).map(of).collect()
}

pub(crate) fn one_process(world: &Mpi) {
    as_after_the_backward(world, Reduction::Ordered);
}

pub(crate) fn native(world: &Mpi) {
    as_after_the_backward(world, Reduction::Native);
}

fn as_after_the_backward(world: &Mpi, how: Reduction) {
    let (rank, ranks) = (world.rank(), world.size());
    let examples = |rank: usize| if rank + 1 == ranks { 3 } else { 6 };
    let mut expected = blocks(BLOCKS);
    let mut after = AdamConfig::new().init();
    // After the backward, which other tests hold against one process.
    let parallel = DataParallel::new(world, &expected).unwrap();
    let stages = [ZeroStage::Off, ZeroStage::One, ZeroStage::Two];
    let mut models = stages.map(|_| expected.clone());
    let mut optimizers = stages.map(|stage| {
        let parallel = DataParallel::new(world, &expected).unwrap().reduction(how).bucket(Bytes::new(100));
        Zero::new(parallel, stage, AdamConfig::new().build(), &expected).unwrap()
    });
    for step in 0..STEPS {
        let mut sum = Accumulation::new();
        let all = losses(&expected, step, rank, ranks);
        let share = 1.0 / all.len() as f64;
        all.into_iter().for_each(|loss| sum.add(&expected, loss, share).unwrap());
        let own = sum.finish().unwrap().gradients;
        let reduced = parallel.reduce(&expected, &own, examples(rank)).unwrap();
        expected = after.step(RATE, expected, reduced);
        models = std::array::from_fn(|which| {
            let (model, optimizer) = (models[which].clone(), &mut optimizers[which]);
            let overlap = optimizer.overlap(examples(rank)).unwrap();
            let mut sum = Accumulation::new();
            let mut all = rekindle::expecting_hand_over(|| losses(&model, step, rank, ranks));
            let last = all.pop().unwrap();
            all.into_iter().for_each(|loss| sum.add(&model, loss, share).unwrap());
            sum.add_handing_over(&model, last, share, overlap.take()).unwrap();
            let left = sum.finish().unwrap().gradients;
            assert_eq!(left.len(), 0, "all of them were handed over");
            let done = overlap.finish(optimizer.parallel(), &model, left).unwrap();
            assert!(done.early > BLOCKS, "sums were under way: {}", done.early);
            optimizer.step_with(RATE, model, done).unwrap()
        });
        for (model, stage) in models.iter().zip(stages) {
            same(how, model, &expected, &format!("step {step}, {stage:?}"));
        }
    }
}

pub(crate) fn in_parts(world: &Mpi) {
    let model = blocks(2);
    let parallel = DataParallel::new(world, &model).unwrap();
    // A model that is used twice hands each gradient over twice.
    let twice = || {
        let once = forward(&model, examples(3, 1), 1).unwrap();
        loss(once) + loss(forward(&model, examples(3, 2), 2).unwrap())
    };
    let overlap = parallel.overlap(3).unwrap();
    let left =
        rekindle::backward_handing_over(&rekindle::expecting_hand_over(twice), overlap.take()).unwrap();
    let left = GradientsParams::from_grads(left, &model);
    let error = overlap.finish(&parallel, &model, left).unwrap_err();
    assert!(matches!(error, DistError::HandedOverTwice), "{error}");
    // What no region has is added up in the end.
    let outside = rekindle::without_checkpointing(|| loss(forward(&model, examples(3, 1), 1).unwrap()));
    let overlap = parallel.overlap(3).unwrap();
    let left = rekindle::backward_handing_over(&outside, overlap.take()).unwrap();
    let left = GradientsParams::from_grads(left, &model);
    let expected = parallel.reduce(&model, &left, 3).unwrap();
    let done = overlap.finish(&parallel, &model, left).unwrap();
    assert_eq!((done.early, done.part.len()), (0, done.sum.len()));
    let found = parallel.gradients(&model, &done).unwrap();
    let layout = rekindle_dist::Layout::new(&model).unwrap();
    assert!(layout.gradients(&model, &found).unwrap() == layout.gradients(&model, &expected).unwrap());
    // Ranks without an example take part.
    let none = parallel.overlap(u64::from(world.rank() == 0)).unwrap();
    none.finish(&parallel, &model, GradientsParams::new()).unwrap();
    assert!(matches!(parallel.overlap(0), Err(DistError::NoExamples)));
}

/// What was handed over and what was not, added up while the backward goes on: of the first ranks of a model's blocks, or nothing.
fn under_way(
    parallel: &DataParallel<'_>,
    model: &Vec<Block>,
    used: usize,
    count: u64,
) -> Result<Vec<f32>, DistError> {
    let overlap = parallel.overlap(count)?;
    let mut left = GradientsParams::new();
    if count > 0 {
        let of_used = || loss(forward(&model[..used], examples(count as usize, 7), 7).unwrap());
        let own = rekindle::backward_handing_over(&rekindle::expecting_hand_over(of_used), overlap.take());
        left = GradientsParams::from_grads(own.unwrap(), model);
    }
    Ok(overlap.finish(parallel, model, left)?.sum)
}

/// The same with ZeRO 2: this rank's part of it.
fn part_under_way(
    world: &Mpi,
    how: Reduction,
    model: &Vec<Block>,
    count: u64,
) -> (std::ops::Range<usize>, Vec<f32>) {
    let parallel = DataParallel::new(world, model).unwrap().reduction(how).bucket(Bytes::new(100));
    let zero = Zero::new(parallel, ZeroStage::Two, AdamConfig::new().build(), model).unwrap();
    let overlap = zero.overlap(count).unwrap();
    let mut left = GradientsParams::new();
    if count > 0 {
        let of_all = || loss(forward(model, examples(count as usize, 7), 7).unwrap());
        let own = rekindle::backward_handing_over(&rekindle::expecting_hand_over(of_all), overlap.take());
        left = GradientsParams::from_grads(own.unwrap(), model);
    }
    let done = overlap.finish(zero.parallel(), model, left).unwrap();
    (done.part, done.sum)
}

/// A rank without examples has no backward, and so no order of its own: it wrote each sum where it does not belong.
pub(crate) fn without_examples(world: &Mpi) {
    let model = blocks(3);
    let layout = rekindle_dist::Layout::new(&model).unwrap();
    let rank = world.rank();
    for reduction in [Reduction::Ordered, Reduction::Native] {
        let parallel = DataParallel::new(world, &model).unwrap().reduction(reduction).bucket(Bytes::new(100));
        // The first, the last, and all but one of them have none.
        for none in [vec![0], vec![world.size() - 1], (1..world.size()).collect()] {
            let count = if none.contains(&rank) { 0 } else { 2 + rank as u64 };
            let found = under_way(&parallel, &model, model.len(), count).unwrap();
            let own = match count {
                0 => GradientsParams::new(),
                count => {
                    let loss = loss(forward(&model, examples(count as usize, 7), 7).unwrap());
                    GradientsParams::from_grads(rekindle::backward(&loss).unwrap(), &model)
                }
            };
            let expected = parallel.reduce(&model, &own, count).unwrap();
            let expected = layout.gradients(&model, &expected).unwrap();
            assert!(expected.iter().any(|value| *value != 0.0));
            let part = part_under_way(world, reduction, &model, count);
            let in_part: Vec<f32> = part.clone().0.map(|at| found.get(at).copied().unwrap_or(0.0)).collect();
            assert!(part.1 == in_part, "this rank's part, without {none:?}");
            match reduction {
                Reduction::Ordered => assert!(found == expected, "bit for bit, without {none:?}"),
                Reduction::Native => {
                    let apart = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(apart < 1e-5, "{apart}, without {none:?}");
                }
            }
        }
    }
}

/// Sums of parameters that do not belong together are of one length, so that MPI sees nothing wrong.
pub(crate) fn unused_on_one_rank(world: &Mpi) {
    let model = blocks(3);
    let parallel = DataParallel::new(world, &model).unwrap().bucket(Bytes::new(100));
    let last = world.size() - 1;
    let used = if world.rank() == last { 2 } else { 3 };
    let error = under_way(&parallel, &model, used, 3).unwrap_err();
    assert!(matches!(error, DistError::OtherOrder { rank: 0, other, number: 1 } if other == last), "{error}");
    // All are told, and go on.
    under_way(&parallel, &model, 3, 3).unwrap();
    // A parameter that no rank uses is in nobody's way.
    under_way(&parallel, &model, 2, 3).unwrap();
}

pub(crate) fn memory_under_way(world: &Mpi) {
    // Blocks whose weights are most of what there is.
    let model = super::model::wide_blocks(6, 300);
    let parallel = DataParallel::new(world, &model).unwrap();
    let peak_of = |hand_over: bool| {
        rekindle::sweep();
        let before = memory::live().unwrap();
        let region = super::model::region(&model, 1).rule(rekindle::Rule::EVERY_ONE);
        let x = burn::tensor::Tensor::ones([4, 300], &super::model::device());
        let loss = loss(rekindle::expecting_hand_over(|| region.forward(x)).unwrap());
        let overlap = parallel.overlap(4).unwrap();
        memory::reset_peak();
        let left = match hand_over {
            true => rekindle::backward_handing_over(&loss, overlap.take()).unwrap(),
            false => rekindle::backward(&loss).unwrap(),
        };
        let peak = memory::peak().unwrap().saturating_sub(before);
        let left = GradientsParams::from_grads(left, &model);
        overlap.finish(&parallel, &model, left).unwrap();
        peak.get()
    };
    peak_of(true);
    let (after, during) = (peak_of(false), peak_of(true));
    let most = after + parallel.overlapping_bytes().get();
    assert!(during <= most, "{during}, expected {most} at the most; {after} with sums in the end");
}

/// With ZeRO 2 a backward that hands its gradients over ends with a part of them; those that are added up after it are all there first.
pub(crate) fn memory_of_a_part(world: &Mpi) {
    let model = super::model::wide_blocks(6, 300);
    let parallel = DataParallel::new(world, &model).unwrap();
    let bucket = parallel.overlapping_bucket().get();
    let zero = Zero::new(parallel, ZeroStage::Two, AdamConfig::new().build(), &model).unwrap();
    let whole = rekindle_dist::Layout::new(&model).unwrap().len() as u64 * 4;
    let held_after = |hand_over: bool| {
        rekindle::sweep();
        let before = memory::live().unwrap();
        let region = super::model::region(&model, 1).rule(rekindle::Rule::EVERY_ONE);
        let x = burn::tensor::Tensor::ones([4, 300], &super::model::device());
        let loss = loss(rekindle::expecting_hand_over(|| region.forward(x)).unwrap());
        let overlap = zero.overlap(4).unwrap();
        memory::reset_peak();
        let left = match hand_over {
            true => rekindle::backward_handing_over(&loss, overlap.take()).unwrap(),
            false => rekindle::backward(&loss).unwrap(),
        };
        let peak = memory::peak().unwrap().saturating_sub(before).get();
        drop(loss);
        let held = memory::live().unwrap().saturating_sub(before).get();
        let done =
            overlap.finish(zero.parallel(), &model, GradientsParams::from_grads(left, &model)).unwrap();
        assert_eq!(done.part.len() as u64, (whole / 4).div_ceil(world.size() as u64));
        (peak, held)
    };
    held_after(true);
    let ((peak, all), (handing_over, held)) = (held_after(false), held_after(true));
    let part = zero.shard_bytes().get();
    let told =
        format!("{held} held, {all} before; peaks {handing_over}, {peak}; a part {part}, a bucket {bucket}");
    assert!(all >= whole + part, "{told}");
    // One that is being filled, and two that are added up, with what comes from other ranks for one of these.
    assert!(held <= part + 4 * bucket + (64 << 10), "{told}");
    assert!(handing_over <= peak - part + zero.overlapping_bytes().get(), "{told}");
}
