//! The elements of tensors where they lie, for kernels of our own.

use std::any::Any;
use std::borrow::Cow;

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, TensorData};

use super::GraphBackend;

/// The elements of a tensor where they lie, if that is in this process, in order, and as `f32`: on Flex.
pub(crate) fn elements<B: GraphBackend>(tensor: &FloatTensor<B>) -> Option<&[f32]> {
    #[cfg(feature = "flex")]
    return (tensor as &dyn Any).downcast_ref::<FloatTensor<burn::backend::Flex>>()?.as_slice();
    #[cfg(not(feature = "flex"))]
    None
}

/// The elements of a tensor in order, if they are in this process and `f32`: copied where they lie otherwise.
pub(crate) fn ordered<B: GraphBackend>(tensor: &FloatTensor<B>) -> Option<Cow<'_, [f32]>> {
    #[cfg(feature = "flex")]
    {
        if let Some(elements) = elements::<B>(tensor) {
            return Some(Cow::Borrowed(elements));
        }
        let tensor = (tensor as &dyn Any).downcast_ref::<FloatTensor<burn::backend::Flex>>()?;
        Some(Cow::Owned(tensor.to_contiguous().as_slice::<f32>()?.to_vec()))
    }
    #[cfg(not(feature = "flex"))]
    None
}

/// The same, to be written over: if nobody else reads them.
pub(crate) fn elements_mut<B: GraphBackend>(tensor: &mut FloatTensor<B>) -> Option<&mut [f32]> {
    #[cfg(feature = "flex")]
    {
        let tensor = (tensor as &mut dyn Any).downcast_mut::<FloatTensor<burn::backend::Flex>>()?;
        if tensor.dtype() != DType::F32 {
            return None;
        }
        let (start, end) = tensor.layout().contiguous_offsets()?;
        tensor.try_storage_mut()?.get_mut(start..end)
    }
    #[cfg(not(feature = "flex"))]
    None
}

/// The same tensor with its elements in order, where they may lie otherwise in this process: on Flex.
pub(crate) fn laid_out<B: GraphBackend>(mut tensor: FloatTensor<B>) -> FloatTensor<B> {
    #[cfg(feature = "flex")]
    if let Some(lying) = (&mut tensor as &mut dyn Any).downcast_mut::<FloatTensor<burn::backend::Flex>>()
        && lying.layout().contiguous_offsets().is_none()
    {
        *lying = lying.to_contiguous();
    }
    tensor
}

/// Writes over a tensor's elements with a kernel that reads those of another. The tensor itself, when the elements of
/// either are out of reach.
pub(crate) fn rewrite_from<B: GraphBackend>(
    tensor: FloatTensor<B>,
    read: &FloatTensor<B>,
    kernel: impl Fn(&[f32], &mut [f32]),
) -> Result<FloatTensor<B>, FloatTensor<B>> {
    let Some(read) = elements::<B>(read) else { return Err(tensor) };
    let update = |elements: &mut [f32]| kernel(read, elements);
    rewrite::<B>(tensor, update, |elements| {
        let mut made = elements.to_vec();
        update(&mut made);
        made
    })
}

/// A tensor whose elements are made from those of another: written over them by `update`, or newly made by `make` where
/// somebody else reads them. The tensor itself, when its elements are out of reach.
pub(crate) fn rewrite<B: GraphBackend>(
    mut tensor: FloatTensor<B>,
    update: impl FnOnce(&mut [f32]),
    make: impl FnOnce(&[f32]) -> Vec<f32>,
) -> Result<FloatTensor<B>, FloatTensor<B>> {
    if let Some(elements) = elements_mut::<B>(&mut tensor) {
        update(elements);
        return Ok(tensor);
    }
    match elements::<B>(&tensor) {
        Some(elements) => {
            let data = TensorData::new(make(elements), tensor.shape());
            Ok(B::float_from_data(data, &tensor.device()))
        }
        None => Err(tensor),
    }
}

/// Elements that lie in steps: the one at `[i, j, ..]` is `i * steps[0] + j * steps[1] + ..` from the first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strided<'a, const D: usize> {
    pub(crate) elements: &'a [f32],
    pub(crate) sizes: [usize; D],
    pub(crate) steps: [usize; D],
}

/// The elements of a tensor in whatever order they lie, if that is in this process and as `f32`: on Flex.
pub(crate) fn strided<B: GraphBackend, const D: usize>(tensor: &FloatTensor<B>) -> Option<Strided<'_, D>> {
    #[cfg(feature = "flex")]
    {
        let tensor = (tensor as &dyn Any).downcast_ref::<FloatTensor<burn::backend::Flex>>()?;
        if tensor.dtype() != DType::F32 {
            return None;
        }
        let layout = tensor.layout();
        let sizes = <[usize; D]>::try_from(layout.shape().as_slice()).ok()?;
        let steps = <[isize; D]>::try_from(layout.strides()).ok()?;
        if steps.iter().any(|step| *step < 0) {
            return None;
        }
        let elements = tensor.storage::<f32>().get(layout.start_offset()..)?;
        Some(Strided { elements, sizes, steps: steps.map(isize::unsigned_abs) })
    }
    #[cfg(not(feature = "flex"))]
    None
}

/// A tensor of these elements on the device of another.
pub(crate) fn made<B: GraphBackend>(
    elements: Vec<f32>,
    shape: impl Into<Vec<usize>>,
    like: &FloatTensor<B>,
) -> FloatTensor<B> {
    B::float_from_data(TensorData::new(elements, shape.into()), &like.device())
}
