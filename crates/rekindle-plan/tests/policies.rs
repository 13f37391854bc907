//! Policies: their schedules word for word, and everything that is refused.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod chains;

use chains::{name, uniform};
use insta::assert_snapshot;
use rekindle_plan::policy::{Clause, ReadyMade};
use rekindle_plan::{
    Action, Boundary, Bytes, Codec, Illegal, Nanos, Plan, PlanError, Policy, PolicyError, Profile, Reason,
    Stage, StageProfile, Status, TapeOption, Tier,
};

fn policy(text: &str) -> Policy {
    text.parse().unwrap()
}

/// Stages by name, with the tiers `host` and `disk` and the codec `int8`; all but `head` can tape `balanced`.
fn profile(names: impl IntoIterator<Item = String>) -> Profile {
    let stages = names.into_iter().map(|stage| {
        let balanced = TapeOption {
            name: name("balanced"),
            tape_bytes: Bytes::new(4),
            forward_ns: Nanos::new(10),
            backward_ns: Nanos::new(25),
            taped_extra_bytes: None,
            backward_extra_bytes: None,
        };
        StageProfile {
            options: (stage != "head").then_some(balanced).into_iter().collect(),
            name: stage,
            output_bytes: Bytes::new(2),
            tape_bytes: Bytes::new(8),
            forward_ns: Nanos::new(10),
            backward_ns: Nanos::new(20),
            ..StageProfile::default()
        }
    });
    let tier = |text: &str, capacity: u64| Tier {
        name: name(text),
        capacity_bytes: Bytes::new(capacity),
        write_bytes_per_second: 1_000_000_000,
        read_bytes_per_second: 1_000_000_000,
    };
    let codec = Codec {
        name: name("int8"),
        bytes_per_kibibyte: 512,
        compress_bytes_per_second: 1_000_000_000,
        restore_bytes_per_second: 1_000_000_000,
    };
    let profile = Profile::new("gpt", "none", Bytes::new(2), stages.collect()).unwrap();
    profile.with_places(vec![tier("host", 100), tier("disk", 3)], vec![codec]).unwrap()
}

fn coarse(blocks: usize) -> Profile {
    let blocks = (0..blocks).map(|block| format!("block.{block}"));
    let names = ["embedding".to_owned()].into_iter().chain(blocks);
    profile(names.chain(["head".to_owned()]))
}

/// `embedding` is stage 1, block `n` the five stages from `5n + 2`, `head` the last.
fn fine(blocks: usize) -> Profile {
    let parts = ["qkv", "attention", "projection", "up", "down"];
    let blocks = (0..blocks).flat_map(|block| parts.map(|part| format!("block.{block}.{part}")));
    let names = ["embedding".to_owned()].into_iter().chain(blocks);
    profile(names.chain(["head".to_owned()]))
}

/// Actions in lines: one for each run of the same verb, up to a width.
fn shown(actions: &[Action]) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut verb = String::new();
    for action in actions {
        let text = action.to_string();
        let (first, rest) = text.split_once(' ').unwrap();
        match lines.last_mut() {
            Some(line) if verb == first && line.len() < 70 => line.push_str(&format!(", {rest}")),
            _ => lines.push(text.clone()),
        }
        first.clone_into(&mut verb);
    }
    lines.join("\n")
}

fn schedule(text: &str, profile: &Profile) -> String {
    let plan = policy(text).plan(profile).unwrap();
    shown(&plan.actions)
}

#[test]
fn full_runs_one_block_again_at_a_time() {
    assert_snapshot!(schedule("full", &fine(3)), @r"
    keep x0
    forward 1
    keep x1
    forward 2, 3, 4, 5, 6
    keep x6
    forward 7, 8, 9, 10, 11
    keep x11
    forward 12, 13, 14, 15, 16
    tape 17
    backward 17
    tape 12, 13, 14, 15, 16
    drop x11
    backward 16, 15, 14, 13, 12
    tape 7, 8, 9, 10, 11
    drop x6
    backward 11, 10, 9, 8, 7
    tape 2, 3, 4, 5, 6
    drop x1
    backward 6, 5, 4, 3, 2
    tape 1
    drop x0
    backward 1
    ");
    assert_snapshot!(schedule("full", &coarse(3)), @r"
    keep x0
    forward 1
    keep x1
    forward 2
    keep x2
    forward 3
    keep x3
    forward 4
    tape 5
    backward 5
    tape 4
    drop x3
    backward 4
    tape 3
    drop x2
    backward 3
    tape 2
    drop x1
    backward 2
    tape 1
    drop x0
    backward 1
    ");
}

#[test]
fn selective_runs_the_attention_cores_again() {
    assert_snapshot!(schedule("selective", &fine(3)), @r"
    tape 1, 2
    keep x2
    forward 3
    tape 4, 5, 6, 7
    keep x7
    forward 8
    tape 9, 10, 11, 12
    keep x12
    forward 13
    tape 14, 15, 16, 17
    backward 17, 16, 15, 14
    tape 13
    drop x12
    backward 13, 12, 11, 10, 9
    tape 8
    drop x7
    backward 8, 7, 6, 5, 4
    tape 3
    drop x2
    backward 3, 2, 1
    ");
}

#[test]
fn dots_saveable_tapes_everything_that_can_be_balanced() {
    assert_snapshot!(schedule("dots-saveable", &fine(3)), @r"
    tape 1 balanced, 2 balanced, 3 balanced, 4 balanced, 5 balanced, 6 balanced
    tape 7 balanced, 8 balanced, 9 balanced, 10 balanced, 11 balanced, 12 balanced
    tape 13 balanced, 14 balanced, 15 balanced, 16 balanced, 17
    backward 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1
    ");
}

#[test]
fn offload_inputs_moves_the_inputs_of_the_blocks_to_the_first_tier() {
    assert_snapshot!(schedule("offload-inputs", &fine(3)), @r"
    keep x0
    forward 1
    keep x1
    offload x1 host
    forward 2, 3, 4, 5, 6
    drop x1
    keep x6
    offload x6 host
    forward 7, 8, 9, 10, 11
    drop x6
    keep x11
    offload x11 host
    forward 12, 13, 14, 15, 16
    drop x11
    tape 17
    fetch x11 host
    backward 17
    tape 12
    drop x11 host
    tape 13, 14, 15, 16
    backward 16, 15, 14, 13
    fetch x6 host
    backward 12
    tape 7
    drop x6 host
    tape 8, 9, 10, 11
    backward 11, 10, 9, 8
    fetch x1 host
    backward 7
    tape 2
    drop x1 host
    tape 3, 4, 5, 6
    backward 6, 5, 4, 3, 2
    tape 1
    drop x0
    backward 1
    ");
}

#[test]
fn boundaries_in_three_places_and_a_stage_that_is_pinned() {
    let text = "recompute-all, keep block.1.input, offload block.0.input host, compress block.0.up int8, pin block.1.up";
    assert_snapshot!(schedule(text, &fine(2)), @r"
    keep x0
    forward 1
    keep x1
    offload x1 host
    forward 2, 3, 4, 5
    drop x1
    keep x5
    forward 6
    compress x5 int8
    drop x5
    keep x6
    forward 7, 8, 9
    tape 10, 11, 12
    backward 12, 11, 10
    tape 7, 8, 9
    drop x6
    backward 9, 8, 7
    fetch x5 int8
    drop x5 int8
    tape 6
    fetch x1 host
    backward 6
    tape 2
    drop x1 host
    tape 3, 4, 5
    backward 5, 4, 3, 2
    tape 1
    drop x0
    backward 1
    ");
}

#[test]
fn a_block_with_its_attention_kept_its_input_away_and_a_router_pinned() {
    let parts = ["qkv", "attention", "up", "down"];
    let blocks = (0..2).flat_map(|block| parts.map(|part| format!("block.{block}.{part}")));
    let profile = profile(blocks.chain(["router", "head"].map(str::to_owned)));
    let policy = Policy::recompute_all()
        .keep("block.*.attention")
        .offload("block.*.input", "host")
        .compress("block.*.up", "int8")
        .pin("router");
    assert_snapshot!(shown(&policy.plan(&profile).unwrap().actions), @r"
    keep x0
    offload x0 host
    forward 1, 2
    drop x0
    keep x2
    forward 3
    keep x3
    forward 4
    compress x3 int8
    drop x3
    keep x4
    offload x4 host
    forward 5, 6
    drop x4
    keep x6
    forward 7
    keep x7
    forward 8
    compress x7 int8
    drop x7
    tape 9, 10
    backward 10, 9
    fetch x7 int8
    drop x7 int8
    tape 8
    backward 8
    tape 7
    drop x6
    fetch x4 host
    backward 7
    tape 5
    drop x4 host
    tape 6
    backward 6, 5
    fetch x3 int8
    drop x3 int8
    tape 4
    backward 4
    tape 3
    drop x2
    fetch x0 host
    backward 3
    tape 1
    drop x0 host
    tape 2
    backward 2, 1
    ");
}

#[test]
fn a_policy_for_one_cut_is_one_for_the_other() {
    let text = "recompute-all, keep block.*.input, pin block.2, tape block.0 balanced";
    // Everything once, the embedding and block 1 once more: block 3 and the head end the chain.
    assert_eq!(policy(text).plan(&fine(4)).unwrap().predicted.forwards, (1 + 4 * 5 + 1) + (1 + 5));
    assert_eq!(policy(text).plan(&coarse(4)).unwrap().predicted.forwards, (1 + 4 + 1) + (1 + 1));
}

#[test]
fn what_a_tape_includes_stays_on_the_device_wherever_it_is_sent() {
    let profile = fine(1);
    let sent = policy("selective, offload block.*.qkv host, compress block.*.attention int8");
    assert_eq!(sent.actions(&profile), policy("selective").actions(&profile));
    assert_eq!(sent.idle(&profile).unwrap().len(), 2);
}

#[test]
fn ready_made_policies_are_what_their_page_says() {
    let profile = fine(3);
    let same = |ready: &str, text: &str| {
        assert_eq!(policy(ready).actions(&profile), policy(text).actions(&profile), "{ready}");
    };
    same("full", "recompute-all, keep **.block.*.output, keep **.block.*.input");
    same("selective", "keep-all, recompute **.attention");
    same("dots-saveable", "keep-all, tape embedding balanced, tape block balanced");
    same("offload-inputs", "full, offload **.block.*.input host");
}

/// Our GPT's blocks, whose attention keeps one number a query, in units of what the residual stream takes: what a part hands on with the
/// residual in it, what it keeps beside its input, and what keeping the norm's input instead of its output leaves of that. Times in
/// hundredths of a block's forward.
fn without_scores(blocks: usize) -> Profile {
    const UNIT: u64 = 1 << 19;
    let parts = [
        ("qkv", 4, 4, 3, 14, 12, 1),
        ("attention", 2, 1, 1, 45, 0, 0),
        ("projection", 1, 1, 1, 5, 4, 1),
        ("up", 5, 5, 4, 16, 14, 1),
        ("activation", 5, 4, 4, 4, 0, 1),
        ("down", 1, 1, 1, 16, 15, 1),
    ];
    let passed = |part: &str| if ["projection", "down"].contains(&part) { 0 } else { UNIT };
    let stages = (0..blocks).flat_map(|block| {
        parts.map(|(part, made, kept, light, forward, unread, remade)| {
            let balanced = TapeOption {
                name: name("balanced"),
                tape_bytes: Bytes::new(light * UNIT + passed(part)),
                forward_ns: Nanos::new(forward * 1_000),
                backward_ns: Nanos::new((2 * forward + remade) * 1_000),
                taped_extra_bytes: None,
                backward_extra_bytes: None,
            };
            StageProfile {
                name: format!("block.{block}.{part}"),
                output_bytes: Bytes::new(made * UNIT),
                tape_bytes: Bytes::new(kept * UNIT + passed(part)),
                passed_bytes: Bytes::new(passed(part)),
                forward_ns: Nanos::new(forward * 1_000),
                backward_ns: Nanos::new(2 * forward * 1_000),
                unread_ns: Nanos::new(unread * 1_000),
                options: vec![balanced],
                ..StageProfile::default()
            }
        })
    });
    let embedding = StageProfile {
        name: "embedding".to_owned(),
        output_bytes: Bytes::new(UNIT),
        tape_bytes: Bytes::new(UNIT),
        ..StageProfile::default()
    };
    let head = StageProfile {
        name: "head".to_owned(),
        output_bytes: Bytes::new(4),
        tape_bytes: Bytes::new(UNIT),
        ..StageProfile::default()
    };
    let stages = [embedding].into_iter().chain(stages).chain([head]).collect();
    Profile::new("gpt", "none", Bytes::new(4_096), stages).unwrap()
}

/// There it saved nothing at all.
#[test]
fn selective_saves_two_fifths_where_attention_keeps_no_scores() {
    for blocks in [4, 12, 24] {
        let profile = without_scores(blocks);
        let all = policy("keep-all").plan(&profile).unwrap().predicted;
        let plan = policy("selective").plan(&profile).unwrap();
        let left = plan.predicted.peak_bytes.get() as f64 / all.peak_bytes.get() as f64;
        // No more than was asked for: one product less, and it would be too much.
        assert!((0.5..=0.6).contains(&left), "{blocks} blocks: {left}");
        let step = plan.predicted.step_ns.ratio(all.step_ns);
        assert!(step > 1.0 && step <= 1.08, "{blocks} blocks: {step}");
        let again = |part: &str| {
            let stages = profile.stages().iter().zip(1..).filter(|(stage, _)| stage.name.ends_with(part));
            let run = |stage: u32| plan.actions.contains(&Action::forward(Stage::new(stage)));
            stages.filter(|(_, stage)| run(*stage)).count()
        };
        assert_eq!(["qkv", "attention", "projection"].map(again), [0; 3]);
        assert_eq!(["activation", "down"].map(again), [blocks; 2]);
        assert!((1..blocks).contains(&again("up")), "{} of {blocks}", again("up"));
    }
}

#[test]
fn selective_takes_what_there_is_without_scores() {
    // Nothing but the attention core, no other way to keep a tape, and no name that our models have.
    let stages = without_scores(8).stages().to_vec();
    let stages = stages.into_iter().map(|stage| StageProfile { options: Vec::new(), ..stage });
    let core = stages.clone().filter(|stage| stage.name.ends_with("attention")).collect();
    let alone = Profile::new("core", "none", Bytes::new(1 << 21), core).unwrap();
    assert_eq!(policy("selective").actions(&alone), policy("keep-all").actions(&alone));
    let named = stages.clone().zip(1..).map(|(stage, number)| StageProfile {
        name: if stage.name.ends_with("attention") { stage.name } else { format!("part.{number}") },
        ..stage
    });
    let named = Profile::new("other", "none", Bytes::new(4_096), named.collect()).unwrap();
    let peak = |text: &str, profile: &Profile| policy(text).plan(profile).unwrap().predicted.peak_bytes.get();
    assert!(peak("selective", &named) * 10 <= peak("keep-all", &named) * 6);
    // What must run once only is left alone, and clauses go over what it says.
    let pinned = stages.map(|stage| StageProfile { pinned: true, ..stage }).collect();
    let pinned = Profile::new("pinned", "none", Bytes::new(4_096), pinned).unwrap();
    assert_eq!(policy("selective").actions(&pinned), policy("keep-all").actions(&pinned));
    assert!(peak("selective, pin **", &named) == peak("keep-all", &named));
}

/// It took `balanced` where that kept as much, and every product of a perceptron beside what the activation made of it.
#[test]
fn dots_saveable_runs_activations_again_and_takes_no_option_that_saves_nothing() {
    let profile = without_scores(3);
    let text =
        "keep-all, tape **.qkv balanced, tape **.up balanced, recompute **.activation, recompute **.down";
    assert_eq!(policy("dots-saveable").actions(&profile), policy(text).actions(&profile));
    // What is pinned is not run again.
    let stages = profile.stages().iter().cloned();
    let stages = stages.map(|stage| StageProfile { pinned: stage.name == "block.1.down", ..stage });
    let pinned = Profile::new("gpt", "none", Bytes::new(4_096), stages.collect()).unwrap();
    let text = "keep-all, tape **.qkv balanced, tape **.up balanced, recompute block.0.activation, recompute block.0.down, \
                recompute block.2.activation, recompute block.2.down";
    assert_eq!(policy("dots-saveable").actions(&pinned), policy(text).actions(&pinned));
}

#[test]
fn clauses_go_over_what_a_ready_made_policy_says() {
    let profile = fine(3);
    let moved = policy("full, offload block.*.input host");
    assert_eq!(moved.actions(&profile), policy("offload-inputs").actions(&profile));
    let back = policy("selective, pin block.1.attention").plan(&profile).unwrap();
    assert_eq!(back.predicted.forwards, 17 + 2);
    assert!(moved.idle(&profile).unwrap().is_empty());
}

#[test]
fn what_is_said_twice_is_no_contradiction() {
    let profile = fine(2);
    // `block.1.input` is `block.0.output`.
    let twice = policy("recompute-all, keep block.*.input, keep block.*.output, pin head, pin *, pin head");
    assert!(twice.plan(&profile).is_ok());
    // What needs no place can have one.
    assert!(policy("keep-all, offload ** host, compress embedding.input int8").plan(&profile).is_ok());
}

#[test]
fn a_stage_called_input_is_meant_before_the_input_of_a_stage() {
    let profile = profile(["encoder.input", "encoder.body", "head"].map(str::to_owned));
    let kept = policy("recompute-all, keep head.input, keep encoder.input").actions(&profile).unwrap();
    let output = policy("recompute-all, keep head.input, keep encoder.input.output");
    assert_eq!(kept, output.actions(&profile).unwrap());
    assert!(kept.contains(&Action::keep(Boundary::new(1))));
}

#[test]
fn a_plan_says_which_policy_made_it() {
    let plan = policy("full, pin head").plan(&coarse(2)).unwrap();
    assert_eq!(plan.solver, "policy full, pin head");
    assert_eq!(plan.status, Status::Rule(name("policy")));
    assert_eq!(Plan::from_json(&plan.to_json()), Ok(plan));
}

#[test]
fn a_policy_fits_a_budget_of_its_peak_and_not_one_byte_less() {
    let profile = fine(3);
    let full = policy("full");
    let peak = full.plan(&profile).unwrap().predicted.peak_bytes;
    assert_eq!(full.plan_within(&profile, peak).unwrap().budget_bytes, Some(peak));
    let budget_bytes = peak.checked_sub(Bytes::new(1)).unwrap();
    let over = PlanError::OverBudget { solver: "policy full".to_owned(), peak_bytes: peak, budget_bytes };
    assert_eq!(full.plan_within(&profile, budget_bytes), Err(PolicyError::Refused(over)));
}

#[test]
fn offloading_costs_less_memory_than_keeping_and_compressing_lies_between() {
    // Long enough that the boundaries kept matter.
    let profile = coarse(20);
    let peak = |text: &str| policy(text).plan(&profile).unwrap().predicted.peak_bytes;
    let places = ["offload block.* host", "compress block.* int8", "keep block.*"];
    let [away, small, here] = places.map(|clause| peak(&format!("recompute-all, {clause}")));
    assert!(away < small && small < here, "{away} {small} {here}");
    assert!(here < peak("keep-all"));
}

// What is refused.

fn refused(text: &str, profile: &Profile) -> PolicyError {
    policy(text).plan(profile).unwrap_err()
}

fn clause(text: &str) -> Clause {
    policy(&format!("keep-all, {text}")).clauses()[0].clone()
}

#[test]
fn a_pattern_that_names_nothing_is_refused_with_the_nearest_name() {
    let profile = fine(2);
    let nearest = |text: &str| match refused(&format!("keep-all, {text}"), &profile) {
        PolicyError::NoMatch { clause: found, nearest } if found == clause(text) => nearest,
        other => panic!("{other}"),
    };
    assert_eq!(nearest("keep block.*.atention").as_deref(), Some("block.0.attention"));
    assert_eq!(nearest("offload blok.1.input host").as_deref(), Some("block.1.input"));
    assert_eq!(nearest("recompute haed").as_deref(), Some("head"));
    assert_eq!(nearest("pin zzz"), None);
    // A stage has no sides to pin, and no block is called 7.
    assert!(nearest("pin block.0.input").is_some());
    assert!(nearest("keep block.7.input").is_some());
    assert_eq!(nearest("tape \"\" balanced"), None);
    assert_eq!(
        refused("keep-all, keep block.*.atention.input", &profile).to_string(),
        "`keep block.*.atention.input`: no boundary of the profile is called that; the nearest name is \
         `block.0.attention.input`"
    );
    assert_eq!(
        refused("keep-all, pin zzz", &profile).to_string(),
        "`pin zzz`: no stage of the profile is called that"
    );
}

#[test]
fn a_ready_made_policy_needs_the_stages_it_is_about() {
    let clauses = [("selective", "recompute **.attention"), ("full", "keep **.block.*.output")];
    let profile = profile(["layer.0", "layer.1"].map(str::to_owned));
    for (text, about) in clauses {
        match refused(text, &profile) {
            PolicyError::NoMatch { clause: found, .. } => assert_eq!(found, clause(about)),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_place_that_is_not_there_is_refused_with_those_that_are() {
    let profile = fine(1);
    let tier = refused("full, offload head.input int8", &profile);
    assert_eq!(
        tier,
        PolicyError::UnknownPlace {
            clause: clause("offload head.input int8"),
            kind: "tier",
            found: "int8".to_owned(),
            known: "host, disk".to_owned(),
        }
    );
    assert_eq!(
        refused("full, compress head.input zstd", &profile).to_string(),
        "`compress head.input zstd`: the profile has no codec `zstd`, expected one of: int8"
    );
    let bare = uniform(2, 1, 1);
    assert_eq!(
        refused("keep-all, offload * host", &bare).to_string(),
        "`offload * host`: the profile has no tier `host`, expected one of: (none)"
    );
    assert_eq!(refused("offload-inputs", &bare), PolicyError::NoTier { policy: ReadyMade::OffloadInputs });
}

#[test]
fn a_tape_option_that_a_stage_does_not_have_is_refused() {
    let profile = fine(1);
    assert_eq!(
        refused("keep-all, tape * balanced", &profile),
        PolicyError::UnknownOption {
            clause: clause("tape * balanced"),
            stage: Stage::new(7),
            name: "head".to_owned(),
            found: "balanced".to_owned(),
            known: "(none)".to_owned(),
        }
    );
    assert_eq!(
        refused("keep-all, tape embedding light", &profile).to_string(),
        "`tape embedding light`: stage 1 (`embedding`) has no tape option `light`, expected one of: balanced"
    );
    assert_eq!(
        refused("dots-saveable", &uniform(2, 1, 1)),
        PolicyError::NoOption { policy: ReadyMade::DotsSaveable, option: "balanced" }
    );
}

#[test]
fn two_places_for_one_boundary_contradict_each_other() {
    let profile = fine(2);
    let boundary = |one: &str, other: &str| match refused(&format!("full, {one}, {other}"), &profile) {
        PolicyError::BoundaryContradiction { boundary, one: first, other: second, .. } => {
            assert_eq!((first, second), (clause(one), clause(other)));
            boundary
        }
        other => panic!("{other}"),
    };
    assert_eq!(boundary("keep block.*.input", "offload block.1.input host"), Boundary::new(6));
    assert_eq!(boundary("offload embedding host", "offload block.0.input disk"), Boundary::new(1));
    assert_eq!(boundary("compress embedding.input int8", "keep embedding.input"), Boundary::new(0));
    assert_eq!(
        refused("full, keep block.*.input, offload block.0.down host", &profile).to_string(),
        "`keep block.*.input` and `offload block.0.down host` contradict each other on x6 \
         (`block.0.down.output`); leave one of them out"
    );
    assert_eq!(
        refused("full, keep *.input, compress embedding.input int8", &profile).to_string(),
        "`keep *.input` and `compress embedding.input int8` contradict each other on x0 (`embedding.input`); \
         leave one of them out"
    );
}

#[test]
fn two_tapes_for_one_stage_contradict_each_other() {
    let profile = fine(2);
    for (one, other) in [
        ("pin head", "recompute head"),
        ("recompute block.1", "pin **.attention"),
        ("tape block.* balanced", "pin block.0.up"),
        ("recompute *", "tape embedding balanced"),
    ] {
        match refused(&format!("keep-all, {one}, {other}"), &profile) {
            PolicyError::StageContradiction { one: first, other: second, .. } => {
                assert_eq!((first, second), (clause(one), clause(other)));
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(
        refused("keep-all, pin **.attention, recompute block.1.attention", &profile).to_string(),
        "`pin **.attention` and `recompute block.1.attention` contradict each other on stage 8 \
         (`block.1.attention`); leave one of them out"
    );
}

#[test]
fn a_stage_that_is_pinned_in_the_profile_is_not_run_again() {
    let stages = fine(2).stages().to_vec();
    let pinned = |stage: &StageProfile| stage.name == "block.1.attention" || stage.name == "head";
    let stages = stages.into_iter().map(|stage| StageProfile { pinned: pinned(&stage), ..stage });
    let profile = Profile::new("router", "none", Bytes::new(2), stages.collect()).unwrap();
    for text in ["full", "selective", "recompute-all, keep head.input", "keep-all, recompute block.1"] {
        assert_eq!(
            refused(text, &profile),
            PolicyError::Pinned { stage: Stage::new(8), name: "block.1.attention".to_owned() },
        );
    }
    assert_eq!(
        refused("full", &profile).to_string(),
        "the policy would run stage 8 (`block.1.attention`) again, which is pinned in the profile; pin it in the \
         policy too"
    );
    // The head ends the chain and runs once whatever is said.
    assert!(policy("full, pin block.1.attention").plan(&profile).is_ok());
    assert!(policy("keep-all, recompute head").plan(&profile).is_ok());
}

#[test]
fn a_tier_that_is_full_is_refused_by_the_simulator() {
    let error = refused("full, offload block.*.input disk", &fine(2));
    let PolicyError::Refused(PlanError::Illegal(Illegal { reason: Reason::TierFull { tier, .. }, .. })) =
        error
    else {
        panic!("{error}")
    };
    assert_eq!(tier, name("disk"));
}

#[test]
fn a_word_that_is_misspelt_gets_the_one_that_was_probably_meant() {
    for (text, meant) in [
        ("selectiv", "selective"),
        ("dot-saveable", "dots-saveable"),
        ("recompute_all, keep *", "recompute-all"),
        ("full, offlaod block.*.input disk", "offload"),
    ] {
        let error = text.parse::<Policy>().unwrap_err();
        assert_eq!(error.nearest, Some(meant));
        assert!(error.to_string().ends_with(&format!("; the nearest name is `{meant}`")), "{error}");
    }
    assert_eq!(Policy::named("selectiv").unwrap_err().nearest, Some("selective"));
    assert_eq!(Policy::named("everything").unwrap_err().nearest, None);
}

#[test]
fn what_is_no_policy_is_named_with_what_was_expected() {
    let message = |text: &str| text.parse::<Policy>().unwrap_err().to_string();
    for text in ["", ",", "everything", "keep-all keep-all", "keep block.*", "Full", "\"\""] {
        let message = message(text);
        assert!(message.contains("is not a policy: expected recompute-all, keep-all"), "{message}");
        // A ready-made policy that is added has to be named there too.
        assert!(ReadyMade::ALL.iter().all(|(ready, _)| message.contains(ready.name())), "{message}");
    }
    for text in
        ["keep", "keep a b", "pin", "pin a b", "recompute", "recompute a b", "offload a", "offload a b c"]
    {
        let message = message(&format!("full, {text}"));
        assert!(message.starts_with(&format!("`{text}` is not a policy: expected a ")), "{message}");
    }
    for text in ["compress a", "compress a b c", "tape a", "tape a b c", "tape"] {
        let message = message(&format!("full, {text}"));
        assert!(message.contains("such as"), "{message}");
    }
    for text in ["", "stay a", "full"] {
        let message = message(&format!("full, {text}"));
        assert!(message.ends_with("expected keep, offload, compress, pin, tape or recompute"), "{message}");
    }
    assert!(message("full, keep \"a").ends_with("expected a quote at the end"));
    assert!(message("full, keep \"a\\").ends_with("expected a quote at the end"));
    assert!(message(&"x".repeat(1_000)).len() < 300);
    let error = Policy::named("sqrt").unwrap_err();
    assert_eq!(error.found, "sqrt");
    assert!(ReadyMade::ALL.iter().all(|(ready, _)| error.expected.contains(ready.name())));
}

#[test]
fn spaces_and_lines_between_words_do_not_matter() {
    let text = "\n recompute-all ,keep   a.*\n,\ttape \"a b\" light ,offload \"\\\"\\\\\" host";
    let expected = Policy::recompute_all().keep("a.*").tape("a b", "light").offload("\"\\", "host");
    assert_eq!(policy(text), expected);
    assert_eq!(
        expected.to_string(),
        "recompute-all, keep a.*, tape \"a b\" light, offload \"\\\"\\\\\" host"
    );
}

#[test]
fn a_long_chain_is_planned_in_no_time() {
    let names = (0..20_000).flat_map(|block| ["a", "b"].map(|part| format!("block.{block}.{part}")));
    let profile = profile(names);
    for text in ["full", "recompute-all", "keep-all, recompute **.a", "recompute-all, compress ** int8"] {
        assert!(policy(text).plan(&profile).is_ok(), "{text}");
    }
}
