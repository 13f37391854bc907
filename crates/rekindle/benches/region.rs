//! What the mechanism itself costs, against the same work without it. Ratios of one run are what counts.
//!
//! `by_hand` is a checkpointed step written out on Burn's public API, stage by stage: what `every_one` takes beyond it
//! is the executor's.

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use divan::Bencher;
use rekindle::{Region, Rule, without_checkpointing};

fn main() {
    let _ = rekindle::memory::keep_freed();
    divan::main();
}

#[derive(Module, Debug)]
struct Layer {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

fn forward(layer: &Layer, x: Tensor<2>) -> Tensor<2> {
    let hidden = layer.up.forward(layer.norm.forward(x.clone())).tanh();
    x + layer.down.forward(hidden)
}

const LAYERS: usize = 24;

fn model(rows: usize) -> (Vec<Layer>, Tensor<2>) {
    let device = Device::flex().autodiff();
    let layer = |_| Layer {
        norm: LayerNormConfig::new(128).init(&device),
        up: LinearConfig::new(128, 512).init(&device),
        down: LinearConfig::new(512, 128).init(&device),
    };
    let layers: Vec<Layer> = (0..LAYERS).map(layer).collect();
    let x = Tensor::ones([rows, 128], &device);
    let _ = layers.iter().fold(x.clone(), |x, layer| forward(layer, x)).mean().backward();
    (layers, x)
}

fn region(layers: &[Layer], x: &Tensor<2>, rule: Rule) -> Option<Tensor<2>> {
    Region::new().stages("layer", layers, forward).rule(rule).forward(x.clone()).ok()
}

/// Rows of the activations: 8 shows the fixed cost, 512 a real step.
const ROWS: [usize; 2] = [8, 512];

#[divan::bench(args = ROWS)]
fn plain(bencher: Bencher, rows: usize) {
    let (layers, x) = model(rows);
    bencher.bench_local(|| {
        let y = without_checkpointing(|| region(&layers, &x, Rule::StoreAll));
        y.map(|y| y.mean().backward())
    });
}

#[divan::bench(args = ROWS)]
fn store_all(bencher: Bencher, rows: usize) {
    let (layers, x) = model(rows);
    bencher.bench_local(|| region(&layers, &x, Rule::StoreAll).map(|y| y.mean().backward()));
}

#[divan::bench(args = ROWS)]
fn every_one(bencher: Bencher, rows: usize) {
    let (layers, x) = model(rows);
    bencher.bench_local(|| region(&layers, &x, Rule::EVERY_ONE).map(|y| y.mean().backward()));
}

/// Without autodiff a region is to cost what calling the layers does.
#[divan::bench(args = ROWS)]
fn evaluation(bencher: Bencher, rows: usize) {
    let (layers, x) = model(rows);
    let (layers, x) = (layers.valid(), x.without_autodiff());
    bencher.bench_local(|| region(&layers, &x, Rule::EVERY_ONE));
}

#[divan::bench(args = ROWS)]
fn evaluation_by_hand(bencher: Bencher, rows: usize) {
    let (layers, x) = model(rows);
    let (layers, x) = (layers.valid(), x.without_autodiff());
    bencher.bench_local(|| layers.iter().fold(x.clone(), |x, layer| forward(layer, x)));
}

#[divan::bench(args = ROWS)]
fn by_hand(bencher: Bencher, rows: usize) {
    let (layers, x) = model(rows);
    bencher.bench_local(|| {
        let mut inputs = Vec::with_capacity(LAYERS);
        let mut hidden = x.clone();
        for layer in &layers[..LAYERS - 1] {
            inputs.push(hidden.clone());
            hidden = forward(&layer.clone().no_grad(), hidden);
        }
        let leaf = hidden.require_grad();
        let y = forward(&layers[LAYERS - 1], leaf.clone());
        let mut gradients = vec![y.mean().backward()];
        let mut gradient = gradients.last_mut().and_then(|g| leaf.grad_remove(g));
        for (layer, input) in layers.iter().zip(inputs).rev() {
            let leaf = input.require_grad();
            let y = forward(layer, leaf.clone());
            // The usual way to start a backward from a gradient; a region's is exact and free.
            let Some(incoming) = gradient.take() else { break };
            gradients.push((y * incoming).sum().backward());
            gradient = gradients.last_mut().and_then(|g| leaf.grad_remove(g));
        }
        gradients
    });
}
