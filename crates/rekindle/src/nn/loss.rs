//! A linear head and its cross entropy, without the logits.

mod class;
mod panels;
mod tensors;

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Int, Tensor};

use class::Class;

use crate::Error;
use crate::node::{
    AnyTensor, Found, GraphBackend, Operation, apply_widened, elements, is_narrow, made, strided,
};

/// The cross entropy of what a linear layer predicts, without ever holding its output: exact, and with exact gradients.
///
/// The logits of a large vocabulary are the largest tensor of a language model. Here they are made a few at a time, in the
/// forward and once more in the backward, and one number for each row of the input is kept.
///
/// ```
/// use burn::tensor::{Device, Distribution, Int, Tensor};
/// use rekindle::nn::LinearCrossEntropy;
///
/// let device = Device::flex().autodiff();
/// let x = Tensor::<2>::random([6, 8], Distribution::Default, &device).require_grad();
/// let weight = Tensor::<2>::random([8, 1000], Distribution::Default, &device);
/// let targets = Tensor::<1, Int>::from_data([1, 2, 3, -100, 5, 6], &device);
/// let loss = LinearCrossEntropy::new().ignore(-100).forward(x.clone(), weight, None, targets)?;
/// assert_eq!(loss.dims(), [1]);
/// assert_eq!(x.grad(&loss.backward()).unwrap().dims(), [6, 8]);
/// # Ok::<(), rekindle::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct LinearCrossEntropy {
    chunk: Option<usize>,
    ignored: Option<i64>,
    smoothing: f32,
    sum: bool,
}

/// Rows that are done at a time, if nobody says otherwise.
const CHUNK: usize = 512;

impl LinearCrossEntropy {
    /// The mean over all rows, nothing ignored, nothing smoothed.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many rows of the input are done at a time: 512, or all if they are fewer. The fewer they are, the less memory
    /// is needed, and the more often the weights are read.
    #[must_use]
    pub fn chunk(mut self, rows: usize) -> Self {
        self.chunk = Some(rows);
        self
    }

    /// Rows with this target count for nothing.
    #[must_use]
    pub fn ignore(mut self, target: i64) -> Self {
        self.ignored = Some(target);
        self
    }

    /// Takes this part of the probability from the target and gives it to all classes alike.
    #[must_use]
    pub fn smoothing(mut self, smoothing: f32) -> Self {
        self.smoothing = smoothing;
        self
    }

    /// The sum over all rows, not their mean.
    #[must_use]
    pub fn sum(mut self) -> Self {
        self.sum = true;
        self
    }

    /// The loss of `input`, of rows and features, times `weight`, of features and classes, plus `bias`. When every row is
    /// ignored it is zero. Inputs of 16 bits are widened: the loss is of 32.
    ///
    /// For a head that shares the embedding's weights give `embedding.weight.val().transpose()`: nothing is copied.
    ///
    /// # Errors
    /// When sizes do not go together, a target is no class, the chunk is zero or more than there are rows, or the smoothing
    /// is not in 0 to 1.
    pub fn forward(
        &self,
        input: Tensor<2>,
        weight: Tensor<2>,
        bias: Option<Tensor<1>>,
        targets: Tensor<1, Int>,
    ) -> Result<Tensor<1>, Error> {
        let loss = self.loss(&input, &weight, bias.as_ref(), &targets)?;
        // The loss has the digits of the weights: rows may have fewer.
        let dtype = if is_narrow(weight.dtype()) { DType::F32 } else { weight.dtype() };
        let plain = |input: Tensor<2>, weight: Tensor<2>, bias: Option<Tensor<1>>, chunk| {
            let bias = bias.map(|bias| bias.cast(dtype));
            tensors::plain(&loss, [input.cast(dtype), weight.cast(dtype)], bias, chunk)
        };
        let zero = || Tensor::<1>::zeros([weight.dims()[1]], (&input.device(), dtype));
        // Without autodiff there is no node to be one, but the same work to be done.
        let inputs = match input.is_autodiff() {
            true => [input.clone().into(), weight.clone().into(), bias.clone().unwrap_or_else(zero).into()],
            false => return Ok(plain(input, weight, bias, loss.chunk)),
        };
        // Where Burn records each operation, its tape has all logits however they are made.
        let at_once = loss.targets.len().max(1);
        Ok(apply_widened(loss.clone(), inputs, dtype)
            .map(|output| Tensor::from_dispatch(output.0))
            .unwrap_or_else(|_: [AnyTensor; 3]| plain(input, weight, bias, at_once)))
    }

    fn loss(
        &self,
        input: &Tensor<2>,
        weight: &Tensor<2>,
        bias: Option<&Tensor<1>>,
        targets: &Tensor<1, Int>,
    ) -> Result<Loss, Error> {
        let ([rows, features], [expected, classes]) = (input.dims(), weight.dims());
        let refused = |what, found: &[usize], expected: &[usize]| {
            Err(Error::LossShape { what, found: found.to_vec(), expected: expected.to_vec() })
        };
        if features != expected {
            return refused("weights", &weight.dims(), &[features, classes]);
        }
        if let Some(bias) = bias
            && bias.dims() != [classes]
        {
            return refused("a bias", &bias.dims(), &[classes]);
        }
        if targets.dims() != [rows] {
            return refused("targets", &targets.dims(), &[rows]);
        }
        let chunk = self.chunk.unwrap_or(CHUNK.min(rows.max(1)));
        if chunk == 0 || (chunk > rows && self.chunk.is_some()) {
            return Err(Error::LossChunk { found: chunk, rows });
        }
        if !(0.0..=1.0).contains(&self.smoothing) {
            return Err(Error::LossSmoothing { found: self.smoothing });
        }
        let read = values_of(targets)?.unwrap_or_else(|| vec![0; rows]);
        let mut kept = Vec::with_capacity(rows);
        for (row, target) in read.into_iter().enumerate() {
            kept.push(match Class::of(target, classes) {
                _ if Some(target) == self.ignored => Class::IGNORED,
                Some(class) => class,
                None => return Err(Error::LossTarget { row, found: target, classes }),
            });
        }
        let counted = kept.iter().filter(|class| **class != Class::IGNORED).count();
        let weight = if self.sum { 1.0 } else { 1.0 / counted.max(1) as f64 };
        let smoothing = f64::from(self.smoothing);
        Ok(Loss { targets: kept.into(), classes, chunk, smoothing, weight, biased: bias.is_some() })
    }
}

/// Refuses targets that are no classes, or not one for each of `rows`: Burn's own losses panic at them, or read what lies beside.
/// [`LinearCrossEntropy`] asks for itself.
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use rekindle::nn::check_targets;
///
/// let targets = Tensor::<1, Int>::from_data([1, 2, 10], &Device::flex());
/// assert!(check_targets(&targets, 3, 11).is_ok());
/// let error = check_targets(&targets, 3, 10).unwrap_err();
/// assert_eq!(error.to_string(), "the target of row 2 is 10, expected 0 to 9 or the one to ignore");
/// ```
///
/// # Errors
/// When there are more or fewer, or one of them is no class.
pub fn check_targets(targets: &Tensor<1, Int>, rows: usize, classes: usize) -> Result<(), Error> {
    if targets.dims() != [rows] {
        let found = targets.dims().to_vec();
        return Err(Error::LossShape { what: "targets", found, expected: vec![rows] });
    }
    let read = values_of(targets)?.unwrap_or_default();
    match read.into_iter().enumerate().find(|(_, target)| Class::of(*target, classes).is_none()) {
        Some((row, found)) => Err(Error::LossTarget { row, found, classes }),
        None => Ok(()),
    }
}

/// What targets are, but on a device that makes none.
fn values_of(targets: &Tensor<1, Int>) -> Result<Option<Vec<i64>>, Error> {
    if crate::dropout::has_no_values(&targets.device()) {
        return Ok(None);
    }
    let data = targets.clone().try_into_data().map_err(|error| format!("{error:?}"));
    let read = data.and_then(|data| data.try_into_vec_as::<i64>().map_err(|error| format!("{error:?}")));
    read.map(Some).map_err(|reason| Error::LossTargets { reason })
}

/// One loss, as the node runs it.
#[derive(Clone, Debug)]
struct Loss {
    /// The class of each row.
    targets: Arc<[Class]>,
    classes: usize,
    chunk: usize,
    smoothing: f64,
    /// What the loss of a row is multiplied by.
    weight: f64,
    /// Whether the bias is the user's.
    biased: bool,
}

impl Loss {
    /// The part of the probability that every class gets.
    fn everywhere(&self) -> f64 {
        self.smoothing / self.classes.max(1) as f64
    }
}

impl Operation<3> for Loss {
    const READS: [bool; 3] = [true; 3];
    const CHEAP: bool = false;
    const ANYWHERE: bool = true;

    fn forward<B: GraphBackend>(self, inputs: [FloatTensor<B>; 3]) -> FloatTensor<B> {
        self.record::<B>(inputs).0
    }

    fn record<B: GraphBackend>(
        self,
        [input, weight, bias]: [FloatTensor<B>; 3],
    ) -> (FloatTensor<B>, Vec<FloatTensor<B>>) {
        match (elements::<B>(&input), strided::<B, 2>(&weight), elements::<B>(&bias)) {
            (Some(x), Some(w), Some(b)) => {
                let (loss, sums) = panels::forward(&self, panels::Head { input: x, weight: w, bias: b });
                let rows = sums.len();
                (made::<B>(vec![loss], [1], &input), vec![made::<B>(sums, [rows, 1], &input)])
            }
            _ => {
                let (loss, sums) = tensors::forward::<B>(&self, input, weight, bias);
                (loss, vec![sums])
            }
        }
    }

    fn backward<B: GraphBackend>(self, mut found: Found<B, 3>) -> [Option<FloatTensor<B>>; 3] {
        let ([Some(input), Some(weight), Some(bias)], Some(sums)) = (found.inputs, found.kept.pop()) else {
            return [None, None, None];
        };
        let lying = (
            elements::<B>(&input),
            strided::<B, 2>(&weight),
            elements::<B>(&bias),
            elements::<B>(&sums),
            elements::<B>(&found.gradient),
        );
        let (of_input, of_weight, of_bias) = match lying {
            (Some(x), Some(w), Some(b), Some(sums), Some([gradient])) => {
                let head = panels::Head { input: x, weight: w, bias: b };
                let made_of = panels::backward(&self, head, sums, *gradient);
                let [features, classes] = w.sizes;
                let of_weight = made::<B>(made_of.weight, [classes, features], &input);
                (
                    made::<B>(made_of.input, input.shape().as_slice(), &input),
                    B::float_swap_dims(of_weight, 0, 1),
                    made::<B>(made_of.bias, [classes], &input),
                )
            }
            _ => tensors::backward::<B>(&self, [input, weight, bias], sums, found.gradient),
        };
        [Some(of_input), Some(of_weight), self.biased.then_some(of_bias)]
    }
}
