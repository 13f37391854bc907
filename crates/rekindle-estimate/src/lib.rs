//! What training takes, counted before anything is built.
//!
//! An [`Architecture`] is a handful of numbers. From them follow the parameters, and for a batch every tensor that a step
//! keeps: as a [`Profile`](rekindle_plan::Profile), so that the same rules, policies and solvers that run a model say what it would take.
//!
//! ```
//! use rekindle_estimate::{Parallel, Setting, State, preset};
//! use rekindle_plan::{Plan, Rule};
//!
//! let model = preset("llama-7b").unwrap();
//! assert_eq!(model.parameters(), 6_738_415_616);
//!
//! let profile = model.blocks(&Setting { batch: 1, ..Setting::of(&model) })?;
//! let none = Plan::by_rule(&profile, Rule::StoreAll, None)?.predicted;
//! let full = Plan::by_rule(&profile, Rule::EVERY_ONE, None)?.predicted;
//! assert!(full.peak_bytes.get() * 4 < none.peak_bytes.get());
//!
//! // 16 bytes for each parameter, whatever the precision.
//! let state = State::of(&model, &Setting::of(&model), &Parallel::default());
//! assert_eq!(state.total().get(), 16 * model.parameters());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What a tape holds is said by [`Keeping`]: what an ordinary framework keeps, operation by operation, which is
//! Korthikanti and others' `s b h (34 + 5 a s / h)` for a layer of a GPT (*Reducing Activation Recomputation in Large
//! Transformer Models*, 2022); or what our nodes keep.
//!
//! The crate stands on the planner alone and knows no framework: `rekindle-models` hands it on as `estimate`, and Python's package has
//! it as `rekindle.estimate`.

mod architecture;
mod asked;
mod count;
mod fit;
mod precision;
mod presets;
mod resnet;
mod setting;
mod state;
mod thumb;
mod transformer;

pub use architecture::{Architecture, EstimateError};
pub use asked::{Asked, Changes};
pub use count::{Rank, Row};
pub use fit::Fit;
pub use precision::{ParsePrecisionError, Precision};
pub use presets::{preset, presets};
pub use resnet::{ResNet, ResNetKind};
pub use setting::{AttentionKind, Keeping, Parallel, Setting};
pub use state::State;
pub use transformer::Transformer;
