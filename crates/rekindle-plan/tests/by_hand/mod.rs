//! Chains whose numbers can be followed by hand, and what the simulator says of them.

// Every test file takes what it needs of these.
#![allow(dead_code)]

use rekindle_plan::{Bytes, Codec, Nanos, Profile, Simulation, TapeOption, Tier, simulate};

use crate::chains::{actions, name, uniform};

pub(crate) fn tier(capacity: u64, write: u64, read: u64) -> Tier {
    Tier {
        name: name("host"),
        capacity_bytes: Bytes::new(capacity),
        write_bytes_per_second: write,
        read_bytes_per_second: read,
    }
}

pub(crate) fn codec(bytes_per_kibibyte: u32, compress: u64, restore: u64) -> Codec {
    Codec {
        name: name("half"),
        bytes_per_kibibyte,
        compress_bytes_per_second: compress,
        restore_bytes_per_second: restore,
    }
}

/// Two stages with boundaries of 10 and tapes of 30, the first with an option; `host` has room for one boundary.
pub(crate) fn two() -> Profile {
    let plain = uniform(2, 10, 30);
    let mut stages = plain.stages().to_vec();
    stages[0].options.push(TapeOption {
        name: name("light"),
        tape_bytes: Bytes::new(20),
        forward_ns: Nanos::new(1),
        backward_ns: Nanos::new(3),
        taped_extra_bytes: None,
        backward_extra_bytes: None,
    });
    let profile = Profile::new("two", "none", Bytes::new(10), stages).unwrap();
    let places = (vec![tier(15, 1, 1)], vec![codec(512, 1, 1)]);
    profile.with_places(places.0, places.1).unwrap()
}

pub(crate) fn judged(profile: &Profile, plan: &str) -> Simulation {
    simulate(profile, &actions(plan)).unwrap()
}

/// The bytes while each action runs, and after it.
pub(crate) fn moments(profile: &Profile, plan: &str) -> Vec<(u64, u64)> {
    let moments = judged(profile, plan).moments.into_iter();
    moments.map(|moment| (moment.peak.get(), moment.after.get())).collect()
}
