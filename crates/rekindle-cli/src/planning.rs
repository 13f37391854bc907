//! From a strategy's name to something that runs: measuring the model and planning it, where that is needed.

use std::path::Path;
use std::time::Instant;

use rekindle::{
    Budget, Bytes, Description, Measurement, Measuring, Nanos, Places, Planned, Planner, Policy, PolicyError,
    Profile, Staged,
};
use rekindle_models::Trainable;
use rekindle_plan::solvers::Solver;
use rekindle_plan::{Request, SolveError};

use crate::amount::{Fraction, Target};
use crate::cut::{Cut, CutModel, Cutting};
use crate::failure::Failure;
use crate::strategy::{Ready, Strategy};
use crate::{meter, report};

/// A model's stages as they were measured here.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) profile: Profile,
    /// How far the runs of a stage lay apart, as a part of its time.
    pub(crate) noise: f64,
    /// What a step usually takes beside what the simulator says.
    pub(crate) listed: Bytes,
}

/// What is known of each cut of a model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Knowledge {
    /// How long all measuring and planning took.
    pub(crate) took: Nanos,
    pub(crate) blocks: Option<Known>,
    pub(crate) parts: Option<Known>,
}

impl Knowledge {
    pub(crate) fn of(&mut self, cut: Cut) -> &mut Option<Known> {
        match cut {
            Cut::Blocks => &mut self.blocks,
            Cut::Parts => &mut self.parts,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Known> {
        [&self.blocks, &self.parts].into_iter().flatten()
    }
}

/// Measures every stage of a model, with a bar that knows how many there are. Gives what was found, and on which device.
pub(crate) fn measure_shown<M: Trainable>(
    model: &CutModel<'_, M>,
    batch: &M::Batch,
    measuring: Measuring,
) -> Result<(Measurement, Description), Failure> {
    let (region, input) = model.stages(batch);
    let description = region.describe(&input);
    drop((region, input));
    let bar = report::bar(description.stages.len() as u64, "measuring");
    let found = rekindle::measure(model, batch, measuring, &mut |stage, name| {
        // Stages like one before are not run again: the bar goes past them.
        bar.set_position(stage.saturating_sub(1) as u64);
        bar.set_message(name.to_owned());
    });
    bar.finish_and_clear();
    Ok((found?, description))
}

/// Measures every stage of a model.
pub(crate) fn measure<M: Trainable>(
    model: CutModel<'_, M>,
    batch: &M::Batch,
    measuring: Measuring,
) -> Result<Known, Failure> {
    let (found, description) = measure_shown(&model, batch, measuring)?;
    let listed = description.usual_bookkeeping();
    let noise = found.noise();
    let profile = found.into_profile(model.name(), description.device);
    let profile =
        profile.map_err(|error| Failure::failed(error, "give the model fewer or smaller stages"))?;
    Ok(Known { profile, noise, listed })
}

/// How to plan a strategy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planning<'a> {
    pub(crate) margin: Fraction,
    /// The peak of plain training, where it was measured.
    pub(crate) plain: Option<Bytes>,
    /// What training holds beside the step's own memory.
    pub(crate) held: Bytes,
    /// What a step takes before the first stage runs.
    pub(crate) alone: Bytes,
    /// Where plans are kept.
    pub(crate) cache: Option<&'a Path>,
    /// Where a plan may put boundaries.
    pub(crate) places: &'a Places,
    /// What a budget is written after, for hints.
    pub(crate) flag: &'static str,
}

impl Planning<'_> {
    /// What is held the whole time.
    fn holding(&self) -> &'static str {
        match self.flag {
            "--memory " => "weights, the optimizer's state, scratch memory of threads",
            _ => "sums of gradients",
        }
    }
}

/// How much a plan of parts has to save of the time in which every stage runs once forth and back, beside one of blocks.
///
/// Parts run in a step take longer than the same parts measured alone: what they read has left the caches by then, and each run of them
/// that is run again is a node of its own. docs/measuring.md has the runs this was chosen from, on one model and one machine.
const WORTH_CUTTING: f64 = 0.04;

/// What plans of several cuts are compared by: the budgets they need where the smallest is asked for, otherwise their times, of parts
/// with what they [have to save](WORTH_CUTTING).
fn cost_of(planned: &Planned, cut: Cut, smallest: bool) -> f64 {
    match smallest {
        // Not the peak that is predicted: more stages have more left free for them.
        true => planned.budget_bytes().unwrap_or(planned.plan().predicted.peak_bytes).get() as f64,
        false => time_of(planned.plan().predicted.step_ns, planned.profile().lower_bound(), cut),
    }
}

/// A step's time in `once`, the time in which every stage of the cut runs once forth and back: cuts are measured one after the other, and
/// a machine that has slowed down since has slowed that down as well.
fn time_of(step: Nanos, once: Nanos, cut: Cut) -> f64 {
    step.ratio(once) + if cut == Cut::Parts { WORTH_CUTTING } else { 0.0 }
}

/// Whether stages can be kept in part. What is left between such plans and those of a finer cut is less than what the finer cut
/// [has to save](WORTH_CUTTING); to measure it would take as long as to measure all of this one. It has more boundaries to move
/// elsewhere, and needs less at its smallest.
fn has_parts(profile: &Profile) -> bool {
    profile.stages().iter().flat_map(|stage| &stage.options).any(|option| option.name.as_str() == AGAIN)
}

/// The option under which a stage's tape is without what the stage [marks](rekindle::again).
const AGAIN: &str = "again";

/// Makes a strategy ready, measuring the model when a plan is asked for and `known` says nothing yet.
///
/// Of several cuts the one whose plan is the faster is taken, and parts of blocks only if they are [worth it](WORTH_CUTTING).
pub(crate) fn ready<M: Trainable>(
    strategy: &Strategy,
    model: &M,
    cutting: Cutting,
    batch: &M::Batch,
    known: &mut Knowledge,
    planning: Planning<'_>,
) -> Result<Ready, Failure> {
    let target = match strategy {
        Strategy::Plain => return Ok(Ready::Plain),
        Strategy::Burn => {
            return Err(Failure::request(
                anyhow::anyhow!("`burn` is another model, not a way to train this one"),
                "`--burn` makes the model of Burn's modules alone; `rekindle bench` runs it beside ours",
            ));
        }
        Strategy::Balanced => return Ok(Ready::Balanced),
        Strategy::Rule(rule) => return Ok(Ready::Rule(*rule)),
        Strategy::Optimal(target) => *target,
        Strategy::Policy(policy) => {
            let start = Instant::now();
            let ready = under_policy(policy, fine(cutting), model, batch, known, planning)?;
            known.took = [known.took, start.elapsed().into()].into_iter().sum();
            return Ok(ready);
        }
        Strategy::Slots(solver, slots) => {
            let start = Instant::now();
            let ready = with_slots((*solver, *slots), fine(cutting), model, batch, known)?;
            known.took = [known.took, start.elapsed().into()].into_iter().sum();
            return Ok(ready);
        }
    };
    if target == Target::Free && meter::is_pool() {
        return Err(Failure::request(
            anyhow::anyhow!(
                "the budget is `auto`, but Burn does not tell what the GPU has free, expected bytes or a part"
            ),
            "give bytes such as 8GiB, or 25% of what plain training takes",
        ));
    }
    // A plan that is kept in a file is of one cut, and stays so.
    let kept = planning.cache.filter(|path| path.exists()).and_then(|path| Planned::load(path).ok());
    let kept = kept.map(|planned| cut_of(planned.profile(), model, batch));
    if let (Some(path), Some(kept), [asked]) = (planning.cache, kept, cutting.cuts())
        && kept != *asked
    {
        return Err(Failure::request(
            anyhow::anyhow!("{} has a plan of {kept}, but --cut is {asked}", path.display()),
            "leave --cut out, or give another file",
        ));
    }
    let cuts = kept.as_ref().map_or(cutting.cuts(), std::slice::from_ref);
    let asked = target.budget(planning.plain).map_err(refused)?.holding(planning.held);
    let mut budget = asked;
    let start = Instant::now();
    let mut best: Option<(Planned, Cut)> = None;
    let mut failure = None;
    for cut in cuts.iter().copied() {
        if kept.is_none() {
            let known = known.of(cut);
            if known.is_none() {
                *known = Some(measure(cut.of(model), batch, Measuring::steady())?);
            }
            // Cuts are compared at the same bytes: where a part of plain's peak is asked for, that of the first one's.
            if let (false, true, Some(known)) = (target.is_smallest(), budget == asked, known) {
                budget = Budget::bytes(budget.resolve(&known.profile, planning.margin.0).map_err(refused)?);
            }
        }
        match plan(budget, cut.of(model), batch, known.of(cut).as_ref(), planning) {
            Ok(planned) => {
                let cost = |planned: &Planned, cut: Cut| cost_of(planned, cut, target.is_smallest());
                if best.as_ref().is_none_or(|(best, of)| cost(&planned, cut) < cost(best, *of)) {
                    best = Some((planned, cut));
                }
            }
            Err(refusal) if cuts.len() > 1 && refusal.smallest_budget().is_some() => {
                let smallest = |refusal: &Failure| refusal.smallest_budget().unwrap_or(Bytes::MAX);
                if failure.as_ref().is_none_or(|known| smallest(&refusal) < smallest(known)) {
                    failure = Some(refusal);
                }
            }
            Err(other) => return Err(other),
        }
        let is_found = best.as_ref().is_some_and(|(planned, _)| has_parts(planned.profile()));
        if is_found && !target.is_smallest() && planning.places.is_empty() {
            break;
        }
    }
    if let Some((planned, cut)) = &mut best
        && budget != asked
    {
        // In the end it is a part of its own, as it will be when the plan comes from a file.
        *planned = plan(asked, cut.of(model), batch, known.of(*cut).as_ref(), planning)?;
    }
    known.took = [known.took, start.elapsed().into()].into_iter().sum();
    let Some((planned, cut)) = best else {
        return Err(failure.unwrap_or_else(|| refused(rekindle::Error::NothingKnownFree)));
    };
    let total = Bytes::new(planned.budget_bytes().unwrap_or_default().get() + planning.held.get());
    if total < planning.alone {
        let least = planning.alone;
        return match target.is_smallest() {
            true => ready(&Strategy::Optimal(Target::Bytes(least)), model, cutting, batch, known, planning),
            false => Err(Failure::request(
                rekindle::Error::BudgetTooSmall {
                    budget: total,
                    smallest: least,
                    set_by: "the loss of the whole batch, before a part of it runs,".to_owned(),
                },
                format!("give {}{} or more", planning.flag, surely(least.get())),
            )),
        };
    }
    if let (Some(path), None) = (planning.cache, kept) {
        planned.save(path).map_err(refused)?;
    }
    Ok(Ready::Planned(planned, cut))
}

/// The plan that a policy says.
fn under_policy<M: Trainable>(
    policy: &Policy,
    cut: Cut,
    model: &M,
    batch: &M::Batch,
    known: &mut Knowledge,
    planning: Planning<'_>,
) -> Result<Ready, Failure> {
    if known.of(cut).is_none() {
        *known.of(cut) = Some(measure(cut.of(model), batch, Measuring::steady())?);
    }
    let mut planner = Planner::new(Budget::smallest()).places(planning.places.clone());
    if let Some(known) = known.of(cut) {
        planner = planner.profile(known.profile.clone(), known.noise);
    }
    let planned = planner.plan_policy(policy, &cut.of(model), batch).map_err(refused)?;
    for clause in policy.idle(planned.profile()).unwrap_or_default() {
        tell!("`{clause}` changes nothing");
    }
    Ok(Ready::Planned(planned, cut))
}

/// Unless blocks are asked for, the finest there is: parts have all the names of a policy, and where slots are counted what is run
/// again at once is the least.
fn fine(cutting: Cutting) -> Cut {
    if cutting == Cutting::Blocks { Cut::Blocks } else { Cut::Parts }
}

/// The plan of a solver that counts slots: of no budget.
fn with_slots<M: Trainable>(
    (solver, slots): (Solver, u32),
    cut: Cut,
    model: &M,
    batch: &M::Batch,
    known: &mut Knowledge,
) -> Result<Ready, Failure> {
    let known = match known.of(cut) {
        Some(known) => known,
        none => none.insert(measure(cut.of(model), batch, Measuring::steady())?),
    };
    let plan = solver.solve(&known.profile, &Request::with_slots(slots)).map_err(|error| match error {
        SolveError::TooFewSlots { least, .. } => {
            Failure::request(error, format!("give {solver}-{least} or more"))
        }
        other => refused(rekindle::Error::NoPlan(other)),
    })?;
    let (region, input) = cut.of(model).stages(batch);
    let planned = Planned::new(region.describe(&input), known.profile.clone(), plan, known.noise);
    Ok(Ready::Planned(planned.map_err(refused)?, cut))
}

/// Plans one cut of a model.
fn plan<M: Trainable>(
    budget: Budget,
    model: CutModel<'_, M>,
    batch: &M::Batch,
    known: Option<&Known>,
    planning: Planning<'_>,
) -> Result<Planned, Failure> {
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
    if let Some(cache) = planning.cache.filter(|path| path.exists()) {
        planner = planner.cache(cache);
    }
    let planned = planner.plan(&model, batch);
    bar.finish_and_clear();
    planned.map_err(|error| match error {
        rekindle::Error::BudgetTooSmall { budget, smallest, .. } => {
            let held = planning.held;
            let hint = format!("give {}{} or more", planning.flag, surely(smallest.get() + held.get()));
            match held {
                Bytes::ZERO => Failure::request(error, hint),
                _ => Failure::request(
                    anyhow::Error::new(error).context(format!(
                        "{held} are held the whole time ({}), which leaves {budget} of the budget",
                        planning.holding()
                    )),
                    hint,
                ),
            }
        }
        other => refused(other),
    })
}

/// A budget that is enough the next time, too. What a stage takes is measured again then, and how much scratch memory is in use at
/// once depends on how busy the machine is: that was up to 7% of the smallest budget.
fn surely(needed: u64) -> u64 {
    const ROUND: u64 = 64 << 10;
    (needed.saturating_add(needed / 12)).div_ceil(ROUND) * ROUND
}

/// The cut that a profile is of: the one with as many stages, or at least with a second stage of such a name.
fn cut_of<M: Trainable>(profile: &Profile, model: &M, batch: &M::Batch) -> Cut {
    let stages = |cut: Cut| {
        let (region, input) = cut.of(model).stages(batch);
        region.describe(&input).stages
    };
    let count = profile.stages().len();
    let blocks = stages(Cut::Blocks);
    let known = |name: &str| blocks.iter().any(|stage| stage.name == name);
    let named = || profile.stages().get(1).is_some_and(|stage| known(&stage.name));
    match blocks.len() == count || stages(Cut::Parts).len() != count && named() {
        true => Cut::Blocks,
        false => Cut::Parts,
    }
}

/// A plan from a file, checked against the model.
pub(crate) fn from_file<M: Trainable>(
    path: &Path,
    profile: Option<&Path>,
    model: &M,
    batch: &M::Batch,
    places: &Places,
) -> Result<Ready, Failure> {
    let describe = |cut: Cut| {
        let (region, input) = cut.of(model).stages(batch);
        region.describe(&input)
    };
    let Some(profile) = profile else {
        let planned = Planned::load(path).map_err(|error| {
            Failure::request(
                error,
                "give a file that `--cache` wrote, or a plan (rekindle.plan/1) with `--profile` and its profile",
            )
        })?;
        let cut = cut_of(planned.profile(), model, batch);
        if let Some(difference) = describe(cut).difference(planned.description()) {
            let error = rekindle::Error::OtherModel { difference: Box::new(difference) };
            return Err(refused(error));
        }
        return in_places(planned, cut, places);
    };
    let (profile, plan) = (crate::files::profile(profile)?, crate::files::plan(path)?);
    let cut = cut_of(&profile, model, batch);
    let description = describe(cut);
    let own = check_profile(&profile, &description.device, cut.of(model), batch)?;
    check_budget(&plan, &own, description.usual_bookkeeping())?;
    let planned = Planned::new(description, profile, plan, 0.0).map_err(refused)?;
    in_places(planned, cut, places)
}

/// A plan from a file, with the places it uses. A disk without room for it is found here, as for a plan that is made here.
fn in_places(planned: Planned, cut: Cut, places: &Places) -> Result<Ready, Failure> {
    places.reserve(planned.profile(), planned.plan()).map_err(refused)?;
    Ok(Ready::Planned(planned.with_places(places.clone()), cut))
}

/// Refuses a plan that would not keep its budget: its profile may be a trace, which knows of no workspace that a kernel makes for itself,
/// and whoever made it may have left nothing free.
fn check_budget(plan: &rekindle::Plan, own: &Profile, listed: Bytes) -> Result<(), Failure> {
    // A profile of tiers has what none that is measured here has; and what is not legal is refused elsewhere.
    let Ok((_, simulation)) = rekindle::Schedule::judge(own, &plan.actions) else { return Ok(()) };
    let needed: Bytes = [simulation.peak_bytes, listed].into_iter().sum();
    match plan.budget_bytes {
        Some(budget) if needed > budget => Err(Failure::request(
            anyhow::anyhow!(
                "the plan is for {budget} ({} bytes), but as its stages are measured here it takes {needed} ({} bytes)",
                budget.get(),
                needed.get()
            ),
            format!(
                "a stage needs more in some runs than in others, and a trace knows of no workspace: plan again with a new profile of `rekindle profile --measure`, or with --margin {:.0}%",
                // Of what the plan takes as its profile says: it may have left something free before. And a little, for the next run.
                (needed.get() as f64 / plan.predicted.peak_bytes.get().max(1) as f64 * 1.05 - 1.0) * 100.0
                    + 1.0
            ),
        )),
        _ => Ok(()),
    }
}

/// Refuses a profile whose stages are not those of the model, as far as sizes tell. Gives the model's own.
fn check_profile<M: Trainable>(
    profile: &Profile,
    device: &str,
    model: CutModel<'_, M>,
    batch: &M::Batch,
) -> Result<Profile, Failure> {
    let own = measure(model, batch, Measuring { runs: 1, options: true, ..Measuring::steady() })?.profile;
    let refuse = |what: String, found: String, expected: String| {
        let error =
            anyhow::anyhow!("the profile is of another model; {what}: found {found}, expected {expected}");
        Err(Failure::request(error, "profile this model with `rekindle profile`, and plan it again"))
    };
    if profile.model() != own.model() {
        return refuse("its name".to_owned(), profile.model().to_owned(), own.model().to_owned());
    }
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
        let [tape, here] = [found, expected].map(|stage| stage.tape_bytes.get());
        if tape.abs_diff(here) > here / 8 + (64 << 10) {
            let [found, expected] = [found, expected].map(|stage| stage.tape_bytes.to_string());
            return refuse(of("the tape"), found, expected);
        }
    }
    Ok(own)
}

/// What to try when a policy gives no plan.
pub(crate) fn policy_hint(error: &PolicyError) -> &'static str {
    match error {
        PolicyError::NoMatch { .. } => {
            "stages of the model are embedding, block.N.qkv, .attention, .projection, .up, .activation, .down, and head; \
             `--cut blocks` has block.N alone"
        }
        PolicyError::UnknownPlace { .. } | PolicyError::NoTier { .. } => {
            "give the place, too: --disk, --host or --compress"
        }
        _ => "docs/policies.md says what a policy can say",
    }
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
        rekindle::Error::Policy(error) => policy_hint(error).to_owned(),
        rekindle::Error::PlanNotWritten { .. } => {
            return Failure::failed(error, "check the folder, its permissions and the room on the disk");
        }
        rekindle::Error::PlanFile { .. } => "check the file, or remove it to have it made anew".to_owned(),
        _ => "`rekindle train --help` shows what can be asked for".to_owned(),
    };
    Failure::request(error, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(step: u64, once: u64, cut: Cut) -> f64 {
        time_of(Nanos::new(step), Nanos::new(once), cut)
    }

    #[test]
    fn parts_are_taken_only_where_they_save_enough() {
        let blocks = time(1_300, 1_000, Cut::Blocks);
        assert!(time(1_300, 1_000, Cut::Parts) >= blocks);
        // Faster, but not by enough.
        assert!(time(1_280, 1_000, Cut::Parts) >= blocks);
        assert!(time(1_259, 1_000, Cut::Parts) < blocks);
    }

    /// Measured while the machine was half as fast, parts once looked as if no plan of them could pay.
    #[test]
    fn a_machine_that_slows_down_between_two_cuts_does_not_choose() {
        let blocks = time(1_300, 1_000, Cut::Blocks);
        assert!(time(2_400, 2_000, Cut::Parts) < blocks);
        assert!(time(2_700, 2_000, Cut::Parts) > blocks);
    }
}
