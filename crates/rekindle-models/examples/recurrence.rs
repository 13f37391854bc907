#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]
use std::time::Instant;
use burn::tensor::{Device, Distribution, Int, Tensor};
use burn::nn::{LstmConfig, GruConfig};
use rekindle_models::*;
use rekindle::memory::{self, CountingAllocator};
use rekindle::*;
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::system();
fn main() {
    let _ = memory::keep_freed();
    let a: Vec<usize> = std::env::args().skip(1).map(|x| x.parse().unwrap()).collect();
    let (steps, width, batch, features) = (a[0], a[1], a[2], a[3]);
    let device = Device::flex().autodiff();
    let x = Tensor::<3>::random([batch, steps, features], Distribution::Normal(0.0, 1.0), &device);
    let b = SequenceBatch { sequences: x.clone(), classes: Tensor::<1, Int>::zeros([batch], &device) };
    for kind in [RecurrentKind::Lstm, RecurrentKind::Gru] {
        let net = RecurrentConfig::new(features, width, 4).with_kind(kind).init(&device).unwrap();
        let time = |name: &str, run: &dyn Fn() -> Tensor<1>| {
            for _ in 0..3 {
                rekindle::sweep();
                let before = memory::live().unwrap();
                memory::reset_peak();
                let s = Instant::now();
                let loss = run();
                let f = s.elapsed();
                let g = rekindle::backward(&loss).unwrap();
                let t = s.elapsed();
                let p = memory::peak().unwrap().saturating_sub(before);
                drop(g);
                println!("{kind:?} {name:10} fwd {f:.2?} all {t:.2?} peak {p} per step {:.1?}", t / steps as u32);
            }
        };
        time("plain", &|| without_checkpointing(|| net.loss(&b, Rule::StoreAll)).unwrap());
        time("every-1", &|| net.loss(&b, Rule::EVERY_ONE).unwrap());
        time("store-all", &|| net.loss(&b, Rule::StoreAll).unwrap());
        time("sqrt-fine", &|| { let (r, s) = net.fine_stages(&b); r.rule(Rule::SquareRoot).forward(s).unwrap() });
        match kind {
            RecurrentKind::Lstm => {
                let lstm = LstmConfig::new(features, width, true).init(&device);
                time("burn", &|| { let (_, s) = lstm.forward(x.clone(), None); s.hidden.mean() });
            }
            RecurrentKind::Gru => {
                let gru = GruConfig::new(features, width, true).with_reset_after(false).init(&device);
                time("burn", &|| gru.forward(x.clone(), None).narrow(1, steps - 1, 1).mean());
            }
        }
    }
}
