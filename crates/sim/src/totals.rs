//! Sums over the counters of stores.

use std::ops::AddAssign;

use dalsegno_store::Stats;

/// Work of several stores, which shows what a history exercised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Opens.
    pub openings: u64,
    /// Blocks dropped for space.
    pub evicted_blocks: u64,
    /// Bytes copied to reclaim space.
    pub relocated_bytes: u64,
    /// Segments reclaimed.
    pub recycled_segments: u64,
    /// Extents merged from several others.
    pub merges: u64,
    /// Flushed memtables of an on-disk index.
    pub flushes: u64,
    /// Compactions of an on-disk index.
    pub index_merges: u64,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.openings += other.openings;
        self.evicted_blocks += other.evicted_blocks;
        self.relocated_bytes += other.relocated_bytes;
        self.recycled_segments += other.recycled_segments;
        self.merges += other.merges;
        self.flushes += other.flushes;
        self.index_merges += other.index_merges;
    }
}

impl Totals {
    /// Adds the counters of a closed store.
    pub(crate) fn add(&mut self, stats: &Stats) {
        self.openings += 1;
        self.evicted_blocks += stats.evicted_blocks;
        self.relocated_bytes += stats.relocated_bytes;
        self.recycled_segments += stats.log.segments_recycled;
        self.merges += stats.merging.merges;
        if let Some(index) = &stats.index {
            self.flushes += index.lsm.flushes;
            self.index_merges += index.lsm.merges;
        }
    }
}
