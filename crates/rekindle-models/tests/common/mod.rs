//! What all tests of the models share.

use std::sync::{Mutex, PoisonError};

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};

/// One test at a time, because Burn's random state and the counting allocator are one per process.
///
/// On a thread of its own that is gone before the next begins: matrix products keep their scratch memory until the thread
/// ends, and freed in the next test's run it would hide as much of that one's peak.
pub(crate) fn alone(test: impl FnOnce() + Send) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        if let Err(panic) = scope.spawn(test).join() {
            std::panic::resume_unwind(panic);
        }
    });
}

pub(crate) fn device() -> Device {
    Device::flex().autodiff()
}

/// The bytes of every parameter's gradient, none where there is none.
pub(crate) fn gradients(model: &impl Module, found: &GradientsParams) -> Vec<Vec<u8>> {
    struct Collect<'a>(&'a GradientsParams, Vec<Vec<u8>>);
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = self.0.get::<D>(param.id).map(|gradient| gradient.into_data().as_bytes().to_vec());
            self.1.push(gradient.unwrap_or_default());
        }
    }
    let mut collect = Collect(found, Vec::new());
    model.visit(&mut collect);
    collect.1
}
