//! What it costs to train on several ranks: sums, data parallel, a pipeline.
//!
//! ```sh
//! cargo build --release --workspace --examples
//! RAYON_NUM_THREADS=1 mpirun -n 2 target/release/examples/over_ranks
//! ```

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::time::{Duration, Instant};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Distribution, Tensor};
use rekindle::{Region, Rule};
use rekindle_dist::pipeline::{Made, boundaries_wait, train_step};
use rekindle_dist::{Collective, DataParallel, DistError, Layout, Mpi, Reduction};

const WIDTH: usize = 256;
const ROWS: usize = 512;
const LAYERS: usize = 8;
const ROUNDS: usize = 9;

#[derive(Module, Debug)]
struct Model {
    layers: Vec<Linear>,
}

fn model(layers: usize, device: &Device) -> Model {
    device.seed(1);
    Model { layers: (0..layers).map(|_| LinearConfig::new(WIDTH, WIDTH).init(device)).collect() }
}

/// Not `tanh`: it takes less time the smaller the values are, and on later ranks they are smaller.
fn layer(layer: &Linear, x: Tensor<2>) -> Tensor<2> {
    burn::tensor::activation::relu(layer.forward(x))
}

fn main() -> Result<(), DistError> {
    // Memory that goes back to the system and comes again is cleared each time, on one rank more often than on another.
    let _ = rekindle::memory::keep_freed();
    let world = Mpi::start(Some(Duration::from_secs(60)))?;
    sums(&world)?;
    data_parallel(&world)?;
    overlap(&world)?;
    pipeline(&world)?;
    Ok(())
}

/// Prints on the first rank.
fn say(world: &Mpi, text: &str) {
    if world.rank() == 0 {
        println!("{text}");
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The median time of something that all ranks do.
fn timed(world: &Mpi, mut run: impl FnMut() -> Result<(), DistError>) -> Result<f64, DistError> {
    run()?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        world.barrier()?;
        let start = Instant::now();
        run()?;
        times.push(start.elapsed().as_secs_f64());
    }
    Ok(median(times))
}

fn sums(world: &Mpi) -> Result<(), DistError> {
    let values = vec![1.0_f32; 1 << 20];
    let of = |how| timed(world, || world.all_reduce(values.clone(), how).map(drop));
    let (ordered, native) = (of(Reduction::Ordered)?, of(Reduction::Native)?);
    say(world, &format!("{} ranks", world.size()));
    say(
        world,
        &format!(
            "sum of 4 MiB: ordered {:.2} ms, native {:.2} ms, {:.2}x",
            ordered * 1e3,
            native * 1e3,
            ordered / native
        ),
    );
    Ok(())
}

fn data_parallel(world: &Mpi) -> Result<(), DistError> {
    let device = Device::flex().autodiff();
    let mut model = model(LAYERS, &device);
    let mut optimizer = SgdConfig::new().init();
    let batch = Tensor::<2>::random([ROWS, WIDTH], Distribution::Default, &device);
    let gradients = |model: &Model| -> Result<GradientsParams, DistError> {
        let region = Region::new().stages("layer", &model.layers, layer).rule(Rule::EVERY_ONE);
        let loss = region.forward(batch.clone())?.mean();
        Ok(GradientsParams::from_grads(rekindle::backward(&loss)?, model))
    };
    // One rank by itself, while the others wait.
    let mut alone = Vec::new();
    for _ in 0..=ROUNDS {
        world.barrier()?;
        if world.rank() == 0 {
            let start = Instant::now();
            let own = gradients(&model)?;
            model = optimizer.step(1e-3, model, own);
            alone.push(start.elapsed().as_secs_f64());
        }
    }
    let parallel = DataParallel::new(world, &model)?;
    model = parallel.share(model)?;
    let mut model = Some(model);
    let together = timed(world, || {
        let Some(before) = model.take() else { return Ok(()) };
        let own = gradients(&before)?;
        let sum = parallel.reduce(&before, &own, ROWS as u64)?;
        model = Some(optimizer.step(1e-3, before, sum));
        Ok(())
    })?;
    if world.rank() == 0 {
        let alone = median(alone);
        say(
            world,
            &format!(
                "data parallel: {:.1} ms a step alone, {:.1} ms on {} ranks that have as many examples each: efficiency {:.0}%",
                alone * 1e3,
                together * 1e3,
                world.size(),
                100.0 * alone / together
            ),
        );
    }
    Ok(())
}

/// How much of the sums of gradients is done while a backward goes on.
fn overlap(world: &Mpi) -> Result<(), DistError> {
    let device = Device::flex().autodiff();
    let model = model(LAYERS, &device);
    let parallel = DataParallel::new(world, &model)?;
    let values = Layout::new(&model)?.len();
    let bucket = parallel.overlapping_bucket().get() as usize / 4;
    // The same buckets with nothing beside them.
    let alone = timed(world, || {
        let started = (0..values.div_ceil(bucket)).map(|number| {
            let bucket = vec![1.0; bucket.min(values - number * bucket)];
            world.start_all_reduce(bucket, Reduction::Ordered)
        });
        started.collect::<Vec<_>>().into_iter().try_for_each(|sum| sum.wait().map(drop))
    })?;
    for rows in [ROWS, 4 * ROWS] {
        let batch = Tensor::<2>::random([rows, WIDTH], Distribution::Default, &device);
        let [mut waits, mut lates, mut backwards] = [const { Vec::new() }; 3];
        let mut early = 0;
        for _ in 0..=ROUNDS {
            let region = Region::new().stages("layer", &model.layers, layer).rule(Rule::EVERY_ONE);
            let loss = rekindle::expecting_hand_over(|| region.forward(batch.clone()))?.mean();
            let overlap = parallel.overlap(rows as u64)?;
            let start = Instant::now();
            let left = rekindle::backward_handing_over(&loss, overlap.take())?;
            backwards.push(start.elapsed().as_secs_f64());
            let left = GradientsParams::from_grads(left, &model);
            let done = overlap.finish(&parallel, &model, left)?;
            early = done.early;
            // The rank that is through last waits for sums alone; the others wait for it as well.
            let own = [done.waited, done.afterwards].map(|time| time.as_secs_f64() as f32);
            let all = world.start_all_gather_parts(own.to_vec()).wait()?;
            let (all, _) = all.as_chunks::<2>();
            let last = all.iter().copied().min_by(|a, b| (a[0] + a[1]).total_cmp(&(b[0] + b[1])));
            let [waited, afterwards] = last.unwrap_or_default();
            waits.push(f64::from(waited));
            lates.push(f64::from(afterwards));
        }
        let (waited, late, backward) = (median(waits), median(lates), median(backwards));
        let under_way = (early * bucket) as f64 / values as f64;
        say(
            world,
            &format!(
                "sums of {:.1} MiB: {:.1} ms by themselves; after a backward of {:.1} ms, {:.2} ms are left of those that were under way \
                 and {:.2} ms go to the others: {:.0}% of all overlapped, {:.0}% of those under way",
                values as f64 / (1 << 18) as f64,
                alone * 1e3,
                backward * 1e3,
                waited * 1e3,
                late * 1e3,
                100.0 * (1.0 - (waited + late) / alone),
                100.0 * (1.0 - waited / (alone * under_way))
            ),
        );
    }
    Ok(())
}

fn pipeline(world: &Mpi) -> Result<(), DistError> {
    let (rank, size, device) = (world.rank(), world.size(), Device::flex().autodiff());
    let model = model(LAYERS, &device);
    // With a gradient of its own, as what comes from another rank has: so all ranks have as much work.
    let batch = Tensor::<2>::random([ROWS, WIDTH], Distribution::Default, &device).require_grad();
    for micro_batches in [size, 4 * size, 8 * size] {
        let [mut waits, mut bubbles] = [const { Vec::new() }; 2];
        for _ in 0..=ROUNDS {
            world.barrier()?;
            let step = train_step(world, &model, micro_batches, &device, |_, input: Option<Tensor<2>>| {
                let region = Region::new().stages("layer", &model.layers, layer);
                // The model has some layers: they fit.
                let waiting = boundaries_wait(LAYERS as u32).ok();
                let region = match waiting {
                    Some(schedule) => region.schedule(schedule),
                    None => region,
                };
                let output = region.forward(input.unwrap_or_else(|| batch.clone()))?;
                Ok(if rank + 1 == size { Made::Loss(output.mean()) } else { Made::Boundary(output) })
            })?;
            let waiting = step.waiting(world)?;
            waits.push(waiting.all);
            bubbles.push(waiting.bubble);
        }
        let (waits, bubble) = (median(waits), median(bubbles));
        let expected = (size - 1) as f64 / (micro_batches + size - 1) as f64;
        say(
            world,
            &format!(
                "pipeline of {micro_batches} micro-batches: ranks wait {:.1}% of the time, {:.1}% because they are not equally fast; the bubble is {:.1}%, (P-1)/(m+P-1) is {:.1}%",
                100.0 * waits,
                100.0 * (waits - bubble),
                100.0 * bubble,
                100.0 * expected
            ),
        );
    }
    Ok(())
}
