//! Snapshots of a run over ranks: one file of what all of them know, written and read by the first.

use rekindle_dist::Collective;
use rekindle_run::snapshots::{Metadata, Section, Snapshots};

use super::state::Whole;
use super::together::with_first;
use crate::failure::Failure;
use crate::saving::{Identity, SavingArguments};

/// The snapshots of a run, as one of its ranks sees them.
pub(super) struct Saving {
    /// On the first rank, where snapshots are asked for.
    snapshots: Option<Snapshots>,
    identity: Metadata,
    every: Option<u32>,
}

impl Saving {
    /// The directory, if one was asked for. Nobody else can use it meanwhile.
    pub(super) fn open(
        world: &dyn Collective,
        arguments: &SavingArguments,
        identity: Identity,
    ) -> Result<Self, Failure> {
        let mut identity: Metadata =
            identity.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        identity.insert("of".to_owned(), "ranks".to_owned());
        let opened = match (&arguments.snapshots, world.rank()) {
            (Some(directory), 0) => {
                let opened = Snapshots::open(directory, usize::from(arguments.keep)).and_then(|snapshots| {
                    let newest = snapshots.list()?.into_iter().map(|listed| listed.step).max();
                    Ok((snapshots, newest))
                });
                match opened {
                    Ok((_, Some(step))) if !arguments.resume => Err(Failure::request(
                        anyhow::anyhow!("`{}` has snapshots already, up to step {step}", directory.display()),
                        "go on from them with --resume, or give another directory",
                    )),
                    Ok((snapshots, _)) => Ok(Some(snapshots)),
                    Err(error) => {
                        Err(Failure::request(error, "give --snapshots a directory that nobody else uses"))
                    }
                }
            }
            _ => Ok(None),
        };
        let every = arguments.snapshots.as_ref().map(|_| arguments.snapshot_every);
        Ok(Self { snapshots: with_first(world, opened)?, identity, every })
    }

    /// What the newest snapshot has, on all ranks: what was known, after how many steps, and where the data were.
    pub(super) fn newest(&mut self, world: &dyn Collective) -> Result<(Whole, u32, u64), Failure> {
        Whole::share(world, || read_newest(self.snapshots.as_mut(), &self.identity))
    }

    /// Whether one is to be written now.
    pub(super) fn is_due(&self, steps_done: u32, last: bool) -> bool {
        self.every.is_some_and(|every| last || steps_done.is_multiple_of(every))
    }

    /// Writes one, on the first rank; the others have nothing to write. The older ones stay until it is safe on the disk.
    pub(super) fn write(
        &mut self,
        steps_done: u32,
        whole: Option<Whole>,
        position: u64,
    ) -> Result<(), Failure> {
        let (Some(whole), Some(snapshots)) = (whole, &mut self.snapshots) else { return Ok(()) };
        let (state, batches) = (whole.to_bytes(), position.to_le_bytes());
        let sections = [Section::new("state", &state), Section::new("batches", &batches)];
        let written = snapshots.write_with(u64::from(steps_done), &self.identity, &sections);
        written.map(drop).map_err(|error| Failure::failed(error, "older snapshots are as they were"))
    }
}

/// The newest snapshot of a run over ranks: what was known, after how many steps, and where the data were.
fn read_newest(saving: Option<&mut Snapshots>, identity: &Metadata) -> Result<(Whole, u32, u64), Failure> {
    let refuse = |what: String| {
        Failure::request(anyhow::anyhow!(what), "leave --resume out to start anew in another directory")
    };
    let saving = saving.ok_or_else(|| refuse("there is no directory of snapshots".to_owned()))?;
    let latest =
        saving.latest().map_err(|error| Failure::request(error, "give another --snapshots directory"))?;
    for unusable in &latest.skipped {
        tell!("{unusable}");
    }
    let directory = saving.directory().display();
    let snapshot =
        latest.snapshot.ok_or_else(|| refuse(format!("`{directory}` has no snapshot to go on from")))?;
    for (name, expected) in identity {
        let found = snapshot.metadata().get(name).map_or("(nothing)", String::as_str);
        if found != expected {
            return Err(refuse(format!(
                "the snapshot of step {} is of another run; {name}: found {found}, expected {expected}",
                snapshot.step()
            )));
        }
    }
    let whole = snapshot.section("state").and_then(Whole::from_bytes);
    let position =
        snapshot.section("batches").and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
    let (whole, position) = whole
        .zip(position)
        .ok_or_else(|| refuse(format!("the snapshot of step {} cannot be used", snapshot.step())))?;
    Ok((whole, u32::try_from(snapshot.step()).unwrap_or(u32::MAX), position))
}
