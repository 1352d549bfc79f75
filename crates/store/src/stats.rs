//! All counters and gauges of a store at one moment, under one name each.

use dalsegno_log::LogStatsView;
use serde::Serialize;

use crate::counters::{MergeStats, ScrubStats};
use crate::device::{DeviceStats, ScheduleStats};
use crate::far::stats::FarStats;
use crate::tuning::tuner::IndexStats;

/// A copy of all counters and gauges at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// Calls of put.
    pub put_calls: u64,
    /// Blocks that puts wrote.
    pub put_stored_blocks: u64,
    /// Blocks that pool-only puts kept in DRAM.
    pub pool_only_blocks: u64,
    /// Blocks that were present already.
    pub put_present_blocks: u64,
    /// Blocks that another put was writing.
    pub put_pending_blocks: u64,
    /// Blocks that admission declined, or for which DRAM had no place in a pool-only put.
    pub put_declined_blocks: u64,
    /// Blocks that could not be written: no space, deadline, device.
    pub put_failed_blocks: u64,
    /// Bytes of blocks written.
    pub put_bytes: u64,
    /// Calls of get.
    pub get_calls: u64,
    /// Blocks served from DRAM.
    pub get_dram_blocks: u64,
    /// Blocks served from the log.
    pub get_log_blocks: u64,
    /// Blocks served from the far tier.
    pub get_far_blocks: u64,
    /// Blocks that were a miss, for any cause.
    pub get_missed_blocks: u64,
    /// Bytes served.
    pub get_bytes: u64,
    /// Calls of probe.
    pub probe_calls: u64,
    /// Blocks that probes requested.
    pub probe_asked_blocks: u64,
    /// Leading blocks that probes found.
    pub probe_present_blocks: u64,
    /// Blocks evicted to free space.
    pub evicted_blocks: u64,
    /// Bytes moved to free space.
    pub relocated_bytes: u64,
    /// Blocks quarantined because their bytes were bad.
    pub quarantined_blocks: u64,
    /// Blocks removed by callers.
    pub removed_blocks: u64,
    /// Transfers refused because the queue was full.
    pub throttled_transfers: u64,
    /// Bytes that this process copied between places and the pages of engines.
    pub engine_copied_bytes: u64,
    /// Damaged places found at open.
    pub open_faults: u64,
    /// Merging of small extents.
    pub merging: MergeStats,
    /// Reading stored blocks to find bad bytes.
    pub scrubbing: ScrubStats,
    /// Extents in the index.
    pub extents: u64,
    /// Blocks in the index.
    pub blocks: u64,
    /// Blocks in DRAM.
    pub dram_blocks: u64,
    /// Bytes in DRAM, each block's rounded up to units of 64 KiB.
    pub dram_bytes: u64,
    /// Blocks that entered DRAM.
    pub dram_admitted_blocks: u64,
    /// Blocks that left DRAM to free memory.
    pub dram_evicted_blocks: u64,
    /// Blocks that did not enter DRAM because readers still held the memory of those that had left.
    pub dram_throttled_blocks: u64,
    /// Bytes of disk in use.
    pub disk_bytes: u64,
    /// The most bytes of disk that the store may use.
    pub capacity_bytes: u64,
    /// Whether writing has stopped because a sync failed.
    pub poisoned: bool,
    /// Whether the device responds.
    pub device: DeviceStats,
    /// In which order requests to the device start, and why.
    pub schedule: ScheduleStats,
    /// Which I/O engine serves the files.
    pub io_engine: &'static str,
    /// Whether requests bypass the page cache.
    pub io_direct: bool,
    /// The on-disk index, and how its shape came about; none if the index is in memory.
    pub index: Option<IndexStats>,
    /// The log's counters; `misses` counts the blocks that could not be read from the log, by cause.
    pub log: LogStatsView,
    /// The far tier; none without the setting `far`.
    pub far: Option<FarStats>,
}
