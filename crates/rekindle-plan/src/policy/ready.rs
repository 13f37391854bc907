//! The ready-made policies.

use std::fmt;

use super::cheap;
use super::choices::{Choices, Place, Run};
use super::clause::Clause;
use super::error::PolicyError;
use crate::{Bytes, Profile, StageProfile};

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
    /// Keep every tape but that of the attention core, which is large and quick to run again. Where the attention core keeps no more
    /// than it hands on, what is cheapest to make again for what it frees, until 60% of the peak of keeping all is left.
    Selective,
    /// Keep every tape under the option `balanced` where that takes less, and run activations again: what products of matrices made
    /// stays, what is cheap is made again.
    DotsSaveable,
    /// [`ReadyMade::Full`], with the inputs of the blocks in the profile's first tier.
    OffloadInputs,
}

/// The tape under which Burn keeps what compute-bound operations made.
const BALANCED: &str = "balanced";

/// What `selective` leaves of the peak of keeping all, where attention keeps no scores, in percent.
const LEFT: u64 = 60;

impl ReadyMade {
    /// All of them, with a line on each.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Full, "keep the input of every block, run one block again at a time"),
        (
            Self::Selective,
            "keep every tape but that of the attention core, or what is cheapest to make again where that keeps no scores",
        ),
        (
            Self::DotsSaveable,
            "keep tapes as `balanced`, run activations again: results of products stay, cheap ones are made again",
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
                let attention = Clause::Recompute { pattern: "**.attention".into() };
                let cores = choices.stages(&attention)?;
                if cores.iter().any(|core| keeps_scores(&profile.stages()[core.index()])) {
                    choices.start_with(&attention)?;
                    return Ok(choices);
                }
                let mut costly = vec![false; profile.stages().len()];
                cores.iter().for_each(|core| costly[core.index()] = true);
                Ok(cheap::until(profile, LEFT, &costly))
            }
            Self::DotsSaveable => {
                let mut choices = Choices::new(profile, Run::Tape(None));
                let mut found = false;
                for (run, stage) in choices.runs.iter_mut().zip(profile.stages()) {
                    let mut options = stage.options.iter();
                    let Some(balanced) = options.find(|option| option.name.as_str() == BALANCED) else {
                        continue;
                    };
                    found = true;
                    // Of a stage that nothing was measured of, the option is taken at its word.
                    if balanced.tape_bytes < stage.tape_bytes || stage.tape_bytes == Bytes::ZERO {
                        *run = Run::Tape(Some(balanced.name.clone()));
                    }
                }
                if !found {
                    return Err(PolicyError::NoOption { policy: self, option: BALANCED });
                }
                // What an activation makes is read by the product after it. Both run again: the product's result was kept, so that the
                // second run leaves it out.
                let activations = choices.stages(&Clause::Recompute { pattern: "**.activation".into() });
                for activation in activations.unwrap_or_default() {
                    let product = activation.index() + 1;
                    let pair = profile.stages().get(activation.index()..=product);
                    if pair.is_some_and(|pair| pair.iter().all(|stage| !stage.pinned)) {
                        choices.run_again(activation.index()..product + 1);
                    }
                }
                Ok(choices)
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

/// Whether the tape of an attention core is more than what it reads and makes: it has something for every pair of positions. So it is
/// when nothing was measured.
fn keeps_scores(core: &StageProfile) -> bool {
    let twice = core.output_bytes.get().saturating_mul(2);
    core.tape_bytes == Bytes::ZERO || core.tape_bytes.get() > twice
}

impl fmt::Display for ReadyMade {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}
