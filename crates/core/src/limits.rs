//! Every bound of a store, in numbers.
//!
//! 1. `Config::validate` derives and checks every bound once. Other crates never read a `Config`.

use serde::Serialize;

use crate::SECTOR_BYTES;
use crate::choices::{Admission, DramAdmission, Durability, EngineChoice, FarWrite, IndexChoice};
use crate::index_tuning::IndexTuning;

/// Space of the file system when the store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceFacts {
    /// Bytes free for an ordinary user.
    pub free_bytes: u64,
    /// Bytes that the store's own segments already take.
    pub own_bytes: u64,
    /// Segment size of an existing store.
    pub existing_segment_bytes: Option<u64>,
}

/// Every bound of a store, derived and checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Most bytes of disk, all files together.
    pub capacity_bytes: u64,
    /// Whether the capacity is the default.
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
    /// Where the index is stored.
    pub index: IndexChoice,
    /// Bytes of memory of an on-disk index.
    pub index_memory_bytes: u64,
    /// Whether the shape of an on-disk index adapts to its workload.
    pub index_tuning: IndexTuning,
    /// Most bytes per second that compaction of an on-disk index writes; zero for no bound.
    pub index_bytes_per_s: u64,
    /// Bytes of disk reserved for an on-disk index.
    pub index_bytes: u64,
    /// Most bytes per second that merging of extents writes.
    pub merge_bytes_per_s: u64,
    /// Most bytes per second that scrubbing reads.
    pub scrub_bytes_per_s: u64,
    /// Threads for transfers of one direction.
    pub transfer_threads: u32,
    /// Transfers of one direction that may wait for a thread.
    pub transfer_queue: u32,
    /// Most namespaces.
    pub namespace_count: u32,
    /// The directory of the far tier, if there is one.
    pub far: Option<String>,
    /// Most bytes that this store has there, with what its earlier opens wrote; `None` for a tenth of the file system.
    pub far_capacity_bytes: Option<u64>,
    /// Reads of the far directory at a time, and other calls at a time.
    pub far_workers: u32,
    /// When a block is written there.
    pub far_write: FarWrite,
    /// How long blocks wait for their pack to be full, in milliseconds.
    pub far_flush_ms: u64,
}

impl Limits {
    pub(crate) fn check(&self) {
        assert!(
            u64::from(self.segment_count) * self.segment_bytes <= self.capacity_bytes,
            "segments outgrow the capacity"
        );
        assert!(self.extent_bytes <= self.segment_bytes / 4, "an extent outgrows its segment");
        assert!(self.extent_bytes.is_multiple_of(SECTOR_BYTES), "extents are whole sectors");
        assert!(self.io_request_bytes.is_multiple_of(SECTOR_BYTES), "requests are whole sectors");
    }
}
