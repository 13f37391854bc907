//! How fast codecs and stores move a boundary of 4 MiB: bytes of `f32` a second.

use divan::{Bencher, counter::BytesCount};
use rekindle_plan::{Boundary, Bytes, Name};
use rekindle_run::codec::{self, Codec};
use rekindle_run::{HostStore, PackedTensor, Parcel, Store};

fn main() {
    divan::main();
}

const VALUES: usize = 1 << 20;
const CODECS: [&str; 7] = ["bf16", "f16", "int8", "int4", "top-k", "lz4", "zstd"];

/// Such as activations are: near a bell, half of them 0 after a ReLU when `sparse`.
fn activations(sparse: bool) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    let mut value = || next() + next() + next() + next();
    let values = (0..VALUES).map(|_| if sparse { value().max(0.0) } else { value() });
    values.flat_map(f32::to_ne_bytes).collect()
}

fn codec(name: &str) -> Box<dyn Codec> {
    let name: Name = name.parse().unwrap_or_else(|error| panic!("{error}"));
    codec::by_name(&name).unwrap_or_else(|| panic!("no codec `{name}`"))
}

#[divan::bench(args = CODECS)]
fn encode(bencher: Bencher, name: &str) {
    let (codec, bytes) = (codec(name), activations(true));
    bencher.counter(BytesCount::new(bytes.len())).bench_local(|| codec.encode(&bytes, 4));
}

#[divan::bench(args = CODECS)]
fn decode(bencher: Bencher, name: &str) {
    let (codec, bytes) = (codec(name), activations(true));
    let (encoded, mut back) = (codec.encode(&bytes, 4), bytes.clone());
    bencher.counter(BytesCount::new(bytes.len())).bench_local(|| codec.decode(&encoded, 4, &mut back));
}

/// What shuffling the bytes of elements is worth: elements of one byte are not shuffled. LZ4 never does.
#[divan::bench(args = [true, false], consts = [1, 4])]
fn zstd_by_width<const WIDTH: usize>(bencher: Bencher, sparse: bool) {
    let (codec, bytes) = (codec("zstd"), activations(sparse));
    let left = codec.encode(&bytes, WIDTH).len() as f64 / bytes.len() as f64;
    eprintln!("elements of {WIDTH}, half of them 0: {sparse}; {:.1}% left", 100.0 * left);
    bencher.counter(BytesCount::new(bytes.len())).bench_local(|| codec.encode(&bytes, WIDTH));
}

fn parcel() -> Parcel {
    let bytes = activations(false).into();
    let tensor = PackedTensor { dtype: "f32".into(), shape: vec![VALUES], bytes };
    Parcel { tensors: vec![tensor], structure: vec![] }
}

fn round_trip(bencher: Bencher, mut store: impl Store) {
    let x = Boundary::new(1);
    bencher.counter(BytesCount::new(4 * VALUES)).with_inputs(parcel).bench_local_values(|parcel| {
        store.put(x, parcel)?;
        store.wait(x)?;
        store.prefetch(x)?;
        store.take(x)
    });
}

#[divan::bench]
fn host(bencher: Bencher) {
    round_trip(bencher, HostStore::new(Bytes::mebibytes(64)));
}

#[cfg(unix)]
#[divan::bench]
fn disk(bencher: Bencher) {
    let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let store = rekindle_run::DiskStore::open(directory.path(), Bytes::mebibytes(64));
    round_trip(bencher, store.unwrap_or_else(|error| panic!("{error}")));
}
