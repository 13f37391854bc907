//! What can be asked of an estimate.

use clap::{Args, ValueEnum};
use rekindle_models::estimate::{
    Asked, AttentionKind, Changes, EstimateError, Keeping, Parallel, Precision, Setting, presets,
};
use rekindle_plan::{Bytes, nearest};

use crate::failure::Failure;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle estimate --list                        the models there are
  rekindle estimate llama-7b --fit 24GiB          the largest batch, the longest sequence
  rekindle estimate gpt3-175b --tensor-parallel 8 --pipeline 8 --sequence-parallel
  rekindle estimate gpt3-175b --tensor-parallel 8 --partition-checkpoints
  rekindle estimate llama-70b --length 4096 --attention linear --zero 3 --data-parallel 64
  rekindle estimate gpt2 --layers 48 --width 2048 --heads 32
  rekindle estimate resnet-1001 --batch 128 --json")]
pub(crate) struct EstimateArguments {
    /// The model to begin with; the flags below change it
    #[arg(value_name = "MODEL", default_value = "gpt2")]
    pub(crate) model: String,
    /// List the models there are
    #[arg(long)]
    pub(crate) list: bool,
    /// Layers
    #[arg(long, value_name = "N")]
    pub(crate) layers: Option<u64>,
    /// Width of the residual stream
    #[arg(long, value_name = "N")]
    pub(crate) width: Option<u64>,
    /// Attention heads; they divide the width
    #[arg(long, value_name = "N")]
    pub(crate) heads: Option<u64>,
    /// Heads of keys and values, shared by several of the others [default: as many as heads]
    #[arg(long, value_name = "N")]
    pub(crate) key_value_heads: Option<u64>,
    /// Width inside of the perceptron [default: four times the width]
    #[arg(long, value_name = "N")]
    pub(crate) hidden: Option<u64>,
    /// Words of the vocabulary
    #[arg(long, value_name = "N")]
    pub(crate) vocabulary: Option<u64>,
    /// Sequences or pictures in a step, on one rank
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) batch: u64,
    /// Tokens of a sequence, or pixels along a side of a picture [default: as the model is usually trained]
    #[arg(long, value_name = "N")]
    pub(crate) length: Option<u64>,
    /// What activations are made of: bf16, f16 or f32
    #[arg(long, value_name = "TYPE", default_value = "bf16")]
    pub(crate) precision: Precision,
    /// Whether attention keeps every pair of positions, or runs in linear memory
    #[arg(long, value_enum, default_value = "stored")]
    pub(crate) attention: AttentionArgument,
    /// Whose operations: an ordinary framework's, or rekindle's nodes
    #[arg(long, value_enum, default_value = "framework")]
    pub(crate) keeping: KeepingArgument,
    /// Train without dropout, where the model usually has some
    #[arg(long)]
    pub(crate) no_dropout: bool,
    /// Recompute from every K-th layer on, as a row of the table [default: about the root of the layers]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) every: Option<u64>,
    /// What data-parallel ranks divide: 1 the optimizer's state, 2 gradients too, 3 weights too
    #[arg(long, value_name = "STAGE", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=3))]
    pub(crate) zero: u8,
    /// Data-parallel ranks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) data_parallel: u64,
    /// Ranks that a layer is split over
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) tensor_parallel: u64,
    /// Cut along the sequence what a layer does not split
    #[arg(long)]
    pub(crate) sequence_parallel: bool,
    /// Ranks that the layers are spread over, each with a part of a batch on its way
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) pipeline: u64,
    /// How many parts of a batch, of --batch each, go through a pipeline in a step [default: as many as ranks]
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) micro_batches: Option<u64>,
    /// Let each rank keep its part of boundaries that several ranks have, as those of --tensor-parallel do
    #[arg(long)]
    pub(crate) partition_checkpoints: bool,
    /// Say what fits into this memory: the largest batch, the longest sequence
    #[arg(long, value_name = "BYTES")]
    pub(crate) fit: Option<Bytes>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AttentionArgument {
    Stored,
    Linear,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KeepingArgument {
    Framework,
    Nodes,
}

impl EstimateArguments {
    /// What was asked, put together.
    pub(crate) fn asked(&self) -> Result<Asked, Failure> {
        let usual = Asked::preset(&self.model).ok_or_else(|| self.unknown())?;
        let changes = Changes {
            layers: self.layers,
            width: self.width,
            heads: self.heads,
            key_value_heads: self.key_value_heads,
            hidden: self.hidden,
            vocabulary: self.vocabulary,
        };
        let usual = usual.with(&changes).map_err(refused)?;
        let setting = Setting {
            batch: self.batch,
            length: self.length.unwrap_or(usual.setting.length),
            precision: self.precision,
            dropout: usual.setting.dropout && !self.no_dropout,
            attention: match self.attention {
                AttentionArgument::Stored => AttentionKind::Stored,
                AttentionArgument::Linear => AttentionKind::Linear,
            },
            keeping: match self.keeping {
                KeepingArgument::Framework => Keeping::Framework,
                KeepingArgument::Nodes => Keeping::Nodes,
            },
            tensor_parallel: self.tensor_parallel,
            sequence_parallel: self.sequence_parallel,
        };
        let parallel = Parallel {
            zero: self.zero,
            data: self.data_parallel,
            pipeline: self.pipeline,
            micro_batches: self.micro_batches,
            partition_checkpoints: self.partition_checkpoints,
        };
        let asked = Asked { setting, parallel, every: self.every, ..usual };
        asked.check().map_err(refused)?;
        Ok(asked)
    }

    fn unknown(&self) -> Failure {
        let names: Vec<&str> = presets().map(|(name, _)| name).collect();
        let hint = match nearest(&self.model, names.iter().copied()) {
            Some(name) => format!("did you mean `{name}`? --list shows all"),
            None => format!("expected one of {}", names.join(", ")),
        };
        Failure::request(anyhow::anyhow!("there is no model named `{}`", self.model), hint)
    }
}

/// What is asked for and cannot be counted, by the flags that ask for it.
fn refused(error: EstimateError) -> Failure {
    match error {
        EstimateError::NothingToChange { .. } => {
            Failure::request(error, "leave them out, or begin with a transformer such as gpt2")
        }
        EstimateError::OneRankOnly { .. } => {
            Failure::request(error, "leave --tensor-parallel, --pipeline and --keeping out")
        }
        EstimateError::MoreRanksThanLayers { pipeline, layers } => Failure::request(
            anyhow::anyhow!("--pipeline {pipeline} is given, but there are {layers} layers"),
            "give --pipeline no more ranks than there are layers",
        ),
        EstimateError::MoreTokensThanPositions { model, length, positions } => Failure::request(
            anyhow::anyhow!("--length {length} is given, but `{model}` has {positions} positions"),
            format!("give --length {positions} or less, or a model with rotary positions such as llama-7b"),
        ),
        other => super::refused(other),
    }
}
