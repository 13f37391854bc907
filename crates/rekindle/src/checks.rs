//! Does a stage do in the recomputation what it did in the forward pass?

use burn::tensor::TensorData;
use xxhash_rust::xxh3::xxh3_64;

use crate::Error;

/// What a region compares when a stage is run again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Checks {
    /// The shapes and element types of every boundary. Costs nothing that can be measured, and is always on.
    #[default]
    Shapes,
    /// Also a checksum of every boundary's elements: finds a stage that depends on anything but its input, its
    /// parameters and Burn's random numbers. Reads every boundary back to the host, and runs stages again on a thread of
    /// their own, so that one that waits for the user's graph is an error, too: see [`give_up_after`](crate::give_up_after).
    Checksums,
}

/// What one tensor of a boundary was; and, after the tensors, what lay between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Observation {
    pub(crate) what: String,
    pub(crate) checksum: Option<u64>,
}

impl std::fmt::Display for Observation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.checksum {
            None => formatter.write_str(&self.what),
            Some(checksum) => write!(formatter, "{} with checksum {checksum:016x}", self.what),
        }
    }
}

/// What each stage made the first time it ran.
#[derive(Debug)]
pub(crate) struct Record {
    checks: Checks,
    /// How many stages of the region come before these.
    first: usize,
    made: Vec<Option<Vec<Observation>>>,
}

impl Record {
    pub(crate) fn new(checks: Checks, first: usize) -> Self {
        Self { checks, first, made: Vec::new() }
    }

    pub(crate) fn checks(&self) -> Checks {
        self.checks
    }

    /// Remembers what the stage made, or holds it against what it made before.
    pub(crate) fn compare(
        &mut self,
        index: usize,
        name: &str,
        observed: Vec<Observation>,
    ) -> Result<(), Error> {
        if self.made.len() <= index {
            self.made.resize(index + 1, None);
        }
        let Some(before) = &self.made[index] else {
            self.made[index] = Some(observed);
            return Ok(());
        };
        let differs = before.iter().zip(&observed).position(|(before, now)| before != now);
        let length_differs = || before.len() != observed.len();
        let tensor = match differs {
            Some(tensor) => tensor,
            None if length_differs() => before.len().min(observed.len()),
            None => return Ok(()),
        };
        let show = |made: &[Observation]| {
            let made = made.get(tensor);
            made.map_or_else(|| "nothing".to_owned(), ToString::to_string)
        };
        Err(Error::StageChanged {
            stage: self.first + index + 1,
            name: name.to_owned(),
            tensor,
            forward: show(before),
            recompute: show(&observed),
        })
    }
}

pub(crate) fn checksum(data: &TensorData) -> u64 {
    xxh3_64(data.as_bytes())
}
