//! From a strategy's name to something that runs: measuring the model and planning it, where that is needed.

use std::path::Path;
use std::time::Instant;

use rekindle::{Bytes, Measuring, Nanos, Places, Planned, Planner, Profile, Staged};
use rekindle_models::{Gpt, GptBatch};

use crate::amount::Fraction;
use crate::cut::{Cut, CutModel};
use crate::failure::Failure;
use crate::report;
use crate::strategy::{Ready, Strategy};

/// A model's stages as they were measured here.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) profile: Profile,
    /// How far the runs of a stage lay apart, as a part of its time.
    pub(crate) noise: f64,
    /// How many different stages ran.
    pub(crate) kinds: usize,
    /// How long measuring took.
    pub(crate) took: Nanos,
}

/// Measures every stage of a model.
pub(crate) fn measure(model: CutModel<'_>, batch: &GptBatch, measuring: Measuring) -> Result<Known, Failure> {
    let start = Instant::now();
    let bar = report::spinner("measuring the stages");
    let found = rekindle::measure(&model, batch, measuring, &mut |stage, name| {
        bar.set_message(format!("measuring stage {stage} ({name})"));
    });
    bar.finish_and_clear();
    let found = found?;
    let (noise, kinds) = (found.noise(), found.kinds);
    let profile = found.into_profile(model.name(), "flex");
    let profile =
        profile.map_err(|error| Failure::failed(error, "give the model fewer or smaller stages"))?;
    Ok(Known { profile, noise, kinds, took: start.elapsed().into() })
}

/// How to plan a strategy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planning<'a> {
    pub(crate) margin: Fraction,
    /// The peak of plain training, where it was measured.
    pub(crate) plain: Option<Bytes>,
    /// What training holds beside the step's own memory.
    pub(crate) held: Bytes,
    /// Where plans are kept.
    pub(crate) cache: Option<&'a Path>,
    /// Where a plan may put boundaries.
    pub(crate) places: &'a Places,
    /// What a budget is written after, for hints.
    pub(crate) flag: &'static str,
}

/// Makes a strategy ready, measuring the model when a plan is asked for and `known` says nothing yet.
pub(crate) fn ready(
    strategy: Strategy,
    model: CutModel<'_>,
    batch: &GptBatch,
    known: &mut Option<Known>,
    planning: Planning<'_>,
) -> Result<Ready, Failure> {
    let target = match strategy {
        Strategy::Plain => return Ok(Ready::Plain),
        Strategy::Balanced => return Ok(Ready::Balanced),
        Strategy::Rule(rule) => return Ok(Ready::Rule(rule)),
        Strategy::Optimal(target) => target,
    };
    let budget = target.budget(planning.plain).map_err(refused)?.holding(planning.held);
    let bar = report::spinner("measuring the stages");
    let mut planner = Planner::new(budget)
        .margin(planning.margin.0)
        .places(planning.places.clone())
        .progress(|stage, name| {
            bar.set_message(format!("measuring stage {stage} ({name})"));
        });
    if let Some(known) = known {
        planner = planner.profile(known.profile.clone(), known.noise);
    }
    if let Some(cache) = planning.cache {
        planner = planner.cache(cache);
    }
    let start = Instant::now();
    let planned = planner.plan(&model, batch);
    let took = start.elapsed().into();
    bar.finish_and_clear();
    let planned = planned.map_err(|error| match error {
        rekindle::Error::BudgetTooSmall { smallest, .. } => {
            let needed = smallest.get() + planning.held.get();
            Failure::request(error, format!("give {}{needed} or more", planning.flag))
        }
        other => refused(other),
    })?;
    known.get_or_insert_with(|| Known {
        profile: planned.profile().clone(),
        noise: planned.noise(),
        kinds: 0,
        took,
    });
    Ok(Ready::Planned(planned, model.cut))
}

/// A plan from a file, checked against the model.
pub(crate) fn from_file(
    path: &Path,
    profile: Option<&Path>,
    model: &Gpt,
    batch: &GptBatch,
    places: &Places,
) -> Result<Ready, Failure> {
    let describe = |cut: Cut| {
        let (region, input) = cut.of(model).stages(batch);
        region.describe(&input)
    };
    // The file says which cut it is for by how many stages it has.
    let cut_of = |stages: usize| match stages == describe(Cut::Blocks).stages.len() {
        true => Cut::Blocks,
        false => Cut::Parts,
    };
    let Some(profile) = profile else {
        let planned = Planned::load(path).map_err(|error| {
            Failure::request(
                error,
                "give a file that `--cache` wrote, or a plan (rekindle.plan/1) with `--profile` and its profile",
            )
        })?;
        let cut = cut_of(planned.profile().stages().len());
        if let Some(difference) = describe(cut).difference(planned.description()) {
            let error = rekindle::Error::OtherModel { difference: Box::new(difference) };
            return Err(refused(error));
        }
        return Ok(Ready::Planned(planned.with_places(places.clone()), cut));
    };
    let (profile, plan) = (crate::files::profile(profile)?, crate::files::plan(path)?);
    let cut = cut_of(profile.stages().len());
    let description = describe(cut);
    check_profile(&profile, &description.device, cut.of(model), batch)?;
    let planned = Planned::new(description, profile, plan, 0.0).map_err(refused)?;
    Ok(Ready::Planned(planned.with_places(places.clone()), cut))
}

/// Refuses a profile whose stages are not those of the model, as far as sizes tell.
fn check_profile(
    profile: &Profile,
    device: &str,
    model: CutModel<'_>,
    batch: &GptBatch,
) -> Result<(), Failure> {
    let own = measure(model, batch, Measuring { runs: 1, options: false })?.profile;
    let refuse = |what: String, found: String, expected: String| {
        let error =
            anyhow::anyhow!("the profile is of another model; {what}: found {found}, expected {expected}");
        Err(Failure::request(error, "profile this model with `rekindle profile`, and plan it again"))
    };
    if profile.device() != device {
        return refuse("the device".to_owned(), profile.device().to_owned(), device.to_owned());
    }
    let counts = [profile, &own].map(|profile| profile.stages().len().to_string());
    let [found, expected] = counts;
    if found != expected {
        return refuse("the number of stages".to_owned(), found, expected);
    }
    if profile.input_bytes() != own.input_bytes() {
        let [found, expected] = [profile, &own].map(|profile| profile.input_bytes().to_string());
        return refuse("the input".to_owned(), found, expected);
    }
    for ((found, expected), number) in profile.stages().iter().zip(own.stages()).zip(1..) {
        let of = |what: &str| format!("{what} of stage {number} (`{}`)", expected.name);
        if found.name != expected.name {
            return refuse(of("the name"), found.name.clone(), expected.name.clone());
        }
        if found.output_bytes != expected.output_bytes {
            let [found, expected] = [found, expected].map(|stage| stage.output_bytes.to_string());
            return refuse(of("the output"), found, expected);
        }
        // Traced or measured, a tape of the same stage comes out within a tenth; another setting makes it another.
        let [tape, own] = [found, expected].map(|stage| stage.tape_bytes.get());
        if tape.abs_diff(own) > own / 8 + (64 << 10) {
            let [found, expected] = [found, expected].map(|stage| stage.tape_bytes.to_string());
            return refuse(of("the tape"), found, expected);
        }
    }
    Ok(())
}

/// What to try when there is no plan.
pub(crate) fn refused(error: rekindle::Error) -> Failure {
    let hint = match &error {
        rekindle::Error::BudgetTooSmall { smallest, .. } => {
            format!("give --budget {} or more", smallest.get())
        }
        rekindle::Error::OtherModel { .. } => {
            "remove the file, or name another with --cache or --plan".to_owned()
        }
        rekindle::Error::HostIsDevice { .. } => "leave --host out".to_owned(),
        rekindle::Error::Place { .. } => "give --disk a directory with more room, or less of it".to_owned(),
        rekindle::Error::NothingKnownFree => "give --budget in bytes, such as --budget 64MiB".to_owned(),
        rekindle::Error::PlanFile { .. } => "check the file, or remove it to have it made anew".to_owned(),
        _ => "`rekindle train --help` shows what can be asked for".to_owned(),
    };
    Failure::request(error, hint)
}
