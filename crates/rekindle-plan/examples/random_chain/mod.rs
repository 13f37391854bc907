//! Chains that everybody gets the same of, for figures and benches.

use rekindle_plan::{Bytes, Nanos, Profile, StageProfile, TapeOption};

/// A random number generator of one line, so that everybody gets the same chains.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Stages that have nothing in common: boundaries of 1 to 16 MiB, tapes of 2 to 20 boundaries, times of 1 to 10 ms.
pub(crate) fn random_chain(stages: usize, seed: u64) -> Profile {
    let mut random = Random(seed);
    let stage = |index: usize| {
        let output = (1 << 20) + random.below(15 << 20);
        let forward = 1_000_000 + random.below(9_000_000);
        StageProfile {
            name: format!("stage.{index}"),
            output_bytes: Bytes::new(output),
            tape_bytes: Bytes::new(output * 2 + random.below(18 * output)),
            forward_ns: Nanos::new(forward),
            backward_ns: Nanos::new(forward + random.below(2 * forward)),
            forward_extra_bytes: Bytes::new(random.below(4 << 20)),
            backward_extra_bytes: Bytes::new(random.below(8 << 20)),
            ..StageProfile::default()
        }
    };
    let stages = (0..stages).map(stage).collect();
    Profile::new("random", "none", Bytes::new(8 << 20), stages).unwrap_or_else(|error| panic!("{error}"))
}

/// Blocks that differ in nothing, of sizes that have nothing in common.
pub(crate) fn equal_blocks(stages: usize) -> Profile {
    let stage = |index: usize| StageProfile {
        name: format!("block.{index}"),
        output_bytes: Bytes::new(262_144),
        tape_bytes: Bytes::new(9_412_345),
        forward_ns: Nanos::new(1_234_567),
        backward_ns: Nanos::new(2_345_678),
        ..StageProfile::default()
    };
    let stages = (0..stages).map(stage).collect();
    Profile::new("blocks", "none", Bytes::new(262_144), stages).unwrap_or_else(|error| panic!("{error}"))
}

/// A part of a block, in KiB and microseconds: output; what the tape and the smaller tape hold beside it; workspace of
/// the backward; forward time; what the smaller tape takes longer.
struct Part(&'static str, [u64; 6]);

const PARTS: [Part; 5] = [
    Part("qkv", [1_024, 1_331, 614, 1_024, 900, 210]),
    Part("attention", [512, 2_560, 2_253, 2_048, 1_100, 90]),
    Part("projection", [256, 512, 307, 512, 400, 60]),
    Part("up", [1_280, 1_331, 614, 1_024, 1_000, 230]),
    Part("down", [256, 2_867, 307, 1_536, 1_400, 350]),
];

/// A GPT whose blocks are cut into five parts each, between an embedding and a head: boundaries inside a block differ by
/// a factor of five, and every part has a second tape. 24 blocks are 122 stages.
pub(crate) fn gpt_in_parts(blocks: usize) -> Profile {
    let stage = |name: String, [output, tape, small, workspace, forward, more]: [u64; 6]| {
        let kibibytes = |count: u64| Bytes::new(count << 10);
        let small = TapeOption {
            name: "balanced".parse().unwrap_or_else(|error| panic!("{error}")),
            tape_bytes: kibibytes(output + small),
            forward_ns: Nanos::new(forward * 1_000),
            backward_ns: Nanos::new((2 * forward + more) * 1_000),
            taped_extra_bytes: None,
            backward_extra_bytes: None,
        };
        StageProfile {
            name,
            output_bytes: kibibytes(output),
            tape_bytes: kibibytes(output + tape),
            forward_ns: Nanos::new(forward * 1_000),
            backward_ns: Nanos::new(forward * 2_000),
            backward_extra_bytes: kibibytes(workspace),
            options: vec![small],
            ..StageProfile::default()
        }
    };
    let parts = (0..blocks).flat_map(|block| PARTS.iter().map(move |part| (block, part)));
    let parts = parts.map(|(block, Part(name, numbers))| stage(format!("block.{block}.{name}"), *numbers));
    let embedding = stage("embedding".to_owned(), [256, 64, 32, 512, 150, 20]);
    let head = stage("head".to_owned(), [4, 4_096, 2_048, 2_048, 2_500, 300]);
    let stages = [embedding].into_iter().chain(parts).chain([head]).collect();
    Profile::new("gpt-in-parts", "none", Bytes::new(4 << 10), stages)
        .unwrap_or_else(|error| panic!("{error}"))
}
