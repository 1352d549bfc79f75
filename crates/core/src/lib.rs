//! The types that all crates of Dalsegno share: identifiers, layouts, settings, limits and errors.
//!
//! Nothing here does I/O, starts a thread or reads a clock.

#![forbid(unsafe_code)]

mod checksum;
mod choices;
mod class;
mod clock;
mod compression;
mod config;
mod error;
mod extent;
mod far_options;
mod hash;
mod index_tuning;
mod layout;
mod limits;
mod namespace;
mod shape;
mod stopped;
mod tier;
mod units;

pub use checksum::{crc32c, crc32c_append, crc32c_combine};
pub use choices::{Admission, DramAdmission, Durability, EngineChoice, FarWrite, IndexChoice};
pub use class::Class;
pub use clock::{Clock, Deadline, ManualClock, Nanos};
pub use compression::{Compression, MAX_ELEMENT_BYTES, MAX_EXTENT_UNITS, MAX_UNIT_BYTES};
pub use config::{Config, MIN_SEGMENTS, may_be_segment_bytes};
pub use error::{Error, ErrorKind, Result};
pub use extent::{Extent, ExtentId, Location, MAX_EXTENT_BLOCKS, MAX_EXTENT_SLICES};
pub use far_options::FarOptions;
pub use hash::{ChainHash, NamespaceId, ParseHexError, StoreId, to_hex};
pub use index_tuning::IndexTuning;
pub use layout::{KvLayout, MAX_LAYERS, MAX_SLICE_BYTES};
pub use limits::{Limits, SpaceFacts};
pub use namespace::{Namespace, NamespaceBuilder};
pub use shape::Shape;
pub use stopped::Stopped;
pub use tier::BlockTier;
pub use units::{format_bytes, parse_bytes};

/// Alignment of everything on a device, in bytes: offsets, lengths and buffers of direct I/O.
pub const SECTOR_BYTES: u64 = 4096;

/// Upper bound of segment numbers, epochs and sequence numbers. They start small and grow in steps, so none ever comes
/// near. A larger number was not written by us, and no code increments it.
pub const COUNT_LIMIT: u64 = 1 << 62;

/// Rounds `bytes` up to the next multiple of [`SECTOR_BYTES`].
///
/// # Panics
///
/// If the result does not fit into 64 bits. No size of ours comes near.
#[must_use]
pub const fn sector_up(bytes: u64) -> u64 {
    bytes.next_multiple_of(SECTOR_BYTES)
}

/// Rounds `bytes` down to a multiple of [`SECTOR_BYTES`].
#[must_use]
pub const fn sector_down(bytes: u64) -> u64 {
    bytes - bytes % SECTOR_BYTES
}
