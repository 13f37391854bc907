//! Linear layers.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Tensor;

use crate::kernel::vectorised;
use crate::matrix::{Matrix, add_product, product};
use crate::node::{AnyTensor, Found, GraphBackend, Operation, apply_widened, elements, made, unmade};

/// A linear layer: `input` times `weight`, of input and output features, and `bias`. Burn's `linear`, which is what its
/// `Linear` modules run.
///
/// The product starts from the bias instead of having it added, and neither direction takes batches apart.
///
/// An input of 16 bits goes with parameters of 32: the work is done in `f32`, what comes out has the type of the input, and
/// the gradients of the parameters keep all their digits.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::tensor::{Device, Tensor};
/// use rekindle::nn::linear;
///
/// let device = Device::flex().autodiff();
/// let layer = LinearConfig::new(4, 3).init(&device);
/// let x = Tensor::<3>::ones([2, 5, 4], &device);
/// let y = linear(x.clone(), layer.weight.val(), layer.bias.as_ref().map(|bias| bias.val()));
/// assert_eq!(y.dims(), [2, 5, 3]);
/// ```
///
/// # Panics
/// As Burn's: when the sizes do not go together.
pub fn linear<const D: usize>(input: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    let fits = D >= 2 && input.dims().last() == Some(&weight.dims()[0]);
    let fits = fits && bias.as_ref().is_none_or(|bias| bias.dims()[0] == weight.dims()[1]);
    if !fits || [weight.dtype(), input.dtype()].iter().any(|dtype| !dtype.is_float()) {
        return burn::tensor::module::linear(input, weight, bias);
    }
    let dtype = input.dtype();
    let plain = |input: Tensor<D>, weight: Tensor<2>, bias| {
        burn::tensor::module::linear(input.cast(weight.dtype()), weight, bias).cast(dtype)
    };
    match bias {
        Some(bias) => {
            let inputs = [AnyTensor::from(input), AnyTensor::from(weight), AnyTensor::from(bias)];
            apply_widened(Linear, inputs, dtype).map(|output| Tensor::from_dispatch(output.0)).unwrap_or_else(
                |[input, weight, bias]| {
                    let bias = Some(Tensor::from_dispatch(bias.0));
                    plain(Tensor::from_dispatch(input.0), Tensor::from_dispatch(weight.0), bias)
                },
            )
        }
        None => apply_widened(Linear, [AnyTensor::from(input), AnyTensor::from(weight)], dtype)
            .map(|output| Tensor::from_dispatch(output.0))
            .unwrap_or_else(|[input, weight]| {
                plain(Tensor::from_dispatch(input.0), Tensor::from_dispatch(weight.0), None)
            }),
    }
}

#[derive(Clone, Copy, Debug)]
struct Linear;

/// Rows of a tensor whose last dimension they are along.
fn rows<B: GraphBackend>(tensor: &FloatTensor<B>) -> Option<Matrix<'_>> {
    let columns = *tensor.shape().as_slice().last()?;
    let elements = elements::<B>(tensor)?;
    Some(Matrix::new(elements, elements.len().checked_div(columns)?, columns))
}

fn output_shape<B: GraphBackend>(input: &FloatTensor<B>, weight: &FloatTensor<B>) -> Vec<usize> {
    let mut shape = input.shape().as_slice().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = weight.shape()[1];
    }
    shape
}

fn forward<B: GraphBackend>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    let output = match (rows::<B>(&input), rows::<B>(&weight), bias.as_ref().map(elements::<B>)) {
        (Some(x), Some(w), None) => Some(product([x, w])),
        (Some(x), Some(w), Some(Some(bias))) => {
            let mut output = Vec::with_capacity(x.shape.rows * bias.len());
            for _ in 0..x.shape.rows {
                output.extend_from_slice(bias);
            }
            add_product(&mut output, [x, w]);
            Some(output)
        }
        _ => None,
    };
    match output {
        Some(output) => made::<B>(output, output_shape::<B>(&input, &weight), &input),
        None => B::linear(input, weight, bias),
    }
}

/// The gradients of input, weight and bias.
fn backward<B: GraphBackend>(
    input: Option<FloatTensor<B>>,
    weight: Option<FloatTensor<B>>,
    gradient: FloatTensor<B>,
    wanted: [bool; 3],
) -> [Option<FloatTensor<B>>; 3] {
    let (Some(input), Some(weight)) = (input, weight) else { return [None, None, None] };
    if let (Some(x), Some(w), Some(g)) = (rows::<B>(&input), rows::<B>(&weight), rows::<B>(&gradient)) {
        let of_input =
            || wanted[0].then(|| made::<B>(product([g, w.transposed()]), input.shape().as_slice(), &input));
        let of_weight =
            || wanted[1].then(|| made::<B>(product([x.transposed(), g]), weight.shape().as_slice(), &input));
        let of_bias = || wanted[2].then(|| made::<B>(vectorised(ColumnSums(g)), [g.shape.columns], &input));
        let (of_input, (of_weight, of_bias)) = rayon::join(of_input, || (of_weight(), of_bias()));
        return [of_input, of_weight, of_bias];
    }
    [
        wanted[0].then(|| B::linear_x_backward(weight.clone(), gradient.clone())),
        wanted[1].then(|| B::linear_weight_backward(input, gradient.clone())),
        wanted[2].then(|| B::linear_bias_backward(gradient)),
    ]
}

/// The sum of each column, from the first row to the last.
struct ColumnSums<'a>(Matrix<'a>);

impl pulp::NullaryFnOnce for ColumnSums<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn call(self) -> Vec<f32> {
        let Self(matrix) = self;
        let mut sums = vec![0.0; matrix.shape.columns];
        for row in matrix.elements.chunks_exact(matrix.shape.columns) {
            for (sum, x) in sums.iter_mut().zip(row) {
                *sum += x;
            }
        }
        sums
    }
}

impl Operation<3> for Linear {
    const READS: [bool; 3] = [true, true, false];
    const CHEAP: bool = false;
    const AGAIN: bool = true;

    fn forward<B: GraphBackend>(self, [input, weight, bias]: [FloatTensor<B>; 3]) -> FloatTensor<B> {
        forward::<B>(input, weight, Some(bias))
    }

    fn unmade<B: GraphBackend>(&self, [input, weight, _]: &[FloatTensor<B>; 3]) -> Option<FloatTensor<B>> {
        Some(unmade::<B>(output_shape::<B>(input, weight), input))
    }

    fn backward<B: GraphBackend>(self, found: Found<B, 3>) -> [Option<FloatTensor<B>>; 3] {
        let [input, weight, _] = found.inputs;
        backward::<B>(input, weight, found.gradient, found.wanted)
    }
}

impl Operation<2> for Linear {
    const READS: [bool; 2] = [true, true];
    const CHEAP: bool = false;
    const AGAIN: bool = true;

    fn forward<B: GraphBackend>(self, [input, weight]: [FloatTensor<B>; 2]) -> FloatTensor<B> {
        forward::<B>(input, weight, None)
    }

    fn unmade<B: GraphBackend>(&self, [input, weight]: &[FloatTensor<B>; 2]) -> Option<FloatTensor<B>> {
        Some(unmade::<B>(output_shape::<B>(input, weight), input))
    }

    fn backward<B: GraphBackend>(self, found: Found<B, 2>) -> [Option<FloatTensor<B>>; 2] {
        let ([input, weight], [x, w]) = (found.inputs, found.wanted);
        let [of_input, of_weight, _] = backward::<B>(input, weight, found.gradient, [x, w, false]);
        [of_input, of_weight]
    }
}
