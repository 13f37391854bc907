//! Boundaries of which each rank keeps a part.

use std::sync::Arc;

use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use rekindle::{Budget, Measuring, Places, Planned, Planner, Region, Rule, Staged, Under, memory};
use rekindle_dist::{Collective, Layout, Mpi, Partitioned, agree_on_plan, share_plan};
use rekindle_plan::{Action, Boundary, Bytes, Codec, Plan, Profile, Status};
use rekindle_run::{PackedTensor, Parcel, Store};

use super::model::{Block, WIDTH, blocks, examples, region};

const STAGES: usize = 12;
/// Examples whose boundaries are large beside all else; an odd number, so that parts are not all of one length.
const ROWS: usize = 20_001;

struct Net(Vec<Block>);

impl Staged for Net {
    type Batch = Tensor<2>;
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn stages(&self, x: &Tensor<2>) -> (Region<Tensor<2>, Tensor<2>>, Tensor<2>) {
        (region(&self.0, 5), x.clone())
    }
}

/// The gradients of a step, and the most it takes.
fn step(net: &Net, batch: &Tensor<2>, under: Under<'_>) -> (Vec<f32>, u64) {
    rekindle::sweep();
    let before = memory::live().unwrap();
    memory::reset_peak();
    let (region, input) = net.stages(batch);
    let loss = region.under(under).forward(input).unwrap().powf_scalar(2.0).mean();
    let gradients = GradientsParams::from_grads(rekindle::backward(&loss).unwrap(), &net.0);
    let peak = memory::peak().unwrap().saturating_sub(before);
    (Layout::new(&net.0).unwrap().gradients(&net.0, &gradients).unwrap(), peak.get())
}

/// All ranks as a group that a store can hold on to.
fn group(world: &Mpi) -> Arc<dyn Collective> {
    Arc::from(world.split(0, world.rank()).unwrap())
}

/// Every boundary in parts, but for the last stage's input, which is needed at once.
fn all_partitioned() -> Vec<Action> {
    let mut text = Vec::new();
    for stage in 1..STAGES {
        let x = stage - 1;
        text.extend([
            format!("keep x{x}"),
            format!("forward {stage}"),
            format!("compress x{x} partition"),
            format!("drop x{x}"),
        ]);
    }
    text.extend([format!("tape {STAGES}"), format!("backward {STAGES}")]);
    for stage in (1..STAGES).rev() {
        let x = stage - 1;
        text.extend([format!("fetch x{x} partition"), format!("drop x{x} partition")]);
        text.extend([format!("tape {stage}"), format!("backward {stage}")]);
    }
    text.iter().map(|line| line.parse().unwrap()).collect()
}

pub(crate) fn saves_memory(world: &Mpi) {
    let (net, batch) = (Net(blocks(STAGES)), examples(ROWS, 3));
    let size = world.size();
    let places = Partitioned::place(Places::new(), group(world));
    step(&net, &batch, Rule::EVERY_ONE.into());
    let (expected, whole) = step(&net, &batch, Rule::EVERY_ONE.into());
    let found = rekindle::measure(
        &net,
        &batch,
        Measuring { runs: 1, options: false, ..Measuring::default() },
        &mut |_, _| {},
    )
    .unwrap();
    let codec = Codec {
        name: "partition".parse().unwrap(),
        bytes_per_kibibyte: u32::try_from(1024_usize.div_ceil(size)).unwrap(),
        compress_bytes_per_second: 1 << 30,
        restore_bytes_per_second: 1 << 30,
    };
    let profile = found.into_profile("net", "flex").unwrap().with_places(vec![], vec![codec]).unwrap();
    let status = Status::Rule("partition".parse().unwrap());
    let plan = Plan::judged(&profile, "by hand".into(), status, None, all_partitioned()).unwrap();
    let (region, input) = net.stages(&batch);
    let planned = Planned::new(region.describe(&input), profile, plan, 0.0).unwrap().with_places(places);
    assert!(planned.lossy_codecs().is_empty(), "what is put together again is what it was");
    let (gradients, parted) = step(&net, &batch, (&planned).into());
    assert!(gradients == expected, "bit for bit");
    // Of eleven boundaries each rank has a part; one is put together, from copies, while its stage is recomputed.
    let boundary = (ROWS * WIDTH * 4) as f64;
    let saved = (whole as f64 - parted as f64) / boundary;
    let least = (STAGES - 2) as f64 * (1.0 - 1.0 / size as f64) - 3.0;
    assert!(saved >= least, "{saved:.2} boundaries less, at least {least:.2} expected");
}

pub(crate) fn planned(world: &Mpi) {
    let (net, batch) = (Net(blocks(STAGES)), examples(501, 3));
    let places = Partitioned::place(Places::new(), group(world));
    let (expected, _) = step(&net, &batch, Rule::StoreAll.into());
    // Each rank measures for itself, places at the same time, and then all take the first one's plan.
    let own = Planner::new(Budget::smallest()).places(places.clone()).plan(&net, &batch).unwrap();
    let planned = share_plan(world, &own, places).unwrap();
    agree_on_plan(world, planned.plan()).unwrap();
    let uses =
        |action: &Action| matches!(action, Action::Compress { codec, .. } if codec.as_str() == "partition");
    assert!(planned.plan().actions.iter().any(uses), "the smallest budget cannot do without");
    assert!(step(&net, &batch, (&planned).into()).0 == expected, "bit for bit");
}

/// What is put together again is on its way while the stage behind it goes back, and the budget holds.
pub(crate) fn ahead(world: &Mpi) {
    let (net, batch) = (Net(blocks(STAGES)), examples(4_001, 3));
    let places = Partitioned::place(Places::new(), group(world));
    step(&net, &batch, Rule::EVERY_ONE.into());
    let (expected, _) = step(&net, &batch, Rule::EVERY_ONE.into());
    let found = rekindle::measure(
        &net,
        &batch,
        Measuring { runs: 1, options: false, ..Measuring::default() },
        &mut |_, _| {},
    )
    .unwrap();
    let noise = found.noise();
    let own = found.into_profile("net", "flex").unwrap().to_json();
    let first = world.broadcast(0, own.into_bytes()).unwrap();
    let profile = Profile::from_json(&String::from_utf8(first).unwrap()).unwrap();
    let plan = |budget: Budget| {
        let planner = Planner::new(budget).profile(profile.clone(), noise).places(places.clone());
        share_plan(world, &planner.plan(&net, &batch).unwrap(), places.clone()).unwrap()
    };
    let smallest = plan(Budget::smallest()).budget_bytes().unwrap().get();
    let mut early = 0;
    for percent in [120, 160] {
        let budget = Bytes::new(smallest * percent / 100);
        let planned = plan(Budget::bytes(budget));
        let actions = &planned.plan().actions;
        early += actions
            .windows(2)
            .filter(|two| {
                matches!(&two[0], Action::Fetch { place, .. } if place.as_str() == Partitioned::NAME)
                    && matches!(two[1], Action::Backward { .. })
            })
            .count();
        let (gradients, peak) = step(&net, &batch, (&planned).into());
        assert!(gradients == expected, "{percent}%: bit for bit");
        assert!(peak <= budget.get(), "{percent}%: {peak} of {budget}");
    }
    assert!(early > 0, "a boundary is fetched before the backward before the one it is for");
}

pub(crate) fn to_the_byte(world: &Mpi) {
    let (rank, size) = (world.rank(), world.size());
    let x = Boundary::new(1);
    for length in [0_usize, 1, 3, 64, 1_000_003] {
        let bytes: Vec<u8> = (0..length).map(|index| index as u8).collect();
        let tensor = PackedTensor { dtype: "u8".into(), shape: vec![length], bytes: bytes.into() };
        let parcel = Parcel { tensors: vec![tensor.clone(), tensor], structure: vec![1, 2] };
        let mut store = Partitioned::new(group(world)).checked();
        store.put(x, parcel.clone()).unwrap();
        let part = length.div_ceil(size);
        let own = length.saturating_sub(rank * part).min(part);
        assert_eq!(store.held_bytes(), Bytes::new(2 * own as u64));
        store.prefetch(x).unwrap();
        assert!(store.take(x).unwrap() == parcel);
        assert!(store.take(x).unwrap() == parcel);
    }
    // What is not the same everywhere is refused everywhere.
    let tensor = PackedTensor { dtype: "u8".into(), shape: vec![1], bytes: vec![rank as u8].into() };
    let parcel = Parcel { tensors: vec![tensor], structure: vec![] };
    let error = Partitioned::new(group(world)).checked().put(x, parcel).unwrap_err();
    assert!(error.to_string().contains("x1 is not the same on rank"), "{error}");
}
