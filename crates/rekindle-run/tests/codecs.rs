//! What codecs promise: sizes, error bounds, and no panic on any bytes.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use proptest::prelude::*;
use rekindle_plan::{Boundary, Bytes};
use rekindle_run::codec::{self, BLOCK, Bf16, Codec, CodecError, F16, Int4, Int8, Lz4, TopK, Zstd};
use rekindle_run::{Coded, HostStore, PackedTensor, Parcel, Store, StoreError};

fn every_codec() -> Vec<Box<dyn Codec>> {
    let all: [Box<dyn Codec>; 8] = [
        Box::new(Bf16),
        Box::new(F16),
        Box::new(Int8),
        Box::new(Int4),
        Box::new(TopK::new(0.3)),
        Box::new(TopK::default()),
        Box::new(Lz4),
        Box::new(Zstd::default()),
    ];
    all.into()
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn floats_of(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap())).collect()
}

fn decoded(codec: &dyn Codec, encoded: &[u8], width: usize, length: usize) -> Result<Vec<u8>, CodecError> {
    // Whatever stood there before.
    let mut bytes = vec![0x5a; length];
    codec.decode(encoded, width, &mut bytes).map(|()| bytes)
}

fn back(codec: &dyn Codec, values: &[f32]) -> Vec<f32> {
    let bytes = bytes_of(values);
    floats_of(&decoded(codec, &codec.encode(&bytes, 4), 4, bytes.len()).unwrap())
}

/// Floats of every kind: any bits, or such as activations are.
fn any_values() -> impl Strategy<Value = Vec<f32>> {
    let bits = any::<u32>().prop_map(f32::from_bits);
    let usual = prop_oneof![4 => -3.0f32..3.0, 1 => Just(0.0)];
    prop_oneof![
        proptest::collection::vec(bits, 0..300),
        proptest::collection::vec(usual.clone(), 0..300),
        (proptest::collection::vec(usual, 1..300), -140..120i32).prop_map(|(values, power)| {
            values.into_iter().map(|value| value * 2f32.powi(power)).collect()
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lossless_codecs_give_every_bit_back(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        repeat in 1..4usize,
        width in 1..9usize,
    ) {
        let bytes = bytes.repeat(repeat);
        for codec in every_codec().into_iter().filter(|codec| codec.is_lossless()) {
            let encoded = codec.encode(&bytes, width);
            prop_assert!(encoded.len() <= bytes.len() + 1, "{}", codec.name());
            prop_assert_eq!(&decoded(&*codec, &encoded, width, bytes.len()).unwrap(), &bytes);
        }
    }

    #[test]
    fn halves_stay_within_their_bounds(values in any_values()) {
        type Bound = fn(f32) -> f32;
        for (codec, bound) in [(&Bf16 as &dyn Codec, Bf16::error_bound as Bound), (&F16, F16::error_bound)] {
            let encoded = codec.encode(&bytes_of(&values), 4);
            prop_assert_eq!(encoded.len(), 2 * values.len());
            for (value, found) in values.iter().zip(back(codec, &values)) {
                match value.is_finite() {
                    true => prop_assert!((value - found).abs() <= bound(*value), "{value} became {found}"),
                    false => prop_assert!(value.is_nan() && found.is_nan() || *value == found),
                }
            }
        }
    }

    #[test]
    fn integers_stay_within_the_bound_of_their_block(values in any_values()) {
        type Bound = fn(f32) -> f32;
        for (codec, bound) in [(&Int8 as &dyn Codec, Int8::error_bound as Bound), (&Int4, Int4::error_bound)] {
            let found = back(codec, &values);
            prop_assert_eq!(found.len(), values.len());
            for (block, found) in values.chunks(BLOCK).zip(found.chunks(BLOCK)) {
                if block.iter().any(|value| !value.is_finite()) {
                    prop_assert_eq!(bytes_of(block), bytes_of(found), "kept bit for bit");
                    continue;
                }
                let largest = block.iter().fold(0f32, |most, value| most.max(value.abs()));
                for (value, found) in block.iter().zip(found) {
                    let apart = (value - found).abs();
                    prop_assert!(apart <= bound(largest), "{}: {value} became {found}, {largest}", codec.name());
                }
            }
        }
    }

    #[test]
    fn top_k_keeps_the_largest_and_zeros_the_rest(values in any_values(), part in 0.0..=1.0f64) {
        let codec = TopK::new(part);
        let found = back(&codec, &values);
        let kept = |(value, found): &(&f32, &f32)| value.to_bits() == found.to_bits();
        let magnitude = |value: f32| value.to_bits() & 0x7fff_ffff;
        let pairs: Vec<(&f32, &f32)> = values.iter().zip(&found).collect();
        let lost = pairs.iter().filter(|pair| !kept(pair));
        let most_lost = lost.clone().map(|(value, _)| magnitude(**value)).max().unwrap_or(0);
        prop_assert!(lost.clone().all(|(_, found)| found.to_bits() == 0));
        let count = (values.len() as f64 * part).ceil() as usize;
        prop_assert!(lost.count() <= values.len() - count);
        prop_assert!(found.iter().filter(|value| value.to_bits() != 0).all(|v| magnitude(*v) >= most_lost));
        prop_assert_eq!(codec.encode(&bytes_of(&values), 4).len(), values.len().div_ceil(8) + 4 * count);
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(
        encoded in proptest::collection::vec(any::<u8>(), 0..600),
        mark in 0..3u8,
        width in 0..20usize,
        length in prop_oneof![0..700usize, Just(64), Just(256)],
    ) {
        let marked: Vec<u8> = [mark].into_iter().chain(encoded.iter().copied()).collect();
        for codec in every_codec() {
            for bytes in [&encoded, &marked] {
                let _ = decoded(&*codec, bytes, width, length);
            }
            // An encoder takes anything, too.
            codec.encode(&encoded, width);
        }
    }

    #[test]
    fn cut_short_or_with_a_tail_is_an_error(values in proptest::collection::vec(-3.0f32..3.0, 1..300), cut in 1..9usize) {
        let bytes = bytes_of(&values);
        for codec in every_codec() {
            let encoded = codec.encode(&bytes, 4);
            let short = &encoded[..encoded.len().saturating_sub(cut)];
            prop_assert!(decoded(&*codec, short, 4, bytes.len()).is_err(), "{}", codec.name());
            let long = [&encoded[..], &[7, 7, 7]].concat();
            prop_assert!(decoded(&*codec, &long, 4, bytes.len()).is_err(), "{}", codec.name());
        }
    }
}

#[test]
fn bf16_halves_and_int8_quarters_what_is_stored() {
    let values: Vec<f32> = (0..4096).map(|i| (i as f32).sin()).collect();
    let tensor = PackedTensor { dtype: "f32".into(), shape: vec![64, 64], bytes: bytes_of(&values).into() };
    for (codec, expected) in [("bf16", 8192), ("f16", 8192), ("int8", 4096 + 256), ("int4", 2048 + 256)] {
        let codec = codec::by_name(&codec.parse().unwrap()).unwrap();
        let inner = Box::new(HostStore::new(Bytes::MAX));
        assert_eq!(codec.encoded_length(16384), Some(expected));
        let mut store = Coded::boxed(codec, inner);
        let parcel = Parcel { tensors: vec![tensor.clone()], structure: vec![] };
        store.put(Boundary::new(1), parcel).unwrap();
        assert_eq!(store.used(), Bytes::new(expected as u64), "{}", store.codec().name());
    }
}

#[test]
fn tensors_of_other_types_pass_as_they_are() {
    let whole = PackedTensor { dtype: "i64".into(), shape: vec![2], bytes: vec![9; 16].into() };
    let float = PackedTensor { dtype: "f32".into(), shape: vec![2], bytes: bytes_of(&[1.0, -2.0]).into() };
    let empty = PackedTensor { dtype: "f32".into(), shape: vec![0, 3], bytes: vec![].into() };
    let parcel = Parcel { tensors: vec![whole, float, empty], structure: vec![1, 2] };
    for codec in every_codec() {
        let name = codec.name();
        let exact = name != "top-k";
        let mut store = Coded::boxed(codec, Box::new(HostStore::new(Bytes::MAX)));
        store.put(Boundary::new(0), parcel.clone()).unwrap();
        let taken = store.take(Boundary::new(0)).unwrap();
        assert_eq!(taken.tensors[0], parcel.tensors[0], "{name}");
        assert_eq!((taken.tensors[2].bytes.len(), &taken.structure), (0, &parcel.structure), "{name}");
        let close = floats_of(taken.tensors[1].bytes.as_slice());
        assert!(!exact || (close[1] + 2.0).abs() < 0.2, "{name}: {close:?}");
    }
}

#[test]
fn a_store_behind_a_codec_that_gives_nonsense_is_found_out() {
    struct Nonsense;
    impl Store for Nonsense {
        fn put(&mut self, _: Boundary, _: Parcel) -> Result<(), StoreError> {
            Ok(())
        }
        fn prefetch(&mut self, _: Boundary) -> Result<(), StoreError> {
            Ok(())
        }
        fn take(&mut self, _: Boundary) -> Result<Parcel, StoreError> {
            let tensor = PackedTensor { dtype: "f32".into(), shape: vec![64], bytes: vec![1, 2, 3].into() };
            Ok(Parcel { tensors: vec![tensor], structure: vec![] })
        }
        fn forget(&mut self, _: Boundary) -> Result<(), StoreError> {
            Ok(())
        }
    }
    let tensor = PackedTensor { dtype: "f32".into(), shape: vec![64], bytes: vec![0; 256].into() };
    for codec in every_codec() {
        let mut store = Coded::boxed(codec, Box::new(Nonsense));
        store.put(Boundary::new(0), Parcel { tensors: vec![tensor.clone()], structure: vec![] }).unwrap();
        let error = store.take(Boundary::new(0)).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    }
}
