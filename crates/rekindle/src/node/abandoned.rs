//! Regions that nobody goes back through.
//!
//! Burn frees a graph when nobody holds a tensor of it. A region that waits for its backward holds modules, and they hold
//! parameters, which are tensors of the user's graph: as long as nobody goes back through the region, the graph keeps the region and
//! the region the graph. To hold the values alone takes a kilobyte for each parameter, so that is left to regions that
//! wait for long.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, Weak};

/// How many others are gone back through before a region is taken to be abandoned. More than wait at once in a pipeline; if it is
/// not abandoned after all, nothing but that memory is lost.
const LONG: u64 = 16;

static WAITING: Mutex<Vec<Since>> = Mutex::new(Vec::new());
static GONE_BACK: AtomicU64 = AtomicU64::new(0);

/// A region between its halves.
pub(super) trait LetGo: Send + Sync {
    /// Holds on to no tensor of the user's graph any more.
    fn let_go(&self);
}

struct Since {
    gone_back: u64,
    region: Weak<dyn LetGo>,
}

/// Notes a region that begins to wait, and has those let go that have waited for long.
pub(super) fn begins_to_wait(region: Weak<dyn LetGo>) {
    let now = GONE_BACK.load(Relaxed);
    let mut all = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut long = Vec::new();
    all.retain(|since| {
        let Some(region) = since.region.upgrade() else { return false };
        let stays = now.saturating_sub(since.gone_back) < LONG;
        if !stays {
            long.push(region);
        }
        stays
    });
    all.push(Since { gone_back: now, region });
    drop(all);
    long.iter().for_each(|region| region.let_go());
}

/// Notes that a region was gone back through.
pub(super) fn gone_back() {
    GONE_BACK.fetch_add(1, Relaxed);
}
