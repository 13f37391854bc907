//! What a stage would rather run again than keep, where its tape is to be small.

use std::cell::Cell;

/// Makes what is little work for its size: a plan may have it run again in the backward, and not kept.
///
/// A stage's tape is kept as a whole or not at all, and between the two lies much. What a wide linear layer makes takes more memory
/// than all else of a perceptron, for a third of its time; what attention makes takes less than the queries, keys and values it
/// reads. A stage says what lies there for the taking, and has one more way to be kept: under the option `again`
/// [`nn::linear`](crate::nn::linear) inside of `make` keeps its input and not its output, beside everything that Burn's balanced
/// tape does not keep either.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use rekindle::activation::gelu;
/// use rekindle::nn::linear;
/// use rekindle::{Region, again, tail};
///
/// #[derive(Module, Debug)]
/// struct Mlp {
///     up: Linear,
///     down: Linear,
/// }
///
/// impl Mlp {
///     fn forward(&self, x: Tensor<2>) -> Tensor<2> {
///         let hidden = again(|| linear(x, self.up.weight.val(), None));
///         tail(|| linear(gelu(hidden), self.down.weight.val(), None))
///     }
/// }
///
/// let device = Device::flex().autodiff();
/// let layer = |from, to| LinearConfig::new(from, to).with_bias(false).init(&device);
/// let layers: Vec<Mlp> = (0..3).map(|_| Mlp { up: layer(8, 32), down: layer(32, 8) }).collect();
/// let x = Tensor::<2>::ones([2, 8], &device);
/// let region = || Region::new().stages("mlp", &layers, Mlp::forward);
/// // The first stage under the option, the others as ever.
/// let plan = "tape 1 again, tape 2, tape 3, backward 3, backward 2, backward 1";
/// # let actions: Vec<rekindle_plan::Action> = plan.split(", ").map(|action| action.parse().unwrap()).collect();
/// # let profile = rekindle::Profile::unmeasured((0..3).map(|i| i.to_string()), &["again".parse().unwrap()])?;
/// # let schedule = rekindle::Schedule::judge(&profile, &actions)?.0;
/// let kept = region().forward(x.clone())?.mean().backward();
/// let again = region().schedule(schedule).forward(x)?.mean().backward();
/// let of = |gradients: &_| layers[0].up.weight.val().grad(gradients).map(|gradient| gradient.into_data());
/// assert_eq!(of(&kept), of(&again));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Outside of such a stage this only calls `make`. Operations of Burn's own inside of it are kept, or not, as on a balanced tape.
/// The bits are the same in each way.
pub fn again<T>(make: impl FnOnce() -> T) -> T {
    let _back = Back(STATE.get());
    STATE.set(State { inside: true, ..STATE.get() });
    make()
}

/// What holds on this thread.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// What is marked is run again.
    wanted: bool,
    /// In what is marked.
    inside: bool,
}

thread_local! {
    static STATE: Cell<State> = const { Cell::new(State { wanted: false, inside: false }) };
    /// How many operations there were that could be run again.
    static OFFERED: Cell<u64> = const { Cell::new(0) };
}

/// Puts back what was, also when a stage panics.
struct Back(State);

impl Drop for Back {
    fn drop(&mut self) {
        STATE.set(self.0);
    }
}

/// Runs a stage, with what it marks to be run again if that is `wanted`. Gives whether it marked anything.
pub(crate) fn run<T>(wanted: bool, run: impl FnOnce() -> T) -> (T, bool) {
    let _back = Back(STATE.get());
    // A stage inside of a stage is kept in a way of its own.
    STATE.set(State { wanted, inside: false });
    let before = OFFERED.get();
    let made = run();
    (made, OFFERED.get() > before)
}

/// Notes an operation that could be run again.
pub(crate) fn offer() {
    if STATE.get().inside {
        OFFERED.set(OFFERED.get() + 1);
    }
}

/// Whether such an operation is to be.
pub(crate) fn is_wanted() -> bool {
    let State { wanted, inside } = STATE.get();
    wanted && inside
}
