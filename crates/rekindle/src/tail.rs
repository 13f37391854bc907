//! The end of a stage, which a recomputation can do without.

use std::cell::RefCell;

/// Makes what a stage returns, by operations whose values nothing but the stage's caller reads.
///
/// The backward of a linear layer needs its input and its weight, not what it made. So when a stage is run again only for
/// its backward, a linear layer at its end has nothing to do: what it would make is known already, and nobody reads it.
/// PyTorch's checkpoint stops early for this reason. A stage says where its tail begins:
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use rekindle::activation::gelu;
/// use rekindle::nn::linear;
/// use rekindle::{Region, tail};
///
/// #[derive(Module, Debug)]
/// struct Mlp {
///     up: Linear,
///     down: Linear,
/// }
///
/// impl Mlp {
///     fn forward(&self, x: Tensor<2>) -> Tensor<2> {
///         let hidden = gelu(linear(x, self.up.weight.val(), None));
///         // The backward of `down` reads `hidden`: that is made each time.
///         tail(|| linear(hidden, self.down.weight.val(), None))
///     }
/// }
///
/// let device = Device::flex().autodiff();
/// let layer = |from, to| LinearConfig::new(from, to).with_bias(false).init(&device);
/// let layers: Vec<Mlp> = (0..3).map(|_| Mlp { up: layer(8, 32), down: layer(32, 8) }).collect();
/// let y = Region::new().stages("mlp", &layers, Mlp::forward).forward(Tensor::ones([2, 8], &device))?;
/// y.mean().backward();
/// # Ok::<(), rekindle::Error>(())
/// ```
///
/// In such a run [`nn::linear`](crate::nn::linear), [`nn::conv2d`](crate::nn::conv2d), [`nn::add`](crate::nn::add),
/// [`Dropout::add`](crate::Dropout::add) and [`Dropout::forward`](crate::Dropout::forward) give `NaN`s of the right shape
/// inside of `make`; everything else runs as ever. Planners count what that saves ([`StageProfile::unread_ns`](rekindle_plan::StageProfile)). Outside of a region, in
/// the forward pass, and while [`Checks::Checksums`](crate::Checks) compares outputs, this only calls `make`.
///
/// An operation of the tail must not need, for its own backward, what another one of the tail makes: `gelu(linear(x))` is
/// no tail, because the backward of `gelu` reads what `linear` made. Where both are ours this is an
/// [`Error::TailRead`](crate::Error::TailRead); behind an operation of Burn's, the gradients are `NaN`.
pub fn tail<T>(make: impl FnOnce() -> T) -> T {
    let was = TAIL.with_borrow_mut(|state| {
        let was = state.at;
        if was == At::Unread {
            state.at = At::Tail;
        }
        was
    });
    let _back = Back::Place(was);
    make()
}

/// Where this thread is in a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    /// Somebody reads what the stage returns.
    #[default]
    Read,
    /// Nobody does.
    Unread,
    /// In the tail of such a run.
    Tail,
}

#[derive(Debug, Default)]
struct State {
    at: At,
    left_out: LeftOut,
    /// The nodes whose values were not made.
    nodes: Vec<u64>,
}

/// What a run did not do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub(crate) operations: usize,
    /// An operation keeps one of the values that were not made for its backward.
    pub(crate) read: bool,
}

thread_local! {
    static TAIL: RefCell<State> = RefCell::default();
}

/// Puts back what was, also when a stage panics.
enum Back {
    Place(At),
    All(State),
}

impl Drop for Back {
    fn drop(&mut self) {
        TAIL.with_borrow_mut(|state| match self {
            Self::Place(was) => state.at = *was,
            Self::All(was) => *state = std::mem::take(was),
        });
    }
}

/// Runs a stage. `unread`: what it returns is for nobody, but for its tape.
pub(crate) fn run<T>(unread: bool, run: impl FnOnce() -> T) -> (T, LeftOut) {
    let at = if unread { At::Unread } else { At::Read };
    // A stage inside of a stage has a tail of its own.
    let was = TAIL.replace(State { at, ..State::default() });
    let _back = Back::All(was);
    let made = run();
    (made, TAIL.with_borrow(|state| state.left_out))
}

/// What an operation gives instead of its output, if nobody reads that.
pub(crate) fn instead<T>(unmade: impl FnOnce() -> Option<T>) -> Option<T> {
    if TAIL.with_borrow(|state| state.at) != At::Tail {
        return None;
    }
    unmade().inspect(|_| TAIL.with_borrow_mut(|state| state.left_out.operations += 1))
}

/// Notes that the value of a node was not made.
pub(crate) fn note_unmade(node: u64) {
    TAIL.with_borrow_mut(|state| state.nodes.push(node));
}

/// Notes that the value of a node is kept for a backward.
pub(crate) fn note_kept(node: u64) {
    TAIL.with_borrow_mut(|state| state.left_out.read |= state.nodes.contains(&node));
}
