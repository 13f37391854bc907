//! Any bytes are a whole snapshot or are refused, without a panic and without a large allocation; what is whole is
//! written and read back as what it was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rekindle_run::snapshots::{Section, Snapshot};
use xxhash_rust::xxh3::xxh3_128;

fuzz_target!(|bytes: &[u8]| {
    judge(bytes);
    // No mutation finds a checksum: with the right one at its end, what is before it is looked at too.
    let mut sealed = bytes.to_vec();
    sealed.extend(xxh3_128(bytes).to_be_bytes());
    judge(&sealed);
});

fn judge(bytes: &[u8]) {
    match Snapshot::parse(bytes) {
        Ok(snapshot) => {
            let sections: Vec<Section<'_>> = snapshot.sections().collect();
            let written = Snapshot::encode(snapshot.step(), snapshot.metadata(), &sections);
            let again = Snapshot::parse(&written.expect("what was read can be written"))
                .expect("what was written can be read");
            assert_eq!(again.step(), snapshot.step());
            assert_eq!(again.metadata(), snapshot.metadata());
            assert!(again.sections().eq(snapshot.sections()));
        }
        Err(damage) => assert!(!damage.to_string().is_empty()),
    }
}
