//! A model as numbers.

use rekindle_plan::{Bytes, Nanos, Profile, ProfileError, StageProfile};

use crate::transformer::Ends;
use crate::{Parallel, ResNet, Setting, Transformer};

/// A model that can be counted.
#[derive(Clone, Debug, PartialEq)]
pub enum Architecture {
    /// Attention and perceptrons: GPT, BERT, Llama, ViT.
    Transformer(Transformer),
    /// Convolutions with residuals.
    ResNet(ResNet),
}

/// Why there is no count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EstimateError {
    /// A number that must not be 0 is.
    #[error("{what} is 0, expected at least 1")]
    Zero {
        /// Which number.
        what: &'static str,
    },
    /// A number is larger than can be counted with.
    #[error("{what} is {found}, expected at most {most}")]
    TooMany {
        /// Which number.
        what: &'static str,
        /// How large it is.
        found: u64,
        /// How large it may be.
        most: u64,
    },
    /// One number does not divide another.
    #[error("{what} of {found} cannot be divided by {by_what} of {by}")]
    Indivisible {
        /// What is to be divided.
        what: &'static str,
        /// How large it is.
        found: u64,
        /// By what.
        by_what: &'static str,
        /// How large that is.
        by: u64,
    },
    /// A model that has none of the numbers that are to change.
    #[error("`{model}` has no layers, width or heads to change")]
    NothingToChange {
        /// The model.
        model: String,
    },
    /// A model that is not counted over ranks, nor with our nodes.
    #[error("`{model}` is counted on one rank and as a framework runs it only")]
    OneRankOnly {
        /// The model.
        model: String,
    },
    /// Layers cannot be spread that far.
    #[error("a pipeline of {pipeline} ranks is asked for, but there are {layers} layers")]
    MoreRanksThanLayers {
        /// The ranks asked for.
        pipeline: u64,
        /// The layers there are.
        layers: u64,
    },
    /// Learned positions end.
    #[error("a length of {length} is asked for, but `{model}` has {positions} positions")]
    MoreTokensThanPositions {
        /// The model.
        model: String,
        /// The length asked for.
        length: u64,
        /// The positions there are.
        positions: u64,
    },
    /// The sizes do not fit into 64 bits.
    #[error("{source}")]
    Profile {
        /// What is wrong with the profile.
        #[from]
        source: ProfileError,
    },
}

impl Architecture {
    /// How many weights it has.
    pub fn parameters(&self) -> u64 {
        match self {
            Self::Transformer(model) => model.parameters(),
            Self::ResNet(model) => model.parameters(),
        }
    }

    /// The tokens or pixels it is usually trained with.
    pub fn usual_length(&self) -> u64 {
        match self {
            Self::Transformer(model) => model.length,
            Self::ResNet(model) => model.pixels,
        }
    }

    /// Whether it is usually trained with dropout.
    pub fn has_dropout(&self) -> bool {
        matches!(self, Self::Transformer(model) if model.dropout)
    }

    /// How many weights a rank of a pipeline has.
    pub(crate) fn parameters_on(&self, rank: u64, parallel: &Parallel) -> u64 {
        let ranks = parallel.pipeline.max(1);
        match self {
            Self::Transformer(model) => {
                let layers = parallel.layers(rank, model.layers);
                Transformer { layers, ..model.clone() }.parameters_on(Ends::of(rank, ranks))
            }
            Self::ResNet(model) => model.parameters(),
        }
    }

    /// What it has of what layers are counted in.
    pub fn layers(&self) -> u64 {
        match self {
            Self::Transformer(model) => model.layers,
            Self::ResNet(model) => model.depth(),
        }
    }

    /// A step in stages of whole layers.
    ///
    /// # Errors
    /// When the numbers do not go together, or do not fit into 64 bits.
    pub fn blocks(&self, setting: &Setting) -> Result<Profile, EstimateError> {
        self.blocks_on(setting, Ends::BOTH)
    }

    /// The same on a rank that has some of the ends.
    pub(crate) fn blocks_on(&self, setting: &Setting, ends: Ends) -> Result<Profile, EstimateError> {
        self.check(setting)?;
        match self {
            Self::Transformer(model) => model.blocks(setting, ends),
            Self::ResNet(model) => model.blocks(setting),
        }
    }

    /// A step in stages of parts of layers, where there are any.
    ///
    /// # Errors
    /// As [`blocks`](Self::blocks).
    pub fn parts(&self, setting: &Setting) -> Result<Option<Profile>, EstimateError> {
        self.parts_on(setting, Ends::BOTH)
    }

    /// The same on a rank that has some of the ends.
    pub(crate) fn parts_on(&self, setting: &Setting, ends: Ends) -> Result<Option<Profile>, EstimateError> {
        self.check(setting)?;
        match self {
            Self::Transformer(model) => model.parts(setting, ends).map(Some),
            Self::ResNet(_) => Ok(None),
        }
    }

    fn check(&self, setting: &Setting) -> Result<(), EstimateError> {
        let numbers = [
            ("the batch", setting.batch),
            ("the length", setting.length),
            ("the tensor parallel degree", setting.tensor_parallel),
        ];
        match numbers.into_iter().find(|(_, number)| *number == 0) {
            Some((what, _)) => Err(EstimateError::Zero { what }),
            None => Ok(()),
        }
    }
}

/// Sizes and work of a stage while they are added up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Part {
    pub(crate) name: String,
    /// What its backward reads beside its input and its output.
    pub(crate) inside: u64,
    /// What it makes.
    pub(crate) made: u64,
    /// What it hands on of its input.
    pub(crate) passed: u64,
    pub(crate) flops: u64,
    /// The work that goes into its output alone.
    pub(crate) unread: u64,
    /// Alive only while the backward runs.
    pub(crate) workspace: u64,
}

impl Part {
    /// The part as a stage. Work is time on a device of a teraflop a second, with a backward of twice the forward.
    pub(crate) fn stage(&self) -> StageProfile {
        let time = |flops: u64| Nanos::new(flops / 1_000);
        let output = self.made.saturating_add(self.passed);
        StageProfile {
            name: self.name.clone(),
            output_bytes: Bytes::new(output),
            tape_bytes: Bytes::new(self.inside.saturating_add(output)),
            passed_bytes: Bytes::new(self.passed),
            forward_ns: time(self.flops),
            backward_ns: time(self.flops.saturating_mul(2)),
            unread_ns: time(self.unread),
            backward_extra_bytes: Bytes::new(self.workspace),
            ..StageProfile::default()
        }
    }

    /// Parts in a row as one: what lies between them is inside.
    pub(crate) fn joined(name: String, parts: &[Self]) -> Self {
        let sum = |of: fn(&Self) -> u64| parts.iter().map(of).fold(0, u64::saturating_add);
        let last = parts.last().cloned().unwrap_or_default();
        let made = last.made.saturating_add(last.passed);
        Self {
            name,
            inside: sum(|part| part.inside.saturating_add(part.made)).saturating_sub(last.made),
            made,
            passed: 0,
            flops: sum(|part| part.flops),
            unread: last.unread,
            workspace: parts.iter().map(|part| part.workspace).max().unwrap_or(0),
        }
    }
}
