//! The length of all gradients together.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};

use crate::Error;

/// Gradients no longer than asked for.
#[derive(Debug)]
#[non_exhaustive]
pub struct Clipped {
    /// The gradients.
    pub gradients: GradientsParams,
    /// How long they were before.
    pub norm: f64,
}

/// The length of all gradients of `model`, as if they were one vector. Infinite or not a number if one of them is.
///
/// # Errors
/// When the device cannot be read.
pub fn global_norm<M: Module>(model: &M, gradients: &GradientsParams) -> Result<f64, Error> {
    struct Squares<'a> {
        gradients: &'a GradientsParams,
        sums: Vec<Tensor<1>>,
    }
    impl ModuleVisitor for Squares<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.gradients.get::<D>(param.id) {
                let gradient = gradient.cast(DType::F32);
                self.sums.push((gradient.clone() * gradient).sum());
            }
        }
    }
    let mut squares = Squares { gradients, sums: Vec::new() };
    model.visit(&mut squares);
    if squares.sums.is_empty() {
        return Ok(0.0);
    }
    // One look at the device, not one for each parameter.
    let sums = Tensor::cat(squares.sums, 0).try_into_data();
    let sums = sums.map_err(|error| Error::Run { reason: format!("gradients cannot be read: {error:?}") })?;
    Ok(sums.iter::<f32>().map(f64::from).sum::<f64>().sqrt())
}

/// Shortens all gradients by one factor, so that together they are no longer than `most`. Shorter ones are left alone.
///
/// # Errors
/// When `most` is not a number above 0, or a gradient is none: nothing that could reach the weights is handed back.
pub fn clip_by_norm<M: Module>(model: &M, gradients: GradientsParams, most: f64) -> Result<Clipped, Error> {
    if !(most.is_finite() && most > 0.0) {
        return Err(Error::ClipNorm { found: most });
    }
    let norm = global_norm(model, &gradients)?;
    if !norm.is_finite() {
        return Err(Error::NotFinite { norm });
    }
    let gradients = match norm > most {
        true => scaled(model, gradients, most / norm),
        false => gradients,
    };
    Ok(Clipped { gradients, norm })
}

/// All gradients times a factor.
pub(super) fn scaled<M: Module>(model: &M, gradients: GradientsParams, factor: f64) -> GradientsParams {
    struct Scale(GradientsParams, f64);
    impl ModuleVisitor for Scale {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.remove::<D>(param.id) {
                self.0.register::<D>(param.id, gradient.mul_scalar(self.1));
            }
        }
    }
    let mut scale = Scale(gradients, factor);
    model.visit(&mut scale);
    scale.0
}
