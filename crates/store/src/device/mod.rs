//! What is between a store and its devices: who goes first ([`Scheduled`]), and whether the device responds
//! ([`Watched`], [`WatchedSource`]).
//!
//! A request is admitted when it arrives, so that one is refused at once while the device is suspended. It is watched
//! from when it starts, so that its wait for its turn does not count as the device's.

mod direction;
mod guarded;
mod schedule_stats;
mod scheduled;
mod waiting;
mod watched;
mod watched_source;

pub use self::schedule_stats::{ClassStats, ScheduleStats};
pub(crate) use self::scheduled::Scheduled;
pub use self::watched::DeviceStats;
pub(crate) use self::watched::Watched;
pub(crate) use self::watched_source::WatchedSource;
