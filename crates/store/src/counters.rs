//! Counters that the paths of a store keep.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// Counters that the store itself keeps. They only grow.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) put_calls: AtomicU64,
    pub(crate) put_stored_blocks: AtomicU64,
    pub(crate) pool_only_blocks: AtomicU64,
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

impl MergeCounters {
    pub(crate) fn view(&self, waiting_lineages: u64) -> MergeStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        MergeStats {
            merges: get(&self.merges),
            merged_extents: get(&self.extents),
            merged_bytes: get(&self.bytes),
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
