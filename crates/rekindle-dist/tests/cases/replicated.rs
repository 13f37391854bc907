//! Ranks with the same weights.

use std::ops::Range;

use burn::nn::LinearConfig;
use burn::optim::{Adam, AdamConfig, GradientsParams};
use rekindle::memory::{self, CountingAllocator};
use rekindle::training::Accumulation;
use rekindle_dist::{
    Alone, Collective, DataParallel, DistError, Layout, Moments, Mpi, Reduction, Zero, ZeroStage,
    agree_on_plan,
};
use rekindle_plan::{Bytes, Nanos, Plan, Profile, Rule, StageProfile};

use super::model::{Block, bits, blocks, close, device, examples, forward, loss, numbers, same};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::system();

const STEPS: u64 = 10;
const RATE: f64 = 1e-2;
const BLOCKS: usize = 3;

/// How many examples a rank has: in the last step the first has none, and each of the others one more than the one before.
fn share(step: u64, rank: usize) -> usize {
    if step == STEPS - 1 { rank } else { 4 }
}

/// A rank's gradients of the mean over its examples, in two micro-batches where there are examples for two.
fn gradients(model: &Vec<Block>, step: u64, rank: usize) -> GradientsParams {
    let count = share(step, rank);
    let seed = 100 * step + rank as u64;
    let all = examples(count.max(1), seed);
    let parts: &[(usize, usize)] = match count {
        0 => return GradientsParams::new(),
        4 => &[(0, 2), (2, 2)],
        _ => &[(0, count)],
    };
    let mut sum = Accumulation::new();
    for (number, (start, length)) in parts.iter().copied().enumerate() {
        let part = all.clone().narrow(0, start, length);
        let loss = loss(forward(model, part, 10_000 + 10 * seed + number as u64).unwrap());
        sum.add(model, loss, 1.0 / parts.len() as f64).unwrap();
    }
    sum.finish().unwrap().gradients
}

/// What one process comes to that adds up the ranks' gradients in their order.
fn one_process(ranks: usize) -> Vec<Block> {
    let mut model = blocks(BLOCKS);
    let layout = Layout::new(&model).unwrap();
    let mut optimizer = AdamConfig::new().init();
    for step in 0..STEPS {
        let sum = layout.to_gradients(&model, &summed(&layout, &model, step, ranks)).unwrap();
        model = optimizer.step(RATE, model, sum);
    }
    model
}

/// The gradients of all ranks, added up in their order.
fn summed(layout: &Layout, model: &Vec<Block>, step: u64, ranks: usize) -> Vec<f32> {
    let total: usize = (0..ranks).map(|rank| share(step, rank)).sum();
    let mut sum: Option<Vec<f32>> = None;
    for rank in 0..ranks {
        let mut own = layout.gradients(model, &gradients(model, step, rank)).unwrap();
        let weight = (share(step, rank) as f64 / total as f64) as f32;
        own.iter_mut().for_each(|value| *value *= weight);
        sum = Some(match sum {
            None => own,
            Some(sum) => sum.iter().zip(own).map(|(sum, own)| sum + own).collect(),
        });
    }
    sum.unwrap()
}

fn in_parallel(world: &Mpi, reduction: Reduction) -> Vec<Block> {
    let mut model = blocks(BLOCKS);
    // Buckets of one parameter, and of all.
    let small = DataParallel::new(world, &model).unwrap().reduction(reduction).bucket(Bytes::new(1));
    let large = DataParallel::new(world, &model).unwrap().reduction(reduction);
    let mut optimizer = AdamConfig::new().init();
    for step in 0..STEPS {
        let own = gradients(&model, step, world.rank());
        let parallel = if step % 2 == 0 { &small } else { &large };
        let sum = parallel.reduce(&model, &own, share(step, world.rank()) as u64).unwrap();
        model = optimizer.step(RATE, model, sum);
    }
    model
}

pub(crate) fn data_parallel(world: &Mpi) {
    let found = in_parallel(world, Reduction::Ordered);
    assert!(bits(&found) != bits(&blocks(BLOCKS)), "something was learned");
    assert!(bits(&found) == bits(&one_process(world.size())));
    // Weights that were lost come back from the first rank.
    let parallel = DataParallel::new(world, &found).unwrap();
    let expected = bits(&found);
    let lost = if world.rank() == 0 { found } else { blocks(BLOCKS) };
    assert!(bits(&parallel.share(lost).unwrap()) == expected);
    let nothing = parallel.reduce(&blocks(BLOCKS), &GradientsParams::new(), 0).unwrap_err();
    assert!(matches!(nothing, DistError::NoExamples), "{nothing}");
}

pub(crate) fn native(world: &Mpi) {
    let found = numbers(&in_parallel(world, Reduction::Native));
    close(&found, &numbers(&one_process(world.size())), "data parallel");
    // All ranks have the same.
    let bytes: Vec<u8> = found.iter().flat_map(|value| value.to_le_bytes()).collect();
    assert!(world.all_gather(bytes.clone()).unwrap().iter().all(|other| *other == bytes));
}

fn sharded(world: &Mpi, stage: ZeroStage, how: Reduction) {
    let mut model = blocks(BLOCKS);
    let parallel = DataParallel::new(world, &model).unwrap().reduction(how);
    let values = Layout::new(&model).unwrap().len();
    let mut zero = Zero::new(parallel, stage, AdamConfig::new().build(), &model).unwrap();
    // An odd number of values: the last part is padded.
    assert_eq!(zero.shard_bytes().get() as usize, values.div_ceil(world.size()) * 4);
    for step in 0..STEPS {
        let own = gradients(&model, step, world.rank());
        model = zero.step(RATE, model, own, share(step, world.rank()) as u64).unwrap();
    }
    same(how, &model, &one_process(world.size()), &format!("{stage:?}"));
}

pub(crate) fn zero_1(world: &Mpi) {
    sharded(world, ZeroStage::One, Reduction::Ordered);
}

/// A run that stops in the middle and goes on from what it knew, in each way from each other: parts of one size become parts of
/// another, and one rank that has all.
pub(crate) fn restart(world: &Mpi) {
    const MIDDLE: u64 = STEPS / 2;
    let expected = bits(&one_process(world.size()));
    let stages = [ZeroStage::Off, ZeroStage::One, ZeroStage::Two];
    let zero = |stage, model: &Vec<Block>| {
        Zero::new(DataParallel::new(world, model).unwrap(), stage, AdamConfig::new().build(), model).unwrap()
    };
    let train = |zero: &mut Zero<'_, Adam>, mut model: Vec<Block>, steps: Range<u64>| {
        for step in steps {
            let own = gradients(&model, step, world.rank());
            model = zero.step(RATE, model, own, share(step, world.rank()) as u64).unwrap();
        }
        model
    };
    for before in stages {
        let mut model = blocks(BLOCKS);
        let mut first = zero(before, &model);
        assert_eq!(first.moments().unwrap(), Moments::default());
        model = train(&mut first, model, 0..MIDDLE);
        let moments = first.moments().unwrap();
        drop(first);
        assert_eq!((moments.steps as u64, moments.first.len()), (MIDDLE, Layout::new(&model).unwrap().len()));
        for after in stages {
            let mut second = zero(after, &blocks(BLOCKS));
            second.resume(&model, moments.clone()).unwrap();
            let found = train(&mut second, model.clone(), MIDDLE..STEPS);
            assert!(bits(&found) == expected, "{before:?}, then {after:?}");
        }
        // One rank, with the sums that the others would have made.
        let layout = Layout::new(&model).unwrap();
        let alone = DataParallel::new(&Alone, &model).unwrap();
        let mut only = Zero::new(alone, ZeroStage::One, AdamConfig::new().build(), &model).unwrap();
        let short = Moments { first: vec![0.0; 3], ..moments.clone() };
        assert!(matches!(only.resume(&model, short), Err(DistError::Length { found: 3, .. })));
        only.resume(&model, moments).unwrap();
        for step in MIDDLE..STEPS {
            let sum = summed(&layout, &model, step, world.size());
            let sum = layout.to_gradients(&model, &sum).unwrap();
            model = only.step(RATE, model, sum, 1).unwrap();
        }
        assert!(bits(&model) == expected, "{before:?}, then alone");
    }
}

pub(crate) fn zero_2(world: &Mpi) {
    sharded(world, ZeroStage::Two, Reduction::Ordered);
}

pub(crate) fn native_zero(world: &Mpi) {
    sharded(world, ZeroStage::One, Reduction::Native);
    sharded(world, ZeroStage::Two, Reduction::Native);
}

/// What Adam's two moments take, as the allocator sees it: what is there with the optimizer, less what is there without. Of an odd number
/// of values, so that parts are padded.
pub(crate) fn memory_of_zero(world: &Mpi) {
    use burn::nn::Linear;
    use burn::tensor::Tensor;
    let device = device();
    let (from, to, rows) = (512, 511, 2);
    let gradients = |model: &Linear| {
        let loss = model.forward(Tensor::<2>::ones([rows, from], &device)).mean();
        GradientsParams::from_grads(loss.backward(), model)
    };
    for stage in [ZeroStage::One, ZeroStage::Two] {
        device.seed(1);
        let mut model = LinearConfig::new(from, to).init(&device);
        let parallel = DataParallel::new(world, &model).unwrap();
        let values = Layout::new(&model).unwrap().len() as u64;
        assert!(!values.is_multiple_of(world.size() as u64), "{values} values leave nothing to pad");
        let mut zero = Zero::new(parallel, stage, AdamConfig::new().build(), &model).unwrap();
        let own = gradients(&model);
        model = zero.step(RATE, model, own, rows as u64).unwrap();
        let shard = zero.shard_bytes().get();
        assert_eq!(shard, values.div_ceil(world.size() as u64) * 4);
        rekindle::sweep();
        let with = memory::live().unwrap().get();
        drop(zero);
        rekindle::sweep();
        let freed = with - memory::live().unwrap().get();
        // Its part of the weights and two moments.
        let slack = 64 << 10;
        assert!((3 * shard..3 * shard + slack).contains(&freed), "{stage:?}: {freed} of {shard} each");
        drop(model);
    }
}

/// What a step takes at its peak from the gradients on, sums and update included: with ZeRO 2 no rank has more of the sum than its part.
pub(crate) fn memory_of_sums(world: &Mpi) {
    use burn::nn::Linear;
    use burn::optim::SgdConfig;
    use burn::tensor::Tensor;
    let (device, wide) = (device(), 512);
    let peak_of = |stage: ZeroStage| {
        device.seed(1);
        let mut model: Vec<Linear> = (0..7).map(|_| LinearConfig::new(wide, wide).init(&device)).collect();
        let parallel = DataParallel::new(world, &model).unwrap();
        let (whole, bucket) = (Layout::new(&model).unwrap().len() as u64 * 4, parallel.overlapping_bucket());
        // No state of an optimizer, and nothing that it takes beside the gradients.
        let mut zero = Zero::new(parallel, stage, SgdConfig::new().build(), &model).unwrap();
        let mut peak = 0;
        for _ in 0..2 {
            rekindle::sweep();
            let before = memory::live().unwrap();
            let x = Tensor::<2>::ones([1, wide], &device);
            let loss = model.iter().fold(x, |x, layer| layer.forward(x)).mean();
            let own = GradientsParams::from_grads(rekindle::backward(&loss).unwrap(), &model);
            drop(loss);
            memory::reset_peak();
            model = zero.step(1e-3, model, own, 1).unwrap();
            peak = memory::peak().unwrap().saturating_sub(before).get();
        }
        (peak, whole, bucket.get())
    };
    let ((one, whole, bucket), (two, ..)) = (peak_of(ZeroStage::One), peak_of(ZeroStage::Two));
    let part = whole / world.size() as u64;
    let told = format!("ZeRO 1 takes {one}, ZeRO 2 {two}; gradients {whole}, a bucket {bucket}");
    assert!(one >= two + whole - part, "{told}");
    // The gradients, this rank's part of their sum, a bucket that is filled, one that is added up with what comes from other ranks for
    // that, and one gradient as values in a row.
    assert!(two <= whole + part + 3 * bucket + (wide * wide * 4) as u64, "{told}");
}

pub(crate) fn refused(world: &Mpi) {
    let model = blocks(if world.rank() == 1 { BLOCKS + 1 } else { BLOCKS });
    let error = DataParallel::new(world, &model).unwrap_err();
    assert!(matches!(&error, DistError::Differs { .. }), "{error}");
    assert!(error.to_string().contains("the shape of each parameter of rank"), "{error}");
    // As many values, but a layer of 4x6 on one rank that is one of 6x4 on another: it was taken for the same.
    let [from, to] = if world.rank() == 1 { [6, 4] } else { [4, 6] };
    let layer = LinearConfig::new(from, to).with_bias(false).init(&device());
    let error = DataParallel::new(world, &layer).unwrap_err().to_string();
    assert!(error.contains("4x6") && error.contains("6x4"), "{error}");
    let stage = StageProfile {
        name: "s".into(),
        output_bytes: Bytes::new(4),
        tape_bytes: Bytes::new(8),
        forward_ns: Nanos::new(1),
        backward_ns: Nanos::new(2),
        ..StageProfile::default()
    };
    let profile = Profile::new("m", "d", Bytes::new(4), vec![stage; 3]).unwrap();
    let plan = |rule: Rule| Plan::by_rule(&profile, rule, None).unwrap();
    agree_on_plan(world, &plan(Rule::StoreAll)).unwrap();
    let own = if world.rank() == 0 { Rule::EVERY_ONE } else { Rule::StoreAll };
    let error = agree_on_plan(world, &plan(own)).unwrap_err();
    assert!(error.to_string().starts_with("the plan of rank"), "{error}");
}
