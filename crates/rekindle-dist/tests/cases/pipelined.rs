//! Ranks with some stages each.

use std::time::Duration;

use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, SgdConfig};
use burn::tensor::Tensor;
use rekindle::training::Accumulation;
use rekindle::{Region, memory};
use rekindle_dist::pipeline::{Made, boundaries_wait, in_flight, train_step};
use rekindle_dist::{Collective, DataParallel, DistError, Layout, Mpi, Reduction, Zero, ZeroStage};

use super::model::{Block, WIDTH, bits, blocks, device, examples, forward, forward_to_wait, loss, same};

const STEPS: u64 = 10;
const RATE: f64 = 0.1;
/// Examples of a micro-batch whose boundaries are large beside all else.
const ROWS: usize = 40_000;

/// How many stages a rank has: not the same number on all.
fn own_stages(rank: usize) -> usize {
    1 + rank % 2
}

fn start(rank: usize) -> usize {
    (0..rank).map(own_stages).sum()
}

fn seed(step: u64, micro_batch: usize, rank: usize) -> u64 {
    1_000 * step + 10 * micro_batch as u64 + rank as u64
}

/// What one process comes to that has all stages.
fn reference(ranks: usize, micro_batches: usize) -> (Vec<Block>, Vec<f32>) {
    let mut model = blocks(start(ranks));
    let mut optimizer = SgdConfig::new().init();
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let mut sum = Accumulation::new();
        for micro_batch in 0..micro_batches {
            let mut x = examples(3, seed(step, micro_batch, 99));
            for rank in 0..ranks {
                x = forward(&model[start(rank)..][..own_stages(rank)], x, seed(step, micro_batch, rank))
                    .unwrap();
            }
            sum.add(&model, loss(x), 1.0 / micro_batches as f64).unwrap();
        }
        let sum = sum.finish().unwrap();
        losses.push(sum.loss.into_scalar::<f32>());
        model = optimizer.step(RATE, model, sum.gradients);
    }
    (model, losses)
}

fn same_as_reference(world: &Mpi, micro_batches: usize) {
    let (rank, size) = (world.rank(), world.size());
    let mut model = blocks(start(size))[start(rank)..][..own_stages(rank)].to_vec();
    let mut optimizer = SgdConfig::new().init();
    let (expected, losses) = reference(size, micro_batches);
    for step in 0..STEPS {
        let made = train_step(world, &model, micro_batches, &device(), |micro_batch, input| {
            let input = input.unwrap_or_else(|| examples(3, seed(step, micro_batch, 99)));
            let output = forward_to_wait(&model, input, seed(step, micro_batch, rank))?;
            Ok(if rank + 1 == size { Made::Loss(loss(output)) } else { Made::Boundary(output) })
        });
        let made = made.unwrap();
        assert_eq!(made.loss.is_some(), rank + 1 == size);
        if let Some(found) = made.loss {
            let expected = losses[usize::try_from(step).unwrap()];
            assert!((found - expected).abs() <= 1e-6 * expected.abs(), "{found}, {expected}");
        }
        assert!(made.busy <= made.took);
        model = optimizer.step(RATE, model, made.gradients);
    }
    assert!(bits(&model) == bits(&expected[start(rank)..][..own_stages(rank)].to_vec()), "{micro_batches}");
}

pub(crate) fn one_process(world: &Mpi) {
    for micro_batches in [1, 2, 3, 8] {
        same_as_reference(world, micro_batches);
    }
}

/// Stages that take their time and no processor: ranks that share one wait as ranks that do not. And far more time than a message, which
/// no formula knows of.
pub(crate) fn bubble(world: &Mpi) {
    const STAGE: Duration = Duration::from_millis(250);
    let (rank, size) = (world.rank(), world.size());
    let model = vec![LinearConfig::new(WIDTH, WIDTH).init(&device())];
    for micro_batches in [size, 2 * size] {
        let mut bubbles: Vec<f64> = (0..3)
            .map(|_| {
                world.barrier().unwrap();
                let step = train_step(world, &model, micro_batches, &device(), |_, input| {
                    // It is run again for its backward, and so takes as long then.
                    let region = Region::new().stages("slow", &model, |layer: &Linear, x: Tensor<2>| {
                        std::thread::sleep(STAGE);
                        layer.forward(x)
                    });
                    let region = region.schedule(boundaries_wait(1).unwrap());
                    let output = region.forward(input.unwrap_or_else(|| examples(3, 1)))?;
                    Ok(if rank + 1 == size { Made::Loss(loss(output)) } else { Made::Boundary(output) })
                });
                let step = step.unwrap();
                let computed = STAGE * 2 * u32::try_from(micro_batches).unwrap();
                assert!(step.busy >= computed, "forth and back: {:?} of {computed:?}", step.busy);
                step.waiting(world).unwrap().bubble
            })
            .collect();
        bubbles.sort_by(f64::total_cmp);
        let expected = (size - 1) as f64 / (micro_batches + size - 1) as f64;
        let off = bubbles[1] / expected - 1.0;
        assert!(off.abs() < 0.05, "{micro_batches} micro-batches: {bubbles:?}, the formula says {expected}");
    }
}

/// Two stages each, and as many pipelines as there are ranks for: the first ranks of all of them add up their gradients, and the
/// second.
pub(crate) fn replicated(world: &Mpi) {
    pipelines(world, Reduction::Ordered);
}

pub(crate) fn native(world: &Mpi) {
    pipelines(world, Reduction::Native);
}

fn pipelines(world: &Mpi, how: Reduction) {
    const MICRO_BATCHES: usize = 3;
    let (stages, replicas) = (2, world.size() / 2);
    let (replica, stage) = (world.rank() / stages, world.rank() % stages);
    let pipeline = world.split(replica, stage).unwrap();
    let same_stages = world.split(stage, replica).unwrap();
    let examples_of = |replica: usize, step: u64, micro_batch: usize| {
        examples(3 + replica, seed(step, micro_batch, 50 + replica))
    };
    let drawn = |replica: usize, step, micro_batch, stage| seed(step, micro_batch, 10 * replica + stage);
    // One process: all pipelines, one after the other.
    let mut expected = blocks(start(stages));
    let layout = Layout::new(&expected).unwrap();
    let total: usize = (0..replicas).map(|replica| 3 + replica).sum();
    let mut optimizer = AdamConfig::new().init();
    for step in 0..STEPS {
        let mut sum: Option<Vec<f32>> = None;
        for replica in 0..replicas {
            let mut own = Accumulation::new();
            for micro_batch in 0..MICRO_BATCHES {
                let mut x = examples_of(replica, step, micro_batch);
                for stage in 0..stages {
                    let blocks = &expected[start(stage)..][..own_stages(stage)];
                    x = forward(blocks, x, drawn(replica, step, micro_batch, stage)).unwrap();
                }
                own.add(&expected, loss(x), 1.0 / MICRO_BATCHES as f64).unwrap();
            }
            let weight = ((3 + replica) as f64 / total as f64) as f32;
            let own = layout.gradients(&expected, &own.finish().unwrap().gradients).unwrap();
            let own = own.into_iter().map(|value| value * weight);
            sum = Some(match sum {
                None => own.collect(),
                Some(sum) => sum.into_iter().zip(own).map(|(sum, own)| sum + own).collect(),
            });
        }
        let sum = layout.to_gradients(&expected, &sum.unwrap()).unwrap();
        expected = optimizer.step(RATE, expected, sum);
    }
    let expected = expected[start(stage)..][..own_stages(stage)].to_vec();
    for sharded in [None, Some(ZeroStage::One), Some(ZeroStage::Two)] {
        let mut model = blocks(start(stages))[start(stage)..][..own_stages(stage)].to_vec();
        let parallel = || DataParallel::new(same_stages.as_ref(), &model).unwrap().reduction(how);
        let mut zero =
            sharded.map(|stage| Zero::new(parallel(), stage, AdamConfig::new().build(), &model).unwrap());
        let parallel = parallel();
        let mut optimizer = AdamConfig::new().init();
        for step in 0..STEPS {
            let made =
                train_step(pipeline.as_ref(), &model, MICRO_BATCHES, &device(), |micro_batch, input| {
                    let input = input.unwrap_or_else(|| examples_of(replica, step, micro_batch));
                    let output = forward_to_wait(&model, input, drawn(replica, step, micro_batch, stage))?;
                    Ok(if stage + 1 == stages { Made::Loss(loss(output)) } else { Made::Boundary(output) })
                });
            let (gradients, examples) = (made.unwrap().gradients, 3 + replica as u64);
            model = match &mut zero {
                Some(zero) => zero.step(RATE, model, gradients, examples).unwrap(),
                None => {
                    let sum = parallel.reduce(&model, &gradients, examples).unwrap();
                    optimizer.step(RATE, model, sum)
                }
            };
        }
        same(how, &model, &expected, &format!("{sharded:?}"));
    }
}

/// The most that a step takes above what was there before.
fn peak(world: &Mpi, micro_batches: usize) -> u64 {
    let (rank, size) = (world.rank(), world.size());
    let model = blocks(size)[rank..=rank].to_vec();
    rekindle::sweep();
    let before = memory::live().unwrap();
    memory::reset_peak();
    let step = train_step(world, &model, micro_batches, &device(), |micro_batch, input| {
        let input = input.unwrap_or_else(|| examples(ROWS, micro_batch as u64));
        let output = forward_to_wait(&model, input, micro_batch as u64)?;
        Ok(if rank + 1 == size { Made::Loss(loss(output)) } else { Made::Boundary(output) })
    });
    let peak = memory::peak().unwrap().saturating_sub(before);
    drop(step.unwrap());
    peak.get()
}

pub(crate) fn memory_in_flight(world: &Mpi) {
    let boundary = (ROWS * WIDTH * 4) as u64;
    // The first step makes lazy things.
    peak(world, 1);
    let (one, many) = (peak(world, 1), peak(world, 6));
    // One is worked on; of each of the others its input and its output are kept.
    let others = in_flight(world.rank(), world.size(), 6) as u64 - 1;
    let found = many.saturating_sub(one) as f64 / boundary as f64;
    assert!((found - 2.0 * others as f64).abs() < 1.0, "{found} boundaries for {others} micro-batches more");
}

pub(crate) fn refused(world: &Mpi) {
    let (model, device) = (blocks(1), device());
    let unused = |_, _: Option<Tensor<2>>| unreachable!("there is no micro-batch");
    let nothing = train_step(world, &model, 0, &device, unused).unwrap_err();
    assert!(nothing.to_string().contains("no micro-batches"), "{nothing}");
    let alone = world.split(world.rank(), 0).unwrap();
    let boundary = |_, _: Option<Tensor<2>>| Ok(Made::Boundary(examples(3, 1)));
    let no_loss = train_step(alone.as_ref(), &model, 1, &device, boundary).unwrap_err();
    assert!(no_loss.to_string().contains("is the last and gave no loss"), "{no_loss}");
    if world.rank() == 0 {
        let early = |_, _: Option<Tensor<2>>| Ok(Made::Loss(loss(examples(3, 1))));
        let early = train_step(world, &model, 1, &device, early).unwrap_err();
        assert!(early.to_string().contains("and is not the last"), "{early}");
        // What is no boundary.
        world.send(1, vec![1, 2, 3]).unwrap();
    }
    if world.rank() == 1 {
        let any = |_, _: Option<Tensor<2>>| unreachable!("nothing arrives that could be used");
        let error = train_step(world, &model, 1, &device, any).unwrap_err();
        assert!(matches!(error, DistError::Message { from: 0, .. }), "{error}");
    }
}
