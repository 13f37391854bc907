//! Positions as rotations.

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{Shape, Tensor, TensorData};

use crate::Error;
use crate::kernel::Kernel;
use crate::node::{Found, GraphBackend, Operation, apply_one, rewrite, unmade};

/// Rotary positions: each pair of a query's or key's elements is turned by an angle that grows with its place in the sequence,
/// so that products of the two tell how far apart they are.
///
/// The two elements of a pair lie half a head apart, as Llama has it. The backward turns back: nothing is kept for it.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use rekindle::nn::Rotary;
///
/// let device = Device::flex().autodiff();
/// // One sequence of two places, one head of two elements.
/// let x = Tensor::<3>::from_data([[[1.0, 0.0], [1.0, 0.0]]], &device);
/// let y: Vec<f32> = Rotary::new(2, 2, 10_000.0).forward(x)?.into_data().try_to_vec()?;
/// assert_eq!(&y[..2], [1.0, 0.0]);
/// assert!((y[2] - 1f32.cos()).abs() < 1e-6 && (y[3] - 1f32.sin()).abs() < 1e-6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Rotary {
    /// The elements of a head.
    depth: usize,
    /// How many places there are angles for.
    sequence: usize,
    /// For each place, the cosines of half a head, then the sines.
    turns: Arc<[f32]>,
    back: bool,
}

impl Rotary {
    /// Rotations for heads of `depth` elements, an even number, in sequences of exactly so many places. The slowest pair
    /// turns about `base` times slower than the first; 10,000 is usual.
    pub fn new(depth: usize, sequence: usize, base: f64) -> Self {
        let half = depth / 2;
        let mut turns = Vec::with_capacity(sequence * 2 * half);
        for place in 0..sequence {
            let angle = |pair: usize| place as f64 * base.powf(-((2 * pair) as f64) / depth as f64);
            turns.extend((0..half).map(|pair| angle(pair).cos() as f32));
            turns.extend((0..half).map(|pair| angle(pair).sin() as f32));
        }
        Self { depth, sequence, turns: turns.into(), back: false }
    }

    /// Turns the heads, which lie one behind the other in the last dimension: `[batch, sequence, heads * depth]`.
    ///
    /// # Errors
    /// When the sequence is another than the rotations are for, heads do not fill the width, or a head is odd.
    pub fn forward(&self, x: Tensor<3>) -> Result<Tensor<3>, Error> {
        let [_, sequence, width] = x.dims();
        let whole = self.depth > 0 && self.depth.is_multiple_of(2) && width.is_multiple_of(self.depth);
        if sequence != self.sequence || !whole {
            let (depth, expected) = (self.depth, self.sequence);
            return Err(Error::Rotary { sequence, expected, width, depth });
        }
        Ok(apply_one(self.clone(), x).unwrap_or_else(|x| self.plain(x)))
    }

    /// Through Burn's operations.
    fn plain(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, sequence, width] = x.dims();
        let (heads, half) = (width / self.depth, self.depth / 2);
        let (device, dtype) = (x.device(), x.dtype());
        let turns: Tensor<2> = Tensor::from_data(self.data([sequence, 2 * half]), &device);
        let turns = turns.cast(dtype).reshape([1, sequence, 1, 2, half]);
        let [cosine, sine] = [0, 1].map(|which| turns.clone().narrow(3, which, 1));
        let pairs = x.reshape([batch, sequence, heads, 2, half]);
        let [first, second] = [0, 1].map(|which| pairs.clone().narrow(3, which, 1));
        let turned = vec![
            first.clone() * cosine.clone() - second.clone() * sine.clone(),
            second * cosine + first * sine,
        ];
        Tensor::cat(turned, 3).reshape([batch, sequence, width])
    }

    fn data(&self, shape: [usize; 2]) -> TensorData {
        let half = self.depth / 2;
        let turn = |(index, turn): (usize, &f32)| match self.back && index % self.depth >= half {
            true => -turn,
            false => *turn,
        };
        TensorData::new(self.turns.iter().enumerate().map(turn).collect::<Vec<f32>>(), shape)
    }

    fn over<B: GraphBackend>(&self, x: FloatTensor<B>) -> FloatTensor<B> {
        let shape: Vec<usize> = x.shape().as_slice().to_vec();
        let width = shape.last().copied().unwrap_or_default();
        let make = |elements: &[f32]| {
            let mut made = elements.to_vec();
            Turn { rotary: self, width }.over(&mut made, width);
            made
        };
        let update = |elements: &mut [f32]| Turn { rotary: self, width }.over(elements, width);
        rewrite::<B>(x, update, make).unwrap_or_else(|x| self.by_operations::<B>(x, &shape))
    }

    fn by_operations<B: GraphBackend>(&self, x: FloatTensor<B>, shape: &[usize]) -> FloatTensor<B> {
        let &[batch, sequence, width] = shape else { return x };
        let (heads, half) = (width / self.depth, self.depth / 2);
        let device = x.device();
        let turns = B::float_from_data(self.data([sequence, 2 * half]), &device);
        let turns = B::float_cast(turns, x.dtype().into());
        let turns = B::float_reshape(turns, Shape::from([1, sequence, 1, 2, half]));
        let half_of = |tensor: &FloatTensor<B>, which: usize| {
            let sizes = tensor.shape();
            let ranges = sizes.as_slice().iter().enumerate().map(|(dimension, size)| match dimension {
                3 => (which..which + 1).into(),
                _ => (0..*size).into(),
            });
            B::float_slice(tensor.clone(), &ranges.collect::<Vec<burn::tensor::Slice>>())
        };
        let pairs = B::float_reshape(x, Shape::from([batch, sequence, heads, 2, half]));
        let [cosine, sine] = [half_of(&turns, 0), half_of(&turns, 1)];
        let [first, second] = [half_of(&pairs, 0), half_of(&pairs, 1)];
        let of = |a: &FloatTensor<B>, b: &FloatTensor<B>| B::float_mul(a.clone(), b.clone());
        let turned = vec![
            B::float_sub(of(&first, &cosine), of(&second, &sine)),
            B::float_add(of(&second, &cosine), of(&first, &sine)),
        ];
        B::float_reshape(B::float_cat(turned, 3), Shape::from([batch, sequence, width]))
    }
}

impl Operation<1> for Rotary {
    const READS: [bool; 1] = [false];
    const CHEAP: bool = true;

    fn forward<B: GraphBackend>(self, [x]: [FloatTensor<B>; 1]) -> FloatTensor<B> {
        self.over::<B>(x)
    }

    fn unmade<B: GraphBackend>(&self, [x]: &[FloatTensor<B>; 1]) -> Option<FloatTensor<B>> {
        Some(unmade::<B>(x.shape(), x))
    }

    fn backward<B: GraphBackend>(self, found: Found<B, 1>) -> [Option<FloatTensor<B>>; 1] {
        [Some(Self { back: !self.back, ..self }.over::<B>(found.gradient))]
    }
}

/// Turns every head of a row.
struct Turn<'a> {
    rotary: &'a Rotary,
    width: usize,
}

impl Kernel for Turn<'_> {
    #[inline(always)]
    fn run(&self, first: usize, elements: &mut [f32]) {
        let Rotary { depth, sequence, ref turns, back } = *self.rotary;
        let (half, sign) = (depth / 2, if back { -1.0 } else { 1.0 });
        for (index, row) in elements.chunks_exact_mut(self.width).enumerate() {
            let place = (first / self.width + index) % sequence;
            let (cosines, sines) = turns[place * depth..(place + 1) * depth].split_at(half);
            for head in row.chunks_exact_mut(depth) {
                let (a, b) = head.split_at_mut(half);
                for ((a, b), (cosine, sine)) in a.iter_mut().zip(b).zip(cosines.iter().zip(sines)) {
                    let (x, y, sine) = (*a, *b, sign * sine);
                    *a = x * cosine - y * sine;
                    *b = y * cosine + x * sine;
                }
            }
        }
    }
}
