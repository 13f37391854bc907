//! Convolutions whose outputs a recomputation can do without.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Tensor;
use burn::tensor::ops::ConvOptions;

use crate::node::{AnyTensor, Found, GraphBackend, Operation, apply_widened, unmade};

/// A convolution over images: Burn's `conv2d`, which is what its `Conv2d` modules run, with the same bits.
///
/// Its backward reads input and weight. Being a node of ours it can be left out at the [`tail`](crate::tail) of a stage.
///
/// An input of 16 bits goes with parameters of 32, as in [`linear`](super::linear).
///
/// ```
/// use burn::nn::conv::Conv2dConfig;
/// use burn::tensor::ops::ConvOptions;
/// use burn::tensor::{Device, Tensor};
/// use rekindle::nn::conv2d;
///
/// let device = Device::flex().autodiff();
/// let layer = Conv2dConfig::new([3, 8], [3, 3]).with_stride([2, 2]).init(&device);
/// let x = Tensor::<4>::ones([2, 3, 9, 9], &device);
/// let bias = layer.bias.as_ref().map(|bias| bias.val());
/// let y = conv2d(x, layer.weight.val(), bias, ConvOptions::new(layer.stride, [0, 0], [1, 1], 1));
/// assert_eq!(y.dims(), [2, 8, 4, 4]);
/// ```
///
/// # Panics
/// As Burn's: when the sizes do not go together.
pub fn conv2d(
    input: Tensor<4>,
    weight: Tensor<4>,
    bias: Option<Tensor<1>>,
    options: ConvOptions<2>,
) -> Tensor<4> {
    let dtype = input.dtype();
    let operation = Convolution(options.clone());
    let plain = |input: Tensor<4>, weight: Tensor<4>, bias| {
        let input = input.cast(weight.dtype());
        burn::tensor::module::conv2d(input, weight, bias, options.clone()).cast(dtype)
    };
    if operation.output_shape(input.dims(), weight.dims()).is_none() {
        return plain(input, weight, bias);
    }
    match bias {
        Some(bias) => {
            let inputs = [AnyTensor::from(input), AnyTensor::from(weight), AnyTensor::from(bias)];
            apply_widened(operation, inputs, dtype)
                .map(|output| Tensor::from_dispatch(output.0))
                .unwrap_or_else(|[input, weight, bias]| {
                    let bias = Some(Tensor::from_dispatch(bias.0));
                    plain(Tensor::from_dispatch(input.0), Tensor::from_dispatch(weight.0), bias)
                })
        }
        None => apply_widened(operation, [AnyTensor::from(input), AnyTensor::from(weight)], dtype)
            .map(|output| Tensor::from_dispatch(output.0))
            .unwrap_or_else(|[input, weight]| {
                plain(Tensor::from_dispatch(input.0), Tensor::from_dispatch(weight.0), None)
            }),
    }
}

#[derive(Clone, Debug)]
struct Convolution(ConvOptions<2>);

impl Convolution {
    /// `None` where the sizes do not go together, which Burn has words for.
    fn output_shape(&self, input: [usize; 4], weight: [usize; 4]) -> Option<[usize; 4]> {
        let Self(options) = self;
        let ([images, from, height, width], [to, of_group, ..]) = (input, weight);
        let fits = of_group.checked_mul(options.groups) == Some(from) && to.is_multiple_of(options.groups);
        let side = |dimension: usize, size: usize| {
            let (before, behind) = options.padding[dimension];
            let reach = options.dilation[dimension] * weight[2 + dimension].checked_sub(1)?;
            let steps = (size + before + behind).checked_sub(reach + 1)? / options.stride[dimension];
            Some(steps + 1)
        };
        fits.then_some([images, to, side(0, height)?, side(1, width)?])
    }

    fn unmade<B: GraphBackend>(
        &self,
        input: &FloatTensor<B>,
        weight: &FloatTensor<B>,
    ) -> Option<FloatTensor<B>> {
        let sizes = [input, weight].map(|tensor| <[usize; 4]>::try_from(tensor.shape().as_slice()).ok());
        let [Some(of_input), Some(of_weight)] = sizes else { return None };
        Some(unmade::<B>(self.output_shape(of_input, of_weight)?, input))
    }

    /// The gradients of input, weight and bias, by what Burn's own node calls.
    fn backward<B: GraphBackend>(
        self,
        [input, weight, bias]: [Option<FloatTensor<B>>; 3],
        gradient: FloatTensor<B>,
        wanted: [bool; 3],
    ) -> [Option<FloatTensor<B>>; 3] {
        let Self(options) = self;
        let (Some(input), Some(weight)) = (input, weight) else { return [None, None, None] };
        let of_input = wanted[0]
            .then(|| B::conv2d_x_backward(input.clone(), weight.clone(), gradient.clone(), options.clone()));
        let of_weight =
            wanted[1].then(|| B::conv2d_weight_backward(input.clone(), weight, gradient.clone(), options));
        let bias = bias.filter(|_| wanted[2]);
        [of_input, of_weight, bias.map(|bias| B::conv2d_bias_backward(input, bias, gradient))]
    }
}

impl Operation<3> for Convolution {
    const READS: [bool; 3] = [true; 3];
    const CHEAP: bool = false;

    fn forward<B: GraphBackend>(self, [input, weight, bias]: [FloatTensor<B>; 3]) -> FloatTensor<B> {
        B::conv2d(input, weight, Some(bias), self.0)
    }

    fn unmade<B: GraphBackend>(&self, [input, weight, _]: &[FloatTensor<B>; 3]) -> Option<FloatTensor<B>> {
        self.unmade::<B>(input, weight)
    }

    fn backward<B: GraphBackend>(self, found: Found<B, 3>) -> [Option<FloatTensor<B>>; 3] {
        self.backward::<B>(found.inputs, found.gradient, found.wanted)
    }
}

impl Operation<2> for Convolution {
    const READS: [bool; 2] = [true; 2];
    const CHEAP: bool = false;

    fn forward<B: GraphBackend>(self, [input, weight]: [FloatTensor<B>; 2]) -> FloatTensor<B> {
        B::conv2d(input, weight, None, self.0)
    }

    fn unmade<B: GraphBackend>(&self, [input, weight]: &[FloatTensor<B>; 2]) -> Option<FloatTensor<B>> {
        self.unmade::<B>(input, weight)
    }

    fn backward<B: GraphBackend>(self, found: Found<B, 2>) -> [Option<FloatTensor<B>>; 2] {
        let ([input, weight], [x, w]) = (found.inputs, found.wanted);
        let [of_input, of_weight, _] =
            self.backward::<B>([input, weight, None], found.gradient, [x, w, false]);
        [of_input, of_weight]
    }
}
