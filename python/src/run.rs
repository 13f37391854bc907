//! Runs plans over an engine that is written in Python.
//!
//! `rekindle.torch` has such an engine; nothing here knows a tensor. An engine is any object with the methods that
//! [`engine`] calls.

mod engine;
mod executor;
mod measuring;
mod storage;

pub(crate) use executor::{Executor, Schedule};
pub(crate) use measuring::measure;
pub(crate) use storage::Storage;
