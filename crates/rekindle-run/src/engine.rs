//! The small trait between the executor and a framework.

use std::any::Any;

use rekindle_plan::{Bytes, Name, Stage};

use crate::Parcel;

/// What a framework has to offer for its stages to be run by a plan.
///
/// An engine does what it is told and decides nothing: which stage runs when, what is kept and what is dropped is the
/// executor's business, and the plan's. Handles ([`Engine::Boundary`]) are cheap to clone; a boundary's memory is free
/// when its last handle, and the last tape that reads it, are gone.
pub trait Engine {
    /// A handle to the tensors between two stages.
    type Boundary: Clone;
    /// What the backward of a stage reads.
    type Tape;
    /// The gradient of a boundary.
    type Gradient;
    /// What can go wrong.
    type Error: std::error::Error + 'static;

    /// Runs a stage without a tape.
    ///
    /// # Errors
    /// When the stage cannot run.
    fn forward(&mut self, stage: Stage, input: Self::Boundary) -> Result<Self::Boundary, Self::Error>;

    /// Runs a stage and records its tape, whole or under an option.
    ///
    /// # Errors
    /// When the stage cannot run, or has no such option.
    fn tape(
        &mut self,
        stage: Stage,
        option: Option<&Name>,
        input: Self::Boundary,
    ) -> Result<(Self::Tape, Self::Boundary), Self::Error>;

    /// Records a tape for the backward alone: nobody reads what the stage makes. An engine that can leave out what goes into
    /// the output only does so; the tape must be the same.
    ///
    /// # Errors
    /// As [`tape`](Self::tape).
    fn tape_unread(
        &mut self,
        stage: Stage,
        option: Option<&Name>,
        input: Self::Boundary,
    ) -> Result<Self::Tape, Self::Error> {
        Ok(self.tape(stage, option, input)?.0)
    }

    /// Told before a tape is recorded: where it stands in a row of tapes. An engine that gains by it may record a row as one
    /// piece, and go back through it at the backward of its first stage; what the other backwards give is handed on to that
    /// one unread.
    fn in_row(&mut self, row: Row) {
        let _ = row;
    }

    /// Runs the backward of a stage: from the gradient of its output to the gradient of its input.
    ///
    /// # Errors
    /// When the backward cannot run.
    fn backward(
        &mut self,
        stage: Stage,
        tape: Self::Tape,
        gradient: Self::Gradient,
    ) -> Result<Self::Gradient, Self::Error>;

    /// The size of a boundary.
    fn boundary_bytes(&self, boundary: &Self::Boundary) -> Bytes;

    /// Hands a boundary out as bytes: its own, or a handle to the device's memory ([`Payload::shared`]) that a store
    /// reads on a thread of its own and then drops. Nothing may write to that memory while the handle lives.
    ///
    /// [`Payload::shared`]: crate::Payload::shared
    ///
    /// # Errors
    /// When its tensors cannot be read.
    fn export(&mut self, boundary: &Self::Boundary) -> Result<Parcel, Self::Error>;

    /// Takes a boundary back.
    ///
    /// # Errors
    /// When the parcel does not hold what was exported.
    fn import(&mut self, parcel: Parcel) -> Result<Self::Boundary, Self::Error>;

    /// Sets memory of the device aside for a boundary that is on its way back, where the engine can. It is dropped right
    /// before the boundary is imported. The simulator counts a boundary from its `fetch` on; an engine that cannot do
    /// this takes the memory later.
    fn set_aside(&mut self, bytes: Bytes) -> Option<Box<dyn Any + Send>> {
        let _ = bytes;
        None
    }

    /// The bytes alive on the device now, where the engine can tell.
    fn live_bytes(&self) -> Option<Bytes> {
        None
    }

    /// The most bytes alive on the device since this was last asked, where the engine can tell.
    fn peak_bytes(&mut self) -> Option<Bytes> {
        None
    }
}

/// Where a tape stands among tapes that are recorded one right behind the other, in the same way, of which each alone reads
/// the output of the one before, and that go back in just as close a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// The one before belongs to it.
    pub behind: bool,
    /// The next one belongs to it.
    pub ahead: bool,
}
