//! Devices whose tensors have shapes and no values.

use burn::tensor::Device;

/// Whether tensors of this device have values. Where a model is traced they have none, and operations that go below autodiff
/// (`inner`, `from_inner`) are not possible there.
///
/// ```
/// assert!(rekindle::has_values(&burn::tensor::Device::flex()));
/// ```
#[cfg_attr(not(feature = "capture"), allow(unused_variables, reason = "without traces all of them have"))]
pub fn has_values(device: &Device) -> bool {
    #[cfg(feature = "capture")]
    {
        !crate::traced::is_captured(device)
    }
    #[cfg(not(feature = "capture"))]
    {
        true
    }
}
