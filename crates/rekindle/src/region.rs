//! Regions: a run of stages under one plan.

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::ops::Range;

use burn::module::{Module, ParamId};
use burn::tensor::Device;
use rekindle_plan::{Bytes, Name, Plan, Profile, Rule, Schedule, Tier};
use rekindle_run::{HostStore, Measurement, Measuring, Stores};

use crate::boundary::{Boundary, Parts};
use crate::checks::Checks;
use crate::node::{self, AnyTensor, Job, Setup};
use crate::pieces::InPieces;
use crate::places::FaultLog;
use crate::stage::{AnyStage, Mode, Parameters, StageOf, StageOutput};
use crate::trace_handle::TraceHandle;
use crate::{Carried, Description, Error, Planned, StageDescription, Under, flag, hand_over, seeds};

thread_local! {
    static WITHOUT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `module` on `inputs` without keeping what is between: the backward pass runs it again.
///
/// The gradients are those of `function(&module, inputs)`, bit for bit, with dropout, batch norm, frozen and shared
/// parameters. What follows stays as it is: `loss.backward()`, `GradientsParams::from_grads`.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use rekindle::checkpoint;
///
/// let device = Device::flex().autodiff();
/// let layer = LinearConfig::new(8, 8).init(&device);
/// let x = Tensor::<2>::ones([4, 8], &device).require_grad();
///
/// let y = checkpoint(&layer, x.clone(), |layer: &Linear, x: Tensor<2>| layer.forward(x).tanh())?;
/// let gradients = y.sum().backward();
/// assert!(x.grad(&gradients).is_some());
/// # Ok::<(), rekindle::Error>(())
/// ```
///
/// The function gets everything it needs as an argument. It is `Copy`, so a tensor cannot be captured, whose gradient
/// would be lost:
///
/// ```compile_fail
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::tensor::{Device, Tensor};
/// # use rekindle::checkpoint;
/// # let device = Device::flex().autodiff();
/// # let layer = LinearConfig::new(8, 8).init(&device);
/// # let x = Tensor::<2>::ones([4, 8], &device).require_grad();
/// let scale = Tensor::<2>::ones([4, 8], &device).require_grad();
/// let y = checkpoint(&layer, x, move |layer: &Linear, x: Tensor<2>| layer.forward(x) * scale.clone());
/// ```
///
/// # Errors
/// When the function uses a tracked tensor that is neither an input nor a parameter, or the backend is not one this
/// build knows.
pub fn checkpoint<M, I, R, F>(module: &M, inputs: I, function: F) -> Result<R::Boundary, Error>
where
    M: Module + 'static,
    I: Boundary,
    R: StageOutput + 'static,
    F: Fn(&M, I) -> R + Copy + Send + 'static,
{
    let region = Region::new().stage("checkpoint", module, function);
    region.rule(Rule::Full).forward(inputs)
}

/// Stages that run one after the other under one plan.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use rekindle::{Region, Rule};
///
/// let device = Device::flex().autodiff();
/// let stem = LinearConfig::new(4, 8).init(&device);
/// let layers: Vec<Linear> = (0..6).map(|_| LinearConfig::new(8, 8).init(&device)).collect();
/// let x = Tensor::<2>::ones([2, 4], &device);
///
/// let y = Region::new()
///     .stage("stem", &stem, |stem: &Linear, x: Tensor<2>| stem.forward(x))
///     .stages("layer", &layers, |layer: &Linear, x: Tensor<2>| layer.forward(x).tanh())
///     .rule(Rule::SquareRoot)
///     .forward(x)?;
/// let gradients = y.sum().backward();
/// # let _ = gradients;
/// # Ok::<(), rekindle::Error>(())
/// ```
///
/// Without a plan every stage is checkpointed by itself ([`Rule::EVERY_ONE`]).
#[must_use = "a region does nothing until `forward`"]
pub struct Region<I, O> {
    stages: Vec<Box<dyn AnyStage>>,
    /// Of a section: of each stage before it, whether that continues the one before.
    before: Vec<bool>,
    planned: Choice,
    checks: Checks,
    host: Option<Bytes>,
    trace: Option<TraceHandle>,
    types: PhantomData<fn(I) -> O>,
}

enum Choice {
    Rule(Rule),
    Plan(Box<Plan>, Option<Box<Profile>>),
    Schedule(Schedule),
    Planned(Planned),
}

impl<I: Boundary> Region<I, I> {
    /// A region of no stages yet.
    pub fn new() -> Self {
        Self {
            stages: Vec::new(),
            before: Vec::new(),
            planned: Choice::Rule(Rule::EVERY_ONE),
            checks: Checks::default(),
            host: None,
            trace: None,
            types: PhantomData,
        }
    }
}

impl<I: Boundary> Default for Region<I, I> {
    fn default() -> Self {
        Self::new()
    }
}

impl<I: Boundary, O: Boundary> Region<I, O> {
    /// Adds a stage.
    pub fn stage<M, R, F>(self, name: impl Into<String>, module: &M, function: F) -> Region<I, R::Boundary>
    where
        M: Module + 'static,
        R: StageOutput + 'static,
        F: Fn(&M, O) -> R + Copy + Send + 'static,
    {
        self.stage_with(name, module, (), move |module: &M, input: O, (): ()| function(module, input))
    }

    /// Adds a stage for each of `modules`, named `name.0`, `name.1` and so on.
    pub fn stages<M, R, F>(self, name: &str, modules: &[M], function: F) -> Self
    where
        M: Module + 'static,
        R: StageOutput<Boundary = O> + 'static,
        F: Fn(&M, O) -> R + Copy + Send + 'static,
    {
        self.stages_with(name, modules, (), move |module: &M, input: O, (): ()| function(module, input))
    }

    /// Adds a stage that also reads `side`: masks, positions, anything that is not trained. A tensor that needs a
    /// gradient belongs into the boundary instead, and is refused here.
    pub fn stage_with<M, S, R, F>(
        mut self,
        name: impl Into<String>,
        module: &M,
        side: S,
        function: F,
    ) -> Region<I, R::Boundary>
    where
        M: Module + 'static,
        S: Boundary + Clone + Send,
        R: StageOutput + 'static,
        F: Fn(&M, O, S) -> R + Copy + Send + 'static,
    {
        let stage = StageOf::<M, O, S, R, F>::new(name.into(), module.clone(), side, function);
        self.stages.push(Box::new(stage));
        Region {
            stages: self.stages,
            before: self.before,
            planned: self.planned,
            checks: self.checks,
            host: self.host,
            trace: self.trace,
            types: PhantomData,
        }
    }

    /// Adds a stage for each of `modules`, all of which read `side` as well.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::tensor::{Bool, Device, Tensor};
    /// use rekindle::Region;
    ///
    /// let device = Device::flex().autodiff();
    /// let layers: Vec<Linear> = (0..3).map(|_| LinearConfig::new(8, 8).init(&device)).collect();
    /// let mask = Tensor::<2, Bool>::from_data([[true, false, false, false, false, false, false, true]], &device);
    /// let y = Region::new()
    ///     .stages_with("layer", &layers, mask, |layer: &Linear, x: Tensor<2>, mask: Tensor<2, Bool>| {
    ///         layer.forward(x).mask_fill(mask, 0.0)
    ///     })
    ///     .forward(Tensor::ones([1, 8], &device))?;
    /// # let _ = y;
    /// # Ok::<(), rekindle::Error>(())
    /// ```
    pub fn stages_with<M, S, R, F>(mut self, name: &str, modules: &[M], side: S, function: F) -> Self
    where
        M: Module + 'static,
        S: Boundary + Clone + Send,
        R: StageOutput<Boundary = O> + 'static,
        F: Fn(&M, O, S) -> R + Copy + Send + 'static,
    {
        for (index, module) in modules.iter().enumerate() {
            self = self.stage_with(format!("{name}.{index}"), module, side.clone(), function);
        }
        self
    }

    /// Says that the stage added last goes on with the one before it: both are parts of one piece, and draw the random
    /// numbers for [`Dropout`](crate::Dropout) that the piece draws as one stage. A model that is cut coarsely and finely
    /// so gives the same bits. Random numbers that Burn draws itself do not go on.
    pub fn continuing(mut self) -> Self {
        if let Some(stage) = self.stages.last_mut() {
            stage.set_continuing();
        }
        self
    }

    /// How many stages there are.
    pub fn len(&self) -> usize {
        self.stages.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// Some of the stages, from 0 on, to run where the others do not: on one of several ranks.
    ///
    /// They draw the random numbers that they draw as part of the whole, from the same seed. Under no plan yet: a section has its own.
    ///
    /// # Errors
    /// When there are no such stages, or the first of them continues the one before.
    pub fn section(mut self, stages: Range<usize>) -> Result<Region<Carried, Carried>, Error> {
        let all = self.stages.len();
        if stages.is_empty() || stages.end > all {
            let found = format!("{} to {}", stages.start, stages.end);
            return Err(Error::Section { found, expected: format!("some of the stages 0 to {all}") });
        }
        if stages.start > 0 && self.stages[stages.start].continues() {
            let name = self.stages[stages.start].name();
            return Err(Error::Section {
                found: format!("{}, which is `{name}`", stages.start),
                expected: "a stage that does not continue the one before, whose random numbers it needs"
                    .to_owned(),
            });
        }
        let mut before = self.before;
        before.extend(self.stages[..stages.start].iter().map(|stage| stage.continues()));
        self.stages.truncate(stages.end);
        Ok(Region {
            stages: self.stages.split_off(stages.start),
            before,
            planned: Choice::Rule(Rule::EVERY_ONE),
            checks: self.checks,
            host: self.host,
            trace: self.trace,
            types: PhantomData,
        })
    }

    /// Which parameters each stage trains.
    pub fn parameters(&self) -> Vec<Vec<ParamId>> {
        self.stages.iter().map(|stage| stage.parameters().ids).collect()
    }

    /// Runs under a textbook rule.
    pub fn rule(mut self, rule: Rule) -> Self {
        self.planned = Choice::Rule(rule);
        self
    }

    /// Runs under a plan. It is judged again before it runs; only its length and what it does are compared with the
    /// region.
    pub fn plan(mut self, plan: Plan) -> Self {
        self.planned = Choice::Plan(Box::new(plan), None);
        self
    }

    /// Runs under a plan for the model of `profile`: a plan for another model, or over its budget, is refused.
    pub fn plan_for(mut self, plan: Plan, profile: Profile) -> Self {
        self.planned = Choice::Plan(Box::new(plan), Some(Box::new(profile)));
        self
    }

    /// Runs under a schedule that was judged before: nothing is left to check but its length.
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.planned = Choice::Schedule(schedule);
        self
    }

    /// Runs under a rule or a plan that was made for the model.
    pub fn under<'a>(mut self, under: impl Into<Under<'a>>) -> Self {
        self.planned = match under.into() {
            Under::Rule(rule) => Choice::Rule(rule),
            Under::Planned(planned) => Choice::Planned(planned.clone()),
        };
        self
    }

    /// What to compare when a stage is run again.
    pub fn checks(mut self, checks: Checks) -> Self {
        self.checks = checks;
        self
    }

    /// Lets plans offload up to this much to host memory, as the tier `host`.
    pub fn host(mut self, limit: Bytes) -> Self {
        self.host = Some(limit);
        self
    }

    /// Writes down what happens, for `handle` to read when the backward is through.
    pub fn trace(mut self, handle: &TraceHandle) -> Self {
        self.trace = Some(handle.clone());
        self
    }

    /// Runs the stages. The result is part of the user's graph like that of any operation.
    ///
    /// On a device without autodiff, and where nothing is tracked, the stages are simply called.
    ///
    /// A stage whose tape is kept in the forward pass is run once more the first time, and once in 256 times after, to
    /// see whether it reaches for tracked tensors that are not its own.
    ///
    /// # Errors
    /// When the plan does not fit the stages, a stage uses a tracked tensor that is neither its input nor a parameter,
    /// a parameter is distributed, or the backend is not one this build knows.
    pub fn forward(self, input: I) -> Result<O, Error> {
        let input = Parts::of(input);
        // First of all: a parameter that is not initialised yet draws its values when it is looked at.
        let parameters: Vec<Parameters> = self.stages.iter().map(|stage| stage.parameters()).collect();
        if let Choice::Planned(planned) = &self.planned {
            planned.check(self.quick(&input, &parameters), || self.description(&input))?;
        }
        let output = match Surroundings::find(&input, &parameters) {
            Surroundings::NoAutodiff => self.run_plain(input, None)?,
            // A region inside a stage that is traced: there are no seeds, and no node to leave behind.
            #[cfg(feature = "capture")]
            Surroundings::Untracked(device) | Surroundings::Tracked(device)
                if crate::traced::is_captured(&device) =>
            {
                self.run_plain(input, None)?
            }
            _ if self.stages.is_empty() => {
                if !matches!(self.planned, Choice::Rule(_)) {
                    self.judge()?;
                }
                input
            }
            Surroundings::Untracked(device) => {
                // A wrong plan is found here, too: inside a stage of another region everything is untracked at first.
                self.check()?;
                let output = node::leaving_nodes(|| self.run_plain(input, Some(&device)))?;
                node::sweep_when(512);
                output
            }
            Surroundings::Tracked(device) if WITHOUT.get() => {
                self.check()?;
                // Nothing is swept: plain training does not, and to look through a long tape costs its square.
                let output = self.run_plain(input, Some(&device))?;
                match seeds::nested() {
                    true => output,
                    false => node::reseed_after_backward(output, &device),
                }
            }
            Surroundings::Tracked(device) => self.run_checkpointed(input, parameters, device)?,
        };
        output.into_tree()
    }

    /// Runs each stage a few times on `input` and its successors, and writes down what it takes.
    ///
    /// Identical stages run once. `progress` is called before a stage runs, with its number from 1 and its name. Running
    /// statistics and gradients stay as they are.
    ///
    /// # Errors
    /// When nothing is tracked, a stage fails, or the memory in use is not known.
    pub fn measure(
        self,
        input: I,
        measuring: Measuring,
        progress: &mut dyn FnMut(usize, &str),
    ) -> Result<Measurement, Error> {
        let input = Parts::of(input);
        let parameters: Vec<Parameters> = self.stages.iter().map(|stage| stage.parameters()).collect();
        let device = match Surroundings::find(&input, &parameters) {
            Surroundings::Tracked(device) => device,
            _ => return Err(Error::Untracked),
        };
        let at = std::cell::RefCell::new((0, String::new()));
        let parameter_ids = parameters.iter().map(|parameters| parameters.ids.clone()).collect();
        let draws = self.draws(0);
        let setup = Setup {
            stages: self.stages,
            first: 0,
            draws,
            parameter_ids,
            parameters: parameters.into_iter().map(|parameters| parameters.tracked).collect(),
            input,
            device,
            checks: Checks::default(),
            closes: true,
        };
        let mut note = |stage: rekindle_plan::Stage, name: &str| {
            *at.borrow_mut() = (stage.number() as usize, name.to_owned());
            progress(stage.number() as usize, name);
        };
        let run = std::panic::AssertUnwindSafe(|| node::measure(setup, measuring, &mut note));
        std::panic::catch_unwind(run).unwrap_or_else(|panic| {
            let (stage, name) = at.borrow().clone();
            Err(Error::Measuring { stage, name, reason: crate::backward::message_of(&*panic) })
        })
    }

    /// What a plan for this region on `input` depends on.
    pub fn describe(&self, input: &I) -> Description
    where
        I: Clone,
    {
        self.description(&Parts::of(input.clone()))
    }

    /// Whether somebody counts the memory that it runs in: the process's allocator, or the pool of the device.
    pub(crate) fn memory_is_known(&self, input: &I) -> bool
    where
        I: Clone,
    {
        let parts = Parts::of(input.clone());
        let pool =
            || parts.tensors.first().is_some_and(|tensor| tensor.device().memory_pool_usage().is_some());
        crate::memory::live().is_some() || pool()
    }

    /// A number for what the description says, without writing it: for a look before every step.
    fn quick(&self, input: &Parts, parameters: &[Parameters]) -> u64 {
        let mut hash = std::hash::DefaultHasher::new();
        let mut tensors =
            |tensors: &[AnyTensor]| tensors.iter().for_each(|tensor| tensor.hash_size(&mut hash));
        tensors(&input.tensors);
        for (stage, parameters) in self.stages.iter().zip(parameters) {
            tensors(&parameters.tracked);
            tensors(&stage.side().tensors);
        }
        // Another model of the same sizes may be set differently.
        for (stage, parameters) in self.stages.iter().zip(parameters) {
            (stage.name(), &parameters.ids).hash(&mut hash);
        }
        hash.finish()
    }

    fn description(&self, input: &Parts) -> Description {
        let tensors = |parts: &Parts| parts.tensors.iter().map(AnyTensor::describe).collect();
        let parameters = self.stages.iter().filter_map(|stage| stage.parameters().device);
        let device = parameters.chain(input.tensors.iter().map(AnyTensor::device)).next();
        let stages = self.stages.iter().map(|stage| StageDescription {
            name: stage.name().to_owned(),
            parameters: stage.describe_parameters(),
            side: tensors(&stage.side()),
            settings: stage.settings(),
        });
        Description {
            device: device.map_or_else(|| "none".to_owned(), |device| device_name(&device)),
            input: tensors(input),
            options: node::options().iter().map(ToString::to_string).collect(),
            stages: stages.collect(),
        }
    }

    /// Calls one stage after the other, on the seeds of a checkpointed run when there is a device to seed.
    fn run_plain(&self, input: Parts, device: Option<&Device>) -> Result<Parts, Error> {
        let mut draws = device.map(|_| self.draws(seeds::next()));
        let mut boundary = input;
        for (index, stage) in self.stages.iter().enumerate() {
            let run = |input| stage.run(Mode::Plain, Default::default(), input);
            boundary = match (device, &mut draws) {
                (Some(device), Some(draws)) => draws.run(device, index, || run(boundary))?.output,
                _ => run(boundary)?.output,
            };
        }
        if let Some(device) = device {
            device.seed(seeds::next());
        }
        Ok(boundary)
    }

    fn run_checkpointed(
        self,
        input: Parts,
        parameters: Vec<Parameters>,
        device: Device,
    ) -> Result<Parts, Error> {
        let schedule = self.check()?;
        let (stores, faults) = self.stores();
        let tracked = parameters.iter().flat_map(|parameters| &parameters.tracked);
        let mut tracked = input.tensors.iter().chain(tracked).filter(|tensor| tensor.is_tracked());
        let in_pieces = InPieces {
            strategy: tracked.next().and_then(AnyTensor::strategy).unwrap_or_default(),
            draws: self.draws(seeds::next()),
            promised: self.promised(),
            // What is written down is told of each stage, and each hands over its own.
            told: self.trace.is_some() || hand_over::is_expected(),
            stages: self.stages,
            parameters,
            device,
            checks: self.checks,
        };
        in_pieces.run(Job { schedule, stores, trace: self.trace, faults }, input)
    }

    /// The random numbers of its stages, from a seed.
    fn draws(&self, seed: u64) -> seeds::Draws {
        seeds::Draws::new(seed, self.continues(), self.before.len())
    }

    /// Of each stage, those before a section included, whether it goes on with the one before.
    fn continues(&self) -> impl Iterator<Item = bool> {
        self.before.iter().copied().chain(self.stages.iter().map(|stage| stage.continues()))
    }

    /// Where boundaries can wait, and who is told when one of these places fails.
    fn stores(&self) -> (Stores, FaultLog) {
        let (mut stores, faults) = match &self.planned {
            Choice::Planned(planned) => (planned.places().stores(), planned.places().fault_log()),
            _ => Default::default(),
        };
        if let (Some(limit), Ok(name)) = (self.host, "host".parse::<Name>()) {
            stores.insert(name, Box::new(HostStore::new(limit)));
        }
        (stores, faults)
    }

    /// What the plan is to take, if it was made for a budget or from a profile.
    fn promised(&self) -> Option<Bytes> {
        match &self.planned {
            Choice::Planned(planned) => Some(planned.simulation().peak_bytes),
            Choice::Plan(plan, Some(_)) => Some(plan.predicted.peak_bytes),
            _ => None,
        }
    }

    /// Everything that can be refused before anything runs.
    fn check(&self) -> Result<Schedule, Error> {
        self.check_sides()?;
        self.judge()
    }

    fn check_sides(&self) -> Result<(), Error> {
        match self.stages.iter().position(|stage| stage.side_is_tracked()) {
            Some(index) => {
                Err(Error::TrackedCapture { stage: index + 1, name: self.stages[index].name().to_owned() })
            }
            None => Ok(()),
        }
    }

    #[cfg(feature = "capture")]
    pub(crate) fn stages_to_trace(&self) -> Result<&[Box<dyn AnyStage>], Error> {
        self.check_sides()?;
        Ok(&self.stages)
    }

    /// Has the plan judged for these stages.
    fn judge(&self) -> Result<Schedule, Error> {
        let region = self.stages.len();
        let fits = |plan: usize| match plan == region {
            true => Ok(()),
            false => Err(Error::PlanLength { plan, region }),
        };
        match &self.planned {
            Choice::Planned(planned) => {
                fits(planned.schedule().stages())?;
                Ok(planned.schedule().clone())
            }
            Choice::Schedule(schedule) => {
                fits(schedule.stages())?;
                Ok(schedule.clone())
            }
            Choice::Plan(plan, Some(profile)) => {
                fits(profile.stages().len())?;
                Ok(plan.judge(profile)?.0)
            }
            Choice::Plan(plan, None) => {
                let last = plan.actions.iter().filter_map(rekindle_plan::Action::stage);
                fits(last.map(|stage| stage.number() as usize).max().unwrap_or(0))?;
                Ok(Schedule::judge(&self.structure()?, &plan.actions)?.0)
            }
            Choice::Rule(rule) => {
                let actions = rule.actions(region);
                let actions = actions.map_err(|source| Error::Rule { rule: *rule, source })?;
                Ok(Schedule::judge(&self.structure()?, &actions)?.0)
            }
        }
    }

    /// The region as far as it is known without measuring it.
    fn structure(&self) -> Result<Profile, Error> {
        let names = self.stages.iter().map(|stage| stage.name().to_owned());
        let tiers = self.host.zip("host".parse().ok()).map(|(capacity_bytes, name)| Tier {
            name,
            capacity_bytes,
            write_bytes_per_second: u64::MAX,
            read_bytes_per_second: u64::MAX,
        });
        Profile::unmeasured(names, &node::options())
            .and_then(|profile| profile.with_places(tiers.into_iter().collect(), Vec::new()))
            .map_err(|error| Error::Run { reason: error.to_string() })
    }
}

/// What a plan calls a device: its kind, without its number and without what is set on it.
fn device_name(device: &Device) -> String {
    let text = format!("{:?}", device.clone().without_autodiff()).to_lowercase();
    let inside = text.strip_prefix("device<").unwrap_or(&text);
    // One backend has several runtimes: `cube(cuda(..))`.
    let inside = inside.strip_prefix("cube(").unwrap_or(inside);
    inside.chars().take_while(|character| character.is_ascii_alphanumeric()).collect()
}

/// What a region finds itself in.
enum Surroundings {
    /// Evaluation: no tensor carries autodiff.
    NoAutodiff,
    /// Autodiff, but nothing to train.
    Untracked(Device),
    /// Training.
    Tracked(Device),
}

impl Surroundings {
    fn find(input: &Parts, parameters: &[Parameters]) -> Self {
        let inputs = input.tensors.iter().filter(|tensor| tensor.is_autodiff());
        let of_inputs = inputs.map(AnyTensor::device);
        let trained = parameters.iter().filter(|parameters| parameters.autodiff);
        let of_parameters = trained.filter_map(|parameters| parameters.device.clone());
        let Some(device) = of_inputs.chain(of_parameters).next() else {
            return Self::NoAutodiff;
        };
        let tracked =
            input.is_tracked() || parameters.iter().any(|parameters| !parameters.tracked.is_empty());
        match tracked {
            true => Self::Tracked(device),
            false => Self::Untracked(device),
        }
    }
}

/// Runs `training` with every region and checkpoint on this thread turned off: the stages are called as they are, on
/// the same seeds. What comes out is plain training, to compare with bit for bit.
///
/// ```
/// use burn::nn::{Dropout, DropoutConfig};
/// use burn::tensor::{Device, Tensor};
/// use rekindle::{checkpoint, seed, without_checkpointing};
///
/// let device = Device::flex().autodiff();
/// let dropout = DropoutConfig::new(0.5).init();
/// let run = || {
///     seed(7);
///     let x = Tensor::<1>::ones([64], &device).require_grad();
///     let y = checkpoint(&dropout, x.clone(), |dropout: &Dropout, x: Tensor<1>| dropout.forward(x))?;
///     let gradients = y.sum().backward();
///     Ok::<_, rekindle::Error>(x.grad(&gradients).map(|gradient| gradient.into_data()))
/// };
/// assert_eq!(run()?, without_checkpointing(run)?);
/// # Ok::<(), rekindle::Error>(())
/// ```
pub fn without_checkpointing<T>(training: impl FnOnce() -> T) -> T {
    flag::during(&WITHOUT, training)
}
