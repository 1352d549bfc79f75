//! A simulated device with faults, and histories of a whole store on it; for tests, never in a release.
//!
//! One seed decides everything: the history, the last operation before an outage, and which unsynced bytes survive it.
//! A failing test prints the seed and the number of the operation. The same pair fails again.
//!
//! 1. Data that a sync covered, and names that a sync of names covered, survive every outage. Every other sector and
//!    name is independent: it has any of its states since then.
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
mod label;
mod layer_puts;
mod oracle;
mod random;
mod reads;
mod setup;
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
pub use label::Label;
pub use oracle::{Expect, Oracle};
pub use random::Random;
pub use totals::Totals;
pub use world::World;
