//! Counts against facts: published numbers of parameters, a published formula. Traces of models that run are held against them in
//! `rekindle-models`.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use rekindle_estimate::{
    Architecture, Asked, Changes, EstimateError, Keeping, Parallel, Precision, Setting, State, preset,
    presets,
};
use rekindle_plan::{Bytes, Plan, Policy, Profile, Rule};

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

#[test]
fn zero_divides_what_it_says() {
    let model = preset("llama-7b").unwrap();
    let n = model.parameters();
    let state =
        |zero| State::of(&model, &Setting::of(&model), &Parallel { zero, data: 64, ..Parallel::default() });
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

#[test]
fn numbers_of_a_preset_can_be_changed_where_it_has_them() {
    let gpt2 = Asked::preset("gpt2").unwrap();
    let wide =
        gpt2.clone().with(&Changes { width: Some(1_024), heads: Some(16), ..Changes::default() }).unwrap();
    let Architecture::Transformer(model) = &wide.architecture else { panic!("a GPT is a transformer") };
    // What follows from the numbers given, follows.
    assert_eq!((model.hidden, model.key_value_heads, model.layers), (4_096, 16, 12));
    assert_eq!(gpt2.clone().with(&Changes::default()).unwrap(), gpt2);
    let resnet = Asked::preset("resnet-50").unwrap();
    assert_eq!(resnet.clone().with(&Changes::default()).unwrap(), resnet);
    let error = resnet.with(&Changes { layers: Some(1), ..Changes::default() }).unwrap_err();
    assert_eq!(error.to_string(), "`resnet-50` has no layers, width or heads to change");
    assert!(Asked::preset("gpt-2").is_none());
}

/// They were counted on every rank.
#[test]
fn the_embedding_is_on_the_first_rank_and_the_head_on_the_last() {
    let of = |name: &str, pipeline: u64| {
        let usual = Asked::preset(name).unwrap();
        Asked { parallel: Parallel { pipeline, ..usual.parallel }, ..usual }
    };
    for (name, pipeline, copied) in
        [("llama-7b", 4, 0), ("llama-7b", 5, 0), ("gpt2", 3, 50_257 * 768), ("gpt2", 1, 0), ("vit-l", 4, 0)]
    {
        let asked = of(name, pipeline);
        let ranks = asked.ranks().unwrap();
        let all: u64 = ranks.iter().map(|rank| rank.parameters).sum();
        // A head that is the embedding is a copy of it where that is on another rank.
        assert_eq!(all, asked.architecture.parameters() + copied, "{name} on {pipeline}");
        let whole = State::on(&asked.architecture, &asked.setting, &Parallel::default(), 0);
        let weights: u64 = ranks.iter().map(|rank| rank.state.weights.get()).sum();
        let element = whole.weights.get() / asked.architecture.parameters();
        assert_eq!(weights, whole.weights.get() + copied * element, "{name} on {pipeline}");
    }
    let ranks = of("llama-7b", 4).ranks().unwrap();
    // 4,096 by 32,000, and a norm behind the last layer.
    let embedding = 4_096 * 32_000;
    assert_eq!(ranks[0].parameters, ranks[1].parameters + embedding);
    assert_eq!(ranks[1].parameters, ranks[2].parameters);
    assert_eq!(ranks[3].parameters, ranks[2].parameters + embedding + 4_096);
    // Logits are kept by the last alone: as many layers, and the others hold more parts of a batch.
    let kept = |rank: usize| ranks[rank].rows[0].activations_bytes.get() / ranks[rank].in_flight;
    assert_eq!(kept(1), kept(2));
    assert!(kept(3) > kept(2), "{} of {}", kept(3), kept(2));
}

#[test]
fn what_cannot_be_counted_is_named() {
    let gpt2 = Asked::preset("gpt2").unwrap();
    gpt2.check().unwrap();
    let words = |asked: Asked| asked.check().unwrap_err().to_string();
    let deep = Asked { parallel: Parallel { pipeline: 13, ..gpt2.parallel }, ..gpt2.clone() };
    assert_eq!(words(deep), "a pipeline of 13 ranks is asked for, but there are 12 layers");
    let long = Asked { setting: Setting { length: 1_025, ..gpt2.setting }, ..gpt2 };
    assert_eq!(words(long), "a length of 1025 is asked for, but `gpt2` has 1024 positions");
    let resnet = Asked::preset("resnet-50").unwrap();
    resnet.check().unwrap();
    let nodes = Asked { setting: Setting { keeping: Keeping::Nodes, ..resnet.setting }, ..resnet };
    assert_eq!(words(nodes), "`resnet-50` is counted on one rank and as a framework runs it only");
}

#[test]
fn strategies_take_less_memory_for_more_work_and_what_fits_is_the_most_that_fits() {
    let asked = Asked::preset("gpt2").unwrap();
    let rows = asked.rows().unwrap();
    let of = |name: &str| rows.iter().find(|row| row.strategy == name).unwrap();
    assert_eq!(of("none").overhead, 0.0);
    assert!(of("full").activations_bytes < of("selective").activations_bytes);
    assert!(of("optimal-full").overhead < of("full").overhead);
    let taken = |asked: &Asked, name: &str| {
        let rows = asked.rows().unwrap();
        let row = rows.into_iter().find(|row| row.strategy == name).unwrap();
        asked.state().total().get() + row.activations_bytes.get() + row.workspace_bytes.get()
    };
    let room = Bytes::mebibytes(6 * 1_024);
    let batch = asked.fit("none", room).unwrap().largest_batch.unwrap();
    let with = |batch| Asked { setting: Setting { batch, ..asked.setting }, ..asked.clone() };
    assert!(taken(&with(batch), "none") <= room.get() && taken(&with(batch + 1), "none") > room.get());
    assert_eq!(asked.fit("none", Bytes::mebibytes(1)).unwrap().largest_batch, None);
}

#[test]
fn precisions_read_back_and_others_are_named() {
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        assert_eq!(precision.to_string().parse(), Ok(precision));
    }
    let error = "fp16".parse::<Precision>().unwrap_err();
    assert_eq!(error.to_string(), "`fp16` is no precision, expected f32, bf16 or f16");
}

#[test]
fn numbers_near_the_limit_are_counted_or_refused() {
    let huge = [u64::MAX, u64::MAX - 1, 1 << 63, 1 << 33];
    for (name, model) in presets() {
        let asked = Asked::preset(name).unwrap();
        let changes = huge.into_iter().flat_map(|n| {
            let n = Some(n);
            [
                Changes { layers: n, ..Changes::default() },
                Changes { width: n, ..Changes::default() },
                Changes { width: n, heads: Some(2), ..Changes::default() },
                Changes { heads: n, width: n, ..Changes::default() },
                Changes { key_value_heads: n, ..Changes::default() },
                Changes { hidden: n, ..Changes::default() },
                Changes { vocabulary: n, ..Changes::default() },
            ]
        });
        for changes in changes {
            let Ok(changed) = asked.clone().with(&changes) else { continue };
            assert!(changed.state().total() >= asked.state().total() || changed.architecture.layers() == 0);
            let _ = (changed.check(), changed.architecture.blocks(&changed.setting));
            let _ = changed.architecture.parts(&changed.setting);
        }
        for n in huge {
            for setting in [
                Setting { batch: n, ..asked.setting },
                Setting { length: n, ..asked.setting },
                Setting { batch: n, length: n, ..asked.setting },
                Setting { tensor_parallel: n, ..asked.setting },
            ] {
                let _ = (model.blocks(&setting), model.parts(&setting));
            }
        }
    }
    let deep =
        Asked::preset("gpt2").unwrap().with(&Changes { layers: Some(10_001), ..Changes::default() }).unwrap();
    let error = deep.rows().unwrap_err();
    assert_eq!(error.to_string(), "the number of layers is 10001, expected at most 10000");
}
