//! How a model is cut into stages.

use burn::tensor::{Int, Tensor};
use rekindle::{Region, Staged};
use rekindle_models::{Gpt, GptBatch, Trainable};

/// What a stage is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Cut {
    // A block.
    Blocks,
    // A part of a block: projections, attention, activation and so on. (A doc comment would make every help a long one.)
    Parts,
}

/// Which cut is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Cutting {
    // Whichever has the better plan.
    #[default]
    Auto,
    Blocks,
    Parts,
}

impl Cutting {
    /// The cuts to plan, those of fewer stages first.
    pub(crate) fn cuts(self) -> &'static [Cut] {
        match self {
            Self::Auto => &[Cut::Blocks, Cut::Parts],
            Self::Blocks => &[Cut::Blocks],
            Self::Parts => &[Cut::Parts],
        }
    }
}

/// A model in stages of one kind or the other. Both give the same loss and gradients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CutModel<'a> {
    pub(crate) model: &'a Gpt,
    pub(crate) cut: Cut,
}

impl Cut {
    pub(crate) fn of(self, model: &Gpt) -> CutModel<'_> {
        CutModel { model, cut: self }
    }
}

impl Staged for CutModel<'_> {
    type Batch = GptBatch;
    type Input = Tensor<2, Int>;
    type Output = Tensor<1>;

    fn stages(&self, batch: &GptBatch) -> (Region<Tensor<2, Int>, Tensor<1>>, Tensor<2, Int>) {
        match self.cut {
            Cut::Blocks => self.model.stages(batch),
            Cut::Parts => self.model.fine().stages(batch),
        }
    }

    fn name(&self) -> String {
        self.model.name()
    }
}
