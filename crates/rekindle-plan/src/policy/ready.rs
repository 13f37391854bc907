//! The ready-made policies.

use std::fmt;

use super::choices::{Choices, Place, Run};
use super::clause::Clause;
use super::error::PolicyError;
use crate::Profile;

/// A ready-made policy by name.
///
/// ```
/// use rekindle_plan::policy::{Policy, ReadyMade};
///
/// for (ready, line) in ReadyMade::ALL {
///     assert_eq!(Policy::named(ready.name()), Ok(Policy::from(ready)), "{line}");
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReadyMade {
    /// Keep the input of every block, and run one block again at a time.
    Full,
    /// Keep every tape but that of the attention core, which is large and quick to run again.
    Selective,
    /// Keep every tape under the option `balanced`: what products of matrices made stays, what is cheap is made again.
    DotsSaveable,
    /// [`ReadyMade::Full`], with the inputs of the blocks in the profile's first tier.
    OffloadInputs,
}

/// The tape under which Burn keeps what compute-bound operations made.
const BALANCED: &str = "balanced";

impl ReadyMade {
    /// All of them, with a line on each.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Full, "keep the input of every block, run one block again at a time"),
        (Self::Selective, "keep every tape but that of the attention core, which is run again"),
        (
            Self::DotsSaveable,
            "keep every tape as `balanced`: results of products stay, cheap ones are made again",
        ),
        (Self::OffloadInputs, "as full, with the inputs of the blocks in the profile's first tier"),
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Selective => "selective",
            Self::DotsSaveable => "dots-saveable",
            Self::OffloadInputs => "offload-inputs",
        }
    }

    /// The ready-made policy of this name.
    pub(super) fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().map(|(ready, _)| ready).find(|ready| ready.name() == name)
    }

    /// What it chooses for a profile.
    pub(super) fn choices(self, profile: &Profile) -> Result<Choices<'_>, PolicyError> {
        // Where a block begins, and where the last one ends.
        let inputs = || "**.block.*.input".into();
        let outputs = || "**.block.*.output".into();
        match self {
            Self::Full => {
                let mut choices = Choices::new(profile, Run::Recompute);
                choices.start_with(&Clause::Keep { pattern: outputs() })?;
                choices.start_with(&Clause::Keep { pattern: inputs() })?;
                Ok(choices)
            }
            Self::Selective => {
                let mut choices = Choices::new(profile, Run::Tape(None));
                choices.start_with(&Clause::Recompute { pattern: "**.attention".into() })?;
                Ok(choices)
            }
            Self::DotsSaveable => {
                let mut choices = Choices::new(profile, Run::Tape(None));
                let mut found = false;
                for (run, stage) in choices.runs.iter_mut().zip(profile.stages()) {
                    let mut names = stage.options.iter().map(|option| &option.name);
                    if let Some(balanced) = names.find(|name| name.as_str() == BALANCED) {
                        *run = Run::Tape(Some(balanced.clone()));
                        found = true;
                    }
                }
                match found {
                    true => Ok(choices),
                    false => Err(PolicyError::NoOption { policy: self, option: BALANCED }),
                }
            }
            Self::OffloadInputs => {
                let tier = profile.tiers().first().ok_or(PolicyError::NoTier { policy: self })?;
                let mut choices = Self::Full.choices(profile)?;
                for boundary in choices.boundaries(&Clause::Keep { pattern: inputs() })? {
                    choices.places[boundary.index()] = Some(Place::Tier(tier.name.clone()));
                }
                Ok(choices)
            }
        }
    }
}

impl fmt::Display for ReadyMade {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}
