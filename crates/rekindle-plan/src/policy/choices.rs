//! What a policy chooses for every stage and every boundary of a profile.

use std::ops::Range;

use super::clause::Clause;
use super::error::PolicyError;
use super::names::{Named, names};
use crate::{Boundary, Name, Profile, Stage, nearest};

/// What the forward leaves of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Run {
    /// Its tape, whole or under an option.
    Tape(Option<Name>),
    /// Nothing: it is run again.
    Recompute,
}

/// Where a boundary waits for the backward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Device,
    Codec(Name),
    Tier(Name),
}

/// The choices, and which of the policy's clauses made them.
pub(super) struct Choices<'a> {
    profile: &'a Profile,
    names: Vec<Named<'a>>,
    pub(super) runs: Vec<Run>,
    /// For every boundary that is kept, where.
    pub(super) places: Vec<Option<Place>>,
    runs_by: Vec<Option<&'a Clause>>,
    places_by: Vec<Option<&'a Clause>>,
}

impl<'a> Choices<'a> {
    /// One choice for all stages, and no boundary kept.
    pub(super) fn new(profile: &'a Profile, run: Run) -> Self {
        let stages = profile.stages().len();
        Self {
            profile,
            names: names(profile),
            runs: vec![run; stages],
            places: vec![None; stages + 1],
            runs_by: vec![None; stages],
            places_by: vec![None; stages + 1],
        }
    }

    /// Runs stages again as one segment, whatever comes after them.
    pub(super) fn run_again(&mut self, stages: Range<usize>) {
        self.places[stages.end] = Some(Place::Device);
        self.runs[stages].fill(Run::Recompute);
    }

    /// Does what a clause says, over whatever was chosen so far: what a policy starts from is no contradiction.
    pub(super) fn start_with(&mut self, clause: &Clause) -> Result<(), PolicyError> {
        self.apply(clause, None)
    }

    /// Does what a clause of the policy says; fails when an earlier one said something else of the same thing.
    pub(super) fn add(&mut self, clause: &'a Clause) -> Result<(), PolicyError> {
        self.apply(clause, Some(clause))
    }

    fn apply(&mut self, clause: &Clause, by: Option<&'a Clause>) -> Result<(), PolicyError> {
        match clause {
            Clause::Keep { .. } => self.place(clause, &Place::Device, by),
            Clause::Offload { tier, .. } => {
                let known = self.profile.tiers().iter().map(|tier| &tier.name);
                let place = Place::Tier(find(clause, "tier", tier, known)?);
                self.place(clause, &place, by)
            }
            Clause::Compress { codec, .. } => {
                let known = self.profile.codecs().iter().map(|codec| &codec.name);
                let place = Place::Codec(find(clause, "codec", codec, known)?);
                self.place(clause, &place, by)
            }
            Clause::Pin { .. } => self.run(clause, |_| Ok(Run::Tape(None)), by),
            Clause::Recompute { .. } => self.run(clause, |_| Ok(Run::Recompute), by),
            Clause::Tape { option, .. } => {
                let profile = self.profile;
                let tape = |stage: Stage| tape_under(profile, clause, stage, option);
                self.run(clause, tape, by)
            }
        }
    }

    fn place(&mut self, clause: &Clause, place: &Place, by: Option<&'a Clause>) -> Result<(), PolicyError> {
        for boundary in self.boundaries(clause)? {
            let at = boundary.index();
            if let (Some(one), Some(other)) = (self.places_by[at], by)
                && self.places[at].as_ref() != Some(place)
            {
                return Err(PolicyError::BoundaryContradiction {
                    boundary,
                    name: self.name_of(boundary),
                    one: one.clone(),
                    other: other.clone(),
                });
            }
            self.places[at] = Some(place.clone());
            self.places_by[at] = by;
        }
        Ok(())
    }

    fn run(
        &mut self,
        clause: &Clause,
        choose: impl Fn(Stage) -> Result<Run, PolicyError>,
        by: Option<&'a Clause>,
    ) -> Result<(), PolicyError> {
        for stage in self.stages(clause)? {
            let at = stage.index();
            let run = choose(stage)?;
            if let (Some(one), Some(other)) = (self.runs_by[at], by)
                && self.runs[at] != run
            {
                return Err(PolicyError::StageContradiction {
                    stage,
                    name: self.profile.stages()[at].name.clone(),
                    one: one.clone(),
                    other: other.clone(),
                });
            }
            self.runs[at] = run;
            self.runs_by[at] = by;
        }
        Ok(())
    }

    /// The stages a clause speaks of; at least one.
    pub(super) fn stages(&self, clause: &Clause) -> Result<Vec<Stage>, PolicyError> {
        let pattern = clause.pattern();
        let named = self.names.iter().filter(|named| pattern.matches(named.name));
        let stages: Vec<_> =
            named.flat_map(|named| (named.first.index()..=named.last.index()).map(Stage::at)).collect();
        match stages.is_empty() {
            false => Ok(stages),
            true => Err(PolicyError::NoMatch {
                clause: clause.clone(),
                nearest: nearest(pattern.as_str(), self.names.iter().map(|named| named.name))
                    .map(str::to_owned),
            }),
        }
    }

    /// The boundaries a clause speaks of; at least one.
    pub(super) fn boundaries(&self, clause: &Clause) -> Result<Vec<Boundary>, PolicyError> {
        let pattern = clause.pattern();
        // As a whole first: a stage may itself be called `encoder.input`.
        let named = self.names.iter().filter(|named| pattern.matches(named.name));
        let outputs: Vec<_> = named.map(Named::output).collect();
        if !outputs.is_empty() {
            return Ok(outputs);
        }
        let (side, stages) = pattern.side().unwrap_or_else(|| ("", pattern.clone()));
        let named = self.names.iter().filter(|named| stages.matches_as_part(named.name));
        let boundaries: Vec<_> = match side {
            ".input" => named.map(Named::input).collect(),
            _ => named.map(Named::output).collect(),
        };
        match boundaries.is_empty() {
            false => Ok(boundaries),
            true => Err(PolicyError::NoMatch {
                clause: clause.clone(),
                nearest: nearest(stages.as_str(), self.names.iter().map(|named| named.name))
                    .map(|name| format!("{name}{side}")),
            }),
        }
    }

    fn name_of(&self, boundary: Boundary) -> String {
        let stages = self.profile.stages();
        match boundary.index().checked_sub(1) {
            Some(maker) => format!("{}.output", stages[maker].name),
            None => format!("{}.input", stages[0].name),
        }
    }
}

fn tape_under(profile: &Profile, clause: &Clause, stage: Stage, option: &str) -> Result<Run, PolicyError> {
    let found = &profile.stages()[stage.index()];
    let mut known = found.options.iter().map(|option| &option.name);
    match known.clone().find(|name| name.as_str() == option) {
        Some(name) => Ok(Run::Tape(Some(name.clone()))),
        None => Err(PolicyError::UnknownOption {
            clause: clause.clone(),
            stage,
            name: found.name.clone(),
            found: option.to_owned(),
            known: listed(&mut known),
        }),
    }
}

fn find<'n>(
    clause: &Clause,
    kind: &'static str,
    found: &str,
    mut known: impl Iterator<Item = &'n Name> + Clone,
) -> Result<Name, PolicyError> {
    match known.clone().find(|name| name.as_str() == found) {
        Some(name) => Ok(name.clone()),
        None => Err(PolicyError::UnknownPlace {
            clause: clause.clone(),
            kind,
            found: found.to_owned(),
            known: listed(&mut known),
        }),
    }
}

fn listed(names: &mut dyn Iterator<Item = &Name>) -> String {
    let names: Vec<&str> = names.map(Name::as_str).collect();
    match names.is_empty() {
        true => "(none)".to_owned(),
        false => names.join(", "),
    }
}
