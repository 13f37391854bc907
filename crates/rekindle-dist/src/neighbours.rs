//! Notices a rank whose process is stopped: its own watchdog is stopped with it, so the other ranks of its machine look.

use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

/// Where a rank is: a system and the processes it shows, and which of them the rank is.
pub(crate) type Place = [u64; 2];

/// The place of this rank.
pub(crate) fn place() -> Place {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let processes = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let system = format!("{boot} {}", processes.display());
    [xxh3_64(system.as_bytes()), u64::from(std::process::id())]
}

/// The ranks of this machine beside this one.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    own: usize,
    others: Vec<Neighbour>,
}

#[derive(Debug)]
struct Neighbour {
    rank: usize,
    process: u64,
    /// How often it was found stopped, one time after the other.
    stopped: u32,
}

impl Neighbours {
    /// Of all places, by rank, those beside `own`.
    pub(crate) fn new(own: usize, places: &[Place]) -> Self {
        let here = |place: &Place| places.get(own).is_some_and(|own| own[0] == place[0]);
        let others = places.iter().enumerate().filter(|(rank, place)| *rank != own && here(place));
        let others = others.map(|(rank, place)| Neighbour { rank, process: place[1], stopped: 0 });
        Self { own, others: others.collect() }
    }

    /// Looks at all of them. Gives the first that was found stopped so many times, if it is for this rank to say so: for the first one
    /// here that goes on.
    ///
    /// Times are counted, not measured: a run that is stopped as a whole, and goes on hours later, is not told off.
    pub(crate) fn stopped(&mut self, times: u32) -> Option<usize> {
        self.look(times, is_stopped)
    }

    fn look(&mut self, times: u32, is_stopped: impl Fn(u64) -> bool) -> Option<usize> {
        for other in &mut self.others {
            other.stopped = if is_stopped(other.process) { other.stopped + 1 } else { 0 };
        }
        let found = self.others.iter().find(|other| other.stopped >= times)?;
        let goes_on = |other: &Neighbour| other.rank < self.own && other.stopped == 0;
        (!self.others.iter().any(goes_on)).then_some(found.rank)
    }
}

/// Whether a process is stopped, by a signal and not by a debugger; `false` where nobody tells.
fn is_stopped(process: u64) -> bool {
    state(Path::new(&format!("/proc/{process}"))) == Some('T')
}

/// What a process or a thread does, as the system writes it (Linux).
pub(crate) fn state(task: &Path) -> Option<char> {
    let stat = std::fs::read_to_string(task.join("stat")).ok()?;
    // A name in parentheses, which may hold any characters, then the state.
    stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rank_of_a_machine_tells_of_another_that_stays_stopped() {
        let places = [[1, 10], [1, 11], [2, 10], [1, 12]];
        let stopped = |process: u64| process == 11;
        let [mut first, mut last] = [0, 3].map(|own| Neighbours::new(own, &places));
        for _ in 1..3 {
            assert_eq!(first.look(3, stopped), None, "it may go on");
            assert_eq!(last.look(3, stopped), None);
        }
        assert_eq!(first.look(3, stopped), Some(1));
        assert_eq!(last.look(3, stopped), None, "the first one here says it");
        // Where that one is stopped as well, the next does.
        assert_eq!(last.look(3, |process| process == 10 || process == 11), Some(1));
        // One that goes on begins anew, and a rank of another machine is not looked at.
        assert_eq!(first.look(3, |_| false), None);
        assert_eq!(first.look(3, stopped), None);
        assert_eq!(Neighbours::new(2, &places).look(1, |_| true), None);
    }
}
