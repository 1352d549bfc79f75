//! The vocabulary of Dalsegno: names, shapes, limits and errors that every other room speaks.
//!
//! Nothing here does I/O, starts a thread or reads a clock, so everything can be tested by value.

#![forbid(unsafe_code)]

mod clock;
mod compression;
mod config;
mod error;
mod extent;
mod hash;
mod index_tuning;
mod layout;
mod limits;
mod namespace;
mod shape;
mod units;

pub use clock::{Clock, Deadline, ManualClock, Nanos};
pub use compression::{Compression, MAX_ELEMENT_BYTES, MAX_EXTENT_UNITS, MAX_UNIT_BYTES};
pub use config::{Admission, Config, DramAdmission, Durability, EngineChoice, IndexChoice};
pub use error::{Error, ErrorKind, Result};
pub use extent::{Extent, ExtentId, Location, MAX_EXTENT_BLOCKS, MAX_EXTENT_SLICES};
pub use hash::{ChainHash, NamespaceId, ParseHexError, StoreId, to_hex};
pub use index_tuning::IndexTuning;
pub use layout::{KvLayout, MAX_LAYERS, MAX_SLICE_BYTES};
pub use limits::{Limits, MIN_SEGMENTS, SpaceFacts, may_be_segment_bytes};
pub use namespace::{Namespace, NamespaceBuilder};
pub use shape::Shape;
pub use units::{format_bytes, parse_bytes};

/// Alignment of everything on a device, in bytes: offsets, lengths and buffers of direct I/O.
pub const SECTOR_BYTES: u64 = 4096;

/// Segment numbers, epochs and sequence numbers begin small and grow in steps: none comes ever near. What is not below
/// was not written by us, and nobody adds to it.
pub const COUNT_LIMIT: u64 = 1 << 62;

/// Rounds `bytes` up to the next multiple of [`SECTOR_BYTES`].
///
/// # Panics
///
/// If the result does not fit into 64 bits; no size of ours comes near.
#[must_use]
pub const fn sector_up(bytes: u64) -> u64 {
    bytes.next_multiple_of(SECTOR_BYTES)
}

/// Rounds `bytes` down to a multiple of [`SECTOR_BYTES`].
#[must_use]
pub const fn sector_down(bytes: u64) -> u64 {
    bytes - bytes % SECTOR_BYTES
}
