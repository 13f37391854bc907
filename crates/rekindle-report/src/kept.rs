//! What a plan keeps, where, and what for.
//!
//! ```
//! use rekindle_plan::{Bytes, Plan, Profile, Rule, StageProfile};
//! use rekindle_report::kept;
//!
//! let stage = |i: usize| StageProfile {
//!     name: format!("block.{i}"),
//!     output_bytes: Bytes::new(1),
//!     tape_bytes: Bytes::new(8),
//!     ..StageProfile::default()
//! };
//! let profile = Profile::new("four", "none", Bytes::new(1), (0..4).map(stage).collect())?;
//! let plan = Plan::by_rule(&profile, Rule::SquareRoot, None)?;
//! let taped: Vec<bool> = kept::stages(&profile, &plan).iter().map(|story| story.taped_first).collect();
//! assert_eq!(taped, [false, false, true, true]);
//! assert_eq!(kept::stays(&profile, &plan)[0].runs_again, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::HashMap;

use rekindle_plan::{Action, Boundary, Bytes, Name, Plan, Profile, Stage};

/// How a stage fares under a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageStory {
    /// How often it runs forward, taped runs included.
    pub forwards: u64,
    /// The tape is kept from the first run on.
    pub taped_first: bool,
    /// The option its tape is kept under; none for its own.
    pub option: Option<Name>,
    /// What that tape takes beside the input it holds on to.
    pub tape_bytes: Bytes,
    /// The actions that make the tape and that use it up.
    pub taped: (usize, usize),
}

/// A boundary that stays somewhere longer than it must.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stay {
    /// The boundary.
    pub boundary: Boundary,
    /// A tier or codec; none for the device.
    pub place: Option<Name>,
    /// What it takes there.
    pub bytes: Bytes,
    /// The action with which its stay begins.
    pub from: usize,
    /// The action with which it ends.
    pub to: usize,
    /// How many stages run again from it, one after another; 0 when it only comes back to the device.
    pub runs_again: usize,
}

/// The story of every stage of a legal plan.
pub fn stages(profile: &Profile, plan: &Plan) -> Vec<StageStory> {
    let mut stories = vec![StageStory::default(); profile.stages().len()];
    for (index, action) in plan.actions.iter().enumerate() {
        let at = action.stage().and_then(|stage| Some((stories.get_mut(stage.index())?, stage)));
        let Some((story, stage)) = at else { continue };
        match action {
            Action::Forward { .. } => story.forwards += 1,
            Action::Tape { option, .. } => {
                story.taped_first = story.forwards == 0;
                story.forwards += 1;
                story.option.clone_from(option);
                let of = &profile.stages()[stage.index()];
                let taken = of.options.iter().find(|known| Some(&known.name) == option.as_ref());
                story.tape_bytes = of.taped_bytes_under(taken);
                story.taped.0 = index;
            }
            _ => story.taped.1 = index,
        }
    }
    stories
}

/// Every stay of a boundary, in the order in which they begin.
pub fn stays(profile: &Profile, plan: &Plan) -> Vec<Stay> {
    let runs = Runs::of(profile, plan);
    let mut open: HashMap<(Boundary, Option<&Name>), usize> = HashMap::new();
    let mut stays = Vec::new();
    for (index, action) in plan.actions.iter().enumerate() {
        match action {
            Action::Keep { boundary } => {
                open.entry((*boundary, None)).or_insert(index);
            }
            Action::Offload { boundary, tier: place } | Action::Compress { boundary, codec: place } => {
                open.insert((*boundary, Some(place)), index);
            }
            Action::Drop { boundary, place } => {
                if let Some(from) = open.remove(&(*boundary, place.as_ref())) {
                    let whole = profile.boundary_bytes(*boundary).unwrap_or_default();
                    let codec = profile.codecs().iter().find(|codec| Some(&codec.name) == place.as_ref());
                    stays.push(Stay {
                        boundary: *boundary,
                        place: place.clone(),
                        bytes: codec.map_or(Some(whole), |codec| codec.compressed(whole)).unwrap_or(whole),
                        from,
                        to: index,
                        runs_again: runs.again(*boundary, from),
                    });
                }
            }
            _ => {}
        }
    }
    stays.sort_by_key(|stay| stay.from);
    stays
}

/// What a plan holds on the device from one action to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// A stage's tape.
    Tape(Stage),
    /// A boundary that stays longer than it must.
    Boundary(Boundary),
}

/// The largest tape or boundary that a legal plan holds on the device while an action runs.
///
/// ```
/// use rekindle_plan::{Bytes, Plan, Profile, Rule, Stage, StageProfile};
/// use rekindle_report::kept::{Held, largest_at};
///
/// let stage = |i: u64| StageProfile {
///     name: format!("block.{i}"),
///     output_bytes: Bytes::new(1),
///     tape_bytes: Bytes::new(8 + i),
///     ..StageProfile::default()
/// };
/// let profile = Profile::new("two", "none", Bytes::new(1), (0..2).map(stage).collect())?;
/// let plan = Plan::by_rule(&profile, Rule::StoreAll, None)?;
/// let last = plan.actions.len() - 1;
/// assert_eq!(largest_at(&profile, &plan, 1), Some((Held::Tape(Stage::new(2)), Bytes::new(9))));
/// assert_eq!(largest_at(&profile, &plan, last), Some((Held::Tape(Stage::new(1)), Bytes::new(8))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn largest_at(profile: &Profile, plan: &Plan, action: usize) -> Option<(Held, Bytes)> {
    let tapes = stages(profile, plan).into_iter().zip(1..);
    let tapes = tapes.filter(|(story, _)| (story.taped.0..=story.taped.1).contains(&action));
    let tapes = tapes.map(|(story, number)| (Held::Tape(Stage::new(number)), story.tape_bytes));
    let stays = stays(profile, plan).into_iter();
    let stays = stays.filter(|stay| stay.place.is_none() && (stay.from..=stay.to).contains(&action));
    let stays = stays.map(|stay| (Held::Boundary(stay.boundary), stay.bytes));
    tapes.chain(stays).max_by_key(|(_, bytes)| *bytes)
}

/// Every forward of a plan, so that what a boundary is kept for is found without going through the plan for each.
struct Runs {
    /// For every stage: the actions that run it, and how many stages run one after another from there.
    of_stage: Vec<Vec<(usize, usize)>>,
}

impl Runs {
    fn of(profile: &Profile, plan: &Plan) -> Self {
        let mut of_stage = vec![Vec::new(); profile.stages().len()];
        let mut next: Option<(u32, usize)> = None;
        for (index, action) in plan.actions.iter().enumerate().rev() {
            let (Action::Forward { stage } | Action::Tape { stage, .. }) = action else { continue };
            let length = match next {
                Some((number, length)) if number == stage.number().saturating_add(1) => length + 1,
                _ => 1,
            };
            next = Some((stage.number(), length));
            if let Some(runs) = of_stage.get_mut(stage.index()) {
                runs.push((index, length));
            }
        }
        of_stage.iter_mut().for_each(|runs| runs.reverse());
        Self { of_stage }
    }

    /// The first reading after `from` is the sweep that left the boundary behind; the second is what it is kept for.
    fn again(&self, boundary: Boundary, from: usize) -> usize {
        let Some(runs) = self.of_stage.get(boundary.index()) else { return 0 };
        let first = runs.partition_point(|(index, _)| *index < from);
        runs.get(first + 1).map_or(0, |(_, length)| *length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_plan::{Rule, StageProfile, Status};

    fn profile(count: usize) -> Profile {
        let stages = (0..count).map(|index| StageProfile {
            name: format!("block.{index}"),
            output_bytes: Bytes::new(1),
            tape_bytes: Bytes::new(8),
            ..StageProfile::default()
        });
        Profile::new("test", "none", Bytes::new(1), stages.collect()).unwrap()
    }

    #[test]
    fn a_boundary_is_kept_for_the_stages_that_run_again_from_it() {
        let profile = profile(4);
        let plan = Plan::by_rule(&profile, Rule::SquareRoot, None).unwrap();
        let stays = stays(&profile, &plan);
        let told: Vec<_> =
            stays.iter().map(|stay| (stay.boundary.number(), stay.runs_again, stay.place.clone())).collect();
        assert_eq!(told, [(0, 2, None)], "{:?}", plan.actions);
        let stages = stages(&profile, &plan);
        let told: Vec<_> = stages.iter().map(|stage| (stage.forwards, stage.taped_first)).collect();
        assert_eq!(told, [(2, false), (2, false), (1, true), (1, true)]);
    }

    #[test]
    fn keeping_twice_is_one_stay() {
        let profile = profile(1);
        let actions = ["keep x0", "keep x0", "tape 1", "backward 1", "drop x0"];
        let actions = actions.map(|action| action.parse().unwrap()).to_vec();
        let plan = Plan::judged(&profile, "hand".into(), Status::Optimal, None, actions).unwrap();
        let stays = stays(&profile, &plan);
        assert_eq!(stays.len(), 1);
        assert_eq!((stays[0].from, stays[0].to, stays[0].runs_again), (0, 4, 0));
    }
}
