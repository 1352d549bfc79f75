//! A simulated device with faults, and histories of a whole store over it; for tests, never in a release.
//!
//! One seed decides everything: the history, which operation is the last before an outage, and which of the bytes that
//! were not synced survive it. A failing test prints the seed and the number of the operation; the same pair fails
//! again.
//!
//! 1. What a sync, or a sync of names, covered survives every outage. Of the rest each sector, and each name, is on its
//!    own afterwards: it has any of the states that it went through since.
//! 2. Nothing here reads a clock, global randomness or the file system.

#![forbid(unsafe_code)]

mod blocks;
mod device;
mod disk;
mod fault;
mod history;
mod oracle;
mod random;
mod world;

pub use blocks::{Blocks, chain_hashes};
pub use device::{DeviceOptions, Outage, SimDevice};
pub use disk::{SECTOR, Torn};
pub use fault::{Fault, Kind, Rule};
pub use history::{Action, Part, Style, Timed, history};
pub use oracle::{Expect, Oracle};
pub use random::Random;
pub use world::{Label, World};
