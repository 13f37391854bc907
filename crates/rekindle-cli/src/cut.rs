//! How a model is cut into stages.

use burn::tensor::Tensor;
use rekindle::{Region, Staged};
use rekindle_models::Trainable;

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
#[derive(Debug)]
pub(crate) struct CutModel<'a, M> {
    pub(crate) model: &'a M,
    pub(crate) cut: Cut,
}

// Models need not be.
impl<M> Clone for CutModel<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for CutModel<'_, M> {}

impl std::fmt::Display for Cut {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Blocks => "blocks",
            Self::Parts => "parts",
        })
    }
}

impl Cut {
    pub(crate) fn of<M>(self, model: &M) -> CutModel<'_, M> {
        CutModel { model, cut: self }
    }
}

impl<M: Trainable> Staged for CutModel<'_, M> {
    type Batch = M::Batch;
    type Input = M::Input;
    type Output = Tensor<1>;

    fn stages(&self, batch: &M::Batch) -> (Region<M::Input, Tensor<1>>, M::Input) {
        match self.cut {
            Cut::Blocks => self.model.stages(batch),
            Cut::Parts => self.model.fine_stages(batch),
        }
    }

    fn name(&self) -> String {
        self.model.name()
    }
}
