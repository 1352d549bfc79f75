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

mod agreement;
mod blocks;
mod checks;
mod crash;
mod device;
mod disk;
mod explore;
mod fault;
mod habits;
mod history;
mod layers;
mod oracle;
mod random;
mod state;
mod totals;
mod world;

pub use blocks::{Blocks, chain_hashes};
pub use crash::{Common, crash_at, crash_everywhere, live, recover};
pub use device::{DeviceOptions, Outage, SimDevice};
pub use disk::{SECTOR, Torn};
pub use explore::{Course, Explored, FATES, HISTORIES, Plan, Violation, Watch, explore, replay};
pub use fault::{Fault, Kind, Rule};
pub use habits::Habit;
pub use history::{Action, Part, Style, Timed, history};
pub use oracle::{Expect, Oracle};
pub use random::Random;
pub use totals::Totals;
pub use world::{Label, World};
