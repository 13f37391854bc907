//! From a model and a budget to a plan.

mod ahead;

use std::path::PathBuf;
use std::time::Duration;

use rekindle_plan::solvers::{Solver, optimal};
use rekindle_plan::{Action, Bytes, Policy, Profile, Request, SolveError};
use rekindle_run::governor::{Ladder, Rung};
use rekindle_run::{Measurement, Measuring};

use self::ahead::fetched_ahead;
use crate::budget::{with_margin, without_bookkeeping};
use crate::{Budget, Description, Error, Places, Planned, Staged};

/// Plans a model for a budget: measures its stages on `sample`, and finds the fastest plan within the budget.
///
/// The plan is for batches of the sample's shapes. See [`Planner`] for what can be set, and [`Staged`] for an example.
///
/// # Errors
/// When a stage fails, or no plan fits the budget; the error names the smallest budget that one fits.
pub fn plan<M: Staged + ?Sized>(model: &M, sample: &M::Batch, budget: Budget) -> Result<Planned, Error> {
    Planner::new(budget).plan(model, sample)
}

/// Runs each stage of a model a few times on `sample`, and writes down what it takes. Identical stages run once.
///
/// Memory is what the device's pool says is in use, or what the counting allocator counts
/// ([`CountingAllocator`](crate::memory::CountingAllocator)); where neither is there, sizes are traced and only times are
/// measured.
///
/// The model, its running statistics and its gradients stay as they are; Burn's random state does not.
///
/// # Errors
/// When a stage fails, or the memory in use is not known and the stages cannot be traced either.
pub fn measure<M: Staged + ?Sized>(
    model: &M,
    sample: &M::Batch,
    measuring: Measuring,
    progress: &mut dyn FnMut(usize, &str),
) -> Result<Measurement, Error> {
    crate::memory::make_scratch();
    let (region, input) = model.stages(sample);
    let found = region.measure(input, measuring, progress)?;
    match found.sized {
        true => Ok(found),
        false => with_traced_sizes(model, sample, found),
    }
}

/// Times as they were measured, sizes as they are traced.
#[cfg(feature = "capture")]
fn with_traced_sizes<M: Staged + ?Sized>(
    model: &M,
    sample: &M::Batch,
    mut found: Measurement,
) -> Result<Measurement, Error> {
    let (region, input) = model.stages(sample);
    // The times of a trace are not used, so any device does.
    let any = crate::DeviceModel::of_shapes_alone();
    let traced = crate::trace(&model.name(), &region, input, &any)?.into_profile();
    for (stage, sizes) in found.stages.iter_mut().zip(traced.stages()) {
        let times = std::mem::replace(stage, sizes.clone());
        (stage.forward_ns, stage.backward_ns) = (times.forward_ns, times.backward_ns);
        stage.unread_ns = times.unread_ns;
        stage.parameter_gradient_bytes = times.parameter_gradient_bytes;
        for option in &mut stage.options {
            let measured = times.options.iter().find(|measured| measured.name == option.name);
            let measured = measured.map(|measured| (measured.forward_ns, measured.backward_ns));
            (option.forward_ns, option.backward_ns) =
                measured.unwrap_or((times.forward_ns, times.backward_ns));
        }
    }
    Ok(found)
}

#[cfg(not(feature = "capture"))]
fn with_traced_sizes<M: Staged + ?Sized>(
    model: &M,
    sample: &M::Batch,
    _: Measurement,
) -> Result<Measurement, Error> {
    let (region, input) = model.stages(sample);
    Err(Error::Unmeasured { device: region.describe(&input).device })
}

/// How to plan.
pub struct Planner<'a> {
    budget: Budget,
    measuring: Measuring,
    /// As it was asked for.
    margin: Option<f64>,
    solver: Solver,
    slots: Option<u32>,
    profile: Option<(Profile, f64)>,
    cache: Option<PathBuf>,
    time_limit: Option<Duration>,
    places: Places,
    progress: Box<Progress<'a>>,
}

/// What is told before a stage is measured.
type Progress<'a> = dyn FnMut(usize, &str) + 'a;

/// What is left free of a budget for what turns out larger than it was when it was measured.
const MARGIN: f64 = 0.02;

/// The same where sizes are traced, because nothing counts memory: tapes come out within a tenth, and no trace knows of workspace that a
/// kernel makes for itself.
const TRACED_MARGIN: f64 = 0.12;

impl<'a> Planner<'a> {
    /// The best plan within `budget`.
    pub fn new(budget: Budget) -> Self {
        Self {
            budget,
            measuring: Measuring::steady(),
            margin: None,
            solver: Solver::Optimal,
            slots: None,
            profile: None,
            cache: None,
            time_limit: None,
            places: Places::new(),
            progress: Box::new(|_, _| {}),
        }
    }

    /// How to measure the stages; unless set [`Measuring::steady`], which is not for stages that talk to other ranks.
    #[must_use]
    pub fn measuring(mut self, measuring: Measuring) -> Self {
        self.measuring = measuring;
        self
    }

    /// Leaves this part of what the plan takes free for what turns out larger; unless set 0.02, and 0.12 where nothing counts memory
    /// and sizes are traced.
    #[must_use]
    pub fn margin(mut self, fraction: f64) -> Self {
        self.margin = Some(fraction);
        self
    }

    /// Who makes the plan; the optimal solver unless set.
    #[must_use]
    pub fn solver(mut self, solver: Solver) -> Self {
        self.solver = solver;
        self
    }

    /// Keeps so many boundaries at once, whatever they weigh, for solvers that count them: `revolve`, `online`, `mixed`. The
    /// others take no notice. The budget still holds: a plan that takes more is refused.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::tensor::{Device, Tensor};
    /// use rekindle::{Budget, Bytes, Planner, Region, Staged};
    /// use rekindle_plan::solvers::{Solver, revolve};
    ///
    /// struct Layers(Vec<Linear>);
    ///
    /// impl Staged for Layers {
    ///     type Batch = Tensor<2>;
    ///     type Input = Tensor<2>;
    ///     type Output = Tensor<2>;
    ///
    ///     fn stages(&self, x: &Tensor<2>) -> (Region<Tensor<2>, Tensor<2>>, Tensor<2>) {
    ///         let run = |layer: &Linear, x: Tensor<2>| layer.forward(x).tanh();
    ///         (Region::new().stages("layer", &self.0, run), x.clone())
    ///     }
    /// }
    ///
    /// let device = Device::flex().autodiff();
    /// let model = Layers((0..10).map(|_| LinearConfig::new(8, 8).init(&device)).collect());
    /// let planner = Planner::new(Budget::bytes(Bytes::mebibytes(16))).solver(Solver::Revolve).slots(3);
    /// let planned = planner.plan(&model, &Tensor::ones([2, 8], &device))?;
    /// assert_eq!(Some(planned.plan().predicted.forwards), revolve::forwards(10, 3));
    /// # Ok::<(), rekindle::Error>(())
    /// ```
    #[must_use]
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = Some(slots);
        self
    }

    /// Takes the stages as they were measured or traced before, with the noise of the times.
    #[must_use]
    pub fn profile(mut self, profile: Profile, noise: f64) -> Self {
        self.profile = Some((profile, noise));
        self
    }

    /// Keeps the plan and the measured stages in a file, and measures nothing when it is there: only the plan is made
    /// anew, which takes milliseconds. A file of another model, other shapes or another device is refused.
    #[must_use]
    pub fn cache(mut self, path: impl Into<PathBuf>) -> Self {
        self.cache = Some(path.into());
        self
    }

    /// How long to look for a better plan when the one at hand is not proven to be within a percent of the best; as long as
    /// a plain step takes, unless it is said. The plan's status tells how close it came.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }

    /// Lets the plan move boundaries to these places, or shrink them there. Each is measured first.
    #[must_use]
    pub fn places(mut self, places: Places) -> Self {
        self.places = places;
        self
    }

    /// Calls `progress` before a stage is measured, with its number from 1 and its name.
    #[must_use]
    pub fn progress(mut self, progress: impl FnMut(usize, &str) + 'a) -> Self {
        self.progress = Box::new(progress);
        self
    }

    /// Plans `model` for batches of the shapes of `sample`.
    ///
    /// # Errors
    /// When a stage fails, the cached plan is of another model, or no plan fits the budget.
    pub fn plan<M: Staged + ?Sized>(mut self, model: &M, sample: &M::Batch) -> Result<Planned, Error> {
        let (cached, description, profile, noise) = self.known(model, sample)?;
        let margin = self.margin.unwrap_or(MARGIN);
        let budget = self.budget.resolve(&profile, margin)?;
        let usable = without_bookkeeping(&profile, budget);
        let time_limit = self.time_limit.unwrap_or_else(|| time_limit(&profile));
        let request = Request {
            budget_bytes: Some(usable),
            slots: self.slots,
            margin,
            time_limit,
            ..Request::default()
        };
        let plan = self.solver.solve(&profile, &request);
        let plan = plan.map_err(|error| too_small(error, self.solver, &profile, budget, margin))?;
        let mut plan =
            fetched_ahead(plan, &profile, request.usable_bytes(), |place| self.places.has_other(place));
        plan.budget_bytes = Some(budget);
        self.places.reserve(&profile, &plan)?;
        let planned = Planned::new(description, profile, plan, noise)?.with_places(self.places);
        if let Some(path) = &self.cache
            && cached.is_none_or(|cached| cached.plan() != planned.plan())
        {
            planned.save(path)?;
        }
        Ok(planned)
    }

    /// The plan that a policy says: the planner's budget, its margin and its solver have no part in it.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::tensor::{Device, Tensor};
    /// use rekindle::{Budget, Planner, Policy, Region, Staged};
    ///
    /// struct Layers(Vec<Linear>);
    ///
    /// impl Staged for Layers {
    ///     type Batch = Tensor<2>;
    ///     type Input = Tensor<2>;
    ///     type Output = Tensor<2>;
    ///
    ///     fn stages(&self, x: &Tensor<2>) -> (Region<Tensor<2>, Tensor<2>>, Tensor<2>) {
    ///         let run = |layer: &Linear, x: Tensor<2>| layer.forward(x).tanh();
    ///         (Region::new().stages("layer", &self.0, run), x.clone())
    ///     }
    /// }
    ///
    /// let device = Device::flex().autodiff();
    /// let model = Layers((0..4).map(|_| LinearConfig::new(8, 8).init(&device)).collect());
    /// let x = Tensor::ones([2, 8], &device);
    /// let policy = Policy::keep_all().recompute("layer.1").recompute("layer.2");
    /// let planned = Planner::new(Budget::smallest()).plan_policy(&policy, &model, &x)?;
    /// assert_eq!(planned.plan().predicted.forwards, 6);
    /// planned.forward(&model, &x)?.mean().backward();
    /// # Ok::<(), rekindle::Error>(())
    /// ```
    ///
    /// # Errors
    /// When a stage fails, or the policy gives no plan for the model.
    pub fn plan_policy<M: Staged + ?Sized>(
        mut self,
        policy: &Policy,
        model: &M,
        sample: &M::Batch,
    ) -> Result<Planned, Error> {
        let (_, description, profile, noise) = self.known(model, sample)?;
        let plan = policy.plan(&profile)?;
        self.places.reserve(&profile, &plan)?;
        Ok(Planned::new(description, profile, plan, noise)?.with_places(self.places))
    }

    /// Plans `model` for up to `most` budgets at once, from the smallest to what plain training takes: the rungs that a
    /// [`Governor`](rekindle_run::governor::Governor) goes up and down while training. The planner's own budget has
    /// no part in it: the governor has a limit.
    ///
    /// All of them give the same bits, unless a place is lossy.
    ///
    /// # Errors
    /// When a stage fails, the cached plan is of another model, or there is no plan.
    pub fn ladder<M: Staged + ?Sized>(
        mut self,
        model: &M,
        sample: &M::Batch,
        most: usize,
    ) -> Result<Ladder<Planned>, Error> {
        let (_, description, profile, noise) = self.known(model, sample)?;
        let frontier = optimal::frontier(&profile, &Request::default()).map_err(Error::NoPlan)?;
        let failed = |error: &dyn std::fmt::Display| Error::Run { reason: error.to_string() };
        let plans = Ladder::from_frontier(&profile, &frontier, most).map_err(|error| failed(&error))?;
        let mut rungs = Vec::with_capacity(plans.rungs().len());
        for rung in plans.rungs() {
            let mut plan = rung.plan.clone();
            let budget = with_margin(&profile, plan.predicted.peak_bytes, self.margin.unwrap_or(MARGIN));
            plan.budget_bytes = Some(budget);
            self.places.reserve(&profile, &plan)?;
            let planned = Planned::new(description.clone(), profile.clone(), plan, noise)?;
            let plan = planned.with_places(self.places.clone());
            rungs.push(Rung { budget, step_time: rung.step_time, plan });
        }
        Ladder::best_of(rungs).map_err(|error| failed(&error))
    }

    /// What is known of the model's stages: as it was given, kept in a file, or measured now; with the places of today.
    fn known<M: Staged + ?Sized>(
        &mut self,
        model: &M,
        sample: &M::Batch,
    ) -> Result<(Option<Planned>, Description, Profile, f64), Error> {
        let (region, input) = model.stages(sample);
        let description = region.describe(&input);
        let cached = match &self.cache {
            Some(path) if path.exists() => {
                let cached = Planned::load(path)?;
                if let Some(difference) = description.difference(cached.description()) {
                    return Err(Error::OtherModel { difference: Box::new(difference) });
                }
                Some(cached)
            }
            _ => None,
        };
        if self.profile.is_none() && !region.memory_is_known(&input) {
            self.margin.get_or_insert(TRACED_MARGIN);
        }
        let (profile, noise) = match (self.profile.take(), &cached) {
            (Some(known), _) => known,
            (None, Some(cached)) => (cached.profile().clone(), cached.noise()),
            (None, None) => {
                let found = measure(model, sample, self.measuring, &mut self.progress)?;
                let noise = found.noise();
                let profile = found.into_profile(model.name(), description.device.clone());
                (profile.map_err(|error| Error::Run { reason: error.to_string() })?, noise)
            }
        };
        // What a cached profile says of places was true of another day, or of another disk.
        let profile = self.places.measure(profile)?;
        Ok((cached, description, profile, noise))
    }
}

/// As long as a plain step takes: a better plan would not make up for more. Short chains are solved long before.
fn time_limit(profile: &Profile) -> Duration {
    let step = Duration::from_nanos(profile.lower_bound().get());
    step.clamp(Duration::from_millis(100), Request::default().time_limit)
}

/// Says which budget would do, and what takes so much there.
fn too_small(error: SolveError, solver: Solver, profile: &Profile, budget: Bytes, margin: f64) -> Error {
    let SolveError::BudgetTooSmall { smallest_bytes, .. } = error else { return Error::NoPlan(error) };
    let smallest = solver.solve(profile, &Request::new(smallest_bytes));
    let simulation = smallest.ok().and_then(|plan| Some((plan.judge(profile).ok()?.1, plan)));
    let set_by = simulation.map_or_else(String::new, |(simulation, plan)| {
        let action = plan.actions.get(simulation.peak_action);
        let stage = action.and_then(Action::stage).and_then(|stage| profile.stages().get(stage.index()));
        let name = stage.map_or("", |stage| stage.name.as_str());
        let action = action.map(ToString::to_string).unwrap_or_default();
        let most =
            simulation.peak_tensors.iter().take(2).map(|live| format!("{} ({})", live.what, live.bytes));
        format!("`{action}` (`{name}`) with {}", most.collect::<Vec<_>>().join(" and "))
    });
    Error::BudgetTooSmall { budget, smallest: with_margin(profile, smallest_bytes, margin), set_by }
}
