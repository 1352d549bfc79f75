//! What the benches of the index share: the work, the engines, and a process for each of them.

pub mod child;
pub mod engine;
#[cfg(feature = "baselines")]
pub mod engines;
pub mod ours;
pub mod workload;
