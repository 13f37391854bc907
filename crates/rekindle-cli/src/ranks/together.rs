//! What all ranks know at once: that everything went well everywhere, or what the first rank has found.

use rekindle_dist::{Collective, DistError};

use crate::failure::Failure;

/// What went wrong between ranks.
impl From<DistError> for Failure {
    fn from(error: DistError) -> Self {
        Failure::failed(error, "docs/distributed.md says what ranks need; each rank's log says what it did")
    }
}

/// Goes on if all ranks do. Of those that cannot, the first says why, and all end.
pub(super) fn together<T>(world: &dyn Collective, own: Result<T, Failure>) -> Result<T, Failure> {
    let said = match &own {
        Ok(_) => 0,
        Err(failure) if failure.is_request() => 2,
        Err(_) => 1,
    };
    let all = world.all_gather(vec![said])?;
    let said = |rank: usize| all.get(rank).and_then(|said| said.first()).copied().unwrap_or(0);
    let Some(first) = (0..all.len()).find(|rank| said(*rank) > 0) else { return own };
    if let (true, Err(failure)) = (first == world.rank(), &own) {
        tell!("{failure}");
    }
    // Nobody ends before that is said: `mpirun` ends everybody with the first.
    world.barrier()?;
    Err(Failure::told(said(first) == 2))
}

/// What the first rank makes, on all ranks.
pub(super) fn from_first(
    world: &dyn Collective,
    make: impl FnOnce() -> Result<Vec<u8>, Failure>,
) -> Result<Vec<u8>, Failure> {
    let own = if world.rank() == 0 { make() } else { Ok(Vec::new()) };
    let own = together(world, own)?;
    Ok(world.broadcast(0, own)?)
}
