//! The models that the command knows by name.

mod gpt;
mod pairs;
mod recurrent;
mod vision;

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use clap::Args;
use rekindle::Staged;
use rekindle_models::Trainable;
use rekindle_models::data::Source;
use rekindle_models::weights::{self, WeightsError};

use crate::data::Data;
use crate::failure::Failure;
use crate::size::Size;

/// A model's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ModelName {
    #[default]
    Gpt,
    Llama,
    Vit,
    Resnet,
    Lstm,
    Gru,
    TwoTower,
}

// What to learn from.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct DataArguments {
    /// What to learn from: a text, a folder of images, a table of sequences, a folder of images with texts (docs/models.md)
    /// [default: examples inside the command]
    #[arg(long, value_name = "PATH", help_heading = "Data")]
    pub(crate) data: Option<PathBuf>,
    /// Do without images that are broken or of another size than most, and name them, instead of stopping
    #[arg(long, requires = "data", help_heading = "Data")]
    pub(crate) skip_broken: bool,
    // Nobody looks at the data: any will do.
    #[arg(skip)]
    unread: bool,
}

impl DataArguments {
    /// For who asks for shapes only, as a trace does: no text is too short for that.
    pub(crate) fn unread() -> Self {
        Self { unread: true, ..Self::default() }
    }
}

/// What a model is given.
pub(crate) type BatchOf<M> = <M as Staged>::Batch;

/// A model of some size, before it is built.
pub(crate) trait Kind: Sync {
    type Model: Trainable;
    type Source: Source<Batch = BatchOf<Self::Model>>;
    /// What an example is made of, such as a token.
    const UNIT: &'static str;
    /// Many of them.
    const UNITS: &'static str;

    /// The model.
    fn build(&self, device: &Device) -> Result<Self::Model, Failure>;

    /// The same of Burn's modules alone, if there is one.
    fn of_burns_modules(&self) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }

    /// A batch without anything in it, for tracing.
    fn blank(&self, examples: usize, device: &Device) -> BatchOf<Self::Model>;

    /// What it learns from: the user's files, or made-up examples.
    fn data(&self) -> Data<Self::Source>;

    /// How many units an example has.
    fn units(&self) -> usize;

    /// How many coarse stages it has.
    fn stages(&self) -> usize;

    /// What no strategy can do without: weights, gradients and two moments, and the least of activations.
    fn least_bytes(&self) -> u128;

    /// Writes the weights to a safetensors file.
    fn save(&self, path: &Path, model: &Self::Model) -> Result<(), WeightsError> {
        weights::save_module(path, model)
    }

    /// The model, with the weights of a safetensors file.
    fn load(&self, path: &Path, model: Self::Model, device: &Device) -> Result<Self::Model, WeightsError> {
        let _ = device;
        weights::load_module(path, model)
    }

    /// What people read in a result: the model's shape, without batch and precision.
    fn describe(&self) -> String;
}

/// Something to do with a model, whichever it is.
pub(crate) trait Job {
    type Made;

    fn run<K: Kind>(self, kind: &K) -> Result<Self::Made, Failure>;
}

/// Does a job with the model of this size, on what is to be learned from.
pub(crate) fn with_model<J: Job>(size: &Size, data: &DataArguments, job: J) -> Result<J::Made, Failure> {
    match size.model {
        ModelName::Gpt | ModelName::Llama => job.run(&gpt::Language::of(size, data)?),
        ModelName::Vit => job.run(&vision::Patched::of(size, data)?),
        ModelName::Resnet => job.run(&vision::Residual::of(size, data)?),
        ModelName::Lstm | ModelName::Gru => job.run(&recurrent::Recurrence::of(size, data)?),
        ModelName::TwoTower => job.run(&pairs::Towers::of(size, data)?),
    }
}
