//! Counters of the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_extent::{Cause, TransferStats, TransferStatsView};
use serde::Serialize;

/// Live counters, which only grow.
#[derive(Debug, Default)]
pub struct LogStats {
    pub(crate) transfers: Arc<TransferStats>,
    pub(crate) syncs: AtomicU64,
    pub(crate) segments_created: AtomicU64,
    pub(crate) segments_recycled: AtomicU64,
    pub(crate) segments_given_back: AtomicU64,
    pub(crate) creations_refused: AtomicU64,
}

/// A snapshot of the counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogStatsView {
    /// What moved between memory and the device.
    #[serde(flatten)]
    pub transfers: TransferStatsView,
    /// `fdatasync` calls.
    pub syncs: u64,
    /// Segment files created.
    pub segments_created: u64,
    /// Segments recycled.
    pub segments_recycled: u64,
    /// Segment files removed because the index found no space on disk.
    pub segments_given_back: u64,
    /// Segment files not created because the file system had no space for them next to the index.
    pub creations_refused: u64,
}

impl LogStats {
    /// Counters of a log that moves bytes with these counters.
    pub(crate) fn of(transfers: Arc<TransferStats>) -> Self {
        Self { transfers, ..Self::default() }
    }

    /// Adds one to a counter.
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts blocks that are a miss.
    pub fn count_miss(&self, cause: Cause, blocks: u64) {
        self.transfers.count_miss(cause, blocks);
    }

    /// Copies the counters.
    #[must_use]
    pub fn view(&self) -> LogStatsView {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LogStatsView {
            transfers: self.transfers.view(),
            syncs: get(&self.syncs),
            segments_created: get(&self.segments_created),
            segments_recycled: get(&self.segments_recycled),
            segments_given_back: get(&self.segments_given_back),
            creations_refused: get(&self.creations_refused),
        }
    }
}
