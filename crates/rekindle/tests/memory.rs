//! Peak memory, measured with the counting allocator. A binary of its own: nothing else may allocate meanwhile.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::sync::{Mutex, PoisonError};

use burn::module::Module;
use burn::nn::{BatchNormConfig, Linear, LinearConfig};
use burn::tensor::activation::log_softmax;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Device, Distribution, Int, Tensor};
use rekindle::memory::{self, CountingAllocator};
use rekindle::nn::{LinearCrossEntropy, add, batch_norm_relu, conv2d, linear};
use rekindle::{
    Budget, Bytes, NoModule, Places, Planner, Region, Rule, Staged, checkpoint, sweep, without_checkpointing,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::system();

const MIB: u64 = 1 << 20;

/// One test at a time, and each on a thread of its own that is gone before the next begins: matrix products keep their
/// scratch memory until the thread ends, and freed in the next test's run it would hide as much of that one's peak.
fn alone(test: fn()) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(panic) = std::thread::spawn(test).join() {
        std::panic::resume_unwind(panic);
    }
}

fn live() -> u64 {
    memory::live().unwrap().get()
}

/// The most bytes above those before `run`.
fn peak_of<T>(run: impl FnOnce() -> T) -> u64 {
    sweep();
    let before = live();
    memory::reset_peak();
    let result = run();
    let peak = memory::peak().unwrap().get() - before;
    drop(result);
    sweep();
    peak
}

/// Wide inside, narrow between: a tape of many boundaries.
#[derive(Module, Debug)]
struct Wide {
    up: Linear,
    down: Linear,
}

fn wide(layer: &Wide, x: Tensor<2>) -> Tensor<2> {
    let hidden = layer.up.forward(x.clone()).tanh().exp().tanh();
    x + layer.down.forward(hidden)
}

/// Boundaries of 64 KiB, tapes of 3 MiB, weights that hardly count.
fn model(layers: usize) -> (Vec<Wide>, Tensor<2>) {
    let device = Device::flex().autodiff();
    let layer = |_| Wide {
        up: LinearConfig::new(16, 256).init(&device),
        down: LinearConfig::new(256, 16).init(&device),
    };
    let layers: Vec<Wide> = (0..layers).map(layer).collect();
    let x = Tensor::ones([1024, 16], &device);
    let _ = run(&layers, &x, Rule::EVERY_ONE).mean().backward();
    (layers, x)
}

fn run(layers: &[Wide], x: &Tensor<2>, rule: Rule) -> Tensor<2> {
    let region = Region::new().stages("wide", layers, wide).rule(rule);
    region.forward(x.clone()).unwrap()
}

fn step(layers: &[Wide], x: &Tensor<2>, rule: Rule) -> u64 {
    peak_of(|| run(layers, x, rule).mean().backward())
}

#[test]
fn checkpointing_saves_what_it_says() {
    alone(|| {
        let (layers, x) = model(16);
        let plain = without_checkpointing(|| step(&layers, &x, Rule::StoreAll));
        // Guards against a pass in vain: this is what 16 tapes take.
        assert!(plain > 40 * MIB, "{plain}");
        let store_all = step(&layers, &x, Rule::StoreAll);
        assert!(store_all < plain + plain / 50, "a region that keeps everything: {store_all} of {plain}");
        let every_one = step(&layers, &x, Rule::EVERY_ONE);
        assert!(every_one < plain / 5, "every stage: {every_one} of {plain}");
        let square_root = step(&layers, &x, Rule::SquareRoot);
        assert!(square_root > every_one && square_root < plain / 2, "sqrt: {square_root} of {plain}");
    });
}

/// Of an addition of Burn's, a balanced tape keeps both inputs until the backward begins, to add them up again.
#[test]
fn a_balanced_tape_keeps_a_sum_and_not_what_it_is_of() {
    alone(|| {
        let device = Device::flex().autodiff().gradient_checkpointing();
        let [first, second, x] = [(); 3].map(|()| Tensor::<2>::ones([512, 512], &device).require_grad());
        let kept = |sum: fn(Tensor<2>, Tensor<2>) -> Tensor<2>| {
            sweep();
            let before = live();
            let around = linear(x.clone(), second.clone(), None);
            let y = linear(sum(around, linear(x.clone(), first.clone(), None)), second.clone(), None);
            let kept = live() - before;
            y.sum().backward();
            kept / MIB
        };
        kept(add);
        assert_eq!((kept(add), kept(|x, y| x + y)), (2, 3));
    });
}

#[test]
fn checkpoints_one_by_one_save_as_much_as_a_region() {
    alone(|| {
        let (layers, x) = model(16);
        let region = step(&layers, &x, Rule::EVERY_ONE);
        let one_by_one = peak_of(|| {
            let forward = |x, layer: &Wide| checkpoint(layer, x, wide).unwrap();
            layers.iter().fold(x.clone(), forward).mean().backward()
        });
        assert!(one_by_one < region + region / 5, "{one_by_one} against {region}");
    });
}

#[test]
fn full_recompute_takes_the_same_whatever_the_length() {
    alone(|| {
        let peak = |length: usize| {
            let device = Device::flex().autodiff();
            // One boundary is 1 MiB.
            let x = Tensor::<1>::ones([1 << 18], &device).require_grad();
            let stages = vec![NoModule; length];
            peak_of(|| {
                let region = Region::new().stages("sine", &stages, |_: &NoModule, x: Tensor<1>| x.sin());
                region.rule(Rule::Full).forward(x.clone()).unwrap().sum().backward()
            })
        };
        let (short, long) = (peak(5), peak(60));
        assert!(short > 3 * MIB, "{short}");
        assert!(long < short + 2 * MIB, "60 stages take {long}, 5 take {short}");
    });
}

#[test]
fn evaluation_takes_what_a_plain_call_does() {
    alone(|| {
        let (layers, x) = model(16);
        let (layers, x) = (layers.valid(), x.without_autodiff());
        let plain = peak_of(|| layers.iter().fold(x.clone(), |x, layer| wide(layer, x)));
        for rule in [Rule::StoreAll, Rule::EVERY_ONE, Rule::Full] {
            let region = peak_of(|| run(&layers, &x, rule));
            // The region itself is a list of 16 clones of layers.
            assert!(region < plain + (64 << 10), "{rule}: {region} against {plain}");
        }
    });
}

#[test]
fn forward_passes_without_a_backward_leave_nothing() {
    alone(|| {
        let (layers, x) = model(4);
        for rule in [Rule::EVERY_ONE, Rule::Full, Rule::StoreAll] {
            let _ = run(&layers, &x, rule).mean().backward();
            sweep();
            let before = live();
            for _ in 0..20 {
                let _ = run(&layers, &x, rule);
            }
            // One later step reclaims them, also those that hold tapes.
            let _ = run(&layers, &x, rule).mean().backward();
            sweep();
            let left = live().saturating_sub(before);
            assert!(left < MIB / 4, "{rule}: {left} bytes are left");
        }
    });
}

/// Burn would keep a node for every operation until the next backward.
#[test]
fn metadata_of_untracked_operations_is_swept() {
    alone(|| {
        let device = Device::flex().autodiff();
        let x = Tensor::<1>::ones([1], &device);
        let stages = vec![NoModule; 500];
        let run = |x: Tensor<1>| {
            let many = |_: &NoModule, x: Tensor<1>| (0..40).fold(x, |x, _| x.sin());
            let region = Region::new().stages("many", &stages, many);
            region.rule(Rule::Full).forward(x).unwrap()
        };
        // How much that is: 20,000 operations without a region.
        sweep();
        let before = live();
        let unswept = (0..20_000).fold(x.clone(), |x, _| x.sin());
        let metadata = live() - before;
        assert!(metadata > 6 * MIB, "{metadata}");
        drop(unswept);
        sweep();

        let before = live();
        let untracked = run(x.clone());
        let left = live() - before;
        assert!(left < metadata / 4, "nothing to train: {left} of {metadata}");
        drop(untracked);
        let before = live();
        // The plan and the stages themselves are kept, too: 125,000 actions of 40 bytes at the most.
        let tracked = run(x.require_grad());
        let left = (live() - before).saturating_sub(125_000 * 40);
        assert!(left < metadata / 4, "to train: {left} of {metadata}");
        drop(tracked);
    });
}

#[test]
fn a_dropped_model_takes_its_abandoned_regions_with_it() {
    alone(|| {
        let abandon = |times: usize| {
            for _ in 0..times {
                let (layers, x) = model(4);
                let _ = run(&layers, &x, Rule::StoreAll);
                drop(layers);
                sweep();
            }
            sweep();
            live()
        };
        let (few, many) = (abandon(3), abandon(20));
        // A tape is 3 MiB, the weights of a model are 130 KiB.
        let left = many.saturating_sub(few);
        assert!(left < MIB, "{left} bytes are left of 17 models");
    });
}

#[test]
fn a_dropped_model_that_never_went_back_takes_its_regions_with_it() {
    alone(|| {
        let abandon = |times: usize, rule: Rule| {
            for _ in 0..times {
                let (layers, x) = model(4);
                // Parameters that are new leaves, as those that an optimizer made a step with.
                let layers: Vec<Wide> = layers.into_iter().map(|layer| layer.valid().train()).collect();
                let _ = run(&layers, &x.require_grad(), rule);
                drop(layers);
                sweep();
            }
            sweep();
            live()
        };
        for rule in [Rule::StoreAll, Rule::EVERY_ONE] {
            // Those that were the last may still be there.
            let (few, many) = (abandon(20, rule), abandon(40, rule));
            // The weights of a model are 130 KiB.
            let left = many.saturating_sub(few);
            assert!(left < MIB / 4, "{left} bytes are left of 20 models under {rule}");
        }
    });
}

/// Boundaries of 1 MiB, and little else.
struct Sines(Vec<NoModule>);

impl Staged for Sines {
    type Batch = Tensor<1>;
    type Input = Tensor<1>;
    type Output = Tensor<1>;

    fn stages(&self, x: &Tensor<1>) -> (Region<Tensor<1>, Tensor<1>>, Tensor<1>) {
        (Region::new().stages("sine", &self.0, |_: &NoModule, x: Tensor<1>| x.sin()), x.clone())
    }
}

/// Measured against what was there before its first step, because what a pool keeps from one step to the next is there before all
/// others.
fn holds_its_budget(places: impl Fn() -> Places, moves: &str) {
    let device = Device::flex().autodiff();
    let model = Sines(vec![NoModule; 24]);
    let x = Tensor::<1>::ones([1 << 18], &device).require_grad();
    let planned = Planner::new(Budget::smallest()).places(places()).plan(&model, &x).unwrap();
    let count = planned.plan().actions.iter().filter(|action| action.to_string().starts_with(moves)).count();
    assert!(count > 3, "{:?}", planned.plan().actions);
    let budget = planned.budget_bytes().unwrap().get();
    // Places that nothing was put in yet.
    let planned = planned.with_places(places());
    let step = || drop(planned.forward(&model, &x).unwrap().sum().backward());
    sweep();
    let before = live();
    step();
    sweep();
    let left = live().saturating_sub(before);
    assert!(left < MIB / 4, "{moves}: {left} bytes are kept from one step to the next");
    memory::reset_peak();
    step();
    let peak = memory::peak().unwrap().get() - before;
    assert!(peak > MIB && peak <= budget, "{moves}: a step takes {peak} of {budget}");
    drop(planned);
    sweep();
}

#[test]
fn plans_with_codecs_keep_their_budget_with_all_that_the_codecs_keep() {
    alone(|| {
        holds_its_budget(|| Places::new().codec("int8").unwrap(), "compress ");
        holds_its_budget(|| Places::new().codec("bf16").unwrap(), "compress ");
    });
}

#[cfg(unix)]
#[test]
fn plans_with_a_disk_keep_their_budget_with_all_that_is_read() {
    alone(|| {
        let folder = std::env::temp_dir().join(format!("rekindle-memory-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        holds_its_budget(|| Places::new().disk(&folder, Bytes::mebibytes(64)).unwrap(), "offload ");
        std::fs::remove_dir_all(&folder).unwrap();
    });
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn what_the_allocator_keeps_of_freed_memory_is_told() {
    alone(|| {
        assert!(memory::keep_freed());
        let before = memory::kept().unwrap().get();
        let blocks: Vec<Vec<u8>> = (0..48).map(|_| vec![1; MIB as usize]).collect();
        let meanwhile = memory::kept().unwrap().get();
        assert!(meanwhile < before + 8 * MIB, "what is in use is not kept: {meanwhile} after {before}");
        drop(blocks);
        let kept = memory::kept().unwrap().get();
        // Of those the blocks may have been, if other tests had freed enough before.
        assert!(kept > meanwhile + 40 * MIB, "{kept} after {meanwhile}");
        // A block this large goes back to the system at once.
        drop(vec![1u8; 64 * MIB as usize]);
        let after = memory::kept().unwrap().get();
        assert!(after < kept + 8 * MIB, "{after} after {kept}");
    });
}

/// Rows of features, a head's weights, and targets.
fn head(
    rows: usize,
    features: usize,
    classes: usize,
    device: &Device,
) -> (Tensor<2>, Tensor<2>, Tensor<1, Int>) {
    let normal = Distribution::Normal(0.0, 0.5);
    let targets =
        Tensor::<1, Int>::arange(0..rows as i64, device).mul_scalar(97).remainder_scalar(classes as i64);
    (
        Tensor::random([rows, features], normal, device),
        Tensor::random([features, classes], normal, device),
        targets,
    )
}

/// It made all logits at once there.
#[test]
fn a_loss_without_autodiff_takes_the_memory_of_a_chunk() {
    alone(|| {
        let (rows, classes) = (1024, 2048);
        let device = Device::flex();
        let (x, weight, targets) = head(rows, 16, classes, &device);
        let loss = |chunk: usize| {
            let loss = LinearCrossEntropy::new().ignore(97).smoothing(0.1).chunk(chunk);
            loss.forward(x.clone(), weight.clone(), None, targets.clone()).unwrap()
        };
        let value = |chunk| loss(chunk).into_scalar::<f32>();
        let expected = value(rows);
        let logits = (rows * classes * 4) as u64;
        let whole = peak_of(|| loss(rows));
        assert!(whole >= logits, "{whole}");
        // The last is smaller than the others.
        for chunk in [64, 100] {
            assert!((value(chunk) - expected).abs() < 1e-4 * expected.abs(), "{} {expected}", value(chunk));
            let peak = peak_of(|| loss(chunk));
            assert!(peak < whole / 6, "{peak} of {whole} in chunks of {chunk}");
        }
        let none = LinearCrossEntropy::new().forward(
            Tensor::zeros([0, 16], &device),
            weight.clone(),
            None,
            Tensor::zeros([0], &device),
        );
        assert_eq!(none.unwrap().into_scalar::<f32>(), 0.0);
    });
}

#[test]
fn the_loss_of_a_large_vocabulary_takes_a_tenth_of_the_plain_one() {
    alone(|| {
        let device = Device::flex().autodiff();
        let (x, weight, targets) = head(512, 128, 50_257, &device);
        let (x, weight) = (x.require_grad(), weight.require_grad());
        let ours = peak_of(|| {
            let loss = LinearCrossEntropy::new().forward(x.clone(), weight.clone(), None, targets.clone());
            loss.unwrap().backward()
        });
        let plain = peak_of(|| {
            let logs = log_softmax(x.clone().matmul(weight.clone()), 1);
            logs.gather(1, targets.clone().reshape([512, 1])).mean().neg().backward()
        });
        // Guards against a pass in vain: the logits alone.
        assert!(plain > 512 * 50_257 * 4, "{plain}");
        assert!(ours * 10 < plain, "{ours} of {plain}");
    });
}

/// What a convolution reads behind a batch norm and a rectifier is computed again: only their input is kept.
#[test]
fn a_balanced_tape_keeps_no_output_of_a_batch_norm() {
    alone(|| {
        let kept = |device: Device| {
            let norm = BatchNormConfig::new(16).init(&device);
            let weight = Tensor::<4>::ones([1, 16, 1, 1], &device).require_grad();
            let x = Tensor::<4>::ones([8, 16, 32, 32], &device).require_grad();
            let options = || ConvOptions::new([1, 1], [0, 0], [1, 1], 1);
            let run = || conv2d(batch_norm_relu(x.clone(), &norm), weight.clone(), None, options());
            let _ = run().mean().backward();
            sweep();
            let before = live();
            let loss = run().mean();
            let kept = live() - before;
            let _ = loss.backward();
            kept
        };
        let tensor = 8 * 16 * 32 * 32 * 4;
        let [plain, balanced] =
            [Device::flex().autodiff(), Device::flex().autodiff().gradient_checkpointing()].map(kept);
        assert!((tensor..tensor + tensor / 8).contains(&plain), "{plain}");
        assert!(balanced < tensor / 8, "{balanced}");
    });
}
