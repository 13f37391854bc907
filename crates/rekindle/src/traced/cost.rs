//! From operations to work, and from work to time.

use rekindle_plan::{Bytes, Nanos};

use super::DeviceModel;
use super::operation::{Kind, Operation, Value};

/// What a forward or a backward does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Work {
    /// Of matrix products, convolutions and attention, two for each multiplication with its addition. Other operations
    /// are not counted: memory sets their pace.
    pub flops: u64,
    /// What the operations read and write.
    pub moved_bytes: Bytes,
    /// How many operations there are. Views are none.
    pub operations: u64,
}

/// The work of some operations.
pub(super) fn work(operations: &[Operation]) -> Work {
    operations.iter().filter(|operation| runs(operation)).fold(Work::default(), |sum, operation| Work {
        flops: sum.flops.saturating_add(flops(operation)),
        moved_bytes: [sum.moved_bytes, Bytes::new(moved(operation))].into_iter().sum(),
        operations: sum.operations + 1,
    })
}

/// How long some operations take: each as long as its arithmetic or its memory, whichever is slower.
pub(super) fn time(operations: &[Operation], device: &DeviceModel) -> Nanos {
    let second = 1e9;
    let nanos = operations.iter().filter(|operation| runs(operation)).map(|operation| {
        let compute = flops(operation) as f64 / device.matmul_flops_per_second as f64;
        let memory = moved(operation) as f64 / device.memory_bytes_per_second as f64;
        // Not a number is nothing through nothing: it takes no time.
        compute.max(memory).max(0.0) * second + device.overhead_ns_per_op as f64
    });
    Nanos::new(nanos.sum::<f64>().round() as u64)
}

fn runs(operation: &Operation) -> bool {
    !matches!(operation.kind, Kind::Creation | Kind::View(_))
}

fn flops(operation: &Operation) -> u64 {
    match operation.kind {
        Kind::Product { flops } => flops,
        _ => 0,
    }
}

fn moved(operation: &Operation) -> u64 {
    let sum = |values: &[Value]| values.iter().fold(0, |sum: u64, value| sum.saturating_add(value.bytes()));
    let made = sum(&operation.makes);
    match operation.kind {
        Kind::Lookup => {
            let indices = operation.reads.get(1..).unwrap_or_default();
            made.saturating_mul(2).saturating_add(sum(indices))
        }
        _ => made.saturating_add(sum(&operation.reads)),
    }
}
