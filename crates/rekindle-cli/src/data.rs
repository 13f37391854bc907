//! What a model learns from, in an order that a number goes on from.

use std::sync::Arc;

use burn::tensor::Device;
use rekindle_models::data::Source;

use crate::measure::Parts;
use crate::size::Size;

/// Examples to learn from, and some that are held out.
pub(crate) struct Data<S> {
    training: Arc<S>,
    held_out: Option<Arc<S>>,
    checksum: String,
    random: fastrand::Rng,
}

// Sources need not be.
impl<S> Clone for Data<S> {
    fn clone(&self) -> Self {
        Self {
            training: Arc::clone(&self.training),
            held_out: self.held_out.clone(),
            checksum: self.checksum.clone(),
            random: self.random.clone(),
        }
    }
}

impl<S: Source> Data<S> {
    /// Examples, those that are held out of them, and something that tells them from others.
    pub(crate) fn new(training: S, held_out: Option<S>, checksum: String) -> Self {
        let (training, held_out) = (Arc::new(training), held_out.map(Arc::new));
        Self { training, held_out, checksum, random: fastrand::Rng::with_seed(0) }
    }

    /// The same, drawn from a seed.
    pub(crate) fn seeded(self, seed: u64) -> Self {
        self.at(seed)
    }

    /// How far the batches are: a number that [`Data::at`] goes on from.
    pub(crate) fn position(&self) -> u64 {
        self.random.get_seed()
    }

    /// The same examples, from a position on.
    pub(crate) fn at(mut self, position: u64) -> Self {
        self.random = fastrand::Rng::with_seed(position);
        self
    }

    /// Whether some are held out.
    pub(crate) fn holds_out(&self) -> bool {
        self.held_out.is_some()
    }

    /// A number that tells data apart.
    pub(crate) fn checksum(&self) -> &str {
        &self.checksum
    }

    /// The next batch, in its parts.
    pub(crate) fn batch(&mut self, size: &Size, device: &Device) -> Parts<S::Batch> {
        Parts::new(&self.training.draw(size.batch, &mut self.random, device), size.micro_batches)
    }

    /// Examples that no batch has, if some are held out: always the same.
    pub(crate) fn held_out(&self, examples: usize, device: &Device) -> Option<S::Batch> {
        let random = &mut fastrand::Rng::with_seed(HELD_OUT);
        self.held_out.as_ref().map(|held_out| held_out.draw(examples, random, device))
    }
}

/// What examples that are held out are drawn from.
const HELD_OUT: u64 = 0x5EED_0FF0_7E57;
