//! How to run a plan.
//!
//! ```text
//!            Schedule (judged by the simulator)
//!                │
//!   input ──▶ Executor ──▶ output   … the rest of the model …   gradient ──▶ Executor ──▶ gradient
//!                │  forward half                                  backward half │
//!                ▼                                                              ▼
//!             Engine: run a stage, tape it, go back through it           Stores: host, …
//! ```
//!
//! The [`Executor`] is generic over an [`Engine`]: Burn implements it in the crate `rekindle`, and [`counted`]
//! implements it without tensors, so that what the executor really holds can be compared with what the simulator
//! predicted.
//!
//! ```
//! use rekindle_plan::{Bytes, Profile, Rule, Schedule, StageProfile};
//! use rekindle_run::{Executor, Stores, counted::CountedEngine};
//!
//! let stages = (0..4).map(|i| StageProfile {
//!     name: format!("layer.{i}"),
//!     output_bytes: Bytes::new(10),
//!     tape_bytes: Bytes::new(100),
//!     ..StageProfile::default()
//! });
//! let profile = Profile::new("mlp", "none", Bytes::new(10), stages.collect())?;
//! let (schedule, simulation) = Schedule::judge(&profile, &Rule::EVERY_ONE.actions(4)?)?;
//!
//! let mut engine = CountedEngine::new(profile);
//! let mut executor = Executor::new(schedule, Stores::new());
//! let input = engine.input();
//! let output = executor.forward(&mut engine, input)?;
//! drop(output); // the rest of the model would read it
//! let gradient = engine.output_gradient();
//! executor.backward(&mut engine, gradient)?;
//! assert_eq!(engine.ledger().peak(), simulation.peak_bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod counted;
mod engine;
mod executor;
pub mod governor;
mod measure;
pub mod snapshots;
mod store;
mod trace;

pub use engine::{Engine, Row};
pub use executor::{Executor, Fault, Kept, Recovery, Remedy, RunError};
pub use measure::{Measurable, MeasureError, Measurement, Measuring, Spread, measure};
pub use store::codec;
pub use store::{
    Buffer, CodecSpeed, Coded, HostPool, HostStore, OwnMemory, PackedTensor, Parcel, Payload, Store,
    StoreError, StoreSpeed, Stores, Transfer, Way, measure_codec, measure_store,
};
#[cfg(unix)]
pub use store::{DiskFile, DiskStore};
pub use trace::{Event, Moved, Trace};
