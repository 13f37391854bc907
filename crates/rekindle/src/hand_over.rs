//! Gradients of parameters, handed over while the backward goes on.

use std::cell::{Cell, RefCell};

use burn::module::ParamId;
use burn::tensor::{Gradients, Tensor};

use crate::{Error, backward, flag};

/// Takes a parameter's gradient, all of its values in a row.
pub type Take = Box<dyn FnMut(ParamId, Tensor<1>)>;

thread_local! {
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
    static TAKE: RefCell<Option<Take>> = const { RefCell::new(None) };
}

/// Puts back what was, also when a backward panics.
struct Back(Option<Take>);

impl Drop for Back {
    fn drop(&mut self) {
        TAKE.set(self.0.take());
    }
}

/// Like [`backward`], but hands over the gradient of each parameter as soon as no stage is left to add to it: whoever adds
/// gradients up over several processes can begin while earlier stages are still going back.
///
/// What was handed over is not among the gradients that come back, and takes no memory there. These are the parameters of regions
/// and checkpoints that are leaves. Stages at a region's end whose tapes are kept hand theirs over if the forward ran in
/// [`expecting_hand_over`]; otherwise they are plain training, and theirs come back among the gradients. A parameter that is also
/// used outside of its region, or in two of them, is handed over in parts, or has a part among the gradients: all of them are to be
/// added up.
///
/// ```
/// use std::cell::RefCell;
/// use std::rc::Rc;
///
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use rekindle::{Region, Rule, backward_handing_over, expecting_hand_over};
///
/// let device = Device::flex().autodiff();
/// let layers: Vec<Linear> = (0..3).map(|_| LinearConfig::new(4, 4).with_bias(false).init(&device)).collect();
/// let region = Region::new().stages("layer", &layers, |layer: &Linear, x: Tensor<2>| layer.forward(x));
/// let x = Tensor::ones([2, 4], &device);
/// let loss = expecting_hand_over(|| region.rule(Rule::StoreAll).forward(x))?.mean();
/// let taken = Rc::new(RefCell::new(Vec::new()));
/// let take = Rc::clone(&taken);
/// backward_handing_over(&loss, Box::new(move |id, gradient| take.borrow_mut().push((id, gradient))))?;
/// let order: Vec<_> = taken.borrow().iter().map(|(id, _)| *id).collect();
/// // The last stage goes back first.
/// assert_eq!(order, [layers[2].weight.id, layers[1].weight.id, layers[0].weight.id]);
/// # Ok::<(), rekindle::Error>(())
/// ```
///
/// # Errors
/// As [`backward`].
pub fn backward_handing_over<const D: usize>(loss: &Tensor<D>, take: Take) -> Result<Gradients, Error> {
    let _back = Back(TAKE.replace(Some(take)));
    backward(loss)
}

/// Runs a forward that [`backward_handing_over`] goes back through: stages whose tapes are kept have graphs of their own, so that
/// each gradient is handed over when its stage is through. Otherwise they are part of the user's graph, whose leaves have
/// their gradients in the end, and which costs less.
pub fn expecting_hand_over<T>(forward: impl FnOnce() -> T) -> T {
    flag::during(&EXPECTED, forward)
}

pub(crate) fn is_expected() -> bool {
    EXPECTED.get()
}

/// Runs the backward of a graph inside of a stage. Its regions, if it has any, add to gradients that the stage goes on with.
pub(crate) fn nested<T>(run: impl FnOnce() -> T) -> T {
    let _back = Back(TAKE.take());
    run()
}

pub(crate) fn is_wanted() -> bool {
    TAKE.with_borrow(Option::is_some)
}

pub(crate) fn give(parameter: ParamId, gradient: Tensor<1>) {
    // Not while it is borrowed: whoever takes may run anything.
    let Some(mut take) = TAKE.take() else { return };
    take(parameter, gradient);
    TAKE.set(Some(take));
}
