//! A pipeline of threads whose sends wait for who receives: what MPI does with messages that are too large to be put aside, and the hardest
//! on an order of sends and receives. It needs no MPI.

#![allow(clippy::unwrap_used, clippy::panic, clippy::unimplemented, reason = "a test")]

use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use rekindle_dist::pipeline::{Made, train_step};
use rekindle_dist::{Collective, DistError, Pending, Reduction};

/// Far longer than a step of this size takes on a machine that others use, too.
const PATIENCE: Duration = Duration::from_secs(60);

/// One rank of a group of threads: for each other rank where to send, and where to receive.
struct Rank {
    rank: usize,
    send: Vec<SyncSender<Vec<u8>>>,
    receive: Vec<Mutex<Receiver<Vec<u8>>>>,
}

/// So many of them. A channel has no room: who sends waits until it is received.
fn ranks(size: usize) -> Vec<Rank> {
    let mut all: Vec<Rank> =
        (0..size).map(|rank| Rank { rank, send: Vec::new(), receive: Vec::new() }).collect();
    for from in 0..size {
        for to in 0..size {
            let (send, receive) = mpsc::sync_channel(0);
            all[from].send.push(send);
            all[to].receive.push(Mutex::new(receive));
        }
    }
    all
}

impl Collective for Rank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.send.len()
    }

    fn exchange(
        &self,
        send: Option<(usize, Vec<u8>)>,
        from: Option<usize>,
    ) -> Result<Option<Vec<u8>>, DistError> {
        std::thread::scope(|scope| {
            if let Some((to, data)) = send {
                let to = &self.send[to];
                scope.spawn(move || to.send(data).unwrap());
            }
            Ok(from.map(|from| self.receive[from].lock().unwrap().recv().unwrap()))
        })
    }

    // A step of a pipeline asks for nothing of this.
    fn shared(&self) -> Arc<dyn Collective> {
        unimplemented!()
    }

    fn split(&self, _: usize, _: usize) -> Result<Box<dyn Collective>, DistError> {
        unimplemented!()
    }

    fn broadcast(&self, _: usize, _: Vec<u8>) -> Result<Vec<u8>, DistError> {
        unimplemented!()
    }

    fn start_all_gather(&self, _: Vec<u8>) -> Pending<Vec<Vec<u8>>> {
        unimplemented!()
    }

    fn start_all_reduce(&self, _: Vec<f32>, _: Reduction) -> Pending<Vec<f32>> {
        unimplemented!()
    }

    fn start_reduce_scatter(&self, _: Vec<f32>, _: Reduction) -> Pending<Vec<f32>> {
        unimplemented!()
    }

    fn start_all_gather_parts(&self, _: Vec<f32>) -> Pending<Vec<f32>> {
        unimplemented!()
    }

    fn barrier(&self) -> Result<(), DistError> {
        unimplemented!()
    }

    fn abort(&self, reason: &str) -> ! {
        panic!("{reason}")
    }
}

fn device() -> Device {
    Device::flex().autodiff()
}

/// What micro-batch this is, as numbers.
fn batch(micro_batch: usize) -> Tensor<2> {
    Tensor::from_data([[micro_batch as f32 + 1.0, -0.5]], &device())
}

/// This rank's layer goes through a step. Gives the loss, if it makes one, and how many of its parameters have a gradient.
fn step(ranks: &dyn Collective, layer: &Linear, micro_batches: usize) -> (Option<f32>, usize) {
    let last = ranks.rank() + 1 == ranks.size();
    let made = train_step(ranks, layer, micro_batches, &device(), |micro_batch, input: Option<Tensor<2>>| {
        let output = layer.forward(input.unwrap_or_else(|| batch(micro_batch)));
        Ok(if last { Made::Loss(output.powf_scalar(2.0).mean()) } else { Made::Boundary(output) })
    });
    let made = made.unwrap();
    (made.loss, made.gradients.len())
}

#[test]
fn no_pipeline_of_up_to_eight_ranks_waits_for_itself_with_any_number_of_micro_batches() {
    // Drawn before there are threads: Burn's random state is one per process.
    device().seed(3);
    let layers: Vec<Linear> = (0..8).map(|_| LinearConfig::new(2, 2).init(&device())).collect();
    let _ = layers.iter().map(|layer| layer.weight.val().into_data()).collect::<Vec<_>>();
    for size in 1..=8 {
        for micro_batches in 1..=20 {
            let (told, tell) = mpsc::channel();
            for (own, layer) in ranks(size).into_iter().zip(layers.clone()) {
                let told = told.clone();
                std::thread::spawn(move || told.send((own.rank, step(&own, &layer, micro_batches))));
            }
            drop(told);
            let mut losses = Vec::new();
            for _ in 0..size {
                let (rank, (loss, gradients)) = tell.recv_timeout(PATIENCE).unwrap_or_else(|error| {
                    panic!("{size} ranks, {micro_batches} micro-batches: a rank waits for ever, {error}")
                });
                assert_eq!((loss.is_some(), gradients), (rank + 1 == size, 2));
                losses.extend(loss);
            }
            let expected = (0..micro_batches).map(|number| {
                let output = layers[..size].iter().fold(batch(number), |x, layer| layer.forward(x));
                output.powf_scalar(2.0).mean().into_scalar::<f32>() / micro_batches as f32
            });
            let expected: f32 = expected.sum();
            assert!((losses[0] - expected).abs() <= 1e-5 * expected.abs(), "{losses:?}, expected {expected}");
        }
    }
}
