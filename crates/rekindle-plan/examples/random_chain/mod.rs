//! Chains that everybody gets the same of, for figures and benches.

use rekindle_plan::{Bytes, Nanos, Profile, StageProfile};

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
