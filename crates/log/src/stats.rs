//! Counters of the log; cheap, named once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::error::Cause;

/// Live counters. All grow only.
#[derive(Debug, Default)]
pub struct LogStats {
    pub(crate) read_bytes: AtomicU64,
    pub(crate) read_requests: AtomicU64,
    pub(crate) staged_read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) write_requests: AtomicU64,
    pub(crate) staged_write_bytes: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) segments_created: AtomicU64,
    pub(crate) segments_recycled: AtomicU64,
    pub(crate) creations_refused: AtomicU64,
    causes: [AtomicU64; Cause::ALL.len()],
}

/// A copy of the counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogStatsView {
    /// Bytes read from the device, padding and headers included.
    pub read_bytes: u64,
    /// Read requests sent to the device.
    pub read_requests: u64,
    /// Bytes that went through a staging buffer because the caller's memory could not be used directly.
    pub staged_read_bytes: u64,
    /// Bytes written to the device.
    pub written_bytes: u64,
    /// Write requests sent to the device.
    pub write_requests: u64,
    /// Bytes that went through a staging buffer on their way to the device.
    pub staged_write_bytes: u64,
    /// `fdatasync` calls.
    pub syncs: u64,
    /// Segment files created.
    pub segments_created: u64,
    /// Segments recycled.
    pub segments_recycled: u64,
    /// Segment files that the file system had no room for.
    pub creations_refused: u64,
    /// Blocks that turned out a miss when they were read, by cause.
    pub misses: BTreeMap<&'static str, u64>,
}

impl LogStats {
    pub(crate) fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }

    /// Counts blocks that became a miss.
    pub fn count_miss(&self, cause: Cause, blocks: u64) {
        let index = Cause::ALL.iter().position(|c| *c == cause).expect("ALL is complete");
        Self::add(&self.causes[index], blocks);
    }

    /// Copies the counters.
    #[must_use]
    pub fn view(&self) -> LogStatsView {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LogStatsView {
            read_bytes: get(&self.read_bytes),
            read_requests: get(&self.read_requests),
            staged_read_bytes: get(&self.staged_read_bytes),
            written_bytes: get(&self.written_bytes),
            write_requests: get(&self.write_requests),
            staged_write_bytes: get(&self.staged_write_bytes),
            syncs: get(&self.syncs),
            segments_created: get(&self.segments_created),
            segments_recycled: get(&self.segments_recycled),
            creations_refused: get(&self.creations_refused),
            misses: Cause::ALL.iter().zip(&self.causes).map(|(c, n)| (c.name(), get(n))).collect(),
        }
    }
}
