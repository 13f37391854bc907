//! A backward pass that returns errors.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use burn::tensor::{Gradients, Tensor};

use crate::Error;

thread_local! {
    /// Whether somebody on this thread waits for an error.
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    static RAISED: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// What unwinds from a region's node to [`backward`].
struct Raised;

/// Like `loss.backward()`, but what a region can only find in the backward pass comes back as an error.
///
/// Burn's own `loss.backward()` works just as well: there the same words are a panic.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::GradientsParams;
/// use burn::tensor::{Device, Tensor};
/// use rekindle::checkpoint;
///
/// let device = Device::flex().autodiff();
/// let layer = LinearConfig::new(8, 1).init(&device);
/// let x = Tensor::<2>::ones([4, 8], &device);
/// let loss = checkpoint(&layer, x, |layer: &Linear, x: Tensor<2>| layer.forward(x))?.mean();
/// let gradients = GradientsParams::from_grads(rekindle::backward(&loss)?, &layer);
/// assert_eq!(gradients.len(), 2);
/// # Ok::<(), rekindle::Error>(())
/// ```
///
/// # Errors
/// When the loss is not tracked, a stage does something else in the recomputation than in the forward pass, or
/// anything panics on the way.
pub fn backward<const D: usize>(loss: &Tensor<D>) -> Result<Gradients, Error> {
    if !loss.is_tracked() {
        return Err(Error::Untracked);
    }
    // A graph that was half gone through is not gone through again: Burn took its steps out before it ran them.
    catching(|| loss.backward())
}

/// Runs something whose panics, and what is raised in it, are errors.
pub(crate) fn catching<T>(run: impl FnOnce() -> T) -> Result<T, Error> {
    let outer = CATCHING.replace(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    CATCHING.set(outer);
    result.map_err(|payload| match RAISED.take() {
        Some(error) if payload.is::<Raised>() => error,
        _ => Error::Panicked { message: message_of(payload.as_ref()) },
    })
}

pub(crate) fn message_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "(no message)".to_owned())
}

/// Leaves the backward pass: as an error where [`backward`] waits for it, as a panic with the same words otherwise.
#[allow(clippy::panic)]
pub(crate) fn raise(error: Error) -> ! {
    if CATCHING.get() {
        RAISED.set(Some(error));
        // Not `panic!`: an error that is handled must not print like one that is not.
        resume_unwind(Box::new(Raised));
    }
    panic!("rekindle: {error}");
}
