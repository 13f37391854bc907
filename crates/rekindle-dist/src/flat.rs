//! All weights of a model, or all their gradients, as one vector.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};

use crate::DistError;

/// Where each trained parameter of a model lies in one vector of all of them, in the order of the model's fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    parameters: Vec<(ParamId, Shape)>,
    length: usize,
}

impl Layout {
    /// That of a model.
    ///
    /// # Errors
    /// When a trained parameter is not of f32.
    pub fn new(model: &impl Module) -> Result<Self, DistError> {
        struct Look(Vec<(ParamId, Shape)>, Option<DistError>);
        impl ModuleVisitor for Look {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let value = param.val();
                if !value.is_require_grad() {
                    return;
                }
                self.0.push((param.id, value.shape()));
                if value.dtype() != DType::F32 {
                    let found = format!("{:?}", value.dtype());
                    self.1.get_or_insert(DistError::Type { parameter: self.0.len(), found });
                }
            }
        }
        let mut look = Look(Vec::new(), None);
        model.visit(&mut look);
        match look.1 {
            Some(error) => Err(error),
            None => {
                let length = look.0.iter().map(|(_, shape)| shape.num_elements()).sum();
                Ok(Self { length, parameters: look.0 })
            }
        }
    }

    /// Where the weights of a model are, without autodiff; nowhere if it has none to train.
    pub(crate) fn device(model: &impl Module) -> Option<Device> {
        struct Look(Option<Device>);
        impl ModuleVisitor for Look {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let value = param.val();
                if self.0.is_none() && value.is_require_grad() {
                    self.0 = Some(value.without_autodiff().device());
                }
            }
        }
        let mut look = Look(None);
        model.visit(&mut look);
        look.0
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether nothing is trained.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// How many values each of so many ranks has of the vector, padded to a multiple.
    pub fn part(&self, ranks: usize) -> usize {
        self.length.div_ceil(ranks)
    }

    /// The parameters in their order, and how many values each has.
    pub fn parameters(&self) -> impl Iterator<Item = (ParamId, usize)> + '_ {
        self.parameters.iter().map(|(id, shape)| (*id, shape.num_elements()))
    }

    /// The parameters in their order, and the sizes of each.
    pub fn shapes(&self) -> impl Iterator<Item = (ParamId, &[usize])> + '_ {
        self.parameters.iter().map(|(id, shape)| (*id, shape.as_slice()))
    }

    /// How many values each parameter has.
    pub(crate) fn lengths(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        self.parameters.iter().map(|(_, shape)| shape.num_elements())
    }

    fn check(&self, found: usize) -> Result<(), DistError> {
        match found == self.length {
            true => Ok(()),
            false => Err(DistError::Length { found, expected: self.length }),
        }
    }

    /// All gradients, zeros for a parameter that has none.
    ///
    /// # Errors
    /// When the model is another, or a gradient is not of f32.
    pub fn gradients(&self, model: &impl Module, gradients: &GradientsParams) -> Result<Vec<f32>, DistError> {
        self.flatten(model, Some(gradients))
    }

    /// All weights.
    ///
    /// # Errors
    /// When the model is another.
    pub fn weights(&self, model: &impl Module) -> Result<Vec<f32>, DistError> {
        self.flatten(model, None)
    }

    fn flatten(&self, model: &impl Module, of: Option<&GradientsParams>) -> Result<Vec<f32>, DistError> {
        let mut flatten = Flatten { of, values: Vec::with_capacity(self.length), number: 0, error: None };
        model.visit(&mut flatten);
        self.check(flatten.values.len())?;
        flatten.error.map_or(Ok(flatten.values), Err)
    }

    /// Hands out the gradients one after the other, zeros for a parameter that has none, and lets go of each as soon as it was taken.
    ///
    /// # Errors
    /// In the end, when the model is another, or a gradient is not of f32: zeros are taken in its place, so that ranks stay in step.
    pub(crate) fn hand_out(
        &self,
        model: &impl Module,
        gradients: GradientsParams,
        take: impl FnMut(&[f32]),
    ) -> Result<(), DistError> {
        let mut hand_out = HandOut { gradients, take, taken: 0, number: 0, error: None };
        model.visit(&mut hand_out);
        self.check(hand_out.taken)?;
        hand_out.error.map_or(Ok(()), Err)
    }

    /// The gradients that a vector has, for an optimizer. What lies behind them pads it.
    ///
    /// # Errors
    /// When the vector is too short, or the model is another.
    pub fn to_gradients(&self, model: &impl Module, values: &[f32]) -> Result<GradientsParams, DistError> {
        self.check(values.len().min(self.length))?;
        let mut cut = Cut { values, gradients: GradientsParams::new() };
        model.visit(&mut cut);
        self.check(values.len() - cut.values.len())?;
        Ok(cut.gradients)
    }

    /// The model with the weights that a vector has. What lies behind them pads it.
    ///
    /// # Errors
    /// When the vector is too short.
    pub fn to_model<M: Module>(&self, model: M, values: &[f32]) -> Result<M, DistError> {
        self.check(values.len().min(self.length))?;
        let mut cut = Cut { values, gradients: GradientsParams::new() };
        Ok(model.map(&mut cut))
    }
}

/// Writes all values into one vector.
struct Flatten<'a> {
    /// Gradients, or the weights themselves.
    of: Option<&'a GradientsParams>,
    values: Vec<f32>,
    number: usize,
    error: Option<DistError>,
}

impl ModuleVisitor for Flatten<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let weights = param.val();
        if !weights.is_require_grad() {
            return;
        }
        self.number += 1;
        let length = weights.shape().num_elements();
        let tensor = match self.of {
            Some(gradients) => gradients.get::<D>(param.id),
            None => Some(weights.without_autodiff()),
        };
        let Some(tensor) = tensor else {
            self.values.extend(std::iter::repeat_n(0.0, length));
            return;
        };
        let found = format!("{:?}", tensor.dtype());
        match tensor.into_data().try_to_vec::<f32>() {
            Ok(values) => self.values.extend(values),
            Err(_) => {
                self.values.extend(std::iter::repeat_n(0.0, length));
                self.error.get_or_insert(DistError::Type { parameter: self.number, found });
            }
        }
    }
}

/// Hands out gradients.
struct HandOut<F> {
    gradients: GradientsParams,
    take: F,
    /// How many values there were.
    taken: usize,
    number: usize,
    error: Option<DistError>,
}

impl<F: FnMut(&[f32])> ModuleVisitor for HandOut<F> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let weights = param.val();
        if !weights.is_require_grad() {
            return;
        }
        self.number += 1;
        let length = weights.shape().num_elements();
        self.taken += length;
        if let Some(tensor) = self.gradients.remove::<D>(param.id) {
            let found = format!("{:?}", tensor.dtype());
            match tensor.into_data().as_slice::<f32>() {
                Ok(values) if values.len() == length => return (self.take)(values),
                Ok(values) => {
                    let error = DistError::Length { found: values.len(), expected: length };
                    self.error.get_or_insert(error);
                }
                Err(_) => {
                    self.error.get_or_insert(DistError::Type { parameter: self.number, found });
                }
            }
        }
        (self.take)(&vec![0.0; length]);
    }
}

/// Cuts a vector into tensors.
struct Cut<'a> {
    /// What is left of it.
    values: &'a [f32],
    gradients: GradientsParams,
}

impl Cut<'_> {
    fn next<const D: usize>(&mut self, like: &Tensor<D>) -> Tensor<D> {
        let shape = like.shape();
        let (values, rest) = self.values.split_at(shape.num_elements().min(self.values.len()));
        self.values = rest;
        Tensor::from_data(TensorData::new(values.to_vec(), shape), &like.clone().without_autodiff().device())
    }
}

impl ModuleVisitor for Cut<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let weights = param.val();
        if weights.is_require_grad() {
            let gradient = self.next(&weights);
            self.gradients.register(param.id, gradient);
        }
    }
}

impl ModuleMapper for Cut<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.val().is_require_grad() {
            return param;
        }
        let values = self.next(&param.val()).into_data();
        param.map(|weights| {
            let device = weights.device();
            Tensor::from_data(values, &device).require_grad()
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use burn::nn::LinearConfig;

    use super::*;

    #[test]
    fn parameters_stand_in_the_order_of_fields_with_their_sizes() {
        let layer = || LinearConfig::new(3, 2).init(&Device::flex().autodiff());
        let layout = Layout::new(&vec![layer(), layer().no_grad()]).unwrap();
        let shapes: Vec<&[usize]> = layout.shapes().map(|(_, shape)| shape).collect();
        assert_eq!(shapes, [&[3, 2][..], &[2]], "what is not trained is not there");
        let lengths: Vec<usize> = layout.parameters().map(|(_, length)| length).collect();
        assert_eq!((lengths, layout.len()), (vec![6, 2], 8));
    }
}
