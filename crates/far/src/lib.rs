//! Tiers beyond the host: packs of extents that the stores of many hosts write and read.
//!
//! The format is docs/formats/pack.md. A [`Publisher`] writes the packs of one store, a [`Follower`] indexes those of
//! all others, a [`FarReader`] reads blocks of any, and a [`Collector`] removes what dead writers left. They need no
//! lock and no agreement, because every name is written once.
//!
//! 1. No object is overwritten, appended to, or renamed over another.
//! 2. Every returned byte was verified with a checksum from a header that names its writer, pack and offset.
//! 3. A lookup never waits for the location.
//! 4. What a removal covers is not found, in whatever order lists and catalogs become known.
//! 5. Memory, threads, calls under way and own bytes at the location are bounded.

#![forbid(unsafe_code)]

mod collector;
mod earlier;
mod expired_lists;
mod filling;
mod follower;
pub mod format;
mod index;
mod leaving;
mod member;
mod names;
pub mod offline;
mod own_folder;
mod own_lists;
mod polled;
mod publisher;
mod publishing;
mod reader;
mod removal;
mod replies;
mod signs;
mod tier;

pub use collector::{CHECK_EVERY, Collector, CollectorStats};
pub use earlier::{EarlierFolders, EarlierSearch};
pub use filling::IN_FLIGHT;
pub use follower::{Follower, LIST_EVERY};
pub use format::{MAX_PENDING_BYTES, MAX_RECORD_BYTES, RemovalRecord};
pub use index::{FarIndex, FarIndexView, FarPlace, Indexed, RecordAt};
pub use member::Member;
pub use names::{Object, ObjectName, REMOVALS_FOLDER, WriterId};
pub use own_lists::{KEEP_REMOVALS, LIST_EXPIRES};
pub use polled::{BadObject, LocationTime, Polled, PolledBad};
pub use publisher::Publisher;
pub use publishing::{PublisherOptions, PublisherStats, Refused};
pub use reader::{FarReader, FarReading, FarShape, FarWanted};
pub use removal::{Applied, Removal, RemovalId};
pub use replies::wait_for;
pub use signs::{DEAD_AFTER, SILENT_AFTER, WATCHED};
pub use tier::{
    Ask, DirectoryTier, DirectoryTierOptions, FileNames, Listed, LocationError, LocationPath,
    MemoryLocation, MemoryTier, Permission, Reply, RequestCost, SentRequests, StopMode, Tier,
    TierFacts, TierLanes, TierRequests, TierState,
};
