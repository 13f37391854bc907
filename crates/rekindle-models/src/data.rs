//! What models learn from: examples that are drawn by chance, and made-up ones that can really be learned.

mod captions;
mod folder;
mod recall;
mod shapes;
mod table;
mod text;

use burn::tensor::Device;

use crate::Batch;

pub use captions::Captions;
pub use folder::{FolderError, FolderReader, ImageFolder, OnBroken, PairFolder, Skipped};
pub use recall::Recall;
pub use shapes::{Shapes, ShapesError};
pub use table::{SequenceTable, TableError, TableShape};
pub use text::{Text, TextTooShort};

/// Examples of which any number can be drawn, the same ones from the same random numbers.
pub trait Source {
    /// What a model is given.
    type Batch: Batch;

    /// So many examples.
    fn draw(&self, examples: usize, random: &mut fastrand::Rng, device: &Device) -> Self::Batch;
}
