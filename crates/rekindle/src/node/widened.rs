//! Operations on elements of 16 bits, whose work is done in `f32`.

use std::any::Any;

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, FloatDType, TensorData, bf16, f16};
use half::slice::HalfFloatSliceExt;
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};

use super::GraphBackend;
use super::operation::{Found, Operation, apply};
use super::tensor::AnyTensor;
use crate::kernel::vectorised;

/// Elements a thread converts at a time.
const SHARE: usize = 16 * 1024;

/// Whether elements of this type have fewer digits than the work is done in.
pub(crate) fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Runs an operation as [`apply`] does. Inputs of 16 bits are kept as they are and widened while it runs; what it makes has
/// the type `makes`, and every gradient that of its input.
#[allow(clippy::result_large_err, reason = "neither is an error: both are tensors, which are moved anyway")]
pub(crate) fn apply_widened<const N: usize>(
    operation: impl Operation<N>,
    inputs: [AnyTensor; N],
    makes: DType,
) -> Result<AnyTensor, [AnyTensor; N]> {
    let given = inputs.each_ref().map(|input| input.0.dtype());
    match given.iter().any(|dtype| is_narrow(*dtype)) {
        true => apply(Widened { operation, given, makes }, inputs),
        false => apply(operation, inputs),
    }
}

#[derive(Clone, Debug)]
struct Widened<O, const N: usize> {
    operation: O,
    given: [DType; N],
    makes: DType,
}

impl<O: Operation<N>, const N: usize> Operation<N> for Widened<O, N> {
    const READS: [bool; N] = O::READS;
    const CHEAP: bool = O::CHEAP;
    const AGAIN: bool = O::AGAIN;
    const ANYWHERE: bool = O::ANYWHERE;
    const SUMS: [bool; N] = O::SUMS;

    fn forward<B: GraphBackend>(self, inputs: [FloatTensor<B>; N]) -> FloatTensor<B> {
        converted::<B>(self.operation.forward::<B>(inputs.map(widened::<B>)), self.makes)
    }

    fn record<B: GraphBackend>(self, inputs: [FloatTensor<B>; N]) -> (FloatTensor<B>, Vec<FloatTensor<B>>) {
        let (output, kept) = self.operation.record::<B>(inputs.map(widened::<B>));
        (converted::<B>(output, self.makes), kept)
    }

    fn unmade<B: GraphBackend>(&self, inputs: &[FloatTensor<B>; N]) -> Option<FloatTensor<B>> {
        Some(converted::<B>(self.operation.unmade::<B>(inputs)?, self.makes))
    }

    fn for_backward(&self) -> Self {
        Self { operation: self.operation.for_backward(), ..self.clone() }
    }

    fn on_balanced_tape(self) -> Self {
        Self { operation: self.operation.on_balanced_tape(), ..self }
    }

    fn backward<B: GraphBackend>(self, found: Found<B, N>) -> [Option<FloatTensor<B>>; N] {
        let Found { inputs, kept, gradient, sums, wanted } = found;
        let [inputs, sums] = [inputs, sums].map(|tensors| tensors.map(|tensor| tensor.map(widened::<B>)));
        let found = Found { inputs, kept, gradient: widened::<B>(gradient), sums, wanted };
        let mut given = self.given.into_iter();
        self.operation.backward::<B>(found).map(|gradient| {
            let dtype = given.next().unwrap_or(DType::F32);
            gradient.map(|gradient| converted::<B>(gradient, dtype))
        })
    }
}

/// The type the work is done in, where the elements have fewer digits.
pub(crate) fn widened<B: GraphBackend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    match is_narrow(tensor.dtype()) {
        true => converted::<B>(tensor, DType::F32),
        false => tensor,
    }
}

/// The same elements as another type, rounded to the nearest.
pub(crate) fn converted<B: GraphBackend>(tensor: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    if tensor.dtype() == dtype {
        return tensor;
    }
    match on_threads::<B>(&tensor, dtype) {
        Some(data) => B::float_from_data(data, &tensor.device()),
        None => B::float_cast(tensor, float_type(dtype)),
    }
}

/// Elements that lie in this process, converted with vectors on all threads: Flex does it one by one.
fn on_threads<B: GraphBackend>(tensor: &FloatTensor<B>, dtype: DType) -> Option<TensorData> {
    #[cfg(feature = "flex")]
    {
        let lying = (tensor as &dyn Any).downcast_ref::<FloatTensor<burn::backend::Flex>>()?;
        let (lying, shape) = (lying.to_contiguous(), tensor.shape());
        Some(match (tensor.dtype(), dtype) {
            (DType::BF16, DType::F32) => TensorData::new(made(lying.as_slice::<bf16>()?, from_bf16), shape),
            (DType::F16, DType::F32) => TensorData::new(made(lying.as_slice::<f16>()?, from_f16), shape),
            (DType::F32, DType::BF16) => TensorData::new(made(lying.as_slice::<f32>()?, to_bf16), shape),
            (DType::F32, DType::F16) => TensorData::new(made(lying.as_slice::<f32>()?, to_f16), shape),
            _ => return None,
        })
    }
    #[cfg(not(feature = "flex"))]
    {
        let _ = (tensor, dtype);
        None
    }
}

fn made<T: Sync, U: Clone + Default + Send>(from: &[T], convert: impl Fn(&[T], &mut [U]) + Sync) -> Vec<U> {
    let mut to = vec![U::default(); from.len()];
    let shares = to.par_chunks_mut(SHARE).zip(from.par_chunks(SHARE));
    shares.for_each(|(to, from)| convert(from, to));
    to
}

fn from_f16(from: &[f16], to: &mut [f32]) {
    from.convert_to_f32_slice(to);
}

fn to_f16(from: &[f32], to: &mut [f16]) {
    to.convert_from_f32_slice(from);
}

fn from_bf16(from: &[bf16], to: &mut [f32]) {
    struct Widen<'a>(&'a [bf16], &'a mut [f32]);
    impl pulp::NullaryFnOnce for Widen<'_> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            for (to, from) in self.1.iter_mut().zip(self.0) {
                *to = f32::from_bits(u32::from(from.to_bits()) << 16);
            }
        }
    }
    vectorised(Widen(from, to));
}

fn to_bf16(from: &[f32], to: &mut [bf16]) {
    struct Narrow<'a>(&'a [f32], &'a mut [bf16]);
    impl pulp::NullaryFnOnce for Narrow<'_> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            for (to, from) in self.1.iter_mut().zip(self.0) {
                *to = nearest(*from);
            }
        }
    }
    vectorised(Narrow(from, to));
}

/// As `bf16::from_f32`, with a choice instead of a branch, so that the compiler can do several at once.
#[inline(always)]
fn nearest(value: f32) -> bf16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    // A NaN stays one, whatever its lower half was.
    let quiet = bits >> 16 | 0x40;
    bf16::from_bits(if value.is_nan() { quiet } else { rounded } as u16)
}

/// The type as one to cast to.
fn float_type(dtype: DType) -> FloatDType {
    match dtype {
        DType::F16 => FloatDType::F16,
        DType::BF16 => FloatDType::BF16,
        DType::F64 => FloatDType::F64,
        _ => FloatDType::F32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_that_of_the_type() {
        let numbers = (0..=u16::MAX).flat_map(|upper| {
            [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|lower| f32::from_bits(u32::from(upper) << 16 | lower))
        });
        for x in numbers {
            let (found, expected) = (nearest(x), bf16::from_f32(x));
            assert!(found == expected || (found.is_nan() && expected.is_nan()), "{x}: {found}, {expected}");
            assert_eq!(found.is_nan(), x.is_nan(), "{x}");
        }
        let narrow: Vec<bf16> = made(&[1.0, f32::MAX, -0.0], to_bf16);
        assert_eq!(narrow, [bf16::ONE, bf16::INFINITY, bf16::NEG_ZERO]);
        assert_eq!(made(&narrow, from_bf16), [1.0, f32::INFINITY, -0.0]);
        let narrow: Vec<f16> = made(&[1.0, 1e5, -0.0], to_f16);
        assert_eq!(made(&narrow, from_f16), [1.0, f32::INFINITY, -0.0]);
    }
}
