//! What a device can do, in a few numbers.

use std::hint::black_box;
use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::nodes::Nodes;

/// How fast a device is: enough to tell the time of an operation from its shapes.
///
/// An operation takes as long as its arithmetic or its memory, whichever is slower, and what it costs to start one.
/// Measured once, it can be kept in a file and used on other machines.
///
/// ```
/// use burn::tensor::Device;
/// use rekindle::{DeviceModel, Nodes};
///
/// let here = DeviceModel::measure(&Device::flex());
/// assert!(here.matmul_flops_per_second > 0 && here.memory_bytes_per_second > 0);
/// // One that is not here: what its data sheet says, and what it reaches of that.
/// let there = DeviceModel {
///     name: "gpu".into(),
///     matmul_flops_per_second: 400_000_000_000_000,
///     memory_bytes_per_second: 3_000_000_000_000,
///     overhead_ns_per_op: 5_000,
///     tape_nodes: Nodes::default(),
/// };
/// # let _ = there;
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceModel {
    /// What people call it; a profile's `device`.
    pub name: String,
    /// Of large matrix products: two for each multiplication with its addition.
    pub matmul_flops_per_second: u64,
    /// What an operation on large tensors reads and writes.
    pub memory_bytes_per_second: u64,
    /// What an operation on nothing takes.
    pub overhead_ns_per_op: u64,
    /// What tapes take of the device's memory beside their elements.
    #[serde(default)]
    pub tape_nodes: Nodes,
}

/// How long one number is measured.
const SHARE: Duration = Duration::from_millis(80);

impl DeviceModel {
    /// Any device, where only sizes of tensors are wanted.
    pub(crate) fn of_shapes_alone() -> Self {
        Self {
            name: "any".to_owned(),
            matmul_flops_per_second: u64::MAX,
            memory_bytes_per_second: u64::MAX,
            overhead_ns_per_op: 0,
            tape_nodes: Nodes::default(),
        }
    }

    /// Measures the device for about a quarter of a second, in its usual float type.
    ///
    /// Nothing is drawn from Burn's random numbers. What else runs on the machine is in the figures: measure when it is
    /// quiet.
    pub fn measure(device: &Device) -> Self {
        let device = device.clone().without_autodiff();
        let side = 512;
        let matrix = Tensor::<2>::full([side, side], 1e-3, &device);
        let product = fastest(&device, || matrix.clone().matmul(matrix.clone()));
        // Larger than most caches, as activations are.
        let large = Tensor::<1>::full([1 << 22], 1e-3, &device);
        let sum = fastest(&device, || large.clone() + large.clone());
        let moved = 3 * large.shape().num_elements() * large.dtype().size();
        let small = Tensor::<1>::full([1], 1e-3, &device);
        let start = fastest(&device, || (0..64).fold(small.clone(), |sum, _| sum + 1.0));
        let per_second = |amount: usize, time: Duration| (amount as f64 / time.as_secs_f64()).round() as u64;
        Self {
            name: name_of(&device),
            matmul_flops_per_second: per_second(2 * side * side * side, product).max(1),
            memory_bytes_per_second: per_second(moved, sum).max(1),
            overhead_ns_per_op: u64::try_from(start.as_nanos() / 64).unwrap_or(u64::MAX),
            tape_nodes: Nodes::measure(&device),
        }
    }
}

/// The time of the fastest run: others were disturbed.
fn fastest<T>(device: &Device, run: impl Fn() -> T) -> Duration {
    let once = || {
        let start = Instant::now();
        black_box(run());
        // A device that cannot be waited for is measured as it is.
        let _ = device.sync();
        start.elapsed()
    };
    once();
    let start = Instant::now();
    let mut fastest = once();
    while start.elapsed() < SHARE {
        fastest = fastest.min(once());
    }
    fastest.max(Duration::from_nanos(1))
}

/// `flex` for `Device(Flex(FlexDevice))`.
fn name_of(device: &Device) -> String {
    let words = format!("{device:?}").to_lowercase();
    let mut words = words.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty());
    let first = words.next().unwrap_or("device").to_owned();
    match (first.as_str(), words.next()) {
        ("device", Some(second)) => second.to_owned(),
        _ => first,
    }
}
