//! Nodes nobody goes back through.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use burn::backend::autodiff::NodeId;
use burn::tensor::{Device, Tensor};

/// Burn registers a node for every untracked operation and frees it with the next backward, whichever that is: some
/// 70 KiB for a transformer block. Once `new` nodes were made since the last sweep, this is that backward.
pub(crate) fn sweep_when(new: u64) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let made = NodeId::new().value;
    if made.saturating_sub(LAST.load(Relaxed)) >= new {
        sweep();
        LAST.store(made, Relaxed);
    }
}

/// Frees what abandoned and untracked operations left behind in Burn's graphs.
///
/// Regions sweep by themselves; after many forward passes without a backward, such as a validation on a device with
/// autodiff, it can be called by hand. It costs a few microseconds.
pub fn sweep() {
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
