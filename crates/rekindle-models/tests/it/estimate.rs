//! Counts against traces of models that run. Counts against published numbers are `rekindle-estimate`'s.

use burn::tensor::{Device, Int, Tensor};
use rekindle::{DeviceModel, Nodes, Staged};
use rekindle_models::estimate::{Architecture, AttentionKind, Keeping, Precision, Setting, Transformer};
use rekindle_models::{GptBatch, GptConfig, Trainable};
use rekindle_plan::{Plan, Profile, Rule};

use crate::common::alone;

/// A count and a trace of the same GPT, which agree within 5% on every kind of stage.
#[test]
fn counts_agree_with_traces_of_our_gpt_within_a_twentieth() {
    alone(|| {
        let device = Device::flex().autodiff();
        let any = DeviceModel {
            name: "any".to_owned(),
            matmul_flops_per_second: 1_000_000_000_000,
            memory_bytes_per_second: u64::MAX,
            overhead_ns_per_op: 0,
            tape_nodes: Nodes::default(),
        };
        for (width, heads, layers, length, batch) in
            [(128, 4, 3, 128, 4), (256, 8, 2, 64, 2), (192, 6, 2, 512, 1)]
        {
            let config = GptConfig::new(256, width, heads, layers, length).with_dropout(0.1);
            let gpt = config.init(&device).unwrap();
            let tokens = Tensor::<2, Int>::zeros([batch, length], &device);
            let sample = GptBatch { tokens: tokens.clone(), targets: tokens };
            let traced = |region, input| rekindle::trace("gpt", &region, input, &any).unwrap().into_profile();
            let (region, input) = gpt.stages(&sample);
            let blocks = traced(region, input);
            let (region, input) = gpt.fine().stages(&sample);
            let parts = traced(region, input);
            let width = width as u64;
            let model = Architecture::Transformer(Transformer {
                layers: layers as u64,
                width,
                heads: heads as u64,
                key_value_heads: heads as u64,
                hidden: 4 * width,
                gated: false,
                vocabulary: 256,
                tied: false,
                positions: length as u64,
                length: length as u64,
                dropout: true,
                patch: 0,
                other: 0,
            });
            let setting = Setting {
                batch: batch as u64,
                precision: Precision::F32,
                attention: AttentionKind::Linear,
                keeping: Keeping::Nodes,
                ..Setting::of(&model)
            };
            let counted = [model.blocks(&setting).unwrap(), model.parts(&setting).unwrap().unwrap()];
            for (counted, traced) in counted.iter().zip([&blocks, &parts]) {
                let of = |profile: &Profile| {
                    let stages = profile.stages().iter().filter(|stage| stage.name.starts_with("block."));
                    stages.map(|stage| stage.taped_bytes().get()).collect::<Vec<_>>()
                };
                let (counted, traced) = (of(counted), of(traced));
                assert_eq!(counted.len(), traced.len());
                let whole = |taped: &[u64]| taped.iter().sum::<u64>() as f64;
                let off = whole(&counted) / whole(&traced) - 1.0;
                assert!(off.abs() <= 0.05, "width {width}: {off:.3}, {counted:?} counted, {traced:?} traced");
            }
            // With the embedding and the head.
            let kept = |profile: &Profile| {
                let (schedule, simulation) =
                    Plan::by_rule(profile, Rule::StoreAll, None).unwrap().judge(profile).unwrap();
                simulation.moments[schedule.forward_half().len() - 1].after.get() as f64
            };
            let off = kept(&counted[0]) / kept(&blocks) - 1.0;
            assert!(off.abs() <= 0.05, "width {width}: {off:.3} over all");
        }
    });
}
