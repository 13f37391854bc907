//! Modules that say by attributes what their stages are and what is kept of them.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use rekindle::{Error, Measuring, Places, Planner, Policy, Region, Staged, Stages};

use crate::common::*;

/// A block that is called otherwise, and may fail.
#[derive(Module, Debug)]
struct Up {
    block: Block,
}

impl Up {
    fn run(&self, x: Tensor<2>) -> Result<Tensor<2>, Error> {
        Ok(self.block.forward(x) * 0.5)
    }
}

#[derive(Module, Debug, Stages)]
#[stages(Tensor<2> => Tensor<2>)]
struct Net {
    #[stage]
    stem: Linear,
    #[stage(name = "block", keep)]
    blocks: Vec<Block>,
    #[stage(run = Up::run, recompute)]
    ups: [Up; 2],
    /// Not a stage: nobody said so.
    spare: Linear,
    #[stage(pin)]
    head: Linear,
}

#[derive(Module, Debug, Stages)]
#[stages(Tensor<2> => Tensor<2>, policy = "keep-all")]
struct Placed {
    #[stage(offload = "host", tape = "balanced")]
    first: Block,
    #[stage(compress = "bf16")]
    second: Block,
}

fn net(device: &Device) -> Net {
    device.seed(3);
    let linear = || LinearConfig::new(8, 8).init(device);
    let net = Net {
        stem: linear(),
        blocks: blocks(3, device),
        ups: [0, 1].map(|_| Up { block: Block::new(8, device) }),
        spare: linear(),
        head: linear(),
    };
    settle(&net);
    net
}

#[test]
fn fields_are_stages_in_their_order() {
    let _alone = alone();
    let device = device();
    let net = net(&device);
    let names: Vec<String> = {
        let measuring = Measuring { runs: 1, options: false, ..Measuring::default() };
        let found = net.region().measure(random([4, 8], &device).require_grad(), measuring, &mut |_, _| {});
        found.unwrap().stages.into_iter().map(|stage| stage.name).collect()
    };
    assert_eq!(names, ["stem", "block.0", "block.1", "block.2", "ups.0", "ups.1", "head"]);
    let x = random([4, 8], &device);
    let by_function = Region::new()
        .stage("stem", &net.stem, Linear::forward)
        .stages("block", &net.blocks, Block::forward)
        .stages("ups", &net.ups, Up::run)
        .stage("head", &net.head, Linear::forward);
    let (region, input) = net.stages(&x);
    let run = |region: Region<Tensor<2>, Tensor<2>>| {
        rekindle::seed(1);
        bytes(&region.forward(input.clone()).unwrap())
    };
    assert!(run(region) == run(by_function));
}

#[test]
fn attributes_are_a_policy() {
    assert_eq!(Net::policy().to_string(), "recompute-all, keep block.*, recompute ups.*, pin head");
    let by_function = Policy::recompute_all().keep("block.*").recompute("ups.*").pin("head");
    assert_eq!(Net::policy(), by_function);
    let placed = "keep-all, offload first host, tape first balanced, compress second bf16";
    assert_eq!(Placed::policy().to_string(), placed);
}

#[test]
fn a_policy_of_attributes_runs_and_gives_the_gradients_of_plain_training() {
    let _alone = alone();
    let device = device();
    let net = net(&device);
    let x = random([16, 8], &device);
    let planned = Planner::new(rekindle::Budget::smallest()).places(Places::new());
    let planned = planned.plan_policy(&Net::policy(), &net, &x).unwrap();
    let actions: Vec<String> = planned.plan().actions.iter().map(ToString::to_string).collect();
    assert!(actions.contains(&"tape 7".to_owned()) && actions.contains(&"keep x2".to_owned()), "{actions:?}");
    let step = |region: Region<Tensor<2>, Tensor<2>>| {
        rekindle::seed(2);
        let loss = region.forward(x.clone()).unwrap().powi_scalar(2).sum();
        gradients(&net, rekindle::backward(&loss).unwrap())
    };
    let plain = rekindle::without_checkpointing(|| step(net.region()));
    assert!(step(net.region().under(&planned)) == plain);
}
