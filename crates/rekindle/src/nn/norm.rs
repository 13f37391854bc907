//! Norms that keep their input and nothing else.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Tensor;
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
use rayon::slice::ParallelSlice;

use crate::kernel::{Kernel, vectorised};
use crate::node::{AnyTensor, Found, GraphBackend, Operation, apply_widened, elements, is_narrow, made};
use crate::rows::{dot, sum};

/// Layer norm along the last dimension: what Burn's `LayerNorm` runs, whose parameters these are.
///
/// The backward reads the input and `gamma`, and computes mean and deviation of each row again. An input of 16 bits goes
/// with parameters of 32: the work is done in `f32`, and what comes out has the type of the input.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use rekindle::nn::layer_norm;
///
/// let device = Device::flex().autodiff();
/// let x = Tensor::<2>::from_data([[1.0, 3.0]], &device);
/// let y = layer_norm(x, Tensor::ones([2], &device), Some(Tensor::ones([2], &device)), 1e-12);
/// assert_eq!(y.into_data().try_to_vec::<f32>()?, [0.0, 2.0]);
/// # Ok::<(), burn::tensor::DataError>(())
/// ```
///
/// # Panics
/// As Burn's: when the parameters have another length than the last dimension.
pub fn layer_norm<const D: usize>(
    input: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    epsilon: f64,
) -> Tensor<D> {
    let norm = Norm { epsilon: epsilon as f32, centred: true };
    let fits = fits(&input, &gamma) && beta.as_ref().is_none_or(|beta| beta.dims() == gamma.dims());
    let dtype = input.dtype();
    let plain = |input: Tensor<D>, gamma: Tensor<1>, beta| {
        burn::tensor::module::layer_norm(input.cast(gamma.dtype()), gamma, beta, epsilon).cast(dtype)
    };
    if !fits {
        return plain(input, gamma, beta);
    }
    match beta {
        Some(beta) => {
            let inputs = [AnyTensor::from(input), AnyTensor::from(gamma), AnyTensor::from(beta)];
            apply_widened(norm, inputs, dtype).map(|output| Tensor::from_dispatch(output.0)).unwrap_or_else(
                |[input, gamma, beta]| {
                    plain(
                        Tensor::from_dispatch(input.0),
                        Tensor::from_dispatch(gamma.0),
                        Some(Tensor::from_dispatch(beta.0)),
                    )
                },
            )
        }
        None => apply_widened(norm, [AnyTensor::from(input), AnyTensor::from(gamma)], dtype)
            .map(|output| Tensor::from_dispatch(output.0))
            .unwrap_or_else(|[input, gamma]| {
                plain(Tensor::from_dispatch(input.0), Tensor::from_dispatch(gamma.0), None)
            }),
    }
}

/// Root-mean-square norm along the last dimension: what Burn's `RmsNorm` runs, whose parameters these are.
///
/// The backward reads the input and `gamma`, and computes the mean square of each row again.
///
/// # Panics
/// As Burn's: when the parameters have another length than the last dimension.
pub fn rms_norm<const D: usize>(input: Tensor<D>, gamma: Tensor<1>, epsilon: f64) -> Tensor<D> {
    let dtype = input.dtype();
    let plain = |input: Tensor<D>, gamma: Tensor<1>| {
        let input = input.cast(gamma.dtype());
        let mean = input.clone().powi_scalar(2).mean_dim(D - 1);
        (input / (mean + epsilon).sqrt() * gamma.unsqueeze()).cast(dtype)
    };
    if !fits(&input, &gamma) {
        return plain(input, gamma);
    }
    let norm = Norm { epsilon: epsilon as f32, centred: false };
    apply_widened(norm, [AnyTensor::from(input), AnyTensor::from(gamma)], dtype)
        .map(|output| Tensor::from_dispatch(output.0))
        .unwrap_or_else(|[input, gamma]| {
            plain(Tensor::from_dispatch(input.0), Tensor::from_dispatch(gamma.0))
        })
}

fn fits<const D: usize>(input: &Tensor<D>, gamma: &Tensor<1>) -> bool {
    let sizes = input.dims().last() == Some(&gamma.dims()[0]) && gamma.dims()[0] > 0;
    sizes && (is_narrow(input.dtype()) || gamma.dtype() == input.dtype())
}

#[derive(Clone, Copy, Debug)]
struct Norm {
    epsilon: f32,
    /// Whether the mean is taken away first.
    centred: bool,
}

/// Rows that are added up to one gradient of the parameters at a time: a number of its own, so that sums do not depend on the
/// threads there are.
const ROWS: usize = 64;

impl Norm {
    /// Takes the mean away, and gives what is left to be multiplied by.
    #[inline(always)]
    fn centre(self, row: &[f32], centred: &mut [f32]) -> f32 {
        let count = row.len() as f32;
        let mean = if self.centred { sum(row) / count } else { 0.0 };
        for (centred, x) in centred.iter_mut().zip(row) {
            *centred = x - mean;
        }
        let variance = dot(centred, centred) / count;
        1.0 / (variance + self.epsilon).sqrt()
    }

    fn forward<B: GraphBackend>(
        self,
        input: FloatTensor<B>,
        gamma: FloatTensor<B>,
        beta: Option<FloatTensor<B>>,
    ) -> FloatTensor<B> {
        let found = (elements::<B>(&input), elements::<B>(&gamma), beta.as_ref().map(elements::<B>));
        let (input_at, gamma_at, beta_at) = match found {
            (Some(input), Some(gamma), None) => (input, gamma, None),
            (Some(input), Some(gamma), Some(Some(beta))) => (input, gamma, Some(beta)),
            _ => return self.by_operations::<B>(input, gamma, beta),
        };
        let mut output = input_at.to_vec();
        Forward { norm: self, gamma: gamma_at, beta: beta_at }.over(&mut output, gamma_at.len());
        made::<B>(output, input.shape().as_slice(), &input)
    }

    fn backward<B: GraphBackend>(
        self,
        input: Option<FloatTensor<B>>,
        gamma: Option<FloatTensor<B>>,
        gradient: FloatTensor<B>,
    ) -> [Option<FloatTensor<B>>; 3] {
        let (Some(input), Some(gamma)) = (input, gamma) else { return [None, None, None] };
        let found = (elements::<B>(&input), elements::<B>(&gamma), elements::<B>(&gradient));
        let (Some(input_at), Some(gamma_at), Some(gradient_at)) = found else {
            return self.backward_by_operations::<B>(input, gamma, gradient);
        };
        let row = gamma_at.len();
        let mut of_input = gradient_at.to_vec();
        let pieces = of_input.chunks_mut(ROWS * row).collect::<Vec<_>>();
        let pieces = pieces.into_par_iter().zip(input_at.par_chunks(ROWS * row));
        let parts: Vec<[Vec<f32>; 2]> = pieces
            .map(|(gradient, input)| vectorised(Backward { norm: self, gamma: gamma_at, input, gradient }))
            .collect();
        let [mut of_gamma, mut of_beta] = [vec![0.0; row], vec![0.0; row]];
        for [gamma, beta] in parts {
            for (sum, part) in of_gamma.iter_mut().zip(gamma).chain(of_beta.iter_mut().zip(beta)) {
                *sum += part;
            }
        }
        [
            Some(made::<B>(of_input, input.shape().as_slice(), &input)),
            Some(made::<B>(of_gamma, [row], &input)),
            Some(made::<B>(of_beta, [row], &input)),
        ]
    }

    /// The input without its mean, and one over its deviation.
    fn parts<B: GraphBackend>(self, input: FloatTensor<B>) -> [FloatTensor<B>; 2] {
        let last = input.rank() - 1;
        let centred = match self.centred {
            true => B::float_sub(input.clone(), B::float_mean_dim(input, last)),
            false => input,
        };
        let variance = B::float_mean_dim(B::float_mul(centred.clone(), centred.clone()), last);
        let scale = B::float_recip(B::float_sqrt(B::float_add_scalar(variance, self.epsilon.into())));
        [centred, scale]
    }

    fn by_operations<B: GraphBackend>(
        self,
        input: FloatTensor<B>,
        gamma: FloatTensor<B>,
        beta: Option<FloatTensor<B>>,
    ) -> FloatTensor<B> {
        let wide = along_last::<B>(&input);
        let [centred, scale] = self.parts::<B>(input);
        let output = B::float_mul(B::float_mul(centred, scale), B::float_reshape(gamma, wide.clone()));
        match beta {
            Some(beta) => B::float_add(output, B::float_reshape(beta, wide)),
            None => output,
        }
    }

    fn backward_by_operations<B: GraphBackend>(
        self,
        input: FloatTensor<B>,
        gamma: FloatTensor<B>,
        gradient: FloatTensor<B>,
    ) -> [Option<FloatTensor<B>>; 3] {
        let (last, wide, shape) = (input.rank() - 1, along_last::<B>(&input), gamma.shape());
        let [centred, scale] = self.parts::<B>(input);
        let normal = B::float_mul(centred, scale.clone());
        let of_normal = B::float_mul(gradient.clone(), B::float_reshape(gamma, wide));
        let along = B::float_mean_dim(B::float_mul(of_normal.clone(), normal.clone()), last);
        let mut of_input = B::float_sub(of_normal.clone(), B::float_mul(normal.clone(), along));
        if self.centred {
            of_input = B::float_sub(of_input, B::float_mean_dim(of_normal, last));
        }
        let summed = |mut tensor: FloatTensor<B>| {
            for dimension in 0..last {
                tensor = B::float_sum_dim(tensor, dimension);
            }
            B::float_reshape(tensor, shape.clone())
        };
        [
            Some(B::float_mul(of_input, scale)),
            Some(summed(B::float_mul(gradient.clone(), normal))),
            Some(summed(gradient)),
        ]
    }
}

/// The shape of a vector along the last dimension of a tensor.
fn along_last<B: GraphBackend>(tensor: &FloatTensor<B>) -> burn::tensor::Shape {
    let mut shape = vec![1; tensor.rank()];
    if let (Some(last), Some(size)) = (shape.last_mut(), tensor.shape().as_slice().last()) {
        *last = *size;
    }
    shape.into()
}

/// Writes the normalised row over each.
struct Forward<'a> {
    norm: Norm,
    gamma: &'a [f32],
    beta: Option<&'a [f32]>,
}

impl Kernel for Forward<'_> {
    #[inline(always)]
    fn run(&self, _: usize, elements: &mut [f32]) {
        let mut centred = vec![0.0; self.gamma.len()];
        for row in elements.chunks_exact_mut(self.gamma.len()) {
            let scale = self.norm.centre(row, &mut centred);
            for ((x, centred), gamma) in row.iter_mut().zip(&centred).zip(self.gamma) {
                *x = centred * scale * gamma;
            }
            if let Some(beta) = self.beta {
                for (x, beta) in row.iter_mut().zip(beta) {
                    *x += beta;
                }
            }
        }
    }
}

/// Turns the gradient of the output into that of the input, and adds up those of the parameters.
struct Backward<'a> {
    norm: Norm,
    gamma: &'a [f32],
    input: &'a [f32],
    gradient: &'a mut [f32],
}

impl pulp::NullaryFnOnce for Backward<'_> {
    type Output = [Vec<f32>; 2];

    #[inline(always)]
    fn call(self) -> [Vec<f32>; 2] {
        let Self { norm, gamma, input, gradient } = self;
        let row = gamma.len();
        let count = row as f32;
        let [mut of_gamma, mut of_beta] = [vec![0.0; row], vec![0.0; row]];
        let mut normal = vec![0.0; row];
        for (input, gradient) in input.chunks_exact(row).zip(gradient.chunks_exact_mut(row)) {
            let scale = norm.centre(input, &mut normal);
            for normal in &mut normal {
                *normal *= scale;
            }
            for (place, gradient) in gradient.iter_mut().enumerate() {
                of_gamma[place] += *gradient * normal[place];
                of_beta[place] += *gradient;
                *gradient *= gamma[place];
            }
            let along = dot(gradient, &normal) / count;
            let mean = if norm.centred { sum(gradient) / count } else { 0.0 };
            for (gradient, normal) in gradient.iter_mut().zip(&normal) {
                *gradient = (*gradient - mean - normal * along) * scale;
            }
        }
        [of_gamma, of_beta]
    }
}

impl Operation<3> for Norm {
    const READS: [bool; 3] = [true, true, false];
    const CHEAP: bool = true;

    fn forward<B: GraphBackend>(self, [input, gamma, beta]: [FloatTensor<B>; 3]) -> FloatTensor<B> {
        Norm::forward::<B>(self, input, gamma, Some(beta))
    }

    fn backward<B: GraphBackend>(self, found: Found<B, 3>) -> [Option<FloatTensor<B>>; 3] {
        let [input, gamma, _] = found.inputs;
        Norm::backward::<B>(self, input, gamma, found.gradient)
    }
}

impl Operation<2> for Norm {
    const READS: [bool; 2] = [true, true];
    const CHEAP: bool = true;

    fn forward<B: GraphBackend>(self, [input, gamma]: [FloatTensor<B>; 2]) -> FloatTensor<B> {
        Norm::forward::<B>(self, input, gamma, None)
    }

    fn backward<B: GraphBackend>(self, found: Found<B, 2>) -> [Option<FloatTensor<B>>; 2] {
        let [input, gamma] = found.inputs;
        let [of_input, of_gamma, _] = Norm::backward::<B>(self, input, gamma, found.gradient);
        [of_input, of_gamma]
    }
}
