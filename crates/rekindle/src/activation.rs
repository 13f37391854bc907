//! Activations that keep less for the backward than Burn's, and take less time.
//!
//! Each is one node of the autodiff graph, with a kernel of its own on Flex. They compute what Burn's functions of the
//! same names compute, within rounding.

mod gelu;
mod gelu_tanh;
mod softmax;
mod swiglu;

pub use gelu::gelu;
pub use gelu_tanh::gelu_tanh;
pub use softmax::{masked_softmax, softmax};
pub use swiglu::swiglu;
