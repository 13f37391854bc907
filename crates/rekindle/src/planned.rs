//! A plan together with what it was made from, and the file it is kept in.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rekindle_plan::{Bytes, Name, Plan, Profile, Schedule, Simulation};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::places::{self, Places};
use crate::{Description, Error, Staged, file};

/// The version of the file that [`Planned`] is kept in.
pub const PLANNED_FORMAT: &str = "rekindle.planned/1";

/// A plan for one model on inputs of one shape, ready to run. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Planned {
    inside: Arc<Inside>,
    places: Places,
}

#[derive(Debug)]
struct Inside {
    description: Description,
    profile: Profile,
    plan: Plan,
    schedule: Schedule,
    simulation: Simulation,
    noise: f64,
    /// Regions that were found to be of the description, by a number that is quick to make.
    known: Mutex<HashSet<u64>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    model: Description,
    /// The noise of the measured times.
    noise: f64,
    profile: Value,
    plan: Value,
}

impl Planned {
    /// A plan for a model of this description.
    ///
    /// # Errors
    /// When the plan is for another profile, not legal, or over its budget.
    pub fn new(description: Description, profile: Profile, plan: Plan, noise: f64) -> Result<Self, Error> {
        let (schedule, simulation) = plan.judge(&profile)?;
        // What is cut before the first step is no memory of a step.
        schedule.pieces(|_, _| true);
        let inside =
            Inside { description, profile, plan, schedule, simulation, noise, known: Mutex::default() };
        Ok(Self { inside: Arc::new(inside), places: Places::new() })
    }

    /// The same plan with the places it uses, for one that comes from a file.
    #[must_use]
    pub fn with_places(mut self, places: Places) -> Self {
        self.places = places;
        self
    }

    /// The codecs the plan uses that lose digits. Without any, gradients are those of plain training, bit for bit.
    pub fn lossy_codecs(&self) -> Vec<Name> {
        let mut lossy = places::lossy_codecs(self.plan());
        lossy.retain(|name| !self.places.has_other(name));
        lossy
    }

    pub(crate) fn places(&self) -> &Places {
        &self.places
    }

    /// Runs the model's stages under the plan.
    ///
    /// # Errors
    /// When the batch is not of the shapes the plan was made for, or the region cannot run.
    pub fn forward<M: Staged + ?Sized>(&self, model: &M, batch: &M::Batch) -> Result<M::Output, Error> {
        let (region, input) = model.stages(batch);
        region.under(self).forward(input)
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.inside.plan
    }

    /// What is known of the stages.
    pub fn profile(&self) -> &Profile {
        &self.inside.profile
    }

    /// What the simulator says of the plan.
    pub fn simulation(&self) -> &Simulation {
        &self.inside.simulation
    }

    /// The model it is for.
    pub fn description(&self) -> &Description {
        &self.inside.description
    }

    /// How far the measured times lay apart, as a part of them; 0 when they were not measured.
    pub fn noise(&self) -> f64 {
        self.inside.noise
    }

    /// What the plan may take.
    pub fn budget_bytes(&self) -> Option<Bytes> {
        self.inside.plan.budget_bytes
    }

    /// Refuses regions that are not of the description. `describe` is called for a `quick` number seen for the first time.
    pub(crate) fn check(&self, quick: u64, describe: impl FnOnce() -> Description) -> Result<(), Error> {
        let known = || self.inside.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known().contains(&quick) {
            return Ok(());
        }
        match describe().difference(&self.inside.description) {
            Some(difference) => Err(Error::OtherModel { difference: Box::new(difference) }),
            None => {
                known().insert(quick);
                Ok(())
            }
        }
    }

    pub(crate) fn schedule(&self) -> &Schedule {
        &self.inside.schedule
    }

    /// Reads what [`Planned::save`] wrote.
    ///
    /// # Errors
    /// When the file cannot be read or holds something else.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let shown = || path.display().to_string();
        let text = file::read_text(path)
            .map_err(|error| Error::PlanFile { path: shown(), reason: error.to_string() })?;
        Self::from_json(&text).map_err(|error| match error {
            Error::PlanFile { reason, .. } => Error::PlanFile { path: shown(), reason },
            other => Error::PlanFile { path: shown(), reason: other.to_string() },
        })
    }

    /// Reads the text of such a file.
    ///
    /// # Errors
    /// When the text is something else, or the plan in it does not fit the profile in it.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        let refuse = |reason: String| Error::PlanFile { path: "the text".to_owned(), reason };
        let value: Value = serde_json::from_str(text).map_err(|error| refuse(error.to_string()))?;
        match value.get("format") {
            Some(Value::String(format)) if format == PLANNED_FORMAT => {}
            other => {
                let found = other.map_or_else(|| "(none)".to_owned(), ToString::to_string);
                return Err(refuse(format!("it has the format {found}, expected \"{PLANNED_FORMAT}\"")));
            }
        }
        let file: File = serde_json::from_value(value).map_err(|error| refuse(error.to_string()))?;
        let profile = Profile::from_json(&file.profile.to_string());
        let profile = profile.map_err(|error| refuse(error.to_string()))?;
        let plan = Plan::from_json(&file.plan.to_string()).map_err(|error| refuse(error.to_string()))?;
        let noise = if file.noise.is_finite() { file.noise } else { 0.0 };
        Self::new(file.model, profile, plan, noise)
    }

    /// The text of a file that [`Planned::load`] reads.
    pub fn to_json(&self) -> String {
        let value = |text: String| serde_json::from_str(&text).unwrap_or(Value::Null);
        let file = File {
            format: PLANNED_FORMAT.to_owned(),
            model: self.inside.description.clone(),
            noise: self.inside.noise,
            profile: value(self.inside.profile.to_json()),
            plan: value(self.inside.plan.to_json()),
        };
        // It is strings, finite numbers and lists: it always serialises.
        serde_json::to_string_pretty(&file).unwrap_or_default()
    }

    /// Writes the plan, and what it was made from, for [`crate::Planner::cache`] to find. A file that was there before is
    /// replaced at once or not at all.
    ///
    /// # Errors
    /// When the file cannot be written; the old one is then as it was.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        file::write(path, &format!("{}\n", self.to_json()))
            .map_err(|source| Error::PlanNotWritten { path: path.display().to_string(), source })
    }
}
