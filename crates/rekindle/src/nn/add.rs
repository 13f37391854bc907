//! The sum of what goes around and what goes through.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Tensor;

use crate::kernel::Kernel;
use crate::node::{AnyTensor, Found, GraphBackend, Operation, apply_widened, rewrite_from, unmade};

/// The sum of two tensors, as a residual connection makes it: Burn's `around + through`, with the same bits.
///
/// A balanced tape keeps the sum. Of Burn's addition it keeps what went through, and what went around until the backward
/// begins, to add them up again. A [`tail`](crate::tail()) leaves it out.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use rekindle::nn::add;
///
/// let x = Tensor::<2>::ones([2, 3], &Device::flex().autodiff());
/// let y = add(x.clone(), x.tanh());
/// assert_eq!(y.dims(), [2, 3]);
/// ```
///
/// # Panics
/// As Burn's: when the shapes do not go together.
pub fn add<const D: usize>(around: Tensor<D>, through: Tensor<D>) -> Tensor<D> {
    // One of them spread over the other, or of other elements, is Burn's.
    if around.dims() != through.dims() || around.dtype() != through.dtype() {
        return around + through;
    }
    let dtype = around.dtype();
    apply_widened(Add, [AnyTensor::from(around), AnyTensor::from(through)], dtype)
        .map(|sum| Tensor::from_dispatch(sum.0))
        .unwrap_or_else(|[around, through]| {
            Tensor::<D>::from_dispatch(around.0) + Tensor::from_dispatch(through.0)
        })
}

#[derive(Clone, Copy, Debug)]
struct Add;

impl Operation<2> for Add {
    const READS: [bool; 2] = [false, false];
    // To run it again would take both inputs, which nobody else reads.
    const CHEAP: bool = false;

    fn forward<B: GraphBackend>(self, [around, through]: [FloatTensor<B>; 2]) -> FloatTensor<B> {
        let add = |around: &[f32], elements: &mut [f32]| Sum { around }.over(elements, 1);
        rewrite_from::<B>(through, &around, add).unwrap_or_else(|through| B::float_add(around, through))
    }

    fn unmade<B: GraphBackend>(&self, [_, through]: &[FloatTensor<B>; 2]) -> Option<FloatTensor<B>> {
        Some(unmade::<B>(through.shape(), through))
    }

    fn backward<B: GraphBackend>(self, found: Found<B, 2>) -> [Option<FloatTensor<B>>; 2] {
        [Some(found.gradient.clone()), found.wanted[1].then_some(found.gradient)]
    }
}

/// Adds others to elements.
struct Sum<'a> {
    around: &'a [f32],
}

impl Kernel for Sum<'_> {
    #[inline(always)]
    fn run(&self, first: usize, elements: &mut [f32]) {
        for (x, around) in elements.iter_mut().zip(&self.around[first..]) {
            *x += around;
        }
    }
}
