//! Nodes nobody goes back through.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use burn::backend::autodiff::NodeId;
use burn::tensor::{Device, Tensor};

/// How many nodes of untracked operations wait for the next backward.
static LEFT: AtomicU64 = AtomicU64::new(0);

/// Burn registers a node for every untracked operation and frees it with the next backward, whichever that is: some
/// 70 KiB for a transformer block. Runs something that leaves such nodes behind.
pub(crate) fn leaving_nodes<T>(run: impl FnOnce() -> T) -> T {
    let before = nodes_made();
    let made = run();
    LEFT.fetch_add(nodes_made().saturating_sub(before), Relaxed);
    made
}

/// Once so many nodes were left behind, this is that backward. It looks at every node there is: with a long tape around,
/// not a thing to do after each stage.
pub(crate) fn sweep_when(left: u64) {
    if LEFT.load(Relaxed) >= left {
        sweep();
    }
}

/// A backward of somebody else's has swept.
pub(crate) fn swept() {
    LEFT.store(0, Relaxed);
}

/// How many nodes there have been. The next one counts.
pub(crate) fn nodes_made() -> u64 {
    NodeId::new().value
}

/// Frees what abandoned and untracked operations left behind in Burn's graphs.
///
/// Regions sweep by themselves; after many forward passes without a backward, such as a validation on a device with
/// autodiff, it can be called by hand. It costs a few microseconds.
pub fn sweep() {
    swept();
    #[cfg(feature = "flex")]
    {
        let device = Device::flex().autodiff();
        let _ = Tensor::<1>::zeros([1], &device).require_grad().backward();
    }
    #[cfg(all(feature = "ndarray", not(feature = "flex")))]
    {
        let device = Device::ndarray().autodiff();
        let _ = Tensor::<1>::zeros([1], &device).require_grad().backward();
    }
    #[cfg(all(feature = "cuda", not(feature = "flex"), not(feature = "ndarray")))]
    {
        let device = Device::cuda(0).autodiff();
        let _ = Tensor::<1>::zeros([1], &device).require_grad().backward();
    }
}
