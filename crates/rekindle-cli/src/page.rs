//! `rekindle report`: one page that shows where the memory goes.

use std::path::{Path, PathBuf};

use rekindle::{Bytes, Nanos, Plan, Planned, Profile, TraceHandle, memory};
use rekindle_models::Trainable;
use rekindle_plan::solvers::optimal;
use rekindle_plan::{LiveKind, Request, Simulation};
use rekindle_report::{Figure, Measured, MeasuredEvent, Report, ReportError, Totals};

use crate::arguments::ReportArguments;
use crate::failure::{self, Failure};
use crate::measure::{self, Beside, Parts, Recipe, build, step, step_traced};
use crate::models::{DataArguments, Job, Kind, with_model};
use crate::places::tell_faults;
use crate::planning::{self, Knowledge, Planning};
use crate::size::{For, Size};
use crate::strategy::{Ready, Strategy};
use crate::totals::{Optimizer, parameter_bytes};
use crate::transfers::Transfers;
use crate::{device, files, report};

/// Runs the command.
pub(crate) fn run(arguments: &ReportArguments) -> Result<(), Failure> {
    files::check_writable(&arguments.output)?;
    if arguments.svg && files::is_no_file(&arguments.output) {
        let error = anyhow::anyhow!(
            "--svg is given, but `{}` is no file that figures could lie beside",
            arguments.output.display()
        );
        return Err(Failure::request(error, "name a file with -o, or leave --svg out"));
    }
    match (&arguments.file, &arguments.plan) {
        (Some(profile), Some(plan)) => {
            let (profile, plan) = (files::profile(profile)?, files::plan(plan)?);
            write(arguments, &profile, &plan, None)
        }
        (Some(path), None) => {
            failure::refuse_device(path)?;
            let planned = Planned::load(path).map_err(|error| {
                let hint =
                    "give a file that `rekindle train --cache` wrote, or a profile together with --plan";
                Failure::request(error, hint)
            })?;
            write(arguments, planned.profile(), planned.plan(), None)
        }
        (None, _) => {
            let size = &arguments.size.size(For::Training)?;
            with_model(size, &DataArguments::default(), OfARun { arguments, size })
        }
    }
}

struct OfARun<'a> {
    arguments: &'a ReportArguments,
    size: &'a Size,
}

impl Job for OfARun<'_> {
    type Made = ();

    fn run<K: Kind>(self, kind: &K) -> Result<(), Failure> {
        of_a_run(self.arguments, self.size, kind)
    }
}

/// Measures a model, plans it and takes a step.
fn of_a_run<K: Kind>(arguments: &ReportArguments, size: &Size, kind: &K) -> Result<(), Failure> {
    Size::check_room(kind, &[])?;
    let device = device::cpu();
    let model = build(kind, &device, size.seed)?;
    let batch = kind.data().seeded(size.seed).batch(size, &device);
    let strategy = arguments.budget.map_or(Strategy::QUARTER, Strategy::Optimal);
    let cut = size.cutting(arguments.cut)?;
    let places = arguments.places.open()?;
    let beside = batch.beside(&model)?;
    // A part of what plain training takes is one of all that it takes, sums included; the profile knows one part of the batch.
    let plain = match batch.count() {
        1 => None,
        _ => {
            step(&model, &batch, &Ready::Plain, size.recipe())?;
            Some(measure::measured(&model, &batch, &Ready::Plain, size.recipe())?.peak)
        }
    };
    let planning = Planning {
        margin: arguments.margin,
        plain,
        held: beside.held,
        alone: beside.alone,
        cache: None,
        places: &places,
        flag: "--budget ",
    };
    let ready = planning::ready(&strategy, &model, cut, batch.part(), &mut Knowledge::default(), planning)?;
    let Ready::Planned(planned, _) = &ready else { return Ok(()) };
    let waiting = report::spinner("taking a step");
    let measured = measured_step(&model, &batch.first(), &ready, size.recipe())?;
    let mut recipe = size.describe(kind);
    if batch.count() > 1 || size.clip_norm.is_some() {
        let whole = measure::measured(&model, &batch, &ready, size.recipe())?;
        recipe += &of_the_whole(&whole, beside, batch.count());
    }
    let optimizer = Optimizer::measure(&model, &batch, size.recipe())?;
    waiting.finish_and_clear();
    tell_faults(&places);
    let mut totals = totals(parameter_bytes(&model), optimizer.state, planned.simulation());
    totals.gradients = [totals.gradients, beside.held].into_iter().sum();
    let run = OfRun { recipe, measured, totals };
    write(arguments, planned.profile(), planned.plan(), Some(run))
}

/// What a step of all parts took, for a page whose figures are of one.
fn of_the_whole(whole: &measure::Measured, beside: Beside, parts: usize) -> String {
    let (peak, time, held) = (whole.peak, whole.time, beside.held);
    match parts {
        1 => format!(". A whole step took {peak} at its peak, and {time}"),
        _ => format!(
            ". A whole step took {peak} at its peak, {held} of them sums of gradients, which were held the whole time, and {time}; \
             what follows is of one part"
        ),
    }
}

/// What a page of a run has beyond a plan.
struct OfRun {
    recipe: String,
    measured: Measured,
    totals: Totals,
}

/// A step of a part of a batch, action by action. The step before it warms up.
fn measured_step<M: Trainable>(
    model: &M,
    batch: &Parts<M::Batch>,
    ready: &Ready,
    recipe: Recipe,
) -> Result<Measured, Failure> {
    step(model, batch, ready, recipe)?;
    rekindle::sweep();
    let trace = TraceHandle::new();
    let before = memory::live().unwrap_or_default();
    memory::reset_peak();
    let start = std::time::Instant::now();
    let done = step_traced(model, batch, ready, recipe, Some(&trace))?;
    let step_ns = Nanos::from(start.elapsed());
    let peak_bytes = memory::peak().unwrap_or_default().saturating_sub(before);
    drop(done);
    let above = |bytes: Option<Bytes>| bytes.map(|bytes| bytes.saturating_sub(before));
    let trace = trace.get();
    let events =
        trace.iter().flat_map(|trace| trace.events()).enumerate().map(|(action, event)| MeasuredEvent {
            action,
            start: event.start,
            end: event.end,
            live_bytes: above(event.live_bytes),
            peak_bytes: above(event.peak_bytes),
        });
    let events: Vec<MeasuredEvent> = events.collect();
    let transfers =
        trace.as_ref().and_then(|trace| Transfers::of(trace, ready)).map(|transfers| transfers.to_string());
    // The page names the action whose peak was the highest.
    Ok(Measured { peak_bytes, step_ns, events, set_by: None, transfers })
}

/// Where the memory of training goes at the peak of a step.
fn totals(weights: Bytes, optimizer_state: Bytes, simulation: &Simulation) -> Totals {
    let of = |wanted: fn(&LiveKind) -> bool| {
        let alive = simulation.peak_tensors.iter().filter(|live| wanted(&live.what));
        alive.map(|live| live.bytes).sum::<Bytes>()
    };
    let workspace = of(|what| matches!(what, LiveKind::ForwardExtra(_) | LiveKind::BackwardExtra(_)));
    let gradients = of(|what| matches!(what, LiveKind::ParameterGradients(_)));
    let rest = simulation.peak_bytes.saturating_sub(workspace).saturating_sub(gradients);
    Totals { weights, gradients, optimizer_state, activations: rest, workspace }
}

fn write(
    arguments: &ReportArguments,
    profile: &Profile,
    plan: &Plan,
    run: Option<OfRun>,
) -> Result<(), Failure> {
    let waiting = report::spinner("planning for every budget");
    let frontier = optimal::frontier(profile, &Request::default());
    waiting.finish_and_clear();
    // A chain that is too long for the frontier has a page all the same.
    let frontier = frontier.map(|frontier| frontier.points().iter().map(Into::into).collect());
    let frontier = frontier.unwrap_or_default();
    let (recipe, measured, totals) = match run {
        Some(OfRun { recipe, measured, totals }) => (Some(recipe), Some(measured), Some(totals)),
        None => (None, None, None),
    };
    let page = Report { profile, plan, frontier, recipe, measured, totals };
    let refused = |error: ReportError| {
        Failure::request(error, "`rekindle simulate PROFILE PLAN` tells whether a plan fits a profile")
    };
    let html = page.html().map_err(refused)?;
    files::write(&arguments.output, &html)?;
    tell!("wrote {}", arguments.output.display());
    if arguments.svg {
        for figure in Figure::ALL {
            match page.svg(figure) {
                Ok(svg) => {
                    let path = beside(&arguments.output, figure);
                    files::write(&path, &svg)?;
                    tell!("wrote {}", path.display());
                }
                // Nothing is known of it; the page leaves it out as well.
                Err(ReportError::NothingToDraw { .. }) => {}
                Err(error) => return Err(refused(error)),
            }
        }
    }
    Ok(())
}

/// `report.memory.svg` for `report.html`.
fn beside(page: &Path, figure: Figure) -> PathBuf {
    page.with_extension(format!("{figure}.svg"))
}
