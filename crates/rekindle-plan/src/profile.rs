//! What is known of a model before it is planned: the sizes and times of its stages.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::format::{self, FormatError};
use crate::{Boundary, Bytes, Name, Nanos, Stage};

/// The version of the profile format.
pub const PROFILE_FORMAT: &str = "rekindle.profile/1";

/// A chain of stages with their sizes and times, and the places where boundaries can go.
///
/// A `Profile` is valid by construction: [`Profile::new`] and [`Profile::from_json`] refuse what the planner could
/// not reason about.
///
/// ```
/// use rekindle_plan::{Bytes, Profile};
///
/// let profile = Profile::from_json(r#"{
///   "format": "rekindle.profile/1", "model": "mlp", "device": "flex", "input_bytes": 1024,
///   "stages": [{"name": "layer.0", "output_bytes": 1024, "tape_bytes": 8192,
///               "forward_ns": 1000, "backward_ns": 2000}]
/// }"#)?;
/// assert_eq!(profile.stages()[0].tape_bytes, Bytes::new(8192));
/// # Ok::<(), rekindle_plan::ProfileError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Profile {
    format: String,
    model: String,
    device: String,
    input_bytes: Bytes,
    stages: Vec<StageProfile>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tiers: Vec<Tier>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    codecs: Vec<Codec>,
    /// For every boundary, the gradients of the parameters of all stages behind it.
    #[serde(skip)]
    behind: Vec<Bytes>,
}

/// A profile as a file has it, before it is checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileFile {
    format: String,
    model: String,
    device: String,
    input_bytes: Bytes,
    stages: Vec<StageProfile>,
    #[serde(default)]
    tiers: Vec<Tier>,
    #[serde(default)]
    codecs: Vec<Codec>,
    /// What `rekindle profile --json` prints beside a profile: how far measured times lay apart. Plans are made without it.
    #[serde(default, rename = "measured")]
    _measured: serde::de::IgnoredAny,
}

/// The sizes and times of one stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageProfile {
    /// What people call it, such as `block.3`.
    pub name: String,
    /// The size of the boundary it makes.
    pub output_bytes: Bytes,
    /// What a taped forward keeps, the output included.
    pub tape_bytes: Bytes,
    /// What of the output is memory of the input that the stage only passes on, such as a residual. A tape holds on to
    /// its input and does not take it a second time; a boundary that is kept without a tape counts as its own.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub passed_bytes: Bytes,
    /// How long its forward takes.
    pub forward_ns: Nanos,
    /// How long its backward takes.
    pub backward_ns: Nanos,
    /// What a taped forward saves when nobody reads its output: time that goes into the output alone, which its own
    /// backward does not ask for. No more than any of its forwards takes.
    #[serde(default, skip_serializing_if = "takes_no_time")]
    pub unread_ns: Nanos,
    /// What is alive only while its forward runs, beyond input and output (or tape).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub forward_extra_bytes: Bytes,
    /// The same of a taped forward, when that is another: what a tape keeps anyhow is no workspace of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taped_extra_bytes: Option<Bytes>,
    /// What is alive only while its backward runs, beyond the tape and the gradient it starts from. The gradient it
    /// makes belongs here when it exists before the tape is released.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub backward_extra_bytes: Bytes,
    /// The size of the gradient of the boundary it makes, when that is not the boundary's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_bytes: Option<Bytes>,
    /// The gradients of its parameters: its backward leaves them, and they stay until the step is over.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub parameter_gradient_bytes: Bytes,
    /// It must run once only: integer routing, randomness that cannot be replayed, effects outside.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pinned: bool,
    /// Other ways to keep its tape.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<TapeOption>,
}

impl StageProfile {
    /// What its tape takes beside the input it holds on to.
    pub fn taped_bytes(&self) -> Bytes {
        self.taped_bytes_under(None)
    }

    /// The same under one of its options.
    pub fn taped_bytes_under(&self, option: Option<&TapeOption>) -> Bytes {
        // A profile passes on no more than the output, which every tape includes.
        option.map_or(self.tape_bytes, |option| option.tape_bytes).saturating_sub(self.passed_bytes)
    }

    /// What is alive only while its taped forward runs, beyond input and tape.
    pub fn taped_workspace(&self) -> Bytes {
        self.taped_workspace_under(None)
    }

    /// The same under one of its options.
    pub fn taped_workspace_under(&self, option: Option<&TapeOption>) -> Bytes {
        let of_option = option.and_then(|option| option.taped_extra_bytes);
        of_option.or(self.taped_extra_bytes).unwrap_or(self.forward_extra_bytes)
    }

    /// What its backward takes beside the tape and the gradient it starts from: workspace, and the gradients of its
    /// parameters.
    pub fn backward_workspace(&self) -> Bytes {
        self.backward_workspace_under(None)
    }

    /// The same under one of its options.
    pub fn backward_workspace_under(&self, option: Option<&TapeOption>) -> Bytes {
        let extra =
            option.and_then(|option| option.backward_extra_bytes).unwrap_or(self.backward_extra_bytes);
        // A profile's sums fit into 64 bits.
        extra.checked_add(self.parameter_gradient_bytes).unwrap_or(Bytes::MAX)
    }
}

fn is_zero(bytes: &Bytes) -> bool {
    *bytes == Bytes::ZERO
}

fn takes_no_time(nanos: &Nanos) -> bool {
    *nanos == Nanos::ZERO
}

/// Another way to keep a stage's tape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TapeOption {
    /// The name plans use for it.
    pub name: Name,
    /// What a taped forward keeps under it, the output included.
    pub tape_bytes: Bytes,
    /// How long the forward takes under it.
    pub forward_ns: Nanos,
    /// How long the backward takes under it.
    pub backward_ns: Nanos,
    /// What is alive only while its forward runs under it, beyond input and tape, when that is not what the stage says: what is made
    /// and not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taped_extra_bytes: Option<Bytes>,
    /// What is alive only while its backward runs under it, when that is not what the stage says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backward_extra_bytes: Option<Bytes>,
}

/// A place outside the device where boundaries can go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// The name plans use for it, such as `host`.
    pub name: Name,
    /// How much it can hold.
    pub capacity_bytes: Bytes,
    /// How fast boundaries go there.
    pub write_bytes_per_second: u64,
    /// How fast they come back.
    pub read_bytes_per_second: u64,
}

/// A way to make a boundary smaller on the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Codec {
    /// The name plans use for it, such as `bf16`.
    pub name: Name,
    /// What 1,024 bytes become.
    pub bytes_per_kibibyte: u32,
    /// How fast boundaries are compressed.
    pub compress_bytes_per_second: u64,
    /// How fast they are restored.
    pub restore_bytes_per_second: u64,
}

impl Codec {
    /// What `bytes` become, rounded up; `None` when it does not fit.
    pub fn compressed(&self, bytes: Bytes) -> Option<Bytes> {
        let scaled = u128::from(bytes.get()) * u128::from(self.bytes_per_kibibyte);
        u64::try_from(scaled.div_ceil(1024)).ok().map(Bytes::new)
    }
}

/// Why a profile is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The text is not a profile of this version.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// There is nothing to plan.
    #[error("the profile of `{model}` has no stages, expected at least one")]
    NoStages {
        /// The model it is of.
        model: String,
    },
    /// A stage has no name.
    #[error("stage {stage} has an empty name, expected one such as `block.{stage}`")]
    Unnamed {
        /// Which stage.
        stage: Stage,
    },
    /// A tape is smaller than the output it includes.
    #[error(
        "stage {stage} (`{name}`) keeps a tape of {tape_bytes} but makes an output of {output_bytes}; a tape includes the output"
    )]
    TapeWithoutOutput {
        /// Which stage.
        stage: Stage,
        /// Its name.
        name: String,
        /// The tape found, under the option if it has one.
        tape_bytes: Bytes,
        /// The output found.
        output_bytes: Bytes,
    },
    /// A stage passes on more than there is.
    #[error(
        "stage {stage} (`{name}`) passes {passed_bytes} of its input of {input_bytes} on in its output of {output_bytes}, expected no more than either"
    )]
    PassedTooMuch {
        /// Which stage.
        stage: Stage,
        /// Its name.
        name: String,
        /// What it is said to pass on.
        passed_bytes: Bytes,
        /// The size of its input.
        input_bytes: Bytes,
        /// The size of its output.
        output_bytes: Bytes,
    },
    /// A stage saves more than it takes.
    #[error(
        "stage {stage} (`{name}`) saves {unread_ns} when its output is not read, expected no more than the {forward_ns} of its fastest forward"
    )]
    SavedTooMuch {
        /// Which stage.
        stage: Stage,
        /// Its name.
        name: String,
        /// What it is said to save.
        unread_ns: Nanos,
        /// The fastest of its forwards.
        forward_ns: Nanos,
    },
    /// Two options of a stage, or two places, have one name.
    #[error("the name `{name}` stands twice among {among}")]
    NamedTwice {
        /// The name found twice.
        name: Name,
        /// Where.
        among: String,
    },
    /// A tier or codec would take forever.
    #[error("`{name}` has {speed} of 0 bytes per second, expected more")]
    Still {
        /// The tier or codec.
        name: Name,
        /// Which of its speeds.
        speed: &'static str,
    },
    /// The sum of all sizes or times does not fit into 64 bits.
    #[error("the {what} of the profile add up to more than 2^64, expected less")]
    TooLarge {
        /// Bytes or times.
        what: &'static str,
    },
}

impl Profile {
    /// A profile of these stages, without tiers or codecs.
    ///
    /// # Errors
    /// When there is no stage, or one that cannot be planned.
    pub fn new(
        model: impl Into<String>,
        device: impl Into<String>,
        input_bytes: Bytes,
        stages: Vec<StageProfile>,
    ) -> Result<Self, ProfileError> {
        Self::checked(ProfileFile {
            format: PROFILE_FORMAT.to_owned(),
            model: model.into(),
            device: device.into(),
            input_bytes,
            stages,
            tiers: Vec::new(),
            codecs: Vec::new(),
            _measured: serde::de::IgnoredAny,
        })
    }

    /// A profile of which only the structure is known: stages by name, each with these options, no sizes, no times.
    /// Enough to judge whether a plan is legal.
    ///
    /// # Errors
    /// When there is no stage, one without a name, or an option twice.
    pub fn unmeasured(
        names: impl IntoIterator<Item = String>,
        options: &[Name],
    ) -> Result<Self, ProfileError> {
        let options: Vec<TapeOption> = options
            .iter()
            .map(|name| TapeOption {
                name: name.clone(),
                tape_bytes: Bytes::ZERO,
                forward_ns: Nanos::ZERO,
                backward_ns: Nanos::ZERO,
                taped_extra_bytes: None,
                backward_extra_bytes: None,
            })
            .collect();
        let stages = names.into_iter().map(|name| StageProfile {
            name,
            options: options.clone(),
            ..StageProfile::default()
        });
        Self::new("unmeasured", "unmeasured", Bytes::ZERO, stages.collect())
    }

    /// The same profile with these places for boundaries.
    ///
    /// # Errors
    /// When two places share a name or one has no speed.
    pub fn with_places(mut self, tiers: Vec<Tier>, codecs: Vec<Codec>) -> Result<Self, ProfileError> {
        self.tiers = tiers;
        self.codecs = codecs;
        self.check()?;
        Ok(self)
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// When the text is not a profile of this version, or not one that can be planned.
    pub fn from_json(text: &str) -> Result<Self, ProfileError> {
        Self::checked(format::read("profile", PROFILE_FORMAT, text)?)
    }

    fn checked(file: ProfileFile) -> Result<Self, ProfileError> {
        let mut profile = Self {
            format: file.format,
            model: file.model,
            device: file.device,
            input_bytes: file.input_bytes,
            stages: file.stages,
            tiers: file.tiers,
            codecs: file.codecs,
            behind: Vec::new(),
        };
        profile.check()?;
        let mut sum = 0;
        let sums = profile.stages.iter().rev().map(|stage| {
            sum += stage.parameter_gradient_bytes.get();
            Bytes::new(sum)
        });
        profile.behind = [Bytes::ZERO].into_iter().chain(sums).collect();
        profile.behind.reverse();
        Ok(profile)
    }

    /// Writes the profile.
    pub fn to_json(&self) -> String {
        // A profile is strings, numbers and lists: it always serialises.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    fn check(&self) -> Result<(), ProfileError> {
        if self.stages.is_empty() {
            return Err(ProfileError::NoStages { model: self.model.clone() });
        }
        for (index, profile) in self.stages.iter().enumerate() {
            let stage = Stage::at(index);
            if profile.name.is_empty() {
                return Err(ProfileError::Unnamed { stage });
            }
            let tapes = profile.options.iter().map(|option| option.tape_bytes);
            for tape_bytes in tapes.chain([profile.tape_bytes]) {
                if tape_bytes < profile.output_bytes {
                    return Err(ProfileError::TapeWithoutOutput {
                        stage,
                        name: profile.name.clone(),
                        tape_bytes,
                        output_bytes: profile.output_bytes,
                    });
                }
            }
            let input_bytes = self.boundary_bytes(stage.input()).unwrap_or_default();
            if profile.passed_bytes > input_bytes.min(profile.output_bytes) {
                return Err(ProfileError::PassedTooMuch {
                    stage,
                    name: profile.name.clone(),
                    passed_bytes: profile.passed_bytes,
                    input_bytes,
                    output_bytes: profile.output_bytes,
                });
            }
            let forwards = profile.options.iter().map(|option| option.forward_ns);
            let forward_ns = forwards.fold(profile.forward_ns, Nanos::min);
            if profile.unread_ns > forward_ns {
                return Err(ProfileError::SavedTooMuch {
                    stage,
                    name: profile.name.clone(),
                    unread_ns: profile.unread_ns,
                    forward_ns,
                });
            }
            unique(profile.options.iter().map(|option| &option.name), || {
                format!("the options of stage {stage} (`{}`)", profile.name)
            })?;
        }
        let places = self.tiers.iter().map(|tier| &tier.name);
        unique(places.chain(self.codecs.iter().map(|codec| &codec.name)), || {
            "the tiers and codecs".to_owned()
        })?;
        let speeds = self.tiers.iter().flat_map(|tier| {
            [
                (&tier.name, "a write speed", tier.write_bytes_per_second),
                (&tier.name, "a read speed", tier.read_bytes_per_second),
            ]
        });
        let codec_speeds = self.codecs.iter().flat_map(|codec| {
            [
                (&codec.name, "a compress speed", codec.compress_bytes_per_second),
                (&codec.name, "a restore speed", codec.restore_bytes_per_second),
            ]
        });
        if let Some((name, speed, _)) = speeds.chain(codec_speeds).find(|(_, _, rate)| *rate == 0) {
            return Err(ProfileError::Still { name: name.clone(), speed });
        }
        self.check_sums()
    }

    /// Everything alive at once, and everything run once, must be expressible; the simulator then only has to watch
    /// what a plan repeats.
    fn check_sums(&self) -> Result<(), ProfileError> {
        let bytes = self.stages.iter().flat_map(|stage| {
            let largest = stage.options.iter().map(|option| option.tape_bytes).max();
            let extra = stage.options.iter().filter_map(|option| option.backward_extra_bytes).max();
            let taped = stage.options.iter().filter_map(|option| option.taped_extra_bytes).max();
            [
                stage.output_bytes,
                stage.tape_bytes.max(largest.unwrap_or_default()),
                stage.forward_extra_bytes.max(stage.taped_workspace()).max(taped.unwrap_or_default()),
                stage.backward_extra_bytes.max(extra.unwrap_or_default()),
                stage.gradient_bytes.unwrap_or_default(),
                stage.parameter_gradient_bytes,
            ]
        });
        Bytes::checked_sum(bytes.chain([self.input_bytes]))
            .ok_or(ProfileError::TooLarge { what: "bytes" })?;
        let times = self.stages.iter().flat_map(|stage| {
            let options = stage.options.iter();
            options
                .flat_map(|option| [option.forward_ns, option.backward_ns])
                .chain([stage.forward_ns, stage.backward_ns])
        });
        Nanos::checked_sum(times).ok_or(ProfileError::TooLarge { what: "times" })?;
        Ok(())
    }

    /// What people call the model.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// What the stages were measured on.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The size of the region's input, `x0`.
    pub fn input_bytes(&self) -> Bytes {
        self.input_bytes
    }

    /// The stages, first to last; never empty.
    pub fn stages(&self) -> &[StageProfile] {
        &self.stages
    }

    /// Whether boundaries can go anywhere but to the device.
    pub(crate) fn has_places(&self) -> bool {
        !self.tiers.is_empty() || !self.codecs.is_empty()
    }

    /// The tiers boundaries can be offloaded to.
    pub fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    /// The codecs boundaries can be compressed with.
    pub fn codecs(&self) -> &[Codec] {
        &self.codecs
    }

    /// The size of a boundary; `None` when the chain is shorter.
    pub fn boundary_bytes(&self, boundary: Boundary) -> Option<Bytes> {
        match boundary.index() {
            0 => Some(self.input_bytes),
            number => Some(self.stages.get(number - 1)?.output_bytes),
        }
    }

    /// All gradients that are alive when the backward has come to a boundary: the boundary's own, and those of the
    /// parameters behind it. `None` when the chain is shorter.
    pub fn gradient_bytes(&self, boundary: Boundary) -> Option<Bytes> {
        let own = match boundary.index() {
            0 => self.input_bytes,
            number => {
                let stage = self.stages.get(number - 1)?;
                stage.gradient_bytes.unwrap_or(stage.output_bytes)
            }
        };
        own.checked_add(self.parameter_gradient_bytes(boundary)?)
    }

    /// The gradients of the parameters of all stages behind a boundary; `None` when the chain is shorter.
    pub fn parameter_gradient_bytes(&self, boundary: Boundary) -> Option<Bytes> {
        self.behind.get(boundary.index()).copied()
    }

    /// The time no plan can beat: every stage once forward and once back, each under its fastest option.
    pub fn lower_bound(&self) -> Nanos {
        let fastest = |stage: &StageProfile| {
            let own = Nanos::checked_sum([stage.forward_ns, stage.backward_ns]);
            let options = stage
                .options
                .iter()
                .map(|option| Nanos::checked_sum([option.forward_ns, option.backward_ns]));
            options.chain([own]).flatten().min().unwrap_or_default()
        };
        self.stages.iter().map(fastest).sum()
    }

    /// What a plan must match: model and device, and of every stage its name, output, tape, options and whether it is
    /// pinned. Times and workspace are left out, because they change from one measurement to the next; the simulator
    /// judges a plan anew whenever it is used.
    pub fn fingerprint(&self) -> String {
        let mut hash = Xxh3::new();
        let mut text = |text: &str| {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        };
        text(&self.model);
        text(&self.device);
        text(&self.input_bytes.get().to_string());
        for stage in &self.stages {
            text(&stage.name);
            text(&format!(
                "{} {} {} {}",
                stage.output_bytes.get(),
                stage.tape_bytes.get(),
                stage.pinned,
                stage.options.len()
            ));
            if !is_zero(&stage.parameter_gradient_bytes) {
                text(&stage.parameter_gradient_bytes.get().to_string());
            }
            if !is_zero(&stage.passed_bytes) {
                text(&format!("passed {}", stage.passed_bytes.get()));
            }
            for option in &stage.options {
                text(option.name.as_str());
                text(&option.tape_bytes.get().to_string());
            }
        }
        format!("xxh3-128:{:032x}", hash.digest128())
    }
}

fn unique<'a>(names: impl Iterator<Item = &'a Name>, among: impl Fn() -> String) -> Result<(), ProfileError> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(ProfileError::NamedTwice { name: name.clone(), among: among() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"format": "rekindle.profile/1", "model": "gpt", "device": "flex", "input_bytes": 262144,
 "stages": [{"name": "block.0", "output_bytes": 262144, "tape_bytes": 8388608,
             "forward_ns": 1200000, "backward_ns": 2500000,
             "forward_extra_bytes": 0, "backward_extra_bytes": 0, "pinned": false,
             "options": [{"name": "balanced", "tape_bytes": 5242880, "forward_ns": 1200000, "backward_ns": 2900000}]}],
 "tiers": [{"name": "host", "capacity_bytes": 34359738368,
            "write_bytes_per_second": 12000000000, "read_bytes_per_second": 12000000000}]}"#;

    #[test]
    fn the_documented_example_reads_and_writes_back() {
        let profile = Profile::from_json(GOOD).unwrap();
        assert_eq!(profile.stages().len(), 1);
        assert_eq!(profile.gradient_bytes(Boundary::new(1)), Some(Bytes::new(262_144)));
        assert_eq!(profile.lower_bound(), Nanos::new(3_700_000));
        assert_eq!(Profile::from_json(&profile.to_json()), Ok(profile));
    }

    #[test]
    fn bad_files_are_told_apart() {
        let bad = |from: &str, to: &str| {
            assert!(GOOD.contains(from), "{from}");
            Profile::from_json(&GOOD.replace(from, to)).unwrap_err()
        };
        let message = |from: &str, to: &str| bad(from, to).to_string();
        for end in (0..GOOD.len()).filter(|end| GOOD.is_char_boundary(*end)) {
            let error = Profile::from_json(&GOOD[..end]).unwrap_err();
            assert!(matches!(error, ProfileError::Format(FormatError::Truncated { .. })), "{end}: {error}");
        }
        assert_eq!(
            message("rekindle.profile/1", "rekindle.profile/2"),
            r#"the profile has the format "rekindle.profile/2", expected "rekindle.profile/1""#
        );
        assert!(message("\"model\"", "\"modell\"").contains("unknown field `modell`"));
        assert!(message("1200000,", "-1,").contains("integer `-1`"));
        assert!(message("1200000,", "1e300,").contains("floating point"));
        assert!(message("1200000,", "NaN,").contains("expected value"));
        assert!(message("1200000,", "99999999999999999999999,").contains("expected u64"));
        assert!(message("8388608", "18446744073709551615").contains("more than 2^64"));
        assert!(message("8388608", "1").contains("a tape includes the output"));
        assert!(message("8388608,", "8388608, \"passed_bytes\": 262145,").contains("no more than either"));
        assert!(message("12000000000,", "0,").contains("0 bytes per second"));
        assert!(message("\"block.0\"", "\"\"").contains("empty name"));
        assert!(message("\"balanced\"", "\"two words\"").contains("is not a name"));
        let error = Profile::new("m", "d", Bytes::ZERO, vec![]).unwrap_err();
        assert!(matches!(error, ProfileError::NoStages { .. }));
    }

    #[test]
    fn the_fingerprint_is_of_sizes_not_of_times() {
        let of = |text: &str| Profile::from_json(text).unwrap().fingerprint();
        assert_eq!(of(GOOD), of(&GOOD.replace("2500000", "2600000")));
        assert_ne!(of(GOOD), of(&GOOD.replace("8388608", "8388609")));
        assert_ne!(of(GOOD), of(&GOOD.replace("block.0", "block.1")));
        assert_ne!(of(GOOD), of(&GOOD.replace("flex", "cuda")));
    }
}
