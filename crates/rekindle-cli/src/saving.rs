//! Snapshots of a training run, and going on from one.

use std::path::PathBuf;

use burn::module::Module;
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
use clap::Args;
use rekindle::training::LossScale;
use rekindle_models::data::Source;
use rekindle_run::snapshots::{Metadata, Section, Snapshot, SnapshotError, Snapshots};

use crate::data::Data;
use crate::failure::Failure;

/// When to write snapshots, and where.
#[derive(Clone, Debug, Args)]
pub(crate) struct SavingArguments {
    /// Write snapshots of weights, optimizer state, step and seeds to this directory
    #[arg(long, value_name = "DIR", help_heading = "Snapshots")]
    pub(crate) snapshots: Option<PathBuf>,
    /// Write one every so many steps, and one at the end
    #[arg(long, value_name = "N", default_value_t = 50, requires = "snapshots", help_heading = "Snapshots",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) snapshot_every: u32,
    /// How many to keep, the newest
    #[arg(long, value_name = "N", default_value_t = 3, requires = "snapshots", help_heading = "Snapshots",
          value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) keep: u16,
    /// Go on from the newest snapshot there, as if the run had never stopped
    #[arg(long, requires = "snapshots", help_heading = "Snapshots")]
    pub(crate) resume: bool,
}

/// What a run is, for a snapshot of another one to be refused: by name, and as it is written.
pub(crate) type Identity = Vec<(&'static str, String)>;

/// The snapshots of one run.
pub(crate) struct Saving {
    snapshots: Snapshots,
    every: u32,
    metadata: Metadata,
}

/// Where a run goes on.
pub(crate) struct Resumed<M, S> {
    /// Steps that are done.
    pub(crate) steps: u32,
    pub(crate) model: M,
    pub(crate) optimizer: ModuleOptimizer,
    pub(crate) data: Data<S>,
    pub(crate) scale: LossScale,
}

const WEIGHTS: &str = "weights";
const OPTIMIZER: &str = "optimizer";
const BATCHES: &str = "batches";
const LOSS_SCALE: &str = "loss scale";

impl Saving {
    /// The directory, if one was asked for. Nobody else can use it meanwhile.
    pub(crate) fn open(arguments: &SavingArguments, identity: Identity) -> Result<Option<Self>, Failure> {
        let Some(directory) = &arguments.snapshots else { return Ok(None) };
        let snapshots = Snapshots::open(directory, usize::from(arguments.keep)).map_err(refused)?;
        let newest = snapshots.list().map_err(refused)?.into_iter().map(|listed| listed.step).max();
        if let (Some(step), false) = (newest, arguments.resume) {
            return Err(Failure::request(
                anyhow::anyhow!("`{}` has snapshots already, up to step {step}", directory.display()),
                "go on from them with --resume, or give another directory",
            ));
        }
        let metadata = identity.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Ok(Some(Self { snapshots, every: arguments.snapshot_every, metadata }))
    }

    /// Goes on from the newest whole snapshot. One of another run is refused; what is damaged is left alone, with a word.
    pub(crate) fn resume<M: Module, S: Source>(
        &mut self,
        model: M,
        optimizer: ModuleOptimizer,
        data: Data<S>,
        scale: LossScale,
    ) -> Result<Resumed<M, S>, Failure> {
        let latest = self.snapshots.latest().map_err(refused)?;
        for unusable in &latest.skipped {
            tell!("{unusable}");
        }
        let Some(snapshot) = latest.snapshot else {
            let directory = self.snapshots.directory().display();
            return Err(Failure::request(
                anyhow::anyhow!("`{directory}` has no snapshot to go on from"),
                "leave --resume out to start anew",
            ));
        };
        self.check(&snapshot)?;
        let step = snapshot.step();
        let section = |name: &'static str| {
            let found = snapshot.section(name).map(<[u8]>::to_vec);
            found.ok_or_else(|| damaged(step, format!("it has no {name}")))
        };
        let words = |error: &dyn std::fmt::Display| damaged(step, error.to_string());
        let weights = ModuleRecord::from_bytes(Bytes::from_bytes_vec(section(WEIGHTS)?));
        let model =
            weights.and_then(|weights| model.try_load_record(weights)).map_err(|error| words(&error))?;
        let state = OptimizerRecord::from_bytes(Bytes::from_bytes_vec(section(OPTIMIZER)?));
        let optimizer = optimizer.load_record(state.map_err(|error| words(&error))?);
        let batches = <[u8; 8]>::try_from(section(BATCHES)?.as_slice()).map_err(|error| words(&error))?;
        let steps = u32::try_from(step).map_err(|error| words(&error))?;
        // Older snapshots have none, and were of runs that scaled nothing.
        let scale = match snapshot.section(LOSS_SCALE) {
            Some(text) => serde_json::from_slice(text).map_err(|error| words(&error))?,
            None => scale,
        };
        Ok(Resumed { steps, model, optimizer, data: data.at(u64::from_le_bytes(batches)), scale })
    }

    fn check(&self, snapshot: &Snapshot) -> Result<(), Failure> {
        if snapshot.metadata().get("of").is_some_and(|of| of == "ranks") {
            return Err(Failure::request(
                anyhow::anyhow!("the snapshot of step {} is of a run over ranks", snapshot.step()),
                "go on with ranks, any number of them: mpirun -n 1 rekindle train --data-parallel 1 ... (docs/distributed.md)",
            ));
        }
        for (name, expected) in &self.metadata {
            let found = snapshot.metadata().get(name).map_or("(nothing)", String::as_str);
            if found != expected {
                return Err(Failure::request(
                    anyhow::anyhow!(
                        "the snapshot of step {} is of another run; {name}: found {found}, expected {expected}",
                        snapshot.step()
                    ),
                    "give the flags of that run, or another --snapshots directory; budget and strategy may differ",
                ));
            }
        }
        Ok(())
    }

    /// Whether one is to be written now.
    pub(crate) fn is_due(&self, steps_done: u32, last: bool) -> bool {
        last || steps_done.is_multiple_of(self.every)
    }

    /// Writes one. The older ones stay until it is safe on the disk.
    pub(crate) fn write<M: Module, S: Source>(
        &mut self,
        steps_done: u32,
        model: &M,
        optimizer: &ModuleOptimizer,
        data: &Data<S>,
        scale: &LossScale,
    ) -> Result<(), Failure> {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::failed(
                anyhow::anyhow!("the snapshot cannot be made: {error}"),
                "this is a bug in rekindle",
            )
        };
        let weights = model.clone().into_record().into_bytes().map_err(|error| failed(&error))?;
        let state = optimizer.to_record().into_bytes().map_err(|error| failed(&error))?;
        let batches = data.position().to_le_bytes();
        let scale = serde_json::to_vec(scale).map_err(|error| failed(&error))?;
        let sections = [
            Section::new(WEIGHTS, &weights),
            Section::new(OPTIMIZER, &state),
            Section::new(BATCHES, &batches),
            Section::new(LOSS_SCALE, &scale),
        ];
        self.snapshots.write_with(u64::from(steps_done), &self.metadata, &sections).map_err(refused)?;
        Ok(())
    }
}

fn damaged(step: u64, reason: String) -> Failure {
    Failure::failed(
        anyhow::anyhow!("the snapshot of step {step} cannot be used: {reason}"),
        "it was written by another version; start anew in another directory",
    )
}

fn refused(error: SnapshotError) -> Failure {
    let hint = match &error {
        SnapshotError::InUse { .. } => "wait for the other run to end, or give another directory",
        _ => {
            "give --snapshots a directory that can be written to and has room; older snapshots are as they were"
        }
    };
    Failure::request(error, hint)
}
