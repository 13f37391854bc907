//! Counts against facts: published numbers of parameters, a published formula, and traces of models that run.

use burn::tensor::{Device, Int, Tensor};
use rekindle::training::Precision;
use rekindle::{DeviceModel, Staged};
use rekindle_models::estimate::{
    Architecture, AttentionKind, EstimateError, Keeping, Parallel, Setting, State, Transformer, preset,
    presets,
};
use rekindle_models::{GptBatch, GptConfig, Trainable};
use rekindle_plan::{Plan, Policy, Profile, Rule};

#[test]
fn parameters_are_those_of_the_published_models() {
    for (name, parameters) in [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("bert-large", 335_141_888),
        ("llama-7b", 6_738_415_616),
        ("llama-13b", 13_015_864_320),
        ("llama-70b", 68_976_648_192),
        ("vit-l", 304_326_632),
        ("vit-h", 632_045_800),
        ("resnet-50", 25_557_032),
        ("resnet-152", 60_192_808),
    ] {
        assert_eq!(preset(name).unwrap().parameters(), parameters, "{name}");
    }
    // The papers say 175B and 10.2M.
    assert_eq!(preset("gpt3-175b").unwrap().parameters() / 100_000_000, 1_746);
    assert_eq!(preset("resnet-1001").unwrap().parameters() / 100_000, 103);
    assert_eq!(preset("resnet-1001").unwrap().layers(), 1_001);
    assert_eq!(presets().count(), 14);
    assert_eq!(preset("gpt-2"), None);
}

fn gpt3() -> (Architecture, Setting) {
    let model = preset("gpt3-175b").unwrap();
    let setting = Setting { batch: 2, ..Setting::of(&model) };
    (model, setting)
}

/// What the tape of each layer takes.
fn layer(profile: &Profile) -> u64 {
    let layer = profile.stages().iter().find(|stage| stage.name == "block.1").unwrap();
    layer.taped_bytes().get()
}

#[test]
fn a_layer_takes_what_korthikanti_and_others_count() {
    let (model, setting) = gpt3();
    let (s, b, h, a) = (2_048u64, 2u64, 12_288u64, 96u64);
    assert_eq!(layer(&model.blocks(&setting).unwrap()), s * b * h * 34 + 5 * a * s * s * b);
    // Their formulas for tensor parallelism, and with sequence parallelism on top.
    let t = 8;
    let split = Setting { tensor_parallel: t, ..setting };
    let expected = s * b * h * 10 + (s * b * h * 24 + 5 * a * s * s * b) / t;
    assert_eq!(layer(&model.blocks(&split).unwrap()), expected);
    let both = Setting { sequence_parallel: true, ..split };
    assert_eq!(layer(&model.blocks(&both).unwrap()), (s * b * h * 34 + 5 * a * s * s * b) / t);
    // Selective recomputation leaves 34 s b h of a layer; full its input, 2 s b h.
    let parts = model.parts(&setting).unwrap().unwrap();
    let kept = |profile: &Profile, plan: Plan| {
        let (schedule, simulation) = plan.judge(profile).unwrap();
        simulation.moments[schedule.forward_half().len() - 1].after.get()
    };
    let selective = kept(&parts, Policy::named("selective").unwrap().plan(&parts).unwrap());
    let none = kept(&parts, Plan::by_rule(&parts, Rule::StoreAll, None).unwrap());
    // The projection holds on to its input, which counts in full: with the residual that is passed on in it.
    assert_eq!(none - selective, 96 * (5 * a * s * s * b - 2 * s * b * h));
}

#[test]
fn parts_take_together_what_layers_take() {
    for (name, model) in presets() {
        let setting = Setting::of(&model);
        let Some(parts) = model.parts(&setting).unwrap() else { continue };
        let blocks = model.blocks(&setting).unwrap();
        let all = |profile: &Profile| {
            let predicted = Plan::by_rule(profile, Rule::StoreAll, None).unwrap().predicted;
            (
                predicted.step_ns.get(),
                profile.stages().iter().map(|stage| stage.taped_bytes().get()).sum::<u64>(),
            )
        };
        let ((time, bytes), (time_of_parts, bytes_of_parts)) = (all(&blocks), all(&parts));
        assert_eq!(bytes, bytes_of_parts, "{name}");
        // Nanoseconds are rounded down, part by part.
        assert!(time - time_of_parts <= 15 * parts.stages().len() as u64, "{name}");
    }
}

/// A count and a trace of the same GPT, which agree within 5% on every kind of stage.
#[test]
fn counts_agree_with_traces_of_our_gpt_within_a_twentieth() {
    let device = Device::flex().autodiff();
    let any = DeviceModel {
        name: "any".to_owned(),
        matmul_flops_per_second: 1_000_000_000_000,
        memory_bytes_per_second: u64::MAX,
        overhead_ns_per_op: 0,
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
}

#[test]
fn zero_divides_what_it_says() {
    let model = preset("llama-7b").unwrap();
    let n = model.parameters();
    let state = |zero| State::of(&model, &Setting::of(&model), &Parallel { zero, data: 64, pipeline: 1 });
    let bytes = |state: State| [state.weights, state.gradients, state.optimizer].map(|bytes| bytes.get());
    assert_eq!(bytes(state(0)), [2 * n, 2 * n, 12 * n]);
    assert_eq!(bytes(state(1)), [2 * n, 2 * n, (12 * n).div_ceil(64)]);
    assert_eq!(bytes(state(2)), [2 * n, (2 * n).div_ceil(64), (12 * n).div_ceil(64)]);
    assert_eq!(bytes(state(3)), [(2 * n).div_ceil(64), (2 * n).div_ceil(64), (12 * n).div_ceil(64)]);
    let whole = Setting { precision: Precision::F32, ..Setting::of(&model) };
    assert_eq!(State::of(&model, &whole, &Parallel::default()).total().get(), 16 * n);
}

#[test]
fn numbers_that_do_not_go_together_are_named() {
    let (model, setting) = gpt3();
    let zero = Setting { batch: 0, ..setting };
    assert_eq!(model.blocks(&zero), Err(EstimateError::Zero { what: "the batch" }));
    let split = Setting { tensor_parallel: 7, ..setting };
    assert!(matches!(model.blocks(&split), Err(EstimateError::Indivisible { by: 7, .. })));
    let huge = Setting { batch: u64::MAX, ..setting };
    assert!(matches!(model.parts(&huge), Err(EstimateError::Profile { .. })));
    let vit = preset("vit-h").unwrap();
    let crooked = Setting { length: 225, ..Setting::of(&vit) };
    assert!(matches!(vit.blocks(&crooked), Err(EstimateError::Indivisible { by_what: "the patch", .. })));
    let resnet = preset("resnet-50").unwrap();
    assert!(resnet.blocks(&Setting { length: u64::MAX, ..Setting::of(&resnet) }).is_err());
}
