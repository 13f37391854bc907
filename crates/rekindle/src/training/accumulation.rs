//! Gradients of micro-batches, added up.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{Gradients, Tensor};

use crate::{Error, Take, backward, backward_handing_over};

/// The gradients of several losses, added up one after the other: a batch in parts, each of which takes the memory of its
/// part alone.
///
/// From the second part on the sum is held beside what the part itself takes: memory of the size of the trained parameters,
/// which a [`Budget`](crate::Budget) leaves room for with [`holding`](crate::Budget::holding).
///
/// See [the module](super) for an example.
#[derive(Default)]
pub struct Accumulation {
    gradients: Option<GradientsParams>,
    loss: Option<Tensor<1>>,
}

/// What the parts came to.
#[derive(Debug)]
#[non_exhaustive]
pub struct Accumulated {
    /// The shares of all losses, added up, without autodiff.
    pub loss: Tensor<1>,
    /// The gradients of that.
    pub gradients: GradientsParams,
}

impl std::fmt::Debug for Accumulation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Accumulation").field("loss", &self.loss).finish_non_exhaustive()
    }
}

impl Accumulation {
    /// Nothing so far.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `loss` back and adds `share` of its gradients: of a mean, the part of the batch that it is the mean of.
    ///
    /// Parts are added in the order of these calls, each parameter to itself, so the sum has the same bits whatever plan
    /// each part ran under. A share of 1 changes no bit.
    ///
    /// # Errors
    /// When the share is not a number above 0, or the backward fails.
    pub fn add<M: Module>(&mut self, model: &M, loss: Tensor<1>, share: f64) -> Result<(), Error> {
        self.add_by(model, loss, share, backward)
    }

    /// The same for the last part: hands over the sum of each gradient as soon as it is complete, as
    /// [`backward_handing_over`] does. These are not among the gradients in the end.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_handing_over<M: Module>(
        &mut self,
        model: &M,
        loss: Tensor<1>,
        share: f64,
        mut take: Take,
    ) -> Result<(), Error> {
        let sums = Rc::new(RefCell::new(Flat::of(model, self.gradients.take())));
        let left = Rc::clone(&sums);
        let take: Take = Box::new(move |id, gradient| {
            let sum = left.borrow_mut().0.remove(&id);
            take(id, sum.map_or_else(|| gradient.clone(), |sum| gradient.clone() + sum));
        });
        let run = |loss: &Tensor<1>| backward_handing_over(loss, take);
        self.add_by(model, loss, share, run)?;
        // What was not handed over is added up as ever.
        let gradients = self.gradients.take().unwrap_or_default();
        self.gradients = Some(sums.take().added_to(model, gradients));
        Ok(())
    }

    fn add_by<M: Module>(
        &mut self,
        model: &M,
        loss: Tensor<1>,
        share: f64,
        backward: impl FnOnce(&Tensor<1>) -> Result<Gradients, Error>,
    ) -> Result<(), Error> {
        if !(share.is_finite() && share > 0.0) {
            return Err(Error::Share { found: share });
        }
        let loss = if share == 1.0 { loss } else { loss.mul_scalar(share) };
        let gradients = GradientsParams::from_grads(backward(&loss)?, model);
        let loss = loss.without_autodiff();
        self.gradients = Some(match self.gradients.take() {
            None => gradients,
            Some(sum) => {
                let mut both = GradientsAccumulator::<M>::new();
                both.accumulate(model, sum);
                both.accumulate(model, gradients);
                both.grads()
            }
        });
        self.loss = Some(match self.loss.take() {
            None => loss,
            Some(sum) => sum + loss,
        });
        Ok(())
    }

    /// The sum.
    ///
    /// # Errors
    /// When nothing was added.
    pub fn finish(self) -> Result<Accumulated, Error> {
        match (self.loss, self.gradients) {
            (Some(loss), Some(gradients)) => Ok(Accumulated { loss, gradients }),
            _ => Err(Error::NothingAccumulated),
        }
    }
}

/// Gradients by their parameters, all of their values in a row.
#[derive(Default)]
struct Flat(HashMap<ParamId, Tensor<1>>);

impl Flat {
    fn of<M: Module>(model: &M, gradients: Option<GradientsParams>) -> Self {
        struct Flatten(GradientsParams, HashMap<ParamId, Tensor<1>>);
        impl ModuleVisitor for Flatten {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(gradient) = self.0.remove::<D>(param.id) {
                    let length = gradient.shape().num_elements();
                    self.1.insert(param.id, gradient.reshape([length]));
                }
            }
        }
        let mut flatten = Flatten(gradients.unwrap_or_default(), HashMap::new());
        model.visit(&mut flatten);
        Self(flatten.1)
    }

    /// `gradients`, with what is here added to them.
    fn added_to<M: Module>(self, model: &M, gradients: GradientsParams) -> GradientsParams {
        struct Add(HashMap<ParamId, Tensor<1>>, GradientsParams);
        impl ModuleVisitor for Add {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let Some(sum) = self.0.remove(&param.id) else { return };
                let sum = sum.reshape(param.val().shape());
                let both = match self.1.remove::<D>(param.id) {
                    Some(gradient) => gradient + sum,
                    None => sum,
                };
                self.1.register(param.id, both);
            }
        }
        let mut add = Add(self.0, gradients);
        model.visit(&mut add);
        add.1
    }
}
