//! The solvers: each finds a plan for a chain, and says how good it is known to be.
//!
//! One file a solver, named as on the command line. Each gives actions; the simulator judges them, and what it says is
//! what the plan predicts.
//!
//! Four of them count *slots*: places for one boundary each (or one tape), whatever it weighs. They know no sizes and
//! no times of single stages, and so are fast on any length; [`Request`](crate::Request) gives them a number of slots,
//! or a budget in bytes, for which they take the number of slots that fits.
//!
//! | solver | a slot holds | what it knows |
//! |---|---|---|
//! | [`revolve`] | a boundary | the length |
//! | [`mixed`] | a boundary or a tape | the length |
//! | [`online`] | a boundary | nothing: stages come one by one |
//! | [`multi_level`] | a boundary, on the device or in a tier | the length, the tiers |

pub mod mixed;
pub mod multi_level;
pub mod online;
pub mod optimal;
pub mod revolve;
mod slots;
