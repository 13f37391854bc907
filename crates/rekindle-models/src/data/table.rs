//! Sequences from a table in a file.

mod error;
mod records;
mod rows;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests;

use std::io::Read;
use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

pub use error::TableError;

use super::Source;
use crate::SequenceBatch;

/// Sequences from a file of comma-separated values, a row for each step:
///
/// ```text
/// sequence,class,left,right
/// a,0,0.5,-1.25
/// a,0,0.25,0.75
/// b,1,-0.5,1
/// b,1,1.5,0.125
/// ```
///
/// The first line names the columns. `sequence` says which sequence a row belongs to, in any words; its rows stand one
/// after the other, in their order. `class` is a whole number from 0, the same in all rows of a sequence. Every other
/// column is a feature, a finite number. All sequences have one length, unless one is asked for.
///
/// ```
/// use rekindle_models::data::{SequenceTable, TableShape};
///
/// let text = "sequence,class,x\na,0,0.5\na,0,0.25\nb,1,2\nb,1,3\n";
/// let table = SequenceTable::from_reader(text.as_bytes(), TableShape::default())?;
/// assert_eq!((table.len(), table.steps(), table.classes()), (2, 2, 2));
/// # Ok::<(), rekindle_models::data::TableError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceTable {
    features: Vec<String>,
    classes: usize,
    steps: usize,
    sequences: Vec<Sequence>,
}

/// What a table must be like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableShape {
    /// The steps of every sequence: longer ones are cut behind so many, shorter ones refused. As many as all have, if
    /// nothing is said.
    pub steps: Option<usize>,
    /// How many classes there are: a class from there on is refused. One more than the largest, if nothing is said.
    pub classes: Option<usize>,
}

#[derive(Clone, Debug, PartialEq)]
struct Sequence {
    name: String,
    class: usize,
    /// Step after step.
    values: Vec<f32>,
}

#[allow(clippy::len_without_is_empty, reason = "a table without sequences is refused")]
impl SequenceTable {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, or is no such table; the error names the line.
    pub fn read(path: impl AsRef<Path>, shape: TableShape) -> Result<Self, TableError> {
        let path = path.as_ref();
        let file = std::fs::File::open(path)
            .map_err(|source| TableError::Open { path: path.display().to_string(), source })?;
        Self::from_reader(file, shape)
    }

    /// Reads a table from anything that can be read.
    ///
    /// # Errors
    /// When it cannot be read, or is no such table; the error names the line.
    pub fn from_reader(reader: impl Read, shape: TableShape) -> Result<Self, TableError> {
        rows::read(reader, shape)
    }

    /// How many sequences there are.
    pub fn len(&self) -> usize {
        self.sequences.len()
    }

    /// The steps of each.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// What the features of a step are called.
    pub fn features(&self) -> &[String] {
        &self.features
    }

    /// How many classes there are.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Two tables: one to learn from, and one with `part` of the sequences held out. Which those are depends on the names
    /// of the sequences and on `seed`, and on nothing else: not on their order.
    ///
    /// # Errors
    /// When `part` is not between 0 and 1, or there is only one sequence.
    pub fn split(&self, part: f64, seed: u64) -> Result<(Self, Self), TableError> {
        let count = self.sequences.len();
        if !(part > 0.0 && part < 1.0) || count < 2 {
            return Err(TableError::Split { part, sequences: count });
        }
        let held = ((count as f64 * part).round() as usize).clamp(1, count - 1);
        let mut order: Vec<(u64, &Sequence)> = self
            .sequences
            .iter()
            .map(|sequence| (xxh3_64_with_seed(sequence.name.as_bytes(), seed), sequence))
            .collect();
        order.sort_by(|a, b| (a.0, &a.1.name).cmp(&(b.0, &b.1.name)));
        let table = |sequences: &[(u64, &Sequence)]| Self {
            sequences: sequences.iter().map(|(_, sequence)| (*sequence).clone()).collect(),
            features: self.features.clone(),
            ..*self
        };
        Ok((table(&order[held..]), table(&order[..held])))
    }

    /// A number over everything that is learned from: names, classes and values.
    pub fn checksum(&self) -> u64 {
        let mut hash = Xxh3::new();
        let mut text = |text: &str| {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        };
        self.features.iter().for_each(|feature| text(feature));
        self.sequences.iter().for_each(|sequence| text(&sequence.name));
        for number in [self.classes, self.steps, self.sequences.len()] {
            hash.update(&(number as u64).to_le_bytes());
        }
        for sequence in &self.sequences {
            hash.update(&(sequence.class as u64).to_le_bytes());
            sequence.values.iter().for_each(|value| hash.update(&value.to_le_bytes()));
        }
        hash.digest()
    }

    /// All sequences, in their order.
    pub fn all(&self, device: &Device) -> SequenceBatch {
        self.batch(self.sequences.iter(), device)
    }

    fn batch<'a>(&self, chosen: impl Iterator<Item = &'a Sequence>, device: &Device) -> SequenceBatch {
        let (mut values, mut classes) = (Vec::new(), Vec::new());
        for sequence in chosen {
            values.extend_from_slice(&sequence.values);
            classes.push(sequence.class as i64);
        }
        let count = classes.len();
        let shape = [count, self.steps, self.features.len()];
        SequenceBatch {
            sequences: Tensor::from_data(TensorData::new(values, shape), device),
            classes: Tensor::from_data(TensorData::new(classes, [count]), device),
        }
    }
}

impl Source for SequenceTable {
    type Batch = SequenceBatch;

    /// Each by chance from all sequences: one may come twice.
    fn draw(&self, examples: usize, random: &mut fastrand::Rng, device: &Device) -> SequenceBatch {
        let chosen = (0..examples).map(|_| &self.sequences[random.usize(..self.sequences.len())]);
        self.batch(chosen, device)
    }
}
