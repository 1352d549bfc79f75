//! Every counter of a store, under one name each.

use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_io::Device;
use dalsegno_log::LogStatsView;
use serde::Serialize;

use crate::scrub::{ScrubCounters, ScrubStats};
use crate::store::Inner;
use crate::tuner::IndexStats;
use crate::watch::DeviceStats;

/// Counters that the store itself keeps. All grow only.
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

/// What merging did, and why it did not.
#[derive(Debug, Default)]
pub(crate) struct MergeCounters {
    pub(crate) merges: AtomicU64,
    pub(crate) extents: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) deferrals: AtomicU64,
    pub(crate) no_room: AtomicU64,
    pub(crate) changed: AtomicU64,
    pub(crate) damaged: AtomicU64,
    pub(crate) failed: AtomicU64,
}

/// Merging of small extents, as it is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MergeStats {
    /// Extents that were made of several others.
    pub merges: u64,
    /// Extents that became part of one.
    pub merged_extents: u64,
    /// Bytes of blocks that this wrote again.
    pub merged_bytes: u64,
    /// How often it stood back because somebody read.
    pub deferrals: u64,
    /// Merges left for later because the log had no room that was free.
    pub skipped_no_room: u64,
    /// Merges given up because blocks were removed, dropped or moved meanwhile.
    pub skipped_changed: u64,
    /// Merges given up because stored bytes were bad.
    pub skipped_damaged: u64,
    /// Merges given up because the device failed.
    pub skipped_failed: u64,
    /// Lineages whose small extents wait.
    pub waiting_lineages: u64,
}

/// A copy of all counters and gauges at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stats {
    /// Calls of put.
    pub put_calls: u64,
    /// Blocks that puts wrote.
    pub put_stored_blocks: u64,
    /// Blocks that were there already.
    pub put_present_blocks: u64,
    /// Blocks that another put was writing.
    pub put_pending_blocks: u64,
    /// Blocks that admission declined.
    pub put_declined_blocks: u64,
    /// Blocks that could not be written: no room, deadline, device.
    pub put_failed_blocks: u64,
    /// Bytes of blocks written.
    pub put_bytes: u64,
    /// Calls of get.
    pub get_calls: u64,
    /// Blocks served from DRAM.
    pub get_dram_blocks: u64,
    /// Blocks served from the log.
    pub get_log_blocks: u64,
    /// Blocks that were a miss, whatever the cause.
    pub get_missed_blocks: u64,
    /// Bytes served.
    pub get_bytes: u64,
    /// Calls of probe.
    pub probe_calls: u64,
    /// Blocks that probes asked for.
    pub probe_asked_blocks: u64,
    /// Leading blocks that probes found.
    pub probe_present_blocks: u64,
    /// Blocks dropped to make room.
    pub evicted_blocks: u64,
    /// Bytes moved to make room.
    pub relocated_bytes: u64,
    /// Blocks set aside because their bytes were bad.
    pub quarantined_blocks: u64,
    /// Blocks removed by callers.
    pub removed_blocks: u64,
    /// Transfers refused because the queue was full.
    pub throttled_transfers: u64,
    /// Damaged places found at open.
    pub open_faults: u64,
    /// Merging of small extents.
    pub merging: MergeStats,
    /// Reading what is stored to find what went bad.
    pub scrubbing: ScrubStats,
    /// Extents in the index.
    pub extents: u64,
    /// Blocks in the index.
    pub blocks: u64,
    /// Blocks in DRAM.
    pub dram_blocks: u64,
    /// Bytes in DRAM, each block's rounded up to sectors.
    pub dram_bytes: u64,
    /// Blocks that entered DRAM.
    pub dram_admitted_blocks: u64,
    /// Blocks that left DRAM to make room.
    pub dram_evicted_blocks: u64,
    /// Blocks that did not enter DRAM because readers still held the memory of those that had left.
    pub dram_throttled_blocks: u64,
    /// Bytes of disk taken.
    pub disk_bytes: u64,
    /// Most bytes of disk.
    pub capacity_bytes: u64,
    /// Whether writing has stopped because a sync failed.
    pub poisoned: bool,
    /// Whether the device answers.
    pub device: DeviceStats,
    /// Which I/O engine serves the files.
    pub io_engine: &'static str,
    /// Whether requests bypass the page cache.
    pub io_direct: bool,
    /// The index in files, and how its shape came about; none if the index is in memory.
    pub index: Option<IndexStats>,
    /// The log's counters; `misses` holds the blocks lost on the way from the log, by cause.
    pub log: LogStatsView,
}

impl MergeCounters {
    fn view(&self, waiting_lineages: u64) -> MergeStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        MergeStats {
            merges: get(&self.merges),
            merged_extents: get(&self.extents),
            merged_bytes: get(&self.bytes),
            deferrals: get(&self.deferrals),
            skipped_no_room: get(&self.no_room),
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

pub(crate) fn view(inner: &Inner) -> Stats {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counters = &inner.counters;
    let (extents, blocks) = inner.index.counts();
    let dram = inner.dram.view();
    let geometry = inner.watch.geometry();
    Stats {
        put_calls: get(&counters.put_calls),
        put_stored_blocks: get(&counters.put_stored_blocks),
        put_present_blocks: get(&counters.put_present_blocks),
        put_pending_blocks: get(&counters.put_pending_blocks),
        put_declined_blocks: get(&counters.put_declined_blocks),
        put_failed_blocks: get(&counters.put_failed_blocks),
        put_bytes: get(&counters.put_bytes),
        get_calls: get(&counters.get_calls),
        get_dram_blocks: get(&counters.get_dram_blocks),
        get_log_blocks: get(&counters.get_log_blocks),
        get_missed_blocks: get(&counters.get_missed_blocks),
        get_bytes: get(&counters.get_bytes),
        probe_calls: get(&counters.probe_calls),
        probe_asked_blocks: get(&counters.probe_asked_blocks),
        probe_present_blocks: get(&counters.probe_present_blocks),
        evicted_blocks: get(&counters.evicted_blocks),
        relocated_bytes: get(&counters.relocated_bytes),
        quarantined_blocks: get(&counters.quarantined_blocks),
        removed_blocks: get(&counters.removed_blocks),
        throttled_transfers: get(&counters.throttled_transfers),
        open_faults: get(&counters.open_faults),
        merging: counters.merging.view(inner.merger.waiting()),
        scrubbing: counters.scrubbing.view(),
        extents,
        blocks,
        dram_blocks: dram.blocks,
        dram_bytes: dram.bytes,
        dram_admitted_blocks: dram.admitted,
        dram_evicted_blocks: dram.evicted,
        dram_throttled_blocks: dram.throttled,
        disk_bytes: inner.log.segments().disk_bytes(),
        capacity_bytes: inner.limits.capacity_bytes,
        poisoned: inner.log.is_poisoned(),
        device: inner.watch.stats(),
        io_engine: geometry.engine,
        io_direct: geometry.direct,
        index: inner.upkeep.stats(),
        log: inner.log.stats().view(),
    }
}
