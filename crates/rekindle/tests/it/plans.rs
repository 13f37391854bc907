//! Plans beyond the rules: options, host memory, traces, listings.

use rekindle::{Bytes, Profile, Region, Rule, Schedule, TraceHandle, what_is_kept};
use rekindle_plan::{Action, Tier};

use crate::common::*;

fn judged(text: &str, stages: usize) -> Schedule {
    let tier = Tier {
        name: "host".parse().unwrap(),
        capacity_bytes: Bytes::MAX,
        write_bytes_per_second: 1,
        read_bytes_per_second: 1,
    };
    let names = (0..stages).map(|index| format!("block.{index}"));
    let profile = Profile::unmeasured(names, &["balanced".parse().unwrap()]).unwrap();
    let profile = profile.with_places(vec![tier], vec![]).unwrap();
    let actions: Vec<Action> = text.split('/').map(|line| line.trim().parse().unwrap()).collect();
    Schedule::judge(&profile, &actions).unwrap().0
}

#[test]
fn a_tape_option_for_each_stage() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(3, &device);
    let x = random([4, 8], &device);
    for text in [
        "tape 1 balanced/tape 2/tape 3 balanced/backward 3/backward 2/backward 1",
        "keep x0/forward 1/tape 2/tape 3 balanced/backward 3/backward 2/tape 1 balanced/drop x0/backward 1",
        "keep x0/forward 1/forward 2/tape 3/backward 3/forward 1/keep x1/tape 2 balanced/drop x1/backward 2/tape 1/drop x0/backward 1",
    ] {
        let schedule = judged(text, 3);
        same(text, || {
            let region = Region::new().stages("block", &blocks, block).schedule(schedule.clone());
            let y = region.forward(x.clone())?;
            Ok(gradients(&blocks, y.powf_scalar(2.0).mean().backward()))
        });
    }
}

#[test]
fn a_boundary_comes_back_from_host_memory_as_it_was() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(3, &device);
    let x = random([4, 8], &device).require_grad();
    let text = "keep x0/forward 1/offload x0 host/drop x0/keep x1/forward 2/offload x1 host/drop x1/tape 3/backward 3/\
                fetch x1 host/drop x1 host/tape 2/backward 2/fetch x0 host/drop x0 host/tape 1/backward 1";
    let schedule = judged(text, 3);
    same("host", || {
        let region = Region::new().stages("block", &blocks, block).schedule(schedule.clone());
        let y = region.host(Bytes::new(1024)).forward(x.clone() * 2.0)?;
        let mut grads = y.powf_scalar(2.0).mean().backward();
        let input = bytes(&x.grad_remove(&mut grads).unwrap());
        Ok((input, gradients(&blocks, grads)))
    });
}

#[test]
fn the_trace_has_every_action_in_order() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(4, &device);
    let trace = TraceHandle::new();
    let region = Region::new().stages("block", &blocks, block).rule(Rule::SquareRoot);
    let y = region.trace(&trace).forward(random([4, 8], &device)).unwrap();
    assert!(trace.get().is_none(), "the backward is still to come");
    y.sum().backward();
    let trace = trace.get().unwrap();
    let ran: Vec<Action> = trace.events().iter().map(|event| event.action.clone()).collect();
    assert_eq!(ran, Rule::SquareRoot.actions(4).unwrap());
    assert!(trace.events().windows(2).all(|pair| pair[0].end <= pair[1].start));
}

#[test]
fn the_listing_says_what_is_kept_and_why() {
    let _alone = alone();
    let device = device();
    let blocks = blocks(4, &device);
    let x = random([4, 8], &device);
    let list = |rule| what_is_kept(|| region(&blocks, rule, x.clone()).unwrap()).1;
    let kept = list(Rule::SquareRoot);
    let rows: Vec<_> = kept.rows().iter().map(|row| (row.stage.as_str(), row.what.as_str())).collect();
    assert_eq!(rows, [("block.0", "x0, the stage's input"), ("block.2", "tape 3"), ("block.3", "tape 4")]);
    assert_eq!(kept.rows()[0].tensor.as_deref(), Some("f32[4, 8]"));
    assert_eq!(kept.boundary_bytes(), Bytes::new(4 * 8 * 4));
    let input =
        "block.0  x0, the stage's input  f32[4, 8]     128  the backward pass runs the stage again from here";
    assert!(kept.to_string().contains(input), "{kept}");
    #[cfg(feature = "capture")]
    {
        let tape = "\
block.2  tape 3                 -            1184  the backward pass reads it; the stage is not run again
                                f32[4, 8]     128  made by sub
                                f32[4, 1]      16  made by add scalar
                                f32[4, 1]      16  made by sqrt
                                f32[4, 8]     128  made by div
                                f32[4, 8]     128  made by add
                                f32[4, 16]    256  made by add
                                f32[4, 16]    256  made by tanh
                                f32[4, 8]     128  made by add, the stage's output
                                f32[4, 8]     128  made by random
block.3";
        assert!(kept.to_string().contains(tape), "{kept}");
        assert!(kept.to_string().ends_with("boundaries in all: 128 B, tapes: 2.3 KiB"), "{kept}");
        // On the user's graph as on one of the plan's own.
        assert_eq!(kept.rows()[1].tape, list(Rule::StoreAll).rows()[2].tape);
    }
    assert_eq!(list(Rule::Full).rows().len(), 1);
    assert_eq!(list(Rule::EVERY_ONE).rows().len(), 4);
    assert_eq!(what_is_kept(|| ()).1.rows().len(), 0);
}

/// Nothing counts memory in this binary.
#[cfg(feature = "capture")]
#[test]
fn where_nothing_counts_memory_sizes_are_traced_and_times_measured() {
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::{Device, Tensor};
    use rekindle::{Budget, Measuring, Staged};

    struct Tanh(Vec<Linear>);
    impl Staged for Tanh {
        type Batch = Tensor<2>;
        type Input = Tensor<2>;
        type Output = Tensor<2>;
        fn stages(&self, x: &Tensor<2>) -> (Region<Tensor<2>, Tensor<2>>, Tensor<2>) {
            let run = |layer: &Linear, x: Tensor<2>| layer.forward(x).tanh();
            (Region::new().stages("layer", &self.0, run), x.clone())
        }
    }
    let _alone = alone();
    let device = Device::flex().autodiff();
    let model = Tanh((0..6).map(|_| LinearConfig::new(64, 64).init(&device)).collect());
    let x = Tensor::<2>::ones([32, 64], &device).require_grad();
    assert!(rekindle::memory::live().is_none());
    let found = rekindle::measure(&model, &x, Measuring::default(), &mut |_, _| {}).unwrap();
    assert!(!found.sized);
    for stage in &found.stages {
        // What `tanh` read, and the output.
        assert_eq!(stage.tape_bytes.get(), 2 * 32 * 64 * 4);
        assert!(stage.forward_ns.get() > 0 && stage.backward_ns.get() > 0);
        assert_eq!(stage.parameter_gradient_bytes.get(), (64 * 64 + 64) * 4);
    }
    let planned = rekindle::plan(&model, &x, Budget::smallest()).unwrap();
    assert!(planned.forward(&model, &x).is_ok());
}
