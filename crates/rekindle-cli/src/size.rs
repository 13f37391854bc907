//! The size of a model and of a step.

use clap::{Args, ValueEnum};
use rekindle::training::Precision;
use rekindle::{Bytes, memory};

use crate::cut::Cutting;
use crate::failure::Failure;
use crate::measure::Recipe;
use crate::meter;
use crate::models::{DataArguments, Job, Kind, ModelName, with_model};
use crate::report::counted;
use crate::strategy::Strategy;

// What can be said of a model and a step. What is not said is as usual for the model and the command.
#[derive(Clone, Debug, Args)]
pub(crate) struct SizeArguments {
    /// Which model; sizes that are not given are usual for it (docs/models.md)
    #[arg(long, value_enum, default_value = "gpt", value_name = "NAME", help_heading = "Model")]
    model: ModelName,
    /// Blocks of a transformer, layers of a resnet
    #[arg(long, value_name = "N", help_heading = "Model")]
    layers: Option<usize>,
    /// Width of the residual stream, of a resnet's stem, of a recurrent network's state
    #[arg(long, value_name = "N", help_heading = "Model")]
    width: Option<usize>,
    /// Attention heads; they divide the width
    #[arg(long, value_name = "N", help_heading = "Model")]
    heads: Option<usize>,
    /// Heads of keys and values, if queries share them; they divide the heads
    #[arg(long, value_name = "N", help_heading = "Model")]
    key_heads: Option<usize>,
    /// Fraction of activations dropped
    #[arg(long, value_name = "P", allow_negative_numbers = true, help_heading = "Model")]
    dropout: Option<f64>,
    /// Burn's modules alone, to compare with: they keep more and take more time
    #[arg(long, help_heading = "Model")]
    burn: bool,
    /// Type of activations and checkpoints: f32, bf16 or f16; weights are f32
    #[arg(long, default_value_t, value_name = "TYPE", help_heading = "Model")]
    precision: Precision,
    /// Tokens or steps in a sequence
    #[arg(long, value_name = "N", help_heading = "Model")]
    sequence: Option<usize>,
    /// Pixels along a side of an image; those of a folder are resized
    #[arg(long, value_name = "N", help_heading = "Model")]
    pixels: Option<usize>,
    /// Pixels along a side of a patch
    #[arg(long, value_name = "N", help_heading = "Model")]
    patch: Option<usize>,
    /// Examples in a step
    #[arg(long, value_name = "N", help_heading = "Step")]
    batch: Option<usize>,
    /// Take the batch in so many parts, one after the other, and add up their gradients
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = "Step")]
    micro_batches: usize,
    /// Shorten all gradients together to this length
    #[arg(long, value_name = "NORM", allow_negative_numbers = true, help_heading = "Step")]
    clip_norm: Option<f64>,
    /// What weights, batches and dropout are drawn from
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = "Step")]
    seed: u64,
}

/// What a model is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// To be trained in a minute or two.
    Training,
    /// The figures that are given for it.
    Figures,
}

/// The size of a model and of a step, all said.
#[derive(Clone, Debug)]
pub(crate) struct Size {
    pub(crate) model: ModelName,
    pub(crate) layers: usize,
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) key_heads: Option<usize>,
    pub(crate) dropout: f64,
    pub(crate) burn: bool,
    pub(crate) precision: Precision,
    pub(crate) sequence: usize,
    /// What was asked for.
    pub(crate) asked_sequence: Option<usize>,
    pub(crate) pixels: usize,
    pub(crate) asked_pixels: Option<usize>,
    pub(crate) patch: usize,
    /// Flags of other models that were given.
    not_its_own: Vec<&'static str>,
    pub(crate) batch: usize,
    pub(crate) micro_batches: usize,
    pub(crate) clip_norm: Option<f64>,
    pub(crate) seed: u64,
}

/// What a model has when nothing is said; 0 for what it has not.
#[derive(Default)]
struct Usual {
    layers: usize,
    width: usize,
    heads: usize,
    dropout: Option<f64>,
    sequence: usize,
    pixels: usize,
    patch: usize,
    batch: usize,
}

impl Usual {
    fn of(model: ModelName, purpose: For) -> Self {
        let figures = purpose == For::Figures;
        let either = |figure: usize, training: usize| if figures { figure } else { training };
        let language = Self {
            layers: either(24, 8),
            width: 128,
            heads: 4,
            sequence: 128,
            batch: either(4, 8),
            ..Self::default()
        };
        match model {
            ModelName::Gpt => Self { dropout: Some(0.1), ..language },
            ModelName::Llama => Self { dropout: Some(0.0), ..language },
            ModelName::Vit => Self {
                layers: either(12, 4),
                width: either(128, 64),
                heads: 4,
                dropout: Some(0.0),
                pixels: either(64, 32),
                patch: 4,
                batch: either(4, 16),
                ..Self::default()
            },
            ModelName::Resnet => Self {
                layers: either(164, 29),
                width: either(16, 8),
                pixels: 32,
                batch: 16,
                ..Self::default()
            },
            ModelName::Lstm | ModelName::Gru => Self {
                width: either(128, 64),
                sequence: either(1_000, 100),
                batch: either(8, 16),
                ..Self::default()
            },
            ModelName::TwoTower => Self {
                layers: either(6, 2),
                width: either(128, 64),
                heads: 4,
                sequence: 64,
                pixels: either(32, 16),
                patch: 4,
                batch: either(32, 64),
                ..Self::default()
            },
        }
    }
}

impl ModelName {
    /// How far a step goes when nothing is said.
    pub(crate) fn usual_learning_rate(self) -> f64 {
        match self {
            Self::Gpt | Self::Llama | Self::TwoTower => 1e-3,
            Self::Vit => 3e-3,
            Self::Resnet | Self::Lstm | Self::Gru => 1e-2,
        }
    }

    /// How many steps show that it learns.
    pub(crate) fn usual_steps(self) -> u32 {
        match self {
            Self::Gpt | Self::Llama | Self::Resnet | Self::TwoTower => 60,
            Self::Vit => 150,
            Self::Lstm | Self::Gru => 200,
        }
    }
}

impl SizeArguments {
    /// What was asked for, and what is usual where nothing was, if it can be.
    pub(crate) fn size(&self, purpose: For) -> Result<Size, Failure> {
        let usual = Usual::of(self.model, purpose);
        let asked = [
            ("--layers", self.layers, usual.layers),
            ("--width", self.width, usual.width),
            ("--heads", self.heads, usual.heads),
            ("--sequence", self.sequence, usual.sequence),
            ("--pixels", self.pixels, usual.pixels),
            ("--patch", self.patch, usual.patch),
        ];
        let language = matches!(self.model, ModelName::Gpt | ModelName::Llama);
        let of_nodes = language || self.model == ModelName::Vit;
        let others = [
            ("--key-heads", self.key_heads.is_some() && !language),
            ("--dropout", self.dropout.is_some() && usual.dropout.is_none()),
            ("--burn", self.burn && !(of_nodes || self.model == ModelName::Resnet)),
            ("--precision", self.precision != Precision::F32 && !of_nodes),
        ];
        let not_its_own = asked
            .iter()
            .map(|(flag, asked, usual)| (*flag, asked.is_some() && *usual == 0))
            .chain(others)
            .filter_map(|(flag, wrong)| wrong.then_some(flag))
            .collect();
        let size = Size {
            model: self.model,
            layers: self.layers.unwrap_or(usual.layers),
            width: self.width.unwrap_or(usual.width),
            heads: self.heads.unwrap_or(usual.heads),
            key_heads: self.key_heads,
            dropout: self.dropout.or(usual.dropout).unwrap_or(0.0),
            burn: self.burn,
            precision: self.precision,
            sequence: self.sequence.unwrap_or(usual.sequence),
            asked_sequence: self.sequence,
            pixels: self.pixels.unwrap_or(usual.pixels),
            asked_pixels: self.pixels,
            patch: self.patch.unwrap_or(usual.patch),
            not_its_own,
            batch: self.batch.unwrap_or(usual.batch),
            micro_batches: self.micro_batches,
            clip_norm: self.clip_norm,
            seed: self.seed,
        };
        size.check(&usual)?;
        Ok(size)
    }
}

impl Size {
    /// Refuses what no model has.
    fn check(&self, usual: &Usual) -> Result<(), Failure> {
        let refuse = |what: String, hint: &str| Err(Failure::request(anyhow::Error::msg(what), hint));
        let name = self.model.to_possible_value();
        let name = name.as_ref().map_or("", |name| name.get_name());
        if let Some(flag) = self.not_its_own.first() {
            let what = format!("{flag} is given, but a {name} has none of that");
            return refuse(what, "leave it out, or choose another --model");
        }
        let counts = [
            ("layers", self.layers, usual.layers),
            ("width", self.width, usual.width),
            ("heads", self.heads, usual.heads),
            ("batch", self.batch, usual.batch),
            ("sequence", self.sequence, usual.sequence),
            ("pixels", self.pixels, usual.pixels),
            ("patch", self.patch, usual.patch),
        ];
        // Far beyond any machine this runs on, and far below where a product of two overflows.
        let largest = 1 << 24;
        for (name, count, _) in counts.into_iter().filter(|(_, _, usual)| *usual > 0) {
            if !(1..=largest).contains(&count) {
                let what = format!("--{name} is {count}, expected 1 to {largest}");
                return refuse(what, "give a count in that range");
            }
        }
        if !(0.0..1.0).contains(&self.dropout) {
            let what = format!("--dropout is {}, expected 0 or more and less than 1", self.dropout);
            return refuse(what, "0.1 is usual, 0 turns dropout off");
        }
        let micro = self.micro_batches;
        if micro == 0 || !self.batch.is_multiple_of(micro) {
            let what = format!("--micro-batches is {micro}, which does not divide --batch {}", self.batch);
            return refuse(
                what,
                "give a number of parts that divides the batch: a plan is for parts of one size",
            );
        }
        if let Some(norm) = self.clip_norm.filter(|norm| !(norm.is_finite() && *norm > 0.0)) {
            let what = format!("--clip-norm is {norm}, expected a number above 0");
            return refuse(what, "1 is usual; leave it out to clip nothing");
        }
        Ok(())
    }

    /// Refuses heads that do not divide the width.
    pub(crate) fn check_heads(&self) -> Result<(), Failure> {
        match self.width.is_multiple_of(self.heads) {
            true => Ok(()),
            false => Err(Failure::request(
                anyhow::anyhow!("--heads is {}, which does not divide --width {}", self.heads, self.width),
                "choose a number of heads that divides the width",
            )),
        }
    }

    /// Refuses strategies that cannot run on a model.
    pub(crate) fn check_strategies(kind: &impl Kind, strategies: &[Strategy]) -> Result<(), Failure> {
        for strategy in strategies {
            if let Strategy::Rule(rule) = strategy
                && let Err(error) = rule.actions(kind.stages())
            {
                return Err(Failure::request(error, "choose another strategy, or fewer --layers"));
            }
        }
        Ok(())
    }

    /// Refuses a model that this machine cannot hold, or that cannot run under these strategies.
    pub(crate) fn check_room(kind: &impl Kind, strategies: &[Strategy]) -> Result<(), Failure> {
        Self::check_strategies(kind, strategies)?;
        // What a GPU has free, Burn does not tell.
        let free = if meter::is_pool() { None } else { memory::free() };
        let needed = kind.least_bytes();
        match free.filter(|free| u128::from(free.get()) < needed) {
            None => Ok(()),
            Some(free) => {
                let needed = Bytes::new(u64::try_from(needed).unwrap_or(u64::MAX));
                Err(Failure::request(
                    anyhow::anyhow!("this model needs at least {needed}, but {free} of memory are available"),
                    "make --width, --layers, --batch or --sequence smaller",
                ))
            }
        }
    }

    /// The cut to plan. Burn's dropout starts anew in every stage and would draw other numbers in parts of blocks than in
    /// blocks: gradients could not be compared with plain's.
    pub(crate) fn cutting(&self, asked: Cutting) -> Result<Cutting, Failure> {
        match asked {
            _ if !self.burn || self.dropout == 0.0 => Ok(asked),
            Cutting::Auto | Cutting::Blocks => Ok(Cutting::Blocks),
            Cutting::Parts => Err(Failure::request(
                anyhow::anyhow!(
                    "--cut parts is given, but Burn's dropout draws other numbers in parts than in blocks"
                ),
                "leave --cut out, give --dropout 0, or leave --burn out",
            )),
        }
    }

    /// The same, with a batch in so many parts.
    #[cfg(feature = "mpi")]
    pub(crate) fn in_parts(&self, micro_batches: usize) -> Self {
        Self { micro_batches, ..self.clone() }
    }

    /// How its steps are taken.
    pub(crate) fn recipe(&self) -> Recipe {
        // Small gradients do not vanish under it, and none of a model at its start becomes infinite.
        let scale = if self.precision == Precision::F16 { 1024.0 } else { 1.0 };
        Recipe { seed: self.seed, first_part: 0, scale, clip: self.clip_norm }
    }

    /// How many coarse stages the model has.
    pub(crate) fn stages(&self) -> Result<usize, Failure> {
        struct Stages;
        impl Job for Stages {
            type Made = usize;
            fn run<K: Kind>(self, kind: &K) -> Result<usize, Failure> {
                Ok(kind.stages())
            }
        }
        with_model(self, &DataArguments::unread(), Stages)
    }

    /// What people read in a result.
    pub(crate) fn describe<K: Kind>(&self, kind: &K) -> String {
        format!(
            "{}, batch {}{}{}{}{}{}{}",
            kind.describe(),
            self.batch,
            match self.micro_batches {
                1 => String::new(),
                parts => format!(" in {parts} parts"),
            },
            match kind.units() {
                1 => String::new(),
                many => format!(", {}", counted(many, K::UNIT)),
            },
            match self.model {
                ModelName::Gpt | ModelName::Llama | ModelName::Vit => format!(", dropout {}", self.dropout),
                _ => String::new(),
            },
            match self.precision {
                Precision::F32 => String::new(),
                narrow => format!(", {narrow}"),
            },
            self.clip_norm.map_or_else(String::new, |norm| format!(", clipped to {norm}")),
            if self.burn { ", Burn's modules" } else { "" }
        )
    }
}
