//! What all ranks know at once: that everything went well everywhere, or why it did not.

use rekindle_dist::{Collective, DistError, Mpi};

use crate::failure::Failure;

/// What went wrong between ranks.
impl From<DistError> for Failure {
    fn from(error: DistError) -> Self {
        Failure::failed(error, "docs/distributed.md says what ranks need; each rank's log says what it did")
    }
}

/// Goes on if all ranks do. Where some cannot, the first rank says why and which, and all end.
pub(super) fn together<T>(world: &dyn Collective, own: Result<T, Failure>) -> Result<T, Failure> {
    agree(world, own, true)
}

/// The same for what the first rank alone has tried.
pub(super) fn with_first<T>(world: &dyn Collective, own: Result<T, Failure>) -> Result<T, Failure> {
    agree(world, own, false)
}

/// What the first rank makes, on all ranks.
pub(super) fn from_first(
    world: &dyn Collective,
    make: impl FnOnce() -> Result<Vec<u8>, Failure>,
) -> Result<Vec<u8>, Failure> {
    let own = if world.rank() == 0 { make() } else { Ok(Vec::new()) };
    let own = with_first(world, own)?;
    Ok(world.broadcast(0, own)?)
}

/// Of the ranks that fail the first one's reason is told.
fn agree<T>(world: &dyn Collective, own: Result<T, Failure>, naming: bool) -> Result<T, Failure> {
    let all = world.all_gather(own.as_ref().err().map(to_bytes).unwrap_or_default())?;
    let failed: Vec<usize> = (0..all.len()).filter(|rank| !all[*rank].is_empty()).collect();
    let Some(first) = failed.first() else { return own };
    let (kind, reason) = all[*first].split_at(1);
    let named = naming && failed.len() < all.len();
    // Help, where all are asked for it; where some are to train, that is no answer.
    let is_help = kind == HELP && !named;
    if world.rank() == 0 {
        match &own {
            Err(help) if is_help => help.tell(),
            _ => tell!("{}", String::from_utf8_lossy(reason)),
        }
        if named {
            tell!("{}", on_ranks(&failed, all.len()));
        }
    }
    // Nobody ends before that is said: `mpirun` ends everybody with the first.
    world.barrier()?;
    match own {
        Err(help) if is_help => Err(help.into_told()),
        _ => Err(Failure::told(kind != FAILED)),
    }
}

/// What stands before a reason on its way to the first rank: the request was wrong, something failed, or somebody asked for help.
const REQUEST: &[u8] = b"?";
const FAILED: &[u8] = b"!";
const HELP: &[u8] = b".";

fn to_bytes(failure: &Failure) -> Vec<u8> {
    match (failure.is_help(), failure.is_request()) {
        (true, _) => [HELP, b"error: help is asked for where others train"].concat(),
        (false, true) => [REQUEST, failure.to_string().as_bytes()].concat(),
        (false, false) => [FAILED, failure.to_string().as_bytes()].concat(),
    }
}

/// Who failed, where not all did.
fn on_ranks(failed: &[usize], ranks: usize) -> String {
    /// There may be thousands of them.
    const NAMED: usize = 8;
    let named: Vec<String> = failed.iter().take(NAMED).map(ToString::to_string).collect();
    let more = match failed.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let many = if failed.len() == 1 { "rank" } else { "ranks" };
    format!("on {many} {}{more} of {ranks}, and on no other", named.join(", "))
}

/// Fails with all ranks, before they have met. They have, where MPI was started before.
pub(super) fn fail_with_all(failure: Failure) -> Result<(), Failure> {
    match Mpi::start(None) {
        Ok(world) => together(&world, Err(failure)),
        Err(_) => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::on_ranks;

    #[test]
    fn ranks_that_failed_are_named_and_many_are_counted() {
        assert_eq!(on_ranks(&[1], 2), "on rank 1 of 2, and on no other");
        assert_eq!(on_ranks(&[0, 3], 4), "on ranks 0, 3 of 4, and on no other");
        let many: Vec<usize> = (0..1_000).collect();
        let expected = "on ranks 0, 1, 2, 3, 4, 5, 6, 7 and 992 more of 2000, and on no other";
        assert_eq!(on_ranks(&many, 2_000), expected);
    }
}
