//! Every counter of a store, under one name each.

use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_log::LogStatsView;
use serde::Serialize;

use crate::background::tuner::IndexStats;
use crate::device::DeviceStats;
use crate::far::stats::FarStats;

/// Counters that the store itself keeps. They only grow.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) put_calls: AtomicU64,
    pub(crate) put_stored_blocks: AtomicU64,
    pub(crate) put_present_blocks: AtomicU64,
    pub(crate) put_pending_blocks: AtomicU64,
    pub(crate) put_declined_blocks: AtomicU64,
    pub(crate) put_failed_blocks: AtomicU64,
    pub(crate) put_bytes: AtomicU64,
    pub(crate) get_calls: AtomicU64,
    pub(crate) get_dram_blocks: AtomicU64,
    pub(crate) get_log_blocks: AtomicU64,
    pub(crate) get_far_blocks: AtomicU64,
    pub(crate) get_missed_blocks: AtomicU64,
    pub(crate) get_bytes: AtomicU64,
    pub(crate) probe_calls: AtomicU64,
    pub(crate) probe_asked_blocks: AtomicU64,
    pub(crate) probe_present_blocks: AtomicU64,
    pub(crate) evicted_blocks: AtomicU64,
    pub(crate) relocated_bytes: AtomicU64,
    pub(crate) quarantined_blocks: AtomicU64,
    pub(crate) removed_blocks: AtomicU64,
    pub(crate) throttled_transfers: AtomicU64,
    pub(crate) open_faults: AtomicU64,
    pub(crate) merging: MergeCounters,
    pub(crate) scrubbing: ScrubCounters,
}

/// What merging did, and why it skipped merges.
#[derive(Debug, Default)]
pub(crate) struct MergeCounters {
    pub(crate) merges: AtomicU64,
    pub(crate) extents: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) deferrals: AtomicU64,
    pub(crate) no_space: AtomicU64,
    pub(crate) changed: AtomicU64,
    pub(crate) damaged: AtomicU64,
    pub(crate) failed: AtomicU64,
}

/// What merging of small extents did since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MergeStats {
    /// Extents that were made of several others.
    pub merges: u64,
    /// Extents that became part of one.
    pub merged_extents: u64,
    /// Bytes of blocks that this wrote again.
    pub merged_bytes: u64,
    /// How often it yielded to a read.
    pub deferrals: u64,
    /// Merges left for later because the log had no free space.
    pub skipped_no_room: u64,
    /// Merges abandoned because blocks were removed, evicted or moved meanwhile.
    pub skipped_changed: u64,
    /// Merges abandoned because stored bytes were bad.
    pub skipped_damaged: u64,
    /// Merges abandoned because the device failed.
    pub skipped_failed: u64,
    /// Lineages whose small extents wait.
    pub waiting_lineages: u64,
}

/// What scrubbing did since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScrubStats {
    /// Rounds over everything stored.
    pub rounds: u64,
    /// Extents that were read.
    pub extents: u64,
    /// Bytes of blocks that were read and checked.
    pub bytes: u64,
    /// Blocks that were bad and are quarantined.
    pub damaged_blocks: u64,
}

#[derive(Debug, Default)]
pub(crate) struct ScrubCounters {
    pub(crate) rounds: AtomicU64,
    pub(crate) extents: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) damaged: AtomicU64,
}

impl ScrubCounters {
    pub(crate) fn view(&self) -> ScrubStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ScrubStats {
            rounds: get(&self.rounds),
            extents: get(&self.extents),
            bytes: get(&self.bytes),
            damaged_blocks: get(&self.damaged),
        }
    }
}

/// A copy of all counters and gauges at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// Calls of put.
    pub put_calls: u64,
    /// Blocks that puts wrote.
    pub put_stored_blocks: u64,
    /// Blocks that were present already.
    pub put_present_blocks: u64,
    /// Blocks that another put was writing.
    pub put_pending_blocks: u64,
    /// Blocks that admission declined.
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

impl MergeCounters {
    pub(crate) fn view(&self, waiting_lineages: u64) -> MergeStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        MergeStats {
            merges: get(&self.merges),
            merged_extents: get(&self.extents),
            merged_bytes: get(&self.bytes),
            deferrals: get(&self.deferrals),
            skipped_no_room: get(&self.no_space),
            skipped_changed: get(&self.changed),
            skipped_damaged: get(&self.damaged),
            skipped_failed: get(&self.failed),
            waiting_lineages,
        }
    }
}

pub(crate) fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}
