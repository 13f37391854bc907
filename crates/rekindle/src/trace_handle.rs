//! Where traces are left for whoever asked for them.

use std::sync::{Arc, Mutex, PoisonError};

use rekindle_run::Trace;

/// Where a region's trace can be read when its backward is through.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use rekindle::{Region, TraceHandle};
///
/// let device = Device::flex().autodiff();
/// let layers: Vec<Linear> = (0..3).map(|_| LinearConfig::new(8, 8).init(&device)).collect();
/// let trace = TraceHandle::new();
/// let region = Region::new().stages("layer", &layers, |layer: &Linear, x: Tensor<2>| layer.forward(x));
/// let y = region.trace(&trace).forward(Tensor::ones([2, 8], &device))?;
/// y.sum().backward();
/// assert_eq!(trace.get().unwrap().events().len(), 12);
/// # Ok::<(), rekindle::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct TraceHandle(Arc<Mutex<Option<Trace>>>);

impl TraceHandle {
    /// A handle to no trace yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The trace of the last region that ran with this handle, once its backward is through.
    pub fn get(&self) -> Option<Trace> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, trace: Trace) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(trace);
    }
}
