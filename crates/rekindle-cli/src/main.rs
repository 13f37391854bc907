//! The `rekindle` command.

mod amount;
mod arguments;
mod bench;
mod corpus;
mod explain;
mod failure;
mod files;
mod frontier;
mod graph;
mod measure;
mod page;
mod plan;
mod planning;
mod profile;
mod report;
mod simulate;
mod strategy;
mod totals;
mod train;
mod verify;

use std::process::ExitCode;

use clap::Parser;
use rekindle::memory::{self, CountingAllocator};

use crate::arguments::{Arguments, Command};

/// Peaks on the CPU backend are measured here.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::system();

fn main() -> ExitCode {
    // Where it is not possible, steps are slower.
    let _ = memory::keep_freed();
    let command = Arguments::parse().command.unwrap_or_default();
    let result = match command {
        Command::Train(arguments) => train::run(&arguments),
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Frontier(arguments) => frontier::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Report(arguments) => page::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            failure.exit_code()
        }
    }
}
