//! The least room against the whole recurrence.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::{Codec, StageProfile, TapeOption, Tier, simulate};

prop_compose! {
    fn any_stage()(
        (output, own, forward_extra, backward_extra) in (0..50u64, 0..200u64, 0..300u64, 0..40u64),
        weights in prop_oneof![Just(0), 0..60u64],
        light in proptest::option::of(0..200u64),
        pinned in prop_oneof![9 => Just(false), 1 => Just(true)],
    ) -> StageProfile {
        let light = light.map(|own| TapeOption {
            name: "light".parse().unwrap(),
            tape_bytes: Bytes::new(output + own),
            forward_ns: Nanos::new(2),
            backward_ns: Nanos::new(3),
            taped_extra_bytes: None,
            backward_extra_bytes: None,
        });
        StageProfile {
            name: "stage".to_owned(),
            output_bytes: Bytes::new(output),
            tape_bytes: Bytes::new(output + own),
            forward_ns: Nanos::new(1),
            backward_ns: Nanos::new(2),
            forward_extra_bytes: Bytes::new(forward_extra),
            taped_extra_bytes: Some(Bytes::ZERO),
            backward_extra_bytes: Bytes::new(backward_extra),
            parameter_gradient_bytes: Bytes::new(weights),
            pinned,
            options: light.into_iter().collect(),
            ..StageProfile::default()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Asked for nothing but the least room, the recurrence finds what it finds when it looks at everything, and has a
    /// plan for it; with one label a cell, too, where tiers hold everything.
    #[test]
    fn the_least_room_alone_is_that_of_the_whole_recurrence(
        input in 0..50u64,
        stages in proptest::collection::vec(any_stage(), 1..9),
        capacities in proptest::collection::vec(prop_oneof![0..120u64, Just(1 << 40)], 0..3),
        small in proptest::option::of(1..1023u32),
    ) {
        let tier = |(name, capacity): (&str, u64)| Tier {
            name: name.parse().unwrap(),
            capacity_bytes: Bytes::new(capacity),
            write_bytes_per_second: 1_000_000_000,
            read_bytes_per_second: 1_000_000_000,
        };
        let codec = |bytes_per_kibibyte| Codec {
            name: "small".parse().unwrap(),
            bytes_per_kibibyte,
            compress_bytes_per_second: 1_000_000_000,
            restore_bytes_per_second: 1_000_000_000,
        };
        let tiers = ["host", "disk"].into_iter().zip(capacities).map(tier).collect();
        let profile = Profile::new("short", "none", Bytes::new(input), stages).unwrap();
        let profile = profile.with_places(tiers, small.map(codec).into_iter().collect()).unwrap();
        let chain = Chain::new(&profile);
        let until = Instant::now() + Duration::from_secs(600);
        let everything = Places::new(&profile, &chain, 1, chain.store_all_room(), until).unwrap();
        prop_assert!(!everything.thinned);
        let least = Places::least(&profile, &chain, until).unwrap();
        prop_assert_eq!(least.least_room(), everything.least_room());
        let room = least.least_room().unwrap();
        let simulation = simulate(&profile, &least.actions(room).unwrap()).unwrap();
        prop_assert!(simulation.peak_bytes.get() <= room + input);
    }
}
