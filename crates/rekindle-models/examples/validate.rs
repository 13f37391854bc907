//! Are the gradients the same? And if not, which stage is at fault?
//!
//! ```text
//! cargo run --release -p rekindle-models --example validate
//! ```

#![allow(clippy::print_stdout, reason = "it is a program to read the output of")]

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor};
use rekindle::{Checks, Region, Rule, without_checkpointing};

#[derive(Module, Debug)]
struct Layers {
    layers: Vec<Linear>,
}

impl Layers {
    fn region(&self) -> Region<Tensor<2>, Tensor<2>> {
        Region::new().stages("layer", &self.layers, |layer: &Linear, x: Tensor<2>| layer.forward(x).tanh())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let model = Layers { layers: (0..6).map(|_| LinearConfig::new(16, 16).init(&device)).collect() };
    let x = Tensor::<2>::random([4, 16], Distribution::Default, &device);

    // The same seed, the same weights, the same input: with and without checkpoints.
    let gradients = |rule: Option<Rule>| -> Result<Vec<Vec<u8>>, rekindle::Error> {
        rekindle::seed(7);
        let y = match rule {
            None => without_checkpointing(|| model.region().forward(x.clone()))?,
            Some(rule) => model.region().rule(rule).forward(x.clone())?,
        };
        let gradients = rekindle::backward(&y.powi_scalar(2).mean())?;
        let bytes = |layer: &Linear| {
            let gradient = layer.weight.val().grad(&gradients);
            gradient.map(|gradient| gradient.into_data().as_bytes().to_vec()).unwrap_or_default()
        };
        Ok(model.layers.iter().map(bytes).collect())
    };
    let plain = gradients(None)?;
    for rule in [Rule::StoreAll, Rule::EVERY_ONE, Rule::SquareRoot] {
        let same = gradients(Some(rule))?.iter().zip(&plain).filter(|(ours, plain)| ours == plain).count();
        println!("{rule}: {same} of {} gradients have the same bytes", plain.len());
        if same < plain.len() {
            return Err("a gradient differs".into());
        }
    }

    // A stage that depends on how often it ran: recomputed, it makes something else. Checksums say which one it is.
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let faulty = Region::new()
        .stages("layer", &model.layers[..3], |layer: &Linear, x: Tensor<2>| layer.forward(x).tanh())
        .stage("noisy", &model.layers[3], |layer: &Linear, x: Tensor<2>| {
            let runs = RUNS.fetch_add(1, Ordering::Relaxed);
            layer.forward(x) * (1.0 + f64::from(runs))
        })
        .stages("last", &model.layers[4..], |layer: &Linear, x: Tensor<2>| layer.forward(x).tanh());
    let y = faulty.rule(Rule::EVERY_ONE).checks(Checks::Checksums).forward(x)?;
    match rekindle::backward(&y.mean()) {
        Err(error) => println!("found: {error}"),
        Ok(_) => return Err("a stage that changed was not found".into()),
    }
    Ok(())
}
