//! What users rely on, each a test that fails when it breaks.
//!
//! Burn's random state is one per process: every test holds [`common::alone`].

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod abandoned;
mod activation;
mod again;
mod attention;
mod batch_norm;
mod boundaries;
mod checks;
mod common;
mod constants;
mod derived;
mod dropout;
mod errors;
mod handed_over;
mod identity;
mod images;
mod nesting;
mod nn;
mod pieces;
mod places;
mod plans;
mod random;
mod recurrent;
mod rows;
mod sharing;
mod tails;
#[cfg(feature = "capture")]
mod traced;
mod training;
