//! Models whose layers each rank has a part of.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Int, Tensor};
use rekindle::activation::{gelu, swiglu};
use rekindle::nn::{LinearCrossEntropy, Rotary, embedding, layer_norm, linear, rms_norm};
use rekindle::peers::{Peers, given};
use rekindle::{Attention, Budget, Bytes, Measuring, Places, Planned, Planner, Rule, Staged, Under, memory};
use rekindle_dist::{Alone, Collective, Layout, Mpi, Partitioned, Reduction, TensorParallel, agree_on_plan};
use rekindle_models::{Gpt, GptBatch, GptConfig, Share, Shares, Trainable};
use rekindle_plan::Profile;

use super::model::{close, device};

const WORDS: usize = 19;
const HEADS: usize = 4;
const LAYERS: usize = 3;

fn group(world: &Mpi) -> Arc<dyn Collective> {
    Arc::from(world.split(0, world.rank()).unwrap())
}

fn peers(world: &Mpi) -> Arc<dyn Peers> {
    TensorParallel::new(group(world)).peers()
}

/// GPT-2's shape, and Llama's: the other half of everything there is.
fn shapes(dropout: f64) -> [GptConfig; 2] {
    let gpt = GptConfig::new(WORDS, 32, HEADS, LAYERS, 12).with_dropout(dropout);
    let llama = GptConfig::llama(WORDS, 32, HEADS, LAYERS, 12).with_hidden(Some(88)).with_dropout(dropout);
    [gpt, llama]
}

/// The same on every rank.
fn whole(config: &GptConfig) -> Gpt {
    let device = device();
    device.seed(5);
    let model = config.init(&device).unwrap();
    // Burn draws weights when they are looked at first.
    let _ = Layout::new(&model).unwrap().weights(&model).unwrap();
    model
}

fn batch(sequences: usize, length: usize, step: usize) -> GptBatch {
    let text = (0..sequences * length + 1).map(|at| ((at * 7 + step * 5) % WORDS) as i64);
    let text: Vec<i64> = text.collect();
    let of = |from: usize| {
        let tokens = Tensor::<1, Int>::from_data(&text[from..from + sequences * length], &device());
        tokens.reshape([sequences, length])
    };
    GptBatch { tokens: of(0), targets: of(1) }
}

/// The parameters of a model, in the order of its fields.
#[derive(Default)]
struct Parameters {
    vectors: Vec<Tensor<1>>,
    matrices: Vec<Tensor<2>>,
}

impl ModuleVisitor for Parameters {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        let shape = value.dims();
        match D {
            1 => self.vectors.push(value.reshape([shape[0]])),
            _ => self.matrices.push(value.reshape([shape[0], shape[1]])),
        }
    }
}

/// The loss on one process that has all weights: what ranks would make of their parts, one part after the other, and the sums of
/// them in the order of ranks. Nothing here is of the model's own code.
fn grouped_loss(model: &Gpt, config: &GptConfig, batch: &GptBatch, parts: usize) -> Tensor<1> {
    let alone: Arc<dyn Peers> = TensorParallel::new(Arc::new(Alone)).peers();
    let mut all = Parameters::default();
    model.visit(&mut all);
    let (mut vectors, mut matrices) = (all.vectors.into_iter(), all.matrices.into_iter());
    let llama = !config.bias;
    let mut matrix = || matrices.next().unwrap();
    let mut vector = || vectors.next().unwrap();
    let columns = |weight: &Tensor<2>, part: usize| {
        let count = weight.dims()[1] / parts;
        weight.clone().slice_dim(1, part * count..(part + 1) * count).mul_scalar(1.0)
    };
    let rows = |weight: &Tensor<2>, part: usize| {
        let count = weight.dims()[0] / parts;
        weight.clone().slice_dim(0, part * count..(part + 1) * count).mul_scalar(1.0)
    };
    let some = |bias: &Tensor<1>, part: usize| {
        let count = bias.dims()[0] / parts;
        bias.clone().slice_dim(0, part * count..(part + 1) * count).mul_scalar(1.0)
    };
    // What each part makes, added up from the first to the last. Each part reads through all parts behind it, so that the gradients
    // are added up two at a time, and from the first to the last as well, whatever order Burn goes back in.
    let each = |x: &Tensor<3>, make: &dyn Fn(usize, Tensor<3>) -> Tensor<3>| {
        let mut read = x.clone();
        let made = (0..parts).rev().map(|part| {
            read = given(read.clone(), &alone);
            make(part, given(read.clone(), &alone))
        });
        let mut made: Vec<Tensor<3>> = made.collect();
        let first = made.pop().unwrap();
        made.into_iter().rev().fold(first, |sum, part| sum + part)
    };
    let norm = |x: Tensor<3>, gamma: Tensor<1>, beta: Option<Tensor<1>>| match beta {
        Some(beta) => layer_norm(x, gamma, Some(beta), config.epsilon),
        None => rms_norm(x, gamma, config.epsilon),
    };
    let [sequences, length] = batch.tokens.dims();
    let depth = config.width / config.heads;
    let mut x = embedding(matrix(), batch.tokens.clone()).unwrap();
    if !llama {
        let places = Tensor::<1, Int>::arange(0..length as i64, &device()).reshape([1, length]);
        x = x + burn::tensor::module::embedding(matrix(), places);
    }
    for _ in 0..config.layers {
        let (gamma, beta) = (vector(), (!llama).then(&mut vector));
        let layers: [_; 4] = std::array::from_fn(|_| (matrix(), (!llama).then(&mut vector)));
        let [query, key, value, output] = layers;
        let normed = norm(x.clone(), gamma, beta);
        let attended = each(&normed, &|part, x| {
            let of = |(weight, bias): &(Tensor<2>, Option<Tensor<1>>), rotate: bool| {
                let bias = bias.as_ref().map(|bias| some(bias, part));
                let mut made = linear(x.clone(), columns(weight, part), bias);
                if rotate && llama {
                    made = Rotary::new(depth, length, 10_000.0).forward(made).unwrap();
                }
                made.reshape([sequences, length, config.heads / parts, depth]).swap_dims(1, 2)
            };
            let made = Attention::new().causal().forward(of(&query, true), of(&key, true), of(&value, false));
            let made = made.unwrap().swap_dims(1, 2).reshape([sequences, length, config.width / parts]);
            let bias = if part == 0 { output.1.clone() } else { None };
            linear(made, rows(&output.0, part), bias)
        });
        x = x + attended;
        let (gamma, beta) = (vector(), (!llama).then(&mut vector));
        let up = (matrix(), (!llama).then(&mut vector));
        let gate = llama.then(&mut matrix);
        let down = (matrix(), (!llama).then(&mut vector));
        let normed = norm(x.clone(), gamma, beta);
        let made = each(&normed, &|part, x| {
            let gate = gate.as_ref().map(|gate| linear(x.clone(), columns(gate, part), None));
            let hidden = linear(x, columns(&up.0, part), up.1.as_ref().map(|bias| some(bias, part)));
            let hidden = match gate {
                Some(gate) => swiglu(gate, hidden),
                None => gelu(hidden),
            };
            linear(hidden, rows(&down.0, part), if part == 0 { down.1.clone() } else { None })
        });
        x = x + made;
    }
    let (gamma, beta) = (vector(), (!llama).then(&mut vector));
    let x = norm(x, gamma, beta).reshape([sequences * length, config.width]);
    let targets = batch.targets.clone().reshape([sequences * length]);
    LinearCrossEntropy::new().forward(x, matrix(), (!llama).then(&mut vector), targets).unwrap()
}

/// Every parameter's values, and its shape.
fn values(model: &impl Module) -> HashMap<ParamId, (Vec<usize>, Vec<f32>)> {
    struct Collect(HashMap<ParamId, (Vec<usize>, Vec<f32>)>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            let found = (value.dims().to_vec(), value.into_data().iter::<f32>().collect());
            self.0.insert(param.id, found);
        }
    }
    let mut collect = Collect(HashMap::new());
    model.visit(&mut collect);
    collect.0
}

/// The bits of this rank's part of a whole model.
fn part_of(whole: &Gpt, shares: &Shares, world: &Mpi) -> HashMap<ParamId, Vec<u32>> {
    let (rank, size) = (world.rank(), world.size());
    let all = values(whole).into_iter().map(|(id, (shape, values))| {
        let share = shares.of(id);
        let own: Vec<u32> = match share {
            None => values.iter().map(|value| value.to_bits()).collect(),
            Some(share) => share
                .ranges(&shape, rank, size)
                .into_iter()
                .flatten()
                .map(|at| values[at].to_bits())
                .collect(),
        };
        (id, own, share)
    });
    let here = all.filter(|(_, _, share)| *share != Some(Share::First) || rank == 0);
    here.map(|(id, own, _)| (id, own)).collect()
}

fn bits_of(model: &Gpt) -> HashMap<ParamId, Vec<u32>> {
    let bits = |values: Vec<f32>| values.iter().map(|value| value.to_bits()).collect();
    values(model).into_iter().map(|(id, (_, values))| (id, bits(values))).collect()
}

pub(crate) fn one_process(world: &Mpi) {
    trained(world, Reduction::Ordered);
}

pub(crate) fn trained_natively(world: &Mpi) {
    trained(world, Reduction::Native);
}

fn trained(world: &Mpi, how: Reduction) {
    let peers = TensorParallel::new(group(world)).reduction(how).peers();
    for config in shapes(0.0) {
        let mut reference = whole(&config);
        let shares = reference.shares();
        let mut model = reference.clone().split(&peers).unwrap();
        let held = |model: &Gpt| Layout::new(model).unwrap().len();
        let blocks_weights = shares_length(&reference, &shares);
        let expected = held(&reference) - blocks_weights + blocks_weights / world.size();
        assert!(
            held(&model).abs_diff(expected) <= 2 * LAYERS * config.width,
            "the n-th part of what is shared"
        );
        let (mut own, mut other) = (AdamConfig::new().init(), AdamConfig::new().init());
        for step in 0..10 {
            let batch = batch(2, 11, step);
            rekindle::seed(step as u64);
            let rule: Rule = ["store-all", "every-1", "full"][step % 3].parse().unwrap();
            let loss = model.loss(&batch, rule).unwrap();
            let gradients = GradientsParams::from_grads(rekindle::backward(&loss).unwrap(), &model);
            let grouped = grouped_loss(&reference, &config, &batch, world.size());
            let found = (loss.into_scalar::<f32>(), grouped.clone().into_scalar::<f32>());
            match how {
                Reduction::Ordered => {
                    assert_eq!(found.0.to_bits(), found.1.to_bits(), "the loss of step {step}: {found:?}");
                }
                Reduction::Native => close(&[found.0], &[found.1], &format!("the loss of step {step}")),
            }
            model = own.step(1e-2, model, gradients);
            let gradients = GradientsParams::from_grads(grouped.backward(), &reference);
            reference = other.step(1e-2, reference, gradients);
            let (found, expected) = (bits_of(&model), part_of(&reference, &shares, world));
            assert_eq!(found.len(), expected.len());
            for (id, found) in found {
                let (expected, what) =
                    (&expected[&id], format!("step {step}: a parameter of {} values", found.len()));
                let values = |bits: &[u32]| bits.iter().copied().map(f32::from_bits).collect::<Vec<_>>();
                match how {
                    Reduction::Ordered => assert!(*expected == found, "{what}"),
                    Reduction::Native => close(&values(&found), &values(expected), &what),
                }
            }
        }
    }
}

/// How many values are shared out.
fn shares_length(model: &Gpt, shares: &Shares) -> usize {
    let shared = values(model).into_iter().filter(|(id, _)| shares.of(*id).is_some());
    shared.map(|(_, (_, values))| values.len()).sum()
}

/// The gradients of a step, and the most it takes.
fn step(model: &Gpt, batch: &GptBatch, under: Under<'_>) -> (Vec<f32>, u64) {
    rekindle::sweep();
    let before = memory::live().unwrap();
    memory::reset_peak();
    rekindle::seed(3);
    let loss = model.loss(batch, under).unwrap();
    let gradients = GradientsParams::from_grads(rekindle::backward(&loss).unwrap(), model);
    let peak = memory::peak().unwrap().saturating_sub(before);
    (Layout::new(model).unwrap().gradients(model, &gradients).unwrap(), peak.get())
}

/// What was measured on all ranks at once, as the first of them did.
fn profile(world: &Mpi, model: &Gpt, batch: &GptBatch) -> (Profile, f64) {
    let found = rekindle::measure(model, batch, Measuring::default(), &mut |_, _| {}).unwrap();
    let noise = found.noise();
    let own = found.into_profile("gpt", "flex").unwrap().to_json();
    let first = world.broadcast(0, own.into_bytes()).unwrap();
    (Profile::from_json(&String::from_utf8(first).unwrap()).unwrap(), noise)
}

pub(crate) fn every_plan(world: &Mpi) {
    for config in shapes(0.2) {
        let model = whole(&config).split(&peers(world)).unwrap();
        let batch = batch(64, 12, 1);
        let (expected, _) = step(&model, &batch, Rule::StoreAll.into());
        // What all have, all have the same gradient of: dropped were the same elements.
        let replicated = replicated_gradients(&model, &expected);
        let bytes: Vec<u8> = replicated.iter().flat_map(|value| value.to_le_bytes()).collect();
        let all = world.all_gather(bytes.clone()).unwrap();
        assert!(all.iter().all(|other| *other == bytes), "replicated gradients are the same on all ranks");
        for rule in ["every-1", "every-2", "full"] {
            let rule: Rule = rule.parse().unwrap();
            assert!(step(&model, &batch, rule.into()).0 == expected, "{rule}: bit for bit");
        }
        let (profile, noise) = profile(world, &model, &batch);
        for partitioned in [false, true] {
            let places = match partitioned {
                true => Partitioned::place(Places::new(), group(world)),
                false => Places::new(),
            };
            let plan = |budget: Budget| {
                let planner = Planner::new(budget).profile(profile.clone(), noise).places(places.clone());
                let own = planner.plan(&model, &batch).unwrap();
                let planned = rekindle_dist::share_plan(world, &own, places.clone()).unwrap();
                agree_on_plan(world, planned.plan()).unwrap();
                planned
            };
            for budget in [Budget::smallest(), Budget::of_plain(0.6).unwrap()] {
                let planned: Planned = plan(budget);
                let (gradients, peak) = step(&model, &batch, (&planned).into());
                assert!(gradients == expected, "bit for bit");
                let budget = planned.budget_bytes().map(Bytes::get);
                assert!(budget.is_none_or(|budget| peak <= budget), "{peak} of {budget:?}");
            }
        }
    }
}

/// The gradients of what all ranks have.
fn replicated_gradients(model: &Gpt, gradients: &[f32]) -> Vec<f32> {
    let shares = model.shares();
    let mut start = 0;
    let mut found = Vec::new();
    for (id, length) in Layout::new(model).unwrap().parameters() {
        if shares.of(id).is_none() {
            found.extend(&gradients[start..start + length]);
        }
        start += length;
    }
    found
}

pub(crate) fn native(world: &Mpi) {
    let [config, _] = shapes(0.0);
    let reference = whole(&config);
    let native: Arc<dyn Peers> = TensorParallel::new(group(world)).reduction(Reduction::Native).peers();
    let model = reference.clone().split(&native).unwrap();
    let batch = batch(4, 12, 1);
    let [found, expected] = [&model, &reference].map(|model| {
        rekindle::seed(3);
        model.loss(&batch, Rule::EVERY_ONE).unwrap().into_scalar::<f32>()
    });
    // Both are sums of the same products, in other orders.
    assert!((found - expected).abs() < 1e-4 * expected, "{found}, whole {expected}");
}

/// Peers that are far away.
#[derive(Debug)]
struct Slow(Arc<dyn Peers>);

const SLOW: Duration = Duration::from_millis(25);

impl Peers for Slow {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn sum(&self, values: Vec<f32>) -> Result<Vec<f32>, String> {
        std::thread::sleep(SLOW);
        self.0.sum(values)
    }
}

pub(crate) fn cost(world: &Mpi) {
    let [config, _] = shapes(0.0);
    let slow: Arc<dyn Peers> = Arc::new(Slow(peers(world)));
    let model = whole(&config).split(&slow).unwrap();
    let (profile, _) = profile(world, &model, &batch(2, 12, 1));
    let sum = SLOW.as_nanos() as u64;
    for block in profile.stages().iter().filter(|stage| stage.name.starts_with("block")) {
        assert!(block.forward_ns.get() >= 2 * sum, "two sums forth: {}", block.forward_ns);
        assert!(block.backward_ns.get() >= 2 * sum, "two sums back: {}", block.backward_ns);
        // A block that is run again for its backward has no use for the last sum.
        assert!(block.unread_ns.get() >= sum / 2, "one of them is left out: {}", block.unread_ns);
    }
}

pub(crate) fn refused(world: &Mpi) {
    let split = |config: GptConfig| whole(&config).split(&peers(world)).unwrap_err().to_string();
    let odd = split(GptConfig::new(WORDS, 30, 3, 1, 8));
    assert!(
        odd.contains(&format!("3 heads cannot be shared out evenly among {} ranks", world.size())),
        "{odd}"
    );
    let keys = split(GptConfig::new(WORDS, 32, 4, 1, 8).with_key_heads(Some(1)));
    assert!(keys.contains("1 heads of keys and values"), "{keys}");
    let burns = split(GptConfig::new(WORDS, 32, 4, 1, 8).with_burn(true));
    assert!(burns.contains("no layers that ranks can have parts of"), "{burns}");
    // One that is split already.
    let model = whole(&GptConfig::new(WORDS, 32, 4, 1, 8)).split(&peers(world)).unwrap();
    assert!(model.split(&peers(world)).is_err());
    // Ranks whose plans differ would wait for each other for ever.
    let [config, _] = shapes(0.0);
    let model = whole(&config).split(&peers(world)).unwrap();
    let batch = batch(2, 12, 1);
    let (profile, noise) = profile(world, &model, &batch);
    let budget = if world.rank() == 0 { Budget::smallest() } else { Budget::of_plain(1.0).unwrap() };
    let planned = Planner::new(budget).profile(profile, noise).plan(&model, &batch).unwrap();
    let error = agree_on_plan(world, planned.plan()).unwrap_err().to_string();
    assert!(error.contains("the plan of rank"), "{error}");
    let (region, input) = model.stages(&batch);
    assert_eq!(region.describe(&input).stages.len(), LAYERS + 2);
}
