//! A rank that is lost.

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rekindle_dist::{Collective, Mpi, Reduction};

use super::{HANGING, LOST};

/// Says when this rank is lost: how long the run then takes to end does not count how long it took to start.
fn lost() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    println!("{LOST}{}", now.as_millis());
}

/// The others are in the middle of something that needs all.
fn wait_for_all(world: &Mpi) {
    let _ = world.all_reduce(vec![1.0; 1000], Reduction::Ordered);
}

pub(crate) fn panics(world: &Mpi) {
    wait_for_all(world);
    if world.rank() == 1 {
        lost();
        panic!("a bug in somebody's model");
    }
    wait_for_all(world);
}

pub(crate) fn is_killed(world: &Mpi) {
    wait_for_all(world);
    if world.rank() == 1 {
        lost();
        let killed = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
        panic!("{killed:?}");
    }
    wait_for_all(world);
}

pub(crate) fn is_stopped(world: &Mpi) {
    wait_for_all(world);
    if world.rank() == 1 {
        lost();
        let stopped = Command::new("kill").args(["-STOP", &std::process::id().to_string()]).status();
        assert!(stopped.unwrap().success());
    }
    wait_for_all(world);
}

pub(crate) fn hangs(world: &Mpi) {
    wait_for_all(world);
    if world.rank() == 1 {
        lost();
        std::thread::sleep(Duration::from_secs(1000));
    }
    wait_for_all(world);
}

pub(crate) fn computes(world: &Mpi) {
    wait_for_all(world);
    if world.rank() == 1 {
        let start = std::time::Instant::now();
        let mut sum = 0u64;
        while start.elapsed() < Duration::from_secs(6) {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(1));
        }
    }
    wait_for_all(world);
}

/// At the start of a run that may take minutes for what it does.
pub(crate) fn computes_for_ever(world: &Mpi) {
    let step = world.within(HANGING);
    wait_for_all(world);
    drop(step);
    computes(world);
    let _step = world.within(HANGING);
    if world.rank() == 1 {
        lost();
        loop {
            std::hint::spin_loop();
        }
    }
    wait_for_all(world);
}

/// The others wait for it, so all wait.
pub(crate) fn waits_in_vain(world: &Mpi) {
    wait_for_all(world);
    if world.rank() == 1 {
        lost();
        let _ = world.receive(0);
    }
    // Later than the one that waits for what does not come: they are not the ones to be told of.
    std::thread::sleep(HANGING / 4);
    wait_for_all(world);
}

pub(crate) fn gives_up(world: &Mpi) {
    wait_for_all(world);
    if world.rank() == 1 {
        lost();
        world.abort("out of examples");
    }
    wait_for_all(world);
}
