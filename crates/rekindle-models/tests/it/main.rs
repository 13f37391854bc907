//! What our models compute, learn, read and refuse.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by panicking")]

use rekindle::memory::CountingAllocator;

#[path = "../common/mod.rs"]
mod common;
mod step;

mod estimate;
mod examples;
mod identity;
mod image_folder;
mod language;
mod recurrent;
mod refusals;
mod resnet;
mod two_tower;
mod vit;
mod weights;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::system();
