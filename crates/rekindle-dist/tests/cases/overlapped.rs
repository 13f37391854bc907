//! Sums that are under way while the backward goes on.

use burn::optim::{AdamConfig, GradientsParams};
use rekindle::memory;
use rekindle::training::Accumulation;
use rekindle_dist::{Collective, DataParallel, DistError, Mpi, Zero, ZeroStage};
use rekindle_plan::Bytes;

use super::model::{Block, bits, blocks, examples, forward, loss};

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
    let (rank, ranks) = (world.rank(), world.size());
    let examples = |rank: usize| if rank + 1 == ranks { 3 } else { 6 };
    let mut expected = blocks(BLOCKS);
    let mut after = AdamConfig::new().init();
    // After the backward, which other tests hold against one process.
    let parallel = DataParallel::new(world, &expected).unwrap();
    let stages = [ZeroStage::Off, ZeroStage::One];
    let mut models = [expected.clone(), expected.clone()];
    let mut optimizers = stages.map(|stage| {
        let parallel = DataParallel::new(world, &expected).unwrap().bucket(Bytes::new(100));
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
            let overlap = optimizer.parallel().overlap(examples(rank)).unwrap();
            let mut sum = Accumulation::new();
            let mut all = rekindle::expecting_hand_over(|| losses(&model, step, rank, ranks));
            let last = all.pop().unwrap();
            all.into_iter().for_each(|loss| sum.add(&model, loss, share).unwrap());
            sum.add_handing_over(&model, last, share, overlap.take()).unwrap();
            let left = sum.finish().unwrap().gradients;
            assert_eq!(left.len(), 0, "all of them were handed over");
            let done = overlap.finish(optimizer.parallel(), &model, &left).unwrap();
            assert!(done.early > BLOCKS, "sums were under way: {}", done.early);
            optimizer.step_with(RATE, model, done).unwrap()
        });
        for (model, stage) in models.iter().zip(stages) {
            assert!(bits(model) == bits(&expected), "step {step}, {stage:?}: bit for bit");
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
    let error = overlap.finish(&parallel, &model, &left).unwrap_err();
    assert!(matches!(error, DistError::HandedOverTwice), "{error}");
    // What no region has is added up in the end.
    let outside = rekindle::without_checkpointing(|| loss(forward(&model, examples(3, 1), 1).unwrap()));
    let overlap = parallel.overlap(3).unwrap();
    let left = rekindle::backward_handing_over(&outside, overlap.take()).unwrap();
    let left = GradientsParams::from_grads(left, &model);
    let done = overlap.finish(&parallel, &model, &left).unwrap();
    assert_eq!(done.early, 0);
    let expected = parallel.reduce(&model, &left, 3).unwrap();
    let found = parallel.gradients(&model, &done).unwrap();
    let layout = rekindle_dist::Layout::new(&model).unwrap();
    assert!(layout.gradients(&model, &found).unwrap() == layout.gradients(&model, &expected).unwrap());
    // Ranks without an example take part.
    let none = parallel.overlap(u64::from(world.rank() == 0)).unwrap();
    none.finish(&parallel, &model, &GradientsParams::new()).unwrap();
    assert!(matches!(parallel.overlap(0), Err(DistError::NoExamples)));
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
        overlap.finish(&parallel, &model, &left).unwrap();
        peak.get()
    };
    peak_of(true);
    let (after, during) = (peak_of(false), peak_of(true));
    let most = after + parallel.overlapping_bytes().get();
    assert!(during <= most, "{during}, expected {most} at the most; {after} with sums in the end");
}
