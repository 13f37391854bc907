//! One stage: a module and a function of it, run in whatever way a plan asks for.

use std::any::{Any, TypeId};
use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::kind::Autodiff;
use burn::tensor::{Bool, Device, Int, Tensor};

use crate::Error;
use crate::boundary::{Boundary, Parts};
use crate::node::{AnyTensor, TapeStrategy};

/// What a stage's function may return: a boundary, or a `Result` of one, so that `?` works inside.
#[diagnostic::on_unimplemented(
    message = "a stage returns a boundary or `Result<boundary, rekindle::Error>`, not `{Self}`"
)]
pub trait StageOutput {
    /// The boundary it makes.
    type Boundary: Boundary;

    /// The boundary, or why there is none.
    ///
    /// # Errors
    /// When the function failed.
    fn into_boundary(self) -> Result<Self::Boundary, Error>;
}

impl<T: Boundary> StageOutput for T {
    type Boundary = T;

    fn into_boundary(self) -> Result<T, Error> {
        Ok(self)
    }
}

impl<T: Boundary> StageOutput for Result<T, Error> {
    type Boundary = T;

    fn into_boundary(self) -> Self {
        self
    }
}

/// For stages that have no parameters: `Region::new().stage("gelu", &NoModule, |_: &NoModule, x| …)`.
#[derive(Module, Debug)]
pub struct NoModule;

/// How to run a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// On the user's own graph, as if there were no region.
    Plain,
    /// On the user's own graph, in the way the region keeps tapes.
    Kept,
    /// Without a tape. The first run of a step is `live`: it moves the running statistics. Later ones leave them alone.
    Free { live: bool },
    /// On a graph of its own, whose leaves are handed back.
    Taped { live: bool, strategy: TapeStrategy },
    /// Without a tape and without any trace of having run: only to see what the function reaches for.
    Probe,
}

/// What a run made.
pub(crate) struct Ran {
    pub(crate) output: Parts,
    /// The leaves of the graph it recorded, one for each tracked parameter, in the order of
    /// [`AnyStage::parameters`].
    pub(crate) leaves: Vec<AnyTensor>,
}

/// A stage whose types are forgotten.
pub(crate) trait AnyStage: Send {
    fn name(&self) -> &str;
    /// Whether it goes on with the random numbers of the stage before it.
    fn continues(&self) -> bool;
    fn set_continuing(&mut self);
    /// The tracked parameters, each once. Initialises those that are not yet: initialising draws random numbers.
    fn parameters(&self) -> Parameters;
    fn run(&self, mode: Mode, strategy: TapeStrategy, input: Parts) -> Result<Ran, Error>;
    /// Whether [`Mode::Kept`] can keep its tape in this way, where the user's graph has its `own`.
    fn can_be_kept(&self, strategy: TapeStrategy, own: TapeStrategy) -> bool;
    /// Whether [`Mode::Taped`] can, on a graph of the stage's own.
    fn can_be_taped(&self, strategy: TapeStrategy, own: TapeStrategy) -> bool;
    /// Runs the function on tensors without values, which `lift` puts in the place of the module's.
    #[cfg(feature = "capture")]
    fn trace(&self, lift: &mut crate::traced::Lift<'_>, input: Parts) -> Result<Parts, Error>;
    /// Whether a tensor it reads besides its input is tracked: its gradient would be lost.
    fn side_is_tracked(&self) -> bool;
    /// Whether the next taped run is one to look at more closely: the first of this stage, and one in 256 after.
    fn is_due(&self) -> bool;
    /// A number that is the same for stages of the same code on modules of the same sizes and settings.
    fn kind(&self) -> u64;
    /// Everything its module is set to, but for its parameters. The same in every run of the program.
    fn settings(&self) -> String;
    /// The tensors it reads besides its input.
    fn side(&self) -> Parts;
    /// Every parameter, trained or not, in the order of the module.
    fn describe_parameters(&self) -> Vec<String>;
    /// The stage for what comes after its first run, without a hold on the user's graph: its module has the same
    /// values, tracked by nobody.
    fn untied(self: Box<Self>) -> Box<dyn AnyStage>;
    /// Counts a taped run that was in order. One that was not leaves the stage due.
    fn count_run(&self);
}

/// What a module trains.
#[derive(Default)]
pub(crate) struct Parameters {
    pub(crate) tracked: Vec<AnyTensor>,
    /// Which parameters these are.
    pub(crate) ids: Vec<ParamId>,
    /// Where the first of its tensors is.
    pub(crate) device: Option<Device>,
    pub(crate) autodiff: bool,
}

pub(crate) struct StageOf<M, I, S, R, F> {
    name: String,
    module: M,
    /// What the stage reads besides its input: untracked, the same in every run.
    side: S,
    function: F,
    continues: bool,
    /// What its module trains, once somebody asked.
    trained: OnceCell<Trained>,
    types: PhantomData<fn(I) -> R>,
}

impl<M, I, S, R, F> StageOf<M, I, S, R, F> {
    pub(crate) fn new(name: String, module: M, side: S, function: F) -> Self {
        Self { name, module, side, function, continues: false, trained: OnceCell::new(), types: PhantomData }
    }
}

impl<M, I, S, R, F> AnyStage for StageOf<M, I, S, R, F>
where
    M: Module + 'static,
    I: Boundary,
    S: Boundary + Clone + Send,
    R: StageOutput + 'static,
    F: Fn(&M, I, S) -> R + Copy + Send + 'static,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn continues(&self) -> bool {
        self.continues
    }

    fn set_continuing(&mut self) {
        self.continues = true;
    }

    fn parameters(&self) -> Parameters {
        let (parameters, trained) = self.look();
        // Who looks again finds the same.
        let _ = self.trained.set(trained);
        parameters
    }

    fn run(&self, mode: Mode, strategy: TapeStrategy, mut input: Parts) -> Result<Ran, Error> {
        let free = |output: Result<Parts, Error>| output.map(|output| Ran { output, leaves: Vec::new() });
        let own = self.trained().strategy.unwrap_or(strategy);
        // One operation must not mix strategies, masks and positions included.
        let strategy = match mode {
            Mode::Taped { strategy, .. } => strategy,
            _ => strategy,
        };
        let mut side = self.side.clone();
        if mode != Mode::Plain {
            input.set_strategy(strategy);
            let mut parts = Parts::of(side);
            parts.set_strategy(strategy);
            side = parts.into_tree()?;
        }
        let call = |module: &M, input: Parts| -> Result<Parts, Error> {
            let output = (self.function)(module, input.into_tree()?, side).into_boundary()?;
            Ok(Parts::of(output))
        };
        match mode {
            Mode::Plain => free(call(&self.module, input)),
            Mode::Kept if self.trained().is_kept_as(strategy) => free(call(&self.module, input)),
            // Other words for the same nodes.
            Mode::Kept => free(call(&self.module.clone().map(&mut Retag(strategy)), input)),
            // Not `valid()`: dropout and batch norm train only on a device with autodiff.
            Mode::Free { live: true } => {
                let output = call(&self.module.clone().no_grad(), input);
                self.settle();
                free(output)
            }
            Mode::Free { live: false } if !is_lost(own) => {
                let module = self.private().map(&mut Retag(strategy)).no_grad();
                free(call(&module, input))
            }
            Mode::Probe | Mode::Free { .. } => {
                let statistics = RunningValues::of(&self.module);
                let module = self.module.clone().no_grad();
                let output = call(&module, input);
                statistics.restore(module);
                free(output)
            }
            Mode::Taped { live: true, strategy: asked } if self.trained().is_kept_as(asked) => {
                let mut fresh = FreshLeaves::new(&self.trained().ids, None);
                let module = self.module.clone().map(&mut fresh);
                let output = call(&module, input)?;
                self.settle();
                Ok(fresh.ran(output))
            }
            Mode::Taped { live: false, strategy: asked } if asked == own && is_lost(own) => {
                let statistics = RunningValues::of(&self.module);
                let mut fresh = FreshLeaves::new(&self.trained().ids, None);
                let module = self.module.clone().map(&mut fresh);
                let output = call(&module, input);
                statistics.restore(self.module.clone());
                Ok(fresh.ran(output?))
            }
            Mode::Taped { live, .. } => {
                let mut fresh = FreshLeaves::new(&self.trained().ids, Some(strategy));
                let module = self.private().map(&mut fresh);
                let output = call(&module, input)?;
                if live {
                    // The statistics moved in the private copy; the user's must move too.
                    RunningValues::of(&module).restore(self.module.clone());
                }
                Ok(fresh.ran(output))
            }
        }
    }

    fn can_be_kept(&self, strategy: TapeStrategy, own: TapeStrategy) -> bool {
        // To give running statistics another strategy would write to them.
        let trained = self.trained();
        self.can_be_taped(strategy, own) && (trained.is_kept_as(strategy) || trained.all)
    }

    fn can_be_taped(&self, strategy: TapeStrategy, own: TapeStrategy) -> bool {
        strategy == self.trained().strategy.unwrap_or(own) || !has_constants(&self.settings())
    }

    #[cfg(feature = "capture")]
    fn trace(&self, lift: &mut crate::traced::Lift<'_>, input: Parts) -> Result<Parts, Error> {
        let module = lift.module::<M, F>(&self.module);
        let side = lift.side(Parts::of(self.side.clone()))?.into_tree()?;
        let output = (self.function)(&module, input.into_tree()?, side).into_boundary()?;
        Ok(Parts::of(output))
    }

    fn side_is_tracked(&self) -> bool {
        let side = Parts::of(self.side.clone());
        side.tensors.iter().any(AnyTensor::is_tracked)
    }

    fn kind(&self) -> u64 {
        let mut hash = std::hash::DefaultHasher::new();
        TypeId::of::<(M, F)>().hash(&mut hash);
        self.settings().hash(&mut hash);
        self.describe_parameters().hash(&mut hash);
        hash.finish()
    }

    fn settings(&self) -> String {
        without_identity(&format!("{:?}", self.module))
    }

    fn side(&self) -> Parts {
        Parts::of(self.side.clone())
    }

    fn describe_parameters(&self) -> Vec<String> {
        #[derive(Default)]
        struct Describe(Vec<String>);
        impl ModuleVisitor for Describe {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let value = param.val();
                let tracked = if value.is_tracked() { "" } else { " frozen" };
                self.0.push(format!("{}{tracked}", AnyTensor::from(value).describe()));
            }
            fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
                self.0.push(AnyTensor::from(param.val()).describe());
            }
            fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
                self.0.push(AnyTensor::from(param.val()).describe());
            }
        }
        let mut describe = Describe::default();
        self.module.visit(&mut describe);
        describe.0
    }

    fn untied(self: Box<Self>) -> Box<dyn AnyStage> {
        // Afterwards nothing tells.
        self.trained();
        let stage = *self;
        Box::new(Self { module: stage.module.no_grad(), ..stage })
    }

    fn is_due(&self) -> bool {
        let runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (TypeId::of::<(M, F)>(), self.name.clone());
        runs.get(&key).is_none_or(|runs| runs.is_multiple_of(256))
    }

    fn count_run(&self) {
        let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (TypeId::of::<(M, F)>(), self.name.clone());
        *runs.entry(key).or_insert(0) += 1;
    }
}

/// Whether `valid()` and `train()` lose this strategy. Parameters can be given it back; a tensor that is a field of a module, and no
/// `Param`, cannot.
fn is_lost(strategy: TapeStrategy) -> bool {
    strategy != TapeStrategy::default()
}

/// Whether a module's settings show tensors that are no parameters. Mappers do not see them, so their strategy stays what it is.
fn has_constants(settings: &str) -> bool {
    settings.contains("BridgeTensor {")
}

/// A module's debug text without what tells it from its like: the names of its parameters, and running statistics.
fn without_identity(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = ["Param: ", "RunningState {"].iter().filter_map(|mark| rest.find(mark)).min() {
        kept.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = match rest.starts_with("Param: ") {
            true => rest["Param: ".len()..].find(' ').map(|end| end + "Param: ".len()),
            false => closing(rest),
        };
        rest = &rest[end.unwrap_or(rest.len())..];
    }
    kept.push_str(rest);
    kept
}

/// Where the first brace of `text` is closed.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    text.char_indices().find_map(|(index, character)| {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => return None,
        }
        (depth == 0).then_some(index + 1)
    })
}

/// How often each stage was taped in its first run, by its module, function and name.
static RUNS: Mutex<BTreeMap<(TypeId, String), u64>> = Mutex::new(BTreeMap::new());

impl<M: Module, I, S, R, F> StageOf<M, I, S, R, F> {
    /// The module with the same values, but running statistics of its own.
    fn private(&self) -> M {
        self.module.valid().train()
    }

    /// Brings running statistics up to date, each as a tensor that no node belongs to. Burn does so when somebody next looks, which is when
    /// the stage runs again, and what it computes then keeps its nodes until the statistic moves once more: three kibibytes for each
    /// normalised layer, all through the backward pass.
    fn settle(&self) {
        if !self.trained().all {
            RunningValues::of(&self.module).restore(self.module.clone());
        }
    }

    /// What is known of the module's parameters. To look costs more than the smallest stages take.
    fn trained(&self) -> &Trained {
        self.trained.get_or_init(|| self.look().1)
    }

    fn look(&self) -> (Parameters, Trained) {
        let mut visitor = FindTracked::default();
        self.module.visit(&mut visitor);
        (visitor.found, Trained { ids: visitor.seen, strategy: visitor.strategy, all: !visitor.untracked })
    }
}

/// What a module trains, and how.
struct Trained {
    ids: Vec<ParamId>,
    /// The strategy its tensors carry, if it has any with autodiff.
    strategy: Option<TapeStrategy>,
    /// Whether all of its floats are trained.
    all: bool,
}

impl Trained {
    fn is_kept_as(&self, strategy: TapeStrategy) -> bool {
        self.strategy.is_none_or(|own| own == strategy)
    }
}

#[derive(Default)]
struct FindTracked {
    found: Parameters,
    seen: Vec<ParamId>,
    strategy: Option<TapeStrategy>,
    untracked: bool,
}

impl ModuleVisitor for FindTracked {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        self.found.autodiff |= value.is_autodiff();
        self.untracked |= !value.is_tracked();
        self.strategy = self.strategy.or_else(|| value.gradient_checkpointing_strategy());
        self.found.device.get_or_insert_with(|| value.device());
        // A parameter that stands twice in a module is one leaf: its uses add up in one place, in Burn's order.
        if value.is_tracked() && !self.seen.contains(&param.id) {
            self.seen.push(param.id);
            self.found.tracked.push(value.into());
            self.found.ids.push(param.id);
        }
    }
}

/// Gives every tracked parameter a new leaf over the same values, so that what is recorded is a graph of its own.
struct FreshLeaves<'a> {
    /// The parameters to track: after `valid()` a tensor no longer tells.
    tracked: &'a [ParamId],
    retag: Option<TapeStrategy>,
    made: HashMap<ParamId, Box<dyn Any>>,
    leaves: Vec<AnyTensor>,
}

impl<'a> FreshLeaves<'a> {
    fn new(tracked: &'a [ParamId], retag: Option<TapeStrategy>) -> Self {
        Self {
            tracked,
            retag,
            made: HashMap::with_capacity(tracked.len()),
            leaves: Vec::with_capacity(tracked.len()),
        }
    }

    fn ran(self, output: Parts) -> Ran {
        Ran { output, leaves: self.leaves }
    }
}

impl ModuleMapper for FreshLeaves<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = param.id;
        if !self.tracked.contains(&id) {
            return match self.retag {
                Some(strategy) => param.map(|tensor| retagged(tensor, strategy)),
                // Mapping running statistics would write to the ones the user's module shares.
                None => param,
            };
        }
        let made = self.made.get(&id).and_then(|leaf| leaf.downcast_ref::<Tensor<D>>());
        if let Some(leaf) = made.cloned() {
            return param.map(|_| leaf);
        }
        let retag = self.retag;
        let param = param.map(|tensor| {
            let leaf = tensor.detach().require_grad();
            match retag {
                Some(strategy) => retagged(leaf, strategy),
                None => leaf,
            }
        });
        let leaf = param.val();
        self.leaves.push(leaf.clone().into());
        self.made.insert(id, Box::new(leaf));
        param
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        match self.retag {
            Some(strategy) => Retag(strategy).map_int(param),
            None => param,
        }
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        match self.retag {
            Some(strategy) => Retag(strategy).map_bool(param),
            None => param,
        }
    }
}

/// Puts back the strategy that `valid()` and `train()` drop.
struct Retag(TapeStrategy);

impl ModuleMapper for Retag {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let strategy = self.0;
        param.map(|tensor| retagged(tensor, strategy))
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let strategy = self.0;
        param.map(|tensor| retagged(tensor, strategy))
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        let strategy = self.0;
        param.map(|tensor| retagged(tensor, strategy))
    }
}

fn retagged<const D: usize, K: Autodiff>(tensor: Tensor<D, K>, strategy: TapeStrategy) -> Tensor<D, K> {
    match tensor.is_autodiff() {
        true => tensor.with_gradient_checkpointing_strategy(strategy),
        false => tensor,
    }
}

/// The values of a module's running statistics (and of its other untracked tensors, which restoring leaves alone).
struct RunningValues(HashMap<ParamId, Box<dyn Any>>);

impl RunningValues {
    fn of(module: &impl Module) -> Self {
        struct Read(HashMap<ParamId, Box<dyn Any>>);
        impl ModuleVisitor for Read {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.0.insert(param.id, Box::new(param.val()));
            }
        }
        let mut read = Read(HashMap::new());
        // `valid()` brings pending updates into the values, and these out of autodiff.
        module.valid().visit(&mut read);
        Self(read.0)
    }

    /// Writes the values into the running statistics that `module` shares with its clones. Parameters of a clone are
    /// its own, so what is written there is gone with it.
    fn restore<M: Module>(self, module: M) {
        struct Write(HashMap<ParamId, Box<dyn Any>>);
        impl ModuleMapper for Write {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let value = self.0.get(&param.id);
                match value.and_then(|value| value.downcast_ref::<Tensor<D>>()).cloned() {
                    Some(value) if !param.is_require_grad() => {
                        param.map(|old| match old.gradient_checkpointing_strategy() {
                            Some(strategy) => retagged(value.autodiff(), strategy),
                            None => value,
                        })
                    }
                    _ => param,
                }
            }
        }
        // An update that is still pending would overwrite what is restored.
        let _ = module.valid();
        let _ = module.map(&mut Write(self.0));
    }
}
