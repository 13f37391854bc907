//! The solvers: each finds a plan for a chain, and says how good it is known to be.
//!
//! One file a solver, named as on the command line. Each gives actions; the simulator judges them, and what it says is
//! what the plan predicts.

pub mod eager;
