//! Plans that move boundaries away.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use burn::tensor::Tensor;
use rekindle::{Budget, Bytes, Error, Places, Planner, Region, Staged};

use crate::common::*;

struct Chain(Vec<Block>);

impl Staged for Chain {
    type Batch = Tensor<2>;
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn stages(&self, batch: &Tensor<2>) -> (Region<Tensor<2>, Tensor<2>>, Tensor<2>) {
        (Region::new().stages("block", &self.0, block), batch.clone())
    }
}

/// A chain whose boundaries are what fills the memory.
fn chain() -> (Chain, Tensor<2>) {
    (Chain(blocks(12, &device())), Tensor::<2>::ones([64, 8], &device()).require_grad())
}

/// The bytes of the loss, and of all gradients.
type Outcome = (Vec<u8>, Vec<u8>, Vec<Option<Vec<u8>>>);

/// One step; `between` is called when the forward is through.
fn step(
    chain: &Chain,
    forward: impl Fn(&Tensor<2>) -> Result<Tensor<2>, Error>,
    between: impl Fn(),
) -> Result<Outcome, Error> {
    rekindle::seed(3);
    let x = Tensor::<2>::ones([64, 8], &device()).require_grad();
    let loss = forward(&x)?.sum();
    between();
    let all = rekindle::backward(&loss)?;
    Ok((bytes(&loss), bytes(&x.grad(&all).unwrap()), gradients(&chain.0, all)))
}

fn plain(chain: &Chain) -> Outcome {
    rekindle::without_checkpointing(|| {
        step(chain, |x| Region::new().stages("block", &chain.0, block).forward(x.clone()), || {}).unwrap()
    })
}

fn uses(plan: &rekindle::Planned, what: &str) -> bool {
    plan.plan().actions.iter().any(|action| action.to_string().starts_with(what))
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn a_boundary_that_a_disk_damages_is_computed_again() {
    let _alone = alone();
    let (chain, sample) = chain();
    let folder = std::env::temp_dir().join(format!("rekindle-places-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let places = Places::new().disk(&folder, Bytes::mebibytes(16)).unwrap();
    let planner = Planner::new(Budget::smallest()).places(places.clone());
    let plan = planner.plan(&chain, &sample).unwrap();
    assert!(uses(&plan, "offload "), "the smallest budget needs the disk");

    let expected = plain(&chain);
    assert_eq!(step(&chain, |x| plan.forward(&chain, x), || {}).unwrap(), expected);
    assert_eq!(places.take_faults(), []);

    let damage = |from: usize| {
        // Something may still be on its way.
        std::thread::sleep(Duration::from_millis(50));
        for file in files(&folder) {
            let mut bytes = std::fs::read(&file).unwrap();
            bytes.iter_mut().skip(from).for_each(|byte| *byte = !*byte);
            let mut file = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
            file.write_all(&bytes).unwrap();
        }
    };
    // The input of the region went first, and stands in the first block.
    assert_eq!(step(&chain, |x| plan.forward(&chain, x), || damage(4096)).unwrap(), expected);
    let faults = places.take_faults();
    assert!(!faults.is_empty() && faults.iter().all(|fault| fault.place.as_str() == "disk"), "{faults:?}");
    assert_eq!(places.take_faults(), []);

    // Without it, there is nothing to compute from.
    let error = step(&chain, |x| plan.forward(&chain, x), || damage(0)).unwrap_err();
    assert!(error.to_string().contains("is lost and cannot be computed again"), "{error}");

    drop((plan, places));
    assert_eq!(files(&folder).len(), 0, "the file goes with the last of its places");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn codecs_that_lose_nothing_change_no_bit_and_others_say_so() {
    let _alone = alone();
    let (chain, sample) = chain();
    for (codec, lossy) in [("lossless", false), ("lz4", false), ("bf16", true), ("int8", true)] {
        let places = Places::new().codec(codec).unwrap();
        let plan = Planner::new(Budget::smallest()).places(places).plan(&chain, &sample).unwrap();
        assert_eq!(!plan.lossy_codecs().is_empty(), lossy && uses(&plan, "compress "), "{codec}");
        let same = step(&chain, |x| plan.forward(&chain, x), || {}).unwrap() == plain(&chain);
        assert!(same || lossy, "{codec}");
    }
    assert!(matches!(Places::new().codec("int7"), Err(Error::UnknownCodec { .. })));
}

#[test]
fn host_memory_is_no_place_for_a_device_that_computes_in_it() {
    let _alone = alone();
    let (chain, sample) = chain();
    let planner = Planner::new(Budget::smallest()).places(Places::new().host(Bytes::mebibytes(1)));
    let error = planner.plan(&chain, &sample).unwrap_err();
    assert!(matches!(&error, Error::HostIsDevice { device } if device == "flex"), "{error}");
}
