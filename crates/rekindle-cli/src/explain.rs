//! `rekindle explain`: what a plan keeps, where, why, and what sets its peak.

use rekindle_plan::{Action, Boundary, Bytes, Name, Nanos, Plan, Profile, Simulation, Stage};

use crate::arguments::ExplainArguments;
use crate::failure::Failure;
use crate::simulate::{self, PeakTensor, peak_tensors};
use crate::{files, report};
use serde::Serialize;

/// How a stage fares under a plan.
#[derive(Clone, Debug, Default, Serialize)]
struct StageStory {
    stage: usize,
    name: String,
    /// How often it runs forward, taped runs included.
    forwards: usize,
    /// The tape is kept from the first run on.
    taped_first: bool,
    /// The option its tape is kept under; none for its own.
    option: Option<Name>,
    tape_bytes: Bytes,
}

/// A boundary that stays longer than it must.
#[derive(Clone, Debug, Serialize)]
struct KeptStory {
    boundary: String,
    bytes: Bytes,
    /// `device`, or the name of a tier or codec.
    place: String,
    /// The actions between which it lies there.
    from: usize,
    to: usize,
    /// The stages that run again from it.
    runs_again: Option<(usize, usize)>,
}

#[derive(Serialize)]
struct Story {
    model: String,
    solver: String,
    status: String,
    peak_bytes: Bytes,
    peak_action: usize,
    peak_tensors: Vec<PeakTensor>,
    stages: Vec<StageStory>,
    kept: Vec<KeptStory>,
    /// What is moved to each tier, or shrunk by each codec, and brought back.
    transfers: Vec<TransferStory>,
    /// How long the step waits for it.
    wait_ns: Nanos,
}

/// What goes to one place and comes back, as it is predicted.
#[derive(Clone, Debug, Serialize)]
struct TransferStory {
    place: Name,
    /// Both ways.
    count: usize,
    /// Of the boundaries as they are on the device.
    bytes: Bytes,
    /// How long all of them take together, beside the stages or not.
    time_ns: Nanos,
}

/// Runs the command.
pub(crate) fn run(arguments: &ExplainArguments) -> Result<(), Failure> {
    let profile = files::profile(&arguments.profile)?;
    let plan = files::plan(&arguments.plan)?;
    let (_, simulation) = plan.judge(&profile).map_err(simulate::refused)?;
    let (stages, kept) = (stages(&profile, &plan), kept(&profile, &plan));
    let transfers = transfers(&profile, &plan, &simulation);
    match arguments.json {
        true => report::show_json(&Story {
            model: profile.model().to_owned(),
            solver: plan.solver.clone(),
            status: plan.status.to_string(),
            peak_bytes: simulation.peak_bytes,
            peak_action: simulation.peak_action,
            peak_tensors: peak_tensors(&simulation),
            stages,
            kept,
            transfers,
            wait_ns: simulation.wait_ns,
        }),
        false => show(&profile, &plan, &simulation, (&stages, &kept, &transfers)),
    }
}

fn stages(profile: &Profile, plan: &Plan) -> Vec<StageStory> {
    let mut stories: Vec<StageStory> = profile
        .stages()
        .iter()
        .enumerate()
        .map(|(index, stage)| StageStory {
            stage: index + 1,
            name: stage.name.clone(),
            ..StageStory::default()
        })
        .collect();
    for action in &plan.actions {
        match action {
            Action::Forward { stage } => stories[stage.index()].forwards += 1,
            Action::Tape { stage, option } => {
                let story = &mut stories[stage.index()];
                story.taped_first = story.forwards == 0;
                story.forwards += 1;
                story.option.clone_from(option);
                let of = &profile.stages()[stage.index()];
                let taken = of.options.iter().find(|known| Some(&known.name) == option.as_ref());
                story.tape_bytes = of.taped_bytes_under(taken);
            }
            _ => {}
        }
    }
    stories
}

/// Every stay of a boundary somewhere, in the order in which they begin.
fn kept(profile: &Profile, plan: &Plan) -> Vec<KeptStory> {
    let mut open: Vec<(Boundary, Option<Name>, usize)> = Vec::new();
    let mut stories = Vec::new();
    for (index, action) in plan.actions.iter().enumerate() {
        match action {
            Action::Keep { boundary } => open.push((*boundary, None, index)),
            Action::Offload { boundary, tier: place } | Action::Compress { boundary, codec: place } => {
                open.push((*boundary, Some(place.clone()), index));
            }
            Action::Drop { boundary, place } => {
                let at = open.iter().position(|stay| stay.0 == *boundary && stay.1 == *place);
                if let Some((boundary, place, from)) = at.map(|at| open.remove(at)) {
                    stories.push(KeptStory {
                        boundary: boundary.to_string(),
                        bytes: profile.boundary_bytes(boundary).unwrap_or_default(),
                        place: place.map_or_else(|| "device".to_owned(), |place| place.to_string()),
                        from,
                        to: index,
                        runs_again: runs_again(plan, boundary, from),
                    });
                }
            }
            _ => {}
        }
    }
    stories.sort_by_key(|story| story.from);
    stories
}

/// What goes to each place and comes back, in the order in which places are first used.
fn transfers(profile: &Profile, plan: &Plan, simulation: &Simulation) -> Vec<TransferStory> {
    let mut stories: Vec<TransferStory> = Vec::new();
    for (action, span) in plan.actions.iter().zip(&simulation.spans) {
        let (Action::Offload { boundary, tier: place }
        | Action::Compress { boundary, codec: place }
        | Action::Fetch { boundary, place }) = action
        else {
            continue;
        };
        let index = stories.iter().position(|story| story.place == *place).unwrap_or(stories.len());
        if index == stories.len() {
            let (count, bytes, time_ns) = (0, Bytes::ZERO, Nanos::ZERO);
            stories.push(TransferStory { place: place.clone(), count, bytes, time_ns });
        }
        let story = &mut stories[index];
        story.count += 1;
        story.bytes = [story.bytes, profile.boundary_bytes(*boundary).unwrap_or_default()].into_iter().sum();
        story.time_ns = [story.time_ns, span.end.saturating_sub(span.start)].into_iter().sum();
    }
    stories
}

/// The stages that run again from a boundary after its first sweep: why it was kept.
fn runs_again(plan: &Plan, boundary: Boundary, from: usize) -> Option<(usize, usize)> {
    let ran = |action: &Action| match action {
        Action::Forward { stage } | Action::Tape { stage, .. } => Some(*stage),
        _ => None,
    };
    let reader = Stage::new(boundary.number() + 1);
    let later: Vec<_> = plan.actions[from..].iter().filter_map(ran).collect();
    let mut starts = later.iter().enumerate().filter(|(_, stage)| **stage == reader).map(|(at, _)| at);
    // The first reading is the sweep that left it behind; the second is what it was kept for.
    let again = starts.nth(1)?;
    let length =
        later[again..].iter().zip(reader.number()..).take_while(|(stage, next)| stage.number() == *next);
    let count = length.count();
    Some((reader.number() as usize, reader.number() as usize + count - 1))
}

fn show(
    profile: &Profile,
    plan: &Plan,
    simulation: &Simulation,
    (stages, kept, transfers): (&[StageStory], &[KeptStory], &[TransferStory]),
) -> Result<(), Failure> {
    let first = stages.iter().filter(|stage| stage.taped_first).count();
    let most = stages.iter().map(|stage| stage.forwards).max().unwrap_or(0);
    let held: Bytes = stages.iter().filter(|stage| stage.taped_first).map(|stage| stage.tape_bytes).sum();
    report::show(&format!(
        "`{}` ({}) for {}: {} of {} stages keep their tape from the first run ({held}), {} run again, at most {most} times in all\n",
        plan.solver,
        plan.status,
        profile.model(),
        first,
        stages.len(),
        stages.len() - first,
    ))?;
    let rows = stage_rows(stages);
    report::show(&report::words(["stages", "run", "tape", "option"], rows))?;
    if !kept.is_empty() {
        let rows = kept.iter().map(|story| {
            let why = match story.runs_again {
                Some((from, to)) if from == to => format!("run stage {from} again"),
                Some((from, to)) => format!("run stages {from} to {to} again"),
                None => "bring it back to the device".to_owned(),
            };
            let stay = format!("actions {} to {}", story.from, story.to);
            [story.boundary.clone(), story.bytes.to_string(), story.place.clone(), stay, why]
        });
        report::show(&format!("\n{}", report::words(["kept", "bytes", "on", "during", "to"], rows)))?;
    }
    if !transfers.is_empty() {
        let rows = transfers.iter().map(|story| {
            let TransferStory { place, count, bytes, time_ns } = story;
            [place.to_string(), count.to_string(), bytes.to_string(), time_ns.to_string()]
        });
        let table = report::table(["moved to and from", "transfers", "bytes", "take"], rows);
        let (wait, step) = (simulation.wait_ns, simulation.step_ns);
        report::show(&format!("\n{table}\n{wait} of the step of {step} are waited for transfers"))?;
    }
    let action = plan.actions.get(simulation.peak_action).map(ToString::to_string).unwrap_or_default();
    let peak = simulation.peak_bytes;
    report::show(&format!("\nthe peak is {peak}, at action {} (`{action}`)", simulation.peak_action))?;
    report::show_alive(simulation)
}

/// One row for neighbours that fare alike.
fn stage_rows(stages: &[StageStory]) -> Vec<[String; 4]> {
    let alike = |left: &StageStory, right: &StageStory| {
        (left.forwards, left.taped_first, &left.option) == (right.forwards, right.taped_first, &right.option)
    };
    let rows = stages.chunk_by(alike).filter_map(|group| {
        let (first, last) = (group.first()?, group.last()?);
        let names = match group.len() {
            1 => format!("{} ({})", first.stage, first.name),
            _ => format!("{} to {} ({} to {})", first.stage, last.stage, first.name, last.name),
        };
        let times = if first.forwards == 1 { "once".to_owned() } else { format!("{} times", first.forwards) };
        let tape = if first.taped_first { "kept from the first run" } else { "made again for the backward" };
        let option = first.option.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
        Some([names, times, tape.to_owned(), option])
    });
    rows.collect()
}
