//! How many digits activations have.

use std::fmt;
use std::str::FromStr;

use burn::tensor::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::Error;

/// The type of a model's activations, and so of its checkpoints. Weights, their gradients and the optimizer's state are
/// `f32` under each of them: a model casts what its first layer makes, and the nodes in [`nn`](crate::nn),
/// [`activation`](crate::activation), [`Attention`](crate::Attention) and [`Dropout`](crate::Dropout) take it from there.
///
/// ```
/// use burn::tensor::{DType, Device, Tensor};
/// use rekindle::training::Precision;
///
/// let device = Device::flex().autodiff();
/// let precision: Precision = "bf16".parse()?;
/// precision.check(&device)?;
/// let x = precision.cast(Tensor::<2>::ones([2, 4], &device));
/// assert_eq!(x.dtype(), DType::BF16);
/// # Ok::<(), rekindle::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// The range of `f32` in 16 bits, with 8 bits of its value.
    Bf16,
    /// IEEE's half precision: 11 bits of the value, up to 65504. Needs a [`LossScale`](super::LossScale).
    F16,
}

impl Precision {
    const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::F16];

    /// The type of an element.
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }

    /// The tensor in this type. Its gradient comes back in the type it had.
    pub fn cast<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match x.dtype() == self.dtype() {
            true => x,
            false => x.cast(self.dtype()),
        }
    }

    /// Whether tensors on `device` can have this type.
    ///
    /// # Errors
    /// When they cannot.
    pub fn check(self, device: &Device) -> Result<(), Error> {
        self.check_on(device, |dtype| device.supports_dtype(dtype))
    }

    /// The same of anything that knows its types.
    fn check_on(self, device: &dyn fmt::Debug, has: impl Fn(DType) -> bool) -> Result<(), Error> {
        match has(self.dtype()) {
            true => Ok(()),
            false => Err(Error::UnsupportedType { found: self.to_string(), device: format!("{device:?}") }),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.dtype().name())
    }
}

impl FromStr for Precision {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let named = Self::ALL.into_iter().find(|precision| precision.dtype().name() == text);
        named.ok_or_else(|| Error::UnknownPrecision { found: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        for precision in Precision::ALL {
            assert_eq!(precision.to_string().parse::<Precision>().unwrap(), precision);
            precision.check(&Device::flex()).unwrap();
        }
        assert!("fp16".parse::<Precision>().unwrap_err().to_string().contains("f32, bf16 or f16"));
    }
    /// Flex has every type; other devices do not.
    #[test]
    fn a_type_that_a_device_lacks_is_refused() {
        let check = |precision: Precision| precision.check_on(&"Abacus", |dtype| dtype == DType::F32);
        check(Precision::F32).unwrap();
        for narrow in [Precision::F16, Precision::Bf16] {
            let error = check(narrow).unwrap_err();
            let Error::UnsupportedType { found, device } = &error else { panic!("{error}") };
            assert_eq!((found.as_str(), device.as_str()), (narrow.dtype().name(), "\"Abacus\""));
        }
    }
}
