//! Recurrences over sequences.

use burn::tensor::{Device, Int, IntDType, Tensor};
use rekindle_models::data::{Recall, SequenceTable, Source, TableShape};
use rekindle_models::{Recurrent, RecurrentConfig, RecurrentKind, SequenceBatch};

use super::{DataArguments, Kind, ModelName};
use crate::data::Data;
use crate::failure::{self, Failure};
use crate::report::counted;
use crate::size::Size;

/// How many symbols made-up sequences have.
const SYMBOLS: usize = 4;

/// Sequences of the user's, or made-up ones.
pub(crate) enum Sequences {
    Table(SequenceTable),
    Recall(Recall),
}

impl Source for Sequences {
    type Batch = SequenceBatch;

    fn draw(&self, examples: usize, random: &mut fastrand::Rng, device: &Device) -> SequenceBatch {
        match self {
            Self::Table(table) => table.draw(examples, random, device),
            Self::Recall(recall) => recall.draw(examples, random, device),
        }
    }
}

/// What there is to read.
struct Seen {
    data: Data<Sequences>,
    features: usize,
    classes: usize,
    /// Steps of a sequence.
    length: usize,
}

impl Seen {
    fn look(size: &Size, given: &DataArguments) -> Result<Self, Failure> {
        let Some(path) = &given.data else {
            let (recall, length) = (Recall::new(SYMBOLS, size.sequence)?, size.sequence);
            let features = recall.features();
            let checksum = format!("{SYMBOLS} symbols over {length} steps");
            let [training, held_out] = [recall.clone(), recall].map(Sequences::Recall);
            return Ok(Self {
                data: Data::new(training, Some(held_out), checksum),
                features,
                classes: SYMBOLS,
                length,
            });
        };
        failure::refuse_device(path)?;
        let refused = |error| {
            Failure::request(
                anyhow::Error::new(error).context(format!("`{}`", path.display())),
                "give a table with the columns sequence, class and a number for each feature (docs/models.md)",
            )
        };
        let shape = TableShape { steps: size.asked_sequence, classes: None };
        let table = SequenceTable::read(path, shape).map_err(refused)?;
        let (features, classes, length) = (table.features().len(), table.classes(), table.steps());
        let checksum = format!("{:016x}", table.checksum());
        let (training, held_out) = table.split(0.1, 0).map_err(refused)?;
        let data = Data::new(Sequences::Table(training), Some(Sequences::Table(held_out)), checksum);
        Ok(Self { data, features, classes, length })
    }
}

/// An LSTM or a GRU.
pub(crate) struct Recurrence {
    name: &'static str,
    config: RecurrentConfig,
    /// Steps of a sequence.
    length: usize,
    examples: usize,
    data: Data<Sequences>,
}

impl Recurrence {
    pub(crate) fn of(size: &Size, given: &DataArguments) -> Result<Self, Failure> {
        let (name, kind) = match size.model {
            ModelName::Gru => ("gru", RecurrentKind::Gru),
            _ => ("lstm", RecurrentKind::Lstm),
        };
        let Seen { data, features, classes, length } = Seen::look(size, given)?;
        // It must not have forgotten the beginning before it has learned anything.
        let config =
            RecurrentConfig::new(features, size.width, classes).with_kind(kind).with_memory(Some(length));
        Ok(Self { name, config, length, examples: size.batch / size.micro_batches.max(1), data })
    }
}

impl Kind for Recurrence {
    type Model = Recurrent;
    type Source = Sequences;
    const UNIT: &'static str = "step";
    const UNITS: &'static str = "steps of sequences";

    fn build(&self, device: &Device) -> Result<Recurrent, Failure> {
        Ok(self.config.init(device)?)
    }

    fn blank(&self, examples: usize, device: &Device) -> SequenceBatch {
        let classes = Tensor::<1, Int>::zeros([examples], device).cast(IntDType::I64);
        SequenceBatch {
            sequences: Tensor::zeros([examples, self.length, self.config.features], device),
            classes,
        }
    }

    fn data(&self) -> Data<Sequences> {
        self.data.clone()
    }

    fn units(&self) -> usize {
        self.length
    }

    /// As many as a stage has steps, and the head.
    fn stages(&self) -> usize {
        let root = self.length.isqrt();
        let steps = root + usize::from(root * root < self.length);
        self.length.div_ceil(steps.max(1)) + 1
    }

    fn least_bytes(&self) -> u128 {
        let (width, features) = (self.config.width as u128, self.config.features as u128);
        let inputs = self.examples as u128 * self.length as u128 * features;
        16 * 3 * width * (width + features) + 4 * inputs
    }

    fn describe(&self) -> String {
        format!("{}, width {}, {}", self.name, self.config.width, counted(self.config.features, "feature"))
    }
}
