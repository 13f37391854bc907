//! What our models take, to the byte. A binary of its own, and every test of it alone: nothing else may allocate meanwhile.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by panicking")]

use rekindle::memory::CountingAllocator;

#[path = "../common/mod.rs"]
mod common;
mod step;

mod budgets;
mod parts;
mod policies;
mod recurrences;
mod traced;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::system();
