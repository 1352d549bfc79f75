//! What a configuration comes to: every bound of a store, in numbers.
//!
//! 1. Every bound is derived and checked once, here; nothing below reads a [`Config`].

use serde::Serialize;

use crate::config::{Admission, Config, DramAdmission, Durability, EngineChoice, IndexChoice};
use crate::index_tuning::IndexTuning;
use crate::{Error, Result, SECTOR_BYTES, format_bytes, sector_down};

/// What the file system could give the store when it is opened, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceFacts {
    /// Free for an ordinary user.
    pub free_bytes: u64,
    /// Taken by the store's own segments already.
    pub own_bytes: u64,
    /// Segment size the store was created with, if it exists already.
    pub existing_segment_bytes: Option<u64>,
}

/// Every bound of a store, derived and checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Most bytes of disk, all files together.
    pub capacity_bytes: u64,
    /// Whether the capacity was chosen by us.
    pub capacity_is_default: bool,
    /// Size of a segment file.
    pub segment_bytes: u64,
    /// Most segment files.
    pub segment_count: u32,
    /// Largest extent, header and payload.
    pub extent_bytes: u64,
    /// Most bytes of the DRAM tier.
    pub dram_bytes: u64,
    /// When a block enters the DRAM tier.
    pub dram_admission: DramAdmission,
    /// Which blocks a put writes.
    pub admission: Admission,
    /// Whether a put waits for `fdatasync`.
    pub durability: Durability,
    /// Which I/O engine serves the files.
    pub io_engine: EngineChoice,
    /// Requests that one call keeps in flight, unless fewer keep the device busy.
    pub io_depth: u32,
    /// Largest single request to the device.
    pub io_request_bytes: u64,
    /// Bytes of the staging pool.
    pub staging_bytes: u64,
    /// Bytes of extent headers kept in memory.
    pub header_cache_bytes: u64,
    /// Bytes of compressed extents that wait to be written.
    pub compression_bytes: u64,
    /// Where the index lives.
    pub index: IndexChoice,
    /// Bytes of memory of an index in files.
    pub index_memory_bytes: u64,
    /// Whether the shape of an index in files follows what is asked of it.
    pub index_tuning: IndexTuning,
    /// Most bytes a second that merging tables of an index in files writes; zero for no bound.
    pub index_bytes_per_s: u64,
    /// Bytes of disk set aside for an index in files.
    pub index_bytes: u64,
    /// Most bytes a second that merging writes.
    pub merge_bytes_per_s: u64,
    /// Most bytes a second that scrubbing reads.
    pub scrub_bytes_per_s: u64,
    /// Threads that carry out transfers of one direction.
    pub transfer_threads: u32,
    /// Transfers of one direction that may wait for a thread.
    pub transfer_queue: u32,
    /// Most namespaces.
    pub namespace_count: u32,
}

/// Bytes set aside for the store's small files: its own header and namespace descriptors.
const SMALL_FILES_BYTES: u64 = 1 << 20;
/// An index in files gets this part of the capacity: half for its tables, half to merge them. It takes about 82 bytes a
/// block, so that is enough for blocks of 5 KiB; a token of a small model, at eight bits a value, has 6.
const INDEX_SHARE: u64 = 32;
const MIN_INDEX_BYTES: u64 = 4 << 20;
const MIN_SEGMENT_BYTES: u64 = 1 << 20;
const MAX_SEGMENT_BYTES: u64 = 4 << 30;
/// Fewest segments of a store: one takes writes, one stands ready for relocation, the others hold data.
pub const MIN_SEGMENTS: u64 = 4;
/// A directory of more files than this is slow to open and to list.
const MAX_SEGMENTS: u64 = 1 << 16;

impl Config {
    /// Derives every bound and checks them against each other.
    ///
    /// # Errors
    ///
    /// `Invalid` with the setting's name, its value, what is allowed and what to do.
    pub fn validate(&self, space: SpaceFacts) -> Result<Limits> {
        let capacity_bytes = self.capacity.unwrap_or_else(|| default_capacity(space));
        let segment_bytes = self.segment_bytes(capacity_bytes, space)?;
        let index_bytes = match self.index {
            IndexChoice::Memory => 0,
            IndexChoice::Lsm => (capacity_bytes / INDEX_SHARE).max(MIN_INDEX_BYTES),
        };
        let segments = self.segment_count(capacity_bytes, segment_bytes, index_bytes)?;
        let extent_bytes = self.extent_bytes(segment_bytes);
        let limits = Limits {
            capacity_bytes,
            capacity_is_default: self.capacity.is_none(),
            segment_bytes,
            segment_count: u32::try_from(segments.min(MAX_SEGMENTS)).expect("bounded"),
            extent_bytes,
            dram_bytes: self.dram.unwrap_or(256 << 20),
            dram_admission: self.dram_admission,
            admission: self.admission,
            durability: self.durability,
            io_engine: self.io_engine,
            io_depth: within("io_depth", self.io_depth.unwrap_or(8), 1, 64)?,
            io_request_bytes: sector_down(within_bytes(
                "io_request",
                self.io_request.unwrap_or(1 << 20),
                // A record's header, 256 KiB at most, is read in one request.
                256 << 10,
                4 << 20,
            )?),
            staging_bytes: within_bytes(
                "staging",
                self.staging.unwrap_or(64 << 20),
                16 << 20,
                64 << 30,
            )?,
            header_cache_bytes: self.header_cache.unwrap_or(32 << 20),
            // One is compressed while another is written.
            compression_bytes: 2 * extent_bytes,
            index: self.index,
            index_bytes,
            index_tuning: self.index_tuning,
            index_bytes_per_s: self.index_rate.unwrap_or(256 << 20),
            index_memory_bytes: within_bytes(
                "index_memory",
                self.index_memory.unwrap_or(128 << 20),
                1 << 20,
                64 << 30,
            )?,
            merge_bytes_per_s: self.merge_rate.unwrap_or(64 << 20),
            scrub_bytes_per_s: self.scrub_rate.unwrap_or(4 << 20),
            transfer_threads: within(
                "transfer_threads",
                self.transfer_threads.unwrap_or(2),
                1,
                64,
            )?,
            transfer_queue: within(
                "transfer_queue",
                self.transfer_queue.unwrap_or(256),
                1,
                65_536,
            )?,
            namespace_count: within("namespaces", self.namespaces.unwrap_or(4096), 1, 65_536)?,
        };
        limits.check();
        Ok(limits)
    }

    /// How many segments the capacity holds beside other files.
    fn segment_count(
        &self,
        capacity_bytes: u64,
        segment_bytes: u64,
        index_bytes: u64,
    ) -> Result<u64> {
        let others = SMALL_FILES_BYTES + index_bytes;
        let segments = capacity_bytes.saturating_sub(others) / segment_bytes;
        if segments >= MIN_SEGMENTS {
            return Ok(segments);
        }
        Err(Error::invalid(format!(
            "capacity {} holds {segments} segments of {}; at least {MIN_SEGMENTS} are needed, so give it {} \
             or more{}",
            format_bytes(capacity_bytes),
            format_bytes(segment_bytes),
            format_bytes(segment_bytes.saturating_mul(MIN_SEGMENTS).saturating_add(others)),
            if self.capacity.is_none() { " (the disk is nearly full: make room)" } else { "" },
        )))
    }

    fn extent_bytes(&self, segment_bytes: u64) -> u64 {
        let wanted = self.extent.unwrap_or(32 << 20);
        sector_down(wanted.min(segment_bytes / 4).max(2 * SECTOR_BYTES))
    }

    fn segment_bytes(&self, capacity_bytes: u64, space: SpaceFacts) -> Result<u64> {
        // A store keeps the segment size it was created with: its files are there already.
        if let Some(existing) = space.existing_segment_bytes {
            return match self.segment {
                Some(wanted) if wanted != existing => Err(Error::invalid(format!(
                    "this store was created with segments of {}, not {}; leave the setting \"segment\" out",
                    format_bytes(existing),
                    format_bytes(wanted)
                ))),
                _ => Ok(existing),
            };
        }
        let segment = self.segment.unwrap_or_else(|| {
            let share = (capacity_bytes / 32).max(1);
            (1_u64 << share.ilog2()).clamp(MIN_SEGMENT_BYTES, 256 << 20)
        });
        if !may_be_segment_bytes(segment) {
            return Err(Error::invalid(format!(
                "segment is {}; it must be a power of two from {} to {}",
                format_bytes(segment),
                format_bytes(MIN_SEGMENT_BYTES),
                format_bytes(MAX_SEGMENT_BYTES)
            )));
        }
        Ok(segment)
    }
}

impl Limits {
    fn check(&self) {
        assert!(
            u64::from(self.segment_count) * self.segment_bytes <= self.capacity_bytes,
            "segments outgrow the capacity"
        );
        assert!(self.extent_bytes <= self.segment_bytes / 4, "an extent outgrows its segment");
        assert!(self.extent_bytes.is_multiple_of(SECTOR_BYTES), "extents are whole sectors");
        assert!(self.io_request_bytes.is_multiple_of(SECTOR_BYTES), "requests are whole sectors");
    }
}

/// Whether a store may have segments of so many bytes.
#[must_use]
pub fn may_be_segment_bytes(bytes: u64) -> bool {
    bytes.is_power_of_two() && (MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&bytes)
}

fn default_capacity(space: SpaceFacts) -> u64 {
    (space.free_bytes.saturating_add(space.own_bytes) / 10).saturating_mul(8)
}

fn within(name: &str, value: u32, low: u32, high: u32) -> Result<u32> {
    if (low..=high).contains(&value) {
        return Ok(value);
    }
    Err(Error::invalid(format!("{name} is {value}; it must be {low} to {high}")))
}

fn within_bytes(name: &str, value: u64, low: u64, high: u64) -> Result<u64> {
    if (low..=high).contains(&value) {
        return Ok(value);
    }
    Err(Error::invalid(format!(
        "{name} is {}; it must be {} to {}",
        format_bytes(value),
        format_bytes(low),
        format_bytes(high)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: SpaceFacts =
        SpaceFacts { free_bytes: 100 << 30, own_bytes: 0, existing_segment_bytes: None };

    #[test]
    fn the_default_capacity_is_a_share_of_the_disk() {
        let limits = Config::default().validate(SPACE).unwrap();
        assert_eq!(limits.capacity_bytes, (100 << 30) / 10 * 8);
        assert!(limits.capacity_is_default);
        assert_eq!(limits.segment_bytes, 256 << 20);
    }

    #[test]
    fn a_capacity_too_small_for_its_segments_is_refused_with_the_least_that_works() {
        let config = Config { capacity: Some(3 << 20), ..Config::default() };
        let error = config.validate(SPACE).unwrap_err();
        assert!(error.message().contains("5 MiB"), "{error}");
    }

    #[test]
    fn regression_segments_larger_than_any_disk_are_refused() {
        let space = SpaceFacts { existing_segment_bytes: Some(1 << 63), ..SPACE };
        assert!(Config::default().validate(space).is_err());
    }

    #[test]
    fn an_existing_store_keeps_its_segment_size() {
        let space = SpaceFacts { existing_segment_bytes: Some(4 << 20), ..SPACE };
        assert_eq!(Config::default().validate(space).unwrap().segment_bytes, 4 << 20);
        let config = Config { segment: Some(8 << 20), ..Config::default() };
        assert!(config.validate(space).is_err());
    }
}
