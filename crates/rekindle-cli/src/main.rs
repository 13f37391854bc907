//! The `rekindle` command.

#![warn(clippy::print_stderr)]

#[macro_use]
mod tell;

mod adaptive;
mod amount;
mod arguments;
mod bench;
mod config;
mod cut;
mod data;
mod deepspeed;
mod device;
mod estimate;
mod explain;
mod failure;
mod files;
mod frontier;
mod graph;
mod measure;
mod meter;
mod models;
mod nodes;
mod page;
mod pipeline;
mod places;
mod plan;
mod planning;
mod profile;
mod progress;
mod ranks;
mod report;
mod sample;
mod saving;
mod screen;
mod simulate;
mod size;
mod strategy;
mod timeline;
mod totals;
mod train;
mod transfers;
mod verify;
mod view;

use std::process::ExitCode;

use rekindle::memory::{self, CountingAllocator};

use crate::arguments::Command;
use crate::failure::Failure;
use crate::size::For;

/// Peaks on the CPU backend are measured here.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::system();

fn main() -> ExitCode {
    // Where it is not possible, steps are slower.
    let _ = memory::keep_freed();
    let ran =
        config::parse().and_then(|arguments| on_a_worker(|| run(arguments.command.unwrap_or_default())));
    match ran.or_else(ranks::fail_together) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_told() {
                failure.tell();
            }
            failure.exit_code()
        }
    }
}

/// Runs this on one of the threads that tensors' operations are shared among.
///
/// From any other thread each operation would be handed over and waited for, which wakes two threads; that was a sixth
/// of a step's time.
fn on_a_worker<R: Send>(run: impl FnOnce() -> R + Send) -> R {
    // As much as `main` has. Where the threads are there already, theirs have to do.
    let _ = rayon::ThreadPoolBuilder::new().stack_size(8 << 20).build_global();
    rayon::scope(|_| run())
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Train(mut arguments) => {
            if let Some(file) = &arguments.deepspeed {
                let stages = arguments.size.size(For::Training)?.stages()?;
                arguments.strategy = Some(deepspeed::strategy(file, stages)?);
            }
            train::run(&arguments)
        }
        Command::Verify(mut arguments) => {
            if let Some(file) = &arguments.deepspeed {
                let stages = arguments.size.size(For::Figures)?.stages()?;
                arguments.strategy = deepspeed::strategy(file, stages)?;
            }
            verify::run(&arguments)
        }
        Command::Bench(mut arguments) => {
            if let Some(file) = &arguments.deepspeed {
                let stages = arguments.size.size(For::Figures)?.stages()?;
                arguments.strategies.push(deepspeed::strategy(file, stages)?);
            }
            bench::run(&arguments)
        }
        Command::Sample(arguments) => sample::run(&arguments),
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Frontier(arguments) => frontier::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Report(arguments) => page::run(&arguments),
        Command::Estimate(arguments) => estimate::run(&arguments),
    }
}
