//! Slots on the device and on other levels: how many a plan uses, and chains with a tier for each level.

// Every test file takes what it needs of these.
#![allow(dead_code)]

use std::collections::BTreeSet;

use rekindle_plan::solvers::multi_level::{Costs, Level};
use rekindle_plan::{Action, Bytes, Nanos, Profile, StageProfile, Tier};

use crate::chains::{name, uniform};

/// The most boundaries and tapes in slots at once, when a stage runs; the tape whose backward comes next is free.
pub(crate) fn slots_used(actions: &[Action]) -> usize {
    let (mut kept, mut taped, mut most) = (BTreeSet::new(), BTreeSet::new(), 0);
    for action in actions {
        match action {
            Action::Keep { boundary } => {
                kept.insert(*boundary);
            }
            Action::Drop { boundary, place: None } => {
                kept.remove(boundary);
            }
            Action::Forward { .. } => most = most.max(kept.len() + taped.len()),
            Action::Tape { stage, .. } => {
                most = most.max(kept.len() + taped.len());
                taped.insert(*stage);
            }
            Action::Backward { stage } => {
                taped.remove(stage);
                most = most.max(kept.len() + taped.len());
            }
            _ => {}
        }
    }
    most
}

pub(crate) fn disk(slots: u32, write: u64, read: u64) -> Level {
    Level { tier: name("disk"), slots, write, read }
}

/// A uniform chain of one-byte boundaries, on which the profile's times are these costs.
pub(crate) fn uniform_with(costs: &Costs, stages: usize) -> Profile {
    let times = |profile: StageProfile| StageProfile {
        forward_ns: Nanos::new(costs.forward),
        backward_ns: Nanos::new(costs.backward),
        ..profile
    };
    let chain = uniform(stages, 1, 1);
    let stages = chain.stages().iter().cloned().map(times).collect();
    let tiers = costs.levels.iter().map(|level| Tier {
        name: level.tier.clone(),
        capacity_bytes: Bytes::new(level.slots.into()),
        write_bytes_per_second: 1_000_000_000u64.div_ceil(level.write),
        read_bytes_per_second: 1_000_000_000u64.div_ceil(level.read),
    });
    let profile = Profile::new("uniform", "none", Bytes::new(1), stages).unwrap();
    profile.with_places(tiers.collect(), Vec::new()).unwrap()
}
